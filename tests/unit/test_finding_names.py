"""`gpuprof explain` understands the names that people use."""

from __future__ import annotations

import pytest

from gpuprof.diagnosis.finding_names import SYNONYMS, key, pages_named
from gpuprof.diagnosis.findings import PAGES


def ids(text: str) -> list[str]:
    return [page.id for page in pages_named(text, PAGES)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.id)
def test_id_and_title_name_their_page(page):
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
    ],
)  # fmt: skip
def test_remedies_name_their_page(text, finding):
    assert ids(text) == [finding]


def test_words_of_several_pages_name_them_all_and_none_none():
    assert len(ids("gpu")) > 1
    assert ids("fish") == ids("") == ids("?") == []


def test_every_page_has_synonyms_of_its_own():
    assert set(SYNONYMS) == {page.id for page in PAGES}
    names = [key(name) for found in SYNONYMS.values() for name in found]
    assert len(names) == len(set(names)), "one name means one page"
    assert not set(names) & {page.id for page in PAGES}
