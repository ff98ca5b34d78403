"""Every number of a module says how well it is known, its unit and what it bounds."""

from __future__ import annotations

import ast

from benchmarks.constants import STATUSES, constants, constants_of
from gpuprof import units

FOUND = list(constants())
OWN = [one for one in FOUND if not one.is_alias]
WORDS = {name for name in vars(units) if name[0].isupper()} - {*STATUSES, "Annotated", "TypeVar", "Value"}


def test_every_number_says_how_well_it_is_known_and_its_unit():
    assert len(OWN) > 1000
    assert [f"{one.path}:{one.line} {one.name}" for one in OWN if not one.status] == [], "give them a type of units.py"


def test_units_are_known():
    """`dict[str, Ns]` and `tuple[Share, ...]` have the unit of what they hold."""
    containers = {"dict", "tuple", "str", "float"}
    used = {
        node.id for one in OWN for node in ast.walk(ast.parse(one.unit)) if isinstance(node, ast.Name)
    } - containers  # fmt: skip
    assert used <= WORDS
    assert used >= WORDS - {"Count"}, "no number has this unit any more"


def test_every_name_says_what_it_bounds():
    assert [f"{one.path}:{one.line} {one.name}" for one in OWN if one.is_vague] == []


def test_a_share_lies_between_0_and_1():
    shares = {one.key: ast.parse(one.value, mode="eval").body for one in OWN if one.unit == "Share"}
    assert len(shares) > 200
    for key, value in shares.items():
        if not any(isinstance(node, ast.Name) for node in ast.walk(value)):
            assert 0 <= eval(ast.unparse(value)) <= 1, key


def test_a_measured_number_says_what_it_was_measured_on():
    silent = [one.key for one in OWN if one.status == "Measured" and not one.text]
    assert set(silent) <= {"gpuprof/diagnosis/rank_digests.py:WORKER_BYTES"}, "its text is below the next number"


def test_what_is_no_entry_is_found():
    source = """
A = 2.5
B: Assumed[Share] = 0.5
C = calibrated.C.value
D, E = 0.5, 1
F, G = range(2)
H, I = 1, 2
LEAST = 3
J = {"a": 1.0}
K = names[0]
L: int = 5
"""
    found = {one.name: one for one in constants_of(source, "gpuprof/replay/x.py")}
    assert set(found) == {*"ABCDEJL", "LEAST"}
    assert {name for name, one in found.items() if one.status} == {"B"}
    assert (found["B"].status, found["B"].unit, found["B"].room) == ("Assumed", "Share", "replay")
    assert {name for name, one in found.items() if one.is_alias} == {"C"}
    assert {name for name, one in found.items() if one.is_vague} == {"LEAST"}
