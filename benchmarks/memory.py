"""docs/memory.md: peaks of memory that are predicted from one recording, next to peaks that were measured.

    python -m benchmarks.memory [--out docs/memory.md]

Measured are the scenarios' own processes (their truth.json): with another batch, with longer or shorter passes, or of a
model of more experts, none of which is part of the recording that it is predicted from.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gpuprof
from gpuprof.diagnosis.projection_input.recorded_subject import subject_of
from gpuprof.projection.memory.recorded_memory import usage
from gpuprof.projection.subject import Subject
from scenarios import catalogue

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20


@dataclass(frozen=True)
class Case:
    """A recording, and processes of another batch or another model that were measured."""

    recording: str
    what: str
    tokens: int
    """Tokens of the largest forward pass of the measured processes, padding included if the stack pads. Trainers
    shuffle generated samples of known lengths with a known seed, so it can be computed also if passes differ."""
    fix: str = ""
    measured: str | None = None
    """Another scenario, if the measured processes are not of the recorded one."""
    layers: int | None = None
    experts: int | None = None


CASES = (
    Case("small_batch", "batch 1 → 8", 8 * 128, "batch_8"),
    Case("optimizer_memory", "batch 1 → 8", 8 * 256, "batch_8"),
    Case("padding", "rows of 360 packed", 16 * 360, "packing"),
    Case("padding", "batches of like length", 16 * 200, "grouped"),
    Case("qwen3_8b_lora", "a pass longer than any recorded", 1872),
    Case("qwen3_8b_qlora", "a pass longer than any recorded", 1872),
    Case("qwen3_8b_unsloth", "a shorter pass", 743),
    Case("qwen3_8b_unsloth", "batch 4 → 32", 4413, "batch_32"),
    Case("qwen3_32b_unsloth", "a pass longer than any recorded", 4413),
    Case("gpt_oss_20b_unsloth", "a pass longer than any recorded", 6664),
    Case("gpt_oss_20b_unsloth", "layers 4 → 2, experts 32 → 128, batch 8 → 32", 15808, "", "gpt_oss_120b_unsloth", 2,
         128),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Peaks in MiB."""

    case: Case
    static: float
    tokens: float
    """Tokens of the pass that made the recorded peak."""
    grown: float
    """Predicted as if all of the recorded peak except weights and state scaled with the tokens."""
    low: float
    predicted: float
    high: float
    basis: str
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def grown_error(self) -> float:
        return self.grown / self.measured - 1

    @property
    def inside(self) -> bool:
        """Within the range and 2 % around it, which is what allocators round and workspaces take."""
        return 0.98 * self.low <= self.measured <= 1.02 * self.high


@functools.cache
def subject(name: str) -> Subject:
    return subject_of(gpuprof.diagnose(catalogue.ROOT / name / "recording"))


def results() -> Iterator[Result]:
    """Those whose recordings are here."""
    for case in CASES:
        entry = catalogue.scenario(case.measured or case.recording)
        if catalogue.scenario(case.recording).recording is not None and entry.truth is not None:
            yield result(case)


def result(case: Case) -> Result:
    known = subject(case.recording)
    memory, layers = known.memory, known.layers
    assert memory is not None
    recorded = memory.recorded
    deeper = case.layers / layers.count if case.layers and layers else 1.0
    wider = case.experts / known.experts if case.experts and known.experts else 1.0
    more = case.layers - layers.count if case.layers and layers else 0
    use = usage(memory, deeper, wider, more)
    low, predicted, high = ((use.static_bytes + above) / MIB for above in use.activations.at(case.tokens))
    return Result(
        case=case,
        static=use.static_bytes / MIB,
        tokens=recorded.tokens,
        grown=(use.static_bytes + recorded.above_bytes * case.tokens / recorded.tokens) / MIB,
        low=low,
        predicted=predicted,
        high=high,
        basis=use.activations.basis,
        measured=_measured(case),
    )


def _measured(case: Case) -> float:
    """The median peak of the processes, MiB."""
    truth = catalogue.scenario(case.measured or case.recording).truth
    assert truth is not None
    return statistics.median(one["peak_mib"] for one in truth["processes"] if one["fix"] == case.fix)


def page(found: list[Result]) -> Iterator[str]:
    yield INTRODUCTION
    yield (
        "| recording | measured | tokens of the pass | by | predicted, MiB | range | measured, MiB | off "
        "| all in proportion |\n|---|---|---:|---|---:|---:|---:|---:|---:|"
    )
    for one in found:
        case = one.case
        yield (
            f"| {case.recording} | {case.what} | {one.tokens:,.0f} → {case.tokens:,} | {one.basis} "
            f"| {one.predicted:,.0f} | {one.low:,.0f}–{one.high:,.0f} | {one.measured:,.0f} | {_percent(one.error)} "
            f"| {_percent(one.grown_error)} |"
        )
    errors = [abs(one.error) for one in found]
    grown = [abs(one.grown_error) for one in found]
    yield "\n" + textwrap.fill(
        f"The median error is {100 * statistics.median(errors):.1f} %, the largest {100 * max(errors):.1f} %; if all "
        f"of the peak grew in proportion to the tokens, they would be {100 * statistics.median(grown):.1f} % and "
        f"{100 * max(grown):.0f} %. {sum(one.inside for one in found)} of {len(found)} lie in the range.",
        120,
    )


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


INTRODUCTION = """\
<!-- Written by python -m benchmarks.memory: change that. -->
# Peaks of memory, predicted and measured

The allocator's peak of another batch, of longer passes, or of another model with the same layers, predicted from one
recording, as `gpuprof project` uses it to decide what fits. By: *measured*, a line through the peaks of the run's own
passes; *grows*, everything in the recorded peak above weights and state grows; *shape*, from the model's shape, with a
constant rest; *optimizer*, the recorded peak is the optimizer's step. Details: [projection.md](projection.md).

The constants of the shape (bytes per logit, bytes that a layer keeps) come from these and other scenarios' recordings,
so the rows by *shape* do not test the constants, only that they hold for both recordings of a row.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted and measured peaks of memory.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "memory.md")
    args = parser.parse_args()
    text = "\n".join(page(list(results()))) + "\n"
    args.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
