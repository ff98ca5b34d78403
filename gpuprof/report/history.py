"""Runs one after the other: their numbers as rows, as JSON, as Markdown, and as a chart of the mean step."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.diagnosis import Diagnosis
from gpuprof.diagnosis.json import to_json
from gpuprof.record.scalars import PREFIX, scalars
from gpuprof.report import markdown, words
from gpuprof.report.numbers import duration, percent, rate

SCHEMA = "gpuprof.history/1"
BAR = 20
"""Cells of the longest bar."""
HEAD = ("run", "began", "step", "", "verdict", "GPU busy", "tokens/s")


@dataclass(frozen=True, slots=True)
class Entry:
    """One run of a history."""

    path: str
    began: str | None
    """Date and time in UTC, ISO 8601; None where the recording does not say."""
    status: str
    verdict: str
    values: dict[str, float]
    """As `gpuprof.record.scalars`, without the prefix."""


def entry(path: str, began: str | None, diagnosis: Diagnosis) -> Entry:
    """What a history says of one diagnosis."""
    values = {name.removeprefix(PREFIX): value for name, value in scalars(to_json(diagnosis)).items()}
    return Entry(path, began, diagnosis.quality.status, words.label(diagnosis), values)


def rows(entries: list[Entry], bar: str = "█") -> list[tuple[str, ...]]:
    """A row of texts for each, as in HEAD; the bar is the mean step on a scale of all."""
    longest = max((one.values.get("mean_step_ms", 0.0) for one in entries), default=0.0)
    found = []
    for one in entries:
        step, busy, tokens = (one.values.get(name) for name in ("mean_step_ms", "gpu_busy", "tokens_per_s"))
        cells = max(round(BAR * step / longest), 1) if step and longest else 0
        found.append(
            (
                one.path,
                (one.began or "–")[:16].replace("T", " "),
                duration(step * 1e6) if step else "–",
                bar * cells,
                one.verdict,
                percent(busy) if busy is not None else "–",
                rate(tokens) if tokens else "–",
            )
        )
    return found


def document(entries: list[Entry]) -> dict[str, object]:
    """The history as JSON."""
    runs = [
        {"path": e.path, "began": e.began, "status": e.status, "verdict": e.verdict, "values": e.values}
        for e in entries
    ]  # fmt: skip
    return {"schema": SCHEMA, "runs": runs}


def as_markdown(entries: list[Entry]) -> str:
    """The history as a table."""
    return markdown.table(HEAD, rows(entries)) + "\n"
