"""The snippets of README and docs that are marked `runnable` run: ```python runnable, ```bash runnable.

Each runs in a folder with `trace.json.gz`, a small recording. Snippets of Python run in one process, each in names of
its own, as importing takes longer than they do. The others need a training or a GPU: only what they call is checked to
exist, as are the commands and options that pages name.
"""

from __future__ import annotations

import ast
import itertools
import operator
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.warm_torch import warm_python

import gpuprof
from gpuprof.cli.entry import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+) runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```(?:bash|python)?(?: runnable)?\n(.*?)^```$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[|&;]\s*|\$\s+)gpuprof ([a-z]+)(.*)")
STARTS_A_PROGRAM = ("trace", "try")
PROGRAM = re.compile(r"-m|torchrun|accelerate|\S+\.py")
"""Where the words of the program begin."""
RECORDING = ROOT / "tests" / "data" / "pairs" / "tiny.json.gz"

_RUN_EACH = """
import sys
for name in sys.argv[1:]:
    try:
        exec(compile(open(name).read(), name, "exec"), {"__name__": "__main__"})
    except BaseException as error:
        raise SystemExit(f"{name}: {type(error).__name__}: {error}") from error
"""


def snippets(language: str) -> list[tuple[str, str]]:
    """Each snippet with the name of its page and its number there."""
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
    need("torch")
    names = []
    for name, text in snippets("python"):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        names.append(f"{name}.py")
    assert len(names) >= 3
    (folder / "run_each.py").write_text(_RUN_EACH, encoding="utf-8")
    run([warm_python(), "run_each.py", *names], folder)


@pytest.mark.parametrize(("name", "text"), snippets("bash"), ids=lambda text: text.partition("\n")[0][:40])
def test_bash(name, text, folder):
    run(["bash", "-euo", "pipefail", "-c", text], folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_not_run_exists(page):
    for text in NOT_RUN.findall(page.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(text)):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if name.startswith("gpuprof."):
                assert operator.attrgetter(name.removeprefix("gpuprof."))(gpuprof) is not None
            elif name.startswith("torch."):
                torch = pytest.importorskip("torch")
                assert operator.attrgetter(name.removeprefix("torch."))(torch) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_their_options_exist(page):
    text = page.read_text(encoding="utf-8")
    for line in (line for match in CODE.finditer(text) for line in (match[1] or match[2] or "").split("\n")):
        command = COMMAND.match(line.split("#")[0])
        if command is None:
            continue
        name, words = command[1], command[2].split("|")[0].split()
        assert name in COMMANDS, line
        parameters = import_module(COMMANDS[name]).command.params
        options = {option for one in parameters for option in (*one.opts, *one.secondary_opts)}
        if name in STARTS_A_PROGRAM:
            words = list(itertools.takewhile(lambda word: not PROGRAM.fullmatch(word), words))
        for word in words:
            if re.match(r"--[a-z]", word):
                assert word.split("=")[0].rstrip(".,)") in {*options, "--help"}, line
