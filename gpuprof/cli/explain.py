"""`gpuprof explain NAME`: what a finding or a word of the screen means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.shared.recordings import RECORDING
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.diagnosis.detect.declared.declaration import Declaration
    from gpuprof.diagnosis.detect.declared.proposal import Page
    from gpuprof.diagnosis.result.diagnosis import Diagnosis


@click.command(short_help="Explain a finding, a word on the screen, or what a line of code costs.")
@click.argument("finding", metavar="[NAME]", required=False)
@click.argument("path", required=False, type=RECORDING)
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FOLDER", help="Write all pages as Markdown.")
def command(finding: str | None, path: str | None, markdown: Path | None) -> int:
    """Explain a finding, a word on the screen, or a line of code.

    NAME is a finding from the list, words of its title, a common name of the remedy (packing, liger, gradient
    checkpointing, pinned memory …), or the number of a fix in the latest run: what it means, how it is detected, how
    the gain is computed, and when that is wrong. Without NAME: list all findings and words.

    NAME may be any word of terminal and report, such as HOST-BOUND, launch, reach or MFU.

    NAME may also be FILE:LINE, as in train.py:27: what that line costs in unprofiled steps of the run PATH (the latest
    if not given), and the step if it were free.
    """
    findings = _findings()
    pages = {one.id: one.page for one in findings}
    if markdown is not None:
        _write(pages, markdown)
        return 0
    if finding is None:
        _list(list(pages.values()))
        return 0
    from gpuprof.cli.shared.output import say, show, write
    from gpuprof.report.words.explained import explanation, place_of

    if path is not None and place_of(finding) is None:
        raise GpuprofError("a run can only be named after FILE:LINE; a finding is the same for all runs")
    found = explanation(finding, findings, lambda: _diagnosed(path))
    if found.said:
        say(found.said)
    if found.lines:
        write("".join(f"{line}\n" for line in found.lines))
    else:
        show(found.render)
    return 0


def _list(pages: list[Page]) -> None:
    """Prints all findings and words."""
    from rich.console import Group
    from rich.text import Text

    from gpuprof.cli.shared.output import show
    from gpuprof.report.words import glossary
    from gpuprof.report.words.pages import contents

    show(lambda width: Group(contents(pages, width), Text(""), glossary.contents()))


def _diagnosed(path: str | None) -> tuple[str, Diagnosis]:
    """(the named run, else the latest; its diagnosis)."""
    from gpuprof.cli.shared.recordings import diagnose_given, given

    run = given(path)
    return str(run), diagnose_given(run)


def _write(pages: dict[str, Page], folder: Path) -> None:
    """One file per page, and an index."""
    from gpuprof.report.words.pages import index, markdown

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for page in pages.values():
            (folder / f"{page.id}.md").write_text(markdown(page), encoding="utf-8")
        (folder / "README.md").write_text(index(list(pages.values())), encoding="utf-8")
    except OSError as error:
        raise GpuprofError(f"{folder}: the pages cannot be written: {error.strerror}") from error


def _findings() -> tuple[Declaration, ...]:
    """All kinds of findings; plug-ins that cannot be loaded are named on stderr."""
    from gpuprof.cli.shared.output import say
    from gpuprof.diagnosis.plug_ins import declarations, plug_ins

    for failure in plug_ins().failures:
        say(failure)
    return declarations()
