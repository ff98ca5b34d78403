"""Texts on roles on one timeline, shared by terminal and page."""

from __future__ import annotations

from gpuprof.calibration import iterations as iterations_calibrated
from gpuprof.diagnosis.roles.model import WAITING, Role, Roles, Wait
from gpuprof.diagnosis.roles.queue import MARKED
from gpuprof.diagnosis.roles.timeline import NO_ONE
from gpuprof.report.names import escape
from gpuprof.report.numbers import amount, duration, share
from gpuprof.report.stepbar import LEAST_LISTED, PartPaint
from gpuprof.report.terminal.logged_terminal import quantity
from gpuprof.report.words.iteration_words import PAINTS

PAINT_OF_WAITING = PartPaint("bright_black", "#c9ced4", "·")


def paint(phase: str) -> PartPaint:
    """How a phase of a lane looks."""
    return PAINT_OF_WAITING if phase == WAITING else PAINTS[phase]


def title(found: Roles) -> str:
    """Which role limits the job, in a few words."""
    if found.limiting is not None:
        return f"The {found.limiting} limits the job"
    turns = all(one.bubble_share >= iterations_calibrated.BOUND.value for one in found.roles)
    return "The roles work in turns" if turns else "The roles are balanced"


def summary(found: Roles) -> str:
    """How many processes, over which time."""
    each = f", {duration(found.iteration_ns)} an iteration" if found.iteration_ns else ""
    return f"{len(found.roles)} processes on one timeline of {duration(found.window_ns)}{each}"


def phases_there(found: Roles) -> list[str]:
    """The phases that have an entry, in the order of an iteration; waiting comes last."""
    there = {one.phase for role in found.roles for one in role.phases if one.ns >= LEAST_LISTED * found.window_ns}
    return [*(phase for phase in PAINTS if phase in there), WAITING]


def queue(found: Roles) -> str:
    """The queue of samples to train on, and the age of their policy; empty if not known."""
    marked = any(one.key == MARKED for one in found.queue)
    return "; ".join(map(quantity, found.queue)) + (" (counted from the marks)" if marked else "")


def name(role: Role) -> str:
    """`trainer · train.py`."""
    return role.role + (f" · {escape(role.program)}" if role.program else "")


def wait(one: Wait, window_ns: int) -> str:
    """What a role waits for, in a line."""
    times = f"{share(one.ns, window_ns)} ({amount(one.count, 'wait')} of {duration(one.ns / one.count)})"
    if one.waits_for == NO_ONE:
        return f"the {one.role} waits {times}, while no other role works"
    return f"the {one.role} waits for the {one.waits_for}'s {one.phase} {times}"
