"""Why a mixture of experts ties on an H100 and an RTX PRO 6000 Max-Q where a dense model is 2.5 times as fast on one.

    python examples/moe_on_h100_and_rtx_pro_6000/case.py

Projects recordings of an H200 to both GPUs, compares the result with what was published, and writes README.md next to
this file. The mixture's is that of scenarios/gpt_oss_20b_unsloth; the dense model's are next to this file, of
scenarios/qwen3_32b_unsloth with padded batches (UNSLOTH_PADDING_CHOICE=padded), of short samples and with --data long,
on an H200 and, to see how well the projection does, on an H100.
"""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuprof
from gpuprof.projection.projection import MemoryFit, OnGpu, Projection

HERE = Path(__file__).parent
SCENARIOS = HERE.parents[1] / "scenarios"
H100, MAX_Q = "H100 SXM5 80GB", "RTX PRO 6000 Blackwell Max-Q"
MOE = SCENARIOS / "gpt_oss_20b_unsloth" / "recording"
DENSE = {data: HERE / "recordings" / "h200" / f"dense_{data}" for data in ("ds1", "ds2")}
DENSE_ON_H100 = {data: HERE / "recordings" / "h100" / f"dense_{data}" for data in ("ds1", "ds2")}
HOSTS = (0.5, 1.0, 2.0)
BATCH = 32
TOKENS = {"ds1": 117, "ds2": 861}
"""Mean tokens of a sample, as published; how much padding there was is not."""
SAMPLES_PER_HOUR = {
    ("dense", "ds1"): (27_000, 11_000), ("dense", "ds2"): (9_200, 3_600),
    ("moe", "ds1"): (9_200, 9_400), ("moe", "ds2"): (5_200, 7_300),
}  # fmt: skip
"""As published: (H100, Max-Q). Batch 32, but 16 for the mixture's ds2 on the H100, which only held that."""
WHOLE = {"moe": {"layers": 36, "experts": 128}, "dense": {"layers": 64}}
"""gpt-oss-120b has the layers and experts of gpt-oss-20b, more of them; the recordings hold few of the layers."""
SIXTEEN = {("moe", "ds2"): 16}
TARGETS = {"dense": 0.10, "tie": 0.10, "ds2": 0.15}
"""How near the projection was to come before it was made."""


@dataclass(frozen=True)
class Case:
    """The recordings, diagnosed: of the dense model one for each set of data."""

    moe: gpuprof.Diagnosis
    dense: dict[str, gpuprof.Diagnosis]

    def on(self, what: str, data: str, host: float | None, batch: int = BATCH) -> dict[str, OnGpu]:
        """Both GPUs by name, with the same batch whether it fits or not."""
        found = self._projected(what, data, batch=batch, host_factor=host, whole_batch=True)
        return {one.gpu: one for one in found.gpus}

    def explained(self, what: str, data: str, host: float) -> Projection:
        return self._projected(what, data, batch=BATCH, host_factor=host, explain=(MAX_Q, H100))

    def _projected(self, what: str, data: str, **asked: Any) -> Projection:
        """The dense model's batches are as they were recorded, the mixture's of as many tokens as its data has."""
        if what == "dense":
            return gpuprof.project(self.dense[data], [H100, MAX_Q], **WHOLE[what], **asked)
        return gpuprof.project(self.moe, [H100, MAX_Q], sample_tokens=TOKENS[data], **WHOLE[what], **asked)

    def host_of_ds1(self) -> float:
        """The host factor with which the mixture's ds1 takes on the H100 what was published: of one figure, by
        bisection."""
        wanted = step_s("moe", "ds1", 0)
        low, high = 0.2, 3.0
        for _ in range(20):
            middle = math.sqrt(low * high)
            took = self.on("moe", "ds1", middle)[H100].step_ns.expected / 1e9
            low, high = (middle, high) if took < wanted else (low, middle)
        return math.sqrt(low * high)


def step_s(what: str, data: str, gpu: int) -> float:
    """The published step: samples of a batch over samples a second."""
    batch = SIXTEEN.get((what, data), BATCH) if gpu == 0 else BATCH
    return batch / SAMPLES_PER_HOUR[what, data][gpu] * 3600


def filled(text: str) -> str:
    """A paragraph, and the blank line after it."""
    return textwrap.fill(text, 120) + "\n"


def seconds(ns: float) -> str:
    return f"{ns / 1e9:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "README.md")
    args = parser.parse_args()
    args.out.write_text("\n".join(page(recorded())) + "\n", encoding="utf-8")


def recorded() -> Case:
    return Case(gpuprof.diagnose(MOE), {data: gpuprof.diagnose(path) for data, path in DENSE.items()})


def page(case: Case) -> Iterator[str]:
    ds1_host = case.host_of_ds1()
    hosts = sorted({*HOSTS, ds1_host})
    yield INTRODUCTION
    yield from _mixture(case, hosts, ds1_host)
    yield from _dense(case, hosts, ds1_host)
    yield from _memory(case)
    yield from _targets(case, ds1_host)
    yield from _words(case, ds1_host)
    yield ENDING


def _named(host: float, ds1_host: float) -> str:
    names = {1.0: " (recorded)", ds1_host: " (from ds1)"}
    return f"{host:.2f}{names.get(host, '')}"


def _mixture(case: Case, hosts: list[float], ds1_host: float) -> Iterator[str]:
    yield "## The mixture: gpt-oss-120b, QLoRA, one expert after another\n"
    yield (
        "| host factor | ds1 H100 | ds1 Max-Q | tie | ds2 H100, 16 | ds2 Max-Q, 32 | Max-Q ahead | ds2 tie at 16 |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    for host in hosts:
        ds1, ds2, half = case.on("moe", "ds1", host), case.on("moe", "ds2", host), case.on("moe", "ds2", host, 16)
        cells = [
            seconds(ds1[H100].step_ns.expected), seconds(ds1[MAX_Q].step_ns.expected),
            f"{ds1[MAX_Q].step_ns.expected / ds1[H100].step_ns.expected:.2f}×",
            seconds(half[H100].step_ns.expected), seconds(ds2[MAX_Q].step_ns.expected), f"{ahead(half, ds2):.2f}×",
            f"{half[MAX_Q].step_ns.expected / half[H100].step_ns.expected:.2f}×",
        ]  # fmt: skip
        yield f"| {_named(host, ds1_host)} | {' | '.join(cells)} |"
    steps = [step_s("moe", data, gpu) for data in ("ds1", "ds2") for gpu in (0, 1)]
    yield (
        f"| **published** | {steps[0]:.1f} s | {steps[1]:.1f} s | {steps[1] / steps[0]:.2f}× | {steps[2]:.1f} s | "
        f"{steps[3]:.1f} s | {7300 / 5200:.2f}× | – |\n"
    )
    one = case.on("moe", "ds1", 1.0)[H100]
    yield filled(
        f"With a GPU that took no time a ds1 step would still take {seconds(one.host_floor_ns)} of "
        f"{seconds(one.step_ns.expected)} at host factor 1: the host launches each expert's few small kernels, and "
        "waits between experts. That is the tie. Half the batch costs the host the same, so where only one of the two "
        "holds 32 samples it gets nearly twice as much out of every step, less what its slower memory takes back. How "
        "much that is depends on the host: with one twice as fast the Max-Q would not be ahead, its 32 samples "
        "limited by "
        "memory. The recorded attention writes its scores to memory, and they grow with the square of a sample's "
        "length; that holds the Max-Q back at ds2. A fused or compiled attention, as may have been measured, would not."
    )


def ahead(half: dict[str, OnGpu], whole: dict[str, OnGpu]) -> float:
    """Samples an hour on the Max-Q with 32 over those on the H100 with 16."""
    return (whole[MAX_Q].samples_per_hour or 0) / (half[H100].samples_per_hour or 1)


def _dense(case: Case, hosts: list[float], ds1_host: float) -> Iterator[str]:
    yield "## The dense model: Qwen3-32B, QLoRA\n"
    yield (
        "| host factor | ds1 H100 | ds1 Max-Q | H100 faster | ds2 H100 | ds2 Max-Q | H100 faster | 80 % |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    for host in hosts:
        row = []
        for data in ("ds1", "ds2"):
            found = case.on("dense", data, host)
            row += [seconds(found[name].step_ns.expected) for name in (H100, MAX_Q)] + [f"{faster(found):.2f}×"]
        low = found[MAX_Q].step_ns.low / found[H100].step_ns.expected
        high = found[MAX_Q].step_ns.high / found[H100].step_ns.expected
        yield f"| {_named(host, ds1_host)} | {' | '.join(row)} | {low:.1f}–{high:.1f}× |"
    steps = [step_s("dense", data, gpu) for data in ("ds1", "ds2") for gpu in (0, 1)]
    yield (
        f"| **published** | {steps[0]:.1f} s | {steps[1]:.1f} s | {steps[1] / steps[0]:.2f}× | {steps[2]:.1f} s | "
        f"{steps[3]:.1f} s | {steps[3] / steps[2]:.2f}× | |\n"
    )
    one = case.on("dense", "ds2", ds1_host)
    rates = [found.rates for found in (one[H100], one[MAX_Q])]
    yield filled(
        f"Arithmetic differs by {rates[0].half_flops / rates[1].half_flops:.2f}× once the Max-Q's 300 W are counted "
        f"({rates[0].half_flops / 1e12:,.0f} against {rates[1].half_flops / 1e12:,.0f} TFLOP/s; the datasheets say "
        f"2.25×), memory by {rates[0].memory_bytes_per_s / rates[1].memory_bytes_per_s:.2f}×. The batches are padded "
        "to their longest sample, as they usually are: four fifths of the GPU's time are matrix multiplications, and "
        "the ratio comes near that of the arithmetic. Adapters, activations, normalisation, casts and dequantisation "
        "scale with memory bandwidth and keep it a little below. How many tokens of the published batches were "
        "padding is "
        "not known; by their times ds1 held about as many as the recorded ones, ds2 little more than half as many (the "
        "recorded ones have nearly 2,048 for every sample), which moves the ratio little. Without padding "
        "(scenarios/qwen3_32b_unsloth) ds1 would be bound by the host on the H100, and the ratio only 1.3× with the "
        "recorded host: that is not what was measured."
    )
    yield "The same recordings, projected to an H100 and recorded on one:\n"
    yield "| 8 layers | H200 | H100, projected | 80 % | H100, measured | |"
    yield "|---|---:|---:|---:|---:|---:|"
    for data, path in DENSE_ON_H100.items():
        there = gpuprof.project(case.dense[data], [H100], host_factor=1.0, whole_batch=True).gpus[0].step_ns
        here, measured = (found.run.baseline.free_ns for found in (case.dense[data], gpuprof.diagnose(path)))
        off = f"{100 * (there.expected / measured - 1):+.1f} %".replace("-", "−")
        yield (
            f"| {data} | {here / 1e6:,.0f} ms | {there.expected / 1e6:,.0f} ms | "
            f"{there.low / 1e6:,.0f}–{there.high / 1e6:,.0f} ms | {measured / 1e6:,.0f} ms | {off} |"
        )
    yield ""


def faster(found: dict[str, OnGpu]) -> float:
    return found[MAX_Q].step_ns.expected / found[H100].step_ns.expected


def _memory(case: Case) -> Iterator[str]:
    yield "## What fits\n"
    yield "| | weights, adapters, optimizer | a step's activations, batch 32 | H100 holds | Max-Q holds | published |"
    yield "|---|---:|---:|---:|---:|---|"
    for what, data, said in (("moe", "ds1", "both 32"), ("moe", "ds2", "16 and 32"), ("dense", "ds2", "both 32")):
        found = case.on(what, data, 1.0)
        memory = [found[name].memory for name in (H100, MAX_Q)]
        assert memory[0] is not None
        assert memory[1] is not None
        yield (
            f"| {what} {data} | {memory[0].static_bytes / 1e9:.0f} GB | {memory[0].activation_bytes / 1e9:.0f} GB | "
            f"{_holds(memory[0])} | {_holds(memory[1])} | {said} |"
        )
    yield "\n" + filled(
        "Likely batches, and the ends of what they may be. The mixture's weights and its adapters on every expert "
        "leave the H100 a few GB and the Max-Q three times as much: the reason of the published 16 against 32, which "
        "lie in their ranges. The recorded loss goes through the logits in four pieces, uncompiled, with three copies "
        "of a piece in single precision; pieces that are compiled, or made smaller where memory is short, leave room "
        "for "
        "more samples, which is the upper end. If all of the recorded peak went with the tokens it would be the lower "
        "one. The steps above use the published batches."
    )


def _holds(memory: MemoryFit) -> str:
    return f"{memory.largest_batch} ({memory.largest_batch_low}–{memory.largest_batch_high})"


def _targets(case: Case, ds1_host: float) -> Iterator[str]:
    yield "## What was to be met\n"
    yield "| | published | projected, recorded host | projected, host from ds1 | within |\n|---|---:|---:|---:|---|"
    rows = []
    for data in ("ds1", "ds2"):
        wanted = step_s("dense", data, 1) / step_s("dense", data, 0)
        rows.append((f"dense {data}: H100 faster", wanted, lambda h, d=data: faster(case.on("dense", d, h)), "dense"))
    wanted = step_s("moe", "ds1", 1) / step_s("moe", "ds1", 0)
    rows.append(("MoE ds1 at equal batch: Max-Q's step over the H100's", wanted,
                 lambda h: faster(case.on("moe", "ds1", h)), "tie"))  # fmt: skip
    rows.append(("MoE ds2: Max-Q (32) ahead of H100 (16)", 7300 / 5200,
                 lambda h: ahead(case.on("moe", "ds2", h, 16), case.on("moe", "ds2", h)), "ds2"))  # fmt: skip
    for name, wanted, projected, target in rows:
        cells = [_judged(projected(host), wanted, TARGETS[target]) for host in (1.0, ds1_host)]
        yield f"| {name} | {wanted:.2f}× | {' | '.join(cells)} | {100 * TARGETS[target]:.0f} % |"
    yield "\n" + filled(
        f"Host factor 1 is the recorded host, fitted to nothing; {ds1_host:.2f} is what the H100's ds1 step implies, "
        "one figure that serves both machines. Nothing was fitted to ds2, to the Max-Q, or to what was published of "
        "the dense model; how far kernels scale with memory bandwidth was learnt from its recordings on an H200 and "
        "an H100 ([other_gpus.md](../../docs/other_gpus.md))."
    )


def _judged(found: float, wanted: float, within: float) -> str:
    off = found / wanted - 1
    return f"{found:.2f}× ({100 * off:+.1f} %, {'met' if abs(off) <= within else '**missed**'})".replace("-", "−")


def _words(case: Case, ds1_host: float) -> Iterator[str]:
    yield "## In gpuprof's own words\n"
    for what, data in (("moe", "ds1"), ("moe", "ds2"), ("dense", "ds2")):
        explanation = case.explained(what, data, ds1_host).explanation
        assert explanation is not None
        yield f"**{what} {data}**, host factor {ds1_host:.2f}, with the batches that it finds to fit:\n"
        yield filled(explanation.summary)
        for number, reason in enumerate(explanation.reasons, 1):
            factor = "" if reason.factor is None else f" {reason.factor:.2f}×"
            yield f"{number}. {reason.id.replace('_', ' ')}{factor}: {reason.text}"
        yield ""


INTRODUCTION = """\
<!-- Written by case.py: change that. -->
# Why a mixture of experts ties where a dense model does not

Published measurements of two GPUs with two models and two data sets, in samples per hour:

| | qwen3-32b ds1 / ds2 | gpt-oss-120b ds1 / ds2 |
|---|---|---|
| RTX PRO 6000 Max-Q (96 GB, 300 W) | 11000 / 3600 | 9400 / 7300 |
| H100 SXM (80 GB, 700 W) | 27000 / 9200 | 9200 / 5200 |

Samples have 117 and 861 tokens on average, a batch has 32, but on the H100 only 16 of gpt-oss-120b's ds2 fitted. The
H100 is 2.5 times as fast with the dense model, no faster with the mixture, and behind where its memory is too small.

The projection starts from recordings of an H200 (8 of Qwen3-32B's 64 layers; 4 layers of gpt-oss-20b, whose layers and
experts are as wide as those of gpt-oss-120b, of which there are 36 and 128) and knows nothing of these figures.
The reasons, largest first: **the host's floor, what batch fits, the host's speed, arithmetic, bandwidth.**
"""
ENDING = """\
By hand:

    gpuprof project scenarios/gpt_oss_20b_unsloth/recording --layers 36 --experts 128 --batch 32 --sample-tokens 861 \\
        --to "H100 SXM,RTX PRO 6000 Max-Q" --explain "RTX PRO 6000 Max-Q" "H100 SXM"
"""


if __name__ == "__main__":
    main()
