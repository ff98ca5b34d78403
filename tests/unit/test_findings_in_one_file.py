"""A finding can be changed in its own file alone: nothing else in the package names its id or imports its module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from helpers.paths import ROOT

from gpuprof.costs.dtypes import DTYPES
from gpuprof.diagnosis import findings
from gpuprof.diagnosis.detect.declared.declaration import Role
from gpuprof.diagnosis.detect.declared.ledger_part import Cost
from gpuprof.diagnosis.findings import BUILT_IN
from gpuprof.diagnosis.idle.gaps import CAUSES
from gpuprof.ranks.verdicts import VERDICTS
from gpuprof.record.model.lumps import KINDS as LUMPS
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.cpu.slow_calls import KINDS as SLOW_CALLS
from gpuprof.timeline.phases import PHASES
from gpuprof.tracefile.kineto.layout import TABLES

PACKAGE = ROOT / "gpuprof"
FOLDER = PACKAGE / "diagnosis" / "findings"
ROOMS = ("diagnosis", "trial", "report", "interop", "doctor", "cli")
"""The rooms that know about findings. Rooms below diagnosis name the contents of files, and patches, which have their
own files."""
OTHER_WORDS = {*DTYPES, *np.sctypeDict, *CAUSES, *SLOW_CALLS, *LUMPS, *PHASES, *CATEGORIES, *TABLES, *VERDICTS.values()}
"""Words that mean something else as well: types of numbers, causes of waiting, phases, kinds of kernels, tables. Alone
they do not name a finding; where a finding's id is expected they do."""
NAMING = {"id", "finding", "findings"}
"""Arguments, attributes and variables that hold a finding's id."""


def own_files() -> dict[str, Path]:
    """Id of each built-in finding → its file."""
    modules = [module for module in vars(findings).values() if hasattr(module, "FINDING")]
    return {module.FINDING.id: Path(str(module.__file__)) for module in modules}


def named_in(tree: ast.AST, ids: set[str]) -> Iterator[tuple[int, str]]:
    """(line, id) of each finding that a file names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in ids - OTHER_WORDS:
            yield node.lineno, str(node.value)
        elif isinstance(node, ast.keyword) and node.arg in NAMING:
            yield from _words(node.value, ids & OTHER_WORDS)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "by":
            yield from (found for argument in node.args[:1] for found in _words(argument, ids & OTHER_WORDS))
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(getattr(side, "attr", getattr(side, "id", None)) in NAMING for side in sides):
                yield from (found for side in sides for found in _words(side, ids & OTHER_WORDS))


def _words(tree: ast.AST, ids: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in ids:
            yield node.lineno, str(node.value)


def test_no_finding_is_named_outside_its_own_file():
    own, wrong = own_files(), []
    quoted = re.compile("|".join(rf"[\"']{name}[\"']" for name in own))
    for path in (path for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))):
        ids, source = {name for name, file in own.items() if file != path}, path.read_text(encoding="utf-8")
        for line, name in named_in(ast.parse(source), ids) if quoted.search(source) else ():
            wrong.append(f"{path.relative_to(ROOT)}:{line} names {name}")
    assert not wrong, "\n".join(wrong)


def test_no_finding_is_imported_by_its_module():
    """Other code finds it in the registry, by what it declares."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if path.parent == FOLDER or "diagnosis" not in source or "findings" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.ImportFrom):
                continue
            names = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
            modules = {name for name in names if name.startswith("gpuprof.diagnosis.findings.")}
            if any((FOLDER / f"{name.split('.')[3]}.py").exists() for name in modules):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {', '.join(sorted(modules))}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source",
    [
        'excludes = ("larger_batch",)',
        'if name == "needless_logits": pass',
        'Part(findings=("optimizer",))',
        'next(one for one in found if one.id == "compile")',
        'if item.finding in ("tf32", "autocast"): pass',
        'fix.by("planning")',
    ],
)
def test_names_of_findings_are_seen(source: str):
    assert list(named_in(ast.parse(source), set(own_files())))


@pytest.mark.parametrize("source", ['cause == "compile"', 'rates["tf32"]', 'source in ("optimizer", "trainer")'])
def test_other_words_are_not(source: str):
    assert not list(named_in(ast.parse(source), set(own_files())))


def test_every_role_is_held_once():
    """A role that no finding has, or that two have, would name the wrong one."""
    assert sorted(one.role for one in BUILT_IN if one.role is not None) == sorted(get_args(Role))


def test_every_cost_of_the_ledger_is_lowered_by_a_finding():
    assert {cost for one in BUILT_IN for cost in one.lowers} == set(get_args(Cost))
