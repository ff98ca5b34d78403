"""What a few watched steps say about how all steps fetch batches and call the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from gpuprof.record.model.batch import BatchWork, tensors_in, work_of  # noqa: E402
from gpuprof.record.steps.regular_steps import WATCHED, Regular, StepWatch, shape_in  # noqa: E402


class Loader:
    """Stands in for the iterator of a DataLoader."""


LOADER = Loader()


def batch(length: int, rows: int = 4) -> dict[str, Any]:
    return {"labels": torch.zeros(rows), "input_ids": torch.ones(rows, length, dtype=torch.long)}


def watched(
    lengths: Sequence[int], calls: Sequence[int | None], passes: int = 1, loader: Any = LOADER, samples: int = 4,
) -> StepWatch:  # fmt: skip
    """Steps with a batch of each length, after which the model is called with a batch of the length in `calls`."""
    watch = StepWatch()
    for length, called in zip(lengths, calls, strict=True):
        watch.fetched(loader, batch(length), samples)
        if called is not None:
            watch.called(work_of(batch(called), tensors_in(batch(called))), (batch(called), ()))
        watch.end_step(passes)
    return watch


def found(*arguments: Any, **named: Any) -> Regular:
    regular = watched(*arguments, **named).found()
    assert regular is not None
    return regular


def test_calls_that_follow_the_batches_are_known_from_their_shapes():
    regular = found([8, 16, 8], [8, 16, 8], samples=2)
    assert (regular.key, regular.fetches, regular.passes, regular.ahead) == ("input_ids", 1, 1, ())
    assert regular.iterator() is LOADER and regular.calls is None
    assert regular.work_of((4, 32)) == BatchWork(4, 128, pairs=4096)
    assert regular.samples_of((4, 32)) == 2 and regular.samples_of((2, 32)) == 1


def test_a_batch_that_a_wrapper_holds_back_is_used_one_step_later():
    assert found([8, 16, 24], [4, 8, 16]).ahead == ((4, 24),)


def test_calls_with_other_shapes_are_known_only_where_all_steps_have_the_same():
    assert found([8, 8, 8], [5, 5, 5]).calls == (BatchWork(4, 20, pairs=100),)
    assert watched([8, 16, 8], [5, 9, 5]).found() is None


def test_a_model_whose_calls_are_not_seen_is_known_by_its_batches():
    regular = found([8, 16, 8], [None, None, None])
    assert not regular.sees_calls and regular.has_tokens


def by_hand(calls: Sequence[tuple[Any, Any]]) -> Regular | None:
    """Steps without a DataLoader, each with one call of these keywords and positional arguments."""
    watch = StepWatch()
    for keywords, arguments in calls:
        inputs = keywords or arguments[0]
        watch.called(work_of(inputs, tensors_in(inputs)), (keywords, arguments))
        watch.end_step(1)
    return watch.found()


def test_without_a_loader_the_shapes_of_the_calls_say_what_there_is():
    regular = by_hand([(batch(length), ()) for length in (8, 16, 8)])
    assert regular is not None and not regular.has_loader and regular.iterator() is None
    assert (regular.key, regular.fetches, regular.calls, regular.samples_a_row) == ("input_ids", 1, None, None)
    assert regular.work_of((4, 32)) == BatchWork(4, 128, pairs=4096)
    positional = by_hand([({}, (torch.ones(4, 8, dtype=torch.long), 0.5))] * 3)
    assert positional is not None and positional.key == 0
    assert by_hand([(batch(8), ()), ({}, (batch(8)["input_ids"],)), (batch(8), ())]) is None, "called in two ways"


def test_steps_in_which_nothing_is_seen_but_backward_passes_are_alike_by_these():
    watch = StepWatch()
    for _ in range(WATCHED):
        watch.end_step(2)
    regular = watch.found()
    assert regular is not None and not regular.sees_calls
    assert (regular.fetches, regular.passes) == (0, 2)


@pytest.mark.parametrize("odd", ["few", "another loader", "no pass", "evaluation", "end of the data", "uneven"])
def test_steps_that_are_not_alike_are_not_regular(odd: str):
    watch = watched([8] * WATCHED, [8] * WATCHED)
    assert watch.found() is not None and not watch.wants_more
    if odd == "few":
        watch = watched([8] * (WATCHED - 1), [8] * (WATCHED - 1))
        assert watch.wants_more
    elif odd == "no pass":
        watch = watched([8] * WATCHED, [8] * WATCHED, passes=0)
    else:
        other = Loader()
        watch.fetched(other if odd == "another loader" else LOADER, None if "end" in odd else batch(8), 4)
        if odd == "evaluation":
            watch.evaluated()
        if odd == "uneven":
            watch.fetched(LOADER, batch(8), 4)
        watch.end_step(1)
    assert watch.found() is None


def test_the_rest_of_a_step_is_not_watched():
    watch = StepWatch(whole=False)
    for _ in range(WATCHED):
        watch.fetched(LOADER, batch(8), 4)
        watch.end_step(1)
    assert watch.wants_more and watch.found() is None
    watch.fetched(LOADER, batch(8), 4)
    watch.end_step(1)
    assert not watch.wants_more and watch.found() is not None


def test_the_tensor_that_is_looked_at():
    image, label = torch.ones(2, 3, 4, 4), torch.zeros(2, dtype=torch.long)
    assert shape_in(image) == (None, (2, 3, 4, 4), False)
    assert shape_in([image, label]) == (0, (2, 3, 4, 4), False)
    assert shape_in((label, torch.zeros(2, 5, dtype=torch.long))) == (1, (2, 5), True)
    assert shape_in({"text": ["a"], "n": torch.tensor(1)}) is None and shape_in("a") is None and shape_in(None) is None


def test_samples_of_an_unknown_rate_are_unknown():
    watch = StepWatch()
    for samples in (4, 3, 4):
        watch.fetched(LOADER, batch(8), samples)
        watch.end_step(1)
    regular = watch.found()
    assert regular is not None and regular.samples_of((4, 8)) is None
    assert replace(regular, samples_a_row=0.5).samples_of(()) is None
