"""`gpuprof trace --ncu RECORDING`: runs the target again under Nsight Compute, which counts its largest kernels."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof import runfile
from gpuprof.errors import GpuprofError
from gpuprof.record.base.options import DEFAULTS
from gpuprof.record.launcher.tell import tell

if TYPE_CHECKING:
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.record.launcher.command import Target

TABLE, PRINTED = "ncu.csv", "ncu.log"
"""File names in a run's folder: the table of counters, and Nsight Compute's output if it made no table."""
OPTIONS = DEFAULTS | {
    "settle": 3, "baseline": 1, "steps": 1, "sampling": False, "modules": 0, "nsys": True, "stop": True,
    "report": False,
}  # fmt: skip
"""Options of the run under Nsight Compute: an outside tool records one step, then the training ends."""


def run(recording: str, out: str | None, target: Target) -> int:
    """Counts the ten largest kernels of the recorded program, `target`; returns 0. Raises GpuprofError."""
    from gpuprof.cli.shared.recordings import diagnose_given, given
    from gpuprof.diagnosis.analysis import analysis_of
    from gpuprof.diagnosis.counters.counters import with_counters
    from gpuprof.diagnosis.counters.largest_kernels import largest_kernels
    from gpuprof.nsight.compute import count_command, find_ncu
    from gpuprof.tracefile.nsight_compute import COUNTED, KNOWN, read_counters

    ncu = find_ncu()
    table = _table(Path(recording), out)
    diagnosis = diagnose_given(given(recording))
    case = analysis_of(diagnosis)
    wanted = None if case is None else largest_kernels(case)
    if wanted is None:
        raise GpuprofError(f"{recording}: its largest kernels are not known, so there is nothing to count")
    if diagnosis.folder is not None and (diagnosis.folder.own.world_size or 1) > 1:
        raise GpuprofError("--ncu: a counted kernel runs several times, for which other ranks would wait: use one rank")
    tell(
        f"Nsight Compute {ncu} counts {wanted.launches} kernels of one step, {100 * wanted.share:.0f} % of its GPU time"
    )
    with tempfile.TemporaryDirectory(prefix="gpuprof-ncu-") as folder:
        printed = Path(folder) / TABLE
        for metrics in (COUNTED, KNOWN):
            words = [*count_command(ncu, metrics, wanted.functions, wanted.launches, printed), *target.argv]
            _run(words, Path(folder))
            if not _lacks_a_metric(printed):
                break
        if printed.exists() and not _holds_a_table(printed):
            table.with_name(PRINTED).write_bytes(printed.read_bytes())
        counted = read_counters(_checked(printed, Path(folder)))
        table.write_bytes(printed.read_bytes())
    _show(with_counters(diagnosis, counted), table, recording)
    return 0


def _table(recording: Path, out: str | None) -> Path:
    """Where the table goes: --out, else next to the recording."""
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = recording if recording.is_dir() else recording.parent
    table = folder / TABLE
    if not os.access(folder, os.W_OK):
        raise GpuprofError(f"{folder}: is not writable; name a folder with --out")
    return table


def _run(words: list[str], folder: Path) -> None:
    """Runs the target under Nsight Compute, with our input and output, to its end."""
    from gpuprof.record.launcher.target_environment import environment

    runfile.write_json(folder / runfile.MANIFEST, {"schema": runfile.SCHEMA, "status": "running", "options": OPTIONS})
    variables = environment(folder) | {runfile.COUNTED_VARIABLE: "1"}
    try:
        code = subprocess.run(words, env=variables).returncode
    except OSError as error:
        raise GpuprofError(f"{words[0]}: cannot be started ({error.strerror})") from None
    if code:
        tell(f"the target ended with exit code {code} under Nsight Compute")


def _text(printed: Path) -> str:
    return printed.read_text(encoding="utf-8", errors="replace") if printed.exists() else ""


def _holds_a_table(printed: Path) -> bool:
    return '"ID"' in _text(printed)


def _lacks_a_metric(printed: Path) -> bool:
    """Whether this GPU or version lacks one of the metrics: then nothing has run."""
    text = _text(printed)
    return not _holds_a_table(printed) and "metric" in text.lower() and "==ERROR==" in text


def _checked(printed: Path, folder: Path) -> Path:
    """The table. Raises GpuprofError, with the reason, if nothing was counted."""
    from gpuprof.nsight.compute import why_none

    if _holds_a_table(printed):
        return printed
    text = _text(printed)
    notes = (runfile.read_json(folder / runfile.rank_file(0)) or {}).get("notes") or []
    reason = str(notes[-1]) if notes and "ERR_" not in text else why_none(text)
    raise GpuprofError(f"Nsight Compute counted nothing: {reason}")


def _show(diagnosis: Diagnosis, table: Path, recording: str) -> None:
    from gpuprof.report.words import counters_words

    for line in counters_words.lines(diagnosis, counters_words.MOST_ROWS):
        print(line)
    tell(f"counters: {table}; to see them in the diagnosis: gpuprof diagnose {recording} --ncu {table}")
