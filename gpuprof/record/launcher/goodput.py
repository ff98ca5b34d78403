"""What a whole run spends outside of usual training steps, as shares of its wall time; from its folder alone.

The parts sum to the wall time exactly: productive time is the number of steps × the usual step (median of the
free-running ones), and every other nanosecond has a cause. `other` is what no measurement explains; it may be negative.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ...runfile import MANIFEST, STEPS, rank_file, read_json, read_lines
from ..model.lumps import KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Convention, Share, WholeNs


LATEST_NS: Convention[WholeNs] = 1 << 62
_RECORDING = ("baseline_sync", "sampling", "warmup", "trace", "stacks", "memory", "nsys")
CAUSES = (
    "imports", "loading", "first_steps", "compile", "evaluation", "save", "logging", "garbage_collection", "input",
    "recording", "finish", "other",
)  # fmt: skip


class RecordedGoodput(NamedTuple):
    """`wall_ns` = `productive_ns` + the sum of `lost_ns`, exactly."""

    wall_ns: int
    """From the start of the program to its end, or to its last step if it still runs or its end was not recorded."""
    steps: int
    usual_ns: int
    productive_ns: int
    """`steps` × `usual_ns`; less if later steps were shorter than the timed ones, so that the training loop minus its
    losses took less than that."""
    lost_ns: dict[str, int]
    """By cause, all of CAUSES. imports: from the start to the moment when torch and the trainer were imported (0 where
    that was not seen); loading: from then to the first step: model, data and set-up; first_steps: what steps before
    the timed ones take beyond the usual step, less what has a cause of its own; recording: the same of recorded and of
    synchronised steps, stopping the profiler and writing the traces; finish: after the last step."""

    @property
    def share(self) -> float:
        """Productive share of the wall time, 0 to 1."""
        return min(self.productive_ns / self.wall_ns, 1.0)


def goodput(folder: Path, rank: int = 0) -> RecordedGoodput | None:
    """The goodput of the run in a folder, as one rank saw it; None if no free-running steps were timed."""
    manifest, facts = (
        (read_json(folder / name) if (folder / name).is_file() else None) or {}  # opening a pipe would block
        for name in (MANIFEST, rank_file(rank))
    )
    lines = [line for line in read_lines(folder / STEPS) if line.get("rank") == rank]
    return split(manifest, facts, lines)


def split(manifest: dict[str, Any], facts: dict[str, Any], lines: Iterable[dict[str, Any]]) -> RecordedGoodput | None:
    """The goodput from documents: the manifest, the rank's facts, its lines of steps.jsonl."""
    steps = [line for line in lines if all(_whole(line.get(name)) for name in ("step", "ns", "unix_ns"))]
    free = [line["ns"] for line in steps if line.get("stage") == "baseline_free" and not line.get("profiled")]
    started = _whole(manifest.get("started"))
    if not free or not started:
        return None
    usual = round(statistics.median(free))
    first, last = min(steps, key=lambda line: line["step"]), max(steps, key=lambda line: line["step"])
    began = first["unix_ns"] - first["ns"] - (first["step"] - 1) * usual
    count = max(last["step"], _whole(facts.get("steps_seen")))
    looped = last["unix_ns"] + (count - last["step"]) * usual  # the last steps may have no line
    ended = max(_whole(manifest.get("ended")), last["unix_ns"])
    looped = min(looped, ended) if _whole(manifest.get("ended")) else looped
    ended = max(ended, looped)
    if not started <= began <= looped:
        return None
    imported = min(max(_whole(facts.get("imported")), started), began)
    lost: dict[str, int] = dict.fromkeys(CAUSES, 0)
    lost |= {"imports": imported - started, "loading": began - imported, "finish": ended - looped}
    usually = _usually(steps)
    for kind in KINDS:
        lost[kind] = _lumps(steps, kind, count, facts.get("intervals"), usually[kind])
    lost["input"] = _input(steps, count)
    lost["first_steps"] = _beyond(steps, ("settle",), usual, usually)
    windows = facts.get("windows")
    rows = windows if isinstance(windows, list) else []
    stops = sum(_whole(row.get("stop_ns")) for row in rows if isinstance(row, dict))
    lost["recording"] = _beyond(steps, _RECORDING, usual, usually) + stops
    left = ended - started - sum(lost.values())
    productive = max(min(count * usual, left), 0)
    lost["other"] = left - productive
    return RecordedGoodput(ended - started, count, usual, productive, lost)


def _usually(steps: list[dict[str, Any]]) -> dict[str, int]:
    """Kind of event → ns in a usual step, which is not a loss: RL, for example, generates with the model in every
    step."""
    free = [line for line in steps if line.get("stage") == "baseline_free"]
    return {kind: statistics.median_low(_whole(line.get(f"{kind}_ns")) for line in free) for kind in KINDS}


def _lumps(steps: list[dict[str, Any]], kind: str, count: int, intervals: Any, usual: int) -> int:
    """Time of one kind of event in the whole run, beyond what is `usual` in a step: by the trainer's schedule if it has
    one. Garbage collection and logging are extrapolated from the steps in which they were measured; everything else
    is what was measured."""
    measured = [line for line in steps if line.get("stage") not in ("settle", "after")]
    took = [ns for line in measured if (ns := _more(line, kind, usual))]
    every = _whole(intervals.get(kind)) if isinstance(intervals, dict) else 0
    if every and took:
        return round(statistics.fmean(took) * (count // every))
    if kind in ("garbage_collection", "logging") and measured:
        return round(sum(took) / len(measured) * count)
    return sum(_more(line, kind, usual) for line in steps)


def _more(line: dict[str, Any], kind: str, usual: int) -> int:
    """What one kind of event takes in a step beyond what is usual, ns."""
    return max(_whole(line.get(f"{kind}_ns")) - usual, 0)


def _input(steps: list[dict[str, Any]], count: int) -> int:
    """Waiting for batches beyond the usual wait, extrapolated from the free-running steps."""
    waits = [_whole(line.get("data_ns")) for line in steps if line.get("stage") == "baseline_free"]
    usual = statistics.median(waits)
    return round(sum(max(wait - usual, 0) for wait in waits) / len(waits) * count)


def _beyond(steps: list[dict[str, Any]], stages: tuple[str, ...], usual: int, usually: dict[str, int]) -> int:
    """What the steps of some stages take beyond the usual one, less what has a cause of its own."""
    own = [line for line in steps if line.get("stage") in stages]
    known = sum(_more(line, kind, usually[kind]) for line in own for kind in KINDS)
    return max(sum(line["ns"] - usual for line in own) - known, 0)


def _whole(value: Any) -> int:
    """A valid time or count; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LATEST_NS else 0


NAMES = {
    "imports": "imports", "loading": "loading model and data", "first_steps": "first steps", "compile": "compiling",
    "evaluation": "evaluation", "save": "saving", "logging": "logging", "garbage_collection": "garbage collection",
    "input": "uneven input", "recording": "recording", "finish": "after the last step",
    "other": "no measured cause",
}  # fmt: skip
"""Cause → its printed name."""
WORTH_SAYING: Assumed[Share] = 0.01


def sentence(found: RecordedGoodput) -> str:
    """`usual steps take 61 % of the run's 12 min; the rest: loading model and data 21 %, no measured cause 18 %`."""
    shares = sorted(((ns / found.wall_ns, cause) for cause, ns in found.lost_ns.items()), reverse=True)
    lost = [f"{NAMES[cause]} {100 * share:.0f} %" for share, cause in shares if share >= WORTH_SAYING]
    head = f"usual steps take {100 * found.share:.0f} % of the run's {_long(found.wall_ns)}"
    return f"{head}; the rest: {', '.join(lost)}" if lost else head


def _long(ns: int) -> str:
    seconds = ns / 1e9
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
