"""`gpuprof explain FINDING`: what a finding means, how it is told, how its gain is computed, and when it is wrong."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from gpuprof.errors import GpuprofError


@click.command(short_help="Explain a finding: what it means, how its gain is computed.")
@click.argument("finding", required=False)
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FOLDER", help="Write all pages as Markdown.")
def command(finding: str | None, markdown: Path | None) -> int:
    """Explain what FINDING means, how it is detected, how the gain is computed, and when that is wrong.

    FINDING is a name from the list, words of its title, a common name of the remedy (packing, liger, gradient
    checkpointing, pinned memory …), or the number of a fix in the latest run. Without FINDING: list all findings.
    """
    from gpuprof.cli.output import show
    from gpuprof.report.pages import contents, render

    pages = _pages()
    if markdown is not None:
        _write(pages, markdown)
        return 0
    if finding is None:
        show(lambda width: contents(list(pages.values()), width))
        return 0
    key = finding.strip().lower().replace("-", "_")
    if key not in pages:
        near = difflib.get_close_matches(key, pages, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "gpuprof explain lists them all"
        raise GpuprofError(f"there is no finding {finding!r}; {hint}")
    show(lambda width: render(pages[key], width))
    return 0


def _write(pages: dict, folder: Path) -> None:
    """One file per page, and an index."""
    from gpuprof.report.pages import index, markdown

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for page in pages.values():
            (folder / f"{page.id}.md").write_text(markdown(page), encoding="utf-8")
        (folder / "README.md").write_text(index(list(pages.values())), encoding="utf-8")
    except OSError as error:
        raise GpuprofError(f"{folder}: the pages cannot be written: {error.strerror}") from error


def _pages() -> dict:
    from gpuprof.diagnosis.findings import PAGES

    return {page.id: page for page in PAGES}
