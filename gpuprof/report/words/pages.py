"""The page of a finding, on the terminal and as Markdown, both from the text next to its code."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.text import Text

from gpuprof.diagnosis.detect.declared.proposal import Page
from gpuprof.report.lines import Column, table

SECTIONS = (
    ("means", "What it means"),
    ("detected", "How it is detected"),
    ("gain", "How the gain is computed"),
    ("wrong", "When it is wrong"),
)


def markdown(page: Page) -> str:
    """The page as Markdown."""
    parts = [f"# {page.title}", f"`{page.id}`{_applies(page)}"]
    parts += [f"## {title}\n\n{getattr(page, name).strip()}" for name, title in SECTIONS]
    return "\n\n".join(parts) + "\n"


def _applies(page: Page) -> str:
    """` · training only`, if the finding applies to one kind of program only."""
    return f" · {page.applies[0]} only" if len(page.applies) == 1 else ""


def index(pages: Sequence[Page]) -> str:
    """A list of all pages as Markdown, each linked to its file."""
    rows = [f"- [{page.title}]({page.id}.md) (`{page.id}`)" for page in pages]
    head = "# Findings\n\nWhat gpuprof can find, each with how it is detected and how its gain is computed."
    return f"{head}\n\n" + "\n".join(rows) + "\n"


def render(page: Page, width: int) -> RenderableType:
    """The page for a terminal."""
    parts: list[RenderableType] = [Text(page.title, "bold"), Text(f"{page.id}{_applies(page)}", "dim")]
    for name, title in SECTIONS:
        parts += [Text(""), Text(title, "bold"), Markdown(getattr(page, name).strip())]
    return Group(*parts)


def contents(pages: Sequence[Page], width: int) -> RenderableType:
    """All findings, one line each."""
    rows = [(page.id, page.title) for page in pages]
    return Group(*table(rows, (Column("bold"), Column(elastic=True)), width))
