"""What one rank writes of itself into the run folder: its file of facts, its lines of steps, its notes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..runfile import SCHEMA, STEPS, append_lines, log, rank_file, write_json
from .redact import redact_text
from .say import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, WholeNs


FLUSH_NS: Assumed[WholeNs] = 1_000_000_000
"""Lines of steps.jsonl are written at least this often: what a kill can take with it."""


class Journal:
    """The files of one rank. leads: whether it speaks for the run on stderr."""

    def __init__(self, folder: Path, rank: int, leads: bool) -> None:
        self.folder, self.rank, self._leads = folder, rank, leads
        self.facts: dict[str, Any] = dict.fromkeys(
            ("steps_total", "intervals", "gpu", "model", "optimizer", "loader", "program", "compiler")
        )
        self.windows: list[dict[str, Any]] = []
        self._stages: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._lines: list[dict[str, Any]] = []
        self._flushed_ns = 0

    # -- steps

    def add_step(self, line: dict[str, Any], hold: bool) -> None:
        """A step's line. hold: it still waits for its time on the GPU."""
        self._lines.append(line)
        if not hold and time.perf_counter_ns() - self._flushed_ns > FLUSH_NS:
            self.flush()

    def time_steps(self, device_ns: list[int]) -> None:
        """The times on the GPU of the last steps."""
        for line, ns in zip(self._lines[-len(device_ns) :], device_ns, strict=False):
            line["device_ns"] = ns

    def flush(self) -> None:
        """Writes the lines that there are. Raises OSError, on a full disk for one."""
        lines, self._lines, self._flushed_ns = self._lines, [], time.perf_counter_ns()
        if lines:
            append_lines(self.folder / STEPS, lines)

    # -- stages

    def begin_stage(self, stage: str, step: int) -> None:
        """The next step, of this number, is the first of a stage (or one more of the same)."""
        self.count_stage(step - 1)
        if self._stages and self._stages[-1]["stage"] == stage:
            return
        self._stages.append({"stage": stage, "first_step": step, "steps": 0, "unix_ns": time.time_ns(), "ns": None})

    def count_stage(self, last_step: int) -> None:
        """The stage at hand has come as far as this step."""
        if self._stages:
            self._stages[-1]["steps"] = last_step + 1 - self._stages[-1]["first_step"]

    def first_step(self) -> int:
        """Number of the first step of the stage at hand."""
        return self._stages[-1]["first_step"]

    def time_stage(self, ns: int) -> None:
        """How long the whole stage at hand took, between two synchronisations."""
        self._stages[-1]["ns"] = ns

    def describe_batches(self, made: dict[str, Any] | None) -> None:
        """How long a batch takes to make, measured over the free stretch; None where that is not known."""
        if self.facts["loader"] is not None:
            self.facts["loader"]["made"] = made

    def baseline_ns(self) -> float | None:
        """A step's unprofiled time, as first timed; None before."""
        row = next((r for r in self._stages if r["stage"] == "baseline_free" and r["ns"] and r["steps"]), None)
        return row["ns"] / row["steps"] if row else None

    # -- words

    def tell(self, text: str) -> None:
        """A line on stderr, from the rank that speaks for all."""
        if self._leads:
            say(text)

    def note(self, text: str) -> None:
        """Something that the reader of the recording must know, too."""
        text = redact_text(text)
        self._notes.append(text)
        self.log(text)
        self.tell(text)

    def log(self, text: str) -> None:
        """A line in the run's log."""
        log(self.folder, f"rank {self.rank}: {redact_text(text)}")

    def be_quiet(self) -> None:
        """Says nothing on stderr from now on."""
        self._leads = False

    # -- facts

    def write(self, place: dict[str, Any]) -> None:
        """Writes rank<N>.json: what is known by now. Never raises."""
        facts = {
            "schema": SCHEMA,
            **place,
            **self.facts,
            "stages": self._stages,
            "windows": self.windows,
            "notes": self._notes,
        }
        try:
            write_json(self.folder / rank_file(self.rank), facts)
        except OSError as error:
            self.log(f"{rank_file(self.rank)} is not written: {error}")
