"""The cost of new shapes in the timed steps, and how to limit them, for compiled code and for planned kernels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuprof.calibration import shapes as calibrated
from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.diagnosis.detect.compiled.compiling import LENGTH_MULTIPLE, compiling_nodes, in_most_steps
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import Code, Fix, as_fix, call, described
from gpuprof.diagnosis.sentences import duration
from gpuprof.timeline.startup import LOADING
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Share, Steps

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

CUDNN_ATTENTION = re.compile(r"cudnn_attention")
LEAST_COST_SHARE: Assumed[Share] = 0.05
"""Smallest share of the mean step that new shapes must cost for a fix."""
FEWEST_OTHER_STEPS: Assumed[Steps] = 3


def compiled_or_loaded(case: Analysis) -> Mask:
    """Nodes that generate or load code, if most steps have some, including the kernel candidates that compiling tries
    on the GPU."""
    graph = case.graph
    host = (graph.lane >= 0) & ~graph.waits
    loads = case.trace.rows_named(case.trace.calls.name, LOADING.search)
    nodes = compiling_nodes(case) | (
        case.nodes_in_calls(loads) & host & (graph.duration_ns >= thresholds_calibrated.PLANNING_NS.value)
    )
    return in_most_steps(graph, nodes)


def new_shapes_excess(case: Analysis) -> float:
    """Time that new shapes add to the mean step, ns; 0 if that is not worth a fix or was not timed."""
    budget = case.budget
    found = next((one for one in budget.excess if one.cause == "new_shapes"), None) if budget else None
    if budget is None or found is None or (found.mean_ns or 0) < LEAST_COST_SHARE * budget.mean_ns:
        return 0.0
    return float(found.mean_ns or 0)


def spread(case: Analysis) -> float:
    """Uncertainty factor of the step without new shapes: larger if there are few such steps."""
    budget = case.budget
    found = next((one for one in budget.excess if one.cause == "new_shapes"), None) if budget else None
    if budget is None or found is None:
        return calibrated.PADDED.value
    return calibrated.PADDED.value if budget.steps - found.steps >= FEWEST_OTHER_STEPS else calibrated.FEW_KNOWN.value


def of_timed(case: Analysis) -> tuple[Evidence, ...]:
    """Evidence of new shapes in the timed steps, and their expected cost in the rest of the run."""
    budget, run = case.budget, case.run
    if budget is None or not new_shapes_excess(case):
        return ()
    found = next(one for one in budget.excess if one.cause == "new_shapes")
    text = (
        f"{found.steps} of {budget.steps} timed {case.unit}s meet new shapes and take "
        f"{duration((found.mean_ns or 0) * budget.steps / max(found.steps, 1))} more than {case.unit}s with known"
        " ones"
    )
    ahead = next((one.ahead_ns for one in budget.once if one.cause == "new_shapes"), None)
    if ahead is not None and run is not None and run.steps_total:
        text += (
            f"; shapes repeat, so this becomes rarer: about {ahead / 1e9:,.1f} s in the rest of {run.steps_total:,} "
            f"{case.unit}s"
        )
    return (Evidence(text),)


WITHOUT_CUDNN = call("torch.backends.cuda.enable_cudnn_sdp", False)
"""Attention by kernels that do not plan."""


def few_shapes(case: Analysis) -> Fix:
    """The fix that limits the number of shapes."""
    if not case.trains_on_tokens:
        return as_fix("batches of few different shapes: resize, crop or bucket the samples, drop_last=True")
    return case.stack.fix(
        f"pad each batch to a multiple of {LENGTH_MULTIPLE}, so that there are few lengths",
        transformers=call(
            "DataCollatorForLanguageModeling", Code("tokenizer"), mlm=False, pad_to_multiple_of=LENGTH_MULTIPLE
        )
        if case.stack.is_causal
        else described("a data collator with ", "collator", padding=True, pad_to_multiple_of=LENGTH_MULTIPLE),
        trl=case.stack.setting({"pad_to_multiple_of": LENGTH_MULTIPLE}),
    ).by("pad_to_multiple", LENGTH_MULTIPLE)
