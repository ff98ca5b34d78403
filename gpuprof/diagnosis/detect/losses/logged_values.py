"""GPU work between forward passes that no backward pass needs, and whose results the CPU reads: metrics for a log.

A recording does not show the flow of data, so four facts together replace it. Autograd's numbers show that no backward
pass uses the ops: the engine evaluates no node that they made, with or without `no_grad`. They follow each other
without any op whose result would be kept: matmuls (a teacher or a reference model), in-place ops (moving averages,
queues), norms of gradients, random numbers, batches that are copied to the GPU. The last of them copies a result to the
CPU. And they come after everything in a pass that has gradients, so that no loss can contain them: between the last op
with gradients and the backward pass, or between the backward pass and the next forward pass. Only ops on single values
may follow with gradients, and no copy to the GPU: these scale a loss, but do not weight its rows by what was read.

What Python computes of the values afterwards counts too where samples show a package of metrics in it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.diagnosis.detect.losses.metric_packages import metrics_share
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.timeline.categories import TENSOR_CATEGORIES
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import OPTIMIZER
from gpuprof.tracefile.trace import ANNOTATION, AUTOGRAD_ENGINE, F64, I64, OP, Mask
from gpuprof.units import Assumed, Ops, Share, Steps

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LOG_EVERY: Assumed[Steps] = 50
"""Steps between two log lines that a person can still follow."""
LISTS = '"TensorList"'
KEPT = re.compile(
    r"^(?!aten::)|_foreach|_fused|norm$|vector_norm|nonfinite|isfinite|isinf|isnan|rand|bernoulli|dropout|multinomial"
    r"|normal_|uniform_|one_hot|embedding"
)
"""Ops whose results are more than numbers for a log: ops of other libraries, collectives, ops on gradients, random
ones, and those with which a model begins."""
IN_PLACE = re.compile(r"[^_]_$")
FIRST_OPS: Assumed[Ops] = 30
"""Number of ops at the beginning of a forward pass that may read its inputs."""
LEAST_OF_LARGEST_TENSOR: Assumed[Share] = 1 / 8
"""Tensors with at least this share of the values of a run's largest tensor show what the run is about: inputs made for
the next pass, or logits."""
STEPS_WITH_LOGGED_WORK: Assumed[Share] = 0.6
"""Smallest share of the recorded steps with such work: the first and the last may be cut."""


@dataclass(frozen=True, slots=True)
class LoggedValues:
    """Stretches of CPU time, one for each run of such ops."""

    stretches: Stretches
    nodes: Mask
    """The graph's nodes in them: CPU and GPU work, not the waits."""
    waits: Mask
    """The waits in them."""
    reads: int
    """Results that are copied to the CPU."""
    names: tuple[str, ...]
    """Ops with most GPU time, without `aten::`, most first."""
    largest: tuple[int, ...]
    """Shape of the largest tensor."""
    tensors: int = 0
    """Number of tensors that a loop reduces one after another; 0 if it is no loop over tensors."""
    computing: F64 = field(default_factory=lambda: np.zeros(0))
    """Per node of the graph the share of its time in a package of metrics, after the values were read."""


def find_logged(case: Analysis) -> LoggedValues | None:
    """All such work of the recorded steps; None where there is none, or where autograd's numbers were not recorded.
    Computed once per case."""
    if "logged_values" not in case.memo:
        case.memo["logged_values"] = _find(case)
    return case.memo["logged_values"]


def _find(case: Analysis) -> LoggedValues | None:
    ops = PassOps(case)
    if not len(ops.rows) or not len(ops.evaluated):
        return None
    runs = ops.runs()
    good = [run for run in runs if ops.is_after_a_pass(run)]
    alike = {ops.signature(run) for run in good}
    # The recording begins within a pass: its first run has nothing before it that would show where it is.
    found = [run for run in runs if run in good or (run == runs[0] and ops.signature(run) in alike)]
    computing = _in_metrics(ops, found)
    found = [run for run, known in zip(found, computing, strict=True) if ops.is_large(run) or known is not None]
    if not found or len(found) < STEPS_WITH_LOGGED_WORK * case.steps:
        return None
    first, last = (ops.rows[[run[at] for run in found]] for at in (0, 1))
    columns = case.trace.ops
    stretches = Stretches.of(columns, first, last)
    inside = nodes_in(case.graph, stretches) >= 0
    members = np.concatenate([np.arange(a, b + 1) for a, b in found])
    return LoggedValues(
        stretches,
        inside & ~case.graph.waits,
        inside & case.graph.waits,
        int(ops.reads[members].sum()),
        ops.largest_names(members),
        max((ops.widest(at) for at in members.tolist()), key=math.prod),
        computing=reduce(np.maximum, (known for known in computing if known is not None), np.zeros(len(case.graph))),
    )


def _in_metrics(ops: PassOps, runs: list[tuple[int, int]]) -> list[F64 | None]:
    """Per run `metrics_share` of what Python does after it."""
    shares = dict[tuple[tuple[str, int], ...], F64 | None]()
    kinds = [ops.signature(run) for run in runs]
    for kind in kinds:
        if kind not in shares:
            shares[kind] = metrics_share(ops.case, ops.after([run for run in runs if ops.signature(run) == kind]))
    return [shares[kind] for kind in kinds]


class PassOps:
    """The outermost ops of the thread that runs forward passes, in order of time."""

    def __init__(self, case: Analysis) -> None:
        self.case, columns = case, case.trace.ops
        (low, high), parent = case.timeline.window, case.timeline.nesting.parent
        engine = case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE)) & (columns.forward_thread > 0)
        self.evaluated = np.unique(columns.sequence[engine & (columns.sequence >= 0)])
        is_op = columns.kind == OP
        rows = case.outermost(is_op & ~case.ops_within(engine) & (columns.forward_thread <= 0))
        numbered = rows[columns.sequence[rows] >= 0]
        threads = np.bincount(columns.thread[numbered]) if len(numbered) else np.zeros(1)
        mine = (columns.thread[rows] == threads.argmax()) & (columns.start_ns[rows] >= low)
        rows = rows[mine & (columns.start_ns[rows] < high)]
        self.rows: I64 = rows[np.argsort(columns.start_ns[rows], kind="stable")]
        self.start = columns.start_ns[self.rows]
        self.backward = case.timeline.host.backward
        self.needed = self._needed(columns.sequence[self.rows])
        self.names = case.trace.texts(columns.name[self.rows])
        self.in_optimizer = case.ops_within((columns.kind == ANNOTATION) & (case.timeline.host.op == OPTIMIZER))[
            self.rows
        ]
        self._shapes: dict[int, tuple[tuple[int, ...], ...]] = {}
        place = np.full(len(columns) + 1, -1, np.int64)
        place[self.rows] = np.arange(len(self.rows))
        top = np.append(np.isin(np.arange(len(columns)), self.rows), False)
        self._of_gpu = place[climb(case.timeline.links.op, parent, top[:-1])]
        self.models = self._launching(case.category(*TENSOR_CATEGORIES))
        self.reads, self.batches = (self._copying(way) for way in ("DtoH", "HtoD"))
        marks = columns.kind == ANNOTATION
        edges = np.sort(np.concatenate([columns.start_ns[marks], columns.end_ns[marks]]))
        self._range = np.searchsorted(edges, self.start, side="right")

    def _needed(self, number: I64) -> Mask:
        """Mask of the ops that made a node that the engine evaluates. number: sequence numbers; an op's is that of the
        next node, whether or not the op makes one."""
        far = np.iinfo(np.int64).max
        known = np.where(number >= 0, number, far)
        after = np.append(np.minimum.accumulate(known[::-1])[::-1][1:], far) if len(number) else known
        after = np.where(after == far, number + 1, after)
        return (number >= 0) & (np.searchsorted(self.evaluated, number) < np.searchsorted(self.evaluated, after))

    def _launching(self, gpu: Mask) -> Mask:
        found = np.zeros(len(self.rows) + 1, bool)
        found[self._of_gpu[gpu]] = True
        return found[:-1]

    def _copying(self, way: str) -> Mask:
        return self._launching(self.case.trace.rows_named(self.case.trace.gpu.name, lambda text: way in text))

    def shapes(self, at: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of an op's tensors."""
        text = int(self.case.trace.ops.dims[self.rows[at]])
        if text not in self._shapes:
            self._shapes[text] = tuple(one for one in shapes_in(self.case, text) if one)
        return self._shapes[text]

    def widest(self, at: int) -> tuple[int, ...]:
        return max(self.shapes(at), key=math.prod, default=())

    def size(self, at: int) -> int:
        """Values of an op's largest tensor."""
        return math.prod(self.widest(at)) if self.shapes(at) else 0

    def _ends(self, at: int) -> bool:
        """Whether an op cannot be part of a run."""
        name = self.names[at]
        if self.needed[at] or self.models[at] or self.batches[at] or self.in_optimizer[at] or KEPT.search(name):
            return True
        if LISTS in (self.case.trace.text(int(self.case.trace.ops.types[self.rows[at]])) or ""):
            return True
        return bool(IN_PLACE.search(name)) and self.size(at) > calibrated.SMALL_VALUES.value

    def runs(self) -> list[tuple[int, int]]:
        """(first, last) place of each run of ops without one that ends it, up to its last op that copies to the CPU."""
        found, first, last = list[tuple[int, int]](), -1, -1
        for at in range(len(self.rows)):
            ends = self._ends(at)
            if first >= 0 and (ends or self._range[at] != self._range[at - 1]):
                if last >= 0:
                    found.append((first, last))
                first = last = -1
            if ends:
                continue
            first = at if first < 0 else first
            last = at if self.reads[at] else last
        return [*found, (first, last)] if last >= 0 else found

    def after(self, runs: list[tuple[int, int]]) -> Stretches:
        """What the thread does after each run, until an op that cannot be part of one."""
        columns, until = self.case.trace.ops, list[int]()
        for _, last in runs:
            ends = next((at for at in range(last + 1, len(self.rows)) if self._ends(at)), None)
            until.append(self.case.timeline.window[1] if ends is None else int(self.start[ends]))
        last = self.rows[[run[1] for run in runs]]
        begun, backward = columns.end_ns[last], self.backward.start
        # A backward pass runs on a thread of its own, and this one waits for it.
        later = np.append(backward, np.iinfo(np.int64).max)[np.searchsorted(backward, begun, side="right")]
        return Stretches(columns.thread[last].astype(np.int64), begun, np.minimum(until, later))

    def is_large(self, run: tuple[int, int]) -> bool:
        return any(self.size(at) > calibrated.SMALL_VALUES.value for at in range(run[0], run[1] + 1))

    def signature(self, run: tuple[int, int]) -> tuple[tuple[str, int], ...]:
        return tuple((self.names[at], self.size(at)) for at in range(run[0], run[1] + 1))

    def is_after_a_pass(self, run: tuple[int, int]) -> bool:
        """Whether no loss can contain what the run computes."""
        first, last = run
        begin = int(np.searchsorted(self.backward.start, self.start[first], side="right")) - 1
        later = begin + 1
        until = int(self.backward.start[later]) if later < len(self.backward) else np.iinfo(np.int64).max
        before = np.arange(self._since(begin), first) if begin >= 0 else np.arange(first)
        rest = np.arange(last + 1, int(np.searchsorted(self.start, until)))
        if self.needed[before].any():
            wide = any(self.size(at) > 1 for at in rest[self.needed[rest]].tolist())
            return later < len(self.backward) and not wide and not self.batches[rest].any()
        if begin < 0 and len(self.backward):
            # Before the first recorded step was another one, which ended like the last recorded one.
            before = np.append(np.arange(self._since(len(self.backward) - 1), len(self.rows)), before)
        # What follows the copy of the next batch may prepare it for the next pass.
        if not len(self.backward) or ((self.models | self.batches) & ~self.in_optimizer)[before].any():
            return False
        rest = rest[self.needed[rest]]
        inputs = {math.prod(shape) for at in rest[:FIRST_OPS].tolist() for shape in self.shapes(at)}
        sizes = {math.prod(shape) for at in range(first, last + 1) for shape in self.shapes(at)}
        return not any(size >= LEAST_OF_LARGEST_TENSOR * max(sizes) for size in inputs & sizes)

    def _since(self, backward: int) -> int:
        """Place of the first op after a backward pass."""
        return int(np.searchsorted(self.start, int(self.backward.end[backward])))

    def largest_names(self, members: I64) -> tuple[str, ...]:
        gpu = self.case.trace.gpu
        ns: F64 = np.zeros(len(self.rows) + 1)
        np.add.at(ns, self._of_gpu, (gpu.end_ns - gpu.start_ns).clip(0))
        by_name = dict[str, float]()
        for at in members.tolist():
            name = self.names[at].removeprefix("aten::")
            by_name[name] = by_name.get(name, 0.0) + float(ns[at])
        return tuple(sorted(by_name, key=lambda name: -by_name[name]))
