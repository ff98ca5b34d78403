"""Recording from inside your own program: `gpuprof.Recorder` and the callback for transformers.Trainer."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from ... import __version__
from ...runfile import MANIFEST, RUN_VARIABLE, SCHEMA, read_json, write_json
from ..base.options import MODULES
from ..launcher.machine import describe_host
from ..recording.session import Session
from .trackers import Trackers


class Recorder:
    """Times unprofiled steps of the loop inside it, then records a few.

        with gpuprof.Recorder() as recorder:
            for batch in loader:
                train_step(batch)
                recorder.step()

    It needs about 30 steps (`settle` + 2 × `baseline` + 2 + `steps`), and costs nothing after them. The recording is
    in `recorder.folder`, for `gpuprof diagnose`.

    out: the run folder, which must be new or empty; a folder in ./gpuprof-runs if not given.
    settle: steps to let pass first (5). baseline: steps timed free-running, and again each synchronised (10, fewer
    where steps take seconds). steps: steps to record (3, fewer where each has many ops). stacks, memory: steps to
    record again with Python stacks, and with allocations. sampling: sample the Python functions of unprofiled steps.
    shapes: record the shapes of tensors. modules: levels of modules that get ranges (0: none).
    nvtx: emit NVTX ranges even if no NVTX tool is detected. trackers: at the end, if W&B, MLflow or TensorBoard is
    in use, diagnose the recording (some seconds) and log `gpuprof/*` scalars and the report to it; rank 0 only.

    Under `gpuprof trace` it only marks where steps end; that command records. With several ranks only rank 0 records,
    unless `out` names a folder that they share. Raises ValueError for counts below zero; any other error is written
    to the run's log, and the training continues.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        settle: int | None = None,
        baseline: int | None = None,
        steps: int | None = None,
        stacks: int = 0,
        memory: int = 0,
        sampling: bool = True,
        shapes: bool = True,
        modules: int = MODULES,
        nvtx: bool = False,
        trackers: bool = True,
    ) -> None:
        counts = {"settle": settle, "baseline": baseline, "steps": steps, "stacks": stacks, "memory": memory}
        for name, count in (counts | {"modules": modules}).items():
            if count is not None and (not isinstance(count, int) or count < 0):
                raise ValueError(f"{name} is a number of steps or levels, 0 or more; it is {count!r}")
        self._options = {
            **counts,
            "sampling": sampling,
            "shapes": shapes,
            "modules": modules,
            "nvtx": nvtx,
            "ranks": None,
            "stop": False,
        }
        self._out = None if out is None else os.fspath(out)
        self._outer: Any = None
        self._holder: Any = None
        """The holder of this process's session: that of the `gpuprof trace` around it, or its own if it records."""
        self._known: Session | None = None
        """The session of the last step: while it runs, `step` need not ask the holder for it."""
        self._telemetry: Any = None
        self._trackers = Trackers() if trackers else None
        self.folder: Path | None = None
        """Where the recording is; None if none is made."""
        self._leads = False
        """Whether this rank prints for the whole run."""

    def __enter__(self) -> Recorder:
        self._outer = self._holder = _recording_around()
        if self._outer is None:
            try:
                self._begin()
            except Exception as error:
                self.folder = self._holder = None
                _tell(f"nothing is recorded: {error}")
        session = self._session()
        if session is not None:
            session.on_training("recorder", None, None, None)
        self._look_for_trackers()
        return self

    def step(self) -> None:
        """Says that a step of the training has ended."""
        session = self._known
        if session is None or session.ended:
            session = self._known = self._session()
        if session is not None and (session.bare is None or not session.bare.ended()):
            session.step_ended()

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        session = self._session()
        if session is None:
            return
        if self._outer is not None:
            session.on_training_end()
            return
        self._look_for_trackers()
        session.close()
        self._end("failed" if kind else "finished")
        _tell(f"recorded; next: gpuprof diagnose {self.folder}")
        if kind is None:
            self._publish()

    def _look_for_trackers(self) -> None:
        if self._leads and self._trackers is not None:
            self._trackers.look()

    def _publish(self) -> None:
        """Passes the numbers of the recording to the program's trackers, if it has any."""
        if self._leads and self._trackers and self.folder is not None:
            from .publish import publish

            message = publish(self.folder, self._trackers)
            if message:
                _tell(message)

    def _session(self) -> Session | None:
        return None if self._holder is None else self._holder.session("recorder")

    def _begin(self) -> None:
        """Creates a run folder, and a session in it."""
        from importlib import import_module

        from .attach import holder

        self._make_run(Path(sys.argv[0] if sys.argv and sys.argv[0] else "python").stem or "python")
        if self.folder is not None:
            self._holder = holder
            holder.attach_optimizers(import_module("torch.optim.optimizer"))

    def _make_run(self, stem: str) -> None:
        """Creates a run folder for the session of this process. stem: first part of its name."""
        from ..base.environment import place_among_ranks
        from ..launcher import telemetry
        from ..launcher.folder import make_folder, point_latest
        from .attach import holder

        rank, _, ranks = place_among_ranks()
        if rank and self._out is None:
            return
        if rank and ranks > 1:
            self.folder = Path(str(self._out)).absolute()
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            self.folder = make_folder(stem, self._out)
            self._leads = True
            point_latest(self.folder)
            os.environ.setdefault("TEARDOWN_CUPTI", "1")
            self._write_manifest("running", None)
            self._telemetry = telemetry.start(self.folder)
        holder.record_into(self.folder)

    def _write_manifest(self, status: str, ended: int | None) -> None:
        assert self.folder is not None
        before = read_json(self.folder / MANIFEST) or {
            "schema": SCHEMA,
            "gpuprof": __version__,
            "started": time.time_ns(),
            "command": None,
            "cwd": str(Path.cwd()),
            "python": sys.executable,
            "options": self._options,
            "variables": {},
            "exit": None,
            "host": describe_host(),
        }
        write_json(self.folder / MANIFEST, before | {"status": status, "ended": ended})

    def _end(self, status: str) -> None:
        from ..launcher import telemetry

        try:
            if self._telemetry is not None:
                telemetry.stop(self._telemetry)
                self._write_manifest(status, time.time_ns())
        except OSError as error:
            _tell(f"{self.folder}: {error}")


def TrainerCallback(**options: Any) -> Any:  # noqa: N802 - reads like the class that it returns an object of
    """A callback for transformers.Trainer, TRL's or unsloth's, that records as a `Recorder` with these options does.

        trainer.add_callback(gpuprof.TrainerCallback())

    Raises ImportError where transformers is not installed.
    """
    from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

    from .trainer import callback_class

    recorder = Recorder(**options)

    class RecordingCallback(callback_class(TrainerCallback, lambda _: recorder._session())):
        """Begins and ends a recording with the training."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if _recording_around() is not None:
                return  # `gpuprof trace` has put its own callback into every Trainer
            recorder.__enter__()
            super().on_train_begin(args, state, control, **kwargs)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            super().on_train_end(args, state, control, **kwargs)
            if recorder._outer is None:
                recorder.__exit__(None)

    return RecordingCallback()


def _recording_around() -> Any:
    """The Holder of the `gpuprof trace` that runs this program; None without one."""
    attach = sys.modules.get("_gpuprof.record.entry.attach")
    return attach.holder if attach is not None and os.environ.get(RUN_VARIABLE) else None


def _tell(message: str) -> None:
    from ..base.say import say

    say(message)
