"""Which part of the names of source files is kept."""

from __future__ import annotations

import threading

import pytest

import gpuprof
from gpuprof.record.base.code_paths import shortened

ROOTS = ["/home/me/project", "/home/me/project/src", "/opt/editable"]


COMPILED = f"ab/c{'ab2' * 17}.py"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/me/project/train.py", ("own", "train.py")),
        ("/home/me/project/src/pkg/a.py", ("own", "src/pkg/a.py")),
        ("/opt/editable/unsloth/trainer.py", ("own", "unsloth/trainer.py")),
        ("/home/me/project/.venv/lib/python3.11/site-packages/torch/_ops.py", ("library", "torch/_ops.py")),
        ("/usr/lib/python3/dist-packages/numpy/a.py", ("library", "numpy/a.py")),
        ("/home/other/secret/tools/a.py", ("own", "tools/a.py")),
        ("/tmp/torchinductor_root/ab/cab.py", ("generated", "torchinductor_root/ab/cab.py")),
        (f"/scratch/cache/{COMPILED}", ("generated", COMPILED)),
        ("<frozen importlib._bootstrap>", ("standard", "<frozen importlib._bootstrap>")),
        ("<string>", ("generated", "<string>")),
        (threading.__file__, ("standard", "threading.py")),
        (gpuprof.__file__ or "", ("gpuprof", "gpuprof/__init__.py")),
        ("train.py", ("own", "train.py")),
        ("/tmp/ipykernel_4711/1234567890.py", ("own", "cell.py")),
        ("<ipython-input-3-0123abcd>", ("own", "cell.py")),
    ],
)
def test_a_path_is_kept_without_where_it_lies(file: str, expected: tuple[str, str]):
    assert shortened(file, ROOTS) == expected
