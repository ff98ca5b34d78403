"""What the CPU's functions cost, as a diagnosis has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuprof.bounds import OneOf, Positive, Share
from gpuprof.diagnosis.value_range import Range


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A Python function, or a line of one that calls the model, in sampled steps without a profiler."""

    function: str
    """Its qualified name (Python 3.10: its name)."""
    file: str
    """Relative to the working directory, the import path or the folder of installed packages."""
    line: int
    """The line of it that most samples were at."""
    kind: Annotated[str, OneOf(("own", "library", "standard", "generated"))]
    """Whose code it is: own | library | standard | generated."""
    called_from: str | None
    """The user's line that leads to it most often, where the function is not the user's."""
    phase: Annotated[str, OneOf(("data", "forward", "backward", "optimizer", "other"))] | None
    """The part of the step that most of it is in: data | forward | backward | optimizer | other."""
    ns: Range
    """CPU time a step, of what it calls too, and its 80 % interval."""
    self_ns: float
    """Of `ns`, what passes in none of the functions that it calls: its own lines and the native code that they call."""
    samples: Positive[int]
    gpu_waits: Share | None
    """Share of its time in which the GPU waits for the CPU; None: not known."""
    step_ns: Range | None
    """The mean step if its CPU time were 0 and the GPU's work the same; None where it cannot be placed in the recorded
    step."""
    why_unknown: str | None
    """Why `step_ns` is not known."""
    runs: Annotated[str, OneOf(("forward", "backward"))] | None = None
    """The line only runs the model's modules or the backward pass, whose native code has no name of its own; None: code
    of its own."""

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class WorkerFunction:
    """A Python function of the DataLoader's workers."""

    function: str
    """Its qualified name."""
    file: str
    line: int
    """The line of it that most samples were at."""
    kind: Annotated[str, OneOf(("own", "library", "standard", "generated"))]
    """own | library | standard | generated."""
    share: Range
    """Of the workers' time, what it calls included, and its 80 % interval."""

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class LoaderWorkers:
    """What the DataLoader's workers do in unprofiled steps."""

    workers: int
    """Processes that were sampled."""
    samples: Positive[int]
    busy: Share
    """Share of their time in which they make a batch, 0 to 1; otherwise they wait to be asked, or hand one over."""
    functions: tuple[WorkerFunction, ...]
    """Most time first: the user's own, and the first function of a library where none of those is above it."""


@dataclass(frozen=True, slots=True)
class Host:
    """The Python functions of unprofiled steps."""

    samples: Positive[int]
    steps: Positive[int]
    """Steps that were sampled."""
    step_ns: float
    """The mean step of the sampled stretch."""
    unread: int
    """Samples that made no sense and are left out."""
    functions: tuple[HostFunction, ...]
    """Those that only run a pass (runs) last; then by what the step gains if they were free, then by their time."""
    workers: LoaderWorkers | None = None
    """What the DataLoader's workers do, with --sample-workers; None where they were not sampled."""
