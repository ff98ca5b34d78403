"""The error type that users see: a sentence, never a traceback."""

from __future__ import annotations


class GpuprofError(Exception):
    """Something gpuprof could not do, as one line that says what is wrong, where, and what to do.

    `exit_code` is what the command line returns for it (2: could not do it; 1: a gate failed).
    """

    exit_code = 2


class UnreadableTrace(GpuprofError):
    """The file is not a trace, or contains nothing that can be analysed."""
