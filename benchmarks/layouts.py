"""The four ways in which Kineto traces are laid out as text in practice.

A layout is a function of an event's kind, fields and arguments. These may hold `%d` for numbers filled in
later, which keep one order in every layout: name or id, start, duration, arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Fields = dict[str, str]
"""The keys of an event but `args`, with their values as JSON text."""

LINES = {
    "X": ("ph cat name pid tid", "ts dur"),
    "s": ("ph id pid tid ts", "cat name"),
    "f": ("ph id pid tid ts", "cat name bp"),
    "M": ("name ph ts pid tid",),
    "M of spans": ("name ph ts", "pid tid"),
    "X of spans": ("ph cat ts dur", "pid tid", "name"),
    "i": ("name ph s", "pid tid ts"),
}
"""Keys by line, as PyTorch wrote them up to 2.12."""

ORDER = {"X": "ph cat name pid tid ts dur", "s": "ph id pid tid ts cat name", "M": "ph name ts pid tid"}
ORDER |= {"f": ORDER["s"] + " bp", "i": "ph s name pid tid ts"}
"""Keys as PyTorch writes them from 2.13, and as its exporter in Python does."""


def kineto(kind: str, fields: Fields, args: str) -> str:
    """Several keys a line."""
    lines = [", ".join(f'"{key}": {fields[key]}' for key in line.split()) for line in LINES[kind]]
    if args:
        lines.append(f'"args": {{\n      {args}\n    }}')
    return "  {\n    " + ",\n    ".join(lines) + "\n  },\n"


def torch213(kind: str, fields: Fields, args: str) -> str:
    """One key a line, and a line of its own, perhaps empty, for whatever only some events have."""
    keys = ORDER[kind[0]].removesuffix(" bp").split()
    lines = ",\n    ".join(f'"{key}": {fields[key]}' for key in keys)
    args = f',\n    "args": {{\n      {args}\n    }}' if args else ""
    if kind[0] == "M":
        return f"  {{\n    {lines}{args}\n  }},\n"
    if kind == "i":
        lines = lines.replace(",", ",\n    ", 1)
    bp = ', "bp": "e"' if kind == "f" else ""
    return f"  {{\n    {lines}\n    {bp}{args}\n  }},\n"


def python(kind: str, fields: Fields, args: str) -> str:
    """One event a line."""
    text = ",".join(f'"{key}":{fields[key]}' for key in ORDER[kind[0]].split())
    return f'{{{text},"args":{{{args}}}}},\n' if args else f"{{{text}}},\n"


def compact(kind: str, fields: Fields, args: str) -> str:
    """A single line without a space, as `json.dumps` writes it with the tightest separators."""
    return squeezed(kineto(kind, fields, args))


def squeezed(text: str) -> str:
    """JSON text without the white space between its tokens."""
    return re.sub(r'("(?:[^"\\]|\\.)*")|\s+', lambda found: found[1] or "", text)


HEAD = """
  {
    "schemaVersion": 1,
    "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 32,
      "sharedMemPerBlock": 49152, "numSms": 132
    , "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472
    }
    ],
      "trace_id": "6E1D0C56A1F24B0B9C3D7F5A2B8E4D10",
      "record_shapes": 1,
      "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1, "nccl_version": "2.28.9"},
      "with_flops": 1,
      "cuda_driver_version": 13000,
      "cuda_runtime_version": 13000,
      "cupti_version": 130001,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": BASE,
  "traceEvents": [
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a whole file is laid out; BASE and NAME stand for the base time and the name of the trace."""

    event: Callable[[str, Fields, str], str]
    head: str
    tail: str
    metadata_first: bool = False
    """Names of processes and threads come before the events, not after."""


LAYOUTS = {
    "kineto": Layout(kineto, HEAD, '  ],\n  "traceName": "NAME"\n}'),
    "torch213": Layout(
        torch213,
        HEAD.replace("\n  {", " {", 1).replace('\n  "', '\n    "') + "    \n",
        '  ],"traceName": "NAME" }',
        metadata_first=True,
    ),
    "python": Layout(
        python,
        "{\n" + "\n".join(line.strip() for line in HEAD.splitlines()[2:]) + "\n",
        '],\n"traceName": "NAME"\n}\n',
        metadata_first=True,
    ),
    # The base time after the events: a reader that works as it goes must cope with that.
    "compact": Layout(
        compact,
        squeezed(HEAD.replace('  "baseTimeNanoseconds": BASE,\n', "")),
        '],"baseTimeNanoseconds":BASE,"traceName":"NAME"}',
    ),
}
