"""The recordings of `gpuprof attach --watch`, and the files on each change."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof import runfile
from gpuprof.attach.changes import StepTimeChange
from gpuprof.attach.jobs import ArmedProcess
from gpuprof.attach.kept import measured, shrink, to_shrink
from gpuprof.attach.opened import open_recording
from gpuprof.attach.watching import words
from gpuprof.cli.shared.output import say, write
from gpuprof.errors import GpuprofError
from gpuprof.units import Cells, Convention

if TYPE_CHECKING:
    from gpuprof.diagnosis.comparison.comparison import Comparison
    from gpuprof.diagnosis.result.diagnosis import Diagnosis

WIDTH: Convention[Cells] = 100
"""Width of changed.txt."""


@dataclass(slots=True)
class Recordings:
    """The recordings of one watch. ranks: of the job. read: follows a recording to its end, returns its diagnosis."""

    ranks: list[ArmedProcess]
    options: dict[str, Any]
    most_bytes: int
    read: Callable[[Any], Diagnosis]
    good: Path | None = None
    """The latest recording at a step time that was not slower than before."""
    folders: list[Path] = field(default_factory=list)

    def record_usual(self, step: int) -> None:
        """Makes the first recording, of the usual step. Raises GpuprofError."""
        say(f"step {step:,}: the usual step is known; it is recorded, for a comparison")
        folder, _ = self._record()
        self.good = folder

    def record_change(self, change: StepTimeChange, step: int) -> None:
        """Records a change, and writes what differs from the last good recording. Raises GpuprofError if recording
        fails."""
        heading = f"step {step:,}: {words(change)}"
        say(f"{heading}: it is recorded")
        folder, diagnosis = self._record()
        before = self.good
        text = what_changed(before, folder, diagnosis, heading)
        write(text)
        if change.ratio < 1 or before is None:
            self.good = folder
        self._keep_within()

    def _record(self) -> tuple[Path, Diagnosis]:
        self._keep_within()
        if sum(measured(folder).size_bytes for folder in self.folders) > self.most_bytes:
            raise GpuprofError("nothing is recorded: the recordings of this watch are as large as --disk allows")
        opened = open_recording(self.ranks, self.options, None)
        self.folders.append(opened.folder)
        diagnosis = self.read(opened)
        self._keep_within()
        return opened.folder, diagnosis

    def _keep_within(self) -> None:
        needed = [folder for folder in (self.good, *self.folders[-1:]) if folder is not None]
        for folder in to_shrink([measured(one) for one in self.folders], needed, self.most_bytes):
            shrink(folder)
            say(f"{folder}: its recording is removed, within --disk; its verdict stays")


def what_changed(before: Path | None, after: Path, diagnosis: Diagnosis, heading: str) -> str:
    """Writes changed.txt, and if the two can be compared changed.json, into the folder of the later recording. Returns
    the text."""
    comparison: Comparison | None = None
    lines = [heading]
    if before is None:
        lines.append("There is no recording of the step as it was before.")
    else:
        try:
            from gpuprof import compare

            comparison = compare(str(before), diagnosis)
        except GpuprofError as error:
            lines.append(str(error))
    text = "\n".join(lines) + "\n"
    if comparison is not None:
        from gpuprof.diagnosis.comparison.comparison import DOCUMENT

        text += _drawn(comparison)
        with contextlib.suppress(OSError), runfile.whole_file(after / runfile.CHANGED_JSON, 0o600) as file:
            file.write(DOCUMENT.dumps(comparison).encode() + b"\n")
    with contextlib.suppress(OSError), runfile.whole_file(after / runfile.CHANGED_TEXT, 0o600) as file:
        file.write(text.encode())
    return text


def _drawn(comparison: Comparison) -> str:
    from rich.console import Console

    from gpuprof.cli.shared.output import drawn
    from gpuprof.report.terminal.comparison_terminal import ROWS, render

    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    console = Console(file=io.StringIO(), width=width, no_color=True, force_terminal=False)
    return "".join(f"{line}\n" for line in drawn(lambda columns: render(comparison, columns, ROWS), console))
