"""Keeps a bounded history of torch's allocator, and writes it down when an allocation fails.

Armed with `--memory` only: the history costs too much to be always on. On an H200, a launch-bound step of 15 ms took
between 10 % less and 57 % more with it (three alternating rounds, median 2 % more); the goal was 1 %. torch calls the
observer before it raises its OutOfMemoryError; nothing that goes wrong here reaches the program, whose error, traceback
and exit code stay its own.
"""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from ...runfile import PARTIAL, log, snapshot_file
from ..base.environment import place_among_ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes, Events, Seconds


MOST_EVENTS: Assumed[Events] = 200_000
"""The history keeps this many of the last events: ten steps or more of most fine-tunes, about 150 MB of host memory."""
LEAST_DISK_BYTES: Assumed[Bytes] = 2 << 30
"""Nothing is written with less free disk space than this."""
SNAPSHOTS_S: Assumed[Seconds] = 60.0
"""All snapshots of a process together take no longer than this: a program that tries batch sizes fails often."""


class Observer:
    """The observer of this process."""

    def __init__(self) -> None:
        self._run: Path | None = None
        self._waiting = self._armed = False
        self._spent_s = 0.0
        self.written = 0
        """Snapshots written so far."""
        self.notes: list[str] = []
        """Notes for the reader of the recording."""

    @property
    def armed(self) -> bool:
        """Whether the history is recorded."""
        return self._armed

    def watch(self, run: Path) -> None:
        """Arms once the program has initialised CUDA, at once if it has already; never initialises it itself."""
        self._run = run
        cuda: Any = sys.modules.get("torch.cuda")
        later = getattr(cuda, "_lazy_call", None)
        if later is None or self._waiting or self._armed:
            return
        self._waiting = True
        later(self._arm)

    def _arm(self) -> None:
        """Called by torch when CUDA is ready; must not raise."""
        self._waiting = False
        if self._armed:
            return
        try:
            import torch

            record = torch.cuda.memory._record_memory_history
            attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer")  # noqa: B009 (only there with CUDA)
            known = inspect.signature(record).parameters
            if not {"enabled", "context", "stacks", "max_entries"} <= known.keys():
                raise RuntimeError("this version of torch cannot bound it")
            running = getattr(torch._C, "_cuda_isHistoryEnabled", None)
            if running is None or not running():
                record(enabled="all", context="alloc", stacks="python", max_entries=MOST_EVENTS)
            attach(self._failed)
            self._armed = True
            self.notes.append(
                "--memory recorded the allocator's history from the start: the unprofiled steps include its cost"
            )
        except Exception as error:
            self.notes.append(f"failed allocations are not watched: {error}")

    def _failed(self, device: int, requested: int, allocated: int, free: int) -> None:
        """Called by torch when an allocation has failed, before it raises."""
        try:
            self._write(failed=True)
        except Exception as error:
            self._log(f"a failed allocation was not written down: {error!r}")

    def end(self) -> None:
        """The recorded steps are over: writes the history, unless an allocation failed before."""
        try:
            if self._armed and not self.written:
                self._write(failed=False)
        except Exception as error:
            self._log(f"the allocator's history was not written down: {error!r}")

    def _write(self, failed: bool) -> None:
        if self._run is None or self._spent_s > SNAPSHOTS_S:
            return
        if shutil.disk_usage(self._run).free < LEAST_DISK_BYTES:
            self._log("the allocator's history was not written down: the disk is nearly full")
            return
        import torch

        begun = time.monotonic()
        path = self._run / snapshot_file(place_among_ranks()[0], failed)
        partial = f"{path}{PARTIAL}"
        try:
            os.close(os.open(partial, os.O_CREAT | os.O_WRONLY, 0o600))
            torch.cuda.memory._dump_snapshot(partial)
            os.replace(partial, path)
            self.written += 1
        except BaseException:
            try:
                os.unlink(partial)
            except OSError:
                pass
            raise
        finally:
            self._spent_s += time.monotonic() - begun

    def _log(self, message: str) -> None:
        if self._run is not None:
            log(self._run, message)


observer = Observer()
"""This process's Observer."""
