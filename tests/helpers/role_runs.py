"""Run folders of a job's processes with marks whose times are known, and their roles."""

from __future__ import annotations

import json
from pathlib import Path

from jsonschema import Draft202012Validator

from gpuprof.diagnosis.roles.json import schema, to_json
from gpuprof.diagnosis.roles.model import Roles
from gpuprof.diagnosis.roles.sources import diagnose_roles

VALIDATOR = Draft202012Validator(schema())
MS = 1_000_000
UNIX = 1_700_000_000_000_000_000
Marks = list[tuple[str, float, float]]


def run(
    folder: Path, marks: Marks, pid: int = 1, boot: str | None = "a", late_ms: float = 0.0, busy: bool = False
) -> str:
    """A run folder with the marks of a process, in ms. busy: it computes between them. late_ms: by which its clock of
    the day is late."""
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


def diagnosed(*paths: str) -> Roles:
    """The roles, once their JSON was found to be valid and their times to sum exactly."""
    found = diagnose_roles(paths)
    VALIDATOR.validate(json.loads(json.dumps(to_json(found))))
    for one in found.roles:
        assert sum(phase.ns for phase in one.phases) + one.wait_ns == found.window_ns
        assert one.busy_ns + one.wait_ns == found.window_ns
        assert sum(span.ns for span in one.lane) == found.window_ns
        assert one.bubble_ns <= one.wait_ns
    assert sum(one.ns for one in found.waits) == sum(one.wait_ns for one in found.roles)
    return found
