"""What gpuprof says about a program before it was timed: `prediction.json` next to its scenario.

    python -m benchmarks.blind_predictions NAME … [--runs DIR]

Written from the scenario's recording, or with --runs from the whole run that it was cut from, and committed before the
program is timed bare. It is never written again; docs/accuracy.md has what later versions say.
docs/other_programs.md compares it with what was measured.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gpuprof
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.value_range import Range
from scenarios.catalogue import scenario

MS = 1e6
NAME = "prediction.json"


def predicted(diagnosis: Diagnosis) -> dict[str, Any]:
    """The verdict, the mean step and every step that is predicted, milliseconds, with its speedup: lowest,
    expected, highest."""
    verdict, budget = diagnosis.verdict, diagnosis.budget
    mean = [budget.of_processes[0], budget.mean_ns, budget.of_processes[1]] if budget else None
    return {
        "gpuprof": gpuprof.__version__,
        "bound": verdict.bound,
        "cause": verdict.cause,
        "confidence": verdict.confidence,
        "mean_ms": mean and [round(ns / MS, 3) for ns in mean],
        "findings": [
            {
                "id": one.id,
                "title": one.title,
                "work": round(one.work, 3),
                "changes": one.changes,
                "step_ms": milliseconds(one.step_ns),
                "speedup": times(one.speedup),
            }
            for one in diagnosis.findings
        ],
        "considered": [
            {
                "id": one.id,
                "title": one.title,
                "reason": one.reason,
                "step_ms": milliseconds(one.step_ns) if one.step_ns else None,
                "speedup": times(one.speedup) if one.speedup else None,
            }
            for one in diagnosis.considered
        ],
    }


def milliseconds(step_ns: Range) -> list[float]:
    return [round(ns / MS, 3) for ns in (step_ns.low, step_ns.expected, step_ns.high)]


def times(speedup: Range) -> list[float]:
    return [round(value, 4) for value in (speedup.low, speedup.expected, speedup.high)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="read DIR/NAME instead of the scenario's recording")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write DIR/NAME.json in place of prediction.json")
    args = parser.parse_args()
    for name in args.names:
        entry = scenario(name)
        target: Path = args.out / f"{name}.json" if args.out else entry.folder / NAME
        run = args.runs / name if args.runs else entry.recording
        if run is None:
            parser.error(f"{name} has no recording")
        if target.exists():
            parser.error(f"{target} exists already: there is only one first contact")
        if entry.truth is not None:
            parser.error(f"{name} was timed already: it is too late for a prediction")
        text = json.dumps(predicted(gpuprof.diagnose(run)), indent=1, ensure_ascii=False)
        target.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
