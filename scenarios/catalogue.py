"""What scenarios there are: `scenario.json` says what each is, `truth.json` what was measured of it."""

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
    """One change to the program. `work`: tokens of a step after it, over those before."""

    name: str
    what: str
    finding: str | None
    """The finding of gpuprof that must predict it; None where gpuprof has none."""
    work: float = 1.0
    gains: bool = True
    """False for a change that looks like a fix and measured as none: gpuprof must not advise it."""
    title: str | None = None
    """Of the finding, where it proposes several things."""
    also: tuple[str, ...] = ()
    """Findings whose fixes are made at the same time."""
    arguments: dict[str, str | int | None] = field(default_factory=dict)
    """Of someone else's program: arguments that replace its own; None leaves one out."""
    environment: dict[str, str] = field(default_factory=dict)
    """Likewise, variables that are set for it."""
    patch: str | None = None
    """Likewise, the fix as `gpuprof try` takes it (`input_workers=8`) and makes it from outside."""
    edits: dict[str, str] = field(default_factory=dict)
    """Likewise, pieces of its script's text → what stands there after an edit by hand."""
    expected: tuple[float, float] | None = None
    """How many times as fast a step is with it, as an expert guessed before it was measured."""
    published: float | None = None
    """The same as whoever published the fix measured it, on their machine."""


@dataclass(frozen=True, slots=True)
class Program:
    """A training program that someone else wrote. Either `module` or `script` is given."""

    module: str | None = None
    """Of an installed package, run as `python -m` does."""
    script: str | None = None
    """Path below the folder CHECKOUTS, where the user has put a checkout of its project."""
    version: str | None = None
    """Of a script: the commit that was measured."""
    arguments: dict[str, str | int | None] = field(default_factory=dict)
    """Given as `--name=value`; an empty value gives `--name`."""
    positional: tuple[str, ...] = ()
    tiny: dict[str, str | int | None] = field(default_factory=dict)
    """Arguments for a machine without a GPU."""
    environment: dict[str, str] = field(default_factory=dict)
    material: tuple[str, ...] = ("texts",)
    """What it is given of `scenarios.support.material`."""
    preload: tuple[str, ...] = ()
    """Modules that a timed process imports before its turn: of what takes long to import."""

    def words(self, fix: Fix | None = None, tiny: bool = False) -> list[str]:
        """The program's arguments, with those of a fix in place of its own."""
        arguments = self.arguments | (self.tiny if tiny else {}) | (fix.arguments if fix else {})
        given = [name if value == "" else f"{name}={value}" for name, value in arguments.items() if value is not None]
        return [*self.positional, *given]


@dataclass(frozen=True, slots=True)
class Described:
    """A recording that is too large to keep, as gpuprof described it on the day. `mb`: of its traces, cut and
    compressed."""

    mb: float
    verdict: str
    predicted: dict[str, tuple[float, float]]
    """By fix, milliseconds."""


LISTS = ("says", "says_at_first", "needs", "trace", "where", "causes", "named_by")
"""Keys of scenario.json that are lists of words."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One program. `says`: the bounds that are right for it, any of them; `cause`: likewise, of the first."""

    name: str
    title: str
    why: str
    says: tuple[str, ...]
    cause: str | None
    fixes: tuple[Fix, ...]
    role: Literal["fit", "test"]
    """fit: numbers of `gpuprof/calibration` may be chosen with it in view; test: never, so that its errors are out of
    sample."""
    says_at_first: tuple[str, ...] = ()
    """What was written down as `says` before the program was recorded, where that was wrong."""
    gpus: int = 1
    launcher: str | None = None
    """`torchrun`, where it is started so."""
    needs: tuple[str, ...] = ()
    """Packages in addition to torch, transformers and PEFT."""
    stops: bool = True
    """Whether its training may end once it is recorded."""
    steps_differ: bool = False
    """Whether steps are meant to differ, as when some save: then their mean counts, not the middle one."""
    free: int | None = None
    """Free-running steps that are timed, where more than usual are needed: the mean of steps that differ."""
    drain: int | None = None
    """Of a scenario with `free`: steps that a process takes in its turn before those that are timed, enough to use up
    batches that workers prepared while it waited; None for the usual number."""
    gib: float = 10.0
    """GPU memory that one process takes, at most."""
    described: Described | None = None
    """Its recording, where it is too large to keep."""
    trace: tuple[str, ...] = ()
    """Options for `gpuprof trace`, where steps are too long for its usual number of them."""
    again_of: str | None = None
    """Of a program that was recorded and timed before: the scenario of that first contact."""
    source: str = ""
    """Of a published case: where its cause, fix and times were reported."""
    where: tuple[str, ...] = ()
    """Words of a right answer: the function, module, file or op that costs the time, any of them."""
    largest: str = ""
    """The fix that takes out, by hand, what its author wrote it to waste: it has to be the largest item of the ledger,
    with a word of `where` in it."""
    causes: tuple[str, ...] = ()
    """Of a published case: findings that name its cause, any of them."""
    named_by: tuple[str, ...] = ()
    """Likewise words that name it."""
    drained: int | None = None
    """In a campaign: steps in its turn before those that are timed, enough to use up what workers prepared."""
    seconds: float | None = None
    """In a campaign: of its free stretch, where the usual number is too few steps."""
    program: Program | None = None
    """Someone else's program; None where the scenario's own train.py is the program."""

    @property
    def folder(self) -> Path:
        return ROOT / self.name

    @property
    def module(self) -> str:
        return f"scenarios.{self.name.replace('/', '.')}.train"

    @property
    def slug(self) -> str:
        """Its name as that of a file: a campaign's programs lie two folders deep."""
        return self.name.replace("/", ".")

    @property
    def words(self) -> tuple[str, ...]:
        """What Python runs for a timed process, its switches left out."""
        return ("-m", self.module) if self.program is None else ("-m", "scenarios.support.program", self.name)

    def fix(self, name: str) -> Fix | None:
        """The fix of that name; None for "". KeyError if there is none."""
        found = {"": None} | {fix.name: fix for fix in self.fixes}
        if name not in found:
            raise KeyError(f"{self.name} has no fix {name!r}; it has {', '.join(filter(None, found)) or 'none'}")
        return found[name]

    @property
    def truth(self) -> dict[str, Any] | None:
        """What was measured: `how`, `machine`, `versions` and the processes of each variant; None if nothing was."""
        path = self.folder / "truth.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    @property
    def recording(self) -> Path | None:
        """The run folder that `gpuprof trace` made of it, cut to one step; None where it is too large to keep."""
        path = self.folder / "recording"
        return path if path.exists() else None

    def recorded(self, fix: str = "") -> Path | None:
        """The run folder of one variant where several are kept, `recording.FIX`; None where it was not recorded."""
        path = self.folder / (f"recording.{fix}" if fix else "recording")
        return path if path.exists() else None

    @property
    def fixed(self) -> Path | None:
        """Likewise of it with the first fix; None where it was not recorded, too."""
        path = self.folder / "fixed"
        return path if path.exists() else None

    def measured_ms(self, fix: str = "") -> tuple[float, float] | None:
        """What a step took of the processes that were timed: an interval with four fifths of their values in it.

        Every process has two, that of its free steps and that of its synchronised ones; of all, the lowest and the
        highest tenth are left out.
        """
        values = self.values_ms(fix)
        tenth = len(values) // 10
        return (values[tenth], values[-1 - tenth]) if values else None

    def values_ms(self, fix: str = "") -> list[float]:
        """Those values, ascending; none if it was not measured."""
        truth = self.truth
        return self.steps_ms([process for process in truth["processes"] if process["fix"] == fix] if truth else [])

    def steps_ms(self, processes: list[dict[str, Any]]) -> list[float]:
        """What a step took of these processes, two values of each, ascending."""
        if self.free is not None:  # long enough to be the mean step, which synchronised steps say nothing of
            return sorted(process["free_ms"] for process in processes)
        # Single free steps say little: while the host runs ahead of the GPU they are too short. Their stretch is right.
        middle = mean if self.steps_differ else median
        return sorted(ms for process in processes for ms in (process["free_ms"], middle(process["synchronised_ms"])))

    def variants(self) -> tuple[str, ...]:
        """The program as it is, "", and with each fix."""
        return ("", *(fix.name for fix in self.fixes))


def scenario(name: str) -> Scenario:
    """The one of that name. KeyError, with the names that there are, if there is none."""
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
