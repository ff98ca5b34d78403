"""A window of steps under torch.profiler, from its warm-up to the file on disk."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from ...runfile import PARTIAL, trace_file
from ..base.ranges import Ranges
from . import allowance
from .memory import MOST_HOST_BYTES, GpuMemory, available_bytes, gpu_bytes_to_spare, gpu_memory, resident_bytes
from .pause import Pause
from .transforms import Transforms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes


LEAST_DISK_BYTES: Assumed[Bytes] = 2 << 30
"""A window of some heavy steps is 100 MB to 1 GB of JSON before it is compressed."""
LEAST_GPU_BYTES: Assumed[Bytes] = 256 << 20
"""CUPTI keeps its buffers on the GPU; with less free memory than this it is not started."""
SHAPES_GPU_BYTES: Assumed[Bytes] = 2 << 30
"""With less free memory, shapes are left out. Recording them keeps no plain tensor alive, but wrapper tensors are: of
torch.func (see `transforms`), and others that are not watched."""


class Window:
    """Records some steps of the calling thread. `step` is called at the end of every step, the first after `start`.

    ranges: opens the range around what is left out.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        name: str,
        first_step: int,
        warm_up: int,
        steps: int,
        ranges: Ranges,
        *,
        shapes: bool,
    ) -> None:
        self.name, self.first_step, self.steps = name, first_step + warm_up, steps
        self._path = folder / trace_file(rank, name)
        self._warm_up, self._first = warm_up, first_step
        self._begun_s = 0.0
        self._memory_before = 0
        self._gpu_memory: GpuMemory | None = None
        self._gpu_bytes_before = self._headroom = 0
        self._ranges = ranges
        self._transforms: Transforms | None = None
        self.notes: list[str] = []
        """Notes on the window for the reader of the recording, once it is closed."""
        self.shapes, self.stacks, self.memory = shapes, name == "stacks", name == "memory"
        self.result: dict[str, Any] | None = None
        """The window's entry in rank<N>.json, once it is closed."""
        self.active = False
        """Whether steps are being kept (not warming up)."""
        self.busy = False
        """Whether a torch profiler is being started or stopped by us at this moment."""
        self._profiler: Any = None
        self._pauses = True
        """Whether its profiler can be paused."""
        self._pause: Pause | None = None
        self._unrecorded: list[dict[str, int]] = []

    def start(self, metadata: dict[str, str]) -> None:
        """Begins to warm up."""
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        options = _options(self.stacks)
        profiler = torch.profiler.profile(
            activities=activities, schedule=self._action, on_trace_ready=self._export, record_shapes=self.shapes,
            with_stack=self.stacks, profile_memory=self.memory, **options,
        )  # fmt: skip
        # Steps have the run's numbers: ProfilerStep#57 is step 57 of steps.jsonl.
        profiler.step_num = self._first
        profiler.current_action = self._action(self._first)
        self._profiler = profiler
        _keep_cuda_graphs_safe()
        self._doing(profiler.start)
        _build_no_events(profiler)
        for key, value in metadata.items():
            profiler.add_metadata_json(key, value)
        self._gpu_memory = gpu_memory()
        if self.shapes and self._gpu_memory is not None:
            self._transforms = Transforms(self._gpu_memory, self._ranges)
        if self._warm_up == 0:
            self._begin()

    def _action(self, step: int) -> Any:
        from torch.profiler import ProfilerAction

        if step < self.first_step:
            return ProfilerAction.WARMUP
        last = self.first_step + self.steps - 1
        if step < last:
            return ProfilerAction.RECORD
        return ProfilerAction.RECORD_AND_SAVE if step == last else ProfilerAction.NONE

    def step(self, ended: int, enough: bool = False) -> bool:
        """A step has ended; returns whether the window is closed now. enough: it may close before its planned end."""
        if self.active:
            if (self._is_enough(ended - self.first_step + 1) or enough) and ended < self.first_step + self.steps - 1:
                self.steps = ended - self.first_step + 1
                self._profiler.current_action = self._action(ended)
        else:
            self._warm(ended)
        begun = time.perf_counter_ns()
        self._doing(self._profiler.step)  # after the last step this stops the profiler and writes the file
        if ended < self.first_step + self.steps - 1:
            return False
        self._end(begun)
        return True

    def stop(self, ended: int) -> None:
        """Closes the window early, keeping its complete steps."""
        if self._profiler is None or self.result is not None:
            return
        self.steps = max(0, ended - self.first_step + 1)
        self._end(time.perf_counter_ns())

    def can_pause(self) -> bool:
        """Whether this window's profiler can pause and resume."""
        able = self._pauses and hasattr(self._profiler, "toggle_collection_dynamic")
        return self.active and self.name == "trace" and able

    def pause(self) -> None:
        """Records nothing until `resume`, except one range around what is left out."""
        if self._pause is not None or not self.can_pause():
            return
        try:
            self._pause = Pause(self._profiler, self._ranges)
        except Exception as error:  # this torch has it, but it fails here: everything is recorded
            self._pauses = False
            self.notes.append(f"a long decode loop was recorded whole: torch.profiler could not pause ({error!r})")

    def resume(self, step: int, forwards: int) -> None:
        """Resumes. step: the current one; forwards: forward passes of a generate loop that were left out."""
        if self._pause is not None:
            pause, self._pause = self._pause, None
            self._unrecorded.append({"step": step, "forwards": forwards, "ns": pause.end()})

    @property
    def paused(self) -> bool:
        """Whether nothing is recorded at this moment."""
        return self._pause is not None

    def _end(self, begun_ns: int) -> None:
        """begun_ns: when the training began to wait for the profiler to stop."""
        if self._pause is not None:
            self.resume(0, 0)
        self._let_transforms_go()
        self._doing(self._profiler.stop)
        self.active = False
        # The reference cycle with the profiler would keep all its events until the next garbage collection.
        self._profiler.schedule = self._profiler.on_trace_ready = None
        self._profiler = None
        if self.result is not None:
            if self._unrecorded:
                self.result["unrecorded"] = self._unrecorded
            self.result["stop_ns"] = time.perf_counter_ns() - begun_ns

    def _doing(self, what: Any) -> None:
        """Calls something that starts or stops our own profiler: see `busy`."""
        self.busy = True
        try:
            what()
        finally:
            self.busy = False

    def _warm(self, ended: int) -> None:
        """A step of the warm-up has ended."""
        if self._gpu_memory is not None:
            self._gpu_memory.headroom()
        if self._transforms is not None:
            self._transforms.end_step()
        if ended + 1 >= self.first_step:
            self._begin()

    def _begin(self) -> None:
        """The next step is kept."""
        self.active = True
        self._begun_s, self._memory_before = time.monotonic(), resident_bytes()
        if self._gpu_memory is not None:
            self._gpu_bytes_before, self._headroom = self._gpu_memory.allocated(), self._gpu_memory.headroom()
        if self._transforms is not None:
            self._transforms.record(allowance.to_keep(self._headroom), self.steps)

    def _is_enough(self, steps: int) -> bool:
        """Whether the window must close although it has only `steps` steps."""
        from ..steps.schedule import WINDOW_S

        too_large = resident_bytes() - self._memory_before > min(MOST_HOST_BYTES, available_bytes())
        too_long = time.monotonic() - self._begun_s > WINDOW_S
        return self._fills_gpu(steps) or too_large or too_long

    def _fills_gpu(self, steps: int) -> bool:
        if self._gpu_memory is None:
            return False
        grown = self._gpu_memory.allocated() - self._gpu_bytes_before
        outgrown = allowance.has_outgrown(grown, steps, self._headroom)
        if outgrown and steps < self.steps:
            self.notes.append(
                f"{steps} instead of {self.steps} steps are recorded: GPU memory grew by {grown / 1e9:.1f} GB in them"
            )
        if self._transforms is None:
            return outgrown
        self._transforms.end_step(grown)
        return outgrown or self._transforms.error is not None

    def _let_transforms_go(self) -> None:
        transforms, self._transforms = self._transforms, None
        if transforms is None:
            return
        transforms.close()
        counted = transforms.allowance
        if counted.left_out:
            self.notes.append(
                f"ops in {counted.left_out} of {counted.calls} calls of torch.func were left out: with their shapes "
                "recorded, their tensors would have stayed in GPU memory"
            )
        if transforms.error is not None:
            self.notes.append(f"calls of torch.func could not be watched: {transforms.error!r}")

    def _export(self, profiler: Any) -> None:
        partial = Path(f"{self._path}{PARTIAL}")
        try:
            profiler.export_chrome_trace(str(partial))
            if not partial.exists():  # torch.profiler says nothing of a write that failed
                limits = "a full disk, a quota, or a limit on file sizes (ulimit -f)"
                raise OSError(f"torch.profiler could not write {partial}: {limits}")
            partial.chmod(0o600)
            partial.replace(self._path)
        except BaseException:  # on a full disk it would be in the way of the next checkpoint
            partial.unlink(missing_ok=True)
            raise
        self.result = {
            "window": self.name,
            "file": self._path.name,
            "first_step": self.first_step,
            "steps": self.steps,
            "shapes": self.shapes,
            "stacks": self.stacks,
            "memory": self.memory,
            "bytes": self._path.stat().st_size,
            "stop_ns": 0,  # known at the end
        }


def _options(stacks: bool) -> dict[str, Any]:
    """Optional arguments for torch.profiler, as far as this torch has them."""
    import torch
    from torch._C import _profiler

    options: dict[str, Any] = {}
    if "acc_events" in inspect.signature(torch.profiler.profile).parameters:
        # Without it torch before 2.13 warns that the events of other cycles are lost. See `_build_no_events`.
        options["acc_events"] = True
    # trace_only: the trace is written from the profiler's own buffers, and no Python object is made for each event.
    # Stacks need those objects: torch says so in a warning.
    both: tuple[dict[str, Any], ...] = (
        {"enable_cuda_sync_events": True, "trace_only": not stacks}, {"enable_cuda_sync_events": True},
    )  # fmt: skip
    for settings in both:
        try:
            options["experimental_config"] = _profiler._ExperimentalConfig(**settings)
            break
        except (AttributeError, TypeError):  # a torch that cannot do that
            pass
    return options


def _build_no_events(profiler: Any) -> None:
    """Keeps a started torch.profiler from building its FunctionEvents when it stops: a Python object for each event,
    and their tree, take ten times as long as the trace file, which does not need them."""
    for one in (profiler, profiler.profiler):
        if getattr(one, "acc_events", False):
            one.acc_events = False


def room_for_window(folder: Path) -> str | None:
    """Why no window can be opened now; None if one can."""
    free = shutil.disk_usage(folder).free
    if free < LEAST_DISK_BYTES:
        return f"only {free / 1e9:.1f} GB are free on the disk of {folder}"
    spare = gpu_bytes_to_spare()
    if spare is not None and spare < LEAST_GPU_BYTES:
        return f"only {spare / 1e6:.0f} MB of GPU memory are free"
    return None


def why_no_stacks() -> str | None:
    """Why Python stacks cannot be recorded by this Python and torch; None if they can."""
    import torch

    python, version = sys.version_info[:3], tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])
    if (3, 12, 0) <= python <= (3, 12, 4):
        return "Python 3.12.0 to 3.12.4 lose calls (pytorch#155446): use a later 3.12"
    if python >= (3, 13) and version < (2, 8):
        return "torch before 2.8 may crash under Python 3.13 (pytorch#144094): use a later torch"
    return None


def _keep_cuda_graphs_safe() -> None:
    """CUPTI must not be torn down where CUDA graphs were captured: their next replay could crash."""
    import gc

    import torch

    if any(issubclass(type(o), torch.cuda.CUDAGraph) for o in gc.get_objects()):
        os.environ["TEARDOWN_CUPTI"] = "0"
        os.environ["DISABLE_CUPTI_LAZY_REINIT"] = "1"
