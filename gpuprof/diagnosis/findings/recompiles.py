"""Code is generated, or a kernel planned, in the middle of the training."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import shapes as calibrated
from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.diagnosis.detect.captured_graphs import graphed
from gpuprof.diagnosis.detect.compile_time import compile_ns
from gpuprof.diagnosis.detect.compiled_passes import Passes, compiled, shapes_vary, whole_passes
from gpuprof.diagnosis.detect.compiled_regions import is_given_up
from gpuprof.diagnosis.detect.compiling import MULTIPLE, compiling_nodes, in_most_steps
from gpuprof.diagnosis.detect.declaration import Declaration
from gpuprof.diagnosis.detect.evidence import spans
from gpuprof.diagnosis.detect.micro_batches import micro_batches
from gpuprof.diagnosis.detect.pair.candidates import OWN, Candidate, claim_idle
from gpuprof.diagnosis.detect.pair.quantities import idle_ns, quantity
from gpuprof.diagnosis.detect.proposal import WORTH, Page, Proposal
from gpuprof.diagnosis.diagnosis import Evidence
from gpuprof.diagnosis.fix import Code, Fix, as_fix, call, described
from gpuprof.projection.batch import model_phases
from gpuprof.replay.graph import Graph
from gpuprof.replay.planning import planning
from gpuprof.replay.transform import removed, scaled
from gpuprof.timeline.startup import LOADING
from gpuprof.tracefile.trace import OP, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts

LONG_NS = thresholds_calibrated.PLANNING_NS.value
"""What a call that loads code takes at least to count; launching takes microseconds."""
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
LEAST = 0.05
"""Share of the mean step that new shapes cost, from which on that is worth a fix."""
LEFT = calibrated.LEFT.value
"""Of the new shapes, those that are left when lengths are padded: each of the few lengths is new once."""
PADDED = calibrated.PADDED.value
"""Tokens with the padding, over those without."""
FEW_KNOWN = calibrated.FEW_KNOWN.value
"""The same where fewer than FEWEST_KNOWN steps without new shapes were timed in the free stretch."""
FEWEST_KNOWN = 3
MOST_SHOWN = 3
"""Failed guards that are named."""
COMPILING_CAUSES = ("slow_call", "launch", "python", "sync")
"""What the GPU waits for while the host compiles."""
MOSTLY = 0.5
"""Of the difference in such waits: where compiling explains more of it than this, all of it is treated as that."""

PAGE = Page(
    id="recompiles",
    title="New shapes are compiled or planned during the training",
    means="""
`torch.compile`, Triton, cuDNN and cuBLAS prepare a kernel for each shape that they see, and keep it. When batch
lengths vary, many steps meet new shapes: cuDNN attention alone plans for 50 ms for each, forward and backward, and
nothing is launched meanwhile. Dynamo also guards on values: a step counter or a schedule that is read as a Python
number in the forward pass has the function compiled again each time it changes, until Dynamo reaches its limit
(`recompile_limit`, 8) and runs the function as plain Python from then on, without a word in the log but one.
""",
    detected="""
In at least half of the recorded steps: ranges in which Dynamo or Inductor compile, driver calls that load code, or an
op that launches GPU work and is silent for over 3 ms, the first time that its shapes come up on its thread, where ops
of its name usually take less than a tenth of that. Or, over all steps that a run timed: steps with new
lengths take at least 15 % longer than steps with lengths seen before, and this adds 5 % to the mean step. Or: Dynamo
notes that a function reached its limit of recompilations, and the recorded steps run little compiled code; the guards
that failed are named with their lines.
""",
    gain="""
Compiling and loading are removed together with the candidates tried on the GPU, and an op that planned takes its
usual time. In steps that compile, so does every op that launches something or runs generated code and takes the CPU
over 0.2 ms; at worst half of that stays. With another attention backend the attention kernels take at worst 1.3 times
as long. If only the timed steps show it, a twentieth of what new lengths cost is left, and padding makes the step up
to 8 % longer (assumed). For a function that was given up the gain is that of compiling it (see `compile`).
""",
    wrong="""
Once all lengths have been seen there is nothing left to plan: a long training with few lengths recovers by itself.
Padding to a multiple adds some tokens.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """A guard that holds, fixed shapes, or a backend that does not plan."""
    yield from _given_up(case)
    graph, trace = case.graph, case.trace
    host = (graph.lane >= 0) & ~graph.waits
    # What compiling runs on the GPU goes with it: candidates of a kernel, tried one after another.
    compiling = compiling_nodes(case)
    loads = trace.rows_named(trace.calls.name, LOADING.search)
    compiling |= case.nodes_in_calls(loads) & host & (graph.duration_ns >= LONG_NS)
    planned = planning(case.graph)
    new_shapes = _new_shapes_excess(case)
    compiling = in_most_steps(graph, compiling)
    plans = planned.nodes if new_shapes else in_most_steps(graph, planned.nodes)
    if not (compiling | plans).any():
        yield from _per_length(case)
        return
    recorded = planned.own_ns / graph.steps if plans.any() else 0.0
    lost_ms = (case.per_step(float(graph.duration_ns[compiling & host].sum())) + recorded) / 1e6
    by_name = planned.names if plans.any() else []
    cudnn = any(CUDNN_ATTENTION.search(name) for name in by_name)

    first = np.zeros(len(graph), bool)
    if case.per_step(float(graph.duration_ns[compiling & host].sum())) >= LONG_NS:
        first = _first_calls(case, host & ~compiling & ~plans, np.unique(graph.step[compiling]))

    def change_to(kernels: float, stays: float) -> Change:
        attention = np.append(case.category("attention"), False)[graph.gpu_row] & graph.on_gpu
        planning_at, first_at = np.flatnonzero(plans), np.flatnonzero(first)
        compiles = bool(compiling.any())

        def change(graph: Graph) -> Graph:
            less = removed(graph, compiling) if compiles else graph
            duration = less.duration_ns.copy()
            duration[planning_at] = np.minimum(duration[planning_at], planned.usual_ns[planning_at])
            once = USUAL_NS + stays * (duration[first_at] - USUAL_NS)
            duration[first_at] = np.minimum(duration[first_at], once)
            if not np.array_equal(duration, less.duration_ns):
                less = less.with_durations(duration)
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
            case,
            f"{' and '.join(what)} in most {case.unit}s: {lost_ms:,.1f} ms of CPU time {case.unit.a}",
            compiling | plans,
        )
        + _of_timed(case),
        fix=_fix(case, cudnn, bool(compiling.any())),
        change=likely,
        best=likely,
        worst=change_to(OTHER_KERNEL if instead else 1.0, STAYS),
        lumps={"new_shapes": LEFT} if new_shapes else {},
        spread=_spread(case) if new_shapes else 1.0,
    )


def _given_up(case: Analysis) -> Iterator[Proposal]:
    """Guards that hold, where Dynamo reached its limit of recompilations and runs the model as plain Python."""
    functions = is_given_up(case)
    found = whole_passes(case) if functions else None
    if found is None:
        return
    guards = [guard for one in functions for guard in one.failed_guards]
    limit = functions[0].versions
    first = Evidence(
        f"torch.compile gave up {functions[0].place} after {limit} versions: where none of them fits, "
        "the model runs as plain Python"
    )
    failed = [
        Evidence(f"{one.place or 'a guard'}: `{one.guard}` failed {one.count} times" if str(one.place) else one.guard)
        for one in guards[:MOST_SHOWN]
    ]
    count = float(model_phases(case.graph)[case.graph.on_gpu].sum()) / case.graph.steps
    fix = as_fix(
        "keep what the guard compares from changing: hold the value in a tensor (register_buffer), pass it as a tensor,"
        " or mark it dynamic"
    )

    def proposal(title: str, fix: Fix, compile_to: Callable[[Passes, int], Change], key: str) -> Proposal:
        return Proposal(
            title=title,
            evidence=(first, *failed),
            fix=fix,
            change=compile_to(found, 1),
            best=compile_to(found, 0),
            worst=compile_to(found, 2),
            once_ns=compile_ns(count / max(micro_batches(case) or 1, 1), shapes_vary(case)),
            excludes=("compile", "cuda_graphs", "fused_elementwise"),
            launches=True,
            last=True,
            key=key,
        )

    yield proposal("a guard that holds, so that the model stays compiled", fix, compiled, "guard")
    if not shapes_vary(case) and WORTH * case.step_of(graphed(found, 1)(case.graph)) < case.step_of(
        compiled(found, 1)(case.graph)
    ):
        with_graphs = fix + "\nand then " + call("torch.compile", ..., mode="reduce-overhead")
        yield proposal("a guard that holds, and CUDA graphs", with_graphs, graphed, "guard_graphs")


def _new_shapes_excess(case: Analysis) -> float:
    """What new shapes add to the mean step, ns; 0 where that is not worth a fix or was not timed."""
    budget = case.budget
    found = next((one for one in budget.excess if one.cause == "new_shapes"), None) if budget else None
    if budget is None or found is None or (found.mean_ns or 0) < LEAST * budget.mean_ns:
        return 0.0
    return float(found.mean_ns or 0)


def _spread(case: Analysis) -> float:
    """How well the step without new shapes is known: of few such steps, badly."""
    budget = case.budget
    found = next((one for one in budget.excess if one.cause == "new_shapes"), None) if budget else None
    if budget is None or found is None:
        return PADDED
    return PADDED if budget.steps - found.steps >= FEWEST_KNOWN else FEW_KNOWN


def _per_length(case: Analysis) -> Iterator[Proposal]:
    """Timed steps with new shapes are longer than those with shapes seen before, whatever was recorded."""
    if not _new_shapes_excess(case):
        return
    cudnn = bool(case.ops_named(CUDNN_ATTENTION.search).any())
    yield Proposal(
        title=f"lengths padded to a multiple of {MULTIPLE}" if case.trains_on_tokens else "fewer different shapes",
        evidence=_of_timed(case),
        fix=_fix(case, cudnn, compiling=False),
        change=lambda graph: graph,
        lumps={"new_shapes": LEFT},
        spread=_spread(case),
    )


def _of_timed(case: Analysis) -> tuple[Evidence, ...]:
    """What the timed steps show of new shapes, and what they will cost the rest of the run."""
    budget, run = case.budget, case.run
    if budget is None or not _new_shapes_excess(case):
        return ()
    found = next(one for one in budget.excess if one.cause == "new_shapes")
    text = (
        f"{found.steps} of {budget.steps} timed {case.unit}s meet new shapes and take "
        f"{(found.mean_ns or 0) * budget.steps / max(found.steps, 1) / 1e6:,.0f} ms more than {case.unit}s with known"
        " ones"
    )
    ahead = next((one.ahead_ns for one in budget.once if one.cause == "new_shapes"), None)
    if ahead is not None and run is not None and run.steps_total:
        text += (
            f"; they repeat, so it becomes rarer: about {ahead / 1e9:,.1f} s in what is left of {run.steps_total:,} "
            f"{case.unit}s"
        )
    return (Evidence(text),)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Compiling or loading of code in the step that one side does without."""
    took = quantity(a, b, lambda side: side.counts.compiling_ns)
    if took.fell(least=LONG_NS):
        # Candidates of a kernel are launched and waited for in thousands, which would claim most of what it takes.
        waits = idle_ns(a, b, *COMPILING_CAUSES)
        weight = OWN if took.difference > MOSTLY * waits.difference else 1.0
        yield Candidate(
            PAGE.id,
            f"compiling during the {a.unit}",
            f"the CPU compiles or loads code for {took.ms} ms {a.unit.a}",
            claim_idle(*COMPILING_CAUSES, weight=weight),
            took.more,
        )


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


def _fix(case: Analysis, cudnn: bool, compiling: bool) -> Fix:
    if not case.trains_on_tokens:
        few = as_fix("batches of few different shapes: resize, crop or bucket the samples, drop_last=True")
        return few + "\nor " + call("model.compile", dynamic=True).otherwise() if compiling else few
    other = call("torch.backends.cuda.enable_cudnn_sdp", False)
    fixed = case.stack.fix(
        f"pad each batch to a multiple of {MULTIPLE}, so that there are few lengths",
        transformers=call("DataCollatorForLanguageModeling", Code("tokenizer"), mlm=False, pad_to_multiple_of=MULTIPLE)
        if case.stack.is_causal
        else described("a data collator with ", "collator", padding=True, pad_to_multiple_of=MULTIPLE),
        trl=case.stack.setting({"pad_to_multiple_of": MULTIPLE}),
    ).by("pad_to_multiple", MULTIPLE)
    if compiling:
        dynamic = call("model.compile", dynamic=True).otherwise()
        marked = call("torch._dynamo.mark_dynamic", Code("tensor"), 1).otherwise()
        vary = fixed + "\nor let the length vary: " + dynamic + ", " + marked
        return vary + "\nand " + other.otherwise() + "  # cuDNN plans per length" if cudnn else vary
    if cudnn:
        return other.by("recompiles") + "  # flash attention does not plan\nor " + fixed.otherwise()
    return fixed


FINDING = Declaration(
    page=PAGE,
    find=find,
    change=change,
    synonyms=("recompilation", "dynamic_shapes", "recompile", "pad_to_multiple_of"),
    titles=(
        "no_cudnn_attention_it_plans_again_for_every_length",
        "fixed_shapes",
        "lengths_padded_to_a_multiple_of",
        "fewer_different_shapes",
        "a_guard_that_holds_so_that_the_model_stays_compiled",
        "a_guard_that_holds_and_cuda_graphs",
    ),
)
