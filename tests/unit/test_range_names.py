"""Ranges of the same name: the index at its end is left out, and no other number."""

from __future__ import annotations

import pytest
from helpers.make_trace import TraceBuilder
from hypothesis import given
from hypothesis import strategies as st

from gpuprof import diagnose
from gpuprof.timeline.range_names import unnumbered

US = 1000


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Qwen3NextDecoderLayer", "Qwen3NextDecoderLayer"),
        ("nn.Module: Qwen3NextDecoderLayer_12", "nn.Module: Qwen3NextDecoderLayer_#"),
        ("nn.Module: Conv2d_0", "nn.Module: Conv2d_#"),
        ("nn.Module: BatchNorm2d", "nn.Module: BatchNorm2d"),
        ("Optimizer.step#AdamW8bit.step", "Optimizer.step#AdamW8bit.step"),
        ("ProfilerStep#5", "ProfilerStep#"),
        ("layer_12", "layer_#"),
        ("layers.12", "layers.#"),
        ("layers.12.mlp", "layers.12.mlp"),
        ("step 7", "step #"),
        ("train_step12", "train_step#"),
        ("iteration 3/100", "iteration #/#"),
        ("Torch-Compiled Region: 0/1", "Torch-Compiled Region: #/#"),
        ("Qwen2.5", "Qwen2.5"),
        ("fc1", "fc1"),
        ("12", "#"),
        ("", ""),
    ],
)
def test_only_the_index_at_the_end_of_a_name_is_left_out(name, shown):
    assert unnumbered(name) == shown


@given(st.text("ab1.2_# "))
def test_what_comes_before_the_last_letter_stays(name):
    end = max(name.rfind("a"), name.rfind("b")) + 1
    assert unnumbered(name)[:end] == name[:end]
    assert unnumbered(unnumbered(name)) == unnumbered(name)


def trace(step: str) -> TraceBuilder:
    """Three steps, each with two layers that launch a kernel."""
    builder = TraceBuilder()
    for i in range(3):
        at = 1_000 * US * i
        builder.annotation(f"{step}{i}", at, at + 1_000 * US)
        for layer in range(2):
            begin = at + (100 + 400 * layer) * US
            builder.annotation(f"nn.Module: Qwen3NextDecoderLayer_{layer}", begin, begin + 300 * US)
            builder.launch("gemm", (begin + US, begin + 2 * US), (begin + 10 * US, begin + 200 * US))
    return builder


def test_ranges_of_a_diagnosis_keep_the_digits_of_their_names(tmp_path):
    found = diagnose(trace("ProfilerStep#").write(tmp_path / "trace.json"))
    assert {one.name: one.count for one in found.ranges} == {
        "ProfilerStep#": 3,
        "nn.Module: Qwen3NextDecoderLayer_#": 6,
    }


@pytest.mark.parametrize(("step", "shown"), [("gpt2_step_", "gpt2_step_#"), ("step 1 of ", "step 1 of #")])
def test_steps_are_shown_with_the_digits_of_their_name(tmp_path, step, shown):
    found = diagnose(trace(step).write(tmp_path / "trace.json"))
    assert found.steps
    assert (found.steps.source, found.steps.name, found.steps.count) == ("user_range", shown, 3)
    assert found.tables.timeline.steps.are(f"{step}7")


def test_steps_whose_number_is_not_at_the_end_are_steps(tmp_path):
    builder = TraceBuilder()
    for i in range(3):
        builder.annotation(f"step {i} train", 1_000 * US * i, 1_000 * US * (i + 1))
        builder.launch(
            "gemm",
            (1_000 * US * i + US, 1_000 * US * i + 2 * US),
            (1_000 * US * i + 10 * US, 1_000 * US * i + 900 * US),
        )
    found = diagnose(builder.write(tmp_path / "trace.json"))
    assert found.steps and (found.steps.name, found.steps.count) == ("step # train", 3)
