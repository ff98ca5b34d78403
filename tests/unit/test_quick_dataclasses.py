"""Dataclasses whose methods are compiled when they are first called behave like all others."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from gpuprof.cli import quick_dataclasses
from gpuprof.cli.quick_dataclasses import compile_methods_when_called

pytestmark = pytest.mark.skipif(
    not hasattr(dataclasses, "_create_fn"), reason="Python 3.13 and newer compile a class at once"
)


Point: type
"""Where pickle finds the class."""


def make_point() -> type:
    """A class with all that ours use: slots, defaults, fields that do not count, a check of its own."""

    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 2
        memo: dict = field(default_factory=dict, compare=False, repr=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is negative")

    Point.__qualname__ = "Point"
    return Point


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(dataclasses, "_create_fn", dataclasses._create_fn)  # type: ignore[attr-defined]
    monkeypatch.setattr(quick_dataclasses, "_OURS", __name__)
    compile_methods_when_called()
    made = make_point()
    monkeypatch.setitem(globals(), "Point", made)
    return made


def test_it_does_what_dataclasses_do(point):
    one, same, other = point(1), point(1, memo={"a": 1}), point(1, y=3)
    assert one == same and hash(one) == hash(same) and one != other and one != (1, 2)
    assert repr(other) == "Point(x=1, y=3)"
    assert dataclasses.replace(one, y=3) == other and copy.deepcopy(one) == one
    assert pickle.loads(pickle.dumps(other)) == other
    with pytest.raises(FrozenInstanceError):
        one.x = 5
    with pytest.raises(FrozenInstanceError):
        del one.x
    with pytest.raises(ValueError, match="negative"):
        point(-1)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        point()


def test_a_class_that_inherits_has_methods_of_its_own(point):
    more = dataclasses.make_dataclass("More", [("z", int, 3)], bases=(point,), frozen=True)
    assert more(1) != point(1) and more(1) == more(1, 2, z=3)
    assert (point(4).x, more(5).x, point(6).x) == (4, 5, 6)


def test_the_real_method_takes_the_place_of_the_first(point):
    before = point.__init__
    point(1)
    assert point.__init__ is not before and point.__init__.__qualname__ == before.__qualname__
    assert point.__init__.__code__.co_varnames[:3] == ("self", "x", "y")


def test_dataclasses_of_others_are_made_as_ever(monkeypatch):
    monkeypatch.setattr(dataclasses, "_create_fn", dataclasses._create_fn)  # type: ignore[attr-defined]
    compile_methods_when_called()
    assert list(inspect.signature(make_point()).parameters) == ["x", "y", "memo"]
