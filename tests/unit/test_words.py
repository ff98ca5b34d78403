"""Docs, README, text on the screen, docstrings and comments use the field's terms and no dialect words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

INSTEAD = {
    r"(?:is|are|was|be|as) (?:\w+ )?told": "inferred from, estimated from, reported by",
    r"told (?:by|from|apart|anew|of)": "inferred from, distinguished from",
    r"tells? (?:of|apart|no|nothing|which|how|what|it|them|their|more)": "reports, contains, shows",
    r"not tell": "not known from",
    r"beside": "next to, at the same time as, compared with",
    r"besides": "also, in addition",
    r"anew": "again",
    r"parted": "split",
    r"as many as": "the same number as",
    r"so many": "N",
    r"reckon(?:s|ed)?": "computed, scaled, estimated",
    r"st(?:and|ood)s? still": "blocks, stalls",
    r"standing still": "blocked",
    r"multiprocessors?": "SM",
    r"pieces? of (?:GPU |host )?work": "kernels and copies, CPU work",
    r"go(?:es)? with (?:the|its|their|a|how)": "scales with, depends on",
    r"nobody(?:'s)?": "unexplained; or name who",
    r"somebody(?:'s)?": "someone; or name them",
    r"matrix products?": "matrix multiplication, matmul, GEMM",
    r"(?:the|two|each|every|grouped|thin|of) products?": "matrix multiplication, matmul, GEMM",
    r"training goes on": "training continues",
    r"(?:the )?(?:host|GPU|memory|arithmetic|latency) binds": "is the limit, is bound by",
    r"its own baseline": "a measured baseline",
    r"on whatever thread": "on any thread",
    r"(?:cannot|can) be had": "is not available",
    r"held against": "compared with",
    r"(?:is|are|be) taken for": "is treated as, is mistaken for",
    r"that bear": "with",
    r"whose like": "of the same kind",
    r"foretold": "predicted",
    r"of which chains": "subject, verb, object",
}
"""Pattern, matched between word boundaries in any case → what to write instead."""

ALLOWED: dict[str, str] = {}
"""Text around a match → why it may stay."""

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = sorted({path.parent for path in (ROOT / "gpuprof").rglob("*.py")})
TEMPLATES = sorted((ROOT / "gpuprof" / "report" / "page" / "templates").glob("*.html"))
_DIALECT = re.compile(r"\b(?:" + "|".join(INSTEAD) + r")\b", re.IGNORECASE)


@lru_cache(maxsize=1)
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a module, cached because walking through them takes most of the time here."""
    return tuple(ast.walk(tree))


def strings(tree: ast.AST) -> Iterator[str]:
    """The string constants of a module that hold several words; docstrings, of attributes too, are not among them."""
    docstrings = {
        id(statement.value)
        for node in nodes_of(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in nodes_of(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if " " in node.value.strip():
            yield " ".join(node.value.split())


def docstrings(tree: ast.AST) -> Iterator[str]:
    """The docstrings of a module: its own, those of its classes and functions, and those under attributes."""
    for node in nodes_of(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            for statement in node.body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    yield " ".join(str(statement.value.value).split())


def comments(source: str) -> Iterator[str]:
    """The comments of a module; lines that follow each other are one."""
    found = [
        (token.start[0], token.string.lstrip("# "))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    joined = ""
    for (line, text), (before, _) in zip(found, [(-1, ""), *found], strict=False):
        joined += f" {text}" if line == before + 1 else f"\n{text}"
    yield from joined.split("\n")


def helps(tree: ast.AST) -> Iterator[str]:
    """The docstrings that click shows as the help of a command."""
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef) and node.name in ("command", "commands"):
            yield " ".join((ast.get_docstring(node) or "").split())


def dialect(text: str) -> list[str]:
    """The dialect in a text, each match with the words around it."""
    found = [text[max(match.start() - 30, 0) : match.end() + 30] for match in _DIALECT.finditer(text)]
    return [around for around in found if not any(allowed in around for allowed in ALLOWED)]


def test_docs_speak_plainly():
    for path in DOCS:
        text = re.sub(r"```.*?```", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert dialect(" ".join(text.split())) == [], path


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_code_speaks_plainly(folder):
    """Displayed text, docstrings and comments of all modules of a folder, each read once."""
    found = {}
    for path in folder.glob("*.py"):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        shown = (*strings(tree), *(helps(tree) if "cli" in path.parts else ()))
        texts = (*shown, *docstrings(tree), *comments(source))
        found[path.name] = [around for text in texts for around in dialect(text)]
    assert found and {name: texts for name, texts in found.items() if texts} == {}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_the_report_speaks_plainly(path):
    assert dialect(" ".join(path.read_text(encoding="utf-8").split())) == []


def test_docstrings_and_comments_are_found():
    source = (
        '"""Told by\nits shape."""\n\nclass A:\n    x = 1\n    """Is parted."""\n\n    def f(self):\n'
        '        """Anew."""\n'
        "        # goes with\n        # the size\n        return '# beside'  # so many\n"
    )
    found = [*docstrings(ast.parse(source)), *comments(source)]
    assert sum(len(dialect(text)) for text in found) == 5
    assert not any("beside" in text for text in found)


def test_dialect_is_found_and_plain_words_are_not():
    for text in ("It is told by its shape.", "made anew", "copies beside kernels", "the host binds", "two products"):
        assert dialect(text), text
    for text in ("a beside_name", "the products_of list", "the cost of production", "retold", "tell your users"):
        assert not dialect(text), text
