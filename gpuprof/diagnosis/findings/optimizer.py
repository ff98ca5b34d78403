"""The optimizer goes over its parameters in many passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.cpu.gradient_scaler import STEP, gradient_scaler
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.memory_remedy import MemoryRemedy
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.pair.candidates import Candidate, claim_where
from gpuprof.diagnosis.detect.pair.quantities import kernel_counts, kernel_ns
from gpuprof.diagnosis.detect.torch_version import is_before_2, torch_version
from gpuprof.diagnosis.result.fix import Fix, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.memory import memory_changes as changes
from gpuprof.projection.memory.memory_fixes import OPTIMIZER as STATE
from gpuprof.projection.memory.memory_fixes import MemoryFix, recorded_footprint
from gpuprof.replay.graph import Graph, launcher_of
from gpuprof.replay.transform import removed, without_waits
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import OPTIMIZER
from gpuprof.tracefile.trace import ANNOTATION, I64, Mask
from gpuprof.units import Published, Version

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts
    from gpuprof.projection.memory.memory import RecordedMemory

FUSABLE = frozenset({"Adam", "AdamW", "SGD"})
"""Optimizers of torch.optim that take `fused=True` on CUDA."""
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
parameter's step count on the CPU. With a gradient scaler it checks on the GPU whether gradients overflowed, so
`scaler.step` no longer waits for that value.
""",
    detected="""
A step of torch.optim's `Adam`, `AdamW`, `SGD` or, from torch 2.13 on, `Adagrad` without `aten::_fused_…` ops, found by
its `Optimizer.step` range. Not shown if torch is older than 2.0.
""",
    gain=f"""
All kernels of the step become one with {calibrated.OPTIMIZER_GPU.low:g} to {calibrated.OPTIMIZER_GPU.high:g} of their
time; CPU time in ops becomes {calibrated.OPTIMIZER_FOREACH_HOST.value:g} (from foreach) or
{calibrated.OPTIMIZER_LOOP_HOST.value:g} (from a loop) of what it was. Reads of step counts (`aten::item` in the step)
are removed with the Python between them, and so are a gradient scaler's read directly before the step and its wait.
Python code that collects the parameters stays. With few trainable parameters the gain is often within the noise and is
then not shown.
""",
    wrong="""
Parameters that are not floating-point cannot be fused, and `Adagrad` has no fused CUDA kernel in torch 2.11 and
older. `torch.compile` of the optimizer's step achieves the same in another way.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """fused=True, for an optimizer that has it and does not use it."""
    graph, trace = case.graph, case.trace
    ranges = case.ops_named(STEP.match)
    names = {match[1] for i in np.unique(trace.ops.name[ranges]).tolist() if (match := STEP.match(trace.strings[i]))}
    fusable = FUSABLE | {"Adagrad"} if torch_version(case) >= FUSED_ADAGRAD_FROM else FUSABLE
    inside_ops = _inside(case, ranges) if names & fusable else np.zeros(len(ranges), bool)
    if not names or not names <= fusable or is_before_2(case) or (inside_ops & case.ops_named(FUSED.match)).any():
        return
    lists = bool((inside_ops & case.ops_named(FOREACH.match)).any())
    if not lists and not (inside_ops & case.ops_named(IN_PLACE.match)).any():
        return
    inside = np.append(inside_ops, False)[graph.scope]
    work = np.flatnonzero(inside & graph.on_gpu)
    source = launcher_of(graph)[work] if len(work) else work
    work, source = work[source >= 0], source[source >= 0]
    if not len(work):
        return
    host = inside & ~graph.on_gpu & ~graph.waits
    in_op = host & np.append(trace.ops.kind != ANNOTATION, False)[graph.scope]
    scaler = gradient_scaler(case, ranges)
    asks = np.zeros(len(graph), bool) if scaler is None else scaler.reads
    waits = (inside | asks) & graph.waits
    reads = _step_counts(case, inside_ops) | (asks & ~graph.waits & ~graph.on_gpu)
    step = graph.step[work]
    last = np.append(np.flatnonzero(np.diff(step)), len(work) - 1)

    def fused(way: int) -> Change:
        op_share = (calibrated.OPTIMIZER_FOREACH_HOST.rising if lists else calibrated.OPTIMIZER_LOOP_HOST.rising)[way]
        python_share = 1.0 if lists else calibrated.OPTIMIZER_LOOP_PYTHON.rising[way]

        def change(graph: Graph) -> Graph:
            gpu_ns = _per_group(graph.duration_ns[work], last)
            host_ns = _per_step(graph, in_op & ~reads)[graph.step[source[last]]]
            gone = in_op | reads
            gone[work] = True
            gone[work[last]] = gone[source[last]] = False
            python = host & ~in_op & ~reads
            less = removed(without_waits(graph, waits), gone)
            duration = less.duration_ns.copy()
            duration[python] *= python_share
            duration[work[last]] = gpu_ns * calibrated.OPTIMIZER_GPU.rising[way]
            duration[source[last]] = host_ns * op_share
            return less.with_durations(duration)

        return change

    count = len(work) / case.steps
    done = host.copy()
    done[work] = True
    host_ns = case.per_step(float(graph.duration_ns[host].sum()))
    gpu_ns = case.per_step(float(graph.duration_ns[work].sum()))
    name = " and ".join(sorted(names))
    how = "lists of parameters" if lists else "one parameter after another"
    yield Proposal(
        title="fused optimizer",
        evidence=spans(
            case,
            f"{name} goes through {how}: {count:,.0f} kernels a step, {duration(host_ns)} of CPU time, "
            f"{duration(gpu_ns)} of the GPU's" + (_WAITS if asks.any() else ""),
            done,
        ),
        fix=_fix(case, sorted(names)[0]).by("optimizer"),
        change=fused(1),
        best=fused(0),
        worst=fused(2),
        claims=("optimizer_step",),
    )


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


def _inside(case: Analysis, ranges: Mask) -> Mask:
    """Ops in the optimizer's steps, but for those of a closure that it was given: forward and backward.

    A profiler that steps in a hook of the optimizer begins its next range within the optimizer's: what is in the one is
    not in the other.
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
    ledger=LedgerItem("the optimizer's step in many small kernels"),
    synonyms=("fused_optimizer", "adamw", "adamw_torch_fused", "foreach", "fused_adamw"),
)
