"""Which of the program's own flags make a fix."""

from __future__ import annotations

import pytest

from gpuprof.tracefile.run_folder.program import Flag, Program
from gpuprof.trial.fixes import parse
from gpuprof.trial.own_flags import own_flags

TRAINER = Program(
    fields=("dataloader_num_workers", "gradient_checkpointing", "bf16", "torch_compile", "torch_compile_mode"),
    settings={
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "logging_steps": 5, "bf16": True,
        "gradient_checkpointing": True,
    },
    flags=(
        *(Flag((f"--{name}",), "value") for name in (
            "dataloader_num_workers", "per_device_train_batch_size", "gradient_accumulation_steps", "logging_steps",
            "torch_compile_mode", "attn_implementation")),
        *(Flag((f"--{name}",), "boolean") for name in (
            "dataloader_persistent_workers", "gradient_checkpointing", "bf16", "torch_compile",
            "logging_nan_inf_filter")),
    ),
)  # fmt: skip
LOOP = Program(
    flags=(
        Flag(("-j", "--workers"), "value"), Flag(("--compile",), "switch"), Flag(("--grad-ckpt",), "switch"),
        Flag(("--gradient-checkpointing",), "switch"), Flag(("--bf16", "--no-bf16"), "on_off"),
        Flag(("--attn",), "value"),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        ("input_workers=8", "--dataloader_num_workers 8 --dataloader_persistent_workers true"),
        ("recompute", "--gradient_checkpointing false"),
        ("larger_batch=2", "--per_device_train_batch_size 8 --gradient_accumulation_steps 1"),
        ("cuda_graphs", "--torch_compile true --torch_compile_mode reduce-overhead"),
        ("compile=default", "--torch_compile true"),
        ("eager_attention=sdpa", "--attn_implementation sdpa"),
        ("syncs", "--logging_nan_inf_filter false --logging_steps 100"),
        ("compile=blocks", None),
        ("larger_batch=4", None),  # two micro-batches cannot be divided by four
        ("autocast", None),  # it is already on
        ("optimizer", None),  # `--optim` would replace the program's own optimizer
    ],
)
def test_a_trainers_flags(fix: str, words: str | None):
    found = own_flags(parse(fix)[0], TRAINER, ["python", "train.py"])
    assert (str(found) if found else None) == words


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        ("input_workers=8", "--workers 8"),
        ("compile=default", "--compile"),
        ("cuda_graphs", None),  # the mode is unknown
        ("autocast", "--bf16"),
        ("recompute", "without --gradient-checkpointing"),
        ("eager_attention=sdpa", None),  # the values of --attn are the program's own
        ("larger_batch=2", None),
    ],
)
def test_flags_of_a_loop_of_ones_own(fix: str, words: str | None):
    found = own_flags(parse(fix)[0], LOOP, ["python", "train.py", "--gradient-checkpointing"])
    assert (str(found) if found else None) == words


def test_the_command_line_with_them():
    argv = ["python", "train.py", "--gradient-checkpointing", "--lr", "1"]
    left_out, added = own_flags(parse("recompute")[0], LOOP, argv), own_flags(parse("input_workers=2")[0], LOOP, argv)
    assert left_out and left_out.applied_to(argv) == ("python", "train.py", "--lr", "1")
    assert added and added.applied_to(argv) == (*argv, "--workers", "2")


def test_a_switch_that_was_not_given_cannot_be_left_out():
    assert own_flags(parse("recompute")[0], LOOP, ["python", "train.py"]) is None


def test_words_behind_two_dashes_are_no_flags():
    assert own_flags(parse("input_workers=2")[0], LOOP, ["python", "train.py", "--", "a"]) is None


def test_a_program_without_flags_is_patched():
    assert own_flags(parse("input_workers=2")[0], None, []) is own_flags(parse("input_workers=2")[0], Program(), [])
