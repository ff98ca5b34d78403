"""Code is generated, or a kernel planned, in the middle of the training."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gpuprof.calibration import shapes as calibrated
from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.diagnosis.analysis import Analysis, Change
from gpuprof.diagnosis.comparison.candidates import OWN, Candidate, claim_idle
from gpuprof.diagnosis.comparison.facts import Facts
from gpuprof.diagnosis.comparison.quantities import idle_ns, quantity
from gpuprof.diagnosis.diagnosis import Evidence
from gpuprof.diagnosis.evidence import spans
from gpuprof.diagnosis.proposal import Page, Proposal
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import removed, scaled
from gpuprof.timeline.startup import COMPILING, LOADING
from gpuprof.tracefile.trace import OP, Mask

LONG_NS = thresholds_calibrated.PLANNING_NS.value
"""What an op's own host work takes at least when it plans or compiles; launching takes microseconds."""
TIMES = thresholds_calibrated.PLANNING_TIMES.value
"""And this many times the usual of the same op; a host that is merely interrupted or slow does not do that to one
op."""
SHARE = 0.5
"""Part of the recorded steps that it must happen in: once is warming up."""
USUAL_NS = calibrated.USUAL_NS.value
"""What such an op takes otherwise, where the recording shows it only while planning."""
MACHINERY = re.compile(r"^(dynamo$|CompiledFunction|Torch-Compiled Region|## Call CompiledFxGraph)")
"""Ranges around generated code as it runs, with what it sets up the first time."""
FIRST_NS = thresholds_calibrated.FIRST_CALL_NS.value
"""In a step that compiles all meets its shapes for the first time: choosing a kernel for a matmul takes longer
than this, and so does the first run of generated code. What an op does at each call takes tens of microseconds."""
STAYS = calibrated.STAYS.value
"""At worst so much of these first calls is there at every call."""
OTHER_KERNEL = calibrated.OTHER_KERNEL.value
"""At worst the attention kernel that is used instead takes so much longer."""
CUDNN_ATTENTION = re.compile(r"cudnn_attention")
MULTIPLE = 64
"""Lengths that are padded to this take 2048 / 64 = 32 different values at most, each planned once."""
LEAST = 0.05
"""Share of the mean step that new shapes cost, from which on that is worth a fix."""
LEFT = calibrated.LEFT.value
"""Of the new shapes, those that are left when lengths are padded: each of the few lengths is new once."""
PADDED = calibrated.PADDED.value
"""Tokens with the padding, over those without."""
COMPILING_CAUSES = ("launch", "python", "sync")
"""What the GPU waits for while the host compiles."""
MOSTLY = 0.5
"""Of the difference in such waits: where compiling explains more of it than this, all of it is treated as that."""

PAGE = Page(
    id="recompiles",
    title="New shapes are compiled or planned during the training",
    means="""
`torch.compile`, Triton, cuDNN and cuBLAS prepare a kernel for each shape that they see, and keep it. When batch
lengths vary, many steps meet new shapes: cuDNN attention alone plans for 50 ms for each, forward and backward, and
nothing is launched meanwhile.
""",
    detected="""
In at least half of the recorded steps: ranges in which Dynamo or Inductor compile, driver calls that load code, or an
op whose own CPU time is over 3 ms and 30 times its usual time. Or, over all steps that a run timed: steps with new
lengths take at least 15 % longer than steps with lengths seen before, and this adds 5 % to the mean step.
""",
    gain="""
Compiling and loading are removed together with the candidates tried on the GPU, and an op that planned takes its
usual time. In steps that compile, so does every op that launches something or runs generated code and takes the CPU
over 0.2 ms; at worst half of that stays. With another attention backend the attention kernels take at worst 1.3 times
as long. If only the timed steps show it, a twentieth of what new lengths cost is left, and padding makes the step up
to 8 % longer (assumed).
""",
    wrong="""
Once all lengths have been seen there is nothing left to plan: a long training with few lengths recovers by itself.
Padding to a multiple adds some tokens.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Fixed shapes, or a backend that does not plan."""
    graph, trace = case.graph, case.trace
    host = (graph.lane >= 0) & ~graph.waits
    # What compiling runs on the GPU goes with it: candidates of a kernel, tried one after another.
    compiling = _compiling(case)
    loads = trace.rows_named(trace.calls.name, LOADING.search)
    compiling |= case.nodes_in_calls(loads) & host & (graph.duration_ns >= LONG_NS)
    planning, usual_ns = _planning(case, host & ~compiling)
    compiling = _in_steps(graph, compiling)
    planning = _in_steps(graph, planning)
    if not (compiling | planning).any():
        yield from _per_length(case)
        return
    lost_ms = case.per_step(float(graph.duration_ns[(compiling | planning) & host].sum())) / 1e6
    names = trace.ops.name[np.unique(graph.scope[planning])]
    by_name = sorted({trace.strings[i] for i in np.unique(names).tolist()})
    cudnn = any(CUDNN_ATTENTION.search(name) for name in by_name)

    first = np.zeros(len(graph), bool)
    if case.per_step(float(graph.duration_ns[compiling & host].sum())) >= LONG_NS:
        first = _first_calls(case, host & ~compiling & ~planning, np.unique(graph.step[compiling]))

    def change_to(kernels: float, stays: float) -> Change:
        attention = np.append(case.category("attention"), False)[graph.gpu_row] & graph.on_gpu

        def change(graph: Graph) -> Graph:
            less = removed(graph, compiling)
            duration = np.where(planning, np.minimum(less.duration_ns, usual_ns), less.duration_ns)
            once = USUAL_NS + stays * (duration - USUAL_NS)
            less = less.with_durations(np.where(first, np.minimum(duration, once), duration))
            return scaled(less, attention, kernels) if kernels != 1.0 else less

        return change

    # Shapes that stay the same leave nothing to plan either; without them only another attention helps.
    instead = cudnn and not compiling.any()
    what = [f"{', '.join(by_name)} plan their kernels again"] if by_name else []
    if compiling.any():
        what.append("code is compiled or loaded")
    likely = change_to(1.0, 0.0)
    yield Proposal(
        title="no cuDNN attention (it plans again for every length)" if instead else "fixed shapes",
        evidence=spans(
            case, f"{' and '.join(what)} in most steps: {lost_ms:,.1f} ms of CPU time a step", compiling | planning
        ),
        fix=_fix(case, cudnn, bool(compiling.any())),
        change=likely,
        best=likely,
        worst=change_to(OTHER_KERNEL if instead else 1.0, STAYS),
    )


def _per_length(case: Analysis) -> Iterator[Proposal]:
    """Timed steps with new shapes are longer than those with shapes seen before, whatever was recorded."""
    budget = case.budget
    found = next((one for one in budget.excess if one.cause == "new_shapes"), None) if budget else None
    if budget is None or found is None or (found.mean_ns or 0) < LEAST * budget.mean_ns:
        return
    cudnn = bool(case.ops_named(CUDNN_ATTENTION.search).any())
    text = (
        f"{found.steps} of {budget.steps} timed steps meet new shapes and take "
        f"{(found.mean_ns or 0) * budget.steps / max(found.steps, 1) / 1e6:,.0f} ms more than steps with known ones"
    )
    ahead = next((one.ahead_ns for one in budget.once if one.cause == "new_shapes"), None)
    run = case.run
    if ahead is not None and run is not None and run.steps_total:
        text += (
            f"; they repeat, so it becomes rarer: about {ahead / 1e9:,.1f} s in what is left of {run.steps_total:,} "
            "steps"
        )
    yield Proposal(
        title=f"lengths padded to a multiple of {MULTIPLE}" if case.trains_on_tokens else "fewer different shapes",
        evidence=(Evidence(text),),
        fix=_fix(case, cudnn, compiling=False),
        change=lambda graph: graph,
        lumps={"new_shapes": LEFT},
        spread=PADDED,
    )


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Compiling or loading of code in the step that one side does without."""
    took = quantity(a, b, lambda side: side.counts.compiling_ns)
    if took.fell(least=LONG_NS):
        # Candidates of a kernel are launched and waited for in thousands, which would claim most of what it takes.
        waits = idle_ns(a, b, *COMPILING_CAUSES)
        weight = OWN if took.difference > MOSTLY * waits.difference else 1.0
        yield Candidate(
            PAGE.id,
            "compiling during the step",
            f"the CPU compiles or loads code for {took.ms} ms a step",
            claim_idle(*COMPILING_CAUSES, weight=weight),
            took.more,
        )


def compiling_ns(case: Analysis) -> float:
    """Host time of a step in which code is compiled, ns."""
    graph = case.graph
    host = (graph.lane >= 0) & ~graph.waits
    return case.per_step(float(graph.duration_ns[_in_steps(graph, _compiling(case) & host)].sum()))


def _compiling(case: Analysis) -> Mask:
    return case.nodes_within(case.ops_named(COMPILING.search))


def _planning(case: Analysis, host: Mask) -> tuple[Mask, float]:
    """Host segments in which an op plans, and what such an op usually takes."""
    graph, trace = case.graph, case.trace
    in_op = host & (graph.call < 0) & np.append(_launching(case), False)[graph.scope]
    rows = np.flatnonzero(in_op & (graph.duration_ns >= LONG_NS))
    found = np.zeros(len(graph), bool)
    usual = []
    name_of = np.append(trace.ops.name, -1)[graph.scope]
    for name in np.unique(name_of[rows]).tolist():
        mine = in_op & (name_of == name)
        others = graph.duration_ns[mine & (graph.duration_ns < LONG_NS)]
        median = float(np.median(others)) if len(others) else USUAL_NS
        hit = rows[name_of[rows] == name]
        hit = hit[graph.duration_ns[hit] >= TIMES * median]
        found[hit] = True
        usual += [median] * len(hit)
    return found, float(np.median(usual)) if usual else USUAL_NS


def _first_calls(case: Analysis, host: Mask, steps: np.ndarray) -> Mask:
    """Pieces of the host's own work that are long because all is new to the steps that compile: in torch's ops that
    launch something, and in what runs generated code. Work that only the processor does is as long every time."""
    graph = case.graph
    inside = np.append(_launching(case) | case.ops_named(MACHINERY.search), False)[graph.scope]
    return host & (graph.call < 0) & inside & np.isin(graph.step, steps) & (graph.duration_ns >= FIRST_NS)


def _launching(case: Analysis) -> Mask:
    """torch's own ops that launch work of the GPU themselves."""
    ops = case.trace.ops
    launches = np.zeros(len(ops), bool)
    rows = case.timeline.links.op
    launches[rows[rows >= 0]] = True
    return launches & (ops.kind == OP) & case.ops_named(lambda name: name.startswith("aten::"))


def _in_steps(graph: Graph, nodes: Mask) -> Mask:
    """The nodes, if there are some in enough of the steps."""
    steps = len(np.unique(graph.step[nodes]))
    return nodes if graph.steps > 1 and steps >= SHARE * graph.steps else np.zeros(len(graph), bool)


def _fix(case: Analysis, cudnn: bool, compiling: bool) -> str:
    if not case.trains_on_tokens:
        fixed = "batches of few different shapes: resize, crop or bucket the samples, drop_last=True"
        return f"{fixed}\nor model.compile(dynamic=True)" if compiling else fixed
    fixed = case.stack.fix(
        f"pad each batch to a multiple of {MULTIPLE}, so that there are few lengths",
        transformers=f"DataCollatorForLanguageModeling(tokenizer, mlm=False, pad_to_multiple_of={MULTIPLE})"
        if case.stack.is_causal
        else f"a data collator with padding=True, pad_to_multiple_of={MULTIPLE}",
        trl=case.stack.setting({"pad_to_multiple_of": MULTIPLE}),
    )
    if compiling:
        vary = "model.compile(dynamic=True), torch._dynamo.mark_dynamic(tensor, 1)"
        other = "torch.backends.cuda.enable_cudnn_sdp(False)"
        return f"{fixed}\nor let the length vary: {vary}" + (
            f"\nwith {other}  # cuDNN plans per length" if cudnn else ""
        )
    if cudnn:
        return f"torch.backends.cuda.enable_cudnn_sdp(False)  # flash attention does not plan\nor {fixed}"
    return fixed
