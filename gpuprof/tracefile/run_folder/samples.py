"""Sampled Python stacks of a run's unprofiled steps: `samples.rank<N>.json`, as columns.

The file may be cut, or hold anything: invalid contents give no samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof import runfile
from gpuprof.record.base.code_paths import GENERATED, is_compiled
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Bytes, WholeNs

SCHEMA = "gpuprof.samples/"
KINDS = ("own", "library", "standard", "generated", "gpuprof")
"""Owner of a function: the user, an installed package, Python, generated at run time, gpuprof."""
_LARGEST_SAMPLES_BYTES: Assumed[Bytes] = 200 << 20
_LATEST_SAMPLE_NS: Assumed[WholeNs] = 1 << 53


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function."""

    kind: str
    """One of KINDS."""
    file: str
    name: str
    first_line: int


@dataclass(frozen=True, slots=True)
class HostSamples:
    """Stacks of the training thread and of autograd's thread over a stretch of unprofiled steps."""

    functions: tuple[Function, ...]
    caller: I64
    """For each node of the call tree its caller, which has a smaller index; -1: none."""
    function: I64
    """Function of each node."""
    line: I64
    """Current line of each node's function."""
    at_ns: I64
    """Time of each sample, ns from the beginning of the first step; ascending."""
    node: I64
    """For each sample the node of the training thread's innermost call; -1: it ran no Python."""
    autograd: I64
    """The same for autograd's thread."""
    steps_ns: I64
    """The beginning of the first step (0), then the end of each, ns."""
    marks: tuple[tuple[str, int], ...]
    """(what begins or ends, ns), in order: data, data_end, forward, backward, backward_end, optimizer."""
    unread: int
    """Samples left out because they made no sense."""
    period_ns: int
    workers: int = 0
    """Sampled DataLoader workers."""
    worker_node: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """For each sample of a worker (taken in turn) the node of its innermost call."""

    def __len__(self) -> int:
        return len(self.at_ns)

    @property
    def steps(self) -> int:
        return len(self.steps_ns) - 1

    @property
    def step_ns(self) -> float:
        """The mean step of the stretch."""
        return float(self.steps_ns[-1]) / self.steps


def read_samples(run: Path, rank: int) -> HostSamples | None:
    """The samples of a rank of a run; None if there are none or the file is damaged. Samples outside of complete steps
    are left out."""
    path = run / runfile.samples_file(rank)
    try:
        if path.stat().st_size > _LARGEST_SAMPLES_BYTES:
            return None
    except OSError:
        return None
    document = runfile.read_json(path)
    if document is None or not str(document.get("schema")).startswith(SCHEMA):
        return None
    try:
        return _samples(document)
    except (TypeError, ValueError, KeyError, IndexError, OverflowError):
        return None


def _samples(document: dict[str, Any]) -> HostSamples | None:
    functions = tuple(_function(*one) for one in document["functions"])
    nodes, samples = _table(document["nodes"]), _table(document["samples"])
    steps = _whole(document["steps_ns"])
    if len(steps) < 2 or not len(samples) or (np.diff(steps) < 0).any():
        return None
    caller, function, line = nodes.T
    order = np.arange(len(nodes))
    if ((caller < -1) | (caller >= order) | (function < 0) | (function >= len(functions))).any():
        return None
    at = samples[:, 0] + int(document["begun_ns"]) - steps[0]
    if (samples[:, 1:] >= len(nodes)).any() or (np.diff(at) < 0).any():
        return None
    inside = (at >= 0) & (at < steps[-1] - steps[0])
    if not inside.any():
        return None
    of_workers = _table(document.get("worker_samples") or [])
    if (of_workers[:, 2] >= len(nodes)).any():
        return None
    marks = tuple((str(what), int(ns) - int(steps[0])) for what, ns in document["marks"])
    return HostSamples(
        functions, caller, function, line, at[inside], samples[inside, 1], samples[inside, 2], steps - steps[0],
        tuple(sorted(marks, key=lambda mark: mark[1])), int(document["unread"]), int(document["period_ns"]),
        int(document.get("workers") or 0), of_workers[:, 2],
    )  # fmt: skip


def _function(kind: Any, file: Any, name: Any, first_line: Any) -> Function:
    if kind not in KINDS:
        raise ValueError
    if is_compiled(str(file)):  # in a cache folder of the user's, which recorders up to version 0.2 took for own code
        kind = GENERATED
    return Function(kind, str(file)[:1000], str(name)[:500], int(first_line))


def _table(rows: Any) -> I64:
    return _whole(rows).reshape(-1, 3)


def _whole(values: Any) -> I64:
    found = np.array(values, dtype=np.int64)
    if (np.abs(found) > _LATEST_SAMPLE_NS).any():
        raise ValueError
    return found
