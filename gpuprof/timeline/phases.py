"""Which part of the training an op, and the GPU work that it launched, belongs to.

Marks are what names and autograd say: DataLoader ranges, the autograd engine's `evaluate_function`, forward thread ids
(above 0 on backward ops; recordings of 2021 to 2023 may lack both, and then the nodes' names are used), optimizer
ranges, the user's own ranges. Where none of them marks a backward pass, a second thread that launches in turns with the
first may be autograd's (`backward_threads`). Ops inherit the mark of the innermost span around them. CPU time that no
mark covers is classified by what comes next: before a backward pass it is forward, between backward and optimizer it is
the optimizer's (clipping, unscaling), after the optimizer it is other (logging). An optimizer that is given a closure
(Lightning, LBFGS) runs forward and backward in its range: only what comes after the last backward pass is the
optimizer's. A recording without ops, ranges and threads of autograd has no phases: all of it is other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.timeline.backward_threads import backward_threads
from gpuprof.timeline.intervals import EMPTY, Intervals, join, union
from gpuprof.timeline.links import Links
from gpuprof.timeline.nesting import Nesting, inherit, inside
from gpuprof.timeline.steps import AnalysedSteps
from gpuprof.tracefile.distinct import ordered
from gpuprof.tracefile.trace import ABSENT, ANNOTATION, AUTOGRAD_ENGINE, I32, I64, OP, U8, Mask, Trace
from gpuprof.units import Assumed, Code, Convention, Share

PHASES = ("data", "forward", "backward", "recompute", "optimizer", "communication", "other", "generation")
DATA, FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, COMMUNICATION, OTHER, GENERATION = range(len(PHASES))
_UNSET: Convention[Code] = 255

_AUTOGRAD_NAME = re.compile(r"^(thread \d+ \()?pt_autograd_")
"""Name of the threads of PyTorch's engine since version 1.9, followed by the device; Kineto puts it in brackets after
the number."""
CHECKPOINT = re.compile("heckpoint")
"""Autograd functions that recompute a block: torch's CheckpointFunction, Unsloth's, DeepSpeed's."""
_AUTOGRAD_NODE = re.compile(r"^(torch::autograd::)?(\w*Backward\d*|AccumulateGrad)$")
"""Nodes of autograd's graph, as recordings without the engine's ranges name their ops."""
CALLS_IN_BACKWARD: Assumed[Share] = 0.95
"""A thread with this share of its calls inside the ranges of backward is the engine's. The first and last calls of a
recording may lie outside of a range that it cut; a thread with other work has far more of it elsewhere."""


def _words(pattern: str, at_start: str = "") -> re.Pattern[str]:
    """The pattern as words of a range's name: `train_forward_3` has the word forward."""
    start = f"^({at_start})|" if at_start else ""
    return re.compile(f"{start}(^|[^a-z])({pattern})([^a-z]|$)", re.IGNORECASE)


_RANGES = [
    (BACKWARD, _words(r"backward|bwd")),
    (FORWARD, _words(r"forward|fwd")),
    # Pipeline schedules name what they run: the gradients of inputs (B) and of weights (W) of a stage, as in MLP(W).
    (BACKWARD, re.compile(r"\((B|W|BW)\d*\)")),
    (FORWARD, re.compile(r"\(F\d*\)")),
    (
        DATA,
        _words(
            r"dataload\w*|data_?load\w*|load_?data|(get|next|fetch|load)_?batch",
            r"data$|enumerate\(DataLoader\)|DataLoader",
        ),
    ),
    (OPTIMIZER, _words(r"optimi[sz]er|opt_?step|zero_?grad|clip_?grad\w*", r"Optimizer\.")),
    (OTHER, _words(r"eval(uate|uation)?|validat\w*|save|saving|logging")),
]


_CLEARS = re.compile("zero_?grad", re.IGNORECASE)
"""Ranges in which gradients are cleared."""


@dataclass(frozen=True, slots=True)
class HostPhases:
    """The phase of every op, and of CPU time that no op covers."""

    op: U8
    """Phase per op row."""
    named: np.ndarray
    """Mask of the ops whose own name shows their phase."""
    backward: Intervals
    optimizer: Intervals
    working: Intervals
    """The same without the clearing of gradients ahead of a backward pass."""
    autograd: frozenset[int]
    """Threads that run the backward pass only."""
    step_end: I64
    updates: Intervals = EMPTY
    """In optimizer ranges that contain backward passes (a closure's), the time after the last one."""
    known: bool = True
    """Whether anything in the recording distinguishes phases."""
    generation: Intervals = EMPTY
    """CPU time in which a training generates what it trains on."""
    around: Intervals = EMPTY
    """In such a training, CPU time of rewards, environments and other work that trains no model."""
    differentiable: Intervals = EMPTY
    """Backward passes whose result is differentiated again (`create_graph=True`: forces, gradient penalties). They are
    part of the loss, and neither a micro-batch nor a recomputed forward pass."""

    def at(self, thread: I32, t: I64) -> U8:
        """Phase of moments outside all ops, on the given threads."""
        if not self.known:
            return np.full(len(t), OTHER, np.uint8)
        phases = self._by_neighbours(t)
        phases[np.isin(thread, list(self.autograd))] = BACKWARD
        return phases

    def _by_neighbours(self, t: I64) -> U8:
        phases = np.full(len(t), OTHER, np.uint8)
        inside = _inside(self.backward, t)
        next_backward, next_optimizer = (_next_start(x, t) for x in (self.backward, self.working))
        far = np.iinfo(np.int64).max
        k = np.searchsorted(self.step_end, t, side="right")
        end = np.append(self.step_end, far)[k]
        last_backward, last_optimizer = (_last_end(x, t) for x in (self.backward, self.optimizer))
        begin = np.concatenate([[np.iinfo(np.int64).min], self.step_end])[k]
        soon_backward, soon_optimizer = next_backward < end, next_optimizer < end
        was_backward, was_optimizer = last_backward > begin, last_optimizer > begin
        ahead_backward = soon_backward & (next_backward <= next_optimizer)
        ahead_optimizer = soon_optimizer & ~ahead_backward
        phases[ahead_backward] = FORWARD
        phases[ahead_optimizer & was_backward] = OPTIMIZER
        phases[ahead_optimizer & ~was_backward] = FORWARD
        phases[~soon_backward & ~soon_optimizer & ~was_backward & ~was_optimizer] = FORWARD
        phases[inside] = BACKWARD
        phases[_inside(self.updates, t)] = OPTIMIZER
        phases[_inside(self.around, t)] = OTHER
        phases[_inside(self.generation, t)] = GENERATION
        return phases

    def with_generation(self, trace: Trace, generation: Intervals, around: Intervals) -> HostPhases:
        """The phases with generation and the work around it, by CPU time; autograd's phases stay as they are."""
        if not len(generation) and not len(around):
            return self
        ops, phase = trace.ops, self.op.copy()
        free = np.isin(phase, (FORWARD, OPTIMIZER, OTHER)) & ~np.isin(ops.thread, list(self.autograd))
        phase[free & _inside(around, ops.start_ns)] = OTHER
        phase[free & _inside(generation, ops.start_ns)] = GENERATION
        return replace(self, op=phase, generation=generation, around=around)


def host_phases(trace: Trace, nesting: Nesting, steps: AnalysedSteps, links: Links) -> HostPhases:
    """Phases of all ops of a trace."""
    ops = trace.ops
    mark = _marks(trace)
    named = mark != _UNSET
    autograd_op = _autograd_ops(trace)
    unmarked: frozenset[int] = frozenset()
    if not autograd_op.any() and not np.any(mark == BACKWARD):
        unmarked = _named_threads(trace) or backward_threads(trace, links)
        autograd_op = (ops.kind == OP) & np.isin(ops.thread, list(unmarked))
    mark[autograd_op] = BACKWARD
    # Under checkpointing the forward runs again inside the backward: with gradients on, so its ops have a sequence
    # number, and no forward thread, which backward ops have.
    within = _inside_any(nesting, autograd_op)
    again = (
        (ops.kind == OP)
        & ~autograd_op
        & (ops.sequence != ABSENT)
        & (ops.sequence >= 0)
        & (ops.forward_thread == 0)
        & within
    )
    differentiable = _differentiable(trace, nesting, autograd_op, within, again, steps)
    again &= ~_inside(differentiable, ops.start_ns)
    mark[again] = RECOMPUTE
    parent = nesting.parent.copy()
    parent[trace.rows_named(ops.name, lambda text: text.startswith("ProfilerStep"))] = -1  # whatever a user put around
    phase = inherit(mark, parent, _UNSET)
    main = _main_thread(trace, autograd_op | within)
    ranges = union(*_spans(trace, (phase == BACKWARD) & (ops.kind == ANNOTATION)))
    engine = autograd_threads(trace, ranges)
    if not autograd_op.any():
        engine |= unmarked
    autograd = frozenset(np.unique(ops.thread[autograd_op]).tolist()) - {main} | engine
    backward = _passes(trace, (phase == BACKWARD) | (phase == RECOMPUTE), engine, steps, autograd)
    closures = np.flatnonzero((mark == OPTIMIZER) & (ops.kind == ANNOTATION))
    closures = closures[_last_end(backward, ops.end_ns[closures]) > ops.start_ns[closures]]
    updates = EMPTY
    if len(closures):
        mark[closures], named[closures] = _UNSET, False
        updates = union(_last_end(backward, ops.end_ns[closures]), ops.end_ns[closures])
        phase = inherit(mark, parent, _UNSET)
        phase[(phase == _UNSET) & (ops.thread == main) & _inside(updates, ops.start_ns)] = OPTIMIZER
    optimizer = union(*_spans(trace, phase == OPTIMIZER))
    working = _without_clearing(trace, nesting, phase == OPTIMIZER, backward, steps)
    known = len(ops) > 0 or bool(engine)
    result = HostPhases(
        phase,
        named,
        backward,
        optimizer,
        working,
        autograd,
        steps.end_ns,
        updates,
        known,
        differentiable=differentiable,
    )
    bare = np.flatnonzero(phase == _UNSET)
    # An op without a mark has the phase of its outermost op's moment, so that a tree has one phase.
    root = _roots(trace, nesting)[bare]
    phase[bare] = result.at(ops.thread[root], ops.start_ns[root])
    return result


def _without_clearing(
    trace: Trace, nesting: Nesting, rows: Mask, backward: Intervals, steps: AnalysedSteps
) -> Intervals:
    """The work of optimizers, but for the clearing of gradients before a backward pass: what comes ahead of that is no
    clipping, but the forward pass, also after another backward pass of the step (two optimizers)."""
    ops = trace.ops
    clearing = inside(nesting, trace.rows_named(ops.name, _CLEARS.search) & rows)
    updates = union(*_spans(trace, rows & ~clearing))
    starts = ops.start_ns
    far = np.append(steps.end_ns, np.iinfo(np.int64).max)[np.searchsorted(steps.end_ns, starts, side="right")]
    ahead = _next_start(backward, starts)
    clearing &= (ahead < far) & (ahead < _next_start(updates, starts))
    return union(*_spans(trace, rows & ~clearing))


def _autograd_ops(trace: Trace) -> Mask:
    """Ops that autograd's engine runs: by its ranges or forward thread ids, else by the names of its nodes."""
    ops = trace.ops
    engine = trace.rows_named(ops.name, lambda text: text.startswith(AUTOGRAD_ENGINE))
    found = engine | ((ops.forward_thread != ABSENT) & (ops.forward_thread > 0))
    if found.any():
        return found
    return trace.rows_named(ops.name, _AUTOGRAD_NODE.search) & (ops.kind == OP)


def _differentiable(
    trace: Trace, nesting: Nesting, engine: Mask, within: Mask, graded: Mask, steps: AnalysedSteps
) -> Intervals:
    """Backward passes that record a graph of themselves: the ops that most of their nodes run have sequence numbers, as
    they have with gradients on. Under checkpointing only the node that recomputes a block has such ops.

    engine: ops of autograd itself; within: rows inside of them; graded: ops with sequence numbers among these.
    """
    ops, parent = trace.ops, nesting.parent
    if not graded.any():
        return EMPTY
    rows = np.flatnonzero((ops.kind == OP) & ~engine & np.append(engine, False)[parent])
    node, which = np.unique(parent[rows], return_inverse=True)
    whole = np.bincount(which, graded[rows], minlength=len(node)) == np.bincount(which, minlength=len(node))
    whole &= ~trace.rows_named(ops.name, CHECKPOINT.search)[node]
    passes = _passes(trace, engine | within, frozenset(), steps, frozenset())
    number = np.searchsorted(passes.start, ops.start_ns[node], side="right") - 1
    counts = np.bincount(number, minlength=len(passes))
    most = 2 * np.bincount(number, whole, minlength=len(passes)) > np.maximum(counts, 1)
    return Intervals(passes.start[most], passes.end[most])


def autograd_threads(trace: Trace, backward: Intervals) -> frozenset[int]:
    """Threads that run backward passes and recorded no op, as Nsight Systems records them.

    PyTorch names them. Where names were not recorded they are those that launch work, and do so within the user's
    `backward` ranges, which are on another thread.
    """
    calls, ops = trace.calls, trace.ops
    found = set()
    marking = np.unique(ops.thread[ops.kind == OP])
    for thread in np.setdiff1d(np.unique(calls.thread), marking).tolist():
        begun = calls.start_ns[calls.thread == thread]
        within = float(np.mean(_inside(backward, begun))) if len(backward) else 0.0
        if _AUTOGRAD_NAME.search(trace.threads[thread].name) or within >= CALLS_IN_BACKWARD:
            found.add(thread)
    return frozenset(found)


def _named_threads(trace: Trace) -> frozenset[int]:
    """Threads that have the name of autograd's."""
    return frozenset(i for i, thread in enumerate(trace.threads) if _AUTOGRAD_NAME.search(thread.name))


def gpu_phases(trace: Trace, links: Links, host: HostPhases) -> U8:
    """Phase of every GPU event: that of the op it was launched from, else of the moment it was launched."""
    phases = np.full(len(trace.gpu), OTHER, np.uint8)
    known = np.flatnonzero(links.begun_ns != ABSENT)
    phases[known] = host.at(links.thread[known], links.begun_ns[known])
    scoped = np.flatnonzero(links.scope >= 0)
    # A span as wide as the step (ProfilerStep itself) says less than the moment does.
    scope = links.scope[scoped]
    telling = trace.ops.kind[scope] == OP
    telling |= host.named[scope]
    telling |= links.begun_ns[scoped] == ABSENT
    phases[scoped[telling]] = host.op[scope[telling]]
    return phases


def _marks(trace: Trace) -> U8:
    """Phases by the names of ranges; of plain ops only by names that are a contract."""
    ops = trace.ops
    by_name = np.full(len(trace.strings) + 1, _UNSET, np.uint8)
    ranges = np.unique(ops.name[ops.kind == ANNOTATION]).tolist()
    contract = [i for i, text in enumerate(trace.strings) if text.startswith(("enumerate(DataLoader)", "Optimizer."))]
    for name in {*ranges, *contract}:
        text = trace.strings[name]
        if text.startswith("ProfilerStep") or "::" in text:
            continue
        for phase, pattern in _RANGES:
            if pattern.search(text):
                by_name[name] = phase
                break
    mark = by_name[ops.name]
    mark[(ops.kind == OP) & ~np.isin(ops.name, contract)] = _UNSET
    return mark


def _main_thread(trace: Trace, autograd_op: np.ndarray) -> int:
    """The thread with most ops that are not autograd's, nor inside one of those (recomputation)."""
    threads, counts = np.unique(trace.ops.thread[~autograd_op & (trace.ops.forward_thread == 0)], return_counts=True)
    if not len(threads):
        threads, counts = np.unique(trace.ops.thread[~autograd_op], return_counts=True)
    return int(threads[counts.argmax()]) if len(threads) else -1


def _inside_any(nesting: Nesting, flagged: np.ndarray) -> np.ndarray:
    """Rows that have a flagged ancestor."""
    return np.append(inside(nesting, flagged), False)[nesting.parent]


def _roots(trace: Trace, nesting: Nesting) -> I64:
    """Outermost op around each op; an annotation around them (the step itself) is no op."""
    ops, parent = trace.ops, nesting.parent
    top = (parent < 0) | (ops.kind == ANNOTATION) | (ops.kind[parent] == ANNOTATION)
    return inherit(np.where(top, np.arange(len(parent)), -1), parent, -1)


def _spans(trace: Trace, rows: np.ndarray) -> tuple[I64, I64]:
    return trace.ops.start_ns[rows], trace.ops.end_ns[rows]


def _passes(
    trace: Trace, rows: np.ndarray, engine: frozenset[int], steps: AnalysedSteps, autograd: frozenset[int]
) -> Intervals:
    """Backward passes as whole spans: the engine's ops of one pass, or the calls of its threads, with what lies
    between them.

    A forward op on the main thread, a call of a thread that is not the engine's where the engine has no ops, or the end
    of a step, separates two passes (gradient accumulation).
    """
    ops, calls = trace.ops, trace.calls
    pieces = union(*_spans(trace, rows))
    ahead = ops.forward_thread == 0
    if not ahead.any():  # forward thread ids were not recorded
        ahead = ~np.isin(ops.thread, list(autograd))
    forward = ops.start_ns[~rows & (ops.kind == OP) & ahead]
    if engine:
        own = np.isin(calls.thread, list(engine))
        pieces = join(pieces, union(calls.start_ns[own], calls.end_ns[own]))
        forward = np.concatenate([forward, calls.start_ns[~own]])
    if not len(pieces):
        return EMPTY
    marks = ordered(np.concatenate([forward, steps.end_ns]))
    between = np.searchsorted(marks, pieces.start[1:]) - np.searchsorted(marks, pieces.end[:-1])
    apart = np.flatnonzero(between > 0) + 1
    first = np.concatenate([[0], apart])
    last = np.concatenate([apart, [len(pieces)]]) - 1
    return Intervals(pieces.start[first], pieces.end[last])


def _inside(intervals: Intervals, t: I64) -> np.ndarray:
    k = np.searchsorted(intervals.start, t, side="right") - 1
    inside = k >= 0
    inside[inside] = t[inside] < intervals.end[k[inside]]
    return inside


def _next_start(intervals: Intervals, t: I64) -> I64:
    k = np.searchsorted(intervals.start, t, side="right")
    return np.append(intervals.start, np.iinfo(np.int64).max)[k]


def _last_end(intervals: Intervals, t: I64) -> I64:
    k = np.searchsorted(intervals.end, t, side="right")
    return np.concatenate([[np.iinfo(np.int64).min], intervals.end])[k]
