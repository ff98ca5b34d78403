"""The scenarios: `scenario.json` describes each, and `truth.json` has its measurements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

ROOT = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Fix:
    """One change to the program. `work`: tokens per step after it, over those before."""

    name: str
    what: str
    finding: str | None
    """gpuprof's finding that must predict it; None where there is none."""
    work: float = 1.0
    gains: bool = True
    """False for a change that looks like a fix but gained nothing when measured: gpuprof must not advise it."""
    title: str | None = None
    """Title of the proposal, where the finding proposes several things."""
    also: tuple[str, ...] = ()
    """Findings whose fixes it makes as well."""
    form: str = ""
    """If it is another form of the finding's fix: `part` (less than that) or `more`. Its gain is then not compared with
    that fix's."""
    arguments: dict[str, str | int | None] = field(default_factory=dict)
    """For a program that others wrote: arguments that replace its own; None removes one."""
    environment: dict[str, str] = field(default_factory=dict)
    """Likewise: environment variables to set."""
    patch: str | None = None
    """Likewise: the fix as an argument of `gpuprof try` (`input_workers=8`), which applies it from outside."""
    edits: dict[str, str] = field(default_factory=dict)
    """Likewise: pieces of its script's text → their replacements, as an edit by hand would make them."""
    expected: tuple[float, float] | None = None
    """The speedup of a step, as an expert guessed it before it was measured."""
    published: float | None = None
    """The speedup that the fix's authors published, on their machine."""


@dataclass(frozen=True, slots=True)
class Program:
    """A training program that others wrote. Either `module` or `script` is given."""

    module: str | None = None
    """Module of an installed package, run like `python -m`."""
    script: str | None = None
    """Path below the folder CHECKOUTS, which contains a checkout of its project."""
    version: str | None = None
    """For a script: the commit that was measured."""
    arguments: dict[str, str | int | None] = field(default_factory=dict)
    """Given as `--name=value`; an empty value gives `--name`."""
    positional: tuple[str, ...] = ()
    tiny: dict[str, str | int | None] = field(default_factory=dict)
    """Arguments for a machine without a GPU."""
    environment: dict[str, str] = field(default_factory=dict)
    material: tuple[str, ...] = ("texts",)
    """The parts of `scenarios.support.material` that it needs."""
    preload: tuple[str, ...] = ()
    """Modules that take long to import, which a timed process imports before its turn."""

    def words(self, fix: Fix | None = None, tiny: bool = False) -> list[str]:
        """The program's arguments, some replaced by those of a fix."""
        arguments = self.arguments | (self.tiny if tiny else {}) | (fix.arguments if fix else {})
        given = [name if value == "" else f"{name}={value}" for name, value in arguments.items() if value is not None]
        return [*self.positional, *given]


@dataclass(frozen=True, slots=True)
class Described:
    """What gpuprof said about a recording that is too large to keep. `mb`: size of its traces, cut and compressed."""

    mb: float
    verdict: str
    predicted: dict[str, tuple[float, float]]
    """Predicted step by fix, milliseconds."""


LISTS = ("says", "says_at_first", "needs", "trace", "where", "causes", "named_by")
"""Keys of scenario.json that are lists of words."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One program. `says`: bounds that are right for it, any of them; `cause`: likewise causes of the first bound."""

    name: str
    title: str
    why: str
    says: tuple[str, ...]
    cause: str | None
    fixes: tuple[Fix, ...]
    role: Literal["fit", "test"]
    """fit: numbers in `gpuprof/calibration` may be fitted to it; test: never, so that its errors are out of sample."""
    says_at_first: tuple[str, ...] = ()
    """The `says` that was written before the program was recorded, where it was wrong."""
    gpus: int = 1
    launcher: str | None = None
    """`torchrun`, where that starts it."""
    needs: tuple[str, ...] = ()
    """Packages in addition to torch, transformers and PEFT."""
    stops: bool = True
    """Whether its training may end once it is recorded."""
    steps_differ: bool = False
    """Whether steps differ on purpose, for example because some save: then their mean counts, not their median."""
    free: int | None = None
    """Free-running steps to time, where more than usual are needed for the mean of steps that differ."""
    drain: int | None = None
    """With `free`: steps that a process takes in its turn before the timed ones, enough to use up the batches that
    workers prepared while it waited; None for the usual number."""
    gib: float = 10.0
    """Most GPU memory that one process takes."""
    described: Described | None = None
    """What gpuprof said about its recording, where that is too large to keep."""
    trace: tuple[str, ...] = ()
    """Options for `gpuprof trace`, where steps are too long for its usual number of them."""
    again_of: str | None = None
    """For a program that was recorded and timed before: the scenario of that first time."""
    source: str = ""
    """For a published case: where its cause, fix and times were reported."""
    where: tuple[str, ...] = ()
    """Words of a right answer, any of them: the function, module, file or op that costs the time."""
    largest: str = ""
    """The fix that removes, by hand, the waste that the program's author put in: it has to be the largest item of the
    ledger, which must contain a word of `where`."""
    causes: tuple[str, ...] = ()
    """For a published case: findings that name its cause, any of them."""
    named_by: tuple[str, ...] = ()
    """Likewise: words that name it."""
    code: str = ""
    """Likewise: the library whose own code is slow in it, as installed or with the fix taken back; empty: it was
    rewritten."""
    drained: int | None = None
    """In a campaign: steps in its turn before the timed ones, enough to use up what workers prepared."""
    seconds: float | None = None
    """In a campaign: seconds of free-running steps, where the usual time is too short."""
    program: Program | None = None
    """A program that others wrote; None where the program is the scenario's own train.py."""

    @property
    def folder(self) -> Path:
        return ROOT / self.name

    @property
    def module(self) -> str:
        return f"scenarios.{self.name.replace('/', '.')}.train"

    @property
    def slug(self) -> str:
        """Its name as a file name: a campaign's programs are two folders deep."""
        return self.name.replace("/", ".")

    @property
    def words(self) -> tuple[str, ...]:
        """What Python runs for a timed process, without switches."""
        return ("-m", self.module) if self.program is None else ("-m", "scenarios.support.program", self.name)

    def fix(self, name: str) -> Fix | None:
        """The fix of that name; None for "". KeyError if there is none."""
        found = {"": None} | {fix.name: fix for fix in self.fixes}
        if name not in found:
            raise KeyError(f"{self.name} has no fix {name!r}; it has {', '.join(filter(None, found)) or 'none'}")
        return found[name]

    @property
    def truth(self) -> dict[str, Any] | None:
        """The measurements: `how`, `machine`, `versions` and the processes of each variant; None if there are none."""
        path = self.folder / "truth.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    @property
    def recording(self) -> Path | None:
        """The run folder of `gpuprof trace`, cut to one step; None where it is too large to keep."""
        path = self.folder / "recording"
        return path if path.exists() else None

    def recorded(self, fix: str = "") -> Path | None:
        """The run folder of one variant where several are kept, `recording.FIX`; None where it was not recorded."""
        path = self.folder / (f"recording.{fix}" if fix else "recording")
        return path if path.exists() else None

    @property
    def fixed(self) -> Path | None:
        """The run folder with the first fix; None where that was not recorded."""
        path = self.folder / "fixed"
        return path if path.exists() else None

    def measured_ms(self, fix: str = "") -> tuple[float, float] | None:
        """The step time over all timed processes: an interval that contains four fifths of their values.

        Each process has two values, one of its free-running steps and one of its synchronised ones; the lowest and the
        highest tenth of all are left out.
        """
        values = self.values_ms(fix)
        tenth = len(values) // 10
        return (values[tenth], values[-1 - tenth]) if values else None

    def values_ms(self, fix: str = "") -> list[float]:
        """These values, ascending; empty if nothing was measured."""
        truth = self.truth
        return self.steps_ms([process for process in truth["processes"] if process["fix"] == fix] if truth else [])

    def steps_ms(self, processes: list[dict[str, Any]]) -> list[float]:
        """The step times of processes, two values each, ascending."""
        if self.free is not None:  # long enough for the mean step, about which synchronised steps say nothing
            return sorted(process["free_ms"] for process in processes)
        # Single free-running steps are too short while the host runs ahead of the GPU; only their mean is right.
        middle = mean if self.steps_differ else median
        return sorted(ms for process in processes for ms in (process["free_ms"], middle(process["synchronised_ms"])))

    def variants(self) -> tuple[str, ...]:
        """The unmodified program, "", and the names of its fixes."""
        return ("", *(fix.name for fix in self.fixes))


def scenario(name: str) -> Scenario:
    """The scenario of that name. KeyError, which lists the names, if there is none."""
    path = ROOT / name / "scenario.json"
    if not path.is_file():
        raise KeyError(f"no scenario {name!r}; there are {', '.join(names())}")
    document = json.loads(path.read_text(encoding="utf-8"))
    fixes = tuple(_fix(fix) for fix in document.pop("fixes"))
    lists = {key: tuple(document.pop(key)) for key in LISTS if key in document}
    large = document.pop("described", None)
    described = Described(**large) if large else None
    program = _program(document.pop("program", None))
    return Scenario(name=name, fixes=fixes, described=described, program=program, **lists, **document)


def _fix(document: dict[str, Any]) -> Fix:
    expected, also = document.pop("expected", None), tuple(document.pop("also", ()))
    return Fix(**document, also=also, expected=tuple(expected) if expected else None)


def _program(document: dict[str, Any] | None) -> Program | None:
    if document is None:
        return None
    lists = {key: tuple(document.pop(key)) for key in ("positional", "preload", "material") if key in document}
    return Program(**lists, **document)


def names() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("*/scenario.json"))


def campaign_names() -> list[str]:
    """Programs for `python -m scenarios campaign`: `programs/NAME`, and published cases, `cases/NAME`."""
    found = (path for place in ("programs", "cases") for path in ROOT.glob(f"{place}/*/scenario.json"))
    return sorted(str(path.parent.relative_to(ROOT)) for path in found)


def scenarios() -> Iterator[Scenario]:
    return map(scenario, names())
