"""The recording that a command is given, and its diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from gpuprof.cli.shared.output import say
from gpuprof.diagnosis.asked import NOTHING_ASKED, Asked
from gpuprof.units import Convention, Rows

if TYPE_CHECKING:
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.tracefile.read import Progress
    from gpuprof.tracefile.recording import Recording

TOP_IN_JSON: Convention[Rows] = 10
RECORDING = click.Path(path_type=str, readable=False)
"""Type of an argument that names a recording: text, because pathlib would break URLs."""


def given(paths: str | tuple[str, ...] | None) -> Recording:
    """The recording that an argument means; without one, the latest run. Raises GpuprofError if there is none."""
    from gpuprof.tracefile.recording import resolve

    return resolve(None if paths == () else paths)


def diagnose_given(recording: Recording, asked: Asked = NOTHING_ASKED) -> Diagnosis:
    """The diagnosis of a recording, with a progress bar while it is read."""
    from gpuprof.diagnosis.diagnose_recording import diagnose_recording

    with reading(recording) as progress:
        return diagnose_recording(recording, asked, progress=progress)


@contextmanager
def reading(recording: Recording) -> Iterator[Progress | None]:
    """Yields a function to call with the bytes read so far. Afterwards warns what Nsight Systems reports contain, since
    the user may pass one on."""
    from gpuprof.cli.shared import progress

    with progress.reading(recording.file_name) as update:
        yield update
    if recording.reports:
        from gpuprof.nsight.convert import KEEPS_ENVIRONMENT

        for name in recording.reports:
            say(f"{name} {KEEPS_ENVIRONMENT}")
