"""Long stretches of Python on the training thread, in no op and no call, while the GPU waits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import slow as calibrated
from gpuprof.calibration.quoted import percent, us
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.cpu.long_python import LEAST_OWN_WORK_NS, LEAST_STRETCH_SHARE, in_engine, long_stretches
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerParts
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart, part_of
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.losses.logged_values import find_logged
from gpuprof.diagnosis.detect.repeated.copied_tables import find_copied_tables
from gpuprof.diagnosis.result.fix import as_fix
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Convention, Entries, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

ONE_STRETCH_BELOW: Convention[Ratio] = 1.5
"""Fewer stretches per step on average are written as one."""
LEAST_PYTHON_SHARE: Assumed[Share] = 0.05
"""Smallest share of the step in such stretches for a proposal."""
MANY_PYTHON_SHARE: Assumed[Share] = 0.1
"""The same for stretches of any share of the step: those of a trainer's own Python code take up to 6 % together."""
SHORT_PYTHON_SHARE: Assumed[Share] = 0.15
"""The same for many short stretches: those between the ops of a model take up to a tenth of a step, in a few dozens."""
FEWEST_SHORT_STRETCHES: Assumed[Entries] = 40
"""Fewest short stretches in a step: even a small model has more modules and parameters."""
HOOKS_SHARE: Assumed[Share] = 0.08
"""Smallest share of the step in Python around nodes of the backward pass for a proposal: with less, the hooks of a loss
that is computed in parts are all there are."""
FEWEST_HOOKS: Assumed[Entries] = 8
"""Fewest of these in a step."""
HOOKS = "hooks"
"""Key of the proposal for Python around the nodes of a backward pass."""
PAGE = Page(
    id="slow_python",
    title="Python code holds up the work of a step",
    means="""
Python takes a few microseconds between two ops. Where the thread that launches the model's kernels stays in Python
for milliseconds and the GPU waits, the program runs code of its own there: metrics in NumPy, a walk over all modules
or parameters, a plot, a line of JSON, a string for a progress bar. Most of it is needed less often than in every
step, or can be done elsewhere: every hundredth step, in a thread or a worker, once before the training, or by ops
over whole tensors on the GPU.

Work that is small and repeated adds up in the same way: a hook that goes over all parameters, and is called once for
each of them, or bookkeeping around every module. Hooks of gradients run in autograd's engine, between the nodes of the
backward pass.
""",
    detected=f"""
Stretches of Python outside ops and CUDA calls, of at least 1 ms and {percent(LEAST_STRETCH_SHARE)} % of the step each,
in every recorded step, which together take {percent(LEAST_PYTHON_SHARE)} % of it and keep the GPU waiting; or of at
least 1 ms each that together take {percent(MANY_PYTHON_SHARE)} %; or {FEWEST_SHORT_STRETCHES} or more of at least
{us(LEAST_OWN_WORK_NS)} µs that together take {percent(SHORT_PYTHON_SHARE)} %. Hooks: what autograd's engine does
around a node, outside of the ops in it, for at least {us(LEAST_OWN_WORK_NS)} µs each, {FEWEST_HOOKS} times a step, and
{percent(HOOKS_SHARE)} % of the step together. Not in an optimizer: that, loading data,
preparing samples, collecting garbage, computing on CPU tensors and packages of metrics after a pass are separate
findings. Not in reward functions or an
environment, which each iteration needs. The function named is the one sampled there, the line the one with the most
samples.
""",
    gain=f"""
The step is replayed with {percent(calibrated.FUNCTION_LEFT.value)} % of the stretches left
({percent(calibrated.FUNCTION_LEFT.low)} to {percent(calibrated.FUNCTION_LEFT.high)} %, assumed).
""",
    wrong=f"""
A recording does not show whether the work is needed in each step: the probability that it can go elsewhere is
{percent(calibrated.FUNCTION_ODDS.value)} % (assumed), so this is listed under *Worth trying*. Python that only launches
ops does not count: `torch.compile` and CUDA graphs remove it.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to do long stretches of Python, and many short ones, elsewhere or less often."""
    yield from _hooks(case)
    graph, nodes = case.graph, _stretches(case)
    if nodes is None or len(np.unique(graph.step[nodes])) < graph.steps:
        return
    took = case.per_step(float(graph.duration_ns[nodes].sum()))
    count = case.per_step(float(nodes.sum()))
    times = "a stretch" if count < ONE_STRETCH_BELOW else f"{count:,.0f} stretches"
    text = (
        f"{times} of Python {case.unit.a} in no op and no call: {duration(took)} on the thread that launches the work"
    )
    best, usual, worst = (partial(scaled, nodes=nodes, factor=left) for left in calibrated.FUNCTION_LEFT.rising)
    yield Proposal(
        title=f"less Python in the {case.unit}",
        evidence=spans(case, text, nodes),
        fix=as_fix(
            f"what these lines do every hundredth {case.unit}, once before the training, in a worker or a thread,\n"
            "or with ops over whole tensors"
        ),
        change=usual,
        best=best,
        worst=worst,
        odds=calibrated.FUNCTION_ODDS.value,
        needs=f"what it does is not needed in every {case.unit}, or can be done elsewhere",
    )


def _hooks(case: Analysis) -> Iterator[Proposal]:
    """Proposes to do what hooks of gradients do once for each backward pass."""
    graph, nodes = case.graph, in_engine(case)
    count, took = (case.per_step(float(value)) for value in (nodes.sum(), graph.duration_ns[nodes].sum()))
    if count < FEWEST_HOOKS or took < HOOKS_SHARE * case.step_ns:
        return
    text = (
        f"{count:,.0f} times {case.unit.a} autograd's engine runs Python around a node, in none of its ops:"
        f" {duration(took)}"
    )
    best, usual, worst = (partial(scaled, nodes=nodes, factor=left) for left in calibrated.FUNCTION_LEFT.rising)
    yield Proposal(
        title="less Python for each gradient",
        evidence=spans(case, text, nodes),
        fix=as_fix(
            "what a hook computes of all parameters once for each backward pass, not in each call;\n"
            "gradients in one loop over lists after backward(), or no wrapper that the model does not need"
        ),
        change=usual,
        best=best,
        worst=worst,
        odds=calibrated.FUNCTION_ODDS.value,
        needs="what the hooks do is the same for all gradients, or can be done after the backward pass",
        key=HOOKS,
    )


def _stretches(case: Analysis) -> Mask | None:
    """A few long stretches, or many of a millisecond or more, or very many short ones; None if they take too little of
    the step."""
    tables, logged = find_copied_tables(case), find_logged(case)
    for least, shortest_ns, together, fewest in (
        (LEAST_STRETCH_SHARE, None, LEAST_PYTHON_SHARE, 1),
        (0.0, None, MANY_PYTHON_SHARE, 1),
        (0.0, float(LEAST_OWN_WORK_NS), SHORT_PYTHON_SHARE, FEWEST_SHORT_STRETCHES),
    ):
        nodes = long_stretches(case, least, shortest_ns)
        if tables is not None:
            nodes &= ~tables.nodes
        if logged is not None:
            nodes &= logged.computing == 0
        took = case.per_step(float(case.graph.duration_ns[nodes].sum()))
        if took >= together * case.step_ns and case.per_step(float(nodes.sum())) >= fewest:
            return nodes
    return None


def ledger_parts(case: Analysis) -> Iterator[LedgerPart]:
    """Hooks of gradients; stretches on the training thread are an item of the ledger's own."""
    for one in case.proposals(find):
        if one.key == HOOKS:
            why = "hooks run once for each gradient, and the next node waits for them"
            yield part_of(case.graph, one.change, "Python around the nodes of the backward pass", why)


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerParts(ledger_parts, stage="stalled"),
    lowers=("long_python",),
    synonyms=("python_function", "hooks", "gradient_hooks", "metrics", "callbacks", "progress_bar"),
    titles=("less_python_in_the_step", "less_python_for_each_gradient"),
)
