"""The command line, called as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys

from gpuprof.cli import main
from helpers.paths import ROOT


def gpuprof_command(
    *arguments: object, env: dict[str, str] | None = None, **options
) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user does, with nothing of this shell's GPUPROF_* set."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUPROF_") and k not in ("COLUMNS", "CI")}
    return subprocess.run(
        [sys.executable, "-m", "gpuprof", *map(str, arguments)],
        cwd=ROOT, env={**clean, **(env or {})}, capture_output=True, text=True, encoding="utf-8", **options,
    )  # fmt: skip


def one_line(stderr: str) -> str:
    """The single line that is there, without its newline."""
    assert stderr.startswith("gpuprof: ") and stderr.endswith("\n") and stderr.count("\n") == 1, stderr
    return stderr[:-1]


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err
