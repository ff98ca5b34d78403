"""Gradients of weights that no optimizer updates: they are added to those of earlier steps, as nothing clears them.

With `zero_grad(set_to_none=True)` the first gradient of each weight that an optimizer has is new in each step. So if
the number of new gradients in a step is that of its only optimizer's tensors, all others, which are added to gradients
that exist, belong to weights that it does not have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.calibration import recompute as calibrated
from gpuprof.diagnosis.detect.loops.small_op_loops import OPTIMIZER_STEP
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.diagnosis.detect.repeated.gradient_sums import BackwardPass, Shape, backward_passes
from gpuprof.projection.changes.batch import ACCUMULATE
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.replay.transform import removed, scaled
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, I64, OP, Mask
from gpuprof.units import Assumed, Convention, Names, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

WEIGHTS_SHARE: Assumed[Share] = 0.5
"""Share of the backward pass's time that gradients of weights take in layers of matrix multiplications; the other half
are gradients of their inputs."""
UNSHARED_SHAPES_SHARE: Assumed[Share] = 0.5
"""Smallest share of the gradients in no optimizer that cannot belong to a weight that has got one in the same step; the
others share their shape with such a weight."""
_MOST_NAMES: Convention[Names] = 3
_MATMUL, _CONVOLUTION, _LOOKUP = "aten::mm", "aten::convolution_backward", "aten::embedding_dense_backward"
_KINDS = (_MATMUL, _CONVOLUTION, _LOOKUP)
"""Ops that compute gradients of weights."""
_SUM = ACCUMULATE.removeprefix(AUTOGRAD_ENGINE)
_VIEWS = re.compile(r"(ToCopy|T|View|UnsafeView|Reshape|Transpose|Permute|Expand|Unsqueeze|Squeeze|Alias)Backward\d*$")
"""Nodes of autograd between the one that computes a weight's gradient and the sum into it."""
_CAST = re.compile(r"ToCopyBackward\d*$")
_OF_INPUT = re.compile(r"dgrad|bwd_?data|backward_?data|igemm_bwd", re.IGNORECASE)
_OF_WEIGHT = re.compile(r"wgrad|bwd_?filter|backward_?filter|igemm_wrw", re.IGNORECASE)
"""Kernels of a convolution's backward pass: of cuDNN, CUTLASS and MIOpen."""


@dataclass(frozen=True, slots=True)
class GradientWork:
    """Work for gradients of some weights; masks over the graph's nodes."""

    whole: Mask
    """Computes nothing but their gradients."""
    shared: Mask
    """Computes gradients of such a weight and of an input that other layers need, in one op."""
    branch: Mask
    """Backward passes of parts that end in a layer whose input needs no gradient: they lead to such weights only,
    unless such a part has a second input that is trained."""
    dead_end: Mask
    """Those branches after which autograd continues with a gradient of a size that the branch does not have."""
    end: Mask
    """Ends of backward passes after all gradients that are used."""

    @property
    def gone(self) -> Mask:
        """What is no longer computed without these gradients."""
        return self.whole | self.branch | self.end

    @property
    def halved(self) -> Mask:
        """What gets shorter."""
        return self.shared & ~self.gone

    def without(self, graph: Graph) -> Graph:
        """The graph without this work."""
        return scaled(removed(graph, self.gone), self.halved, 1.0 - WEIGHTS_SHARE)

    def without_the_least(self, graph: Graph) -> Graph:
        """The graph in the worst case: trained layers need gradients through branches that may lead to one, and less
        of the shared ops is for weights."""
        gone = (self.whole | self.end | self.dead_end) & ~self.shared
        return scaled(removed(graph, gone), self.shared & ~gone, 1.0 - calibrated.IDLE_PART.low * WEIGHTS_SHARE)

    @property
    def below_nothing(self) -> bool:
        """Whether no trained layer needs a gradient that goes through a layer of these weights."""
        parts = self.branch | self.end
        return bool(parts.any()) and not ((self.whole | self.shared) & ~parts).any()

    def gpu_ns(self, case: Analysis) -> float:
        """GPU time of this work per step."""
        gone, halved = (
            float(case.graph.duration_ns[mask & case.graph.on_gpu].sum()) for mask in (self.gone, self.halved)
        )
        return case.per_step(gone + WEIGHTS_SHARE * halved)


@dataclass(frozen=True, slots=True)
class IdleWeights(GradientWork):
    """Work for gradients of weights that no optimizer updates."""

    tensors: int
    """Number of these weights."""
    elements: int
    """Number of single numbers in them."""
    names: str
    """The modules that have them, where the recorder has found exactly these weights in no optimizer; else empty."""
    is_doubted: bool
    """Whether the recorder has found another number of weights in no optimizer: one that steps rarely may have some."""

    @property
    def odds(self) -> float:
        """Probability that nothing uses these gradients."""
        if self.names:
            return 1.0
        return (calibrated.UNUSED_ODDS if self.is_doubted else calibrated.UNCLEARED_ODDS).value

    @property
    def needs(self) -> str:
        """What must hold for that, and is not known; empty: nothing."""
        return "" if self.names else "no optimizer that steps less often has these weights"


@dataclass(slots=True)
class _Found:
    """Rows of ops, and stretches of CPU time, that are collected pass by pass."""

    whole: list[int] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    sums: list[tuple[int, int, int]] = field(default_factory=list)
    branch: list[tuple[int, int, int]] = field(default_factory=list)
    dead_end: list[tuple[int, int, int]] = field(default_factory=list)
    end: list[tuple[int, int, int]] = field(default_factory=list)


def idle_weights(case: Analysis) -> IdleWeights | None:
    """The work for gradients that no optimizer uses; None if there are none, or if that is not certain. Computed once
    per case."""
    if "idle_weights" not in case.memo:
        case.memo["idle_weights"] = _find(case)
    return case.memo["idle_weights"]


def _find(case: Analysis) -> IdleWeights | None:
    steps = _passes_of_steps(case)
    if steps is None:
        return None
    chosen, counted = list[tuple[BackwardPass, list[bool]]](), (0, 0)
    for passes in steps:
        idle = _idle_sums(case, passes)
        if idle is None:
            return None
        shapes = [shape for shape, one in zip(passes[0].shapes, idle, strict=True) if one and shape is not None]
        counted = len(shapes), sum(map(math.prod, shapes))
        chosen += [(one, idle) for one in passes]
    if not any(any(idle) for _, idle in chosen):
        return None
    doubted = _counted(case) not in (None, counted[0])
    return IdleWeights(*work_for(case, chosen), *counted, _names(case, counted[0]), doubted)


def work_for(case: Analysis, chosen: Iterable[tuple[BackwardPass, list[bool]]]) -> tuple[Mask, Mask, Mask, Mask, Mask]:
    """The fields of GradientWork. chosen: backward passes, and of each of their gradients whether it is of these
    weights."""
    found = _Found()
    for one, mine in chosen:
        _collect(case, one, mine, found)
    graph = case.graph
    sums, *parts = (_nodes_in(case, one) for one in (found.sums, found.branch, found.dead_end, found.end))
    whole, shared = (case.nodes_within(case.ops_at(rows)) & ~graph.waits for rows in (found.whole, found.shared))
    known = np.zeros(len(graph), bool)
    for row in found.shared:
        for_weight, of_op = _kernels_for_weight(case, row)
        whole[for_weight] = True
        known[of_op] = len(for_weight) > 0
    branch, dead_end, end = parts
    return whole | sums, shared & ~known, branch, dead_end, end


def _nodes_in(case: Analysis, stretches: list[tuple[int, int, int]]) -> Mask:
    columns = np.array(stretches, np.int64).reshape(-1, 3)
    return (nodes_in(case.graph, Stretches(columns[:, 0], columns[:, 1], columns[:, 2])) >= 0) & ~case.graph.waits


def _optimizer(case: Analysis) -> Mapping[str, Any]:
    """What the recorder knows about the optimizer."""
    return (case.run.optimizer or {}) if case.run else {}


def _counted(case: Analysis) -> int | None:
    """Number of weights with gradients that the recorder has found in no optimizer of the process, stepped or not;
    None: it has not looked for any."""
    modules = _optimizer(case).get("idle_modules")
    return None if modules is None else sum(int(one["tensors"]) for one in modules)


def _names(case: Analysis, tensors: int) -> str:
    """Names of the modules whose weights have gradients and are in no optimizer; empty unless it has counted
    this number of weights."""
    if _counted(case) != tensors:
        return ""
    names = [str(one["name"]) for one in _optimizer(case)["idle_modules"]]
    return ", ".join(names[:_MOST_NAMES]) + (" …" if len(names) > _MOST_NAMES else "")


def _passes_of_steps(case: Analysis) -> list[list[BackwardPass]] | None:
    """The backward passes before each step of the optimizer; None unless each step has one optimizer's step and at
    least one backward pass, the number of its tensors is known, and the recorder has not found all weights
    with gradients in optimizers."""
    if not _optimizer(case).get("tensors") or _counted(case) == 0:
        return None
    ops, (low, high) = case.trace.ops, case.timeline.window
    ranges = case.ops_named(lambda name: name.startswith(OPTIMIZER_STEP))
    updates = np.sort(ops.start_ns[ranges & (ops.start_ns >= low) & (ops.start_ns < high)])
    if len(updates) != case.steps:
        return None
    steps: list[list[BackwardPass]] = [[] for _ in updates]
    for one in backward_passes(case):
        at = int(np.searchsorted(updates, ops.start_ns[one.rows[0]]))
        if at < len(steps):
            steps[at].append(one)
    return steps if all(steps) else None


def _idle_sums(case: Analysis, passes: list[BackwardPass]) -> list[bool] | None:
    """Per gradient of each pass of a step, whether no optimizer uses it. None if that is not certain, for most of those
    that may be: what is added to a gradient may be added to one made earlier in the step, if that has the same shape,
    or an unknown one (torch may record no shape for a new gradient)."""
    (first, *others), tensors = passes, int(_optimizer(case).get("tensors") or 0)
    added = [shape for shape, fresh in zip(first.shapes, first.fresh, strict=True) if not fresh]
    if None in added or sum(first.fresh) != tensors:
        return None
    made: set[Shape | None] = set()
    clear = 0
    for shape, fresh in zip(first.shapes, first.fresh, strict=True):
        if fresh:
            made.add(shape)
        else:
            clear += not ({shape, None} & made)
    if clear < UNSHARED_SHAPES_SHARE * len(added) and not _names(case, len(added)):
        return None
    if not all(_are_alike(first.shapes, one.shapes) for one in others):
        return None
    return [not fresh for fresh in first.fresh]


def _are_alike(first: list[Shape | None], second: list[Shape | None]) -> bool:
    """Whether two passes make gradients of the same shapes in the same order, as far as shapes are known."""
    if len(first) != len(second):
        return False
    return all(one == other or None in (one, other) for one, other in zip(first, second, strict=True))


def _collect(case: Analysis, one: BackwardPass, idle: list[bool], found: _Found) -> None:
    """Adds the work of a pass for these gradients."""
    ops, strings = case.trace.ops, case.trace.strings
    names = [strings[int(name)].removeprefix(AUTOGRAD_ENGINE) for name in ops.name[one.rows].tolist()]
    thread = int(ops.thread[one.rows[0]])
    makers = _makers(case, one, idle, names)
    single = {row for row, of_input in makers if not of_input}
    found.whole += sorted(single)
    found.shared += [row for row, of_input in makers if of_input]

    def stretch(first: int, last: int) -> tuple[int, int, int]:
        return thread, int(ops.start_ns[one.rows[first]]), int(ops.end_ns[one.rows[last]])

    places = one.sums.tolist()
    for place in (place for place, gone in zip(places, idle, strict=True) if gone):
        found.sums.append(stretch(place - 1 if place and _CAST.match(names[place - 1]) else place, place))
    for begin, end in _runs(idle):
        first, last = _maker_of(names, places[begin]), places[end - 1]
        if end == len(idle):
            found.end.append(stretch(first, len(one.rows) - 1))
        elif _ends_a_branch(case, one, places[end - 1], names, single):
            found.branch.append(stretch(first, last))
            if _is_dead_end(case, one, first, last):
                found.dead_end.append(found.branch[-1])


def _runs(idle: list[bool]) -> list[tuple[int, int]]:
    """First place of each run of idle gradients, and the place after its last one."""
    edges = np.flatnonzero(np.diff(np.array([False, *idle, False]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _maker_of(names: list[str], place: int) -> int:
    """Place of the node of autograd that computes the gradient of a sum at a place."""
    at = place - 1
    while at > 0 and (_VIEWS.match(names[at]) or names[at] == names[place]):
        at -= 1
    return max(at, 0)


def _ends_a_branch(case: Analysis, one: BackwardPass, place: int, names: list[str], single: set[int]) -> bool:
    """Whether the layer of the sum at a place computes no gradient of its input: no layer before it needs one."""
    ops, row = case.trace.ops, int(one.rows[_maker_of(names, place)])
    inside = (ops.thread == ops.thread[row]) & (ops.start_ns >= ops.start_ns[row]) & (ops.end_ns <= ops.end_ns[row])
    rows = np.flatnonzero(inside & case.ops_named(lambda name: name in _KINDS)).tolist()
    return bool(rows) and all(at in single for at in rows)


def _is_dead_end(case: Analysis, one: BackwardPass, first: int, last: int) -> bool:
    """Whether the next gradient after a stretch of a pass has a size that no tensor in the stretch has, so that it is
    not made there."""
    ops = case.trace.ops
    near = (ops.kind == OP) & (ops.thread == ops.thread[one.rows[0]]) & (ops.dims >= 0)
    begin, end = int(ops.start_ns[one.rows[first]]), int(ops.end_ns[one.rows[last]])
    later = np.flatnonzero(near & (ops.start_ns >= end) & (ops.end_ns <= _span(case, one)[1]))
    for row in later[np.argsort(ops.start_ns[later])].tolist():
        shape = next(iter(shapes_in(case, int(ops.dims[row]))), None)
        if shape and math.prod(shape) > 1:
            inside = np.unique(ops.dims[near & (ops.start_ns >= begin) & (ops.end_ns <= end)]).tolist()
            sizes = {math.prod(each) for text in inside for each in shapes_in(case, text) if each}
            return math.prod(shape) not in sizes
    return False


def _kernels_for_weight(case: Analysis, row: int) -> tuple[I64, I64]:
    """GPU nodes of a convolution's backward pass that compute the gradients of weight and bias, and all of its GPU
    nodes: torch computes the gradient of the input first, and its layout may be changed after that. None for the
    weight where the kernels' names do not say."""
    graph = case.graph
    nodes = np.flatnonzero(case.nodes_within(case.ops_at([row])) & graph.on_gpu)
    nodes = nodes[np.argsort(case.trace.gpu.start_ns[graph.gpu_row[nodes]], kind="stable")]
    names = [case.trace.strings[int(case.trace.gpu.name[at])] for at in graph.gpu_row[nodes].tolist()]
    of_input = [at for at, name in enumerate(names) if _OF_INPUT.search(name)]
    of_weight = [at for at, name in enumerate(names) if _OF_WEIGHT.search(name)]
    if not of_input or not of_weight or of_input[-1] > of_weight[0]:
        return nodes[:0], nodes
    return nodes[min(of_input[-1] + 2, of_weight[0]) :], nodes


def _makers(case: Analysis, one: BackwardPass, idle: list[bool], names: list[str]) -> list[tuple[int, bool]]:
    """Rows of the ops that compute the idle gradients, and whether each computes a gradient of an input, too. An op
    computes the gradient of the weight of its shape that is summed next. Where torch has recorded no shape of a sum,
    those count that the ops of its own layer can have made."""
    start = case.trace.ops.start_ns
    ops = _gradient_ops(case, one)
    nodes = np.searchsorted(start[one.rows], [start[row] for row, _ in ops], side="right") - 1
    layers = [_sums_after(names, int(node)) for node in nodes.tolist()]
    shapes = {place: {shape} for place, shape in zip(one.sums.tolist(), one.shapes, strict=True)}
    for (_, made), layer in zip(ops, layers, strict=True):
        for place in layer:
            if None in shapes[place]:
                shapes[place] = shapes[place] | made
    gone, found = dict(zip(one.sums.tolist(), idle, strict=True)), []
    for (row, made), node in zip(ops, nodes.tolist(), strict=True):
        places = (place for place in one.sums[np.searchsorted(one.sums, node) :].tolist() if shapes[place] & made)
        at = next(places, None)
        if at is not None and gone[at]:
            found.append((row, _makes_input_gradient(case, row)))
    return found


def _sums_after(names: list[str], node: int) -> list[int]:
    """Places of the sums into gradients that follow a node of autograd, with nothing but views and casts between."""
    at, found = node + 1, []
    while at < len(names) and (_VIEWS.match(names[at]) or names[at] == _SUM):
        if names[at] == _SUM:
            found.append(at)
        at += 1
    return found


def _gradient_ops(case: Analysis, one: BackwardPass) -> list[tuple[int, set[Shape | None]]]:
    """Rows of the ops in a pass that may compute a weight's gradient, and the shapes that the weight can have. That of
    a lookup's table is not recorded: of all shapes of this width that are summed."""
    ops, (start, end) = case.trace.ops, _span(case, one)
    near = (ops.thread == ops.thread[one.rows[0]]) & (ops.start_ns >= start) & (ops.end_ns <= end)
    found: list[tuple[int, set[Shape | None]]] = []
    for row in np.flatnonzero(near & case.ops_named(lambda name: name in _KINDS)).tolist():
        first, second, third = [*shapes_in(case, int(ops.dims[row])), None, None, None][:3]
        kind = case.trace.strings[int(ops.name[row])]
        if kind == _CONVOLUTION and third:
            found.append((row, {third}))
        elif kind == _LOOKUP and first:
            found.append((row, {each for each in one.shapes if each and len(each) == 2 and each[1] == first[-1]}))
        elif kind == _MATMUL and first and second and len(first) == len(second) == 2:
            found.append((row, {(first[0], second[1]), (second[1], first[0])}))
    return found


def _span(case: Analysis, one: BackwardPass) -> tuple[int, int]:
    ops = case.trace.ops
    return int(ops.start_ns[one.rows[0]]), int(ops.end_ns[one.rows].max())


def _makes_input_gradient(case: Analysis, row: int) -> bool:
    """Whether it is a convolution's backward pass that computes a gradient of its input, too, or whose kernels do not
    say so."""
    if case.trace.strings[int(case.trace.ops.name[row])] != _CONVOLUTION:
        return False
    nodes = case.nodes_within(case.ops_at([row])) & case.graph.on_gpu
    names = [case.trace.strings[int(case.trace.gpu.name[at])] for at in case.graph.gpu_row[nodes].tolist()]
    return any(map(_OF_INPUT.search, names)) or not any(map(_OF_WEIGHT.search, names))
