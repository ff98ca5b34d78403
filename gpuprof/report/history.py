"""The history of runs: their numbers as rows, as JSON, as Markdown, and as a chart of the mean step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, median_low
from typing import TYPE_CHECKING

from rich.cells import cell_len

from gpuprof.record.entry.scalars import PREFIX, scalars
from gpuprof.report.names import shorten
from gpuprof.report.numbers import duration, joules, percent, rate
from gpuprof.runfile import SUMMARY, read_json, write_json
from gpuprof.units import Assumed, Cells, Convention, Entries, Ratio

if TYPE_CHECKING:
    from gpuprof.diagnosis.result.diagnosis import Diagnosis

SCHEMA = "gpuprof.history/1"
ENTRY_SCHEMA = "gpuprof.history_entry/1"
BAR_WIDTH: Convention[Cells] = 20
SHORT_BAR_WIDTH: Convention[Cells] = 6
"""Length of the longest bar, in a wide and in a narrow table."""
NARROW_WIDTH: Convention[Cells] = 110
"""Columns below which the table is narrow."""
HEAD = ("run", "began", "step", "", "verdict", "GPU busy", "tokens/s")
SLOWER_STEP: Assumed[Ratio] = 1.05
"""A step that takes this many times as long as before counts as slower."""
NEIGHBOURS: Assumed[Entries] = 3
"""Number of entries before and after a jump whose medians are compared."""


_DATED = re.compile(r"\d{4}-\d\d-\d\d_\d{6}")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One run of a history."""

    path: str
    began: str | None
    """Date and time in UTC, ISO 8601; None where the recording does not say."""
    status: str
    verdict: str
    values: dict[str, float]
    """Values of `gpuprof.record.entry.scalars`, without the prefix."""


def entry(path: str, began: str | None, diagnosis: Diagnosis) -> HistoryEntry:
    """The entry of one diagnosis."""
    from gpuprof.diagnosis.written.diagnosis_json import to_json
    from gpuprof.report.words import words

    values = {name.removeprefix(PREFIX): value for name, value in scalars(to_json(diagnosis)).items()}
    return HistoryEntry(path, began, diagnosis.quality.status, words.label(diagnosis), values)


def remember(run: Path, one: HistoryEntry) -> None:
    """Writes an entry into the folder of its run, if that is writable."""
    document = {"schema": ENTRY_SCHEMA, "status": one.status, "verdict": one.verdict, "values": one.values}
    try:
        write_json(run / SUMMARY, document)
    except OSError:  # the folder belongs to another user, or the disk is full
        return


def remembered(run: Path, path: str, began: str | None) -> HistoryEntry | None:
    """The entry in a run's folder; None if there is none or it cannot be read."""
    found = read_json(run / SUMMARY)
    if found is None or found.get("schema") != ENTRY_SCHEMA:
        return None
    status, verdict, values = (found.get(name) for name in ("status", "verdict", "values"))
    if not (isinstance(status, str) and isinstance(verdict, str) and isinstance(values, dict)):
        return None
    numbers = {str(name): float(value) for name, value in values.items() if isinstance(value, (int, float))}
    return HistoryEntry(path, began, status, verdict, numbers)


@dataclass(frozen=True, slots=True)
class Slower:
    """The run at which a program's step became slower."""

    before: int
    """Index of the program's previous run."""
    at: int
    """Its own index."""
    before_ms: float
    after_ms: float
    """Step time, scaled to the same number of tokens if known."""
    same_work: bool
    """Whether the tokens are known."""


def slower_at(entries: list[HistoryEntry], programs: Sequence[str | None] = ()) -> Slower | None:
    """The largest jump between the medians of up to NEIGHBOURS runs of one program before and after; None if there is
    none that the newest runs still have. Compares the time per token, scaled to the step of the run before, if all runs
    know it: a larger batch is not slower. programs: what each entry trains, None if not known."""
    named = list(programs) or [None] * len(entries)
    jumps: list[tuple[float, Slower]] = []
    for program in dict.fromkeys(named):
        jumps += _jumps(entries, [i for i, one in enumerate(named) if one == program and _cost(entries[i])])
    return max(jumps, key=lambda one: one[0])[1] if jumps else None


def _jumps(entries: list[HistoryEntry], runs: list[int]) -> list[tuple[float, Slower]]:
    """Each (times as slow, where) of the runs with these indices."""
    of_tokens = all(entries[i].values.get("tokens_per_s") for i in runs)
    values = {i: 1e3 / entries[i].values["tokens_per_s"] if of_tokens else _cost(entries[i]) or 0.0 for i in runs}
    found = []
    for k in range(1, len(runs)):
        before, at = runs[k - 1], runs[k]
        usual = median(values[i] for i in runs[max(k - NEIGHBOURS, 0) : k])
        # The lower median: of two runs the faster one must be slower, too.
        after = median_low(values[i] for i in runs[k : k + NEIGHBOURS])
        now = median_low(values[i] for i in runs[max(k, len(runs) - NEIGHBOURS) :])
        jump = min(after, values[at]) / usual if usual > 0 else 0.0
        if jump >= SLOWER_STEP and now >= SLOWER_STEP * usual:
            step = _cost(entries[before]) or 0.0
            found.append((jump, Slower(before, at, step, step * values[at] / values[before], of_tokens)))
    return found


def differences(before: HistoryEntry, after: HistoryEntry) -> list[str]:
    """What differs between two entries: the verdict, and values by SLOWER_STEP or more, as lines of text."""
    found = [f"verdict: {before.verdict} → {after.verdict}"] if before.verdict != after.verdict else []
    for name, old in before.values.items():
        new = after.values.get(name)
        if new is not None and max(old, new) >= SLOWER_STEP * min(old, new) and old != new:
            found.append(f"{name}: {old:,.4g} → {new:,.4g}")
    return found


def _cost(one: HistoryEntry) -> float | None:
    return one.values.get("mean_step_ms") or None


def shortened(entries: list[HistoryEntry]) -> list[HistoryEntry]:
    """The entries without the leading folders and trailing names that all paths share: `runs/a/recording` and
    `runs/b/recording` become `a` and `b`."""
    parts = [Path(one.path).parts for one in entries]
    shortest = min(map(len, parts), default=0)
    if len(entries) < 2 or len(set(parts)) < 2:
        return entries
    same = [len({one[i] for one in parts}) == 1 for i in range(shortest)]
    same_end = [len({one[-1 - i] for one in parts}) == 1 for i in range(shortest)]
    first, last = (one.index(False) if False in one else shortest - 1 for one in (same, same_end))
    kept = [Path(*one[first : len(one) - last]) for one in parts]
    if any(not one.parts for one in kept):
        return entries
    return [replace(one, path=str(path)) for one, path in zip(entries, kept, strict=True)]


def told_apart(name: str, names: list[str], width: int) -> str:
    """A name shortened to `width` cells in its middle, or at its beginning if different names would look the same."""
    short = shorten(name, width)
    if any(other != name and shorten(other, width) == short for other in names):
        end = name
        while end and cell_len(end) > width - 1:
            end = end[1:]
        return f"…{end}"
    return short


def named_by_date(entries: list[HistoryEntry]) -> bool:
    """Whether the names of all runs begin with the date, like those of `gpuprof trace`."""
    return all(_DATED.match(Path(one.path).name) for one in entries)


def head(entries: list[HistoryEntry]) -> tuple[str, ...]:
    """Names of the columns: HEAD, and the energy of a token (else of a step) where a run measured it."""
    name = _energy(entries)
    return HEAD if name is None else (*HEAD, "J/token" if name == "token_j" else "J/step")


def _energy(entries: list[HistoryEntry]) -> str | None:
    """The measure of energy that most runs have."""
    counts = {name: sum(name in one.values for one in entries) for name in ("token_j", "step_j")}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None


def rows(entries: list[HistoryEntry], bar: str = "█", width: int = 1000) -> list[tuple[str, ...]]:
    """A row of texts per entry, with the columns of `head`; the bar shows the mean step. width: of the table."""
    longest = max((one.values.get("mean_step_ms", 0.0) for one in entries), default=0.0)
    most, from_ = (BAR_WIDTH, 0) if width >= NARROW_WIDTH else (SHORT_BAR_WIDTH, 5)
    found, energy = [], _energy(entries)
    for one in entries:
        step, busy, tokens = (one.values.get(name) for name in ("mean_step_ms", "gpu_busy", "tokens_per_s"))
        cells = max(round(most * step / longest), 1) if step and longest else 0
        found.append(
            (
                one.path,
                (one.began or "–")[from_ if one.began else 0 : 16].replace("T", " "),
                duration(step * 1e6) if step else "–",
                bar * cells,
                one.verdict if width >= NARROW_WIDTH else one.verdict.partition(" · ")[0].removesuffix("-BOUND"),
                percent(busy) if busy is not None else "–",
                rate(tokens) if tokens else "–",
                *(() if energy is None else (joules(one.values[energy]) if energy in one.values else "–",)),
            )
        )
    return found


def document(entries: list[HistoryEntry]) -> dict[str, object]:
    """The history as JSON."""
    runs = [
        {"path": e.path, "began": e.began, "status": e.status, "verdict": e.verdict, "values": e.values}
        for e in entries
    ]  # fmt: skip
    return {"schema": SCHEMA, "runs": runs}


def as_markdown(entries: list[HistoryEntry]) -> str:
    """The history as a table."""
    from gpuprof.report import markdown

    return markdown.table(head(entries), rows(entries)) + "\n"
