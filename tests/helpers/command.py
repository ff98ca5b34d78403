"""The command line, called as a user calls it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from gpuprof.cli import main
from helpers.diagnosed import each_diagnosed_once
from helpers.paths import ROOT


def gpuprof_command(
    *arguments: object, env: dict[str, str] | None = None, **options
) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user does, with nothing of this shell's GPUPROF_* set."""
    return subprocess.run(
        [sys.executable, "-m", "gpuprof", *map(str, arguments)],
        env=variables(**(env or {})), capture_output=True, text=True, encoding="utf-8",
        **{"timeout": 240, "cwd": ROOT, **options},
    )  # fmt: skip


def in_process(*arguments: object, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """The same without a process, for what a process of its own would not show: imports take most of its time.

    Recordings of the repository, named by whole paths, are diagnosed once for all tests.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        working_in(cwd), mock.patch.dict(os.environ, variables(**env), clear=True),
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), each_diagnosed_once(),
    ):  # fmt: skip
        code = main([str(argument) for argument in arguments])
    return subprocess.CompletedProcess(list(map(str, arguments)), code, *map(written, (out, err)))


def written(stream: io.TextIOWrapper) -> str:
    """What was written to a stream in memory."""
    stream.seek(0)
    return stream.read()


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """A block with another working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def variables(**more: str) -> dict[str, str]:
    """The environment without what sets options, says where settings lie, or how wide a terminal is."""
    ours = ("GPUPROF_", "XDG_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(ours) and k not in ("COLUMNS", "CI")}
    return {**clean, "GPUPROF_SANDBOX": "hooks", **more}


def one_line(stderr: str) -> str:
    """The single line that is there, without its newline."""
    assert stderr.startswith("gpuprof: ") and stderr.endswith("\n") and stderr.count("\n") == 1, stderr
    return stderr[:-1]


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with each_diagnosed_once():
        code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err
