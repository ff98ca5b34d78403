"""What limits a step, from what each resource would gain. Diagnosis, ranks, projection and recordings that cannot be
replayed all use this rule, so that one program gets the same verdict everywhere.

A step is bound by the resource that shortens it most when it is twice as fast. Its sensitivity is twice that gain, but
at most the gain of removing the resource: if something else becomes the limit once it is a little faster, it gains no
more. If several sensitivities are so close that noise decides, the limit is the resource whose removal gains most:
waiting can be removed, work can only be made faster. If those gains are equally close, the sensitivities decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeVar

from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.replay.sensitivity import Sensitivities

Bound = Literal["compute", "memory", "latency", "host", "input", "transfer", "communication", "balanced"]
Resource = Literal["host", "input", "transfer", "communication", "device"]
Part = Literal["compute", "memory", "latency"]

RESOURCES: tuple[Resource, ...] = ("host", "input", "transfer", "communication", "device")
PARTS: tuple[Part, ...] = ("compute", "memory", "latency")

EQUAL_SENSITIVITY: Assumed[Share] = 0.05
LEAST_SENSITIVITY: Assumed[Share] = 0.1
"""Sensitivities that differ by less than the first cannot be distinguished; below the second nothing much is gained."""
EXPLAINED_SENSITIVITY: Assumed[Share] = 0.5
"""Smallest share of the device's sensitivity that its parts must explain; with less, the unknown rest would decide."""

_Name = TypeVar("_Name")


def bound_of(
    found: Sensitivities, without: Callable[[Resource], float] | None = None, unknown: float = 0.0
) -> Bound | None:
    """What limits the step: a resource, a part of the device, or `balanced`. None if that cannot be known.

    `without`: the share of the step that is gained when a resource takes no time at all; no resource counts with more,
    and it decides between close ones, which are balanced without it. `unknown`: the share of the step that may be due
    to any resource; where it could change the answer there is none.
    """
    counted = found if without is None else capped(found, without)
    values: dict[Resource, float] = {name: getattr(counted, name) for name in RESOURCES}
    first = _resource(values, without, found)
    if unknown >= EQUAL_SENSITIVITY:
        for name in RESOURCES:
            if _resource({**values, name: values[name] + unknown}, without, found) != first:
                return None
    return _device_part(found) if first == "device" else first


def resource_of(found: Sensitivities, without: Callable[[Resource], float]) -> Resource | None:
    """The resource that limits the step by the same rule; None if several do, or none."""
    capped_values: dict[Resource, float] = {name: getattr(capped(found, without), name) for name in RESOURCES}
    first = _resource(capped_values, without, found)
    return None if first == "balanced" else first


def capped(found: Sensitivities, without: Callable[[Resource], float]) -> Sensitivities:
    """The same sensitivities, none greater than the gain of removing the resource; the parts of the device shrink with
    it.

    Only those that could decide are computed: removing a resource gains at least what halving its time does, so none
    falls below half of its value, and none that counted stops counting."""
    values: dict[Resource, float] = {name: getattr(found, name) for name in RESOURCES}
    most = max(values.values())
    near: list[Resource] = [
        name for name in RESOURCES if values[name] >= max(most / 2 - EQUAL_SENSITIVITY, LEAST_SENSITIVITY)
    ]
    if len(near) < 2:
        return found
    least: dict[Resource, float] = {
        name: max(min(values[name], without(name)), values[name] / 2, LEAST_SENSITIVITY) for name in near
    }
    kept = least["device"] / found.device if "device" in least else 1.0
    parts: dict[Part, float | None] = {
        name: None if (value := getattr(found, name)) is None else kept * value for name in PARTS
    }
    return replace(found, **least, **parts)


def _resource(
    values: Mapping[Resource, float], without: Callable[[Resource], float] | None, found: Sensitivities
) -> Resource | Literal["balanced"]:
    if max(values.values()) < LEAST_SENSITIVITY:
        return "balanced"
    close = largest(values)
    if len(close) > 1 and without is not None:
        absent: dict[Resource, float] = {name: without(name) for name in close}
        close = largest(absent)
        twice: dict[Resource, float] = {name: getattr(found, name) for name in close}
        close = largest(twice)
    return close[0] if len(close) == 1 else "balanced"


def _device_part(found: Sensitivities) -> Bound | None:
    """Which part of the kernels is the limit; memory if the split is unknown, since memory limits most kernels. None if
    most of the time is known to be none of the three, as in CUDA graphs recorded as a whole."""
    parts: dict[Part, float] = {name: value for name in PARTS if (value := getattr(found, name)) is not None}
    if len(parts) < len(PARTS):
        return "memory"
    if sum(parts.values()) < EXPLAINED_SENSITIVITY * found.device:
        return None
    close = largest(parts)
    return close[0] if len(close) == 1 else "balanced"


def largest(values: Mapping[_Name, float]) -> list[_Name]:
    """The names whose value differs from the largest by less than EQUAL_SENSITIVITY, in their order."""
    first = max(values.values())
    return [name for name in values if first - values[name] < EQUAL_SENSITIVITY]
