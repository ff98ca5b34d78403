"""Batches that wait to be trained on, and the age of their policy, counted from the marks of a job's processes.

A batch is what one stretch of training trains on: one generation, or a whole number of generations if there are that
many more. Batches are trained on in the order of generation. The number of batches at the start of the window is known
if the trainer waited for a generation at some time: then the queue was empty.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from gpuprof.diagnosis.iterations.logged_model import LoggedQuantity
from gpuprof.diagnosis.roles.model import WAITING, Span
from gpuprof.record.phases.phase_names import GENERATION, TRAINING, WEIGHT_SYNC
from gpuprof.units import Assumed, Batches, Share, WholeNs

FEWEST_BATCHES: Assumed[Batches] = 4
BATCHES_DIFFER: Assumed[Share] = 0.1
"""Largest relative difference between the numbers of batches on both sides, apart from those in the queue."""
LEAST_WAIT_NS: Assumed[WholeNs] = 10_000_000
"""A shorter wait may end near the end of a generation by chance."""
CLOCKS_NS: Assumed[WholeNs] = 1_000_000
"""Largest difference between the clocks of two processes."""
MARKED = "marked"
"""Key of quantities that were counted from marks."""
TRAINER = "trainer"


def marked_quantities(lanes: Mapping[str, Sequence[Span]], window_ns: int) -> tuple[LoggedQuantity, ...]:
    """Queue depth and, if processes mark weight sync, staleness; empty if the marks do not say."""
    if TRAINER not in lanes:
        return ()
    taken = _taken(lanes[TRAINER])
    generated = sorted(
        ((name, one) for name, spans in lanes.items() if name != TRAINER for one in spans if one.phase == GENERATION),
        key=lambda pair: pair[1].end_ns,
    )
    each = round(len(generated) / len(taken)) if len(taken) >= FEWEST_BATCHES else 0
    if each < 1 or abs(len(generated) / each - len(taken)) > max(BATCHES_DIFFER * len(taken), 2):
        return ()
    if not any(_is_for_a_batch(one) for one in lanes[TRAINER]):
        return ()
    ready = [one.end_ns for _, one in generated[each - 1 :: each]]
    at_first = max(i + 1 - bisect_right(ready, start + CLOCKS_NS) for i, start in enumerate(taken))
    # A batch cannot be taken before it is ready; clocks may disagree.
    taken = [start if i < at_first else max(start, ready[i - at_first]) for i, start in enumerate(taken)]
    depth = _depth(ready, taken, at_first, window_ns)
    age = _age(lanes, generated, taken, each, at_first)
    return (depth, age) if age is not None else (depth,)


def _is_for_a_batch(wait: Span) -> bool:
    return wait.ns >= LEAST_WAIT_NS and wait.awaited is not None and wait.awaited.phase == GENERATION


def _taken(spans: Sequence[Span]) -> list[int]:
    """When the trainer takes each batch: when its work on it begins, after training on the previous one."""
    found, begun = [], None
    for one in spans:
        if one.phase in (WAITING, WEIGHT_SYNC):
            begun = None
        elif one.phase == TRAINING:
            found.append(one.start_ns if begun is None else begun)
            begun = None
        elif begun is None:
            begun = one.start_ns
    return found


def _waiting(ready: Sequence[int], taken: Sequence[int], at_ns: int) -> int:
    """Batches generated in the window and not taken yet; negative if some were there before."""
    return bisect_right(ready, at_ns) - bisect_right(taken, at_ns)


def _depth(ready: Sequence[int], taken: Sequence[int], at_first: int, window_ns: int) -> LoggedQuantity:
    moments = sorted({0, *ready, *taken, window_ns})
    depths = [_waiting(ready, taken, at) + at_first for at in moments[:-1]]
    whole = sum(depth * (end - at) for depth, at, end in zip(depths, moments[:-1], moments[1:], strict=True))
    lasting = [depth for depth, at, end in zip(depths, moments[:-1], moments[1:], strict=True) if end > at]
    return LoggedQuantity("queue", MARKED, whole / window_ns, float(min(lasting)), float(max(lasting)))


def _age(
    lanes: Mapping[str, Sequence[Span]], generated: Sequence[tuple[str, Span]], taken: Sequence[int], each: int,
    at_first: int,
) -> LoggedQuantity | None:  # fmt: skip
    """Number of weight syncs between the start of a generation and the start of training on it, by each side's marks.
    None if no process marks them."""
    synced = {name: ends for name, spans in lanes.items() if (ends := _syncs(spans))}
    if not synced:
        return None
    usual = synced.get(TRAINER, next(iter(synced.values())))
    ages = [
        bisect_right(usual, start) - bisect_right(synced.get(name, usual), one.start_ns)
        for i, start in enumerate(taken[at_first:])
        for name, one in generated[i * each : (i + 1) * each]
    ]
    return (
        LoggedQuantity("staleness", MARKED, sum(ages) / len(ages), float(min(ages)), float(max(ages))) if ages else None
    )


def _syncs(spans: Sequence[Span]) -> list[int]:
    """When each weight sync of a process ended; adjacent pieces count as one."""
    ends: list[int] = []
    for one in (one for one in spans if one.phase == WEIGHT_SYNC):
        if ends and one.start_ns == ends[-1]:
            ends.pop()
        ends.append(one.end_ns)
    return ends
