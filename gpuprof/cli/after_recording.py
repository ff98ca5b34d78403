"""What happens when a recording's window has closed: its verdict on stderr, its report, its traces compressed, and of
several ranks their digests.

Runs in a process of its own, which `gpuprof trace` starts next to the training: one thread, at the lowest priority.
If that gets no CPU time after the training's end, it is killed and started again, and does what is left to do.
Whatever fails is a line in the run's log and one on stderr.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from gpuprof import runfile
from gpuprof.cli import several_nodes
from gpuprof.record.last_words import VERDICT
from gpuprof.record.nodes import shared_url
from gpuprof.record.options import options_of
from gpuprof.record.recording_cost import in_words
from gpuprof.record.tell import tell
from gpuprof.units import Bytes, Code, Convention, Published

if TYPE_CHECKING:
    from gpuprof.diagnosis.diagnosis import Diagnosis

Result = TypeVar("Result")

LOWEST_PRIORITY: Published[Code] = 19
CLEAR_LINE = "\r\x1b[K"
"""Takes the line of a progress bar away, which its owner draws again."""
_COPIED_BYTES: Convention[Bytes] = 1 << 20


def main(run: str, niced: str, diagnose: str) -> None:
    """Reads and compresses what is in a run's folder; the last two are on unless empty."""
    folder = Path(run)
    os.umask(0o077)  # what a run's folder holds is its owner's, wherever the folder is
    if sys.stderr is None:  # closed; verdict.txt is of use all the same
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if niced:
        _stay_out_of_the_way()
    if several_nodes.takes_part(folder) and not _reduce_for_the_job(folder, bool(diagnose)):
        return
    if (
        diagnose
        and not is_read(folder)
        and _try(folder, "the Nsight Systems report could not be read", lambda: export_report(folder))
    ):
        diagnosis = _try(folder, "the recording could not be diagnosed", lambda: show_verdict(folder))
        if diagnosis is not None:
            _try(folder, "the report could not be written", lambda: draw_report(folder, diagnosis))
    _pack(folder)


def finish(folder: Path, diagnosis: Diagnosis) -> None:
    """The report, and what else is done to a recording whose verdict has been shown."""
    _try(folder, "the report could not be written", lambda: draw_report(folder, diagnosis))
    _pack(folder)


def _pack(folder: Path) -> None:
    _try(folder, "the recording could not be compressed", lambda: compress(folder))
    if not several_nodes.takes_part(folder):
        _try(folder, "the ranks' digests could not be written", lambda: write_digests(folder))


def _reduce_for_the_job(folder: Path, diagnose: bool) -> bool:
    """The part of a job on several nodes; whether the verdict is to be drawn here."""
    from gpuprof.diagnosis.rank_digests import write_digest

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
    """Does it, or says in one line why not."""
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
    """At the lowest priority; that there is one thread only is said by the environment."""
    with contextlib.suppress(OSError):
        os.nice(LOWEST_PRIORITY)
    # Where memory runs out, this goes first, not the training.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


# -- Nsight Systems


def export_report(folder: Path) -> bool:
    """Makes SQLite of the report of Nsight Systems, if the run has one. True: what there is can be diagnosed."""
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
    """Whether the verdict and the report are there already."""
    is_wanted = options_of(folder)["report"] is not False
    return (folder / VERDICT).is_file() and (not is_wanted or (folder / runfile.REPORT).is_file())


def show_verdict(folder: Path) -> Diagnosis:
    """The whole diagnosis on stderr, in one write, and its first lines in a file for the end of the run.

    Where that file is there already, the diagnosis has been shown.
    """
    import gpuprof

    diagnosis = gpuprof.diagnose(folder)
    if (folder / VERDICT).is_file():
        return diagnosis
    page = _page(diagnosis)
    with contextlib.suppress(OSError):
        os.write(2, page)
    keep_verdict(folder, diagnosis)
    _tell_cost(folder, diagnosis)
    return diagnosis


def keep_verdict(folder: Path, diagnosis: Diagnosis) -> None:
    """Its first lines in a file of the run, and its numbers for `gpuprof history`."""
    from gpuprof.diagnosis.headline import headline
    from gpuprof.report import history, words
    from gpuprof.report.names import escape

    heading = "  ".join(text for text in (headline(diagnosis), words.step_time(diagnosis)) if text)
    with runfile.whole_file(folder / VERDICT) as file:
        file.write(f"{escape(heading)}\n{escape(diagnosis.verdict.summary)}\n".encode())
    history.remember(folder, history.entry(str(folder), None, diagnosis))


def _tell_cost(folder: Path, diagnosis: Diagnosis) -> None:
    """What the recording took, part by part, on stderr and in the run's log."""
    rank = 0 if diagnosis.folder is None else diagnosis.folder.rank
    said = in_words(runfile.read_json(folder / runfile.rank_file(rank)) or {}, time.time_ns())
    if said is not None:
        tell(said)
        runfile.log(folder, said)


def _page(diagnosis: Diagnosis) -> bytes:
    """The report as the terminal of the training can show it."""
    from rich.console import Console

    from gpuprof.cli.output import drawn, encodable
    from gpuprof.report.terminal import render
    from gpuprof.report.words import after_recording

    stderr = Console(stderr=True)
    lines = drawn(lambda width: render(diagnosis, width, next_step=after_recording(diagnosis)), stderr)
    text = "".join(f"{line}\n" for line in ["", *lines, ""])
    if stderr.is_terminal:
        text = CLEAR_LINE + text
    return encodable(text, sys.stderr).encode(sys.stderr.encoding or "utf-8", "replace")


# -- the report


def draw_report(folder: Path, diagnosis: Diagnosis) -> None:
    """The report in the run's folder, if it is wanted, and where it is on stderr."""
    if options_of(folder)["report"] is False:
        return
    import gpuprof
    from gpuprof.cli.report_pages import pages_for, write_pages

    target = folder / runfile.REPORT
    write_pages(diagnosis, target, pages_for(diagnosis, None), gpuprof.diagnose)
    tell(f"report: {target}")


# -- the traces


def compress(folder: Path) -> None:
    """Every window that is whole, from .json to .json.gz; one that there is no room for stays as it is."""
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
    """Next to each rank's trace what a joint diagnosis needs of it, so that of many ranks only that has to be read."""
    ranks = (runfile.read_json(path) for path in folder.glob("rank*.json"))
    if not any(isinstance(rank, dict) and (rank.get("world_size") or 1) > 1 for rank in ranks):
        return
    from gpuprof.diagnosis.rank_digests import write_digest
    from gpuprof.tracefile.traces_in_folder import traces_in

    for trace in traces_in(folder):
        if trace.name.endswith(".gz"):
            why = _try(
                folder, f"the digest of {trace.name} could not be written", lambda path=trace: write_digest(path)
            )
            if why is not None:
                runfile.log(folder, f"no digest: {why}")
