"""A model that is called for each part of a batch; not two models, a teacher, or layers that repeat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.case import case_of, only
from helpers.cpu_recording import recorded
from helpers.quick import few

from gpuprof.diagnosis.findings import separate_passes

WORDS, WIDTH, LAYERS = 64, 16, 3


def encoder():
    from torch import nn

    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, WIDTH))


def step_of(results: Callable[..., list[Any]], two: bool = False) -> Callable[[int], object]:
    """A step whose loss takes what `results` returns for models and batches of tokens."""
    import torch

    models = [encoder() for _ in range(1 + two)]
    batches = [torch.randint(0, WORDS, (2, 8)) for _ in range(3)]

    def step(_: int) -> None:
        torch.stack([one.mean() for one in results(*models, batches)]).sum().backward()

    return step


def teacher(model, batches):
    import torch

    with torch.no_grad():
        wanted = model(batches[0])
    return [(model(batches[1]) - wanted).square()]


def preferences(model, batches):
    """Chosen and rejected answers, each scored by the model and by its earlier copy."""
    import torch

    with torch.no_grad():
        before = [model(one) for one in batches[:2]]
    return [(model(one) - was).square() for one, was in zip(batches[:2], before, strict=True)]


CASES = [
    pytest.param(lambda model, batches: [model(one) for one in batches], False, 3, 1 / 3, id="one after another"),
    pytest.param(
        lambda model, batches: [model(batches[0]), model(batches[1][:, :5])], False, 2, 1 / 2, id="two lengths"
    ),
    pytest.param(lambda model, batches: [model(batches[0])], False, 0, 1, id="one pass"),
    pytest.param(lambda a, b, batches: [a(batches[0]), b(batches[1])], True, 0, 1, id="two towers"),
    pytest.param(teacher, False, 0, 1, id="a teacher"),
    # A pass with a backward pass has three times the kernels of one without.
    pytest.param(preferences, False, 2, 5 / 8, id="preferences"),
]
"""(results, whether there are two models, passes before each backward pass that can be one, share of the kernels that
is left)."""


@pytest.mark.parametrize(
    ("results", "two", "count", "left"), few(CASES, ["one after another", "two towers", "preferences"])
)
def test_passes_over_other_inputs_can_be_one(tmp_path: Path, results, two: bool, count: int, left: float):
    """The first pass and everything outside these passes stay."""
    case = case_of(recorded(tmp_path / "trace.json", step_of(results, two), kernel_us=1000.0), as_recorded=True)
    if not count:
        assert not list(separate_passes.find(case))
        return
    fix = only(separate_passes, case)
    assert f"runs {count} times before each backward pass" in fix.evidence[0].text
    after, on_gpu = fix.change(case.graph), case.graph.on_gpu
    assert (on_gpu & (after.duration_ns > 0)).sum() / on_gpu.sum() == pytest.approx(left, abs=0.02)
    assert case.step_of(after) < case.step_of(case.graph)


def test_inputs_of_one_shape_are_named(tmp_path: Path):
    step = step_of(lambda model, batches: [model(one) for one in batches])
    case = case_of(recorded(tmp_path / "trace.json", step), as_recorded=True)
    assert "inputs of the same shape" in only(separate_passes, case).evidence[0].text


@pytest.mark.parametrize(("channels", "count"), [(3, 0), (1, 1)])
def test_a_predicted_picture_may_be_the_next_input(tmp_path: Path, channels: int, count: int):
    """Frames that are predicted one from another have the same size and channels as the model's input."""
    import torch
    from torch import nn

    layers = [nn.Conv2d(3, 8, 3, padding=1), *(nn.Conv2d(8, 8, 3, padding=1) for _ in range(12))]
    model = nn.Sequential(*layers, nn.Conv2d(8, channels, 1))

    frames = torch.randn(3, 2, 3, 8, 8)

    def step(_: int) -> None:
        frame, losses = frames[0], []
        for at in range(3):
            result = model(frame)
            losses.append(result.mean())
            frame = result if channels == 3 else frames[at]
        torch.stack(losses).sum().backward()

    case = case_of(recorded(tmp_path / "trace.json", step), as_recorded=True)
    assert len(list(separate_passes.find(case))) == count


@pytest.mark.parametrize(
    ("sizes", "twice", "count"),
    [((8, 12, 16), True, 1), ((8, 8, 8), True, 0), ((8, 12, 16), False, 0), ((8, 8), False, 0)],
)
def test_models_of_one_structure_with_inputs_of_their_own_shape(
    tmp_path: Path, sizes: tuple[int, ...], twice: bool, count: int
):
    """Discriminators at several scales judge real and generated pictures; two towers see a picture each."""
    import torch
    from torch import nn

    judges = [nn.Sequential(nn.Conv2d(1, 8, 3), *(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))) for _ in sizes]
    pairs = [[torch.randn(2, 1, size, size) for _ in range(1 + twice)] for size in sizes]

    def step(_: int) -> None:
        scores = [model(one).mean() for model, inputs in zip(judges, pairs, strict=True) for one in inputs]
        torch.stack(scores).sum().backward()

    case = case_of(recorded(tmp_path / "trace.json", step), as_recorded=True)
    found = list(separate_passes.find(case))
    assert len(found) == count
    if count:
        assert "runs 2 times before each backward pass" in found[0].evidence[0].text
