"""The file that was read, and issues with it; the same for traces, runs and memory snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gpuprof.bounds import OneOf

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Source:
    """The file that was read."""

    path: str
    kind: Annotated[str, OneOf(("snapshot", "trace", "run", "kineto", "nsys"))]
    """Of a diagnosis: kineto, nsys, run. Of a memory report: snapshot (torch's allocator history), trace (memory events
    of torch.profiler)."""
    bytes: int
    events: int


@dataclass(frozen=True, slots=True)
class Issue:
    """Something about the recording that the reader of the result must know."""

    id: str
    severity: Severity
    message: str
    """What is wrong, what it means for the numbers, and what to do."""
