"""The flags that the program declares: their names and what they take, never a value.

They are seen as the program parses its own command line (argparse, and what builds on it, such as HfArgumentParser;
click, and what builds on that): a parser is gone by the time the training begins. Every Python of a run that imports
argparse loads this file, so it imports next to nothing.
"""

from __future__ import annotations

import functools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from gpuprof.units import Characters, Convention, Entries

MOST_FLAGS: Convention[Entries] = 500
_LONGEST_NAME: Convention[Characters] = 100
_TRUE_OR_FALSE = ("bool", "truth")
"""Parts of the names of functions that read true or false."""


class Flags:
    """What the parsers of this process declared."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], str] = {}
        self._undo: list[Callable[[], None]] = []

    def watch_argparse(self, module: Any) -> None:
        """Looks at every ArgumentParser that parses the command line. module: argparse."""
        self._before(module.ArgumentParser, "parse_known_args", self._look_at_parser)

    def watch_click(self, module: Any) -> None:
        """Looks at every command that is called. module: click.core."""
        self._before(module.Command, "parse_args", self._look_at_command)

    def facts(self) -> list[dict[str, Any]]:
        """As rank<N>.json has them: names, and the kind, which says what may follow them."""
        found = {**self._found, **_settings_of_main()}
        return [{"names": list(names), "kind": kind} for names, kind in list(found.items())[:MOST_FLAGS]]

    def stop(self) -> None:
        """Removes the hooks from both libraries; keeps what was seen."""
        while self._undo:
            self._undo.pop()()

    def _before(self, owner: Any, name: str, look: Callable[..., None]) -> None:
        """Looks at the arguments of a method before it runs."""
        method = vars(owner)[name]

        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                look(*args, **kwargs)
            except Exception:  # an error of ours must not keep the program from parsing its command line
                pass
            return method(*args, **kwargs)

        def undo() -> None:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, method)

        setattr(owner, name, wrapper)
        self._undo.append(undo)

    def _look_at_parser(self, parser: Any, args: Any = None, *_: Any, **__: Any) -> None:
        if _is_command_line(args):
            for action in parser._actions:
                self._add(action.option_strings, _kind_of_action(action))

    def _look_at_command(self, command: Any, *_: Any, **__: Any) -> None:
        for option in command.params:
            names = (*option.opts, *option.secondary_opts)
            self._add(names, _kind_of_option(option))

    def _add(self, names: Iterable[str], kind: str | None) -> None:
        given = tuple(n[:_LONGEST_NAME] for n in names if isinstance(n, str) and n.startswith("-"))
        if given and kind is not None and len(self._found) < MOST_FLAGS:
            self._found[given] = kind


def _is_command_line(args: Any) -> bool:
    """Whether a parser was given words of the command line, not words that a library made up."""
    if args is None:
        return True
    words = list(args) if isinstance(args, (list, tuple)) else [""]
    return set(words) <= set(sys.argv) if words else len(sys.argv) <= 1


def _kind_of_action(action: Any) -> str | None:
    """switch (stands alone), on_off (--x and --no-x), boolean (takes true or false) or value; None for --help and the
    like, and for what cannot be set to a value by giving it."""
    name = type(action).__name__
    if name in ("_HelpAction", "_VersionAction"):
        return None
    if name == "BooleanOptionalAction":
        return "on_off"
    if action.nargs == 0:
        return "switch" if getattr(action, "const", None) is True else None
    if action.type is bool:  # bool("False") is True
        return None
    reads = str(getattr(action.type, "__name__", "")).lower()
    return "boolean" if any(part in reads for part in _TRUE_OR_FALSE) else "value"


def _kind_of_option(option: Any) -> str | None:
    if option.secondary_opts:
        return "on_off"
    if getattr(option, "is_flag", False):
        return "switch" if getattr(option, "is_bool_flag", False) else None
    return "boolean" if getattr(option.type, "name", "") == "boolean" else "value"


def _settings_of_main() -> dict[tuple[str, ...], str]:
    """Global variables of the script that its command line overrides as `--name=value`: nanoGPT and its descendants
    list their names in `config_keys`."""
    found = vars(sys.modules.get("__main__", sys)).get("config_keys")
    if not isinstance(found, (list, tuple)):
        return {}
    names = [n for n in found[:MOST_FLAGS] if isinstance(n, str) and n.isidentifier() and len(n) < _LONGEST_NAME]
    return {(f"--{name}",): "assigned" for name in names}


flags = Flags()
"""This process's Flags."""
