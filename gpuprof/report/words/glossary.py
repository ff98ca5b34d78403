"""The glossary: words of terminal, report and documentation, each in a sentence or two, from one data file."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rich.console import Group, RenderableType
from rich.text import Text


@dataclass(frozen=True, slots=True)
class GlossaryTerm:
    """One word: its meaning, its other names, and the page that says more."""

    name: str
    text: str
    also: tuple[str, ...]
    """Other words and JSON keys with the same meaning."""
    page: str
    """Page of the documentation that says more (`diagnosis.md`); may be empty."""

    @property
    def anchor(self) -> str:
        """The anchor for links: `word-memory-bound`."""
        return f"word-{key(self.name).replace(' ', '-')}"


@dataclass(frozen=True, slots=True)
class Section:
    """Terms of one subject."""

    title: str
    terms: tuple[GlossaryTerm, ...]


@cache
def sections() -> tuple[Section, ...]:
    """All terms, in the order of the page."""
    document = json.loads((files("gpuprof") / "data" / "glossary.json").read_text(encoding="utf-8"))
    return tuple(
        Section(
            one["section"], tuple(GlossaryTerm(t["term"], t["text"], tuple(t["also"]), t["page"]) for t in one["terms"])
        )
        for one in document
    )


def key(name: str) -> str:
    """A name in lower case, with single blanks for everything but letters and digits: `HOST-BOUND` → `host bound`."""
    return re.sub(r"[^a-z0-9×]+", " ", name.lower()).strip()


def find(name: str) -> GlossaryTerm | None:
    """The term that a word on a screen means: its name or another one, in any case; the verdict's key with its cause
    (`HOST-BOUND · launch`) is the verdict."""
    known = _known()
    for asked in (name, name.split("·")[0], name.split(":")[0], name.split(",")[0], re.sub(r"[\d.,]+ ?%.*", "", name)):
        if found := known.get(key(asked)) or known.get(key(asked).removesuffix("s")):
            return found
    return None


def used(names: Iterable[str]) -> list[GlossaryTerm]:
    """The terms for these words, in the order of the page, each once."""
    found = {term for name in names if (term := find(name)) is not None}
    return [term for section in sections() for term in section.terms if term in found]


def near(name: str) -> list[str]:
    """Terms with similar names."""
    known = _known()
    return list(dict.fromkeys(known[one].name for one in difflib.get_close_matches(key(name), known, n=3)))


@cache
def _known() -> dict[str, GlossaryTerm]:
    """Normalised names (`key`) → terms; a term's own name wins over another's synonym."""
    terms = [term for section in sections() for term in section.terms]
    also = {key(name): term for term in reversed(terms) for name in term.also}
    return also | {key(term.name): term for term in terms}


def render(term: GlossaryTerm) -> RenderableType:
    """The term for a terminal."""
    said = [Text(term.name, "bold"), Text(term.text)]
    if others := shown_names(term):
        said.append(Text(f"also: {', '.join(others)}", "dim"))
    if term.page:
        said.append(Text(f"more: docs/{term.page}", "dim"))
    return Group(*said)


def shown_names(term: GlossaryTerm) -> list[str]:
    """A term's other names, without other spellings of its name."""
    return [name for name in term.also if key(name) != key(term.name)]


def contents() -> RenderableType:
    """All terms' names, by subject."""
    return Group(
        *(Text.assemble((f"{one.title}: ", "bold"), ", ".join(t.name for t in one.terms)) for one in sections())
    )


def markdown(found: Sequence[Section] | None = None) -> str:
    """The page of the documentation."""
    parts = [
        "# Glossary",
        "Every word of the terminal and the report; `gpuprof explain WORD` prints one. Written by"
        " `python -m benchmarks.glossary_page`.",
    ]
    for section in found or sections():
        parts.append(f"## {section.title}")
        for term in section.terms:
            others = "".join(f", `{name}`" for name in shown_names(term))
            more = f" [More]({term.page})" if term.page else ""
            parts.append(f'<a id="{term.anchor}"></a>**{term.name}**{others}: {term.text}{more}')
    return "\n\n".join(parts) + "\n"
