"""Collectives: how long they take, and what hides them."""

from __future__ import annotations

from gpuprof.calibration.number import Number

START_NS = Number(
    50_000.0, 4_000.0, 100_000.0, "ns", "assumed",
    "What a collective may take however little it moves. Small ones took 4 to 20 µs after the last rank's arrival on "
    "hosts of 2 H200s and of 8 V100s; networks between hosts are slower, by how much is not measured.",
)  # fmt: skip
LINK_SHARE = Number(
    0.2, 0.15, 0.4, "", "measured",
    "Share of one direction of a GPU's link that an all-reduce of a usual bucket reaches: 24 MB on two H200s reached "
    "88 of 450 GB/s.",
    ("scenarios/ddp_scaling/recording",),
)  # fmt: skip
BETWEEN_HOSTS_BYTES_PER_S = Number(
    10e9, 5e9, 50e9, "bytes/s", "assumed",
    "Where no fast link is known: four fifths of a 100 Gb/s network. A recording's own collectives take precedence.",
)  # fmt: skip
HIDDEN = Number(
    0.6, 0.25, 0.85, "", "published",
    "Share of exposed transfers that finds computation to hide behind with prefetching and suitable buckets: Zhao et "
    "al. (2023) on FSDP and Li et al. (2020) on DDP report 40 to 90 % overlap.",
)  # fmt: skip
GIVEN_BACK = Number(
    0.4, 0.2, 1.0, "", "published",
    "Share of what is hidden that comes back as longer kernels, as a transfer takes SMs, bandwidth and power: Lee et "
    "al. (2025) measured computation slower by 19 % on average, at most by 40 %. FSDP on two H200s at their power "
    "limit hid 6.8 ms, all of which came back.",
    ("scenarios/fsdp_exposed/recording", "scenarios/fsdp_exposed/fixed"),
)  # fmt: skip
RING_SHARE = Number(
    0.75, 0.5, 0.9, "", "assumed",
    "Share of one direction's rate that a ring reaches over NVLink with large messages, on a host that was not "
    "recorded.",
)  # fmt: skip
RING_PCIE_SHARE = Number(
    0.5, 0.3, 0.8, "", "assumed",
    "The same over PCIe, where GPUs share the path through the host.",
)  # fmt: skip
RING_START_NS = Number(
    10_000.0, 6_000.0, 15_000.0, "ns", "assumed",
    "What starting a collective takes, times the binary logarithm of the number of GPUs: 20 to 40 µs for eight.",
)  # fmt: skip
SETTLING_STEPS = Number(
    12.0, 6.0, 24.0, "", "assumed",
    "Steps over which several ranks are replayed before a step is read off: ranks that run ahead of the slowest are "
    "held back by what they have queued. Twice the six that eight ranks of a public recording, with one step each, "
    "took until the step was that of the slowest.",
)  # fmt: skip
WRAPPER_CASTS = Number(
    0.3, 0.0, 0.8, "", "assumed",
    "Share of the kernels of DDP or FSDP around a single process that stay without it: casts of weights for mixed "
    "precision, which autocast makes as well.",
)  # fmt: skip
NO_WRAPPER_ODDS = Number(
    0.8, 0.5, 0.95, "", "assumed",
    "Probability that a run of one process needs no wrapper for several, that is, does not test a larger job.",
)  # fmt: skip
