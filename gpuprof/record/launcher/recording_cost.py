"""How long each part of a recording took, from a rank's facts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ...runfile import WINDOWS

_NAMES = {
    "settle": "settling", "baseline_free": "baseline", "baseline_sync": "baseline", "sampling": "sampling",
    "warmup": "recorded steps", "trace": "recorded steps", "stacks": "recorded steps", "memory": "recorded steps",
    "nsys": "recorded steps",
}  # fmt: skip


def parts(rank: dict[str, Any]) -> dict[str, int]:
    """Name → wall ns of settling, baseline, sampling, recorded steps and stall (of the training, while the profiler
    stopped), from rank<N>.json; only stages that have ended."""
    stages = [one for one in rank.get("stages") or () if isinstance(one, dict) and _is_time(one.get("unix_ns"))]
    found: dict[str, int] = {}
    for one, following in pairwise(stages):
        name = _NAMES.get(str(one.get("stage")))
        if name is not None:
            found[name] = found.get(name, 0) + max(following["unix_ns"] - one["unix_ns"], 0)
    stall = stall_ns(rank)
    if stall and "recorded steps" in found:
        found["recorded steps"] = max(found["recorded steps"] - stall, 0)
        found["stall"] = stall
    return found


def stall_ns(rank: dict[str, Any]) -> int:
    """How long the training stalled while profilers stopped."""
    windows = [one for one in rank.get("windows") or () if isinstance(one, dict)]
    return sum(one["stop_ns"] for one in windows if _is_time(one.get("stop_ns")))


def recorded_until(rank: dict[str, Any]) -> int | None:
    """When the last recorded step ended, unix ns: then the profiler stopped, and after that the next stage began. None
    if no stage followed."""
    stages = [one for one in rank.get("stages") or () if isinstance(one, dict)]
    windows = [one for one in rank.get("windows") or () if isinstance(one, dict)]
    last = max((i for i, one in enumerate(stages) if one.get("stage") in WINDOWS), default=len(stages))
    began = stages[last + 1].get("unix_ns") if last + 1 < len(stages) else None
    stopped: Any = windows[-1].get("stop_ns") if windows else 0
    if not isinstance(began, int) or not _is_time(began):
        return None
    return began - (stopped if _is_time(stopped) else 0)


def verdict_parts(rank: dict[str, Any], laps: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Name → wall ns of each part between the last recorded step and the verdict, in order; they sum to the whole.
    laps: (name, unix ns of its end) of each part after the stall, the last of which ends with the verdict. Parts that
    ended before the step did are left out; empty if the step is not known."""
    until = recorded_until(rank)
    if until is None:
        return {}
    stopped = until + (rank["windows"][-1].get("stop_ns") or 0) if rank.get("windows") else until
    found: dict[str, int] = {}
    for name, end in (("stall", stopped), *laps):
        if end > until:
            found[name] = found.get(name, 0) + end - until
            until = end
    return found


def in_words(rank: dict[str, Any], laps: Sequence[tuple[str, int]]) -> str | None:
    """`the recording took 12 s: settling 1.8 s, …; the verdict came 3.1 s after the last recorded step: stall 0.4 s,
    …`. laps: as of `verdict_parts`. None where nothing is known."""
    found = parts(rank)
    if not found:
        return None
    later = verdict_parts(rank, laps)
    verdict = f"; the verdict came {_seconds(sum(later.values()))} after the last recorded step: {_each(later)}"
    return f"the recording took {_seconds(sum(found.values()))}: {_each(found)}{verdict if later else ''}"


def _each(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {_seconds(ns)}" for name, ns in found.items())


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.1f} s"


def _is_time(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
