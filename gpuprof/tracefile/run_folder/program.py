"""Facts about a run's training program, from its run folder and validated: classes, fields, flags and warnings.
Names end up in the code of fixes, so only valid names are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from gpuprof.tracefile.run_folder.untrusted import LARGEST_NUMBER, Key, Line, Positive
from gpuprof.units import Characters, Convention, Entries

_MOST_WARNINGS: Convention[Entries] = 20
_LONGEST_SOURCE: Convention[Characters] = 100
_KINDS = ("switch", "on_off", "boolean", "value", "assigned")
_SWITCHES = (
    "anomaly", "deterministic", "cudnn_benchmark", "cudnn_deterministic",
    "no_flash_sdp", "no_mem_efficient_sdp", "no_cudnn_sdp",
)  # fmt: skip

_Identifier = Annotated[str, Meta(pattern=r"^(?a:[A-Za-z_]\w{0,99})\Z")]
_Dotted = Annotated[str, Meta(pattern=r"^(?a:[A-Za-z_][\w.]{0,199})\Z")]
_FlagName = Annotated[str, Meta(pattern=r"^(?a:--?[A-Za-z][\w.-]{0,99})\Z")]
_Choice = Annotated[str, Meta(pattern=r"^[\w.-]{1,40}\Z")]
_Kind = Annotated[str, Meta(pattern=rf"^({'|'.join(_KINDS)})\Z")]
_Switch = Annotated[str, Meta(pattern=rf"^({'|'.join(_SWITCHES)})\Z")]
_Int = Annotated[int, Meta(gt=-LARGEST_NUMBER, lt=LARGEST_NUMBER)]
_Float = Annotated[float, Meta(gt=-LARGEST_NUMBER, lt=LARGEST_NUMBER)]


@dataclass(frozen=True, slots=True)
class ClassName:
    """A class of the program."""

    name: Annotated[_Identifier, Key("class")]
    module: _Dotted | None
    bases: tuple[_Dotted, ...] = ()
    """Base classes with their modules, nearest first."""

    @property
    def packages(self) -> frozenset[str]:
        """Top-level packages of the class and of its bases."""
        return frozenset(each.partition(".")[0] for each in (self.module or "", *self.bases))


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that the program declared."""

    names: Annotated[tuple[_FlagName, ...], Meta(min_length=1)]
    kind: _Kind
    """What it takes: nothing (switch); nothing, with an opposite flag (on_off); true or false (boolean); a value
    (value); a value after `=` (assigned)."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning about a slow path."""

    source: Annotated[str, Meta(min_length=1, max_length=_LONGEST_SOURCE)] | None
    text: Line
    count: Positive = 1


@dataclass(frozen=True, slots=True)
class Reference:
    """Modules of one class that use a function that a library warned is slow."""

    name: Annotated[_Identifier, Key("class")]
    """Name of the class."""
    function: _Identifier
    modules: Positive = 1


@dataclass(frozen=True, slots=True)
class Program:
    """A rank's facts about its program."""

    trainer: ClassName | None = None
    arguments: ClassName | None = None
    fields: Annotated[tuple[_Identifier, ...], Key("arguments", "fields")] = ()
    """Field names of the arguments' class."""
    settings: Annotated[dict[_Identifier, bool | _Int | _Float | _Choice], Key("arguments", "set")] = field(
        default_factory=dict
    )
    """Values of some fields."""
    autocast: _Choice | None = None
    """`bfloat16` or another dtype, or `off`; None if no forward pass was seen."""
    switches: tuple[_Switch, ...] | None = None
    """Switches of torch that are on: anomaly detection, deterministic algorithms, cuDNN's search for the quickest
    algorithm, its restriction to deterministic ones, and kernels of attention that are switched off; None where the
    recorder did not look."""
    flags: tuple[Flag, ...] = ()
    warnings: Annotated[tuple[Warned, ...], Meta(max_length=_MOST_WARNINGS)] = ()
    reference: tuple[Reference, ...] = ()
