"""Every numeric constant of a module states how well it is known, its unit and what it limits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from helpers.paths import ROOT

from benchmarks.constants import STATUSES, VAGUE, Constant, constants, constants_of, hidden, hidden_in
from gpuprof import units
from gpuprof.calibration.table import numbers

WORDS = {name for name in vars(units) if name[0].isupper()} - {*STATUSES, "Annotated", "TypeVar", "Value"}


@cache
def own_numbers() -> tuple[Constant, ...]:
    """All numbers except second names of others, found only once, as that takes as long as a hundred tests."""
    return tuple(one for one in constants() if not one.is_alias)


def test_every_number_says_how_well_it_is_known_and_its_unit():
    assert len(own_numbers()) > 1000
    assert [f"{one.path}:{one.line} {one.name}" for one in own_numbers() if not one.status] == [], (
        "give them a type of units.py"
    )


def test_units_are_known():
    """`dict[str, Ns]` and `tuple[Share, ...]` have the unit of their values."""
    containers = {"dict", "tuple", "str", "float"}
    used = {
        node.id for one in own_numbers() for node in ast.walk(ast.parse(one.unit)) if isinstance(node, ast.Name)
    } - containers  # fmt: skip
    assert used <= WORDS
    assert used >= WORDS - {"Count"}, "no number has this unit any more"


def test_every_name_says_what_it_bounds():
    """In the calibration table as well: the code that uses a number of it names the table, not the subject."""
    assert [f"{one.path}:{one.line} {one.name}" for one in own_numbers() if one.is_vague] == []
    assert [name for name in numbers() if name.partition(".")[2] in VAGUE] == []


def test_no_fraction_that_decides_stands_in_code_without_a_name():
    assert list(hidden()) == [], "give it a name, a unit and a status at the top of its module"


def test_a_fraction_in_code_is_found():
    source = """
KNOWN: Assumed[dict[str, Share]] = {"a": 0.3}
TABLE = (("a", calibrated.A.value, 0.05),)
PAGE = Page(text=f"{calibrated.A.value:.2g}")
def f(x: float, most: float = 1.0) -> float:
    'Takes 0.7 of it.'
    if x < 0.3 or x / 1e9 > KNOWN["a"]:
        return 1.05 * x
    return g(x, host=0.9) if x else -0.2
"""
    assert [line for line, _ in hidden_in(source)] == [3, 7, 8, 9, 9]


def test_a_bound_of_nothing_is_vague():
    names = {"LEAST_BYTES": "Assumed", "MOST_ROWS": "Convention", "LEAST_COPIED_BYTES": "Assumed", "MOST": "Convention"}
    source = "\n".join(f"{name}: {status}[Bytes] = 3" for name, status in names.items())
    found = constants_of(source, "gpuprof/replay/x.py")
    assert [one.name for one in found if one.is_vague] == ["LEAST_BYTES", "MOST"]


def test_only_numbers_count_as_made_from_the_table():
    """Not a text that quotes them."""
    source = 'RATES = tuple(2 * one for one in calibrated.RATES.rising)\nPAGE = Page(gain=f"{calibrated.A.low:g}")'
    assert [one.name for one in constants_of(source, "gpuprof/replay/x.py")] == ["RATES"]


def test_a_share_lies_between_0_and_1():
    shares = {one.key: ast.parse(one.value, mode="eval").body for one in own_numbers() if one.unit == "Share"}
    assert len(shares) > 200
    for key, value in shares.items():
        if not any(isinstance(node, ast.Name) for node in ast.walk(value)):
            assert 0 <= eval(ast.unparse(value)) <= 1, key


def test_a_measured_number_says_what_it_was_measured_on():
    silent = [one.key for one in own_numbers() if one.status == "Measured" and not one.text]
    assert set(silent) <= {"gpuprof/diagnosis/ranks/rank_digests.py:WORKER_BYTES"}, "its text is below the next number"


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


def aliases_of(source: str) -> Iterator[str]:
    """Names of a module that are merely another name for a number in the calibration table."""
    tables: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module == "gpuprof.calibration":
            tables |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if values and all(_is_of(value, tables) for value in values):
                yield ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)


def _is_of(value: ast.expr, tables: set[str]) -> bool:
    inner = value
    if isinstance(inner, ast.Call) and ast.unparse(inner.func) in ("int", "float") and len(inner.args) == 1:
        inner = inner.args[0]
    whole = inner
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    return inner is not whole and isinstance(inner, ast.Name) and inner.id in tables


def test_a_calibrated_number_has_no_second_name():
    """It is documented in the table, and used where it is needed."""
    paths = [path for path in sorted((ROOT / "gpuprof").rglob("*.py")) if path.parent.name != "calibration"]
    sources = {path: path.read_text(encoding="utf-8") for path in paths}
    found = {path: list(aliases_of(source)) for path, source in sources.items() if "gpuprof.calibration" in source}
    assert [f"{path.relative_to(ROOT)}: {name}" for path, names in found.items() for name in names] == []


def test_second_names_are_found():
    source = """
from gpuprof.calibration import kernels as calibrated, latency
A = calibrated.A.value
B, C = calibrated.B.rising, latency.C.low
D: Measured[Ns] = latency.D.value
E = int(latency.E.value)
F = latency.F.value * 2
G = other.G.value
"""
    assert list(aliases_of(source)) == ["A", "(B, C)", "D", "E"]
