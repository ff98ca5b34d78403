"""What is printed when the training has ended: its goodput, the verdict again, and what to type next."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ... import runfile
from .folder import point_latest
from .tell import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds


FRESH_S: Assumed[Seconds] = 10.0
"""A verdict printed less than this long ago is still on the screen and is not repeated."""
VERDICT = "verdict.txt"
"""The verdict in two lines, left in the run folder by what reads the recording."""


def last_words(folder: Path, ranks: list[dict[str, Any]], options: dict[str, Any], ended: float) -> None:
    """The verdict again, and what to type next; or why there is none.

    ranks: the contents of their rank<N>.json. options: of the run. ended: seconds since 1970.
    """
    _tell_goodput(folder)
    verdict = folder / VERDICT
    next_command = f"gpuprof diagnose{_as_argument(folder)}"
    if not any(rank.get("windows") for rank in ranks):
        tell(f"{_too_short(folder, ranks, options)}; what there is: {next_command}")
        return
    try:
        if verdict.stat().st_mtime < ended - FRESH_S:
            for line in verdict.read_text(encoding="utf-8").splitlines()[:2]:
                tell(line)
            if (folder / runfile.REPORT).is_file():
                tell(f"report: {folder / runfile.REPORT}")
    except (OSError, ValueError):
        pass
    tell(f"next: {next_command}")


def tell_failed_allocation(folder: Path) -> None:
    """If the program ran out of GPU memory, prints the command that shows what held it."""
    if any(".oom." in path.name for path in runfile.snapshots_in(folder)):
        point_latest(folder)
        tell(f"an allocation on the GPU failed; who held its memory: gpuprof memory{_as_argument(folder)}")


def _tell_goodput(folder: Path) -> None:
    """Prints what the whole run lost outside of usual steps, if steps were timed."""
    try:
        from .goodput import goodput, sentence

        found = goodput(folder)
        if found is not None:
            tell(sentence(found))
    except Exception as error:
        runfile.log(folder, f"the run's goodput: {type(error).__name__}: {error}")


def _too_short(folder: Path, ranks: list[dict[str, Any]], options: dict[str, Any]) -> str:
    """Why no window was recorded, as far as known."""
    from ..base.options import planned
    from ..steps.schedule import LONGEST_SETTLE, kept_steps, plan

    first = ranks[0].get("rank")
    written = sum(1 for line in runfile.read_lines(folder / runfile.STEPS) if line.get("rank") == first)
    seen = ranks[0].get("steps_seen")  # not every step has a line
    taken = max(written, seen) if isinstance(seen, int) else written
    settle = LONGEST_SETTLE if options.get("settle") is None else options["settle"]
    one_more = (ranks[0].get("world_size") or 1) != 1 and not kept_steps(settle)
    needed = plan(**planned(options, settle=settle)).needs() + one_more
    steps = "1 step" if taken == 1 else f"{taken} steps"
    if taken >= needed:
        return f"nothing was traced in {steps} ({runfile.LOG} may say why)"
    fewer = "fewer with --settle 1 --baseline 1"
    return f"nothing was traced: it took {steps}, and {needed} are needed ({fewer})"


def _as_argument(folder: Path) -> str:
    """The path as it is typed after a command; empty for the latest run."""
    latest = Path(runfile.RUNS) / runfile.LATEST
    if os.path.realpath(latest) == os.path.realpath(folder):
        return ""
    try:
        relative = os.path.relpath(folder)
    except (OSError, ValueError):
        relative = str(folder)
    path = min(relative, str(folder), key=len)
    if re.fullmatch(r"[\w./@%+=:,-]+", path, re.ASCII):
        return f" {path}"
    import shlex

    return f" {shlex.quote(path)}"
