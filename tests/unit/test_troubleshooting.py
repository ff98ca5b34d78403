"""docs/troubleshooting.md quotes messages word for word as gpuprof prints them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from helpers.paths import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
ALWAYS = {"unit": "step", "unit.a": "a step", "LOG": "gpuprof.log", "runfile.LOG": "gpuprof.log"}
"""Expressions in messages that are the same word for every training."""


def texts(source: str) -> Iterator[str]:
    """The strings of a module except docstrings, with `…` for what is filled in."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(
                ALWAYS.get(ast.unparse(part.value), "…") if isinstance(part, ast.FormattedValue) else part.value  # type: ignore[attr-defined]
                for part in node.values
            )
            yield re.sub("…+", "…", text)


@cache
def printed() -> str:
    """All strings of the package, one per line."""
    paths = sorted((ROOT / "gpuprof").rglob("*.py"))
    return "\n".join(text for path in paths for text in texts(path.read_text(encoding="utf-8")))


def test_a_quoted_message_is_in_the_code():
    for message in MESSAGES:
        assert message in printed()


def test_the_page_quotes_messages_and_only_in_its_tables():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) == len(MESSAGES) == len(set(MESSAGES)) > 30


def test_a_message_that_nobody_prints_would_be_noticed():
    source = 'def f(unit, n):\n    raise ValueError(f"No {unit} of {n:,} runs" " was timed")'
    assert "No step of … runs was timed" in list(texts(source))
    assert "No step of this run was ever timed" not in printed()
