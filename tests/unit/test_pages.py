"""`gpuprof explain` and docs/findings: one text for both, complete and up to date."""

from __future__ import annotations

import re

import pytest
from helpers.finding_pages import PAGES
from helpers.paths import ROOT

from gpuprof.cli import main
from gpuprof.diagnosis.findings import FINDINGS
from gpuprof.report.words.pages import SECTIONS, index, markdown

DOCS = ROOT / "docs" / "findings"


def run(capsys, *arguments) -> tuple[int, str, str]:
    try:
        code = main(list(arguments))
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    return int(code or 0), out, err


def test_every_page_says_all_four_things():
    for page in PAGES:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", page.id)
        assert 5 < len(page.title) < 70 and not page.title.endswith("."), page.id
        for name, _ in SECTIONS:
            text = getattr(page, name).strip()
            assert len(text) > 60, (page.id, name)
            assert max(map(len, text.splitlines())) <= 120, (page.id, name)


def test_a_page_is_named_after_the_file_of_its_finding():
    assert [page.id for page, _ in FINDINGS] == [find.__module__.rpartition(".")[2] for _, find in FINDINGS]


def test_the_documentation_is_that_of_the_code():
    """`gpuprof explain --markdown docs/findings` writes it again."""
    for page in PAGES:
        assert (DOCS / f"{page.id}.md").read_text(encoding="utf-8") == markdown(page), page.id


def test_the_documentation_has_no_more_and_no_fewer():
    assert {path.stem for path in DOCS.glob("*.md")} - {"README"} == {page.id for page in PAGES}
    assert (DOCS / "README.md").read_text(encoding="utf-8") == index(PAGES)
    assert len({page.id for page in PAGES}) == len(PAGES) == len(FINDINGS) + 2


def test_explain(capsys):
    for page in PAGES:
        code, out, err = run(capsys, "explain", page.id.replace("_", "-"))
        assert (code, err) == (0, ""), page.id
        assert out.startswith(page.title) and all(title in out for _, title in SECTIONS), page.id


def test_explain_lists_all(capsys):
    code, out, _ = run(capsys, "explain")
    assert code == 0 and [line.split()[0] for line in out.split("\n\n")[0].splitlines()] == [page.id for page in PAGES]
    assert "Verdicts: HOST-BOUND" in out.split("\n\n")[1]


@pytest.mark.parametrize(
    ("word", "says"), [("compil", "did you mean compile"), ("\x1b[31mx", "\\x1b[31mx"), ("zzz", "lists them all")]
)
def test_explain_knows_no_such_finding(capsys, word, says):
    code, out, err = run(capsys, "explain", word)
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


def test_pages_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = run(capsys, "explain", "--markdown", str(tmp_path / "file" / "folder"))
    assert (code, out) == (2, "") and "cannot be written" in err and err.count("\n") == 1
