"""The streaming reader in separate processes: compiled without a cache, and given a gzip bomb."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys

import pytest
from helpers.kineto_documents import kineto, op
from helpers.paths import ROOT


@pytest.mark.slow
def test_a_real_bomb_is_refused_in_little_memory(tmp_path):
    path = tmp_path / "bomb.json.gz"
    with gzip.GzipFile(path, "wb", compresslevel=1) as file:
        file.write(b"[" + op().encode())
        for _ in range(10_000):
            file.write(bytes(1 << 20))
    code = (
        "import sys; from gpuprof.errors import GpuprofError\n"
        "from gpuprof.record.windows.memory import most_resident_bytes\n"
        "import gpuprof\n"
        "try: gpuprof.load(sys.argv[1])\n"
        "except GpuprofError as error: print(most_resident_bytes() // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1_500_000  # KiB


@pytest.mark.slow
def test_it_compiles_where_nothing_can_be_kept(tmp_path):
    """No cache folder can be made, neither next to the package nor in the user's home."""
    shutil.copytree(ROOT / "gpuprof", tmp_path / "gpuprof", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "gpuprof" / "tracefile" / "kineto" / "__pycache__").write_text("not a folder")
    (tmp_path / "home").write_text("not a folder")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "trace.json").write_bytes(kineto(600))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pathlib import Path\n"
        "from gpuprof.tracefile.kineto import stream\n"
        "path = Path('trace.json'); parsed = stream.read_stream(path, path.stat().st_size)\n"
        "print(sum(table.count for table in parsed.tables.values()))"
    )
    home = str(tmp_path / "home")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "XDG", "PYTHON"))}
    environment |= {"HOME": home, "PYTHONDONTWRITEBYTECODE": "1", "NUMBA_OPT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "traces", env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "600\n"), done.stderr
    assert done.stderr.count("\n") == 1 and "compiling" in done.stderr
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["trace.json"]
