"""Exports with the GPU's counters."""

from __future__ import annotations

from helpers.make_nsys import NsysBuilder

SM, TENSOR = "SMs Active [Throughput %]", "Tensor Active [Throughput %]"
DRAM = ("DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]")


def sampled(
    samples: dict[str, list[tuple[int, int]]], work: list[tuple[int, int]], window: tuple[int, int]
) -> NsysBuilder:
    """Kernels, each launched just before it runs, in one step; counters by name as (time, percent)."""
    builder = NsysBuilder().gpu_info(number=1, device=0).range("step", *window).range("step", window[1], window[1] + 1)
    for i, (start, end) in enumerate(work):
        builder.launch(f"k{i}", (start - 2, start - 1), (start, end), stream=7 + i)
    for number, (name, values) in enumerate(samples.items()):
        builder.metric(number, name, gpu=1)
        for at, percent in values:
            builder.sample(number, at, percent, gpu=1)
    return builder
