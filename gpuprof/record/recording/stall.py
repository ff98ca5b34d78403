"""Notices when no step ends any more, and writes down where the process is: its Python stacks and, with several ranks,
torch's flight recorder.
A separate thread checks once a second; it also checks for a file by which `gpuprof hang` asks a live run. It needs the
GIL: a process that never releases it is recognised by writing nothing.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...runfile import (
    ASKED,
    HANG,
    STALLED,
    answer_file,
    ended_file,
    flight_file,
    log,
    other_flight_file,
    stack_file,
    write_json,
)
from ..base.redact import redact_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Convention, Levels, Seconds, Steps, Times


LOOK_S: Assumed[Seconds] = 1.0
SHORTEST_STALL_S: Assumed[Seconds] = 60.0
"""A step that takes no longer than this is not a stall, however short the usual step is."""
TIMES_USUAL: Assumed[Times] = 20
"""A stall takes at least this many times the usual step: evaluation and saving take less in most trainings."""
MOST_FRAMES: Convention[Levels] = 50
_OF_ENTRY = b"profiling_name"
"""A key in every dump that contains a collective."""
USUAL_OF: Assumed[Steps] = 32
"""The usual step is the median over this many last looks."""


class StallWatch(threading.Thread):
    """Watches the training of one rank: looks at the number of its steps once a second, which costs these nothing.

    steps: says how many have ended. tell: prints a line if this rank leads.
    """

    def __init__(
        self, folder: Path, rank: int, world_size: int, steps: Callable[[], int], tell: Callable[[str], None]
    ) -> None:
        super().__init__(name="gpuprof-stall", daemon=True)
        self._folder, self._rank, self._world_size, self._tell = folder, rank, world_size, tell
        self._ended = threading.Event()
        self._read_steps = steps
        self._last_s = time.monotonic()
        self._steps: deque[float] = deque(maxlen=USUAL_OF)
        """Durations of steps, each the mean between two looks."""
        self._count = 0
        self._answered_ns = _changed_ns(folder / HANG / ASKED)
        self.pid = os.getpid()

    def look(self, now_s: float) -> None:
        """Sees whether steps have ended since the last look. now_s: on the monotonic clock."""
        count = self._read_steps()
        if count == self._count:
            return
        if self._count:
            self._steps.append((now_s - self._last_s) / (count - self._count))
        self._last_s, self._count = now_s, count

    def close(self) -> None:
        """Ends the watch. If the program ends with an error, writes the error and its collectives down, for the ranks
        that are still waiting."""
        self._ended.set()
        error: Any = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is not None and self._world_size > 1 and os.getpid() == self.pid:
            self._write_flight()
            text = redact_text(f"{type(error).__name__}: {error}")[:1000]
            found = {"error": text, "unix_ns": time.time_ns(), "frames": _frames(error)}
            write_json(self._folder / HANG / ended_file(self._rank), found)

    def run(self) -> None:
        reported = -1
        while not self._ended.wait(LOOK_S):
            try:
                asked_ns = _changed_ns(self._folder / HANG / ASKED)
                if asked_ns != self._answered_ns:
                    self._answered_ns = asked_ns
                    self._write()
                self.look(time.monotonic())
                stalled_s = time.monotonic() - self._last_s
                if self._count and self._count != reported and stalled_s > self._patience_s():
                    reported = self._count
                    self._write()
                    (self._folder / HANG / STALLED).touch()
                    self._tell(
                        f"no step for {stalled_s:,.0f} s after step {self._count}: writing down where each rank is"
                    )
            except Exception as error:
                log(self._folder, f"rank {self._rank}: the stall is not written down: {error!r}")
                return

    def _patience_s(self) -> float:
        usual = sorted(self._steps)[len(self._steps) // 2] if self._steps else 0.0
        return max(SHORTEST_STALL_S, TIMES_USUAL * usual)

    def _write(self) -> None:
        self._make_folder()
        place = self._folder / HANG
        with _opened(place / f".{stack_file(self._rank)}") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        os.replace(place / f".{stack_file(self._rank)}", place / stack_file(self._rank))
        self._write_flight()
        (place / answer_file(self._rank)).touch()

    def _write_flight(self) -> None:
        self._make_folder()
        place = self._folder / HANG
        for name, dump in zip(
            (flight_file(self._rank), other_flight_file(self._rank)), flight_recorders(), strict=False
        ):
            with _opened(place / f".{name}") as file:
                file.write(dump)
            os.replace(place / f".{name}", place / name)

    def _make_folder(self) -> None:
        (self._folder / HANG).mkdir(mode=0o700, exist_ok=True)


def flight_recorders() -> list[bytes]:
    """Pickled flight recorder dumps of this process: of NCCL and of other backends, those that hold collectives, else
    an empty one. None without several ranks, or if this torch has no flight recorder or it is off
    (TORCH_FR_BUFFER_SIZE=0)."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return []
    from torch._C import _distributed_c10d as made

    dumps = [getattr(made, name, None) for name in ("_dump_nccl_trace", "_dump_fr_trace")]
    found = [bytes(data) for dump in dumps if dump is not None and (data := dump())]
    return [data for data in found if _OF_ENTRY in data] or found[:1]


def _frames(error: BaseException) -> list[dict[str, Any]]:
    """The stack where it was raised, innermost frame first."""
    frames = traceback.extract_tb(error.__traceback__)[-MOST_FRAMES:]
    return [{"filename": one.filename, "line": one.lineno or 0, "name": one.name} for one in reversed(frames)]


def _opened(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
