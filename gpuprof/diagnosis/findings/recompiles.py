"""Code is generated or loaded in the middle of the training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import shapes as calibrated
from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.calibration.quoted import ms, percent
from gpuprof.diagnosis.detect.compiled.compiled_after_all import calls_of, compiled_after_all
from gpuprof.diagnosis.detect.compiled.compiled_regions import functions_given_up
from gpuprof.diagnosis.detect.compiled.compiling import in_most_steps
from gpuprof.diagnosis.detect.compiled.dynamo_reasons import IN_A_TENSOR, guard_kind, guards_of
from gpuprof.diagnosis.detect.compiled.shape_costs import (
    CUDNN_ATTENTION,
    WITHOUT_CUDNN,
    compiled_or_loaded,
    few_shapes,
    new_shapes_excess,
    of_timed,
    spread,
)
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.pair.candidates import OWN_WEIGHT, Candidate, claim_idle
from gpuprof.diagnosis.detect.pair.quantities import idle_ns, quantity
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import Code, Fix, as_fix, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import removed
from gpuprof.replay.unprofiled.planning import planning
from gpuprof.tracefile.run_folder.compiler import CompiledFunction
from gpuprof.tracefile.trace import OP, Mask
from gpuprof.units import Assumed, Convention, Entries, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts

MACHINERY = re.compile(r"^(dynamo$|CompiledFunction|Torch-Compiled Region|## Call CompiledFxGraph)")
"""Ranges around generated code as it runs, including what it sets up the first time."""
MOST_SHOWN: Convention[Entries] = 3
"""Failed guards that are named."""
COMPILING_CAUSES = ("slow_call", "launch", "python", "sync")
"""Causes of idle time while the CPU compiles."""
COMPILING_EXPLAINS: Assumed[Share] = 0.5
"""If compiling explains more than this share of the difference in such waits, all of it counts as compiling."""

PAGE = Page(
    id="recompiles",
    title="New shapes are compiled during training",
    means="""
`torch.compile` and Triton compile code for the shapes that they see, and cache it. When batch lengths vary, many
steps meet new shapes, and nothing is launched while their code is compiled. (Libraries that only plan their kernels
again: see [planning](planning.md).) Dynamo also guards on values: a step counter or a schedule that is read as a
Python number in the forward pass makes Dynamo compile the function again each time it changes, until it reaches its
limit (`recompile_limit`, 8), logs one warning and runs the function as plain Python from then on.
""",
    detected="""
In at least half of the recorded steps: ranges in which Dynamo or Inductor compile, or driver calls that load code. Or:
Dynamo notes that a function reached its limit of recompilations, and the recorded steps run little compiled code; the
guards that failed are named with their lines.
""",
    gain=f"""
Compiling, loading and the candidates tried on the GPU are removed, and an op that planned takes its usual time. In
steps that compile, so does every op that launches something or runs generated code and takes the CPU over
{ms(thresholds_calibrated.FIRST_CALL_NS.value)} ms; at worst {percent(calibrated.STAYS.value)} % of that stays. For a
function that Dynamo gave up on, the gain is that of compiling it (see `compile`).
""",
    wrong="""
Once all lengths have been seen there is nothing left to compile: a long training with few lengths recovers by itself.
Padding to a multiple adds some tokens.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes guards that hold, or fixed shapes."""
    yield from _given_up(case)
    graph = case.graph
    host = (graph.lane >= 0) & ~graph.waits
    compiling = compiled_or_loaded(case)
    if not compiling.any():
        return
    planned = planning(graph)
    new_shapes = new_shapes_excess(case)
    plans = planned.nodes if new_shapes else in_most_steps(graph, planned.nodes)
    recorded = case.per_step(float(graph.duration_ns[plans].sum())) if plans.any() else 0.0
    compiling_ns = case.per_step(float(graph.duration_ns[compiling & host].sum()))
    lost_ns = compiling_ns + recorded
    by_name = planned.names if plans.any() else []
    first = np.zeros(len(graph), bool)
    if compiling_ns >= thresholds_calibrated.PLANNING_NS.value:
        first = _first_calls(case, host & ~compiling & ~plans, np.unique(graph.step[compiling]))

    def change_to(stays: float) -> Change:
        planning_at, first_at = np.flatnonzero(plans), np.flatnonzero(first)

        def change(graph: Graph) -> Graph:
            less = removed(graph, compiling)
            duration = less.duration_ns.copy()
            duration[planning_at] = np.minimum(duration[planning_at], planned.usual_ns[planning_at])
            once = calibrated.USUAL_NS.value + stays * (duration[first_at] - calibrated.USUAL_NS.value)
            duration[first_at] = np.minimum(duration[first_at], once)
            return less if np.array_equal(duration, less.duration_ns) else less.with_durations(duration)

        return change

    what = [f"{', '.join(by_name)} plan their kernels again"] if by_name else []
    what.append("code is compiled or loaded")
    likely = change_to(0.0)
    yield Proposal(
        title="fixed shapes",
        evidence=spans(
            case,
            f"{' and '.join(what)} in most {case.unit}s: {duration(lost_ns)} of CPU time {case.unit.a}",
            compiling | plans,
        )
        + of_timed(case)
        + _failed_guards(case.run.compiler.functions if case.run and case.run.compiler else ()),
        fix=_fix(case, any(CUDNN_ATTENTION.search(name) for name in by_name)),
        change=likely,
        best=likely,
        worst=change_to(calibrated.STAYS.value),
        lumps={"new_shapes": calibrated.NEW_SHAPES_LEFT.value} if new_shapes else {},
        spread=spread(case) if new_shapes else 1.0,
        claims=("compiled_code",),
    )


def _fix(case: Analysis, cudnn: bool) -> Fix:
    """The fix: few shapes, or code for any shape; where cuDNN's attention plans, also another attention that does
    not."""
    few, dynamic = few_shapes(case), call("model.compile", dynamic=True).otherwise()
    if not case.trains_on_tokens:
        return few + "\nor " + dynamic
    marked = call("torch._dynamo.mark_dynamic", Code("tensor"), 1).otherwise()
    vary = few + "\nor let the length vary: " + dynamic + ", " + marked
    return vary + "\nand " + WITHOUT_CUDNN.otherwise() + "  # cuDNN plans per length" if cudnn else vary


def _failed_guards(functions: tuple[CompiledFunction, ...]) -> tuple[Evidence, ...]:
    """Guards that had a function compiled again, those first that failed most often."""
    return tuple(
        Evidence(f"{one.place}: `{one.guard}` failed {one.count} times{f' ({kind.what})' if kind else ''}")
        for one in guards_of(functions)[:MOST_SHOWN]
        for kind in [guard_kind(one)]
    )


def _ways_out(functions: tuple[CompiledFunction, ...]) -> Fix:
    """What to do about the guards that failed most often."""
    kinds = [kind for one in guards_of(functions)[:MOST_SHOWN] if (kind := guard_kind(one))]
    ways = dict.fromkeys(f"{kind.what}: {kind.way}" for kind in kinds)
    return as_fix("keep what the guard compares from changing:\n" + ("\n".join(ways) or IN_A_TENSOR))


def _given_up(case: Analysis) -> Iterator[Proposal]:
    """Proposes guards that hold, if Dynamo reached its limit of recompilations and runs the model as plain Python."""
    functions = functions_given_up(case)
    if not functions:
        return
    first = Evidence(
        f"torch.compile gave up {functions[0].place} after {functions[0].versions} versions: where none of them fits, "
        "the model runs as plain Python"
    )
    fix = _ways_out(functions)
    evidence = (first, *_failed_guards(functions))
    yield from compiled_after_all(case, "a guard that holds", evidence, fix, "guard", calls_of(case, functions[0]))


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Compiling or loading of code in the step that one side does without."""
    took = quantity(a, b, lambda side: side.counts.compiling_ns)
    if took.fell(least=thresholds_calibrated.PLANNING_NS.value):
        # Candidates of a kernel are launched and waited for in thousands, which would claim most of what it takes.
        waits = idle_ns(a, b, *COMPILING_CAUSES)
        weight = OWN_WEIGHT if took.difference > COMPILING_EXPLAINS * waits.difference else 1.0
        yield Candidate(
            PAGE.id,
            f"compiling during the {a.unit}",
            f"the CPU compiles or loads code for {took.ms} ms {a.unit.a}",
            claim_idle(*COMPILING_CAUSES, weight=weight),
            took.more,
        )


def _first_calls(case: Analysis, host: Mask, steps: np.ndarray) -> Mask:
    """CPU work that is long only because everything is new to a step that compiles: in torch's ops that launch
    something, and in what runs generated code. Work that launches nothing takes the same time in every step."""
    graph = case.graph
    inside = np.append(_launching(case) | case.ops_named(MACHINERY.search), False)[graph.scope]
    return (
        host
        & (graph.call < 0)
        & inside
        & np.isin(graph.step, steps)
        & (graph.duration_ns >= thresholds_calibrated.FIRST_CALL_NS.value)
    )


def _launching(case: Analysis) -> Mask:
    """torch's own ops that launch work of the GPU themselves."""
    ops = case.trace.ops
    launches = np.zeros(len(ops), bool)
    rows = case.timeline.links.op
    launches[rows[rows >= 0]] = True
    return launches & (ops.kind == OP) & case.ops_named(lambda name: name.startswith("aten::"))


FINDING = Declaration(
    page=PAGE,
    find=find,
    change=change,
    lowers=("planning", "loading_code", "compiling", "launching"),
    synonyms=("recompilation", "dynamic_shapes", "recompile"),
    titles=(
        "fixed_shapes",
        "a_guard_that_holds",
        "a_guard_that_holds_and_cuda_graphs",
    ),
)
