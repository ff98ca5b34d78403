"""What a patch gets: its value, the moments at which it can hook in, and the types with which it reports the
outcome."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from ..model.trainer_arguments import CLASS

Settings = dict[str, Any]


class Known(NamedTuple):
    """What a run knows of a trainer's arguments."""

    now: Mapping[str, Any]
    """Their values."""
    fields: Collection[str]
    """The names of the fields that their class has; empty where it is not known."""


class Patch(NamedTuple):
    """A patch's description in `gpuprof try --list`."""

    name: str
    does: str
    """What is changed, in one line."""
    line: str
    """The line that does the same in the script; `{value}` stands for the value."""
    cannot: str
    """Where it cannot be applied from outside."""
    default: str = ""
    """The value where none is given; empty: it takes none, or has to be given one (`values`)."""
    values: str = ""
    """The values it takes, for the help."""
    check: Callable[[str], bool] = lambda value: not value
    """Whether a value is valid."""
    fields: Callable[[str, Known], tuple[Settings, Settings] | None] = lambda value, known: None
    """`fields(value, known)`: the fields of transformers' arguments that the fix needs, and those that also help; None
    where only the patch can apply it. The program's own flags for these fields are tried before the patch."""
    group: str = ""
    """A combination has at most one patch of each group; empty: it can be combined with all others."""


class Proof(NamedTuple):
    """Whether a patch took effect in this process, and what shows it, or why not."""

    applied: bool
    text: str


def whole_number(least: int, most: int) -> Callable[[str], bool]:
    """A check for a whole number in these bounds, both included."""
    return lambda value: value.isascii() and value.isdigit() and least <= int(value) <= most


Choose = Callable[[Any], Settings]


class Hub:
    """What all patches of a process share: which patch waits for which import or moment of the training."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[Any], None]]] = {}
        self._choices: list[Choose] = []
        self._first_models: list[Callable[[list[Any]], None]] = []
        self.arguments: Any = None
        """The trainer's arguments, once they exist."""
        self.refusals: dict[str, str] = {}
        """Patch → why it did not take effect."""

    # -- imports

    def on_import(self, module: str, callback: Callable[[Any], None]) -> None:
        """Calls back once this module has been executed; at once where it has been."""
        found = sys.modules.get(module)
        if found is not None and not getattr(getattr(found, "__spec__", None), "_initializing", False):
            callback(found)
        else:
            self._waiting.setdefault(module, []).append(callback)

    def wanted(self) -> dict[str, Callable[[Any], None]]:
        """Module → what to call with it, for `arm.ImportWatch`."""

        def together(callbacks: list[Callable[[Any], None]]) -> Callable[[Any], None]:
            def call(module: Any) -> None:
                errors = []
                for callback in callbacks:
                    try:
                        callback(module)
                    except Exception as error:  # one patch must not keep the others from their module
                        errors.append(error)
                if errors:
                    raise errors[0]

            return call

        return {module: together(callbacks) for module, callbacks in self._waiting.items()}

    # -- the trainer's arguments

    def set_arguments(self, choose: Choose) -> None:
        """`choose(arguments)` returns which fields of a transformers.TrainingArguments get another value.
        It is called when the object has been filled in, before its own checks, and again when a trainer takes it,
        since programs change it in between.
        """
        self._choices.append(choose)

    def change_arguments(self, arguments: Any) -> None:
        """Makes the changes that patches have chosen."""
        for choose in self._choices:
            for name, value in choose(arguments).items():
                object.__setattr__(arguments, name, value)
        self.arguments = arguments

    # -- the models

    def on_first_models(self, callback: Callable[[list[Any]], None]) -> None:
        """Calls back after the first step, with the outermost modules that were trained in it."""
        self._first_models.append(callback)

    @property
    def wants_models(self) -> bool:
        return bool(self._first_models)

    def first_models(self, models: list[Any]) -> None:
        """The first step is over."""
        callbacks, self._first_models = self._first_models, []
        for callback in callbacks:
            callback(models)


class Context:
    """The hub as one patch sees it.

    by_flag: the program was given flags of its own for this fix, which should set these fields of a trainer's
    arguments. None: the patch makes the change.
    """

    def __init__(self, hub: Hub, name: str, value: str, by_flag: Settings | None = None) -> None:
        self.hub, self.name, self.value, self.by_flag = hub, name, value, by_flag

    def on_import(self, module: str, callback: Callable[[Any], None]) -> None:
        """Calls back once this module has been executed. An error in that is the reason why nothing was applied."""

        def guarded(found: Any) -> None:
            try:
                callback(found)
            except Exception as error:
                self.refuse(f"{type(error).__name__}: {error}")

        self.hub.on_import(module, guarded)

    def refuse(self, why: str) -> None:
        """The patch cannot take effect here."""
        self.hub.refusals.setdefault(self.name, " ".join(why.split())[:500])

    @property
    def only_looks(self) -> bool:
        """Whether the patch changes nothing and only checks that the program's own flags do it."""
        return self.by_flag is not None

    def as_flagged(self, arguments: Any) -> Proof:
        """Whether the program's own flags have set a trainer's arguments as they should."""
        found = {name: getattr(arguments, name, None) for name in self.by_flag or ()}
        return Proof(found == self.by_flag, ", ".join(f"{name}={value}" for name, value in found.items()))

    def proof_of_arguments(self, look: Callable[[Any], Proof]) -> Callable[[], Proof]:
        """The proof of a patch that changes a trainer's arguments: `look` checks their final values."""

        def proof() -> Proof:
            found = self.hub.arguments
            if found is None:
                return Proof(False, f"the program makes no {CLASS}")
            return self.as_flagged(found) if self.only_looks else look(found)

        return proof

    @property
    def refusal(self) -> str | None:
        return self.hub.refusals.get(self.name)


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces an attribute by `make(attribute)`, which keeps its name, its signature and its documentation."""
    import functools

    before = getattr(owner, name)
    setattr(owner, name, functools.wraps(before)(make(before)))


def has_gpu() -> bool:
    """Whether the program can use an NVIDIA or AMD GPU; does not initialise it."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())
