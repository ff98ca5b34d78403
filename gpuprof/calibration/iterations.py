"""Iterations of RL post-training: when a series of passes is decoding, and what a change of an iteration is worth."""

from __future__ import annotations

from gpuprof.calibration.number import Number

LEAST_TOKENS = Number(
    8.0, 4.0, 16.0, "passes", "assumed",
    "Passes of one token a sequence, one after another, that are taken to be decoding: a training passes whole "
    "sequences, and a program that measures a single token does not do it this often in a row.",
)  # fmt: skip
LEAST_GAIN = Number(
    0.03, 0.02, 0.05, "", "assumed",
    "Share of the iteration below which a change is not worth a line.",
)  # fmt: skip
WAITS = Number(
    0.3, 0.1, 0.7, "", "assumed",
    "A reward function whose thread uses less CPU time than this share of its wall time waits for something else: "
    "functions that wait use next to nothing, functions that compute nearly all of it.",
)  # fmt: skip
REWARD_PROCESSES = Number(
    8.0, 4.0, 16.0, "processes", "assumed",
    "Processes that score completions where the number of the machine's cores is not known.",
)  # fmt: skip
SPREAD = Number(
    0.1, 0.05, 0.3, "", "assumed",
    "Half the interval of an expected iteration, as a share of the time that changes: decode steps and waits of "
    "different iterations differ by about this.",
)  # fmt: skip
BOUND = Number(
    0.1, 0.05, 0.2, "", "assumed",
    "Share of the iteration that one side waits for the other, from which on the other side limits the job.",
)  # fmt: skip
TAIL = Number(
    0.5, 0.2, 0.9, "", "assumed",
    "Share of the time between the mean and the longest completion of an iteration that is gained if the longest need "
    "not be waited for: part of the mean ones' time is spent at the pace of a full batch. RollPacker (2025) reports "
    "iterations 2.0 to 2.6 times as fast.",
)  # fmt: skip
SCALES = Number(
    0.85, 0.6, 1.0, "", "assumed",
    "Completions per second with twice the GPUs for generation, over twice those with the present ones.",
)  # fmt: skip
ENGINE = Number(
    5.0, 2.0, 15.0, "", "published",
    "Tokens per second of a serving engine over those of transformers.generate: 8.5 to 15 for three completions of a "
    "prompt, 14 to 24 for single ones, with requests of different lengths (vLLM's announcement, June 2023); less where "
    "generate's batch is full to the end.",
)  # fmt: skip
SYNC_RATE = Number(
    20.0, 5.0, 100.0, "GB/s", "assumed",
    "Rate at which weights get to the generator in large pieces: 5 to 25 through host memory, 100 and more between "
    "GPUs of a node.",
)  # fmt: skip
CONTINUOUS_STEP = Number(
    5.5, 2.0, 8.0, "", "measured",
    "CPU time of a decode step of transformers' generate_batch over that of `generate`: without flash attention it has "
    "no CUDA graphs and makes the masks of its paged cache in each step. GRPO of 8 completions of 80 tokens: 57 ms a "
    "step instead of 10 (H100), 100 and 135 instead of 19 (H200; TRL 1.15, transformers 5.17). With flash attention it "
    "takes less, which is assumed.",
)  # fmt: skip
CONTINUOUS_S = Number(
    0.5, 0.2, 3.0, "s", "measured",
    "What one call of generate_batch takes beyond its steps: Python collects garbage several times when the call ends, "
    "0.47 s a call next to an H100, 2.9 s on a busy CPU (transformers 5.17 and 5.23).",
)  # fmt: skip
RECOMPUTED = Number(
    1.7, 0.8, 2.2, "", "measured",
    "Time that activation checkpointing adds to a backward pass that the CPU limits, over that of the forward pass: "
    "each layer's random state is saved and restored, and its ops run in a second context. GRPO, 12 layers, H200: 1.7 "
    "(TRL 1.15, transformers 5.17). Where the GPU limits, the forward pass runs again, without embedding and head: 1.",
)  # fmt: skip
