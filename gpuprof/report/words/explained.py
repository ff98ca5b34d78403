"""What a name means: a finding, a word of the screen, a phase or a change of an iteration, the number of a fix, or a
line of code. `gpuprof explain` and the tool `explain` of `gpuprof mcp` both ask here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.errors import GpuprofError
from gpuprof.report.words.glossary import GlossaryTerm

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpuprof.diagnosis.detect.declared.declaration import Declaration
    from gpuprof.diagnosis.detect.declared.proposal import Page
    from gpuprof.diagnosis.result.diagnosis import Diagnosis

DiagnosisOf = Callable[[], "tuple[str, Diagnosis]"]
"""Returns (name of the recording for messages, its diagnosis); called only if the answer needs it."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer: a word, a page, both (a phase of an iteration has both), or lines."""

    term: GlossaryTerm | None = None
    page: Page | None = None
    lines: tuple[str, ...] = ()
    """The answer for a line of code; names in it are escaped."""
    said: str = ""
    """What a number stood for."""

    def markdown(self) -> str:
        """For a page or an agent."""
        from gpuprof.report.words.glossary import shown_names
        from gpuprof.report.words.pages import markdown

        parts = [f"{self.said}\n"] if self.said else []
        if self.term is not None:
            others = shown_names(self.term)
            parts.append(f"# {self.term.name}\n\n{self.term.text}\n")
            parts += [f"also: {', '.join(others)}\n"] if others else []
        if self.page is not None:
            parts.append(markdown(self.page))
        parts += ["\n".join(self.lines) + "\n"] if self.lines else []
        return "\n".join(parts)

    def render(self, width: int) -> RenderableType:
        """For a terminal; a line of code is text."""
        from rich.console import Group
        from rich.text import Text

        from gpuprof.report.words import glossary
        from gpuprof.report.words.pages import render

        parts: list[RenderableType] = [] if self.term is None else [glossary.render(self.term)]
        if self.page is not None:
            parts += [*([Text("")] if parts else []), render(self.page, width)]
        return Group(*parts)


def place_of(name: str) -> tuple[str, int] | None:
    """File and line of `train.py:27`; None for any other name."""
    found = re.fullmatch(r"(.+\.py|<.+>):(\d{1,9})", name.strip())
    return (found[1], int(found[2])) if found else None


def explanation(name: str, findings: tuple[Declaration, ...], diagnosis_of: DiagnosisOf) -> Explanation:
    """What the name means. Raises GpuprofError, one line, if nothing or several things match."""
    from gpuprof.diagnosis.finding_names import named_exactly
    from gpuprof.report.words import glossary

    name = name.strip()
    place = place_of(name)
    if place is not None:
        return Explanation(lines=_line(*place, diagnosis_of))
    if name.isdecimal():
        return _fix(int(name), {one.id: one.page for one in findings}, diagnosis_of)
    term, page = glossary.find(name), _iteration_page(name)
    if term is not None and named_exactly(name, findings) is None:
        return Explanation(term=term, page=page)
    return Explanation(page=page or _named(name, findings))


def contents(pages: Sequence[Page]) -> str:
    """All names as Markdown: the findings, and the words by subject."""
    from gpuprof.report.words import glossary
    from gpuprof.report.words.pages import index

    words = "\n".join(f"- {one.title}: {', '.join(term.name for term in one.terms)}" for one in glossary.sections())
    return f"{index(pages)}\n# Words\n\n{words}\n"


def _line(file: str, line: int, diagnosis_of: DiagnosisOf) -> tuple[str, ...]:
    """What a line of code costs in a run. Raises GpuprofError if that is not known."""
    from gpuprof.diagnosis.analysis import analysis_of
    from gpuprof.diagnosis.sampled.sampled_functions import explain_line, explain_worker_line
    from gpuprof.report.names import escape
    from gpuprof.report.words.host_words import explained, worker_explained

    run, diagnosis = diagnosis_of()
    folder = diagnosis.folder
    if folder is None or diagnosis.host is None:
        raise GpuprofError(f"{run}: no Python functions were sampled there (gpuprof trace does, without --no-sampling)")
    place = folder.path, folder.rank
    found = explain_line(*place, analysis_of(diagnosis), diagnosis.step_ns, file, line)
    in_workers = explain_worker_line(*place, file, line) if diagnosis.host.workers is not None else None
    if found is not None and in_workers is not None and found.line != line == in_workers.line:
        found = None  # the line itself runs in the workers only
    one = found or in_workers
    if one is None:
        unread = "; the DataLoader's workers were not sampled (gpuprof trace --sample-workers)"
        raise GpuprofError(
            f"{file}:{line} is in none of the {diagnosis.host.samples:,} samples of {run}, nor in a sampled function"
            f"{unread if _has_workers(diagnosis) and diagnosis.host.workers is None else ''}"
        )
    is_line = one.line == line
    other = () if is_line else (f"No sample at line {line}; the sampled function that begins before it:",)
    which = "this line" if is_line else "the function"
    said = explained(found, diagnosis, which) if found is not None else [f"{one.place}  {one.function}"]
    in_the_workers = [] if in_workers is None else [worker_explained(in_workers, diagnosis.host.workers, which)]
    return (*other, *map(escape, (*said, *in_the_workers)))


def _has_workers(diagnosis: Diagnosis) -> bool:
    run = diagnosis.run
    return run is not None and run.loader is not None and bool(run.loader.get("num_workers"))


def _fix(number: int, pages: dict[str, Page], diagnosis_of: DiagnosisOf) -> Explanation:
    """The page of a fix of a recording, by its number there. Raises GpuprofError if it has no such fix."""
    run, diagnosis = diagnosis_of()
    findings = diagnosis.findings
    if not 1 <= number <= len(findings):
        have = f"its fixes are 1 to {len(findings)}" if findings else "it has no fixes"
        raise GpuprofError(f"there is no fix {number} in {run}: {have}")
    found = findings[number - 1]
    return Explanation(page=pages[found.id], said=f"fix {number} of {run}: {found.title}")


def _named(text: str, findings: tuple[Declaration, ...]) -> Page:
    """The page of the finding with a name. Raises GpuprofError if no or several findings match."""
    from gpuprof.diagnosis.detect.declared.declaration import key
    from gpuprof.diagnosis.finding_names import named
    from gpuprof.report.words import glossary

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


def _iteration_page(name: str) -> Page | None:
    """The page of a phase of an RL iteration, or of a change that would shorten it: by its id, its title, or the title
    of the change on the screen."""
    from gpuprof.diagnosis.detect.declared.declaration import key
    from gpuprof.diagnosis.iterations import pages, phase_pages
    from gpuprof.diagnosis.iterations.titles import TITLES

    phases = {page.id: page for page in phase_pages.PAGES}
    if name in phases:
        return phases[name]
    wanted = key(name)
    changes = ((one, (one.id, key(one.title), *map(key, TITLES.get(one.id, ())))) for one in pages.PAGES)
    return next((one for one, names in changes if wanted in names), None)
