"""Numbers for logging are computed from large tensors in each step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.losses.gradient_statistics import (
    FEWEST_TENSORS,
    OPS_TO_CLIP,
    find_gradient_statistics,
)
from gpuprof.diagnosis.detect.losses.logged_values import LOG_EVERY, LoggedValues, find_logged
from gpuprof.diagnosis.detect.losses.metric_packages import LEAST_METRICS_SHARE, PACKAGES
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import removed, scaled, without_waits
from gpuprof.units import Assumed, Convention, Entries, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_GPU_SHARE: Assumed[Share] = 0.02
"""Smallest share of the GPU's time in such work for a proposal."""
LEAST_CPU_SHARE: Assumed[Share] = 0.05
"""Smallest share of the step that the CPU spends in such work for a proposal, if the GPU spends less."""
CPU_LEFT: Assumed[Share] = 0.4
"""Share of the CPU time that remains at worst: the same is still computed in each step, but in ops on lists or whole
tensors and with one copy to the CPU."""
NAMES_SHOWN: Convention[Entries] = 3

PAGE = Page(
    id="step_metrics",
    title="Numbers for logging are computed in each step",
    means=f"""
Accuracy, entropy, top-k or calibration over all logits of a batch pass several times over the largest tensors of the
step, and reading each value makes the CPU wait. No gradient needs them, and a log line every {LOG_EVERY} steps is as
useful.

Where the numbers are decoded or compared on the CPU (Viterbi's algorithm with one `.item()` for each token, an edit
distance, texts from tokens), the GPU waits for that in each step.

Norms, means or histograms of each gradient or weight (`grad_norm` of Lightning, `watch` of W&B) launch kernels for each
of hundreds of tensors, and read hundreds of values.
""",
    detected=f"""
Ops between passes for which the backward pass evaluates nothing (by autograd's numbers; with or without `no_grad`), in
a run that ends with a copy to the CPU and takes at least {percent(LEAST_GPU_SHARE)} % of the GPU's time, or
{percent(LEAST_CPU_SHARE)} % of the step on the CPU. A run has no matrix multiplications, convolutions or attention (a
teacher or reference model), no in-place ops on large tensors (moving averages), no ops on lists of tensors (optimizers,
norms of gradients) and no random numbers. It comes after the last op with gradients, except on single values (a scaled
loss), and no tensor is copied to the GPU before the backward pass; or it comes after the backward pass and before the
next batch is copied to the GPU. So the loss cannot contain it: rewards, matchers and weights of losses are computed
earlier, or return to the GPU. Not detected in front of the loss, in compiled code, and in recordings without autograd's
numbers.

What Python does after the run, up to the next pass, counts too if at least {percent(LEAST_METRICS_SHARE)} % of its
samples are in a package of metrics ({", ".join(f"`{one.rstrip('/')}`" for one in PACKAGES[:4])}, …).

Statistics of gradients: after a backward pass and before the next op with gradients, reductions of at least
{FEWEST_TENSORS} tensors of several shapes, one after the other, with what follows on their results. Not where the
tensors are scaled within the next {OPS_TO_CLIP} ops: that clips gradients.
""",
    gain=f"""
The ops, their launches, the Python between them and their waits are left in one step of {LOG_EVERY}. At worst
{percent(CPU_LEFT)} % of the CPU time is left, and the CPU still waits for values in each step.

If the GPU spends less than {percent(LEAST_GPU_SHARE)} % of its time there, and no package of metrics runs, a recording
does not show that only a log needs the values: a sampler or an environment may. Then it is listed under *Worth trying*.
So are statistics of gradients (probability {calibrated.STATISTICS_ODDS.value:g} that only a log needs them, assumed).
""",
    wrong="""
If what is read decides what the program does next (early stopping, a skipped step), it is needed in each step. A mean
over all steps becomes a mean over those that are logged. A loss that is multiplied by a Python number that was computed
from the values contains them, and no op shows that.
""",
    applies=("training",),
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to compute the same numbers in one of every LOG_EVERY steps."""
    yield from _of_outputs(case)
    yield from _of_gradients(case)


def _of_outputs(case: Analysis) -> Iterator[Proposal]:
    """Proposes to compute metrics of the model's outputs less often."""
    found = find_logged(case)
    if found is None:
        return
    graph = case.graph
    work = found.nodes & graph.on_gpu
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (work, graph.on_gpu))
    python = case.per_step(float((graph.duration_ns * found.computing).sum()))
    cpu = case.per_step(float(graph.duration_ns[found.nodes & ~graph.on_gpu].sum())) + python
    on_gpu, in_package = took >= LEAST_GPU_SHARE * whole, python >= LEAST_CPU_SHARE * case.step_ns
    if not on_gpu and cpu < LEAST_CPU_SHARE * case.step_ns:
        return
    shape = " × ".join(f"{side:,}" for side in found.largest)
    text = (
        f"{', '.join(found.names[:NAMES_SHOWN])}{f' of tensors up to {shape}' if shape else ''}, which no gradient"
        f" needs: {duration(case.per_step(took))} of GPU time and {duration(cpu)} of CPU time {case.unit.a} for"
        f" {found.reads / case.steps:,.3g} values that the CPU reads"
    )
    if in_package:
        text += f"; {duration(python)} of it in a package of metrics, according to samples"
    sure = on_gpu or in_package
    rarely = partial(_rarely, found=found)
    yield Proposal(
        title=f"metrics every {LOG_EVERY} steps",
        evidence=spans(case, text, found.nodes | (found.computing > 0)),
        fix=code(f"if step % {LOG_EVERY} == 0:\n    log(metrics(logits.detach(), labels))")
        + "  # computed, not only read, in these steps",
        change=rarely,
        best=rarely,
        worst=partial(_in_each_step, found=found),
        odds=1.0 if sure else calibrated.STATISTICS_ODDS.value,
        needs="" if sure else "nothing but a log uses these numbers",
        claims=("values_read",),
    )


def _of_gradients(case: Analysis) -> Iterator[Proposal]:
    """Proposes to compute norms and other statistics of gradients less often."""
    found = find_gradient_statistics(case)
    if found is None:
        return
    graph = case.graph
    cpu = found.nodes & ~graph.on_gpu
    took = case.per_step(float(graph.duration_ns[cpu].sum()))
    gpu = case.per_step(float(graph.duration_ns[found.nodes & graph.on_gpu].sum()))
    text = (
        f"{', '.join(found.names[:NAMES_SHOWN])} of {found.tensors / case.steps:,.0f} tensors one after the other,"
        f" after the backward pass: {duration(took)} of CPU time and {duration(gpu)} of the GPU's {case.unit.a}, and"
        f" {found.reads / case.steps:,.3g} values that the CPU reads"
    )
    yield Proposal(
        title=f"statistics of gradients every {LOG_EVERY} steps",
        evidence=spans(case, text, found.nodes),
        fix=code(f"if step % {LOG_EVERY} == 0:\n    log(norms(model))")
        + "  # in each step: torch._foreach_norm(gradients), and one copy of all norms to the CPU",
        change=partial(_rarely, found=found),
        worst=lambda graph: scaled(graph, cpu, CPU_LEFT),
        odds=calibrated.STATISTICS_ODDS.value,
        needs="nothing but a log uses these numbers",
        key="gradients",
    )


def _rarely(graph: Graph, found: LoggedValues) -> Graph:
    """Ops, launches, Python and waits in one step of LOG_EVERY."""
    now = graph.duration_ns
    left = removed(without_waits(graph, found.waits), found.nodes)
    less = _less_python(left, found)
    return less.with_durations(np.where(found.nodes, now / LOG_EVERY, less.duration_ns))


def _in_each_step(graph: Graph, found: LoggedValues) -> Graph:
    """The GPU's work in one step of LOG_EVERY, less of the CPU's, and all waits for values."""
    left = np.where(graph.on_gpu, 1 / LOG_EVERY, CPU_LEFT)
    return _less_python(scaled(graph, found.nodes, left), found)


def _less_python(graph: Graph, found: LoggedValues) -> Graph:
    """A package's Python in one step of LOG_EVERY."""
    if not found.computing.any():
        return graph
    return scaled(graph, found.computing > 0, 1 - found.computing * (1 - 1 / LOG_EVERY))


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "metrics in each step",
        "no gradient needs them, they are only read for a log",
        stage="discarded",
    ),
    lowers=("waiting_for_gpu",),
    same_ops=True,
    synonyms=("metrics_each_step", "logged_metrics", "token_accuracy", "grad_norm", "gradient_norms"),
    titles=("metrics_every_steps", "statistics_of_gradients_every_steps"),
)
