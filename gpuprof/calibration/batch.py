"""Other batches, and a model on fewer or more GPUs."""

from __future__ import annotations

from gpuprof.calibration.number import Number

HOST_WORST = Number(
    1.12, 0.9, 1.25, "", "measured",
    "With a larger batch the CPU, too, is slower at worst by this factor: launch-bound steps took 0.9 to 1.25 times as "
    "long with 4 to 8 times the tokens, where the GPU's work alone explains 1.0.",
    (
        "scenarios/small_batch/recording",
        "tests/data/pairs/tiny.json.gz",
        "tests/data/pairs/mid.json.gz",
        "shared/traces/h200/tiny_lora_small_batch.json.gz",
    ),
    "python -m benchmarks.accuracy",
)  # fmt: skip
GROWS = Number(
    1.0, 0.93, 1.03, "", "fitted",
    "Exponent of a kernel's growth with its work: the kernels of five pairs of recordings on an H200 took 0.91 to "
    "1.00 times what is computed.",
    ("tests/data/pairs",), "python -m benchmarks.fixed_pairs",
)  # fmt: skip
ROUND = Number(
    0.7, 0.5, 1.0, "", "fitted",
    "CPU time of one more iteration of a loop over samples, relative to a recorded iteration: iterations are many "
    "small ops without Python between them, and recording slows them more than the replay removes. 28 more samples "
    "took 0.5 to 0.7 of it with Unsloth's QLoRA of Qwen3-8B; one program, so the high end leaves room.",
    ("scenarios/qwen3_8b_unsloth/recording",), "python -m benchmarks.calibrate batch",
)  # fmt: skip
UNEVEN = Number(
    1.25, 1.0, 1.3, "", "measured",
    "Memory of the whole model on one GPU, at most, over the sum of the GPUs' peaks, which are not all known: "
    "20.3 GiB measured where the first of two peaked at 8.2.",
    ("scenarios/two_gpus_one_process/recording",),
)  # fmt: skip
SHARDED = Number(
    1.15, 1.0, 1.5, "", "assumed",
    "How much longer FSDP's gathering of weights may make a step that would otherwise exchange only gradients.",
)  # fmt: skip
ROOM_ODDS = Number(
    0.95, 0.65, 1.0, "", "assumed",
    "How likely a larger batch fits where what memory is used was not recorded: all seven that were measured on a GPU "
    "of 140 GB did.",
)  # fmt: skip
FREED_ODDS = Number(
    0.7, 0.4, 0.9, "", "assumed",
    "How likely a change frees enough memory for a batch that does not fit as it is, so that it still gains.",
)  # fmt: skip
