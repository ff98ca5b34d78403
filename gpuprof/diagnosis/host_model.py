"""What the CPU's functions cost, as a diagnosis has it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.value_range import Range


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A Python function, or a line of one that calls the model, in sampled steps without a profiler."""

    function: str
    """Its qualified name (Python 3.10: its name)."""
    file: str
    """Relative to the working directory, the import path, or the folder of installed packages."""
    line: int
    """The line of it that most samples were at."""
    kind: str
    """Whose code it is: own | library | standard | generated."""
    called_from: str | None
    """The user's line that leads to it most often, `file:line`, where the function is not the user's."""
    phase: str | None
    """The part of the step that most of it is in: data | forward | backward | optimizer | other."""
    ns: Range
    """CPU time a step, of what it calls too, and its 80 % interval."""
    self_ns: float
    """Of `ns`, what passes in none of the functions that it calls: its own lines and the native code that they call."""
    samples: int
    gpu_waits: float | None
    """Share of its time in which the GPU waits for the CPU, 0 to 1; None where that is not known."""
    step_ns: Range | None
    """The mean step if its CPU time were 0 and the GPU's work the same; None where it cannot be placed in the recorded
    step."""
    why_unknown: str | None
    """Why `step_ns` is not known."""
    runs: str | None = None
    """forward | backward: the line only runs the model's modules or the backward pass, whose native code has no name
    of its own; None for code that can be changed."""

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class WorkerFunction:
    """A Python function of the DataLoader's workers."""

    function: str
    file: str
    line: int
    """The line of it that most samples were at."""
    kind: str
    """own | library | standard | generated."""
    share: Range
    """Of the workers' time, 0 to 1, what it calls included, and its 80 % interval (binomial)."""

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class LoaderWorkers:
    """What the DataLoader's workers do in unprofiled steps."""

    workers: int
    samples: int
    busy: float
    """Share of their time in which they make a batch, 0 to 1; otherwise they wait to be asked, or hand one over."""
    functions: tuple[WorkerFunction, ...]
    """Most time first: the user's own, and the first function of a library where none of those is above it."""


@dataclass(frozen=True, slots=True)
class Host:
    """The Python functions of unprofiled steps."""

    samples: int
    steps: int
    step_ns: float
    """The mean step of the sampled stretch."""
    unread: int
    """Samples that made no sense and are left out."""
    functions: tuple[HostFunction, ...]
    """Those that only run a pass last; then by what the step gains if they were free, then by their time."""
    workers: LoaderWorkers | None = None
    """None where the DataLoader's workers were not sampled."""
