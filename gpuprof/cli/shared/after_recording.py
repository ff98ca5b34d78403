"""Runs once a recording's window has closed: prints the verdict to stderr, writes the report, compresses the traces,
and with several ranks writes their digests.
Runs in a separate process, which `gpuprof trace` starts with the training: one thread, at the lowest priority.
If it gets no CPU time after the training's end, it is killed and restarted, and does what is left to do. A failure is
one line in the run's log and one on stderr.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from gpuprof import runfile
from gpuprof.cli.shared import read_ahead, several_nodes
from gpuprof.cli.shared.early_verdict import EarlyVerdict, said
from gpuprof.record.base.options import options_of
from gpuprof.record.job_nodes.nodes import shared_url
from gpuprof.record.launcher.last_words import VERDICT
from gpuprof.record.launcher.recording_cost import in_words
from gpuprof.record.launcher.recording_reader import WAITS
from gpuprof.record.launcher.tell import tell
from gpuprof.units import Bytes, Code, Convention, Published

if TYPE_CHECKING:
    from gpuprof.diagnosis.result.diagnosis import Diagnosis

Result = TypeVar("Result")

LOWEST_PRIORITY: Published[Code] = 19
CLEAR_LINE = "\r\x1b[K"
"""Clears the line of a progress bar, which its owner redraws."""
_COPIED_BYTES: Convention[Bytes] = 1 << 20


def main(run: str, running: str, diagnose: str) -> None:
    """Reads and compresses the recordings in a run's folder. running: one of RUNNING, WAITS and ENDED. diagnose: on
    unless empty."""
    folder = Path(run)
    os.umask(0o077)  # files in a run's folder are private, wherever the folder is
    if sys.stderr is None:  # closed; verdict.txt is still useful
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if running:
        _stay_out_of_the_way()
    if running == WAITS:
        read_ahead.prepare()
        if not read_ahead.is_wanted():
            return
    if several_nodes.takes_part(folder) and not _reduce_for_the_job(folder, bool(diagnose)):
        return
    if (
        diagnose
        and not is_read(folder)
        and _try(folder, "the Nsight Systems report could not be read", lambda: export_report(folder))
    ):
        diagnosis = _try(folder, "the recording could not be diagnosed", lambda: show_verdict(folder, bool(running)))
        if diagnosis is not None:
            _try(folder, "the report could not be written", lambda: draw_report(folder, diagnosis))
    _pack(folder)


def finish(folder: Path, diagnosis: Diagnosis) -> None:
    """Writes the report and compresses the traces of a recording whose verdict has been shown."""
    _try(folder, "the report could not be written", lambda: draw_report(folder, diagnosis))
    _pack(folder)


def _pack(folder: Path) -> None:
    _try(folder, "the recording could not be compressed", lambda: compress(folder))
    if not several_nodes.takes_part(folder):
        _try(folder, "the ranks' digests could not be written", lambda: write_digests(folder))


def _reduce_for_the_job(folder: Path, diagnose: bool) -> bool:
    """For a job on several nodes: digests and their exchange. Returns whether the verdict is printed here."""
    from gpuprof.diagnosis.ranks.rank_digests import write_digest

    _try(
        folder,
        "the ranks' digests could not be written",
        lambda: several_nodes.reduce_ranks(folder, compress, write_digest),
    )
    url = shared_url()
    if url is not None and diagnose and not is_read(folder):
        _try(folder, "no digests are exchanged with other nodes", lambda: several_nodes.exchange_at_url(folder, url))
    if not several_nodes.collects(folder):
        if diagnose:
            tell("the digests of this node go to rank 0, which prints the verdict of the job")
        return False
    if diagnose and not is_read(folder):
        several_nodes.tell_others(several_nodes.wait_for_others(folder))
    return True


def _try(folder: Path, failing: str, do: Callable[[], Result]) -> Result | None:
    """Runs `do`; an error is logged and printed in one line."""
    try:
        return do()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BaseException as error:
        runfile.log(folder, f"{failing}: {type(error).__name__}: {error}")
        with contextlib.suppress(Exception):
            tell(f"{failing}: {' '.join(str(error).split()) or type(error).__name__}"[:500])
        return None


def _stay_out_of_the_way() -> None:
    """Sets the lowest priority; the environment limits it to one thread."""
    with contextlib.suppress(OSError):
        os.nice(LOWEST_PRIORITY)
    # If memory runs out, the kernel kills this process first, not the training.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


# -- Nsight Systems


def export_report(folder: Path) -> bool:
    """Exports the run's Nsight Systems report, if any, to SQLite. Returns whether the run can be diagnosed."""
    from gpuprof.nsight.convert import KEEPS_ENVIRONMENT, REPORTS, export_in

    if not options_of(folder)["nsys"]:
        return True
    for ending in REPORTS:
        report = folder / f"{runfile.NSYS}{ending}"
        if report.is_file():
            report.chmod(0o600)
            tell(f"{report.name} {KEEPS_ENVIRONMENT}")
    export_in(folder, runfile.NSYS)
    return True


# -- the verdict


def is_read(folder: Path) -> bool:
    """Whether the verdict and the report already exist."""
    is_wanted = options_of(folder)["report"] is not False
    return (folder / VERDICT).is_file() and (not is_wanted or (folder / runfile.REPORT).is_file())


def show_verdict(folder: Path, running: bool) -> Diagnosis:
    """Prints the whole diagnosis to stderr in one write, and keeps its first lines in a file for the end of the run.
    If that file exists, the diagnosis has been printed before. While the training is sampled, another process prints
    the diagnosis without the samples; then only what they add is printed, or all of it if they change the verdict.
    """
    import gpuprof

    laps = read_ahead.Laps()
    laps.end("until it was read")
    found = read_ahead.read(folder, running)
    laps.end("reading")

    def diagnose_and_show() -> Diagnosis:
        diagnosis = gpuprof.diagnose(found)
        laps.end("diagnosing")
        if not (folder / VERDICT).is_file():
            _show(_page(diagnosis))
            laps.end("printing")
            keep_verdict(folder, diagnosis)
            _tell_cost(folder, diagnosis, laps)
        return diagnosis

    early = None
    if running and not (folder / VERDICT).is_file() and read_ahead.is_worth_showing_early(folder):
        with contextlib.suppress(OSError):
            early = EarlyVerdict(diagnose_and_show)
    if running:
        read_ahead.wait_for_samples(folder)
        laps.end("waiting for samples")
    else:
        read_ahead.wait_for_sampler(folder)
    if early is None:
        diagnosis = diagnose_and_show()
    else:
        diagnosis = gpuprof.diagnose(found)
        is_the_same = early.shown() == said(diagnosis)
        _show(_functions(diagnosis) if is_the_same else _page(diagnosis))
        keep_verdict(folder, diagnosis)
    return diagnosis


def _show(page: bytes) -> None:
    """Writes it to stderr at once."""
    with contextlib.suppress(OSError):
        os.write(2, page)


def keep_verdict(folder: Path, diagnosis: Diagnosis) -> None:
    """Writes its first lines into a file of the run, and its numbers for `gpuprof history`."""
    from gpuprof.diagnosis.verdict.headline import headline
    from gpuprof.report import history
    from gpuprof.report.names import escape
    from gpuprof.report.words import words

    heading = "  ".join(text for text in (headline(diagnosis), words.step_time(diagnosis)) if text)
    with runfile.whole_file(folder / VERDICT) as file:
        file.write(f"{escape(heading)}\n{escape(diagnosis.verdict.summary)}\n".encode())
    history.remember(folder, history.entry(str(folder), None, diagnosis))


def _tell_cost(folder: Path, diagnosis: Diagnosis, laps: read_ahead.Laps) -> None:
    """Reports how long each part of the recording took, on stderr and in the run's log."""
    rank = 0 if diagnosis.folder is None else diagnosis.folder.rank
    text = in_words(runfile.read_json(folder / runfile.rank_file(rank)) or {}, laps.ends)
    if text is not None:
        tell(text)
        runfile.log(folder, text)


def _page(diagnosis: Diagnosis) -> bytes:
    """The diagnosis as text that the training's terminal can show."""
    from gpuprof.report.terminal.terminal import render
    from gpuprof.report.words.words import after_recording

    return _drawn(lambda width: render(diagnosis, width, next_step=after_recording(diagnosis)))


def _functions(diagnosis: Diagnosis) -> bytes:
    """The sampled functions as text for the training's terminal; empty if none is worth a line."""
    from gpuprof.report.terminal.terminal import render_functions

    return _drawn(lambda width: render_functions(diagnosis, width))


def _drawn(render: Callable[[int], Any]) -> bytes:
    from rich.console import Console

    from gpuprof.cli.shared.output import drawn, encodable

    stderr = Console(stderr=True)
    lines = drawn(render, stderr)
    if not lines:
        return b""
    text = "".join(f"{line}\n" for line in ["", *lines, ""])
    if stderr.is_terminal:
        text = CLEAR_LINE + text
    return encodable(text, sys.stderr).encode(sys.stderr.encoding or "utf-8", "replace")


# -- the report


def draw_report(folder: Path, diagnosis: Diagnosis) -> None:
    """Writes the report into the run's folder, if wanted, and prints its path to stderr."""
    if options_of(folder)["report"] is False:
        return
    import gpuprof
    from gpuprof.cli.shared.report_pages import pages_for, write_pages

    target = folder / runfile.REPORT
    write_pages(diagnosis, target, pages_for(diagnosis, None), gpuprof.diagnose)
    tell(f"report: {target}")


# -- the traces


def compress(folder: Path) -> None:
    """Compresses every complete window from .json to .json.gz; one that there is no room for stays as it is."""
    for path in sorted(folder.iterdir()):
        if re.fullmatch(runfile.WINDOW_FILE, path.name):
            _compress(path)


def _compress(path: Path) -> None:
    packed = path.with_name(f"{path.name}.gz")
    with runfile.whole_file(packed, 0o600) as file, path.open("rb") as trace, _packer(file) as packer:
        shutil.copyfileobj(trace, packer, _COPIED_BYTES)
    path.unlink()


def _packer(file: BinaryIO) -> Any:
    try:
        from isal import igzip
    except ImportError:
        return gzip.GzipFile("", "wb", 1, file, mtime=0)
    return igzip.IGzipFile("", "wb", 2, file, mtime=0)


# -- digests


def write_digests(folder: Path) -> None:
    """Writes each rank's digest next to its trace, so that a joint diagnosis of many ranks has to read only digests."""
    ranks = (runfile.read_json(path) for path in folder.glob("rank*.json"))
    if not any(isinstance(rank, dict) and (rank.get("world_size") or 1) > 1 for rank in ranks):
        return
    from gpuprof.diagnosis.ranks.rank_digests import write_digest
    from gpuprof.tracefile.traces_in_folder import traces_in

    for trace in traces_in(folder):
        if trace.name.endswith(".gz"):
            why = _try(
                folder, f"the digest of {trace.name} could not be written", lambda path=trace: write_digest(path)
            )
            if why is not None:
                runfile.log(folder, f"no digest: {why}")
