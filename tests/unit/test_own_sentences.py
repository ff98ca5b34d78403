"""No part of gpuprof parses a sentence that another part wrote: what is needed is data next to the sentence."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from helpers.paths import ROOT

from gpuprof.diagnosis.findings import FINDINGS

PACKAGE = ROOT / "gpuprof"
SENTENCES = {
    "message", "reason", "summary", "title", "text", "note", "notes", "doubts", "error", "failure", "changes", "needs",
    "fix", "why",
}  # fmt: skip
"""Fields that hold gpuprof's own sentences."""
NAMED = re.compile(rf"\.\s*(?:{'|'.join(SENTENCES)})\b")
READ_BY = {"startswith", "endswith", "replace", "split", "removeprefix", "removesuffix", "partition", "rpartition"}
MATCH_BY = {"search", "match", "fullmatch", "sub", "findall", "finditer"}
OF_OTHERS = {
    "gpuprof/diagnosis/result/fix.py": "code, by line",
    "gpuprof/diagnosis/findings/missing_kernels.py": "warnings of the program",
    "gpuprof/doctor/software.py": "an error of the driver",
    "gpuprof/nsight/convert.py": "what nsys prints",
    "gpuprof/nsight/find.py": "what nsys prints",
    "gpuprof/nsight/profile.py": "what nsys prints",
    "gpuprof/trial/turns.py": "notes that are there already are not added again",
}
"""Files in which such a field holds another program's text, or is a list."""


def is_sentence(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in SENTENCES


def reads(source: str) -> Iterator[str]:
    """Expressions that look into a sentence: `one.reason.startswith(…)`, `"x" in one.text`, `PATTERN.sub(…, one.text)`;
    without an argument, `split` only removes line ends."""
    if not NAMED.search(source):  # parsing takes longer
        return
    for node in ast.walk(ast.parse(source)):
        found = False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found = node.func.attr in READ_BY and is_sentence(node.func.value) and bool(node.args)
            found |= node.func.attr in MATCH_BY and any(map(is_sentence, node.args))
        elif isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
            found = any(map(is_sentence, node.comparators))
        if found:
            yield ast.unparse(node)


def test_nothing_reads_its_own_sentences():
    found = {
        str(path.relative_to(ROOT)): list(reads(path.read_text(encoding="utf-8")))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    assert not {name: said for name, said in found.items() if said and name not in OF_OTHERS}
    assert all(found[name] for name in OF_OTHERS), "an exception that is none any more"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("one.reason.startswith('failed: ')", 1),
        ("'repeated' in row.text", 1),
        ("PATTERN.sub(word, finding.title)", 1),
        ("one.name.startswith('cuda')", 0),
        ("f'{one.reason}: {one.text}'", 0),
    ],
)
def test_looks_into_sentences_are_found(source: str, count: int):
    assert len(list(reads(source))) == count


# -- the word for a step

STEP = re.compile(r"(?<!optimizer )(?<!random )(?<![\w.(#\"'=-])[Ss]teps?(?![\w(=#-])")
CODE = re.compile(r"[\n#]")
"""A comment, or lines of code: what is written into a program says step."""
IN_CODE = {("syncs.py", " steps"), ("garbage_collection.py", " steps")}


def test_a_unit_brings_its_article():
    """`{unit.a}` is needed, as `a {unit}` is wrong for an iteration."""
    wrong = re.compile(r"\b[Aa] \{[\w.]*\bunit\}")
    assert not [str(path) for path in PACKAGE.rglob("*.py") if wrong.search(path.read_text(encoding="utf-8"))]


def test_findings_of_inference_say_step_by_its_unit():
    """`{case.unit.a}` where a training's sentence says `a step`: inference has iterations, requests, or tokens."""
    wrong, seen = [], 0
    for page, _ in FINDINGS:
        path = PACKAGE / "diagnosis" / "findings" / f"{page.id}.py"
        if not page.applies_to("inference") or not path.exists():
            continue
        seen += 1
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            docstrings = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Expr)}
            wrong += [
                f"{path.name}:{node.lineno}: {node.value!r}"
                for node in ast.walk(function)
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
                if STEP.search(node.value) and not CODE.search(node.value) and (path.name, node.value) not in IN_CODE
            ]
    assert seen >= 15
    assert not wrong, "\n".join(wrong)
