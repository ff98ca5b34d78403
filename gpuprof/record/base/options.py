"""The options of a recording, each declared once: name, default, limits and help.

`gpuprof trace` reads them from its command line, with click or without; manifest.json holds their values; the process
that records looks them up there. Tuples rather than dataclasses: importing `dataclasses` takes a third as long as
everything else before the target starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...runfile import MANIFEST, read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Convention, Entries, Levels, Steps


STEPS: Convention[Steps] = 3
"""Steps recorded by default; fewer if a step has many ops (enough_steps.py)."""
MODULES: Convention[Levels] = 1
"""Levels of modules that get ranges."""
STEPS_ALONE: Convention[Steps] = 2
"""Steps that --stacks and --memory record where no number is given."""
LARGEST_NUMBER: Convention[Entries] = 100_000
"""No number on the command line may be larger."""


class Option(NamedTuple):
    """One option: a whole number if it has a smallest value, a switch if its default is true or false, else ranks."""

    name: str
    """As manifest.json has it."""
    default: bool | int | None
    """None leaves the choice to the process that records; for ranks it means all."""
    help: str
    least: int | None = None
    """The smallest number that it takes."""
    metavar: str | None = None
    alone: int | None = None
    """The number it means when given without one; None: a number is required."""

    @property
    def flag(self) -> str:
        """`--gpu-metrics`."""
        return "--" + self.name.replace("_", "-")

    @property
    def opposite(self) -> str | None:
        """`--no-shapes` of a switch that is on unless it is switched off."""
        return f"--no-{self.flag[2:]}" if self.default is True else None


OPTIONS = (
    Option("settle", None, "Let N steps pass before timing begins (default: automatic).", 0, "N"),
    Option(
        "baseline",
        None,
        "Time N steps without a profiler, and N more with a synchronisation after each (default: automatic).",
        1,
        "N",
    ),
    Option("steps", None, f"Record N steps (default {STEPS}; fewer where each has many ops).", 1, "N"),
    Option(
        "stacks",
        0,
        f"Then record N more with Python stacks (default off; N defaults to {STEPS_ALONE}).",
        0,
        "[N]",
        STEPS_ALONE,
    ),
    Option(
        "memory",
        0,
        f"Then record N more with memory events and allocator history (default off; N defaults to {STEPS_ALONE}).",
        0,
        "[N]",
        STEPS_ALONE,
    ),
    Option("sampling", True, "Sample the Python functions of unprofiled steps (default yes)."),
    Option(
        "sample_workers",
        False,
        "Always sample the DataLoader's processes, too (default: if the training waits for batches).",
    ),
    Option("shapes", True, "Record tensor shapes (default yes)."),
    Option("ranks", None, "Record only these ranks (default all).", metavar="0,1"),
    Option("modules", MODULES, f"Depth of the model's modules that get ranges (default {MODULES}).", 0, "LEVELS"),
    Option("nvtx", False, "Emit NVTX ranges even if no tool is attached."),
    Option("nsys", False, "Record with Nsight Systems instead of torch.profiler."),
    Option("gpu_metrics", False, "With --nsys: also sample GPU counters."),
    Option("stop", False, "Stop the training after the recording."),
    Option("report", True, "Write report.html into the run folder (default yes)."),
)
"""In the order of the help."""

DEFAULTS: dict[str, Any] = {option.name: option.default for option in OPTIONS}

_PLANNED = ("settle", "baseline", "steps", "stacks", "memory", "sampling")


def options_of(run: Path) -> dict[str, Any]:
    """The options that a run's manifest holds; one that it lacks is at its default."""
    found = (read_json(run / MANIFEST) or {}).get("options")
    return DEFAULTS | found if isinstance(found, dict) else dict(DEFAULTS)


def planned(options: Mapping[str, Any], **instead: Any) -> dict[str, Any]:
    """The options that `schedule.plan` takes: the chosen numbers of steps, and whether to sample. instead: values that
    replace those of the options."""
    return {name: options[name] for name in _PLANNED if options.get(name) is not None} | instead


def why_not(options: Any) -> str | None:
    """Why a recording cannot have these options, which another process has written; None if it can."""
    if not isinstance(options, dict):
        return "a recording without options"
    for option in OPTIONS:
        value = options.get(option.name, option.default)
        if isinstance(option.default, bool):
            known = isinstance(value, bool)
        elif option.least is not None:
            counts = isinstance(value, int) and not isinstance(value, bool) and option.least <= value <= LARGEST_NUMBER
            known = counts or (value is None and option.default is None)
        else:
            known = value is None or (isinstance(value, list) and all(isinstance(one, int) for one in value))
        if not known:
            return f"{option.flag} cannot be {str(value)[:50]!r}"
    strange = next((str(name)[:50] for name in options if name not in DEFAULTS), None)
    return None if strange is None else f"there is no option {strange!r} of a recording"
