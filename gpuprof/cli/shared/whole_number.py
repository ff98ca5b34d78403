"""The type of options that count something."""

from __future__ import annotations

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
