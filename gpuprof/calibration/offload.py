"""Keeping weights, gradients, optimizer states or activations in host memory."""

from __future__ import annotations

from gpuprof.calibration.number import Number

LEAST_BYTES = Number(
    64e6, 16e6, 256e6, "bytes", "assumed",
    "Bytes a step in one direction from which on copies between host and GPU are more than batches and losses: a batch "
    "of images is as large, but goes one way only.",
)  # fmt: skip
STATE_BYTES = Number(
    12.0, 8.0, 16.0, "bytes", "published",
    "Bytes of an offloaded Adam per parameter: fp32 weights and two moments; with gradients in fp32 16 (Ren et al., "
    "2021, ZeRO-Offload).",
)  # fmt: skip
TRAFFIC_BYTES = Number(
    28.0, 22.0, 34.0, "bytes", "assumed",
    "Bytes moved per parameter by a fused Adam step on the GPU, which reads gradient, weight and two moments, and "
    "writes the latter three.",
)  # fmt: skip
STAYS = Number(
    0.15, 0.0, 0.4, "", "assumed",
    "Share of the long CPU stretches of a step that offloads its optimizer which is not the optimizer's: hooks, "
    "bookkeeping of buckets, checks for overflow.",
)  # fmt: skip
HOOKS_STAY = Number(
    0.0, 0.0, 0.4, "", "assumed",
    "Share of the CPU's work around copies of weights or activations that stays at least without them: hooks of other "
    "kinds.",
)  # fmt: skip
FUSED_LEFT = Number(
    0.4, 0.25, 0.7, "", "assumed",
    "Time of a fused optimizer step on the CPU, relative to that of its ops one after another: 28 bytes for each "
    "parameter instead of some 76 for AdamW's, by as many cores.",
)  # fmt: skip
LEAST_SILENCE = Number(
    0.1, 0.05, 0.2, "", "assumed",
    "Share of the step in stretches without a launch from which on an optimizer runs on the CPU, wherever its copies "
    "are: Python between the ops of a training on the GPU takes less at a stretch.",
)  # fmt: skip
PINNED_RESULTS = Number(
    0.6, 0.3, 0.8, "", "assumed",
    "Probability that pinning gains what the replay says where the CPU computes what is copied in each step: its "
    "results have to be written into pinned buffers, or are copied once more in host memory.",
)  # fmt: skip
CAST_RATE = Number(
    2e9, 1e9, 4e9, "bytes/s", "assumed",
    "Bytes of the wider type that a core of the CPU casts a second, to a narrower one or from it, where the memory may "
    "be new and its pages are written for the first time; torch shares a cast among the cores. Chosen with the "
    "gain of one program in view.",
    ("scenarios/programs/loss_on_cpu/recording",),
)  # fmt: skip
CAST_CORES = Number(
    8.0, 4.0, 16.0, "cores", "assumed",
    "Cores from which on host memory limits such a cast.",
)  # fmt: skip
CAST_ODDS = Number(
    0.8, 0.5, 0.95, "", "assumed",
    "Probability that a narrower copy between CPU and GPU gains what the replay says: what the cast on the CPU costs, "
    "and who does it, is assumed.",
)  # fmt: skip
RARER_COPIES = Number(
    0.8, 0.5, 0.95, "", "assumed",
    "Probability that weights or gradients that the CPU averages or measures in each step, without sending anything "
    "back, may be copied in some steps only.",
)  # fmt: skip
