"""The cost of Python functions on the CPU, as part of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuprof.bounds import OneOf, Positive, Share
from gpuprof.value_range import Range


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A Python function, or a line of one that calls the model, in sampled steps without a profiler."""

    function: str
    """Qualified name (Python 3.10: plain name)."""
    file: str
    """Relative to the working directory, the import path or the folder of installed packages."""
    line: int
    """The line of it that most samples were at."""
    kind: Annotated[str, OneOf(("own", "library", "standard", "generated"))]
    """Whose code it is: own | library | standard | generated."""
    called_from: str | None
    """The user's line from which it is called most often, if the function itself is not the user's."""
    phase: Annotated[str, OneOf(("data", "forward", "backward", "optimizer", "other"))] | None
    """The part of the step with most of its samples: data | forward | backward | optimizer | other."""
    ns: Range
    """CPU time per step including what it calls, with its 80 % interval."""
    self_ns: float
    """Part of `ns` outside other Python functions that it calls: its own lines and the native code that they call."""
    samples: Positive[int]
    gpu_waits: Share | None
    """Share of its time in which the GPU waits for the CPU; None: unknown."""
    step_ns: Range | None
    """The mean step if its CPU time were 0 and the GPU's work unchanged; None if it cannot be located in the recorded
    step."""
    why_unknown: str | None
    """Why `step_ns` is unknown."""
    runs: Annotated[str, OneOf(("forward", "backward"))] | None = None
    """The pass whose modules or native code this line merely calls: forward | backward; None: the line has its own
    cost."""

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
    """Share of the workers' time including what it calls, with its 80 % interval."""

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class LoaderWorkers:
    """What the DataLoader's workers do in unprofiled steps."""

    workers: int
    """Number of sampled processes."""
    samples: Positive[int]
    busy: Share
    """Share of their time in which they make a batch, 0 to 1; otherwise they wait for a request or hand a batch
    over."""
    functions: tuple[WorkerFunction, ...]
    """Most time first: the user's functions, and a library's outermost function if no user function calls it."""


@dataclass(frozen=True, slots=True)
class Host:
    """The Python functions of unprofiled steps."""

    samples: Positive[int]
    steps: Positive[int]
    """Number of sampled steps."""
    step_ns: float
    """The mean step of the sampled stretch."""
    unread: int
    """Samples that could not be read consistently and are left out."""
    functions: tuple[HostFunction, ...]
    """Those that only run a pass (`runs`) last; then by how much the step gains without them, then by their time."""
    workers: LoaderWorkers | None = None
    """What the DataLoader's workers do (--sample-workers); None if they were not sampled."""
