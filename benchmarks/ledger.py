"""The ledger of what lies above a step's reach, next to what removing an item was measured to gain.

    python -m benchmarks.ledger
    python -m benchmarks.ledger --contact
    python -m benchmarks.ledger --truth

For every recorded scenario: the share of the usual step that the ledger explains, and for each fix whose finding has an
item what the step lost when it was measured, in fresh processes, against the item's time and its place among the
items. Steps are medians over processes on one host, at most some per cent apart from those of the recording.

`--contact`: of each program that nothing was fitted to, the largest item of at least 5 % of the step whose removal was
measured, whether its finding is the first or among the advice shown, and whether the 80 % interval of its gain holds
the measured one.

`--truth`: of each program whose author wrote down what it wastes (`largest` and `where` in scenario.json) before
gpuprof saw it: the first of the three lines above reach that has a word of it, and whether the interval of the gain
holds what taking it out by hand measured. The interval is that of the finding where a finding is the advice, else that
of the items with such a word, as wide as measured gains scatter around replayed ones.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import Counter, defaultdict

from gpuprof import diagnose
from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.reach.ledger import explained
from gpuprof.diagnosis.result.above_reach import Item
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.replay.noise import change_noise
from gpuprof.report.words.above_words import MOST_SHOWN, line
from scenarios import catalogue

MS = 1e6


LARGE = 0.05
"""Share of the step from which on an item counts as found."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--contact", action="store_true", help="largest item, advice and measured gain of test programs"
    )
    parser.add_argument("--truth", action="store_true", help="what authors of programs wrote them to waste")
    given = parser.parse_args()
    if given.contact or given.truth:
        contact() if given.contact else written_down()
        return
    places: Counter[int] = Counter()
    open_share = 0.0
    print(f"{'scenario':32s} {'role':5s} {'explained':>9s}  {'fix':22s} {'measured':>9s} {'ledger':>8s}  place")
    for scenario in (*catalogue.scenarios(), *map(catalogue.scenario, catalogue.campaign_names())):
        recording, truth = (scenario.folder / name for name in ("recording", "truth.json"))
        if not recording.exists():
            continue
        found = diagnose(recording).above_reach
        if found is None:
            continue
        lead = f"{scenario.name:32s} {scenario.role:5s} {100 * explained(found):7.0f} %"
        steps = _steps_ms(json.loads(truth.read_text(encoding="utf-8"))) if truth.exists() else {}
        rows = 0
        for fix in scenario.fixes:
            mine = [item for item in found.items if item.finding is not None and item.finding == fix.finding]
            if "" not in steps or fix.name not in steps or not mine:
                continue
            lost = steps[""] - steps[fix.name]
            place = [item.finding for item in found.largest].index(fix.finding) + 1
            said = sum(item.ns for item in mine) / MS
            print(f"{lead}  {fix.name:22s} {lost:6.1f} ms {said:5.1f} ms  {place}")
            places[place] += 1
            rows += 1
        if not rows:
            print(lead)
        if scenario.role == "test":
            open_share = max(open_share, 1 - explained(found))
    print(f"{places.total()} fixes with an item: {places[1]} are the largest, {places[2]} the second")
    print(f"recordings that only test: residual and unknown are at most {100 * open_share:.0f} % of the usual step")


def contact() -> None:
    """Prints a line for each program of role test, and how many of them are named and predicted."""
    named = held = count = 0
    print(f"{'program':28s} {'item':46s} {'share':>6s}  {'advice':18s} {'predicted':>13s} {'measured':>9s}")
    for name in (*catalogue.names(), *catalogue.campaign_names()):
        scenario = catalogue.scenario(name)
        truth, recording = scenario.truth, scenario.recording
        if scenario.role != "test" or truth is None or recording is None:
            continue
        diagnosis, steps = diagnose(recording), _steps_ms(truth)
        found = diagnosis.above_reach
        fixes = {fix.finding: fix.name for fix in reversed(scenario.fixes) if fix.name in steps and fix.work == 1.0}
        items = [
            item
            for item in (found.largest if found else ())
            if found and item.ns >= LARGE * found.usual_ns and item.finding in fixes
        ]
        if "" not in steps or found is None or not items:
            continue
        item = items[0]
        advice = [one for one in (*diagnosis.findings, *diagnosis.worth_trying) if one.id == item.finding]
        ids = [one.id for one in diagnosis.findings]
        rank = ids.index(item.finding) + 1 if item.finding in ids else 0
        gain = steps[""] / steps[fixes[item.finding]]
        if not advice:
            continue
        low, high = advice[0].speedup.low, advice[0].speedup.high
        count += 1
        named += item is found.largest[0]
        held += low <= gain <= high
        share = f"{100 * item.ns / found.usual_ns:.0f} %"
        print(
            f"{name:28s} {item.what[:46]:46s} {share:>6s}  {rank}. {item.finding or '':15s}"
            f" {low:5.2f}–{high:5.2f}× {gain:7.2f}×  {'' if low <= gain <= high else 'outside'}"
        )
    print(f"{count} programs: the item is the largest in {named}, the interval holds the gain in {held}")


def written_down() -> None:
    """Prints a line for each program with a written-down waste, and how many are named and predicted."""
    first = shown = held = count = 0
    print(f"{'program':20s} {'the line':58s} {'place':>5s} {'predicted':>13s} {'measured':>14s}")
    for scenario in map(catalogue.scenario, catalogue.campaign_names()):
        measured = scenario.truth
        if not scenario.largest or measured is None or scenario.recording is None:
            continue
        diagnosis, steps = diagnose(scenario.recording), _each_ms(measured)
        found, fix = diagnosis.above_reach, scenario.fix(scenario.largest)
        if found is None or fix is None or not {"", fix.name} <= steps.keys():
            continue
        mine = [item for item in found.largest if any(word in _text(item) for word in map(str.lower, scenario.where))]
        place = found.largest.index(mine[0]) + 1 if mine else 0
        gain = interval(diagnosis, fix.finding, mine)
        turns = sorted(a / b for a, b in zip(steps[""], steps[fix.name], strict=False))
        ok = gain is not None and gain[0] <= turns[-1] and turns[0] <= gain[1]
        count, first, shown, held = count + 1, first + (place == 1), shown + (0 < place <= MOST_SHOWN), held + ok
        said = f"{gain[0]:5.2f}–{gain[1]:5.2f}×" if gain else "–"
        text = f"{mine[0].ns / MS:.1f} ms {mine[0].what}" if mine else "none"
        print(
            f"{scenario.name.removeprefix('programs/'):20s} {text[:58]:58s} {place or '–':>5} {said:>13s}"
            f" {turns[0]:6.2f}–{turns[-1]:5.2f}×  {'' if ok else 'outside'}"
        )
    print(
        f"{count} programs: named first in {first}, in the {MOST_SHOWN} lines in {shown}, the interval holds in {held}"
    )


def interval(diagnosis: Diagnosis, finding: str | None, items: list[Item]) -> tuple[float, float] | None:
    """Of the gain without the items: that of the finding that advises it, else of what the replay loses without them.
    None where neither says anything."""
    advice = [one for one in (*diagnosis.findings, *diagnosis.worth_trying) if one.id == finding and one.work == 1.0]
    if advice:
        return advice[0].speedup.low, advice[0].speedup.high
    found = diagnosis.above_reach
    gone = sum(item.ns for item in items)
    if found is None or not 0 < gone < found.usual_ns:
        return None
    gain = found.usual_ns / (found.usual_ns - gone)
    away = math.hypot(change_noise(gain), math.log1p(noise_calibrated.GAIN.value))
    return gain * math.exp(-away), gain * math.exp(away)


def _text(item: Item) -> str:
    """All that its line says of an item, in small letters."""
    return line(item).lower()


def _each_ms(truth: dict) -> dict[str, list[float]]:
    """Fix → its free-running steps, process by process; "" as it is."""
    each: dict[str, list[float]] = defaultdict(list)
    for process in truth.get("processes", []):
        if process.get("free_ms"):
            each[process["fix"]].append(process["free_ms"])
    return each


def _steps_ms(truth: dict) -> dict[str, float]:
    """Fix → its free-running step, the median over processes; "" as it is."""
    return {fix: statistics.median(values) for fix, values in _each_ms(truth).items()}


if __name__ == "__main__":
    main()
