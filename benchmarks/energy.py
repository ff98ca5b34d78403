"""Energy of a step from recordings, compared with the GPU's counter in processes without gpuprof.

    python -m benchmarks.energy [--estimate]

For all programs whose truth.json has joules and whose recording has power samples: mean power of unprofiled steps, in
the recording and in the processes, which ran at other times on the same kind of machine. --estimate: also what the
projection's power model gives for the recorded step, which takes a diagnosis of each.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import gpuprof
from benchmarks.accuracy import ROOT
from gpuprof.diagnosis.run.energy import measured_energy
from gpuprof.tracefile.run_folder.run import read_run

NEAR = 0.1
"""Largest acceptable error of a power."""


def main() -> None:
    """A line for each program, and a summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--estimate", action="store_true", help="also what the model of the power says")
    estimates = parser.parse_args().estimate
    off = {}
    within, estimated = [], []
    for path in sorted((ROOT / "scenarios").glob("*/*/truth.json")):
        folder = path.parent / "recording"
        found = measured_energy(read_run(folder), None) if folder.exists() else None
        watts = truth_watts(path)
        if found is None or not watts:
            continue
        middle = statistics.median(watts)
        name = str(path.parent.relative_to(ROOT / "scenarios"))
        off[name] = found.power_w / middle - 1
        within.append(min(watts) <= found.power_w * 1.1 and found.power_w * 0.9 <= max(watts))
        text = f"{name:34}{found.source:9}{found.power_w:6.0f} W  {middle:6.0f} W measured  {100 * off[name]:+6.1f} %"
        if estimates and (run := gpuprof.diagnose(folder).run) and run.energy and run.energy.estimated_w:
            estimated.append(run.energy.estimated_w / middle - 1)
            text += f"  {run.energy.estimated_w:6.0f} W by the model {100 * estimated[-1]:+6.1f} %"
        print(text, flush=True)
    print(f"{_summary(list(off.values()))}; within 10 % of what the processes differ by: {sum(within)}")
    if estimated:
        print(f"by the model: {_summary(estimated)}")


def _summary(off: list[float]) -> str:
    each = [abs(one) for one in off]
    near = sum(one <= NEAR for one in each)
    return f"{len(each)} programs: off by {100 * statistics.median(each):.1f} % in the middle, within 10 %: {near}"


def truth_watts(truth: Path) -> list[float]:
    """Mean power of the free-running steps of each unmodified process."""
    processes = json.loads(truth.read_text())["processes"]
    mine = [one for one in processes if not one["fix"] and one.get("joules") and one.get("steps")]
    return [one["joules"] / (one["free_ms"] * one["steps"] / 1e3) for one in mine]


if __name__ == "__main__":
    main()
