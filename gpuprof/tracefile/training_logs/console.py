"""Iterations in a training's printed output: `step:3 - timing_s/gen:74.0 - …`, `perf 3: {'perf/step_time': …}`, and
tables such as `• policy_training: 10.97s (30.7%)`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

from gpuprof.tracefile.training_logs.frameworks import plain_key
from gpuprof.tracefile.training_logs.record import LogEntry
from gpuprof.tracefile.training_logs.rows import STEPS, known, row_of, rows
from gpuprof.units import Assumed, Characters

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DASHED = re.compile(r"\bstep:(\d+) - ")
_BEFORE_BRACE = re.compile(r"(\d+)\W*\{")
_NUMBER = r"(?:np\.\w+\()?['\"]?(-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)"
_PAIR = re.compile(r"['\"]([^'\"]{1,120})['\"]\s*:\s*" + _NUMBER)
_VALUE = re.compile(r"\s*" + _NUMBER)
_BULLET = re.compile(r"•\s*([\w /]+?):\s*(-?\d+(?:\.\d+)?)\s*(s|steps)?\b")
_BLOCK = re.compile(r"Training Results|=+ Step (\d+)/")
_STAMP = re.compile(r"\b(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
_TABLE = {
    "Total step time": "timing/train/total_step_time",
    "Buffer Size": "train/buffer_size",
    "Avg Trajectory Age": "train/avg_trajectory_age",
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
}
"""Lines of NeMo-RL's tables whose names differ from their keys."""
LONGEST_LINE: Assumed[Characters] = 200_000


def entries(lines: Iterable[str]) -> Iterator[LogEntry]:
    """The iterations in the lines of a log, in order; other lines are skipped."""
    table: dict[str, float] = {}
    number: int | None = None
    for line in lines:
        if (row := row_of(line)) is not None:
            yield from rows([row])
            continue
        text = _ANSI.sub("", line[:LONGEST_LINE])
        block = _BLOCK.search(text)
        if block is not None:
            if "timing/train/total_step_time" in table:
                yield LogEntry(number, table)
                table, number = {}, None
            number = int(block[1]) if block[1] else number
        elif (bullet := _BULLET.search(text)) is not None:
            key = plain_key(_TABLE.get(bullet[1], f"timing/train/{bullet[1]}"))
            if key is not None:
                table[key] = float(bullet[2])
        elif (found := _entry(text)) is not None:
            yield found
    if "timing/train/total_step_time" in table:
        yield LogEntry(number, table)


def _entry(text: str) -> LogEntry | None:
    dashed = _DASHED.search(text)
    if dashed is not None:
        pairs = [part.rpartition(":") for part in text[dashed.end() :].split(" - ")]
        numbers = [(key.strip(), _VALUE.match(value)) for key, _, value in pairs]
        values = known({key: float(number[1]) for key, number in numbers if number is not None})
        return LogEntry(int(dashed[1]), values, _moment(text)) if values else None
    if "/" not in text or ":" not in text:
        return None
    given = {key: float(value) for key, value in _PAIR.findall(text)}
    values = known(given)
    if not values:
        return None
    step = next((int(given[key]) for key in STEPS if key in given), None)
    before = _BEFORE_BRACE.search(text)
    return LogEntry(int(before[1]) if step is None and before is not None else step, values, _moment(text))


def _moment(text: str) -> float | None:
    found = _STAMP.search(text)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(found[1].replace("T", " ")).replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{found[2] or 0}")
