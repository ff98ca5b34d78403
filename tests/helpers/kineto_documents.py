"""Kineto documents in any layout, and the streaming reader's result for one, as plain values."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from gpuprof.tracefile.kineto import layout, stream
from gpuprof.tracefile.kineto.columns import KinetoTables
from gpuprof.tracefile.kineto.envelope import find_events, object_end
from gpuprof.tracefile.kineto.msgspec_reader import NO_END, Parsed, StringIds, add_texts, event_then_close, is_whole


class Raw(str):
    """A number exactly as written in the file."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How white space, envelope and encoding are chosen; the order of keys is random."""

    comma: str
    colon: str
    begin: str
    end: str
    newline: str = "\n"
    head: str = '{"schemaVersion": 1, "traceEvents": ['
    tail: str = '], "traceName": "t", "baseTimeNanoseconds": 17}'
    mark: bytes = b""
    ascii: bool = True

    def document(self, events: list[dict], seed: int) -> bytes:
        draw = random.Random(seed)
        text = f"{self.comma}".join(self.value(event, draw) for event in events)
        text = f"{self.head}{self.begin}{text}{self.end}{self.tail}"
        return self.mark + text.replace("\n", self.newline).encode(
            "utf-8", "surrogatepass" if self.ascii else "replace"
        )

    def value(self, value, draw: random.Random) -> str:
        if isinstance(value, Raw):
            return value
        if isinstance(value, dict):
            items = list(value.items())
            draw.shuffle(items)
            inner = self.comma.join(f"{self.value(str(k), draw)}{self.colon}{self.value(v, draw)}" for k, v in items)
            return f"{{{self.begin}{inner}{self.end}}}" if items else "{}"
        if isinstance(value, list):
            return f"[{', '.join(self.value(v, draw) for v in value)}]"
        return json.dumps(value, ensure_ascii=self.ascii)


LAYOUTS = {
    "kineto": Layout(",\n    ", ": ", "\n    ", "\n  "),
    "one line": Layout(", ", ": ", "", ""),
    "compact": Layout(",", ":", "", "", ascii=False),
    "list": Layout(",\n ", " :\t", "\n", "\n", head=" [", tail="]\n"),
    "windows": Layout(",\n", ": ", "\n\t", "\n", newline="\r\n", mark=b"\xef\xbb\xbf"),
    "wide": Layout("   \n" * 9 + "," + " " * 40, " " * 33 + ":" + "\n" * 70, " " * 70, "\n\n" * 35, ascii=False),
}


class Float(str):
    """A number with a point or an exponent, as text."""


def rows_of(parsed: Parsed) -> list[dict]:
    """All rows that were read, as `expected` gives them."""
    texts = [*parsed.strings, None]
    found = []
    for table in layout.TABLES:
        columns = parsed.tables[table].take()
        for i in range(parsed.tables[table].count):
            row: dict = {"table": table}
            for field, column in columns.items():
                value = column[i].item()
                if field in layout.TEXT_FIELDS:
                    value = texts[value]
                    if field not in PLAIN_TEXTS and value is not None:
                        value = as_json(value)
                elif value != value or (column.dtype.kind == "i" and value == np.iinfo(column.dtype).min):
                    value = None
                row[field] = value
            found.append(row)
    return found


PLAIN_TEXTS = ("name", "category", "pid", "tid")


def as_json(text: str):
    """The value of a JSON text; other texts unchanged."""
    try:
        return [json.loads(text, parse_float=Float)]
    except ValueError:
        return text


def parsed_from(path: Path, block_bytes: int = stream.BLOCK_BYTES) -> Parsed:
    return stream.read_stream(path, path.stat().st_size, None, block_bytes)


SEPARATOR = re.compile(rb'\}[\s\x00]*(?:,[\s\x00]*)?(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|s|id|bp)"\s*:)')


def cut_at_separators(data: bytes) -> Parsed:
    """What a reader finds that knows nothing but separators: the text is cut at each, and each piece is an event."""
    parsed = Parsed(tables=KinetoTables(), strings=StringIds(), keys={})
    begin, _ = find_events(data)
    starts = [begin, *(found.end() for found in SEPARATOR.finditer(data, begin))]
    texts: list[bytes] = []
    for start, after in zip(starts, [*starts[1:], len(data)], strict=True):
        texts.append(data[start:after].strip(stream.BETWEEN))
        end = event_then_close(texts[-1])
        if end is not None:
            texts[-1] = texts[-1][:end]
            break
    else:
        parsed.truncated = NO_END
        if not is_whole(texts[-1]):
            texts[-1] = texts[-1][: object_end(texts[-1]) or 0]
    add_texts(filter(None, texts), parsed)
    return parsed


def events_in(parsed: Parsed) -> int:
    return sum(table.count for table in parsed.tables.values()) + parsed.metadata_events


def listed(events: Iterable[str], comma: str = ",\n") -> str:
    return f"[{comma.join(events)}]"


def op(name: str = "op", ts: str = "1", more: str = "") -> str:
    return f'{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 1, "tid": 2, "ts": {ts}, "dur": 1{more}}}'


FEW = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": Raw("1.250"), "dur": Raw("2.5"),
     "args": {"External id": 7, "Input Dims": [[2, 3], []], "Concrete Inputs": ["", "[1]"], "Ev Idx": 1}},
    {"ph": "s", "id": 3, "pid": 1, "tid": 2, "ts": Raw("1.5"), "cat": "ac2g", "name": "ac2g"},
    {"ph": "X", "cat": "kernel", "name": "k<float, 4>", "pid": 0, "tid": 7, "ts": Raw("3.000"), "dur": Raw("1"),
     "args": {"device": 0, "stream": 7, "correlation": 3, "grid": [4, 1, 1], "est. achieved occupancy %": 31}},
    {"ph": "X", "cat": "python_function", "name": "a.py(1): f", "pid": 1, "tid": 2, "ts": Raw("1"), "dur": Raw("9"),
     "args": {"Python id": 1, "Python parent id": None}},
    {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 2, "ts": Raw("4"),
     "args": {"Bytes": 512, "Addr": 140000000, "Device Type": 1, "Device Id": 0}},
]  # fmt: skip


def ends_of_events(document: str) -> list[int]:
    """Where each event of a valid document ends."""
    at = document.index("[", max(document.find("traceEvents"), 0)) + 1
    decoder, ends = json.JSONDecoder(), []
    while True:
        while document[at] in " \t\r\n,":
            at += 1
        if document[at] == "]":
            return ends
        _, at = decoder.raw_decode(document, at)
        ends.append(at)


def kineto(count: int) -> bytes:
    return LAYOUTS["kineto"].document(FEW * (count // len(FEW)), 2)
