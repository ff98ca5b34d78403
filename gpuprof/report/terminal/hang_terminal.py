"""Why a job hangs, as a screen of text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from gpuprof.hang.judge import Hang
from gpuprof.hang.rank_state import RankState
from gpuprof.report.names import escape
from gpuprof.report.terminal.sections import paragraph, section
from gpuprof.report.words import hang_words as words
from gpuprof.units import Convention, Rows

ROWS: Convention[Rows] = 8
"""Ranks listed by default."""


def render(hang: Hang, states: Sequence[RankState], rows: int = ROWS) -> Group:
    """The answer: the reason first, then `rows` ranks, beginning with those that the
    reason names."""
    order = sorted(states, key=lambda one: (one.rank not in hang.ranks, one.rank))
    listed = [Text(f"{one.rank:>4}  {escape(words.state(one))}") for one in order[:rows]]
    more = len(states) - rows
    return Group(
        Text(escape(words.headline(hang)), "bold"),
        *paragraph(escape(" ".join(words.sentences(hang)))),
        *section("ranks", [*listed, *([Text(f"and {more:,} more, with --top", "dim")] if more > 0 else [])]),
        *section("note", [Text(escape(note), "yellow") for note in hang.notes[:rows]]),
        *section("next", [Text(words.next_step(hang))]),
    )
