"""What a recording decides by itself: where steps end, what each is used for, how much work a batch is."""

from __future__ import annotations

import pytest

from gpuprof.record.steps.schedule import WINDOW_S, plan
from gpuprof.record.steps.step_finder import StepFinder

# -- where a step ends


def ends(events: str) -> str:
    """`-` for every optimizer event that ends no step, `|` for one that does; `b` is a backward pass."""
    finder = StepFinder()
    out = []
    for event in events:
        if event == "b":
            finder.backward()
        else:
            out.append("|" if finder.ended(ord(event)) else "-")
    return "".join(out)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("AAAA", "||||"),
        ("bAbAbA", "|||"),
        ("bbbbAbbbbA", "||"),  # accumulation
        ("bAAbAA", "|-|-"),  # a subclass calls super().step()
        ("bABbABbAB", "||-|-|"),  # two optimizers: learned at the second
        ("bAbBbAbBbAbB", "||-|-|"),  # a GAN: each with a backward pass of its own
    ],
)
def test_a_step_ends_with(events: str, expected: str):
    assert ends(events) == expected


def test_the_critics_of_a_gan_are_one_step_with_its_generator():
    found = ends("bDbDbDbDbDbG" * 20)
    assert found[12:] == "-----|" * 18


def test_a_second_training_in_the_process_has_steps_of_its_own():
    assert ends("bA" * 30 + "bB" * 30)[31:] == "|" * 29


# -- what a step is used for


def test_a_long_run_gets_the_whole_plan():
    assert plan(total=1000).stages() == [
        ("settle", 5),
        ("baseline_free", 10),
        ("baseline_sync", 10),
        ("sampling", 50),
        ("warmup", 2),
        ("trace", 3),
        ("after", 15),
    ]


def test_a_run_of_unknown_length_is_recorded_before_it_is_sampled():
    names = [name for name, _ in plan(stacks=2).stages()]
    assert names[-4:] == ["warmup", "stacks", "sampling", "after"]
    assert plan().needs() == plan(sampling=False).needs()


def test_further_windows_each_warm_up():
    stages = plan(stacks=2, memory=1).stages()
    assert stages[3:7] == [("warmup", 2), ("trace", 3), ("warmup", 1), ("stacks", 2)]
    assert stages[7:9] == [("warmup", 1), ("memory", 1)]


def test_sampling_takes_what_a_training_can_spare():
    assert plan(step_s=0.08, total=1000).sample == 25
    assert plan(step_s=30.0, total=1000).sample == 2
    assert plan(step_s=0.08, total=40).sample < 25
    assert plan(step_s=0.08, total=30).sample == 0, "the window is more important"
    assert plan(step_s=0.08, total=1000, sampling=False).sample == 0


def test_what_the_user_asks_for_is_kept():
    found = plan(settle=50, baseline=7, steps=9, step_s=0.01, total=1000)
    assert (found.settle, found.baseline, found.trace) == (50, 7, 9)


def test_long_steps_get_fewer():
    assert plan(step_s=5.0).baseline == 4
    assert plan(step_s=30.0).baseline == 2
    assert plan(step_s=30.0, steps=10).trace == int(WINDOW_S / 30)
    assert plan(step_s=3600.0).trace == 1


def test_the_attention_that_a_class_of_transformers_offers():
    from gpuprof.record.model.trained_model import _attention_options

    class Older:
        _supports_sdpa, _supports_flash_attn_2 = True, False

    class Newer:
        _supports_sdpa, _supports_flash_attn, _supports_flex_attn = False, True, True

    found = [_attention_options(model()) for model in (Older, Newer, type("Plain", (), {}))]
    assert found == [["sdpa"], ["flash_attention_2", "flex_attention"], None]
