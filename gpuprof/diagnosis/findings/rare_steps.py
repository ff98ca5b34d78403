"""Some steps take far longer than the others: they save, evaluate or log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import saving as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.batches.batch_scaling import best_factor
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.mean_step.budget_model import LONG_STEP, NAMES
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import Code, Fix, call, joined, other_way
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.timeline.phases import OTHER
from gpuprof.units import Assumed, Share, Steps

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.mean_step.budget_model import Budget, Excess

FEWEST_RECORDED_STEPS: Assumed[Steps] = 4
"""Fewest recorded steps in which a rare one is recognised; with fewer none is usual."""
EXPLAINED_SHARE: Assumed[Share] = 0.5
"""Smallest share of a long step's additional time that must be saving, evaluating or logging: its batch may also just
be longer."""

CAUSES = ("save", "evaluation", "logging", "periodic")
"""Causes of excess that can occur less often."""
LEAST_COST_SHARE: Assumed[Share] = 0.02
"""Smallest share of the mean step in these causes for a fix."""

PAGE = Page(
    id="rare_steps",
    applies=("training",),
    title="Saving, evaluating or logging delays the training",
    means="""
Every N steps the training writes a checkpoint, evaluates or logs. The GPU does no training in that time, and if it
happens often, it can cost more than any slow kernel.
""",
    detected=f"""
In a run, what saving, evaluating and logging add to the mean step is measured in each timed step; it counts if it is at
least {percent(LEAST_COST_SHARE)} %. If the steps timed free-running contain fewer than three of them, all unprofiled
steps of the run (also those while functions are sampled, and those after) say how often they come and what they cost,
if they come at equal intervals. In runs that did not measure this: at least three steps of at least 1.5 times the
median, at equal intervals, that did not wait for their batch. Without a run: one such step among at least four recorded
ones, if at least half of its additional time is CPU work outside all phases of a step. Evaluation in larger batches:
what it adds was measured, and a training step takes hardly longer for more samples (see `larger_batch`); evaluation,
which has no backward pass, is assumed to do the same.
""",
    gain=f"""
In a run, {percent(calibrated.RARER.value)} % of what these add to the mean step is left: they are done a tenth as
often. Without a run all steps take the median, which is compared with the mean. Evaluation in batches of 8 times the
samples takes an eighth of the time; its batches were not recorded, so the probability is
{percent(calibrated.EVALUATED_AT_ONCE.value)} % (assumed).
""",
    wrong="""
If a short recording happens to contain a rare step, it makes that step look frequent: compare with how often the
training saves. Events that come fewer than three times in a run's unprofiled steps are not seen, unless a trainer's
settings say how often they come.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to save, evaluate and log less often, if unprofiled or recorded steps show what it costs."""
    graph = case.graph
    if case.budget is not None and case.budget.source == "free":
        yield from _timed(case, case.budget)
        return
    if graph.steps < FEWEST_RECORDED_STEPS:
        return
    each = case.schedule.each_ns
    median, mean = float(np.median(each)), float(each.mean())
    long = each > LONG_STEP * median
    if not long.any() or median <= 0:
        return
    other = (graph.phase == OTHER) & (graph.lane >= 0) & ~graph.waits
    in_step = np.bincount(graph.step[other], weights=graph.duration_ns[other], minlength=graph.steps)
    extra = in_step - np.median(in_step)
    long &= extra >= EXPLAINED_SHARE * (each - median)
    if not long.any():
        return
    mean = float(np.where(long | (each <= LONG_STEP * median), each, median).mean())
    lost = float((each - median)[long].sum())
    text = (
        f"{int(long.sum())} of {graph.steps} recorded steps take {duration(lost / long.sum())} more than the usual "
        f"{duration(median)}, for work outside forward, backward and optimizer"
    )
    yield _proposal(case, spans(case, text, other & long[graph.step]), mean / median)


def _timed(case: Analysis, budget: Budget) -> Iterator[Proposal]:
    """Proposals from the budget of timed steps: what saving, evaluating and logging add to the mean step."""
    found = [
        one for one in budget.excess if one.cause in CAUSES and (one.mean_ns or 0) >= LEAST_COST_SHARE * budget.mean_ns
    ]
    if not found:
        return
    yield replace(
        _proposal(case, (Evidence("; ".join(_adds(one, budget) for one in found)),), 1.0, found),
        lumps={one.cause: calibrated.RARER.value for one in found},
        same_batch=False,
    )
    for one in found:
        if one.cause == "evaluation":
            yield from _at_once(case, one, budget)


def _at_once(case: Analysis, one: Excess, budget: Budget) -> Iterator[Proposal]:
    """Proposes to evaluate in larger batches, if the training's own passes show that these take hardly longer."""
    found = best_factor(case, whatever_fits=False)
    if found is None:
        return
    factor = found[0]
    text = (
        f"{_adds(one, budget)}, and a training step shows that passes of {factor} times the samples take next to no"
        " longer"
    )
    yield Proposal(
        title="evaluating in larger batches",
        evidence=(Evidence(text),),
        fix=case.stack.fix(
            call("DataLoader", Code("validation_set"), batch_size=Code(f"{factor} * batch_size"))
            + "  # and torch.no_grad() around it",
            case.stack.setting({"per_device_eval_batch_size": Code(f"{factor} * batch_size")}),
        ),
        change=_unchanged,
        lumps={one.cause: 1.0 / factor},
        spread=calibrated.EVALUATION_SPREAD.value,
        odds=calibrated.EVALUATED_AT_ONCE.value,
        needs="evaluation's batches are no larger than the training's",
        key="larger",
    )


def _adds(one: Excess, budget: Budget) -> str:
    """`evaluation adds 20.5 ms to the mean step (every 20 steps: 411 ms each)`."""
    mean_ns = one.mean_ns or 0
    often = f"{one.steps} of {budget.steps} timed steps"
    if one.every:
        often = f"every {one.every} steps: {duration(mean_ns * one.every)} each"
    said = f"{NAMES[one.cause]} adds {duration(mean_ns)} to the mean step ({often})"
    if one.cause == "periodic" and one.every:
        said += f"; what these steps do was not recorded, but gpuprof trace --steps {one.every + 1} would"
    return said


def _proposal(
    case: Analysis, evidence: tuple[Evidence, ...], work: float, found: Sequence[Excess] = ()
) -> Proposal:  # fmt: skip
    """work: mean step / usual step, by which throughput grows. found: the causes, if known."""
    only_evaluates = [one.cause for one in found] == ["evaluation"]
    return Proposal(
        title="evaluating less often" if only_evaluates else "saving and evaluating less often",
        evidence=evidence,
        fix=_fewer_evaluations(case, found[0].every) if only_evaluates else _fewer(case),
        change=_unchanged,
        work=work,
        same_batch=True,
    )


def _fewer(case: Analysis) -> Fix:
    return case.stack.fix(
        call("torch.distributed.checkpoint.async_save", Code("state"), checkpoint_id=Code("path"))
        + "  # and fewer evaluations",
        case.stack.setting(
            {"save_strategy": "epoch", "eval_strategy": "epoch"},
            {"save_only_model": True},
            note="\n" + other_way("larger save_steps, eval_steps and logging_steps"),
        ),
        lightning=joined(
            (
                call("Trainer", val_check_interval=1.0),
                call("ModelCheckpoint", every_n_epochs=1, save_weights_only=True),
            )
        ),
    )


def _fewer_evaluations(case: Analysis, every: int | None) -> Fix:
    often = "a tenth as often"
    if every is not None:
        often = f"every {round(every / calibrated.RARER.value)} steps instead of every {every}"
    return case.stack.fix(
        f"evaluate {often}, in batches as large as memory allows",
        case.stack.setting(
            {"eval_strategy": "epoch"}, note="\n" + other_way("larger eval_steps and per_device_eval_batch_size")
        ),
        lightning=call("Trainer", val_check_interval=1.0),
    )


def _unchanged(graph: Graph) -> Graph:
    return graph


FINDING = Declaration(
    page=PAGE,
    find=find,
    synonyms=("saving", "save_steps", "evaluation", "eval_steps", "eval_batch_size", "logging", "checkpoints"),
    titles=("saving_and_evaluating_less_often", "evaluating_less_often", "evaluating_in_larger_batches"),
)
