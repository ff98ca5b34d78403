"""`gpuprof explain NAME`: what a finding or a word of the screen means."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.recordings import RECORDING
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.diagnosis.detect.declaration import Declaration
    from gpuprof.diagnosis.detect.proposal import Page


@click.command(short_help="Explain a finding, a word of the screen, or what a line of code costs.")
@click.argument("finding", metavar="[NAME]", required=False)
@click.argument("path", required=False, type=RECORDING)
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FOLDER", help="Write all pages as Markdown.")
def command(finding: str | None, path: str | None, markdown: Path | None) -> int:
    """Explain a finding, a word of the screen, or a line of code.

    NAME is a finding from the list, words of its title, a common name of the remedy (packing, liger, gradient
    checkpointing, pinned memory …), or the number of a fix in the latest run: what it means, how it is detected, how
    the gain is computed, and when that is wrong. Without NAME: list all findings and words.

    NAME may be any word of terminal and report, such as HOST-BOUND, launch, reach or MFU.

    NAME may also be FILE:LINE, as in train.py:27: what that line costs in unprofiled steps of the run PATH (the latest
    if not given), and the step if it were free.
    """
    from rich.console import Group
    from rich.text import Text

    from gpuprof.cli.output import show
    from gpuprof.diagnosis.finding_names import named_exactly
    from gpuprof.report import glossary
    from gpuprof.report.pages import contents, render

    findings = _findings()
    pages = {one.id: one.page for one in findings}
    if markdown is not None:
        _write(pages, markdown)
        return 0
    if finding is None:
        show(lambda width: Group(contents(list(pages.values()), width), Text(""), glossary.contents()))
        return 0
    place = re.fullmatch(r"(.+\.py|<.+>):(\d{1,9})", finding.strip())
    if place:
        return _line(place[1], int(place[2]), path)
    if path is not None:
        raise GpuprofError("a run is named only after FILE:LINE; a finding is the same for all runs")
    word, page = glossary.find(finding), _iteration_changes().get(finding.strip())
    if word is not None and not finding.strip().isdecimal() and named_exactly(finding, findings) is None:
        # A phase of an iteration is a word, and has a page too.
        show(lambda width: Group(glossary.render(word), *([] if page is None else [Text(""), render(page, width)])))
        return 0
    if page is None:
        page = _of_latest_run(int(finding), pages) if finding.strip().isdecimal() else _named(finding, findings)
    show(lambda width: render(page, width))
    return 0


def _line(file: str, line: int, path: str | None) -> int:
    """What a line of code costs in a run. Raises GpuprofError where the run does not know."""
    from gpuprof.cli.output import write
    from gpuprof.cli.recordings import diagnose_given, given
    from gpuprof.diagnosis.analysis import analysis_of
    from gpuprof.diagnosis.host import explain_line
    from gpuprof.report.host_words import explained
    from gpuprof.report.names import escape

    run = given(path)
    diagnosis = diagnose_given(run)
    folder = diagnosis.folder
    if folder is None or diagnosis.host is None:
        raise GpuprofError(f"{run}: no Python functions were sampled there (gpuprof trace does, without --no-sampling)")
    found = explain_line(folder.path, folder.rank, analysis_of(diagnosis), diagnosis.step_ns, file, line)
    if found is None:
        raise GpuprofError(f"{file}:{line} is in none of the {diagnosis.host.samples:,} samples of {run}")
    write("".join(f"{escape(text)}\n" for text in explained(found, diagnosis)))
    return 0


def _named(text: str, findings: tuple[Declaration, ...]) -> Page:
    """The page that a name means. Raises GpuprofError for none or several."""
    from gpuprof.diagnosis.finding_names import key, named
    from gpuprof.report import glossary

    found = named(text, findings)
    if len(found) == 1:
        return found[0].page
    if found:
        raise GpuprofError(f"{text!r} may be {', '.join(one.id for one in found)}: choose one")
    known = {key(name): one.id for one in findings for name in (one.id, *one.synonyms)}
    near = list(dict.fromkeys(known[name] for name in difflib.get_close_matches(key(text), known, n=3)))
    near += [f"{word!r}" if " " in word else word for word in glossary.near(text)]
    hint = f"did you mean {', '.join(near)}?" if near else "gpuprof explain lists them all"
    raise GpuprofError(f"there is no finding or word {text!r}; {hint}")


def _of_latest_run(number: int, pages: dict[str, Page]) -> Page:
    """The page of a fix of the latest run, by its number there. Raises GpuprofError if it has no such fix."""
    from gpuprof.cli.output import say
    from gpuprof.cli.recordings import diagnose_given, given

    run = given(None)
    findings = diagnose_given(run).findings
    if not 1 <= number <= len(findings):
        have = f"its fixes are 1 to {len(findings)}" if findings else "it has no fixes"
        raise GpuprofError(f"there is no fix {number} in {run}: {have}")
    say(f"fix {number} of {run}: {findings[number - 1].title}")
    return pages[findings[number - 1].id]


def _write(pages: dict[str, Page], folder: Path) -> None:
    """One file per page, and an index."""
    from gpuprof.report.pages import index, markdown

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for page in pages.values():
            (folder / f"{page.id}.md").write_text(markdown(page), encoding="utf-8")
        (folder / "README.md").write_text(index(list(pages.values())), encoding="utf-8")
    except OSError as error:
        raise GpuprofError(f"{folder}: the pages cannot be written: {error.strerror}") from error


def _iteration_changes() -> dict[str, Page]:
    """The phases of the iteration of a training on its own generations, and the changes that would shorten it."""
    from gpuprof.diagnosis.iterations import pages, phase_pages

    return {page.id: page for page in (*phase_pages.PAGES, *pages.PAGES)}


def _findings() -> tuple[Declaration, ...]:
    """All kinds of findings; a plug-in that cannot be loaded is named."""
    from gpuprof.cli.output import say
    from gpuprof.diagnosis.plug_ins import declarations, plug_ins

    for failure in plug_ins().failures:
        say(failure)
    return declarations()
