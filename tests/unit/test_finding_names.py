"""`gpuprof explain` understands the names that people use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.finding_pages import PAGES

import gpuprof.diagnosis.findings
from gpuprof.diagnosis.detect.declared.declaration import key
from gpuprof.diagnosis.finding_names import named
from gpuprof.diagnosis.findings import BUILT_IN


def ids(text: str) -> list[str]:
    return [one.id for one in named(text, BUILT_IN)]


def test_id_and_title_name_their_page():
    for page in PAGES:
        assert (
            ids(page.id)
            == ids(page.id.replace("_", "-").upper())
            == ids(page.title)
            == ids(f" {page.title}? ")
            == [page.id]
        )


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("packing", "padding"), ("gradient_checkpointing", "recompute"), ("Gradient checkpointing", "recompute"),
        ("batch", "larger_batch"), ("liger", "fused_elementwise"), ("workers", "input_workers"),
        ("pinned", "pageable_copies"), ("torch.compile", "compile"), ("flash attention", "eager_attention"),
        ("torch.compile with CUDA graphs, after removing waits", "cuda_graphs"),
    ],
)  # fmt: skip
def test_remedies_name_their_page(text, finding):
    assert ids(text) == [finding]


def titles_of_fixes() -> list[tuple[str, str]]:
    """(id, title) of every fix as in the sources, with the number 4 wherever something is filled in."""
    found = []
    for path in Path(gpuprof.diagnosis.findings.__file__).parent.glob("[a-z]*.py"):
        for line in re.findall(r"^ +title=(.*),$", path.read_text(encoding="utf-8"), re.M):
            literals = re.findall(r'(f?)"((?:[^"\\]|\\.)*)"', line)
            filled = ((f, text.replace("{case.unit}", "step")) for f, text in literals)
            found += [(path.stem, re.sub(r"\{[^}]*\}", "4", text) if f else text) for f, text in filled]
    return found


def test_every_title_of_a_fix_names_its_page():
    titles = titles_of_fixes()
    assert len(titles) > 40
    wrong = [(page, title, ids(title)) for page, title in titles if ids(title) != [page]]
    assert wrong == []


def test_no_title_of_a_fix_begins_with_a_number():
    """Its own number stands before it: `2  4 input workers` would read as 24."""
    assert [title for _, title in titles_of_fixes() if title[0].isdecimal() and "once memory" not in title] == []


@pytest.mark.parametrize("text", ["batch 4 → 16", "batch × 8", "batch 8 -> 64", "8 × the batch"])
def test_numbers_of_a_run_do_not_matter(text):
    assert ids(text) == ["larger_batch"]


def test_words_of_several_pages_name_them_all_and_none_none():
    assert len(ids("gpu")) > 1
    assert ids("fish") == ids("") == ids("?") == []


def test_every_page_has_synonyms_of_its_own():
    assert all(one.synonyms for one in BUILT_IN)
    names = [key(name) for one in BUILT_IN for name in one.synonyms]
    assert len(names) == len(set(names)), "one name means one page"
    assert not set(names) & {page.id for page in PAGES}
