"""Runs one of NVIDIA's programs for its output, with a time limit."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuprof.errors import GpuprofError


class NsysError(GpuprofError):
    """Nsight Systems is missing or has failed: one line that says why and what to do."""


class Answer(NamedTuple):
    """Exit code and output of a program."""

    code: int
    text: str

    def words(self) -> str:
        """The most informative line about a failure, for a one-line message; empty if there is none."""
        lines = [line.strip() for line in re.split(r"[\r\n]+", self.text)]
        lines = [line for line in lines if line and not re.match(r"Processing\b.*[\[\d]", line)]
        telling = [line for line in lines if re.search(r"error|fail|cannot|unable|version|invalid", line, re.I)]
        return (telling or lines or [""])[-1][:300]


def call(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Answer:
    """Runs it to its end. Raises NsysError if it cannot be started, or takes longer than `timeout_s` seconds.
    It runs in its own process group, which is killed as a whole if the program hangs: nsys starts other programs.
    """
    try:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise NsysError(f"{command[0]}: cannot be started ({error.strerror or error})") from None
    try:
        printed, _ = process.communicate(timeout=timeout_s)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise NsysError(f"{command[0]}: no answer within {timeout_s:g} s") from None
        raise
    return Answer(process.returncode, printed.decode("utf-8", "replace"))
