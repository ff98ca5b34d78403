"""Run folders whose processes marked phases at times that are known."""

from __future__ import annotations

import json
from pathlib import Path

MS = 1_000_000
UNIX = 1_700_000_000_000_000_000
Marks = list[tuple[str, float, float]]
"""Phase, start and end in ms."""


def write_marks(
    folder: Path, marks: Marks, pid: int = 1, boot: str | None = "a", late_ms: float = 0.0, busy: bool = False
) -> str:
    """A run folder with the marks of a process, in ms. busy: it computes between them. late_ms: delay of its wall
    clock."""
    folder.mkdir(exist_ok=True)
    lines: list[dict[str, object]] = [
        {"pid": pid, "program": f"p{pid}.py", "host": "h", "boot": boot, "monotonic_ns": 0,
         "unix_ns": UNIX - round(late_ms * MS)}
    ]  # fmt: skip
    for phase, start, end in marks:
        begin, ns = round(start * MS), round((end - start) * MS)
        lines.append(
            {"phase": phase, "thread": pid, "begin_ns": begin, "ns": ns, "cpu_begin_ns": begin if busy else 0,
             "cpu_ns": ns if busy else 0}
        )  # fmt: skip
    (folder / f"phases.{pid}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)
