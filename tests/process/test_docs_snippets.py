"""The snippets of README and docs that are marked `runnable` run: ```python runnable, ```bash runnable.

Each runs in a folder with `trace.json.gz`, a small recording. Snippets of Python run in one process, each in names of
its own, as importing takes longer than they do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+) runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECORDING = ROOT / "gpuprof" / "data" / "demo.json.gz"

_RUN_EACH = """
import sys
for name in sys.argv[1:]:
    try:
        exec(compile(open(name).read(), name, "exec"), {"__name__": "__main__"})
    except BaseException as error:
        raise SystemExit(f"{name}: {type(error).__name__}: {error}") from error
"""


def snippets(language: str) -> list[tuple[str, str]]:
    """Each with the name of its page and its number there."""
    found = [(page, FENCE.findall(page.read_text(encoding="utf-8"))) for page in PAGES]
    return [
        (f"{page.stem}-{number}", text)
        for page, blocks in found
        for number, (kind, text) in enumerate(blocks, 1)
        if kind == language
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(RECORDING, tmp_path / "trace.json.gz")
    return tmp_path


def run(command: list[str], folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_python(folder):
    names = []
    for name, text in snippets("python"):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        names.append(f"{name}.py")
    assert len(names) >= 3
    run([sys.executable, "-c", _RUN_EACH, *names], folder)


@pytest.mark.parametrize(("name", "text"), snippets("bash"), ids=lambda text: text.partition("\n")[0][:40])
def test_bash(name, text, folder):
    run(["bash", "-euo", "pipefail", "-c", text], folder)
