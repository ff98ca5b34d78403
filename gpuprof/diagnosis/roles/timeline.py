"""Processes on one timeline: the bubble of each, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gpuprof.calibration import iterations as calibrated
from gpuprof.diagnosis.roles.model import WAITING, Awaited, Role, RolePhaseTime, RoleProcess, Roles, Span, Wait
from gpuprof.diagnosis.roles.queue import marked_quantities
from gpuprof.errors import GpuprofError
from gpuprof.record.phases.phase_names import ENVIRONMENT, GENERATION, OTHER, REWARD, TRAINING, WEIGHT_SYNC
from gpuprof.timeline.intervals import Intervals, clip, complement, join, union
from gpuprof.tracefile.source import Issue
from gpuprof.units import Assumed, Convention, Share, Spans, WholeNs

LATE_NS: Assumed[WholeNs] = 5_000_000
LATE_SHARE: Assumed[Share] = 0.05
"""A phase that ends at most this long after a wait, or this share of the wait, still counts as having ended it: clocks
of a host agree to microseconds, and a process continues for a little after putting something into a queue."""
MOST_SPANS: Convention[Spans] = 2_000
"""Most spans of a role's lane that are kept."""
LEAST_WINDOW_NS: Assumed[WholeNs] = 1_000_000
NO_ONE, NOTHING = "no other role", ""
_NAMES = ((TRAINING, "trainer"), (GENERATION, "generator"), (ENVIRONMENT, "environment"), (REWARD, "reward"))
"""(phase, role): a process gets the role of the first of these phases that it has."""


def roles_of(processes: Sequence[RoleProcess]) -> Roles:
    """The processes' roles over the time in which all of them were followed.

    Raises GpuprofError, one line, for fewer than two processes, or if they were not followed at the same time.
    """
    if len(processes) < 2:
        raise GpuprofError("one process is no timeline of roles: give the recordings of two or more")
    start = max(one.spans[0].start_ns for one in processes)
    end = min(one.spans[-1].end_ns for one in processes)
    if end - start < LEAST_WINDOW_NS:
        raise GpuprofError("these recordings do not overlap in time: were they made in the same run of the job?")
    inside = [_within(one.spans, start, end) for one in processes]
    names = _names(inside)
    lanes = {name: _meeting(name, spans, dict(zip(names, inside, strict=True))) for name, spans in
             zip(names, inside, strict=True)}  # fmt: skip
    lanes = {name: list(_with_awaited(name, lanes)) for name in lanes}
    working = {name: _busy(spans) for name, spans in lanes.items()}
    found = tuple(
        _role(name, process, lanes[name], working, end - start) for name, process in zip(names, processes, strict=True)
    )
    waits = tuple(sorted(_waits(lanes), key=lambda one: -one.ns))
    limiting, limit = _limit(found, waits)
    count = sum(one.phase == TRAINING for one in lanes["trainer"]) if "trainer" in lanes else 0
    one_clock = len({one.clock for one in processes}) == 1
    return Roles(
        window_ns=end - start,
        start_unix_ns=start,
        iterations=count,
        iteration_ns=round((end - start) / count) if count > 1 else None,
        one_clock=one_clock,
        roles=found,
        waits=waits,
        limit=limit,
        limiting=limiting,
        issues=tuple(_issues(processes, one_clock, end - start)),
        queue=marked_quantities(lanes, end - start),
    )


def _within(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    """The spans inside the window, relative to its start."""
    cut = (Span(one.phase, max(one.start_ns, start) - start, min(one.end_ns, end) - start) for one in spans)
    return [one for one in cut if one.ns > 0]


def _names(inside: Sequence[Sequence[Span]]) -> list[str]:
    """Each process's role; equal roles are numbered."""
    plain = []
    for spans in inside:
        there = {one.phase for one in spans}
        plain.append(next((name for phase, name in _NAMES if phase in there), "other"))
    counts: dict[str, int] = {}
    found = []
    for name in plain:
        counts[name] = counts.get(name, 0) + 1
        found.append(f"{name} {counts[name]}" if plain.count(name) > 1 else name)
    return found


def _meeting(name: str, spans: Sequence[Span], inside: dict[str, Sequence[Span]]) -> list[Span]:
    """A role's spans, with weight sync counted as waiting until another role takes part in it. If only one role marks
    weight sync, it is work."""
    others = [one for other, them in inside.items() if other != name for one in them if one.phase == WEIGHT_SYNC]
    if not others:
        return list(spans)
    met = _intervals(others)
    found: list[Span] = []
    for one in spans:
        if one.phase != WEIGHT_SYNC:
            found.append(one)
            continue
        both = clip(met, one.start_ns, one.end_ns)
        parts = [(start, end, WEIGHT_SYNC) for start, end in _pairs(both)]
        alone = complement(both, one.start_ns, one.end_ns)
        # Ending a little later than the other role is no waiting.
        parts += [
            (start, end, WAITING if start == one.start_ns and end - start > LATE_NS else WEIGHT_SYNC)
            for start, end in _pairs(alone)
        ]
        found += [Span(phase, start, end) for start, end, phase in sorted(parts)]
    return found


def _intervals(spans: Iterable[Span]) -> Intervals:
    rows = list(spans)
    return union(np.array([one.start_ns for one in rows], np.int64), np.array([one.end_ns for one in rows], np.int64))


def _pairs(found: Intervals) -> list[tuple[int, int]]:
    return list(zip(found.start.tolist(), found.end.tolist(), strict=True))


def _busy(spans: Iterable[Span]) -> Intervals:
    return _intervals(one for one in spans if one.phase != WAITING)


def _role(name: str, process: RoleProcess, spans: list[Span], working: dict[str, Intervals], window_ns: int) -> Role:
    times: dict[str, int] = {}
    for one in spans:
        times[one.phase] = times.get(one.phase, 0) + one.ns
    wait_ns = times.pop(WAITING, 0)
    others = join(*(busy for other, busy in working.items() if other != name))
    bubble_ns = sum(clip(others, one.start_ns, one.end_ns).total for one in spans if one.phase == WAITING)
    phases = tuple(RolePhaseTime(phase, ns) for phase, ns in sorted(times.items(), key=lambda item: -item[1]))
    return Role(
        name, process.source, process.program, phases, window_ns - wait_ns, wait_ns, bubble_ns, bubble_ns / window_ns,
        _longest(spans),
    )  # fmt: skip


def _longest(spans: Sequence[Span]) -> tuple[Span, ...]:
    if len(spans) <= MOST_SPANS:
        return tuple(spans)
    least = sorted((one.ns for one in spans), reverse=True)[MOST_SPANS - 1]
    return tuple(one for one in spans if one.ns >= least)[:MOST_SPANS]


def _with_awaited(name: str, lanes: dict[str, list[Span]]) -> Iterable[Span]:
    """A role's spans, with what each wait is for: the last phase of another role that ended when the wait did, or else
    the span that worked for most of it."""
    others = [(other, one) for other, them in lanes.items() if other != name for one in them]
    # Handing over a batch is short, unmarked work: the wait is for the phase before it.
    others = [(other, one) for other, one in others if one.phase != OTHER or one.ns > LATE_NS]
    others = sorted((pair for pair in others if pair[1].phase != WAITING), key=lambda pair: pair[1].start_ns)
    starts = np.array([one.start_ns for _, one in others], np.int64)
    longest = max((one.ns for _, one in others), default=0)
    for one in lanes[name]:
        if one.phase != WAITING:
            yield one
            continue
        late = max(LATE_NS, round(LATE_SHARE * one.ns))
        first = int(np.searchsorted(starts, one.start_ns - longest))
        last = int(np.searchsorted(starts, one.end_ns))
        near = [pair for pair in others[first:last] if pair[1].end_ns > one.start_ns]
        ended = [pair for pair in near if pair[1].end_ns <= one.end_ns + late]
        if ended:
            role, its = max(ended, key=lambda pair: pair[1].end_ns)
        elif near:
            role, its = max(near, key=lambda pair: _overlap(pair[1], one))
        else:
            yield one
            continue
        yield replace(one, awaited=Awaited(role, its.phase, its.start_ns))


def _waits(lanes: dict[str, list[Span]]) -> Iterable[Wait]:
    """The waits of each role, grouped by what they are for."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for name, spans in lanes.items():
        for one in (one for one in spans if one.phase == WAITING):
            role, phase = (NO_ONE, NOTHING) if one.awaited is None else (one.awaited.role, one.awaited.phase)
            found.setdefault((name, role, phase), []).append(one.ns)
    for (name, role, phase), each in found.items():
        yield Wait(name, role, phase, sum(each), len(each))


def _overlap(one: Span, other: Span) -> int:
    return max(min(one.end_ns, other.end_ns) - max(one.start_ns, other.start_ns), 0)


def _limit(roles: Sequence[Role], waits: Sequence[Wait]) -> tuple[str | None, str]:
    """(the role that limits the job, None if there is none; a sentence)."""
    said = ", ".join(f"the {one.role} waits {100 * one.bubble_share:.0f} %" for one in roles)
    said = said[0].upper() + said[1:]
    waiting = [one for one in roles if one.bubble_share >= calibrated.BOUND.value]
    if not waiting:
        return None, f"{said} of the time for others: the roles are balanced."
    if len(waiting) == len(roles):
        return (
            None,
            f"{said} of the time for others: all of them wait, they work in turns rather than at the same time.",
        )
    least = min(roles, key=lambda one: one.bubble_share)
    ns: dict[str, int] = {}
    for one in waits:
        if one.waits_for == least.role:
            ns[one.phase] = ns.get(one.phase, 0) + one.ns
    phase = max(ns, key=lambda name: ns[name]) if ns else None
    what = f"the {least.role}'s {phase}" if phase else f"the {least.role}"
    return least.role, f"{said} of the time for others: {what} limits the job."


def _issues(processes: Sequence[RoleProcess], one_clock: bool, window_ns: int) -> Iterable[Issue]:
    if not one_clock:
        yield Issue(
            "several_clocks", "warning",
            "the recordings are from several hosts or clocks: their times of day are assumed to agree",
        )  # fmt: skip
    longest = max(one.spans[-1].end_ns - one.spans[0].start_ns for one in processes)
    if window_ns < longest / 2:
        text = (
            f"only {window_ns / 1e9:.1f} s are in all of the recordings, of at most {longest / 1e9:.1f} s: the rest is"
            " left out"
        )
        yield Issue("short_overlap", "info", text)
