"""docs/other_programs.md: programs of other projects, what gpuprof first said about them, and what was measured.

    python -m benchmarks.other_programs_page [--out docs/other_programs.md]

Predictions are those of `prediction.json` (benchmarks/blind_predictions.py), committed before the programs were timed;
the measured steps are in `truth.json`, the reasons of misses in other_programs_misses.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy import error
from benchmarks.blind_predictions import NAME
from benchmarks.same_steps import SameSteps, same_steps
from scenarios.catalogue import Fix, Scenario, scenarios

ROOT = Path(__file__).resolve().parents[1]
REASONS = Path(__file__).with_name("other_programs_misses.json")
FORMERLY = {"planning": "recompiles"}
"""Finding → its id when the predictions were made."""
SAME_WORK = 0.2
"""Amounts of work that differ by less count as equal in a recording of a few steps."""
Interval = tuple[float, float]
HEAD = """\
<!-- Written by python -m benchmarks.other_programs_page: change that. -->
# First contact: programs of other projects

Unmodified training programs of other projects, on models with random weights and on generated data
([scenarios/](../scenarios/README.md) says how they are run). Each was recorded by `gpuprof trace`; what gpuprof said of
it was committed as `prediction.json` before the program was timed. Then fresh processes without a profiler took turns,
two of the unchanged program and two with each fix; given are the mean of 30 free-running steps or more, and the lowest
and highest. llama-cookbook's two programs are its training loop with its defaults, written again for generated data,
and 12 steps long. Which verdicts count as right was written down before, in `scenario.json`; for BERT, which is at the
border, host, compute and balanced all count. No number of gpuprof is fitted to any of these. What the present version
says of those recordings is in [accuracy.md](accuracy.md).

Nine were recorded and timed on one host; four (diffusers, PyTorch's ImageNet example, OpenCLIP, KTO) and those marked
"again" on a second host, by a newer version; TRL's DPO script was recorded on a third. A program marked "again" had its
first contact in another row: its row shows whether gpuprof has improved since, with other fixes. Fixes that `gpuprof
try` makes were applied from outside in the timed process, as it applies them.
"""
STEPS = """
## Verdicts and mean steps

| program | verdict | | mean step predicted (80 %), ms | measured, ms | off | |
|---|---|---|---:|---:|---:|---|
"""
SAME = """
## Over the same steps

The timed steps are not those that were recorded. Where lengths differ, the first steps meet new ones and take longer,
and a saved checkpoint or the end of an epoch falls into some stretches and not into others. Programs draw their batches
from a seed, so step 24 of one process has the samples of step 24 of the next: what is left over the steps that both
took free-running is what processes differ by, the recorder's cost included.

| program | steps | recorded process, ms | timed processes, ms | recorded over timed |
|---|---|---:|---:|---:|
"""
FIXES = """
## Fixes

"Considered" is a fix that gpuprof lists with its predicted step but does not advise, since its interval reaches below a
gain of 2 %. Off: from the middle of what was measured.

| program | fix | gpuprof | predicted (80 %), ms | measured before | after | off | |
|---|---|---|---:|---:|---:|---:|---|
"""


@dataclass(frozen=True)
class Contact:
    """A predicted step with its interval, and the measured one; milliseconds."""

    low: float
    expected: float
    high: float
    measured: Interval

    @property
    def off(self) -> float:
        return self.expected / (sum(self.measured) / 2) - 1

    @property
    def held(self) -> bool:
        return error(self.low, self.measured) <= 0 <= error(self.high, self.measured)


def met(predicted_ms: list[float] | None, measured: Interval | None) -> Contact | None:
    """Lowest, expected and highest step against the measured one; None where either is not known."""
    if predicted_ms is None or measured is None:
        return None
    low, expected, high = predicted_ms
    return Contact(low, expected, high, measured)


def contact(entry: Scenario, predicted: dict[str, Any]) -> Contact | None:
    """The mean step; None where it was not timed or not predicted."""
    measured = entry.measured_ms()
    return met(predicted["mean_ms"], measured)


def of_fix(entry: Scenario, fix: Fix, predicted: dict[str, Any]) -> tuple[str, Contact | None, Interval | None]:
    """How gpuprof speaks of a fix, the step that it predicts, and the measured one."""
    measured = entry.measured_ms(fix.name)
    for kind in ("findings", "considered"):
        same = [
            one
            for one in predicted[kind]
            if one["id"] in (fix.finding, FORMERLY.get(fix.finding or ""))
            and abs(one.get("work", 1.0) / fix.work - 1) < SAME_WORK
        ]
        if same:
            step = same[0]["step_ms"]
            word = "advised" if kind == "findings" else "considered"
            return word, met(step, measured), measured
    return "nothing", None, measured


def page(reasons: dict[str, str]) -> Iterator[str]:
    """The page, in pieces."""
    entries = [(one, json.loads(path.read_text())) for one in scenarios() if (path := one.folder / NAME).exists()]
    timed = [(one, predicted) for one, predicted in entries if one.truth is not None]
    rows = [row for one, predicted in timed for row in fix_rows(one, predicted)]
    yield HEAD
    first, again = ([pair for pair in timed if bool(pair[0].again_of) is later] for later in (False, True))
    yield "\nFirst contacts:\n\n```text\n" + "\n".join(summary(first)) + "\n```\n"
    yield "\nAgain:\n\n```text\n" + "\n".join(summary(again)) + "\n```\n"
    yield STEPS + "".join(step_row(*pair) for pair in timed)
    same = [(one, found) for one, _ in timed if (found := same_steps(one))]
    yield SAME + "".join(same_row(*pair) for pair in same)
    middle = f"{100 * statistics.median(abs(off(found)) for _, found in same):.0f} %"
    yield f"\nAt the median the recorded process differs from the timed ones by {middle}.\n"
    yield FIXES + "".join(rows)
    yield "\n## Misses, and why\n\n" + "".join(f"- **{key}**: {text}\n" for key, text in reasons.items())
    untimed = [f"`{one.name}`" for one, _ in entries if one.truth is None]
    unseen = [f"`{one.name}`" for one in scenarios() if one.program and not (one.folder / NAME).exists()]
    yield "\n## Not measured\n\n"
    yield f"Recorded and predicted, not timed: {', '.join(untimed) or 'none'}.\n"
    yield f"Described in scenarios/, but not recorded on a GPU yet: {', '.join(unseen) or 'none'}.\n"


def is_right(entry: Scenario, predicted: dict[str, Any]) -> bool:
    """Whether the verdict is one of those that were written down before."""
    return predicted["bound"] in (entry.says_at_first or entry.says) and entry.cause in (None, predicted["cause"])


def same_row(entry: Scenario, found: SameSteps) -> str:
    """The recorded process next to the timed ones."""
    steps, ends = f"{found.first} to {found.last}", (min(found.timed_ms), max(found.timed_ms))
    return f"| {entry.name} | {steps} | {found.recorded_ms:.4g} | {span(ends)} | {percent(off(found))} |\n"


def off(found: SameSteps) -> float:
    """The recorded process, relative to the mean of the timed ones."""
    return found.recorded_ms / statistics.fmean(found.timed_ms) - 1


def step_row(entry: Scenario, predicted: dict[str, Any]) -> str:
    said = predicted["bound"] + (f" ({predicted['cause']})" if predicted["cause"] else "")
    right = is_right(entry, predicted)
    mean = contact(entry, predicted)
    cells = (
        f"{interval(mean)} | {span(mean.measured)} | {percent(mean.off)} | {verdict_of(mean)}" if mean else "– | – | |"
    )
    return f"| {entry.title} | {said} | {'✓' if right else '**wrong**'} | {cells} |\n"


def fix_rows(entry: Scenario, predicted: dict[str, Any]) -> Iterator[str]:
    for fix in entry.fixes:
        word, found, measured = of_fix(entry, fix, predicted)
        cells = f"{interval(found)} | {span(entry.measured_ms())} | {span(found.measured)}" if found else None
        cells = cells or f"– | {span(entry.measured_ms())} | {span(measured)}"
        end = f"{percent(found.off)} | {verdict_of(found)}" if found else " | "
        yield f"| {entry.name} | {fix.what} | {word} | {cells} | {end} |\n"


def summary(timed: list[tuple[Scenario, dict[str, Any]]]) -> Iterator[str]:
    """What the tables say together."""
    right = sum(is_right(one, p) for one, p in timed)
    means = [mean for one, p in timed if (mean := contact(one, p))]
    fixes = [found for one, p in timed for fix in one.fixes if (found := of_fix(one, fix, p)[1])]
    near = sum(abs(mean.off) <= 0.1 for mean in means)
    yield f"verdicts right                      {right} of {len(timed)}"
    yield f"mean steps within 10 %              {near} of {len(means)}"
    yield f"mean steps in their 80 % intervals  {sum(mean.held for mean in means)} of {len(means)}"
    yield f"fixes in their 80 % intervals       {sum(found.held for found in fixes)} of {len(fixes)}"


def verdict_of(found: Contact) -> str:
    return "✓" if found.held else "outside"


def interval(found: Contact) -> str:
    return f"{found.expected:.4g} ({found.low:.4g}–{found.high:.4g})"


def span(ms: Interval | None) -> str:
    return "–" if ms is None else "–".join(dict.fromkeys(f"{value:.4g}" for value in ms))


def percent(value: float) -> str:
    return f"{100 * value:+.0f} %".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "other_programs.md")
    args = parser.parse_args()
    reasons = json.loads(REASONS.read_text(encoding="utf-8"))
    args.out.write_text("".join(page(reasons)), encoding="utf-8")


if __name__ == "__main__":
    main()
