"""The ledger of what lies above a step's reach, next to what removing an item was measured to gain.

    python -m benchmarks.ledger

For every recorded scenario: the share of the usual step that the ledger explains, and for each fix whose finding has an
item what the step lost when it was measured, in fresh processes, against the item's time and its place among the
items. Steps are medians over processes on one host, at most some per cent apart from those of the recording.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict

from gpuprof import diagnose
from gpuprof.diagnosis.reach.ledger import explained
from scenarios import catalogue

MS = 1e6


def main() -> None:
    print(f"{'scenario':30s} {'role':5s} {'explained':>9s}  {'fix':22s} {'measured':>9s} {'ledger':>8s}  place")
    for scenario in catalogue.scenarios():
        recording, truth = (scenario.folder / name for name in ("recording", "truth.json"))
        if not recording.exists():
            continue
        found = diagnose(recording).above_reach
        if found is None:
            continue
        lead = f"{scenario.name:30s} {scenario.role:5s} {100 * explained(found):7.0f} %"
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
            rows += 1
        if not rows:
            print(lead)


def _steps_ms(truth: dict) -> dict[str, float]:
    """Fix → its free-running step, the median over processes; "" as it is."""
    each: dict[str, list[float]] = defaultdict(list)
    for process in truth.get("processes", []):
        if process.get("free_ms"):
            each[process["fix"]].append(process["free_ms"])
    return {fix: statistics.median(values) for fix, values in each.items()}


if __name__ == "__main__":
    main()
