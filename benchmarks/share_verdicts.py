"""How often the verdict from shares of the step is the same as that of the replay.

    python -m benchmarks.share_verdicts [--shared FOLDER]

Recordings that cannot be replayed are judged by shares of the step (`diagnosis.share_verdict`). Here the same is done
with those that can be, from the trace alone, and both verdicts are compared: those that differ are printed. A replayed
run whose steps differ is judged by its mean step, which the shares of the recorded steps do not reflect.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import gpuprof
from benchmarks.accuracy import ROOT
from benchmarks.same_json import recordings
from gpuprof.diagnosis.idle.gaps import find_gaps
from gpuprof.diagnosis.idle.hidden_work import hidden_ns
from gpuprof.diagnosis.recorded.limits import part_shares
from gpuprof.diagnosis.recorded.shares import average_step, devices, profiler_cost
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.verdict.share_verdict import judge_shares
from gpuprof.errors import GpuprofError


def by_shares(diagnosis: Diagnosis) -> str | None:
    """What binds the recorded steps, as if they could not be replayed."""
    timeline = diagnosis.tables.timeline
    gaps, steps = find_gaps(timeline), len(timeline.steps.start_ns)
    found = devices(timeline, gaps)
    busiest = max((average_step(one, steps) for one in found), key=lambda s: s.busy_ns)
    busiest = replace(busiest, hidden_ns=hidden_ns(timeline, gaps, busiest.device) / steps)
    parts = part_shares(timeline, diagnosis.tables.roofline, busiest.device)
    whole = not timeline.trace.reading.truncated
    return judge_shares(busiest, parts, profiler_cost(timeline, found), whole, ()).bound


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    shared = parser.parse_args().shared
    same = total = 0
    for name, path in recordings(shared if shared.is_dir() else None):
        try:
            diagnosis = gpuprof.diagnose(path)
        except GpuprofError:
            continue
        if diagnosis.replay is None or not diagnosis.replay.shown:
            continue
        total += 1
        bound = by_shares(diagnosis)
        same += bound == diagnosis.verdict.bound
        if bound != diagnosis.verdict.bound:
            print(f"{name:70} by replay {diagnosis.verdict.bound}, by shares {bound}")
    print(f"the same verdict for {same} of {total} recordings")


if __name__ == "__main__":
    main()
