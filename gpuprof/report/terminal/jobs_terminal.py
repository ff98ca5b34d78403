"""Armed jobs, as a table of text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gpuprof.attach.jobs import ArmedProcess
from gpuprof.report.names import escape
from gpuprof.report.numbers import duration
from gpuprof.units import Assumed, Times, WholeNs

STALLED_TIMES: Assumed[Times] = 20
"""A job stalls if its current step takes this many times the usual one, and at least 60 s."""
LEAST_STANDING_NS: Assumed[WholeNs] = 60_000_000_000


def render(jobs: Sequence[ArmedProcess]) -> Group:
    """One row for each process, and what to do next."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("PID", "program", "rank", "step", "rate", "left", "state"):
        table.add_column(name, justify="right" if name in ("PID", "rank", "step", "rate", "left") else "left")
    for one in jobs:
        table.add_row(*(Text(escape(text)) for text in _row(one)))
    return Group(table, Text(""), Text(f"gpuprof attach {jobs[0].pid} records some steps of it", "dim"))


def _row(one: ArmedProcess) -> tuple[str, ...]:
    rank = f"{one.rank}/{one.world_size}" if one.world_size > 1 else ""
    step = f"{one.step:,}" if one.total is None else f"{one.step:,} of {one.total:,}"
    return str(one.pid), one.name, rank, step, _rate(one), _left(one), _state(one)


def _rate(one: ArmedProcess) -> str:
    if not one.step_ns:
        return ""
    per_s = 1e9 / one.step_ns
    return f"{per_s:,.1f} steps/s" if per_s >= 1 else f"{duration(one.step_ns)} a step"


def _left(one: ArmedProcess) -> str:
    if one.total is None or not one.step_ns:
        return ""
    return duration(max(0, one.total - one.step) * one.step_ns)


def _state(one: ArmedProcess) -> str:
    stands = (one.since_ns or 0) > max(LEAST_STANDING_NS, STALLED_TIMES * (one.step_ns or 0))
    if stands:
        return f"no step for {duration(one.since_ns or 0)}"
    return f"{one.state} ({one.stage})" if one.stage else one.state
