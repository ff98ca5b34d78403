"""The page's table from the usual step to the mean step, and what happens once."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.mean_step.budget_model import NAMES, Budget, Excess
from gpuprof.diagnosis.result.cpu_step import CpuStep, prepares_batches
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.verdict import step_parts
from gpuprof.report.charts.timed_steps import alike as steps_are_alike
from gpuprof.report.numbers import amount, count, duration, duration_range, share
from gpuprof.report.palette import BUDGET_PAINTS
from gpuprof.report.stepbar import LEAST_LISTED
from gpuprof.timeline.unit import Unit


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A part of the mean step."""

    key: str
    """Key of its colour; empty for the sum."""
    label: str
    time: str
    share: str
    note: str = ""


def budget_rows(diagnosis: Diagnosis) -> list[BudgetRow]:
    """The parts of the mean step, which sum to it; none where no steps were timed. Causes too small to be visible are
    counted as variation."""
    found = diagnosis.budget
    if found is None or found.source != "free":
        return []
    if diagnosis.cpu_step is not None:
        return _cpu_rows(diagnosis.cpu_step, found, prepares_batches(diagnosis.run), diagnosis.unit)
    mean, beyond = found.mean_ns, step_parts.beyond_usual(found)
    rows = [BudgetRow("usual", BUDGET_PAINTS["usual"].label, duration(found.usual_ns), share(found.usual_ns, mean))]
    rows += [_excess_row(one, found) for one in found.excess if one in beyond.causes or one.mean_ns is None]
    if beyond.pauses_ns:
        often = f"in {found.pauses} of {amount(found.steps, 'step')}"
        rows.append(_added("pauses", beyond.pauses_ns, mean, often))
    rows.append(_added("variation", beyond.variation_ns, mean))
    return [*rows, _mean_row(found, diagnosis.unit)]


def alike(diagnosis: Diagnosis) -> str:
    """A sentence that replaces a chart of equal bars; empty where the timed steps differ."""
    timed, budget = diagnosis.timed, diagnosis.budget
    if timed is None or budget is None or budget.source != "free" or not steps_are_alike(diagnosis):
        return ""
    took = duration_range(float(timed.ns.min()), float(timed.ns.max()))
    each = amount(len(timed.ns), diagnosis.unit)
    return f"{each} in a row, timed without the profiler, took {took}: nothing makes one noticeably longer."


def _cpu_rows(step: CpuStep, found: Budget, prepares: bool, unit: Unit) -> list[BudgetRow]:
    """The same for a training without a GPU: what its process does."""
    parts = [("input", "preparing batches" if prepares else "waiting for batches", float(step.input_ns))]
    if step.ops_ns is None:
        parts.append(("usual", "the training itself", step.own_ns))
    else:
        parts += [("usual", "PyTorch's ops", step.ops_ns), ("python", "Python between them", step.own_ns - step.ops_ns)]
    parts.append(("variation", "in some steps only", step.other_ns))
    rows = [BudgetRow(key, label, duration(ns), share(ns, step.mean_ns)) for key, label, ns in parts if ns]
    return [*rows, _mean_row(found, unit)]


def _mean_row(found: Budget, unit: Unit) -> BudgetRow:
    return BudgetRow(
        "", f"mean {unit}", duration(found.mean_ns), "", f"80 % of runs: {duration_range(*found.of_processes)}"
    )


def _added(key: str, ns: int, mean: int, note: str = "") -> BudgetRow:
    return BudgetRow(key, BUDGET_PAINTS[key].label, f"{'+' if ns > 0 else ''}{duration(ns)}", _signed(ns, mean), note)


def _signed(part: int, total: int) -> str:
    return share(abs(part), total) if part > -LEAST_LISTED * total else f"−{share(-part, total)}"


def _excess_row(one: Excess, found: Budget) -> BudgetRow:
    often = f"every {count(one.every)} steps" if one.every else f"in {one.steps} of {amount(found.steps, 'step')}"
    name, mean = _cause(one.cause), one.mean_ns
    if mean is None:
        return BudgetRow(one.cause, name, "not measured", "", often)
    return BudgetRow(one.cause, name, f"+{duration(mean)}", share(mean, found.mean_ns), often)


def once(diagnosis: Diagnosis) -> list[str]:
    """What happened once and is not in the mean (`Once, not in the mean: compilation, 2.1 s in 1 step`), and what is in
    the mean but becomes rarer; each with its time spread over all steps."""
    found, run = diagnosis.budget, diagnosis.run
    if found is None or found.source != "free":
        return []
    lines = []
    for one in found.once:
        if one in found.left_out:
            line = f"Once, not in the mean: {_cause(one.cause)}, {duration(one.ns)} in {amount(one.steps, 'step')}"
        else:
            line = f"Becomes rarer: {_cause(one.cause)}"
        if one.per_step_ns is not None and run is not None and run.steps_total:
            line += f", {duration(one.per_step_ns)} a step over the {amount(run.steps_total, 'step')} of this training"
        lines.append(line)
    return lines


def _cause(key: str) -> str:
    return NAMES.get(key, key.replace("_", " "))
