"""What one rank writes into the run folder: its facts (rank<N>.json), its lines of steps.jsonl, its notes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ...runfile import SCHEMA, STEPS, append_lines, log, rank_file, write_json
from .redact import redact_text
from .say import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, WholeNs


FLUSH_NS: Assumed[WholeNs] = 1_000_000_000
"""Lines of steps.jsonl are written at least this often; a killed process loses no more than this."""


class Journal:
    """The files of one rank. leads: whether this rank prints to stderr for the whole run."""

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
        """Adds a step's line. hold: its time on the GPU is still to come."""
        self._lines.append(line)
        if not hold and time.perf_counter_ns() - self._flushed_ns > FLUSH_NS:
            self.flush()

    def time_steps(self, device_ns: list[int]) -> None:
        """Fills in the GPU times of the last steps."""
        for line, ns in zip(self._lines[-len(device_ns) :], device_ns, strict=False):
            line["device_ns"] = ns

    def flush(self) -> None:
        """Writes the pending lines. Raises OSError, for example on a full disk."""
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
        """The current stage has reached this step."""
        if self._stages:
            self._stages[-1]["steps"] = last_step + 1 - self._stages[-1]["first_step"]

    def first_step(self) -> int:
        """Number of the first step of the current stage."""
        return self._stages[-1]["first_step"]

    def time_stage(self, ns: int) -> None:
        """Duration of the whole current stage, between two synchronisations."""
        self._stages[-1]["ns"] = ns

    def describe_batches(self, made: dict[str, Any] | None) -> None:
        """Stores how long a batch takes to make, measured over the free stretch; None if not known."""
        if self.facts["loader"] is not None:
            self.facts["loader"]["made"] = made

    def baseline_ns(self) -> float | None:
        """Unprofiled time of a step, as first timed; None before that."""
        row = next((r for r in self._stages if r["stage"] == "baseline_free" and r["ns"] and r["steps"]), None)
        return row["ns"] / row["steps"] if row else None

    # -- words

    def tell(self, text: str) -> None:
        """Prints a line to stderr, if this rank leads."""
        if self._leads:
            say(text)

    def note(self, text: str) -> None:
        """Stores a note for the reader of the recording."""
        text = redact_text(text)
        self._notes.append(text)
        self.log(text)
        self.tell(text)

    def log(self, text: str) -> None:
        """Writes a line to the run's log."""
        log(self.folder, f"rank {self.rank}: {redact_text(text)}")

    def be_quiet(self) -> None:
        """Prints nothing to stderr from now on."""
        self._leads = False

    # -- facts

    def write(self, place: dict[str, Any]) -> None:
        """Writes rank<N>.json with everything known so far. Never raises."""
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
