"""docs/accuracy.md: what benchmarks/accuracy.py finds, with the reason of every miss.

    python -m benchmarks.accuracy_page [--shared FOLDER] [--out docs/accuracy.md]

The reasons are in benchmarks/misses.json: what is written there must be a miss, and every miss must be written there.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks import alone
from benchmarks.accuracy import MS, ROOT, Fix, Result, cases, error, meets, run, summary
from benchmarks.alone import Alone
from benchmarks.confidence import judgement
from benchmarks.confidence import lines as confidence_lines
from benchmarks.out_of_sample import (
    Claim,
    LeftOut,
    claims,
    left_out,
    left_out_lines,
    lines,
    mean_steps,
    test_cases,
    verdicts,
)
from gpuprof.diagnosis.model import Finding
from gpuprof.diagnosis.proposal import WORTH
from scenarios import catalogue
from scenarios.catalogue import Scenario

FAR, FAR_COMPILED = 0.15, 0.25
"""A predicted step further off than this is a miss; compilers' gains are told less exactly."""
COMPILED = ("compile", "cuda_graphs")
UNPROFILED_FAR = 0.20
REASONS = ROOT / "benchmarks" / "misses.json"

HEAD = """# Accuracy

Made by `python -m benchmarks.accuracy_page`; nothing in it is written by hand but the reasons of the misses.

Every program below was timed without a profiler, as it is and with one change at a time, in fresh processes that took
turns; all of it on H200s. What gpuprof says comes from a recording of the program as it is. Where a truth is an
interval, gpuprof is right within it, and its error is counted from its ends. Host-bound programs on these machines
differ by 10 to 50 % from process to process: their truths are wide, and those bound by the GPU are not.
"""
SCENARIOS = """
## The scenarios

Recorded by `gpuprof trace`, which times some steps before it records; [scenarios/](../scenarios/README.md) has the
programs, what was timed of them and the recordings. A step in milliseconds, eight of ten values of at least five
processes; for starved_workers and periodic_saving, the means of 200 steps each in three and two processes.

| scenario | gpuprof says | | measured | gpuprof times | |
|---|---|---|---:|---:|---:|
"""
FIXES = """
### What their fixes gain

| scenario | fix | measured before | after | predicted | | |
|---|---|---:|---:|---:|---:|---|
"""
MEMORY = """
### Their memory

GiB of GPU memory at the end of the timed steps, and the most that tensors took; medians over the processes.

| scenario | | a step, ms | tensors | allocator's pool | peak |
|---|---|---:|---:|---:|---:|
"""
OTHERS = """
## Other recordings, from the trace alone

Programs of `tests/data/pairs` and, marked ◦, recordings that do not come with gpuprof. Nothing but the trace is known:
the unprofiled step is estimated.

| recording | gpuprof says | | measured | estimated | |
|---|---|---|---:|---:|---:|
"""
OTHER_FIXES = """
### What fixes gain in them

| recording | finding | measured before | after | predicted | | |
|---|---|---:|---:|---:|---:|---|
"""
ALONE = """
## From the trace alone

The recordings of one GPU once more, without the run that they are of: each trace is diagnosed as a file of
torch.profiler is, by itself. What recording cost is then told by the number of recorded events and
by how slowly the host recorded them, and the unprofiled step is estimated. Where steps differ, "measured" is what the
run itself timed before it recorded, at the work of the recorded step (run). Of files marked ▿ ops were left out after
the recording, to make them small; gpuprof notices and reckons these from the ops that are left. In the first line the
recordings of the sections below count, too, which are of a trace alone anyway. Why intervals miss was not measured; it
would be explained by hosts whose speed changed between the timing and the recording, which a trace does not tell.

```text
{summary}
```

| recording | recorded | estimated | measured | | high/low | |
|---|---:|---:|---:|---:|---:|---|
"""


TEST = """
## Recordings that only test

No number of gpuprof was fitted to these (`python -m benchmarks.out_of_sample`): scenarios of the role `test`, and
programs of other projects. Their recordings do not all come with gpuprof.

```text
{summary}
```

| program | predicted step | predicted, ms | measured, ms | from the middle | |
|---|---|---:|---:|---:|---|
"""
SURE = """
## How sure verdicts are

The truth of a verdict is the resource whose measured removal gained most (`python -m benchmarks.confidence`);
recordings that numbers were fitted to and those that only test.

```text
{summary}
```
"""
FIT = """
## Recordings that numbers were fitted to

```text
{summary}
```

Leave-one-program-out: each number that two programs or more tell, fitted without one and used on that one.

```text
{left_out}
```
"""


def page(
    results: list[Result], reasons: dict[str, str], told: list[Alone], tests: list[Result], others: list[LeftOut]
) -> Iterator[str]:
    """The page, in pieces.

    `told`: what the trace files alone say. `tests`: recordings that only test. `others`: fixes predicted with their
    program left out.
    """
    fitted = [r for r in results if r.case.name not in {one.case.name for one in tests}]
    found = claims(tests, mean_steps())
    right, known = verdicts(tests)
    runs = [r for r in results if r.case.run]
    bare = [r for r in results if not r.case.run]
    yield HEAD
    yield TEST.format(summary="\n".join((f"verdicts: {right} of {known} right", *lines(found))))
    yield "".join(map(claim_row, found))
    sure = [judged for r in (*fitted, *tests) for judged in judgement(r.case, r.diagnosis)]
    yield SURE.format(summary="\n".join(confidence_lines(sure)))
    yield FIT.format(
        summary="\n".join((*summary(fitted), "", *lines(claims(fitted)))), left_out="\n".join(left_out_lines(others))
    )
    yield SCENARIOS + "".join(map(verdict_row, runs))
    yield FIXES + "".join(row for r in runs for row in fix_rows(r))
    yield MEMORY + "".join(row for told in catalogue.scenarios() for row in memory_rows(told))
    yield ALONE.format(summary="\n".join(alone.summary(told)))
    yield "".join(alone_row(one) for one in told if not one.bare)
    yield OTHERS + "".join(map(verdict_row, bare))
    yield OTHER_FIXES + "".join(row for r in bare for row in fix_rows(r))
    yield "\n## Misses\n\n" + "".join(miss_lines(results, reasons))
    yield not_kept(catalogue.scenarios())


def claim_row(one: Claim) -> str:
    predicted = f"{one.predicted_ms:.4g} ({one.low_ms:.4g}–{one.high_ms:.4g})"
    cells = (one.program, one.what, predicted, span(one.measured_ms), percent(one.from_middle))
    return f"| {' | '.join(cells)} | {'✓' if one.held else 'outside'} |\n"


def verdict_row(r: Result) -> str:
    verdict, steps = r.diagnosis.verdict, r.diagnosis.steps
    assert steps is not None
    said = f"{verdict.bound}{f' ({verdict.cause})' if verdict.cause else ''}"
    mark = {True: "✓", False: "**wrong**", None: ""}[r.right]
    estimate = "–" if steps.estimated_ns is None else f"{steps.estimated_ns / MS:.4g}"
    off = "" if r.estimate_error is None else percent(r.estimate_error)
    return f"| {name(r)} | {said} | {mark} | {span(r.case.unprofiled_ms)} | {estimate} | {off} |\n"


def alone_row(one: Alone) -> str:
    low, high = one.interval_ms
    measured = span(one.measured_ms) + (" (run)" if one.by_run else "")
    where = {1: "above", 0: "✓", -1: "below"}[one.side]
    return (
        f"| {one.name}{' ▿' if one.left_out else ''} | {one.recorded_ms:.4g} | {one.estimated_ms:.4g}"
        f" ({low:.4g}–{high:.4g}) | {measured} | {percent(one.error)} | {one.width:.2f} | {where} |\n"
    )


def fix_rows(r: Result) -> Iterator[str]:
    for fix, found in r.fixes:
        before = span(r.case.unprofiled_ms)
        what = f"{fix.name}: `{fix.finding}`" if fix.name else f"`{fix.finding}`"
        what += f", {fix.work:.3g}× the work" if abs(fix.work - 1) > 0.01 else ""
        head = f"| {name(r)} | {what} | {before} | {span(fix.step_ms)} |"
        if found is None:
            yield f"{head} not advised | | {'' if fix.gains else '✓ gains nothing'} |\n"
            continue
        low, expected, high = (
            f"{ns / MS:.4g}" for ns in (found.step_ns.low, found.step_ns.expected, found.step_ns.high)
        )
        inside = "✓" if meets(found, fix) else "outside"
        yield f"{head} {expected} ({low}–{high}) | {percent(off(fix, found))} | {inside} |\n"


def memory_rows(told: Scenario) -> Iterator[str]:
    truth = told.truth or {"processes": []}
    for fix in told.variants():
        same = [process for process in truth["processes"] if process["fix"] == fix and process["peak_mib"]]
        if same:
            gib = [
                statistics.median(p[key] for p in same) / 1024 for key in ("allocated_mib", "reserved_mib", "peak_mib")
            ]
            cells = " | ".join(f"{value:.1f}" for value in gib)
            yield f"| {told.name} | {fix or 'as it is'} | {span(told.measured_ms(fix))} | {cells} |\n"


def misses(results: Iterable[Result]) -> Iterator[tuple[str, str]]:
    """What is wrong beyond what is allowed: its key, and the statement."""
    for r in results:
        where, before = r.case.name, r.case.unprofiled_ms
        if r.right is False:
            is_not = " or ".join(r.case.verdict or ())
            yield f"{where}: verdict", f"the verdict is {r.diagnosis.verdict.bound}, not {is_not}"
        if r.estimate_error is not None and abs(r.estimate_error) > UNPROFILED_FAR:
            yield f"{where}: unprofiled", f"the unprofiled step is {percent(r.estimate_error)} off"
        advised = {fix.finding for fix, found in r.fixes if found is not None}
        for fix, found in r.fixes:
            key = f"{where}: {fix.name or fix.finding}"
            if found is not None and not fix.gains:
                yield key, f"`{fix.finding}` is advised, though it gained nothing"
            elif found is not None and abs(off(fix, found)) > (FAR_COMPILED if fix.finding in COMPILED else FAR):
                yield key, f"`{fix.finding}` is predicted {percent(off(fix, found))} off"
            elif found is None and fix.gains and fix.finding not in advised and before and gained(fix, before):
                yield key, f"`{fix.finding}` is not advised, though it gained"


def gained(fix: Fix, before: tuple[float, float]) -> bool:
    """Whether the slowest step after it is faster, per work, than the fastest before: else it may be noise."""
    return before[0] / (fix.step_ms[1] / fix.work) > WORTH


def miss_lines(results: list[Result], reasons: dict[str, str]) -> Iterator[str]:
    found = dict(misses(results))
    for key, statement in found.items():
        yield f"- **{key.partition(':')[0]}**: {statement}. {reasons.get(key, 'The reason is not known')}.\n"
    if not found:
        yield "None.\n"


def not_kept(told: Iterable[Scenario]) -> str:
    """Recordings that are too large to keep, and what was never recorded."""
    told = list(told)
    large = [(one, one.described) for one in told if one.described is not None]
    rows = "\n".join(
        f"| {one.name} | {large.mb:g} MB | {large.verdict} | {fix} | {span(one.measured_ms())} | "
        f"{span(one.measured_ms(fix))} | {span(ms)} |"
        for one, large in large
        for fix, ms in large.predicted.items()
    )
    missing = [f"`{one.name}`" for one in told if one.recording is None and one.described is None]
    return (
        "\n## Recorded, but too large to keep\n\nWhat gpuprof said of them when they were recorded; no command here "
        "says it again.\n\n| Scenario | Recording | Verdict | Fix | Measured before | Measured after | Predicted |\n"
        f"|---|---:|---|---|---:|---:|---:|\n{rows}\n"
        + (f"\n## Not recorded\n\n{', '.join(missing)}.\n" if missing else "")
    )


def off(fix: Fix, found: Finding) -> float:
    return error(found.step_ns.expected / MS, fix.step_ms)


def percent(value: float) -> str:
    return f"{100 * value:+.0f} %".replace("-", "−") if abs(value) >= 0.005 else "0 %"


def span(ms: tuple[float, float] | None) -> str:
    return "–" if ms is None else "–".join(dict.fromkeys(f"{value:.4g}" for value in ms))


def name(r: Result) -> str:
    return r.case.name if r.case.path.is_relative_to(ROOT) else f"{r.case.name} ◦"


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes docs/accuracy.md")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "accuracy.md")
    args = parser.parse_args()
    results = [run(case) for case in cases(args.shared)]
    told = alone.everything(results)
    tests = [run(case) for case in test_cases(args.shared)]
    reasons = json.loads(REASONS.read_text(encoding="utf-8"))
    args.out.write_text("".join(page(results, reasons, told, tests, list(left_out()))), encoding="utf-8")
    print("\n".join((*summary(results), *alone.summary(told))))


if __name__ == "__main__":
    main()
