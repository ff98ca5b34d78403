"""What torch.compile could not do in a run, in a line each: where, why, and the way out."""

from __future__ import annotations

from gpuprof.diagnosis.detect.compiled.dynamo_reasons import guard_kind, in_words, way_into_graphs, way_out
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.names import shown
from gpuprof.tracefile.run_folder.compiler import CompiledFunction, Compiler
from gpuprof.units import Cells, Convention, Entries, Times

_MOST_SHOWN: Convention[Entries] = 4
"""Most breaks, and most recompiled functions, that are named."""
_FEWEST_FAILURES: Convention[Times] = 3
"""From how many failures on a guard is named: a second version for another shape or mode is usual."""
_WIDTH: Convention[Cells] = 300
"""Cells for any one text."""


def lines(diagnosis: Diagnosis) -> list[str]:
    """Graph breaks, functions that were compiled again and again, and skipped CUDA graphs; empty if there are none."""
    compiler = diagnosis.run.compiler if diagnosis.run else None
    if compiler is None:
        return []
    again = [line for one in compiler.functions if (line := _again(one))]
    skips = [
        _text(f"CUDA graphs were skipped: {reason} ({count:,}×)" + (f"; {way}" if way else ""))
        for reason, count in compiler.skips
        for way in [way_into_graphs(reason)]
    ]
    return [*_breaks(compiler), *again[:_MOST_SHOWN], *skips[:_MOST_SHOWN]]


def _breaks(compiler: Compiler) -> list[str]:
    """One line for each place, though Dynamo may note several reasons for it."""
    places = {}
    for one in compiler.breaks:
        places.setdefault(str(one.place), one)
    found = [
        f"{_text(place)}: {_text(in_words(one.reason, one.detail))}; {_text(way_out(one))}"
        for place, one in places.items()
    ]
    more = len(found) - _MOST_SHOWN
    return found[:_MOST_SHOWN] + ([f"and {more:,} graph breaks more"] if more > 0 else [])


def _again(one: CompiledFunction) -> str:
    """What had a function compiled again and again, until it was given up or not; empty if nothing did."""
    guard = max(one.failed_guards, key=lambda each: each.count, default=None)
    if guard is None or guard.count < _FEWEST_FAILURES:
        return ""
    kind = guard_kind(guard)
    about = f" ({kind.what}); {kind.way}" if kind else ""
    how = f"given up after {one.versions:,} versions" if one.reached_limit else f"compiled {one.versions:,} times"
    return _text(f"{one.place}: {how}: {guard.guard}{about}")


def _text(text: str) -> str:
    return shown(text.replace("\n", " "), _WIDTH)
