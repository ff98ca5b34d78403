"""Values whose type allows None, where a test knows that they exist."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value; the test fails if it is None."""
    assert value is not None
    return value
