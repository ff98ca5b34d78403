"""docs/memory_changes.md: peaks of memory after a change of the training, predicted from one recording and measured,
and what the change makes of the step.

    python -m benchmarks.memory_changes [--out docs/memory_changes.md]

Measured are the scenarios' own processes (their truth.json), each with one change of the recorded program. The tokens
of the longest pass come with each case where the change has other passes than the recording.
"""

from __future__ import annotations

import argparse
import statistics
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gpuprof
from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.fixes.memory_remedies import memory_fixes
from gpuprof.diagnosis.memory.memory_time import step_with
from gpuprof.diagnosis.projection_input.recorded_subject import subject_of
from gpuprof.projection.memory.footprint import Footprint
from gpuprof.projection.memory.memory_changes import temporaries
from gpuprof.projection.memory.memory_fixes import recorded_footprint
from gpuprof.projection.memory.recorded_memory import RecordedMemory
from scenarios import catalogue

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20


@dataclass(frozen=True)
class Case:
    """A recording, and processes with a change of its program that were measured."""

    recording: str
    what: str
    measured: str
    """The fix of the scenario that was measured."""
    change: str = ""
    """Id of the change in `projection.memory.memory_fixes`; empty: only the passes differ."""
    tokens: int | None = None
    """Tokens of the longest pass of the measured processes; None: as recorded."""


CASES = (
    Case("checkpointing", "no checkpointing", "off", "no_checkpointing"),
    Case("llama8b_cookbook", "no checkpointing", "no_checkpointing", "no_checkpointing"),
    Case("tinyllama_cookbook", "no checkpointing", "no_checkpointing", "no_checkpointing"),
    Case("qwen3_8b_lora", "no checkpointing", "no_checkpointing", "no_checkpointing", 1872),
    Case("qwen3_32b_unsloth", "no checkpointing", "no_checkpointing", "no_checkpointing", 4413),
    Case("eager_attention", "eager → sdpa", "sdpa", "fused_attention"),
    Case("fp32_adapters", "adapters in bf16", "bf16", "half_adapters"),
    Case("llama8b_plain", "adapters in bf16", "bf16_adapters", "half_adapters"),
    Case("optimizer_memory", "fused optimizer", "fused", "fused_optimizer"),
    Case("optimizer_loop", "loop → foreach optimizer", "foreach", "foreach_optimizer"),
    Case("optimizer_loop", "loop → fused optimizer", "fused"),
    Case("small_batch", "batch 1 → 8", "batch_8", "", 8 * 128),
    Case("optimizer_memory", "batch 1 → 8", "batch_8", "", 8 * 256),
    Case("padding", "rows of 360 packed", "packing", "", 16 * 360),
    Case("padding", "batches of like length", "grouped", "", 16 * 200),
    Case("qwen3_8b_unsloth", "batch 4 → 32", "batch_32", "", 4413),
)


@dataclass(frozen=True)
class Result:
    """Peaks in MiB; None: withheld."""

    case: Case
    role: str
    before: float
    peaks: tuple[float, float, float] | None
    measured: float
    why: str = ""
    step_ms: tuple[float, float, float] | None = None
    """Low, expected and high mean step with the change, ms, as `gpuprof memory` predicts it; None if it does not offer
    the change."""
    took_ms: tuple[float, float] | None = None
    """What eight of ten measured steps with the change took, ms."""

    @property
    def step_error(self) -> float | None:
        """Error of the expected step, relative to the middle of the measured ones."""
        if self.step_ms is None or self.took_ms is None:
            return None
        return self.step_ms[1] / statistics.mean(self.took_ms) - 1

    @property
    def step_inside(self) -> bool:
        """Whether the predicted interval meets the measured one."""
        if self.step_ms is None or self.took_ms is None:
            return False
        return self.step_ms[0] <= self.took_ms[1] and self.took_ms[0] <= self.step_ms[2]

    @property
    def error(self) -> float | None:
        return None if self.peaks is None else self.peaks[1] / self.measured - 1

    @property
    def inside(self) -> bool:
        """Within the range and 2 % around it, which is what allocators round and workspaces take."""
        return self.peaks is not None and 0.98 * self.peaks[0] <= self.measured <= 1.02 * self.peaks[2]


def results() -> Iterator[Result]:
    """Those whose recordings are here."""
    for case in CASES:
        entry = catalogue.scenario(case.recording)
        if entry.recording is not None and entry.truth is not None:
            yield result(case)


def result(case: Case) -> Result:
    diagnosis = gpuprof.diagnose(catalogue.ROOT / case.recording / "recording")
    memory = subject_of(diagnosis).memory
    assert memory is not None
    scenario = catalogue.scenario(case.recording)
    changed, why = after(case, memory)
    tokens = case.tokens or memory.recorded.tokens
    peaks = None if changed is None else tuple(one / MIB for one in changed.peak_bytes(tokens))
    before = peak(case.recording, "")
    measured = peak(case.recording, case.measured)
    step = priced(case, analysis_of(diagnosis), memory) if case.tokens is None else None
    took = scenario.measured_ms(case.measured)
    return Result(case, scenario.role, before, peaks, measured, why, step, took)  # type: ignore[arg-type]


def priced(case: Case, analysis: Analysis | None, memory: RecordedMemory) -> tuple[float, float, float] | None:
    """The mean step with the change, ms; None where `gpuprof memory` says none."""
    fix = next((one for one in memory_fixes(memory) if one.id == case.change), None)
    if fix is None or analysis is None:
        return None
    step, _ = step_with([fix], analysis, memory)
    return None if step is None else (step.low / 1e6, step.expected / 1e6, step.high / 1e6)


def after(case: Case, memory: RecordedMemory) -> tuple[Footprint | None, str]:
    """The footprint with the change of a case; None with the reason where gpuprof says none."""
    found = recorded_footprint(memory)
    if not case.change:
        return found, ""
    if case.change == "foreach_optimizer":  # no advice: it takes more memory
        assert memory.trained is not None
        return temporaries(memory.trained.gradient_bytes)(found), ""
    fix = next((one for one in memory_fixes(memory) if one.id == case.change), None)
    if fix is None or fix.change is None:
        return None, fix.unknown if fix else "not offered"
    return fix.change(found), ""


def peak(name: str, fix: str) -> float:
    """The median peak of the processes of a scenario, MiB."""
    truth = catalogue.scenario(name).truth
    assert truth is not None
    return statistics.median(one["peak_mib"] for one in truth["processes"] if one["fix"] == fix)


def summary(found: list[Result]) -> Iterator[str]:
    """Median and worst by role."""
    for role in ("test", "fit"):
        own = [one for one in found if one.role == role]
        steps = [one for one in own if one.step_error is not None]
        errors = [abs(one.error) for one in own if one.error is not None]
        if not errors:
            continue
        programs = len({one.case.recording for one in own if one.error is not None})
        yield (
            f"Role {role}: changes predicted: {len(errors)}, of programs: {programs}; off by "
            f"{100 * statistics.median(errors):.1f} % in the middle and {100 * max(errors):.1f} % at most; "
            f"{sum(one.inside for one in own)} of {len(errors)} in the range."
            + (
                f" Steps predicted: {len(steps)}, off by "
                f"{100 * statistics.median(abs(one.step_error or 0.0) for one in steps):.0f} % in the middle; "
                f"{sum(one.step_inside for one in steps)} of {len(steps)} intervals meet what was measured."
                if steps
                else ""
            )
        )


def page(found: list[Result]) -> Iterator[str]:
    yield INTRODUCTION
    yield (
        "| recording | role | change | before, MiB | predicted | range | measured | off | step, ms: predicted "
        "| measured |"
    )
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for one in found:
        start = f"| {one.case.recording} | {one.role} | {one.case.what} | {one.before:,.0f} "
        if one.peaks is None or one.error is None:
            yield f"{start}| withheld | | {one.measured:,.0f} | | {_steps(one)} |"
            continue
        low, likely, high = one.peaks
        off = f"{100 * one.error:+.1f} %".replace("-", "−")
        yield f"{start}| {likely:,.0f} | {low:,.0f}–{high:,.0f} | {one.measured:,.0f} | {off} | {_steps(one)} |"
    withheld = sorted({one.why for one in found if one.why})
    yield "\n" + "\n\n".join(textwrap.fill(line, 120) for line in summary(found))
    if withheld:
        yield "\n" + textwrap.fill(f"Withheld: {'; '.join(withheld)}.", 120)


def _steps(one: Result) -> str:
    """Two cells: the predicted and the measured step."""
    if one.step_ms is None or one.took_ms is None:
        return " | "
    (least, said, most), (low, high) = one.step_ms, one.took_ms
    return f"{said:,.0f} ({least:,.0f}–{most:,.0f}) | {low:,.0f}–{high:,.0f}"


INTRODUCTION = """\
<!-- Written by python -m benchmarks.memory_changes: change that. -->
# Peaks of memory after a change, predicted and measured

The allocator's peak after one change of the training, predicted from the recording of the unchanged program, next to
the peak of processes in which that change was made. `gpuprof memory RUN` and `gpuprof project` use the same functions.
Numbers of gpuprof/calibration/memory.py were read off scenarios of the role *fit*; those of the role *test* were used
for none. The step with the change is what `gpuprof memory RUN` says that it costs or gains, where it offers the change
and the batches stay the same.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted and measured peaks of memory after a change.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "memory_changes.md")
    args = parser.parse_args()
    text = "\n".join(page(list(results()))) + "\n"
    args.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
