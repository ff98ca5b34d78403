"""Lines of the user's code that cause CPU work: from recorded Python frames, or else from sampled stacks."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.sampled.host_calls import SampledFrame, StackColumns
from gpuprof.diagnosis.sampled.sampled_places import FEWEST_SAMPLES, placed, weights
from gpuprof.timeline.frames import FrameIndex
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.run_folder.samples import read_samples
from gpuprof.tracefile.trace import NO_TEXT, Mask
from gpuprof.units import Assumed, Convention, Lines, Share

MOST_LINES: Convention[Lines] = 2
"""Most lines that are named."""
NAMED_LINE_SHARE: Assumed[Share] = 0.1
"""Smallest share of the work of a line that is named; the first is always named."""
_INNER = re.compile(r"(\.<locals>\.<\w+>)+$")
"""Suffix that generators and lambdas add to a function's name."""
_FRAME = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$")


def own_lines(case: Analysis, nodes: Mask) -> tuple[str, ...]:
    """`train.py:42 step`, most of the nodes' CPU time first; empty if neither frames nor samples contain the user's
    code."""
    by_line = _by_frames(case, nodes) or _by_samples(case, nodes)
    return largest(by_line)


def batch_lines(run: RunFolder | None) -> tuple[str, ...]:
    """Lines of the user's code that prepare batches: in the DataLoader's workers if they were sampled, else in the
    training process while it gets a batch."""
    samples = None if run is None else read_samples(Path(run.path), run.rank)
    if samples is None:
        return ()
    stacks = StackColumns(samples)
    if len(samples.worker_node):
        paths = [stacks.path(node) for node in samples.worker_node.tolist()]
    else:
        begins, ends = (
            np.array([ns for name, ns in samples.marks if name == mark], np.int64) for mark in ("data", "data_end")
        )
        fetching = np.searchsorted(begins, samples.at_ns, "right") > np.searchsorted(ends, samples.at_ns, "right")
        paths = [stacks.of_sample[i] for i in np.flatnonzero(fetching).tolist()]
    found = defaultdict[str, float](float)
    for path in paths:
        below = max((k for k, frame in enumerate(path) if _loads(stacks, frame)), default=-1) + 1
        line = innermost(stacks, path[below:]) if below else None
        if line is not None:
            found[line] += 1
    return largest(found)


def _loads(stacks: StackColumns, frame: SampledFrame) -> bool:
    """Whether a call is in torch's DataLoader."""
    return stacks.functions[frame.function].file.startswith("torch/utils/data/")


def largest(by_line: dict[str, float]) -> tuple[str, ...]:
    """The lines with most time or samples."""
    total = sum(by_line.values())
    ranked = sorted(by_line, key=lambda line: (-by_line[line], line))[:MOST_LINES]
    return tuple(line for i, line in enumerate(ranked) if not i or by_line[line] >= NAMED_LINE_SHARE * total)


def innermost(stacks: StackColumns, path: tuple[SampledFrame, ...]) -> str | None:
    """The innermost line of the user's code in a stack. In a backward pass, lines called by the pass come before the
    line that starts it."""
    begin = max((k for k, frame in enumerate(path) if frame.function in stacks.engine), default=-1) + 1
    for part in (path[begin:], path[:begin]):
        for frame in reversed(part):
            function = stacks.functions[frame.function]
            if function.kind == "own":
                return f"{function.file}:{frame.line} {_INNER.sub('', function.name)}"
    return None


def _by_frames(case: Analysis, nodes: Mask) -> dict[str, float]:
    graph, found = case.graph, defaultdict[str, float](float)
    if not len(case.trace.frames):
        return found
    rows = np.flatnonzero(nodes & (graph.lane >= 0))
    moments = case.timeline.window[0] + np.round(graph.recorded_start_ns[rows]).astype(np.int64)
    names = _frames(case).own(graph.lane[rows].astype(np.int32), moments)
    ns = (graph.recorded_end_ns - graph.recorded_start_ns)[rows].clip(0)
    for name in np.unique(names[names != NO_TEXT]).tolist():
        parts = _FRAME.match(case.trace.strings[name])
        if parts:
            found[f"{parts['file']}:{parts['line']} {parts['function']}"] += float(ns[names == name].sum())
    return found


@remembered
def _frames(case: Analysis) -> FrameIndex:
    return FrameIndex(case.trace, case.timeline.nesting)


def _by_samples(case: Analysis, nodes: Mask) -> dict[str, float]:
    found = defaultdict[str, float](float)
    known = placed(case)
    if known is None:
        return found
    stacks, where = known
    weight = weights(case, where, nodes & (case.graph.lane >= 0))
    if weight.sum() < FEWEST_SAMPLES:
        return found
    for sample in np.flatnonzero(weight).tolist():
        line = innermost(stacks, stacks.of_sample[sample])
        if line is not None:
            found[line] += float(weight[sample])
    return found
