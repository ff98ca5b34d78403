"""How each kind of result is printed: as text, JSON, Markdown and a page; and limits given as `METRIC:LIMIT`.

Methods import what they print with, so that a command does not load what it does not print.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from gpuprof.cli.shared.output import say, show, write

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpuprof.diagnosis.comparison.comparison import Comparison
    from gpuprof.diagnosis.iterations.logged_model import LoggedIterations
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.diagnosis.roles.model import Roles
    from gpuprof.memory.memory_report import MemoryReport

R = TypeVar("R", contravariant=True)


class Renderer(Protocol[R]):
    """Prints one kind of result."""

    name: str
    """What a page of it is called."""

    def json(self, result: R) -> str:
        """The JSON text, without a newline at its end."""
        ...

    def text(self, result: R, width: int, rows: int | None, **options: Any) -> RenderableType:
        """For a terminal of `width` columns; `rows`: of its tables, None: the usual number."""
        ...

    def markdown(self, result: R, rows: int | None) -> str:
        """For a comment on a pull request. Raises TypeError where there is none: no command offers it then."""
        raise TypeError(f"there is no Markdown of {self.name}")

    def page(self, result: R, path: Path) -> None:
        """Writes one HTML file. Raises TypeError as `markdown` does."""
        raise TypeError(f"there is no page of {self.name}")


def put(
    renderer: Renderer[R], result: R, as_json: bool, top: int | None, html: Path | None = None, markdown: bool = False,
    **options: Any,
) -> None:  # fmt: skip
    """Prints a result with `top` rows, and writes it as a page where a file is given; options: of `Renderer.text`."""
    if as_json:
        write(renderer.json(result) + "\n")
    elif markdown:
        write(renderer.markdown(result, top))
    else:
        show(lambda width: renderer.text(result, width, top, **options))
    if html is not None:
        renderer.page(result, html)
        say(f"{renderer.name}: {html}")


class OfDiagnosis(Renderer["Diagnosis"]):
    name = "report"

    def json(self, result: Diagnosis) -> str:
        from gpuprof.diagnosis.written.diagnosis_json import dumps

        return dumps(result)

    def text(self, result: Diagnosis, width: int, rows: int | None, **options: Any) -> RenderableType:
        from gpuprof.report.terminal.terminal import ROWS, render

        return render(result, width, rows or ROWS, **options)

    def markdown(self, result: Diagnosis, rows: int | None) -> str:
        from gpuprof.report.markdown import ROWS, diagnosis

        return diagnosis(result, rows or ROWS)

    def page(self, result: Diagnosis, path: Path) -> None:
        from gpuprof.report.page.file import write_report

        write_report(result, path)


class InBrief(OfDiagnosis):
    """A diagnosis whose JSON has only what agents need."""

    def json(self, result: Diagnosis) -> str:
        from gpuprof.diagnosis.written.brief import dumps

        return dumps(result)


class OfIterations(Renderer["LoggedIterations"]):
    name = "iterations"

    def json(self, result: LoggedIterations) -> str:
        from gpuprof.diagnosis.iterations.logged_model import DOCUMENT

        return DOCUMENT.dumps(result)

    def text(self, result: LoggedIterations, width: int, rows: int | None, **options: Any) -> RenderableType:
        from gpuprof.report.terminal.logged_terminal import ROWS, render

        return render(result, width, rows or ROWS)


class OfRoles(Renderer["Roles"]):
    name = "roles"

    def json(self, result: Roles) -> str:
        from gpuprof.diagnosis.roles.model import DOCUMENT

        return DOCUMENT.dumps(result)

    def text(self, result: Roles, width: int, rows: int | None, **options: Any) -> RenderableType:
        from gpuprof.report.terminal.roles_terminal import ROWS, render

        return render(result, width, rows or ROWS)


class OfMemory(Renderer["MemoryReport"]):
    name = "memory"

    def json(self, result: MemoryReport) -> str:
        from gpuprof.memory.memory_report import DOCUMENT

        return DOCUMENT.dumps(result)

    def text(self, result: MemoryReport, width: int, rows: int | None, **options: Any) -> RenderableType:
        from gpuprof.report.terminal.memory_terminal import ROWS, render

        return render(result, width, rows or ROWS)

    def page(self, result: MemoryReport, path: Path) -> None:
        from gpuprof.report.page.file import write_memory

        write_memory(result, path)


class OfComparison(Renderer["Comparison"]):
    name = "comparison"

    def json(self, result: Comparison) -> str:
        from gpuprof.diagnosis.comparison.comparison import DOCUMENT

        return DOCUMENT.dumps(result)

    def text(self, result: Comparison, width: int, rows: int | None, **options: Any) -> RenderableType:
        from gpuprof.report.terminal.comparison_terminal import ROWS, render

        return render(result, width, rows or ROWS)

    def markdown(self, result: Comparison, rows: int | None) -> str:
        from gpuprof.report.markdown import ROWS, comparison

        return comparison(result, rows or ROWS)

    def page(self, result: Comparison, path: Path) -> None:
        from gpuprof.report.page.file import write_comparison

        write_comparison(result, path)


def gates(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[Any, ...]]:
    """The callback of an option whose texts `parse` reads; it raises ValueError for invalid ones."""

    def read(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[Any, ...]:
        try:
            return tuple(parse(text) for text in texts)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return read
