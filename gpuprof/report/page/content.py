"""The page's first lines and tables: headline, tiles, where the GPU waits, kernels, ranges, the environment.

Texts are made printable here; the templates escape them as HTML.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.sentences import gpu_named
from gpuprof.diagnosis.verdict import step_parts
from gpuprof.report import labels
from gpuprof.report.charts.groups import known_roofline
from gpuprof.report.names import escape, shown, shown_kernel
from gpuprof.report.numbers import count, duration, gib, rate, share
from gpuprof.report.words import compiler_words, fixes, host_words, run_words, words
from gpuprof.units import Convention, Rows

KERNEL_ROWS: Convention[Rows] = 12
RANGE_ROWS: Convention[Rows] = 12
FUNCTION_ROWS: Convention[Rows] = 8
"""Rows of the table that replaces the interactive one."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One number to be read at a glance."""

    value: str
    label: str
    note: str = ""


def headline(diagnosis: Diagnosis) -> str:
    """What runs where: GPU, versions, work per step."""
    found = (words.gpus(diagnosis), words.versions(diagnosis), run_words.tokens(diagnosis), _seen_from(diagnosis))
    return " · ".join(filter(None, found))


def _seen_from(diagnosis: Diagnosis) -> str:
    """Whose timeline and kernels these are, where several ranks were diagnosed together."""
    ranks, own = diagnosis.ranks or (), diagnosis.environment.rank
    if len(ranks) < 2 or own is None:
        return ""
    return f"{len(ranks)} ranks, shown: rank {own}"


def tiles(diagnosis: Diagnosis) -> list[Tile]:
    """The few numbers next to the verdict by which people compare runs, if they are known."""
    steps, run, roof = diagnosis.steps, diagnosis.run, diagnosis.roofline
    found: list[Tile] = []
    if steps:
        found.append(_step_tile(diagnosis))
    bars = step_parts.bars(diagnosis)
    if bars:
        busiest = max(bars, key=lambda bar: bar.busy_ns() / max(bar.total_ns, 1))
        found.append(Tile(share(busiest.busy_ns(), busiest.total_ns), "GPU busy", _busy_note(diagnosis)))
    if roof and roof.mfu is not None:
        note = f"HFU {100 * roof.hfu:.1f} %" if roof.hfu and roof.hfu > 1.05 * roof.mfu else "of the dense peak"
        found.append(Tile(f"{100 * roof.mfu:.1f} %", "MFU", note))
    if run and run.throughput.tokens_per_s:
        samples = run.throughput.samples_per_s
        found.append(
            Tile(rate(run.throughput.tokens_per_s), "tokens/s", f"{rate(samples)} samples/s" if samples else "")
        )
    if run and run.memory.peak_bytes:
        size = next((gpu.memory_bytes for gpu in diagnosis.environment.gpus if gpu.memory_bytes), None)
        found.append(Tile(f"{gib(run.memory.peak_bytes)} GiB", "peak memory", f"of {gib(size)} GiB" if size else ""))
    if diagnosis.verdict.confidence is not None:
        trust = f"{diagnosis.verdict.confidence:.2f}"
        found.append(Tile(trust, "confidence in the verdict", fixes.replay_error(diagnosis)))
    return found


def _step_tile(diagnosis: Diagnosis) -> Tile:
    steps = diagnosis.steps
    assert steps is not None
    recorded, each = duration(steps.recorded_ns), diagnosis.unit.a
    if steps.source == "none":
        return Tile(recorded, "recorded", f"no {diagnosis.unit}s were found")
    budget = diagnosis.budget
    if words.of_iteration(diagnosis) and diagnosis.iteration is not None:
        return Tile(duration(diagnosis.iteration.mean_ns), "an iteration, mean", words.usual_step(diagnosis))
    if budget is not None and budget.source == "free":
        return Tile(duration(budget.mean_ns), f"{each}, mean", words.usual_step(diagnosis))
    if steps.unprofiled_ns is not None:
        return Tile(duration(steps.unprofiled_ns), f"{each}, measured", words.usual_step(diagnosis))
    if steps.estimated_ns is not None:
        return Tile(f"≈ {duration(steps.estimated_ns)}", f"{each}, estimated", words.usual_step(diagnosis))
    return Tile(recorded, each, "as recorded")


def _busy_note(diagnosis: Diagnosis) -> str:
    return "without the profiler" if step_parts.estimated(diagnosis) else "as recorded"


def waits(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """Idle time per step, by the phase of the work that follows it."""
    gaps, steps = diagnosis.gaps, diagnosis.steps.count if diagnosis.steps else 1
    if gaps is None:
        return []
    return [
        (shown(p.phase, 20), duration(p.ns / steps), f"{count(p.count / steps)}", words.waits_for(p))
        for p in gaps.by_phase
        if p.ns
    ]


def kernels(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """The kernels that take longest, per step."""
    found, steps = diagnosis.kernels, diagnosis.steps.count if diagnosis.steps else 1
    if found is None:
        return []
    return [
        (
            shown_kernel(k.name, 90),
            labels.category(k.category),
            shown(k.op, 60),
            duration(k.ns / steps),
            share(k.ns, found.total_ns),
            count(round(k.count / steps, 1)),
        )
        for k in found.top[:KERNEL_ROWS]
    ]


def environment(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Where and how this was recorded."""
    source, where, steps = diagnosis.source, diagnosis.environment, diagnosis.steps
    rows = [("recording", shown(source.path, 200)), ("kind", source.kind)]
    if source.events:
        rows += [("size", _size(source.bytes)), ("events", count(source.events))]
    for gpu in where.gpus:
        memory = f", {gib(gpu.memory_bytes)} GiB" if gpu.memory_bytes else ""
        rows.append((gpu_named(gpu.device, len(where.gpus)), shown(gpu.name, 80) + memory))
    if where.rank is not None and words.has_peers(where):
        rows.append(("rank", f"{where.rank}" + (f" of {where.world_size}" if where.world_size else "")))
    if steps:
        by = shown(steps.name, 80) if steps.name else steps.source.replace("_", " ")
        rows.append(("steps", f"{steps.count} by {by}" if steps.source != "none" else "none found"))
    rows += [
        (shown(name.replace("_", " "), 60), shown(words.version(name, value), 120))
        for name, value in sorted(where.versions.items())
    ]
    rows += run_words.named_lines(diagnosis)
    rows += [("torch.compile", line) for line in compiler_words.lines(diagnosis)]
    ceilings = diagnosis.roofline.ceilings if diagnosis.roofline else {}
    if ceilings:
        rows.append(("ceilings", f"{ceilings['gpu']} ({ceilings['source']})"))
    return rows


def _size(n: int) -> str:
    return f"{n / 1e6:,.1f} MB" if n >= 1e5 else f"{n / 1e3:,.1f} kB"


def lacks(diagnosis: Diagnosis) -> list[str]:
    """What this recording cannot show, said in words instead of empty charts."""
    found = []
    if diagnosis.sensitivities is None and diagnosis.replay.reason:
        found.append(f"No predictions: {escape(diagnosis.replay.reason)}.")
    if diagnosis.kernels is not None and diagnosis.roofline is None:
        found.append("No roofline: the ceilings of this GPU are not known.")
    elif diagnosis.roofline is not None and known_roofline(diagnosis) is None:
        found.append("No roofline: the FLOPs and bytes of the kernels are not known from this recording.")
    return found


def ranges(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """The user's ranges, except the steps themselves: CPU (host) time per step, and what the GPU did for them."""
    steps = diagnosis.steps.count if diagnosis.steps else 1
    own = (diagnosis.steps.name if diagnosis.steps else None, "ProfilerStep#")
    named = [one for one in diagnosis.ranges if one.name not in own]
    return [
        (
            shown(one.name, 80),
            count(round(one.count / steps, 1)),
            duration(one.ns / steps),
        )
        if not diagnosis.devices
        else (
            shown(one.name, 80),
            count(round(one.count / steps, 1)),
            duration(one.ns / steps),
            duration(one.busy_ns / steps) if one.launches else "–",
            count(round(one.launches / steps, 1)),
        )
        for one in named[:RANGE_ROWS]
    ]


def functions(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """The Python functions that the answer names: line of the user's code, name, time per step, the step without it."""
    found = host_words.worth_saying(diagnosis)[:FUNCTION_ROWS]
    now = diagnosis.step_ns
    priced = any(one.step_ns is not None for one in found)
    return [
        (
            shown(host_words.line_of(one, found), 80),
            shown(host_words.name(one), 80),
            host_words.time(one, diagnosis),
            *((host_words.gain(one, now).removesuffix(" without it"),) if priced else ()),
        )
        for one in found
    ]


def activity(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """What the GPU's counters showed while the work of each phase ran."""
    return [
        (
            one.phase,
            duration(one.busy_ns / (diagnosis.steps.count if diagnosis.steps else 1)),
            *(
                "–" if value is None else f"{value:.0f} %"
                for value in (one.sm_percent, one.tensor_percent, one.dram_percent)
            ),
        )
        for one in diagnosis.activity or ()
    ]
