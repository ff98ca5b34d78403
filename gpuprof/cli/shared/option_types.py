"""What options hold: counts, and lists separated by commas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click


class WholeNumber(click.ParamType):
    """A whole number from `least` to `most`. The help does not list these bounds, as that of `click.IntRange` does: the
    message about a value outside them names the bound."""

    name = "whole number"

    def __init__(self, least: int, most: int | None = None) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if number < self._least:
            self.fail(f"{number} is less than {self._least}", param, ctx)
        if self._most is not None and number > self._most:
            self.fail(f"{number} is more than {self._most}", param, ctx)
        return number


def names_in(texts: Iterable[str]) -> list[str]:
    """The names in the values of an option that may be repeated, and whose values may be lists: `--to A,B --to C`."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]
