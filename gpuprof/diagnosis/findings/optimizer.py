"""The optimizer goes over its parameters in many passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration import latency as latency_calibrated
from gpuprof.costs.formulas.gemm import is_matmul
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.cpu.gradient_scaler import STEP, gradient_scaler
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.memory_remedy import MemoryRemedy
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.gpu.replace_work import replacement_of, with_replacement
from gpuprof.diagnosis.detect.loops.parameter_groups import FEWEST_GROUPS, find_parameter_groups
from gpuprof.diagnosis.detect.pair.candidates import Candidate, claim_where
from gpuprof.diagnosis.detect.pair.quantities import kernel_counts, kernel_ns
from gpuprof.diagnosis.detect.torch_version import is_before_2, torch_version
from gpuprof.diagnosis.result.fix import Fix, call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.memory import memory_changes as changes
from gpuprof.projection.memory.memory_fixes import OPTIMIZER as STATE
from gpuprof.projection.memory.memory_fixes import MemoryFix, recorded_footprint
from gpuprof.replay.graph import Graph, launcher_of
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import removed, without_waits
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import OPTIMIZER
from gpuprof.tracefile.trace import ANNOTATION, F64, I64, Mask
from gpuprof.units import Published, Share, Version

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts
    from gpuprof.projection.memory.recorded_memory import RecordedMemory

FUSABLE = frozenset({"Adam", "AdamW", "SGD"})
"""Optimizers of torch.optim that take `fused=True` on CUDA."""
LISTABLE = frozenset({"ASGD", "Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"})
"""Optimizers of torch.optim that have no fused kernel, and take `foreach=True`."""
FUSED_ADAGRAD_FROM: Published[tuple[Version, Version]] = (2, 13)
"""The first torch whose documentation lists CUDA for Adagrad's `fused`."""
FUSED = re.compile(r"^aten::_fused_")
FOREACH = re.compile(r"^aten::_foreach_")
IN_PLACE = re.compile(r"^aten::(add_|addcdiv_|mul_)$")
READ = "aten::item"
"""Reads one value: of step counts in host memory once or twice for each parameter, which fused optimizers do not."""

PAGE = Page(
    id="optimizer",
    applies=("training",),
    title="The optimizer updates in many small steps",
    means="""
A for-loop optimizer launches about eight kernels for each parameter; a foreach optimizer launches a few kernels for
each list of parameters, but reads all parameters again for every operation. A fused optimizer reads each parameter,
gradient and state once and writes it once, in a handful of kernels. Unlike the others, it does not read each
parameter's step count on the CPU. Optimizers of libraries, such as the Adafactor of transformers, mostly go from
parameter to parameter and have no fused kernel: AdamW has. With a gradient scaler a fused optimizer checks on the GPU
whether gradients overflowed, so `scaler.step` no longer waits for that value.
""",
    detected=f"""
A step of torch.optim's `Adam`, `AdamW`, `SGD` or, from torch 2.13 on, `Adagrad` without `aten::_fused_…` ops, found by
its `Optimizer.step` range. Any other optimizer that updates one parameter after another in place, except those that
multiply matrices (Muon, Shampoo); torch.optim's own among them can go through lists of parameters (`foreach=True`). Not
shown if torch is older than 2.0. Parameter groups: at least {FEWEST_GROUPS} calls of a fused op, or of each op on
lists, in a step, of which at most half have settings of their own where the run says so.
""",
    gain=f"""
All kernels of the step become one with {calibrated.OPTIMIZER_GPU.low:g} to {calibrated.OPTIMIZER_GPU.high:g} of their
time; CPU time in ops becomes {calibrated.OPTIMIZER_FOREACH_HOST.value:g} (from foreach) or
{calibrated.OPTIMIZER_LOOP_HOST.value:g} (from a loop) of what it was. Reads of step counts (`aten::item` in the step)
are removed with the Python between them, and so are a gradient scaler's read directly before the step and its wait.
Python code around the ops becomes {calibrated.OPTIMIZER_FOREACH_PYTHON.value:g} (from foreach, which groups tensors and
corrects a bias for each) or {calibrated.OPTIMIZER_LOOP_PYTHON.value:g} (from a loop). From a loop to foreach both
become what these shares leave between them, and the GPU's time stays as it is. Reads of values in another
optimizer's step are removed, too; AdamW in its place is listed under *Worth trying* (probability
{calibrated.OTHER_OPTIMIZER_ODDS.value:g} that it trains as well, assumed). With few trainable parameters the gain is
often within the noise and is then not shown. Parameter groups of the same settings become one: as many are left as have
different settings, or {calibrated.GROUPS_LEFT.value:g} ({calibrated.GROUPS_LEFT.low:g} to
{calibrated.GROUPS_LEFT.high:g}, assumed) where the run does not say, with a probability of
{calibrated.GROUPS_ODDS.value:g} (assumed). Their kernels, and all but {calibrated.GROUPS_TENSORS.value:g}
({calibrated.GROUPS_TENSORS.low:g} to {calibrated.GROUPS_TENSORS.high:g}, assumed) of the step's CPU time, shrink with
the number of groups.
""",
    wrong="""
Parameters that are not floating-point cannot be fused, and `Adagrad` has no fused CUDA kernel in torch 2.11 and
older. AdamW keeps two values for each weight: 8 bytes in float32, which Adafactor, Lion and 8-bit optimizers save.
`torch.compile` of the optimizer's step achieves the same in another way.
""",
)


@dataclass(frozen=True, slots=True)
class _OptimizerStep:
    """The optimizer's step in the graph."""

    in_op: Mask
    """Its CPU work in ops."""
    python: Mask
    """Its CPU work in no op."""
    reads: Mask
    """Reads of values that a fused step does without."""
    waits: Mask
    work: I64
    """Its work on the GPU, and `source`: the node that launched each."""
    source: I64
    lists: bool
    """Whether it goes through lists of parameters instead of one after another."""
    asks: bool
    """Whether a gradient scaler waits before it."""


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes fused=True for an optimizer that has it and does not use it, foreach=True for one that has only that, or
    a fused AdamW in place of one that has neither."""
    trace, ranges = case.trace, _innermost(case, case.ops_named(STEP.match))
    names = {match[1] for i in np.unique(trace.ops.name[ranges]).tolist() if (match := STEP.match(trace.strings[i]))}
    fusable = FUSABLE | {"Adagrad"} if torch_version(case) >= FUSED_ADAGRAD_FROM else FUSABLE
    if not names or is_before_2(case):
        return
    yield from _groups(case, ranges)
    step = _step(case, ranges)
    if step is None:
        return
    done = (step.in_op | step.python).copy()
    done[step.work] = True
    name = " and ".join(sorted(names))
    how = "lists of parameters" if step.lists else "one parameter after another"
    text = f"{name} goes through {how}: {_said(case, step)}" + (_WAITS if step.asks else "")
    common = {"evidence": spans(case, text, done), "claims": ("optimizer_step",)}
    if names <= fusable:
        yield Proposal(
            title="fused optimizer",
            fix=_fix(case, sorted(names)[0]).by("optimizer"),
            change=_merged(step, _to_fused(step, 1)),
            best=_merged(step, _to_fused(step, 0)),
            worst=_merged(step, _to_fused(step, 2)),
            **common,
        )
    elif names <= LISTABLE and not step.lists:
        first = sorted(names)[0]
        torch = call(f"torch.optim.{first}", ..., foreach=True)
        yield Proposal(
            title="the optimizer over lists of parameters",
            fix=torch.by("optimizer", "foreach") if first == "Adagrad" else torch,
            change=_merged(step, _to_lists(1)),
            best=_merged(step, _to_lists(0)),
            worst=_merged(step, _to_lists(2)),
            key="lists",
            **common,
        )
    elif not step.lists and not (_ops_inside(case, ranges) & case.ops_named(is_matmul)).any():
        yield Proposal(
            title="fused AdamW instead of this optimizer",
            fix=_fix(case, "AdamW"),
            change=_merged(step, _to_fused(step, 1)),
            best=_merged(step, _to_fused(step, 0)),
            worst=_merged(step, _to_fused(step, 2)),
            changes="the rule by which weights are updated, so the learning rate has to be chosen again",
            odds=calibrated.OTHER_OPTIMIZER_ODDS.value,
            needs="AdamW trains this model as well; it keeps two values for each weight",
            key="other",
            **common,
        )


def _groups(case: Analysis, ranges: Mask) -> Iterator[Proposal]:
    """Proposes one parameter group for all parameters with the same settings."""
    found = find_parameter_groups(case, ranges)
    if found is None:
        return
    graph = case.graph
    group = np.where(graph.waits, -1, nodes_in(graph, found.steps))
    count, inside = len(found.steps), group >= 0
    host, gpu = inside & ~graph.on_gpu, inside & graph.on_gpu
    took: F64 = np.bincount(group[host], weights=graph.duration_ns[host], minlength=count).astype(np.float64)
    work: F64 = np.bincount(group[gpu], weights=graph.duration_ns[gpu], minlength=count).astype(np.float64)
    least = np.minimum(graph.duration_ns[gpu], latency_calibrated.FLOOR_NS.value)
    nothing: F64 = np.bincount(group[gpu], weights=least, minlength=count).astype(np.float64)
    pieces = np.bincount(group[gpu], minlength=count)

    def to(level: int) -> Change:
        left = found.left[level]
        share = left + (1 - left) * calibrated.GROUPS_TENSORS.rising[level]
        launches = np.ceil(pieces * left).astype(np.int64)
        new = replacement_of(graph, group, took * share, work - nothing * (1 - left), launches)
        return lambda graph: with_replacement(graph, new)

    text = (
        f"the optimizer steps {found.count:,} parameter groups one after another:"
        f" {case.per_step(float(gpu.sum())):,.0f} kernels and {duration(case.per_step(float(took.sum())))} of CPU time"
        f" {case.unit.a}"
    )
    yield Proposal(
        title="one parameter group for all parameters with the same settings",
        evidence=spans(case, text, inside),
        fix=code("groups.setdefault((lr, weight_decay), []).append(parameter)  # in place of a group for each")
        + "\n"
        + code('[{"params": p, "lr": lr, "weight_decay": decay} for (lr, decay), p in groups.items()]'),
        change=to(1),
        best=to(0),
        worst=to(2),
        odds=1.0 if found.known else calibrated.GROUPS_ODDS.value,
        needs="" if found.known else "the groups differ in little but their parameters",
        key="groups",
    )


def _step(case: Analysis, ranges: Mask) -> _OptimizerStep | None:
    """The optimizer's step; None where it is fused already, or where nothing of it was recorded."""
    graph, inside_ops = case.graph, _ops_inside(case, ranges)
    if (inside_ops & case.ops_named(FUSED.match)).any():
        return None
    lists = bool((inside_ops & case.ops_named(FOREACH.match)).any())
    if not lists and not (inside_ops & case.ops_named(IN_PLACE.match)).any():
        return None
    inside = np.append(inside_ops, False)[graph.scope]
    work = np.flatnonzero(inside & graph.on_gpu)
    source = launcher_of(graph)[work] if len(work) else work
    work, source = work[source >= 0], source[source >= 0]
    if not len(work):
        return None
    host = inside & ~graph.on_gpu & ~graph.waits
    in_op = host & np.append(case.trace.ops.kind != ANNOTATION, False)[graph.scope]
    scaler = gradient_scaler(case, ranges)
    asks = np.zeros(len(graph), bool) if scaler is None else scaler.reads
    reads = _step_counts(case, inside_ops) | (asks & ~graph.waits & ~graph.on_gpu)
    waits = (inside | asks) & graph.waits
    return _OptimizerStep(in_op, host & ~in_op, reads, waits, work, source, lists, bool(asks.any()))


@dataclass(frozen=True, slots=True)
class _Left:
    """Shares of the step's time that are left."""

    gpu: Share
    in_op: Share
    python: Share


def _to_fused(step: _OptimizerStep, way: int) -> _Left:
    """With a fused kernel; `way`: 0 is the best case, 2 the worst."""
    in_op = calibrated.OPTIMIZER_FOREACH_HOST if step.lists else calibrated.OPTIMIZER_LOOP_HOST
    python = calibrated.OPTIMIZER_FOREACH_PYTHON if step.lists else calibrated.OPTIMIZER_LOOP_PYTHON
    return _Left(calibrated.OPTIMIZER_GPU.rising[way], in_op.rising[way], python.rising[way])


def _to_lists(way: int) -> _Left:
    """Through lists in place of one parameter after another: a fused step takes a share of either."""
    in_op = calibrated.OPTIMIZER_LOOP_HOST.rising[way] / calibrated.OPTIMIZER_FOREACH_HOST.rising[2 - way]
    python = calibrated.OPTIMIZER_LOOP_PYTHON.rising[way] / calibrated.OPTIMIZER_FOREACH_PYTHON.rising[2 - way]
    return _Left(1.0, in_op, python)


def _merged(step: _OptimizerStep, left: _Left) -> Change:
    """One kernel a step in place of all, and what is left of their time."""
    work, source, in_op, reads = step.work, step.source, step.in_op, step.reads

    def change(graph: Graph) -> Graph:
        last = np.append(np.flatnonzero(np.diff(graph.step[work])), len(work) - 1)
        gpu_ns = _per_group(graph.duration_ns[work], last)
        host_ns = _per_step(graph, in_op & ~reads)[graph.step[source[last]]]
        gone = in_op | reads
        gone[work] = True
        gone[work[last]] = gone[source[last]] = False
        python = step.python & ~reads
        less = removed(without_waits(graph, step.waits), gone)
        duration = less.duration_ns.copy()
        duration[python] *= left.python
        duration[work[last]] = gpu_ns * left.gpu
        duration[source[last]] = host_ns * left.in_op
        return less.with_durations(duration)

    return change


def _said(case: Analysis, step: _OptimizerStep) -> str:
    """What a step does now."""
    ns, host = case.graph.duration_ns, step.in_op | step.python
    return (
        f"{len(step.work) / case.steps:,.0f} kernels a step, {duration(case.per_step(float(ns[host].sum())))} of CPU"
        f" time, {duration(case.per_step(float(ns[step.work].sum())))} of the GPU's"
    )


def _innermost(case: Analysis, ranges: Mask) -> Mask:
    """Without the ranges of optimizers that hand over to another one."""
    parent, rows = case.timeline.nesting.parent, np.flatnonzero(ranges)
    above = climb(parent[rows], parent, ranges)
    found = ranges.copy()
    found[above[above >= 0]] = False
    return found


_WAITS = "; before it the gradient scaler waits to read whether gradients overflowed"


def _step_counts(case: Analysis, inside: Mask) -> Mask:
    """Host nodes of a step that read a value one parameter after the other, with the Python between two of them."""
    graph = case.graph
    found = np.append(case.ops_within(inside & case.ops_named(lambda text: text == READ)), False)[graph.scope]
    found &= ~graph.on_gpu & ~graph.waits
    nodes = np.flatnonzero(np.append(inside, False)[graph.scope] & ~graph.on_gpu)
    nodes = nodes[np.argsort(graph.lane[nodes], kind="stable")]
    lane, reads = graph.lane[nodes], found[nodes]
    between = reads[:-2] & reads[2:] & (lane[:-2] == lane[2:]) & ~graph.waits[nodes[1:-1]]
    found[nodes[1:-1][between]] = True
    return found


def _absent(case: Analysis) -> str | None:
    if case.ops_named(FUSED.match).any():
        return "the optimizer's step is fused already"
    if is_before_2(case):
        return "this torch is older than 2.0, and may have no fused optimizers"
    return None


ABSENT = Absent("fused optimizer", _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """An optimizer of fewer kernels."""
    phases = ("optimizer",)
    pieces = kernel_counts(a, b, (), phases)
    if pieces.fell():
        yield Candidate(
            PAGE.id,
            "the optimizer's kernels",
            f"kernels of the optimizer: {pieces} a step, {kernel_ns(a, b, (), phases).ms} ms of GPU time",
            claim_where(lambda cell: cell[2] == "optimizer" and cell[1] not in ("input", "transfer")),
            pieces.more,
        )


def _ops_inside(case: Analysis, ranges: Mask) -> Mask:
    """Ops in the optimizer's steps, except those of a closure passed to it (forward and backward). A profiler that
    steps in a hook of the optimizer opens its next range within the optimizer's: ops in that range are not the
    optimizer's.
    """
    parent = case.timeline.nesting.parent
    ends = ranges | case.ops_named(lambda text: text.startswith("ProfilerStep"))
    found = climb(np.arange(len(ranges)), parent, ends)
    return np.append(ranges, False)[found] & (case.timeline.host.op == OPTIMIZER)


def _fix(case: Analysis, name: str) -> Fix:
    torch = call(f"torch.optim.{name}", ..., fused=True)
    if name != "AdamW":
        return torch
    return case.stack.fix(torch, case.stack.setting({"optim": "adamw_torch_fused"}))


def _per_group(values: np.ndarray, last: I64) -> np.ndarray:
    """Sums of consecutive values up to each index."""
    return np.diff(np.cumsum(values)[last], prepend=0.0)


def _per_step(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    """Time of some nodes per step."""
    return np.bincount(graph.step[nodes], weights=graph.duration_ns[nodes], minlength=graph.steps)


def less_memory(memory: RecordedMemory, _: float | None) -> Iterator[MemoryFix]:
    """No temporary copy of the parameters, where the optimizer's step makes the peak."""
    if recorded_footprint(memory).likely.floor_bytes and memory.recorded.temporary_bytes:
        yield MemoryFix("fused_optimizer", "fused optimizer", changes.no_temporaries(), replaces=STATE)


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    lowers=("slow_optimizer",),
    memory=MemoryRemedy(("fused_optimizer",), less_memory),
    # Another rule over lists of tensors takes about as long as AdamW's fused step, which is proposed in its place.
    ledger=LedgerItem("the optimizer's step in many small kernels", changes_digits=True),
    synonyms=("fused_optimizer", "adamw", "adamw_torch_fused", "foreach", "fused_adamw", "adafactor"),
    titles=(
        "fused_adamw_instead_of_this_optimizer",
        "the_optimizer_over_lists_of_parameters",
        "one_parameter_group_for_all_parameters_with_the_same_settings",
    ),
)
