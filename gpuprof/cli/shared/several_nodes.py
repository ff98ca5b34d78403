"""For jobs on several nodes, in the process that reads a node's recording: it makes digests before anything else, and
on rank 0's node one verdict of all ranks. The training's processes exchange the digests (record/nodes.py)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuprof import runfile
from gpuprof.record.base.options import options_of
from gpuprof.record.job_nodes.nodes import LOOK_S, OWN_S, NodeExchange, job_name, wait_s
from gpuprof.record.job_nodes.signed import TOKEN, key_of
from gpuprof.record.launcher.tell import tell
from gpuprof.units import Assumed, Convention, Ranks, Seconds

WINDOWS_S: Assumed[Seconds] = 30.0
"""Seconds that the other ranks of a node get to close their windows once the first has."""
ENDED_S: Assumed[Seconds] = 2.0
"""Seconds after the end of rank 0's process within which its last files become visible."""
_RANK = r"rank(\d+)\.json"
_MOST_NAMED: Convention[Ranks] = 16


def takes_part(folder: Path) -> bool:
    """Whether the ranks of this run exchange digests with other nodes."""
    return (folder / runfile.NODES).is_dir()


def collects(folder: Path) -> bool:
    """Whether rank 0, which collects all digests, is here."""
    return (folder / runfile.rank_file(0)).exists()


def reduce_ranks(folder: Path, compress: Callable[[Path], None], digest: Callable[[Path], str | None]) -> None:
    """Writes the digest of every rank recorded here, or the reason why it has none.

    compress: packs the complete traces in the folder. digest: writes the digest of a packed trace, or returns why it
    cannot.
    """
    end = time.monotonic() + WINDOWS_S
    while True:
        compress(folder)
        left = [rank for rank in _ranks_here(folder) if not _is_reduced(folder, rank)]
        for rank in left:
            trace = folder / f"{runfile.trace_file(rank)}.gz"
            if trace.is_file():
                why = _why_no_digest(trace, digest)
                if why is not None:
                    _write_note(folder, rank, why)
        left = [rank for rank in left if not _is_reduced(folder, rank)]
        if not left:
            return
        if time.monotonic() > end:
            for rank in left:
                _write_note(folder, rank, "its window did not close")
            return
        time.sleep(LOOK_S)


def exchange_at_url(folder: Path, url: str) -> None:
    """Sends the digests of this node's ranks to rank 0, or collects all, through an object store. Raises GpuprofError
    without fsspec, and whatever the store's library raises."""
    from gpuprof.cli.shared.url_mailbox import UrlMailbox

    key, mailbox = key_of(os.environ.get(TOKEN, "")), UrlMailbox(url, job_name())
    here = _ranks_here(folder)
    named = options_of(folder)["ranks"]
    worlds = [(runfile.read_json(folder / runfile.rank_file(rank)) or {}).get("world_size") for rank in here]
    wanted = set(named) if isinstance(named, list) else set(range(max(size or 1 for size in worlds)))
    exchanges = [NodeExchange(folder, rank, wanted, key, tell) for rank in here if rank == 0 or 0 not in here]
    for one in exchanges:
        one.begin(mailbox=mailbox)
    for one in exchanges:
        one.join()


def wait_for_others(folder: Path) -> dict[str, Any] | None:
    """Waits until rank 0's exchange is over; returns its outcome, or None if rank 0 ended before."""
    outcome = folder / runfile.NODES / runfile.EXCHANGE
    pid = (runfile.read_json(folder / runfile.rank_file(0)) or {}).get("pid")
    end, ended = time.monotonic() + OWN_S + wait_s(), None
    while (found := runfile.read_json(outcome)) is None and time.monotonic() < end:
        if not _is_alive(pid):
            ended = ended or time.monotonic() + ENDED_S
            if time.monotonic() > ended:
                break
        time.sleep(LOOK_S)
    return found


def tell_others(outcome: dict[str, Any] | None) -> None:
    """Prints a line on ranks whose digests are not in the verdict."""
    if outcome is None:
        tell("rank 0's process ended before the digests of other nodes had arrived: the verdict is without them")
        return
    waited = outcome.get("waited_s")
    for key, what in (
        ("silent", f"sent nothing within {waited:.0f} s" if isinstance(waited, (int, float)) else "sent nothing"),
        ("dropped", "sent a message that does not verify"),
    ):
        ranks = [rank for rank in outcome.get(key) or () if isinstance(rank, int)]
        if ranks:
            tell(f"{_named(ranks)} {what}: the verdict is without {'them' if len(ranks) > 1 else 'it'}")
    by_reason: dict[str, list[int]] = {}
    for rank, why in (outcome.get("without_digest") or {}).items():
        by_reason.setdefault(re.sub(r"rank\d+", "rank", str(why)), []).append(int(rank))
    for ranks in by_reason.values():
        why = str(outcome["without_digest"][str(ranks[0])])
        tell(f"{_named(ranks)} {'have' if len(ranks) > 1 else 'has'} no digest: {why}")


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_NAMED])) + (", …" if len(ranks) > _MOST_NAMED else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def _ranks_here(folder: Path) -> list[int]:
    return sorted(int(match[1]) for path in folder.iterdir() if (match := re.fullmatch(_RANK, path.name)))


def _is_reduced(folder: Path, rank: int) -> bool:
    note = folder / runfile.NODES / runfile.no_digest_file(rank)
    return (folder / runfile.digest_file(rank)).is_file() or note.is_file()


def _why_no_digest(trace: Path, digest: Callable[[Path], str | None]) -> str | None:
    """The reason, also if making the digest failed, so that rank 0 learns of it."""
    try:
        return digest(trace)
    except Exception as error:
        runfile.log(trace.parent, f"the digest of {trace.name} could not be written: {type(error).__name__}: {error}")
        return f"its digest could not be written ({type(error).__name__})"


def _write_note(folder: Path, rank: int, why: str) -> None:
    runfile.write_json(folder / runfile.NODES / runfile.no_digest_file(rank), {"why": why})


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
