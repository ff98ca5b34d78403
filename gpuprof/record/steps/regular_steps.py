"""Finds out, in a few steps that are not timed, whether every step fetches and calls alike.

Then a timed step needs hardly any hook: how long it waited for its batches, and the shape of one tensor of each, say
the rest (see `bare_steps`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..model.batch import BatchWork, token_tensor
from .schedule import WATCHED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Batches, Seconds


FEW_HOOKS_S: Assumed[Seconds] = 0.025
"""Shorter steps are timed with few hooks. All hooks together make a step some 0.13 ms longer (H100 and H200
machines), 0.5 % of this."""
FURTHEST_AHEAD: Assumed[Batches] = 2
"""Batches that may lie between the loader and the model: accelerate holds one back."""
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Regular:
    """What each step does alike."""

    iterator: Callable[[], Any]
    """A weak reference to the iterator of the DataLoader that every batch comes from; returns None without one."""
    key: Any
    """Key in the batch of the tensor whose shape is looked at; None: the batch is that tensor. Without a DataLoader: an
    index or a keyword in the arguments of a call."""
    fetches: int
    """Batches that a step fetches; without a DataLoader, calls of the model if these are seen."""
    passes: int
    """Backward passes of a step."""
    sees_calls: bool
    """Whether calls of the model are seen."""
    calls: tuple[BatchWork | None, ...] | None
    """Work of the calls of each step, if calls do not take one batch each; else None."""
    usual: frozenset[Shape]
    """Shapes of the batches for which `calls` holds."""
    has_tokens: bool
    """Whether the shape that is looked at is that of tokens."""
    alternates: bool
    """Whether a step trains on each batch before it fetches the next."""
    samples_a_row: float | None
    """Samples for each row of that tensor; None: not known."""
    has_loader: bool = True
    ahead: tuple[Shape, ...] = field(default=())
    """Shapes of the batches that are fetched and not used yet, oldest first."""

    def work_of(self, shape: Shape) -> BatchWork | None:
        """The work of a batch."""
        if not self.has_tokens or len(shape) < 2:
            return None
        return BatchWork(shape[0], shape[0] * shape[1], pairs=shape[0] * shape[1] ** 2)

    def samples_of(self, shape: Shape) -> int | None:
        """The samples of a batch."""
        return round(self.samples_a_row * shape[0]) if self.samples_a_row is not None and shape else None


@dataclass(slots=True)
class _WatchedStep:
    """One step that was watched."""

    iterators: list[Callable[[], Any]] = field(default_factory=list)
    shapes: list[tuple[Any, Shape, bool]] = field(default_factory=list)
    samples: list[int | None] = field(default_factory=list)
    calls: list[BatchWork | None] = field(default_factory=list)
    arguments: list[tuple[Any, Shape, bool] | None] = field(default_factory=list)
    """Of each call, as `shape_in` has it."""
    alternates: bool = True
    passes: int = 0


class StepWatch:
    """Watches steps from now on. whole: whether a step is about to begin; else the rest of the current one is left
    out."""

    def __init__(self, whole: bool = True) -> None:
        self._steps: list[_WatchedStep] = []
        self._here = _WatchedStep()
        self._is_odd = not whole
        self._left = WATCHED + (0 if whole else 1)

    @property
    def wants_more(self) -> bool:
        """Whether too few steps have been seen to say something."""
        return self._left > 0

    def fetched(self, iterator: Any, batch: Any, samples: int | None) -> None:
        """A batch has arrived; None: there are no more."""
        found = shape_in(batch)
        if found is None:
            self._is_odd = True
            return
        if self._here.shapes and not self._here.calls:
            self._here.alternates = False
        self._here.iterators.append(weakref.ref(iterator))
        self._here.shapes.append(found)
        self._here.samples.append(samples)

    def called(self, work: BatchWork | None, arguments: tuple[Any, Any]) -> None:
        """The model was called to train, with this work. arguments: its keywords and its positional arguments."""
        self._here.calls.append(work)
        self._here.arguments.append(shape_of_call(*arguments))

    def evaluated(self) -> None:
        """The model was called without training it."""
        self._is_odd = True

    def end_step(self, passes: int) -> None:
        """A step has ended. passes: its backward passes."""
        here, self._here = self._here, _WatchedStep()
        here.passes = passes
        self._left -= 1
        if self._is_odd:
            self._steps, self._is_odd = [], False
        else:
            self._steps = [*self._steps, here][-WATCHED:]

    def found(self) -> Regular | None:
        """What the last steps did alike; None where they did not, or too few were seen."""
        steps = self._steps
        first = steps[0] if len(steps) == WATCHED else None
        if first is None or not first.passes:
            return None
        numbers = {(len(one.shapes), len(one.calls), one.passes) for one in steps}
        if not first.shapes:
            return self._without_loader() if len(numbers) == 1 else None
        fetched = [each for one in steps for each in one.shapes]
        iterators = {one() for step in steps for one in step.iterators}
        if len(numbers) > 1 or len(iterators) > 1 or None in iterators or len({each[::2] for each in fetched}) > 1:
            return None
        key, _, has_tokens = fetched[0]
        shapes = [shape for _, shape, _ in fetched]
        rates = {
            None if samples is None or not shape[0] else samples / shape[0]
            for one in steps for samples, (_, shape, _) in zip(one.samples, one.shapes, strict=True)
        }  # fmt: skip
        found = Regular(
            first.iterators[0], key, len(first.shapes), first.passes, bool(first.calls), None, frozenset(shapes),
            has_tokens, not first.calls or first.alternates, rates.pop() if len(rates) == 1 else None,
        )  # fmt: skip
        return self._with_calls(found, shapes) if first.calls else found

    def _without_loader(self) -> Regular | None:
        """What steps without a DataLoader did alike: the shapes of their calls say what they train on."""
        steps, first = self._steps, self._steps[0]
        calls = [work for one in steps for work in one.calls]
        found = [each for one in steps for each in one.arguments]
        key, _, has_tokens = found[0] if found and found[0] is not None else (None, (), False)
        if any(each is None or (each[0], each[2]) != (key, has_tokens) for each in found):
            return None
        shapes = [each[1] for each in found if each is not None]
        regular = Regular(
            _nothing, key, len(first.calls), first.passes, bool(calls), None, frozenset(shapes), has_tokens, True,
            None, has_loader=False,
        )  # fmt: skip
        alike = all(_size(work) == _size(regular.work_of(shape)) for work, shape in zip(calls, shapes, strict=True))
        return regular if alike else None

    def _with_calls(self, found: Regular, shapes: list[Shape]) -> Regular | None:
        """The same, once it is known how the calls follow from the batches; None where they do not."""
        from dataclasses import replace

        steps = self._steps
        calls = [_size(one) for step in steps for one in step.calls]
        fetched = [_size(found.work_of(shape)) for shape in shapes]
        if len(calls) == len(fetched):
            for ahead in range(min(FURTHEST_AHEAD, len(calls) - 1) + 1):
                if calls[ahead:] == fetched[: len(calls) - ahead]:
                    return replace(found, ahead=tuple(shapes[len(shapes) - ahead :]))
        each = {tuple(_size(one) for one in step.calls) for step in steps}
        alike = len(each) == 1 and len(set(shapes)) == 1
        return replace(found, calls=tuple(_sized(one) for one in steps[0].calls)) if alike else None


def _nothing() -> None:
    return None


def _size(work: BatchWork | None) -> tuple[int | None, int | None]:
    return (None, None) if work is None else (work.rows, work.tokens)


def _sized(work: BatchWork | None) -> BatchWork | None:
    """The work as far as its shapes show it."""
    return None if work is None else BatchWork(work.rows, work.tokens, pairs=work.pairs)


def shape_in(batch: Any) -> tuple[Any, Shape, bool] | None:
    """(key, shape, whether it is of tokens) of the tensor that says most about a batch; None where its tensors lie
    deeper than in the batch itself. key: None where the batch is the tensor."""
    tensor = sys.modules["torch"].Tensor
    if isinstance(batch, tensor):
        items = [(None, batch)]
    elif isinstance(batch, Mapping):
        items = [(key, one) for key, one in batch.items() if isinstance(one, tensor)]
    elif isinstance(batch, (list, tuple)):
        items = [(i, one) for i, one in enumerate(batch) if isinstance(one, tensor)]
    else:
        return None
    items = [(key, one) for key, one in items if one.dim()]
    if not items:
        return None
    tokens = token_tensor([(key if isinstance(key, str) else None, one) for key, one in items])
    key, chosen = next((item for item in items if item[1] is tokens), items[0])
    return key, tuple(chosen.shape), tokens is not None


def shape_of_call(keywords: Any, arguments: Any) -> tuple[Any, Shape, bool] | None:
    """The same of the arguments of a call. key: a keyword, or an index into the positional arguments."""
    found = [one for one in (shape_in(keywords), shape_in(arguments)) if one is not None]
    return next((one for one in found if one[2]), found[0] if found else None)
