"""Compute calibrated numbers again from the recordings at hand, and print them next to the table.

    python -m benchmarks.calibrate [SUBJECT ...]    # old and new value, interval, number of recordings
    python -m benchmarks.calibrate --page           # write docs/calibration.md from the table; fits nothing

Only recordings whose role is `fit` are read (benchmarks/fit_or_test.py); opening another is an error. Nothing is
written to the table: a new value changes predictions, and is copied there by hand once benchmarks/accuracy.py shows
that they get better. Recordings below ../shared are used where they exist. Not every number of a subject can be
computed again: for those that were measured once, docs/calibration.md says how.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import fit_or_test
from benchmarks.accuracy import DEVICE, MS, ROOT, error
from benchmarks.gain_scatter import gains
from benchmarks.other_gpus import EXAMPLE, H100, LEAST_NS, TRAININGS, _median_ns, _rows
from benchmarks.profiler_cost import INFORMATIVE
from benchmarks.refit import Knob, Refit, Subject, diagnosed, fit_cases, refit_by_fix
from gpuprof.calibration import noise as noise_table
from gpuprof.calibration import profiler as profiler_table
from gpuprof.calibration.number import Number
from gpuprof.calibration.table import numbers
from gpuprof.diagnosis.diagnose import diagnose
from gpuprof.diagnosis.findings import (
    adapter_casts,
    allocator,
    compile,
    eager_attention,
    expert_loop,
    input_workers,
    larger_batch,
    optimizer,
    padding,
    pageable_copies,
    recompute,
    tf32,
)
from gpuprof.diagnosis.projection_input.recorded_subject import subject_of
from gpuprof.projection.sustained_rates import reach
from gpuprof.replay.build.build import build
from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.simulate import ROUNDS, simulate
from gpuprof.replay.split_collectives import model_collectives
from gpuprof.replay.unprofiled.profiler_cost import recorded_events, without
from gpuprof.replay.unprofiled.profiler_fit import remove_profiler
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.recording import resolve
from gpuprof.tracefile.trace import F64, KERNEL
from scenarios import catalogue

PAGE = ROOT / "docs" / "calibration.md"
MATTERS = 0.1
"""A program shows how host-bound processes differ if at least this share of its step scales with the CPU's time."""
EVENT_COSTS_NS = np.arange(1_000, 4_001, 100)


KNOBS: list[Knob] = []
"""Every knob of a subject."""


def by_fix(*knobs: Knob) -> Subject:
    """Numbers that follow from measured steps with fixes."""
    KNOBS.extend(knobs)

    def refits() -> Iterator[Refit]:
        for knob in knobs:
            yield from refit_by_fix(knob)

    return refits


COMPILED = Knob(("compile.HOST",), compile)
KNOBS.append(COMPILED)


def compiled() -> Iterator[Refit]:
    """HOST from compiled steps; REST and ATTENTION from one program recorded both ways."""
    yield from refit_by_fix(COMPILED)
    for name, categories in (("compile.REST", ("gemm",)), ("compile.ATTENTION", ("attention",))):
        eager, after = numbers()[name].recordings
        ns = [_category_ns(ROOT / place, categories) for place in (eager, after)]
        yield Refit(name, {after: ns[1] / ns[0]} if ns[0] else {})


def _category_ns(path: Path, categories: tuple[str, ...]) -> float:
    """GPU time a step of some categories of kernels."""
    kernels, steps = diagnosed(path).kernels, diagnosed(path).steps
    assert kernels is not None
    assert steps is not None
    return sum(one.ns for one in kernels.by_category if one.category in categories) / steps.count


def profiler() -> Iterator[Refit]:
    """The cost of an event by which recordings, replayed without it, take what was measured."""
    off: dict[str, np.ndarray] = {}
    probes: dict[str, dict[str, float]] = {name: {} for name in PROBES.values()}
    each: dict[str, float] = {}
    for place, case in fit_cases().items():
        timeline = timeline_of(case.path)
        if timeline is None:
            continue
        for name, key in PROBES.items():
            if (took := _median_of_name(timeline, name)) is not None:
                probes[key][place] = took
        if case.unprofiled_ms is None or case.steps_differ:
            continue
        steps = _steps_by_cost(timeline)
        if steps[0] - steps[-1] < INFORMATIVE * steps[0]:
            continue  # something else limits the step
        off[place] = np.array([abs(error(step, case.unprofiled_ms)) for step in steps])
        middle = sum(case.unprofiled_ms) / 2
        each[place] = float(np.interp(-middle, -steps, EVENT_COSTS_NS))
    total = np.mean(list(off.values()), axis=0)
    best = float(EVENT_COSTS_NS[int(total.argmin())])
    now = float(np.interp(profiler_table.EVENT_NS.value, EVENT_COSTS_NS, total))
    yield Refit(
        "profiler.EVENT_NS", each, best, f"mean error {100 * total.min():.1f} %, with the old {100 * now:.1f} %"
    )
    for key, found in probes.items():
        yield Refit(key, found)


PROBES = {
    "aten::as_strided": "profiler.STRIDED_NS",
    "aten::empty_strided": "profiler.EMPTY_STRIDED_NS",
    "cudaLaunchKernel": "profiler.LAUNCH_NS",
}


def _steps_by_cost(timeline: Timeline) -> np.ndarray:
    """The step without the profiler for each of EVENT_COSTS_NS, ms; not rising."""
    graph = model_collectives(carried_over(build(timeline)))
    events, pace = recorded_events(graph), remove_profiler(graph, None, None).scale
    usual = profiler_table.EVENT_NS.value
    steps = [
        simulate(without(graph, events.cost_ns(pace * cost / usual)), ROUNDS).step_ns / MS for cost in EVENT_COSTS_NS
    ]
    return np.minimum.accumulate(np.array(steps))


def timeline_of(path: Path) -> Timeline | None:
    trace = resolve(str(path)).read().trace
    return None if trace is None else build_timeline(trace)


def _median_of_name(timeline: Timeline, name: str) -> float | None:
    """Recorded time of an op or a call, ns; None where it was recorded fewer than 30 times."""
    trace = timeline.trace
    number = trace.string_ids.get(name)
    table = trace.ops if name.startswith("aten::") else trace.calls
    rows = np.flatnonzero(table.name == number) if number is not None else np.empty(0, np.int64)
    return float(np.median((table.end_ns - table.start_ns)[rows])) if len(rows) >= 30 else None


def latency() -> Iterator[Refit]:
    """Time from one kernel to the next if that was launched long before."""
    found = {}
    for place, case in fit_cases().items():
        timeline = timeline_of(case.path)
        gaps = np.empty(0) if timeline is None else queued_gaps(timeline)
        if len(gaps) >= 100:
            found[place] = float(np.median(gaps))
    yield Refit("latency.GAP_NS", found)


def queued_gaps(timeline: Timeline) -> np.ndarray:
    """Times, ns, between two kernels of a stream if the second was launched at least 20 µs before the first ended."""
    gpu, calls, links = timeline.trace.gpu, timeline.trace.calls, timeline.links
    rows = timeline.members[(gpu.kind == KERNEL)[timeline.members] & (links.call[timeline.members] >= 0)]
    parts = []
    for stream in np.unique(gpu.stream[rows]).tolist():
        mine = rows[gpu.stream[rows] == stream]
        mine = mine[np.argsort(gpu.start_ns[mine])]
        before, after = mine[:-1], mine[1:]
        launched = calls.end_ns[links.call[after]] < gpu.end_ns[before] - 20_000
        parts.append((gpu.start_ns[after] - gpu.end_ns[before])[launched])
    return np.concatenate(parts) if parts else np.empty(0)


def noise() -> Iterator[Refit]:
    """Half of the 80 % interval of processes of one program, from the timings of the scenarios, and how measured gains
    scatter beyond it."""
    spread = {
        f"{entry.name} {fix}".strip(): half_width([entry.steps_ms([process]) for process in processes])
        for entry in catalogue.scenarios()
        if entry.role == "fit"
        for fix, processes in _by_fix(entry)
        if len(processes) >= 5
    }
    bound_by_gpu = {entry.name for entry in catalogue.scenarios() if set(entry.says) <= set(DEVICE)}
    gpu = {name: value for name, value in spread.items() if name in bound_by_gpu}
    yield Refit("noise.GPU_PROCESS", gpu, note="chosen near the upper end")
    yield Refit("noise.PROCESS", spread)
    away = {entry.name: _away(entry) for entry in catalogue.scenarios() if entry.role == "fit" and entry.recording}
    values = {name: float(np.quantile(found, 0.8)) for name, found in away.items() if len(found)}
    pooled = np.concatenate([found for name, found in away.items() if name in values])
    note = "of all processes together; programs whose CPU matters"
    yield Refit("noise.HOST_BOUND", values, float(np.quantile(pooled, 0.8)), note)
    yield from gains()


def _away(entry: catalogue.Scenario) -> F64:
    """How far each process of an unchanged program is from the mean of the others, without what the GPU's part differs
    by, divided by the square root of the share of the step that scales with the CPU's time; empty for fewer than five
    processes, or if that share is small."""
    processes = dict(_by_fix(entry)).get("", [])
    if len(processes) < 5 or entry.recording is None:
        return np.empty(0)
    recording = resolve(entry.recording).read()
    found = diagnose(recording.trace, run=recording.run, advise=False).sensitivities
    share = 0.0 if found is None else min(found.host + found.input, 1.0)
    if share < MATTERS:
        return np.empty(0)
    steps = np.log([np.mean(entry.steps_ms([process])) for process in processes])
    n = len(steps)
    # From the mean of all; of a process and the n others' mean the variances add up.
    squares = (steps - steps.mean()) ** 2 * n / (n - 1)
    return np.sqrt(np.maximum(squares - noise_table.GPU_PROCESS.value**2, 0) / share)


def _by_fix(entry: catalogue.Scenario) -> Iterator[tuple[str, list[dict]]]:
    processes = (entry.truth or {"processes": []})["processes"]
    for fix in entry.variants():
        yield fix, [process for process in processes if process["fix"] == fix]


def half_width(processes: list[list[float]]) -> float:
    """Distance of the processes' mean steps from their median, as a share of it, that 80 % of them do not exceed."""
    steps = np.array([np.mean(values) for values in processes])
    return float(np.quantile(np.abs(steps / np.median(steps) - 1), 0.8))


def projection() -> Iterator[Refit]:
    """The share of the bandwidth with which kernels of unknown traffic take the times measured on both GPUs."""
    middle, used = {}, []
    for name in TRAININGS:
        here, there = (subject_of(diagnosed(EXAMPLE / gpu / name)) for gpu in ("h200", "h100"))
        ours, theirs = (reach(one.gpu) for one in (here, there))
        slower = ours.memory_bytes_per_s / theirs.memory_bytes_per_s
        own, others = _rows(here), _rows(there)
        found = []
        for key, rows in own.items():
            if here.roofline.work.guessed[rows[0]] and key in others:
                took = [_median_ns(one, events) for one, events in ((here, rows), (there, others[key]))]
                if took[0] >= LEAST_NS:
                    found.append((share_of_bandwidth(took[1] / took[0], slower), took[0] * len(rows)))
        shares, ns = np.array(found).T
        middle[fit_or_test.place_of(EXAMPLE / "h200" / name)] = float(np.average(shares, weights=ns))
        used.append(f"{np.median(shares):.2f}")
    yield Refit("projection.USUAL_REACH", middle, note=f"by time; the middle kernels {' and '.join(used)}; to {H100}")


def share_of_bandwidth(longer: float, slower: float) -> float:
    """Share of the bandwidth here that a kernel uses if it takes `longer` times as long where memory takes `slower`
    times as long and instructions take the same time; traffic and instructions add as squares."""
    return float(np.sqrt(np.clip((longer**2 - 1) / (slower**2 - 1), 0.0, 1.0)))


SUBJECTS: dict[str, Subject] = {
    "allocator": by_fix(
        Knob(("allocator.CALL_TIME_LEFT",), allocator),
        Knob(("allocator.CACHE_LOSS",), pageable_copies),
    ),
    "batch": by_fix(Knob(("batch.ROUND",), larger_batch)),
    "compile": compiled,
    "experts": by_fix(
        Knob(("experts.ROW_PASSES", "experts.GATE_PASSES"), expert_loop),
    ),
    "kernels": by_fix(
        Knob(("kernels.ATTENTION_FORWARD", "kernels.ATTENTION_BACKWARD"), eager_attention),
        Knob(
            ("kernels.ADAPTER_MATMUL_LEFT", "kernels.ADAPTER_SCALE_LEFT", "kernels.ADAPTER_SUM_LEFT"),
            adapter_casts,
        ),
        Knob(("kernels.OPTIMIZER_GPU",), optimizer),
        Knob(("kernels.TF32_TENSOR",), tf32),
    ),
    "latency": latency,
    "loader": by_fix(Knob(("loader.CROWDED",), input_workers, host=True)),
    "noise": noise,
    "padding": by_fix(Knob(("padding.GROUPED_LEFT",), padding, fix="grouped")),
    "profiler": profiler,
    "projection": projection,
    "recompute": by_fix(
        Knob(("recompute.HOOKED_SHARE", "recompute.UNPACKED_SHARE"), recompute),
    ),
}  # fmt: skip
"""Subject → what computes its numbers again."""


def table(found: Iterator[Refit]) -> Iterator[str]:
    """Old and new values: a line for each number, and one for each recording that determines it."""
    for one in found:
        old = numbers()[one.name]
        new = "not known from the recordings here" if one.value is None else digits(one.value)
        ends = "" if one.interval is None else f" ({digits(one.interval[0])}–{digits(one.interval[1])})"
        yield (
            f"{one.name:32} old {digits(old.value)} ({digits(old.low)}–{digits(old.high)}) {old.unit:10} "
            f"new {new}{ends}   of {len(one.values)}{f'; {one.note}' if one.note else ''}"
        )
        for place, value in one.values.items():
            yield f"    {digits(value):>8}  {place}"


def digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


HEAD = """<!-- Written by python -m benchmarks.calibrate --page: change that. -->
# Calibrated numbers

Every number that gpuprof uses, and where it comes from. The numbers are in the files of `gpuprof/calibration/`. Fitted
numbers are computed from recordings that are kept, by the command named; measured ones were read off recordings or
timings of which not all are kept; published ones are from papers or datasheets; assumed ones are guesses. The interval
is meant to hold in eight of ten cases, and predictions use its ends as their best and worst case where they have one.
Recordings below `shared/` do not come with gpuprof. No recording whose role is `test` (benchmarks/fit_or_test.py) is
among them.
"""


def page() -> str:
    """docs/calibration.md."""
    found = numbers()
    sources = [sum(one.source == source for one in found.values()) for source in SOURCES]
    parts = [HEAD, ", ".join(f"{count} {name}" for name, count in zip(SOURCES, sources, strict=True)) + ".", ""]
    for subject in dict.fromkeys(name.partition(".")[0] for name in found):
        parts += [f"## {subject}", ""]
        for name, one in found.items():
            if name.partition(".")[0] == subject:
                parts += [entry(name.partition(".")[2], one), ""]
    return "\n".join(parts).rstrip() + "\n"


SOURCES = ("fitted", "measured", "published", "assumed")


def entry(name: str, one: Number) -> str:
    """One number as a list item."""
    unit = f" {one.unit}" if one.unit else ""
    text = f"- **{name}** {exact(one.value)}{unit} ({exact(one.low)} to {exact(one.high)}), {one.source}. {one.what}"
    if one.recordings:
        text += f" From {', '.join(f'`{place}`' for place in one.recordings)}."
    if one.command:
        text += f" Recompute with `{one.command}`."
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def exact(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1_000 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", nargs="*", choices=[*SUBJECTS, []], help="all, if none is given")
    parser.add_argument("--page", action="store_true", help="write docs/calibration.md from the table")
    given = parser.parse_args()
    if given.page:
        PAGE.write_text(page(), encoding="utf-8")
        return
    with fit_or_test.only_fit():
        for subject in given.subject or SUBJECTS:
            for line in table(SUBJECTS[subject]()):
                print(line, flush=True)


if __name__ == "__main__":
    main()
