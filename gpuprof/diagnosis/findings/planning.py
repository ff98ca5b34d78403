"""Libraries plan their kernels again in the middle of the training: each new length is new to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import shapes as shapes_calibrated
from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.calibration.quoted import more, ms, percent
from gpuprof.diagnosis.detect.compiled.compiling import LENGTH_MULTIPLE, in_most_steps
from gpuprof.diagnosis.detect.compiled.shape_costs import (
    CUDNN_ATTENTION,
    LEAST_COST_SHARE,
    WITHOUT_CUDNN,
    compiled_or_loaded,
    few_shapes,
    new_shapes_excess,
    of_timed,
    spread,
)
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.result.fix import Fix
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import scaled
from gpuprof.replay.unprofiled.planning import planning

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

PAGE = Page(
    id="planning",
    title="Kernels are planned for new shapes during training",
    means="""
cuDNN and cuBLAS choose an algorithm when they first see a shape, and cache the choice. When batch lengths vary, many
steps meet new shapes: cuDNN attention alone plans for 50 ms per shape in the forward pass and again in the backward
pass, and nothing is launched meanwhile. (If code is compiled as well, see [recompiles](recompiles.md).)
""",
    detected=f"""
In at least half of the recorded steps: an op that launches GPU work is silent for over
{ms(thresholds_calibrated.PLANNING_NS.value)} ms (no call, no op within it), the first time that its shapes occur on its
thread, while ops of its name usually take less than a tenth of that; and no code is compiled. Or, over all steps that a
run timed: steps with new lengths take at least 15 % longer than steps with lengths seen before, and this adds 5 % to
the mean step.
""",
    gain=f"""
An op that planned takes its usual time. With another attention backend the attention kernels take at worst
{shapes_calibrated.OTHER_KERNEL.value:g} times as long. If only the timed steps show it,
{percent(shapes_calibrated.NEW_SHAPES_LEFT.value)} % of what new lengths cost is left, and padding makes the step up to
{more(shapes_calibrated.PADDED.value)} % longer (assumed).
""",
    wrong="""
Once all lengths have been seen there is nothing left to plan: a long training with few lengths recovers by itself.
Padding to a multiple adds some tokens.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes an attention backend that does not plan, or few shapes."""
    if compiled_or_loaded(case).any():
        return  # shapes are to be fixed for that, too
    graph, new_shapes = case.graph, new_shapes_excess(case)
    planned = planning(graph)
    plans = planned.nodes if new_shapes else in_most_steps(graph, planned.nodes)
    if not plans.any():
        yield from _per_length(case)
        return
    cudnn = any(CUDNN_ATTENTION.search(name) for name in planned.names)
    at = np.flatnonzero(plans)

    def change_to(kernels: float) -> Change:
        attention = np.append(case.category("attention"), False)[graph.gpu_row] & graph.on_gpu

        def change(graph: Graph) -> Graph:
            duration = graph.duration_ns.copy()
            duration[at] = np.minimum(duration[at], planned.usual_ns[at])
            less = graph if np.array_equal(duration, graph.duration_ns) else graph.with_durations(duration)
            return scaled(less, attention, kernels) if kernels != 1.0 else less

        return change

    likely = change_to(1.0)
    lost_ns = case.per_step(float(np.maximum(graph.duration_ns, planned.recorded_ns)[plans].sum()))
    said = f"{', '.join(planned.names)} plan their kernels again in most {case.unit}s"
    yield Proposal(
        title="no cuDNN attention (it plans again for every length)" if cudnn else "fewer different shapes",
        evidence=spans(case, f"{said}: {duration(lost_ns)} of CPU time {case.unit.a}", plans) + of_timed(case),
        fix=_fix(case, cudnn),
        change=likely,
        best=likely,
        worst=change_to(shapes_calibrated.OTHER_KERNEL.value if cudnn else 1.0),
        lumps={"new_shapes": shapes_calibrated.NEW_SHAPES_LEFT.value} if new_shapes else {},
        spread=spread(case) if new_shapes else 1.0,
    )


def _per_length(case: Analysis) -> Iterator[Proposal]:
    """Proposes few shapes if timed steps with new shapes take longer than those with shapes seen before, whatever was
    recorded."""
    if not new_shapes_excess(case):
        return
    cudnn = bool(case.ops_named(CUDNN_ATTENTION.search).any())
    yield Proposal(
        title=f"lengths padded to a multiple of {LENGTH_MULTIPLE}"
        if case.trains_on_tokens
        else "fewer different shapes",
        evidence=of_timed(case),
        fix=_fix(case, cudnn),
        change=lambda graph: graph,
        lumps={"new_shapes": shapes_calibrated.NEW_SHAPES_LEFT.value},
        spread=spread(case),
    )


def _fix(case: Analysis, cudnn: bool) -> Fix:
    """The fix: few shapes, or where cuDNN's attention plans, another attention that does not."""
    few = few_shapes(case)
    if not cudnn or not case.trains_on_tokens:
        return few
    return WITHOUT_CUDNN.by(PAGE.id) + "  # flash attention does not plan\nor " + few.otherwise()


def _absent(case: Analysis) -> str | None:
    """Why planning in the only recorded step, or in less than half of them, is not reported: later steps may not
    plan."""
    graph = case.graph
    planned = planning(graph)
    often = len(np.unique(graph.step[planned.nodes]))
    lost = case.per_step(float(graph.duration_ns[planned.nodes].sum()))
    if lost < LEAST_COST_SHARE * case.step_ns or (graph.steps > 1 and in_most_steps(graph, planned.nodes).any()):
        return None
    unit = case.unit
    if graph.steps == 1:
        return (
            f"{', '.join(planned.names)} plan their kernels in the recorded {unit}, {duration(lost)} of CPU time; "
            f"only one {unit} was recorded: it may be the first with its shapes"
        )
    return (
        f"{', '.join(planned.names)} plan their kernels in {often} of {graph.steps} recorded {unit}s,"
        f" {duration(lost)} of"
        f" CPU time {unit.a}: less than half of them, so that it may stop once all shapes have come up"
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=Absent("fewer different shapes", _absent),
    lowers=("planning",),
    synonyms=("new_lengths", "new_shapes", "pad_to_multiple_of", "cudnn_attention"),
    titles=(
        "no_cudnn_attention_it_plans_again_for_every_length",
        "lengths_padded_to_a_multiple_of",
        "fewer_different_shapes",
    ),
)
