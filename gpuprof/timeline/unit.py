"""What to call the steps of a recording: those of inference are iterations, requests or tokens."""

from __future__ import annotations


class Unit(str):
    """The word for one step: step, iteration, request or token. Sentences are written with it: `launches 929 kernels
    {unit.a}`, `the last {unit}s`."""

    __slots__ = ()

    @property
    def a(self) -> str:
        """`a step`, `an iteration`."""
        return f"{'an' if self[0] in 'aeiou' else 'a'} {self}"


STEP = Unit("step")
ITERATION = Unit("iteration")
REQUEST = Unit("request")
TOKEN = Unit("token")


def common_unit(one: Unit, other: Unit) -> Unit:
    """What to call the steps of two recordings: as both are called, or an iteration where both are of inference."""
    if one == other:
        return one
    return STEP if STEP in (one, other) else ITERATION
