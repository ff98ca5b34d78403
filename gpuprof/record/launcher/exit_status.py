"""How a process that gpuprof started ended."""

from __future__ import annotations

import os
import signal


def reap(pid: int) -> tuple[bool, int]:
    """Whether a child has ended, and its exit code, or its signal as a negative number."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # someone else has reaped it: we were started with SIGCHLD ignored
        return True, 0
    return found == pid, os.waitstatus_to_exitcode(status) if found == pid else 0


def in_a_word(status: int) -> str:
    """The status in a manifest for an exit code, or for a signal given as a negative number."""
    if status == 0:
        return "finished"
    if status in (-signal.SIGINT, 128 + signal.SIGINT):
        return "interrupted"
    return "killed" if status < 0 else "failed"


def signal_name(number: int) -> str:
    """`SIGTERM`; a real-time signal by its distance from the first, SIGRTMIN+N."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
