"""What `diagnose` and `compare` share: printing a result as text, JSON and a page, and limits given as `METRIC:LIMIT`.

Modules are named rather than imported, so that a command does not load what it does not print.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from gpuprof.cli.output import say, show, write


@dataclass(frozen=True, slots=True)
class Printed:
    """One kind of result, and what prints it."""

    name: str
    json: str
    """Module with `dumps`."""
    terminal: str
    """Module with `render(result, width, rows)` and the usual number of ROWS."""
    page: str
    """Function of the pages' module, of a result and a file."""
    markdown: str
    """Function of gpuprof.report.markdown, of a result and a number of rows; empty where there is none."""

    def put(
        self, result: Any, as_json: bool, top: int | None, html: Path | None, markdown: bool = False, **options: Any
    ) -> None:
        """Prints a result with `top` rows, and writes it as a page where a file is given.

        options: further keyword arguments of `render`.
        """
        if as_json:
            write(import_module(self.json).dumps(result) + "\n")
        elif markdown:
            pages = import_module("gpuprof.report.markdown")
            write(getattr(pages, self.markdown)(result, top or pages.ROWS))
        else:
            terminal = import_module(self.terminal)
            show(lambda width: terminal.render(result, width, top or terminal.ROWS, **options))
        if html is not None:
            getattr(import_module("gpuprof.report.page.file"), self.page)(result, html)
            say(f"{self.name}: {html}")


DIAGNOSIS = Printed("report", "gpuprof.diagnosis.json", "gpuprof.report.terminal", "write_report", "diagnosis")
BRIEF = Printed("report", "gpuprof.diagnosis.brief", "gpuprof.report.terminal", "write_report", "diagnosis")
ITERATIONS = Printed("iterations", "gpuprof.diagnosis.iterations.logged_json", "gpuprof.report.logged_terminal", "", "")
ROLES = Printed("roles", "gpuprof.diagnosis.roles.json", "gpuprof.report.roles_terminal", "", "")
COMPARISON = Printed(
    "comparison",
    "gpuprof.diagnosis.comparison.json",
    "gpuprof.report.comparison_terminal",
    "write_comparison",
    "comparison",
)


def gates(module: str) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[Any, ...]]:
    """The callback of an option whose texts a module's `parse` reads; it raises ValueError for invalid ones."""

    def read(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[Any, ...]:
        if not texts:
            return ()
        try:
            return tuple(import_module(module).parse(text) for text in texts)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return read
