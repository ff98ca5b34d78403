"""One process's recording: follows the steps of its training, and does at each step's end what the plan says.

Everything that the training calls (`on_…`, `step_ended`) is guarded: an error in gpuprof is noted in the run's log,
the recording ends, and the training goes on.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..runfile import MANIFEST, SCHEMA, STEPS, append_lines, log, rank_file, read_json, write_json
from .batch import Work, work_of
from .environment import describe_gpu, describe_process, place_among_ranks
from .finder import StepFinder
from .hooks import (
    ModuleHooks,
    Patch,
    named_blocks,
    patch_backward,
    patch_loader,
    patch_profiler,
    profiler_is_active,
)
from .model import describe_loader, describe_model, describe_optimizer, find_model, is_compiled, optimizer_parameters
from .ranges import Ranges, find_nvtx, tool_is_listening
from .say import say
from .schedule import Plan, plan
from .timing import FreeRunning, MemoryMeter, devices_in_use, synchronise
from .window import SHAPES_GPU_BYTES, Window, gpu_bytes_to_spare, room_for_window

FLUSH_NS = 1_000_000_000
"""Lines of steps.jsonl are written at least this often: what a kill can take with it."""
THINNED_NS = 1_000_000_000
"""After the windows, one line of steps.jsonl is enough for so long."""
MOST_FETCHED = 64
"""Batches that may have been fetched and not been used yet."""
PATIENCE = 100
"""Steps that a window waits for the program's own profiler to end before it gives up."""

Callback = Callable[..., Any]


def guarded(method: Callback) -> Callback:
    """A method that the training calls: whatever goes wrong in it stays in it."""

    @functools.wraps(method)
    def wrapper(self: Session, *args: Any, **kwargs: Any) -> Any:
        if self.ended or os.getpid() != self.pid:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.fail(error)
            return None

    # Where torch.compile meets it, it runs as it is, outside the graph.
    wrapper._torchdynamo_disable = True  # type: ignore[attr-defined]
    return wrapper


class Session:
    """The recording of one process.

    options: as manifest.json holds them. source: who says where steps end (recorder, trainer or optimizer).
    """

    def __init__(self, folder: Path, options: dict[str, Any], source: str) -> None:
        self.folder, self.options, self.source = folder, options, source
        self.pid, self.thread = os.getpid(), threading.get_ident()
        self.rank, self.local_rank, self.world_size = place_among_ranks()
        self.ended = False
        self.stop_asked = False
        self._facts: dict[str, Any] = {}
        self._notes: list[str] = []
        self._stage_rows: list[dict[str, Any]] = []
        self._window_rows: list[dict[str, Any]] = []
        self._finder = StepFinder()
        self._patches: list[Patch] = []
        self._modules: ModuleHooks | None = None
        self._ranges = Ranges()
        self._meter = MemoryMeter()
        self._devices: list[int] = []
        self._model: Any = None
        self._optimizer: Any = None
        self._batches: Any = None
        self._follows_optimizers = source == "optimizer"
        self._known = False
        self._under_tool = tool_is_listening()
        self._total: int | None = None
        self._plan: Plan | None = None
        self._queue: list[tuple[str, int]] = [("settle", plan(**self._wishes()).settle)]
        self._stage, self._left = "", 0
        self._free: FreeRunning | None = None
        self._window: Window | None = None
        self._waited = 0
        self._lines: list[dict[str, Any]] = []
        self._flushed_ns = self._line_ns = 0
        self._settling: list[int] = []
        self._step = 0
        self._step_begun_ns = 0
        self._fetch_ns = 0
        self._micro_steps = 0
        self._fetched: Work | None = None
        self._called: Work | None = None
        self._masked: deque[Work] = deque(maxlen=MOST_FETCHED)

    # -- beginning

    @classmethod
    def begin(cls, folder: Path, source: str) -> Session | None:
        """The session of this process, or None if this rank is not to be recorded, or is being recorded already."""
        manifest = read_json(folder / MANIFEST) or {}
        options = manifest.get("options")
        session = cls(folder, options if isinstance(options, dict) else {}, source)
        wanted = session.options.get("ranks")
        if isinstance(wanted, list) and session.rank not in wanted:
            log(folder, f"rank {session.rank} is not recorded: --ranks names others")
            return None
        try:
            os.close(os.open(folder / rank_file(session.rank), os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            log(folder, f"rank {session.rank} is recorded by another process; this one ({os.getpid()}) is not")
            return None
        session._open()
        return session

    def _wishes(self) -> dict[str, Any]:
        names = ("settle", "baseline", "steps", "stacks", "memory")
        return {name: self.options[name] for name in names if self.options.get(name) is not None}

    def _open(self) -> None:
        self._facts = describe_process()
        if self._under_tool or self.options.get("nvtx"):
            self._ranges = Ranges(find_nvtx())
        self._backward_patch = patch_backward(self)
        self._patches = [patch_loader(self), patch_profiler(self)]
        atexit.register(self.close)
        self._next_stage()
        self._step_begun_ns = time.perf_counter_ns()
        self._write_facts()

    # -- what happens in the training

    @guarded
    def on_optimizer_end(self, optimizer: Any) -> None:
        """An optimizer has done its step."""
        if threading.get_ident() != self.thread:
            return
        self._optimizer = optimizer if self._optimizer is None else self._optimizer
        if self._follows_optimizers and self._finder.ended(id(optimizer)):
            self._end_step()

    @guarded
    def on_training(self, source: str, left: int | None, model: Any, optimizer: Any) -> None:
        """Somebody who knows begins to count steps. left: how many there will be."""
        self.source, self._follows_optimizers = source, False
        self._total = None if left is None else self._step + left
        self._model, self._optimizer = model or self._model, optimizer or self._optimizer
        if not self._step:
            self._left = plan(**self._wishes(), total=self._total).settle
        self._step_begun_ns = time.perf_counter_ns()

    @guarded
    def on_training_end(self) -> None:
        """Who counted the steps is done; what follows (an evaluation, another training) is none of its steps."""
        self._follows_optimizers, self._finder, self._total = True, StepFinder(), None
        if self._window is not None:
            self._close_window()
            self._next_stage()
        self._flush(time.perf_counter_ns())

    @guarded
    def step_ended(self) -> None:
        """Who counts the steps says that one has ended."""
        self._end_step()

    @guarded
    def on_backward(self) -> Callable[[], None] | None:
        """A backward pass begins; what is returned is called at its end."""
        if threading.get_ident() != self.thread:
            return None
        self._finder.backward()
        self._micro_steps += 1
        return self._ranges.open("backward")

    @guarded
    def on_fetch(self, batches: Any) -> Callable[[Any], None] | None:
        """A batch is asked for; what is returned is called with it. batches: the DataLoader's iterator."""
        if threading.get_ident() != self.thread:
            return None
        if not self._known:
            self._batches = batches
        begun = time.perf_counter_ns()
        close = self._ranges.open("data")

        def fetched(batch: Any) -> None:
            if close is not None:
                close()
            self._fetch_ns += time.perf_counter_ns() - begun
            self._count(batch)

        return fetched

    @guarded
    def _count(self, batch: Any) -> None:
        work = None if batch is None else work_of(batch)
        if work is not None:
            self._fetched = work if self._fetched is None else self._fetched + work
            if work.real_tokens is not None:
                self._masked.append(work)

    @guarded
    def on_call(self, arguments: Any) -> None:
        """The model is called."""
        if not self._model.training:
            return
        work = work_of(arguments)
        if work is None:
            return
        if work.real_tokens is None:
            work = self._unpadded(work)
        self._called = work if self._called is None else self._called + work

    def _unpadded(self, work: Work) -> Work:
        """The same work with the tokens that the loader's mask kept, when the batch was still in host memory.

        Loaders fetch ahead, and a trainer may drop batches, so a batch is known by its shape, oldest first.
        """
        while self._masked:
            fetched = self._masked.popleft()
            if (fetched.samples, fetched.tokens) == (work.samples, work.tokens):
                return fetched
        return work

    @guarded
    def on_foreign_profiler(self) -> None:
        """A profiler is about to start; if it is not ours, ours makes room for it."""
        if self._window is None or self._window.starting or self._window.result is not None:
            return
        self._left = 0
        self._note("the program started a profiler of its own while gpuprof recorded: gpuprof's window was closed")
        self._close_window()

    def optimizer_range(self) -> Callable[[], None] | None:
        """The range of an optimizer's step, where somebody listens."""
        return None if self.ended or os.getpid() != self.pid else self._ranges.open("optimizer")

    # -- the end of a step

    def _end_step(self) -> None:
        if self._stage == "baseline_sync":
            synchronise(self._devices)
        now = time.perf_counter_ns()
        self._step += 1
        self._note_step(now)
        self._left -= 1
        if self._window is not None:
            warming = not self._window.active
            if self._window.step(self._step):
                self._close_window()
                self._left = 0
            elif warming and self._window.active:
                self._begin_stage(self._window.name)
        elif self._free is not None:
            self._free.mark()
        if self._left <= 0 and self._stage != "over":
            self._next_stage()
        self._ranges.step(self._step + 1)
        self._fetch_ns = self._micro_steps = 0
        self._fetched = self._called = None
        self._step_begun_ns = time.perf_counter_ns()
        if self.stop_asked:
            self._stop_training()

    def _note_step(self, now: int) -> None:
        ns = now - self._step_begun_ns
        if self._stage == "over" and now - self._line_ns < THINNED_NS:
            return
        self._line_ns = now
        if self._stage == "settle":
            self._settling.append(ns)
        work = self._work()
        self._lines.append(
            {
                "rank": self.rank,
                "step": self._step,
                "stage": "after" if self._stage == "over" else self._stage,
                "unix_ns": time.time_ns(),
                "ns": ns,
                "device_ns": None,
                "data_ns": self._fetch_ns,
                "micro_steps": self._micro_steps or None,
                "samples": work.samples,
                "tokens": work.tokens,
                "real_tokens": work.real_tokens,
                **self._meter.read(now),
                "profiled": self._window is not None or self._under_tool or profiler_is_active(),
            }
        )
        # Lines of a free-running stage wait for the GPU's own times.
        if self._free is None and now - self._flushed_ns > FLUSH_NS:
            self._flush(now)

    def _work(self) -> Work:
        """What the step worked on: as the model was called, or as batches were fetched."""
        return self._called or self._fetched or Work()

    def _flush(self, now: int) -> None:
        lines, self._lines, self._flushed_ns = self._lines, [], now
        if lines:
            append_lines(self.folder / STEPS, lines)

    # -- stages

    def _next_stage(self) -> None:
        """Ends the stage at hand and begins the next one of the plan."""
        self._end_stage()
        if self._stage == "settle" and not self._known:
            self._know()
        if not self._queue:
            self._stage = "over"
            self._undo_patches()
            self._flush(time.perf_counter_ns())
            self._write_facts()
            return
        stage, self._left = self._queue.pop(0)
        if stage == "warmup":
            stage, self._left = self._open_window(self._left)
        if stage in ("baseline_free", "after"):
            self._free = FreeRunning(self._devices)
        elif stage == "baseline_sync":
            synchronise(self._devices)
        self._begin_stage(stage)
        if stage == "baseline_free" and self._leads():
            say(f"step {self._step + 1}: timing {self._left} + {self._left} unprofiled steps")

    def _begin_stage(self, stage: str) -> None:
        self._count_stage()
        self._stage = stage
        if self._stage_rows and self._stage_rows[-1]["stage"] == stage:
            return
        self._stage_rows.append(
            {"stage": stage, "first_step": self._step + 1, "steps": 0, "unix_ns": time.time_ns(), "ns": None}
        )

    def _count_stage(self) -> None:
        if self._stage_rows:
            self._stage_rows[-1]["steps"] = self._step + 1 - self._stage_rows[-1]["first_step"]

    def _end_stage(self) -> None:
        """Settles the times of the stage at hand."""
        if self._stage in ("", "over"):
            return
        self._count_stage()
        row = self._stage_rows[-1]
        if self._free is not None:
            free, self._free = self._free, None
            row["ns"], device_ns = free.finish()
            for line, ns in zip(self._lines[-len(device_ns) :] if device_ns else [], device_ns or [], strict=False):
                line["device_ns"] = ns
        if self._stage in ("baseline_free", "baseline_sync", "after"):
            self._flush(time.perf_counter_ns())
        self._write_facts()

    def _know(self) -> None:
        """Once the run has settled: what it trains, how long a step takes, and so what the plan is."""
        self._known = True
        self._devices = devices_in_use()
        self._describe()
        while len(self._masked) > 1:  # all but what a loader has fetched ahead was used up while settling
            self._masked.popleft()
        left = None if self._total is None else self._total - self._step
        step_s = min(self._settling[-3:], default=0) / 1e9
        found = plan(**(self._wishes() | {"settle": 0}), step_s=step_s, total=left)
        if self._under_tool:
            found = replace(found, trace=0, stacks=0, memory=0)
            self._note("an NVTX tool records this process: gpuprof marks its steps, and leaves the recording to it")
        self._queue = found.stages()
        if self._ranges.listening:  # NVTX ranges are wanted all along
            self._hook_modules()
        else:
            self._watch_model()

    def _describe(self) -> None:
        """Notes what is trained; a description is nice to have, and no more."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # looking at an attribute may call it deprecated
                self._look_around()
        except Exception as error:
            log(self.folder, f"rank {self.rank}: the training is not described: {error!r}")

    def _look_around(self) -> None:
        self._facts |= {"steps_total": self._total, "gpu": describe_gpu()}
        if self._batches is not None:
            self._facts["loader"] = describe_loader(self._batches)
            self._batches = None
        if self._optimizer is not None:
            self._facts["optimizer"] = describe_optimizer(self._optimizer)
            if self._model is None:
                self._model = find_model(optimizer_parameters(self._optimizer))
        if self._model is not None:
            self._facts["model"] = describe_model(self._model)

    def _open_window(self, warm_up: int) -> tuple[str, int]:
        """The stage to enter in place of a window's warm-up: that, or waiting, or going on without."""
        name, steps = self._queue[0]
        if profiler_is_active():
            self._waited += 1
            if self._waited <= PATIENCE:
                if self._waited == 1:
                    self._note("the program's own profiler is active: gpuprof waits for it to end")
                self._queue.insert(0, ("warmup", warm_up))
                return "settle", 1
            self._note("the program's own profiler did not end: gpuprof recorded nothing beside it")
            return self._skip_windows()
        why = room_for_window(self.folder)
        if why:
            self._note(f"nothing is recorded: {why}")
            return self._skip_windows()
        shapes = name == "trace" and self.options.get("shapes", True)
        spare = gpu_bytes_to_spare()
        if shapes and spare is not None and spare < SHAPES_GPU_BYTES:
            shapes = False
            self._note(f"shapes are left out: only {spare / 1e9:.1f} GB of GPU memory are free")
        self._queue.pop(0)
        window = Window(self.folder, self.rank, name, self._step + 1, warm_up, steps, shapes=shapes)
        self._window = window
        self._ranges.record(True)
        self._hook_modules()
        window.start(self._metadata())
        if self._leads():
            kind = {"trace": "with shapes" if shapes else "without shapes", "stacks": "with Python stacks"}
            say(
                f"step {self._step + 1}: recording {steps} steps {kind.get(name, 'with memory')}{self._baseline_said()}"
            )
        # Warm-up and window are one stage to count, and two in the lines.
        return "warmup", warm_up + steps

    def _skip_windows(self) -> tuple[str, int]:
        self._queue = [stage for stage in self._queue if stage[0] == "after"]
        return self._queue.pop(0) if self._queue else ("after", 0)

    def _close_window(self) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        window.stop(self._step)
        self._ranges.record(False)
        self._unhook_modules()
        if window.result is not None:
            self._window_rows.append(window.result)
            if self._leads():
                size = window.result["bytes"] / 1e6
                more = any(stage == "warmup" for stage, _ in self._queue)
                after = "" if more else "; the training goes on unprofiled"
                say(f"step {self._step}: {window.result['steps']} steps recorded ({size:,.0f} MB){after}")
        gc.collect()
        if not any(stage == "warmup" for stage, _ in self._queue):
            self._undo_patches()
            if self.options.get("stop"):
                self.stop_asked = True
        self._write_facts()

    def _stop_training(self) -> None:
        """`--stop`: ends the program as sys.exit(0) would, with its own clean-up."""
        if self._leads():
            say("the training ends here, as --stop says")
        self.close()
        raise Stop(0)

    # -- hooks in the model

    def _watch_model(self) -> None:
        if self._model is None or getattr(self._model, "_compiled_call_impl", None) is not None:
            return
        if self._modules is None:
            self._modules = ModuleHooks(self._ranges.open, self.on_call)
        self._modules.watch(self._model)

    def _hook_modules(self) -> None:
        """Ranges around the model and its blocks; not in compiled models, which would be compiled again."""
        self._unhook_modules()
        self._watch_model()
        if self._modules is None or is_compiled(self._model):
            return
        self._modules.name(self._model, "forward")
        levels = self.options.get("modules", 1)
        for module, name in named_blocks(self._model, levels):
            self._modules.name(module, name)

    def _unhook_modules(self) -> None:
        if self._modules is not None:
            self._modules.remove()

    def _undo_patches(self) -> None:
        """Leaves torch as it was found, but for what counts the steps."""
        self._unhook_modules()
        for patch in self._patches:
            patch.undo()
        self._patches.clear()

    # -- what is written

    def _leads(self) -> bool:
        """Whether this process speaks for the run."""
        wanted = self.options.get("ranks")
        return self.rank == min(wanted) if isinstance(wanted, list) and wanted else self.local_rank == 0

    def _note(self, text: str) -> None:
        self._notes.append(text)
        log(self.folder, f"rank {self.rank}: {text}")
        if self._leads():
            say(text)

    def _baseline_said(self) -> str:
        """`; unprofiled 81.2 ms a step`, from what was just timed."""
        row = next((r for r in reversed(self._stage_rows) if r["stage"] == "baseline_free" and r["ns"]), None)
        return f"; unprofiled {row['ns'] / row['steps'] / 1e6:,.1f} ms a step" if row and row["steps"] else ""

    def _metadata(self) -> dict[str, str]:
        return {"gpuprof_run": json.dumps(self.folder.name), "gpuprof_rank": json.dumps(self.rank)}

    def _write_facts(self) -> None:
        facts = {
            "schema": SCHEMA,
            "rank": self.rank,
            "local_rank": self.local_rank,
            "world_size": self.world_size,
            **self._facts,
            "step_source": self.source,
            "steps_seen": self._step,
            "stages": self._stage_rows,
            "windows": self._window_rows,
            "notes": self._notes,
        }
        try:
            write_json(self.folder / rank_file(self.rank), facts)
        except OSError as error:
            log(self.folder, f"rank {self.rank}: {rank_file(self.rank)} is not written: {error}")

    # -- the end

    def close(self) -> None:
        """Ends the recording, keeping what there is; the training may go on. Never raises."""
        if self.ended or os.getpid() != self.pid:
            return
        try:
            self._close_window()
            self._undo_patches()
            self._backward_patch.undo()
            self._end_stage()
            self._flush(time.perf_counter_ns())
            self._write_facts()
        except Exception as error:
            log(self.folder, f"rank {self.rank}: the recording ended with {error!r}")
        finally:
            self.ended = True
            self._model = self._optimizer = None

    def fail(self, error: Exception) -> None:
        """An error of gpuprof's own: the recording ends, the training does not notice."""
        import traceback

        log(self.folder, f"rank {self.rank}: {' | '.join(traceback.format_exception(error))}")
        say(f"recording failed ({type(error).__name__}: {error}); the training goes on without it")
        self._notes.append(f"recording failed: {error!r}")
        self.close()


class Stop(SystemExit):
    """Ends the program for `--stop`: passes through `except Exception`, and leaves by the program's own clean-up."""
