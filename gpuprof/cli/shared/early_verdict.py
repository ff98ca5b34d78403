"""The verdict of a recording whose training is still being sampled: a second process makes it without the samples."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuprof.units import Code, Published

if TYPE_CHECKING:
    from gpuprof.diagnosis.result.diagnosis import Diagnosis

PR_SET_PDEATHSIG: Published[Code] = 1
"""Number of the option of prctl(2): a signal for this process when its parent ends."""


class EarlyVerdict:
    """A forked process that diagnoses what was read and shows it. show: does both. Raises OSError where no process can
    be forked."""

    def __init__(self, show: Callable[[], Diagnosis]) -> None:
        reads, writes = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid:
            os.close(writes)
            self._answer = reads
            return
        try:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == parent:
                os.write(writes, json.dumps(said(show())).encode())
        finally:  # nothing of the parent's is cleaned up here; the parent meets the same errors, and reports them
            os._exit(0)

    def shown(self) -> Any:
        """Waits until it has ended. Returns what it has shown, as `said` returns it, or None if it has shown
        nothing."""
        text = b""
        while data := os.read(self._answer, 1 << 16):
            text += data
        os.close(self._answer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        return json.loads(text) if text else None


def said(diagnosis: Diagnosis) -> list[Any]:
    """What a reader of a verdict acts on: what limits the step, why, and the fixes."""
    verdict = diagnosis.verdict
    return [verdict.bound, verdict.cause, [one.id for one in (*diagnosis.findings, *diagnosis.worth_trying)]]
