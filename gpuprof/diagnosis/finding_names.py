"""Findings by the names that people use: id, words of the title, or the usual name of the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.diagnosis.detect.declared.declaration import Declaration, key


def without_numbers(name: str) -> str:
    """A name as `key` returns it, without the numbers of one run: `batch_4_16` → `batch`."""
    return "_".join(word for word in name.split("_") if not word.isdigit())


def named(text: str, findings: Sequence[Declaration]) -> list[Declaration]:
    """The findings that a name may mean: the one with this id, synonym, title or fix title, or else all whose id,
    synonyms and title contain every word of it. Empty if there is none."""
    wanted = key(text)
    if not wanted:
        return []
    for name in (wanted, without_numbers(wanted)):
        for one in findings:
            if name in (one.id, key(one.page.title), *one.synonyms, *one.titles):
                return [one]
    words = set(wanted.split("_"))
    return [one for one in findings if words <= _words(one)]


def named_exactly(text: str, findings: Sequence[Declaration]) -> Declaration | None:
    """The finding with this id, synonym, title or fix title."""
    found = named(text, findings)
    is_whole = len(found) == 1 and any(
        name in (found[0].id, key(found[0].page.title), *found[0].synonyms, *found[0].titles)
        for name in (key(text), without_numbers(key(text)))
    )
    return found[0] if is_whole else None


def _words(one: Declaration) -> set[str]:
    return {word for name in (one.id, one.page.title, *one.synonyms) for word in key(name).split("_")}
