"""List the numbers in gpuprof's modules: how well each is known, its unit, what it bounds, and where it is.

    python -m benchmarks.constants             # a count by room
    python -m benchmarks.constants replay      # every number of a room
    python -m benchmarks.constants --bare      # those whose type says neither how well they are known nor their unit
    python -m benchmarks.constants --hidden    # fractions in the code of rooms that decide, which have no name

A number that was fitted to recordings is in `gpuprof/calibration/`, with its interval. Every other one is next to
the code that uses it, with a type of `gpuprof/units.py`: `EQUAL_WORK: Assumed[Share] = 0.02`.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gpuprof"

STATUSES = ("Assumed", "Measured", "Published", "Convention")

_VAGUE = """
    LEAST MOST FEWEST SEEN SHOWN NAMED MOSTLY OFTEN NEAR FAR MUCH FEW LITTLE LARGE SMALL LONG SHORT LONGER LONGEST
    SHORTEST LARGEST SAME ALIKE EQUAL LEVEL LIKELY ENOUGH APART CLOSE CLEAR SLOWER QUICKER FASTER LOW HIGH HALF KEPT
    LEFT MORE LESS OTHERS ALSO TOP SHARE REACH WORTH KNOWN FOUND SIZE LIMIT NARROW WIDE WIDEST DEEP SOON EVERY MANY
    WHOLE PART FARTHEST MOST_OF MOST_OF_IT
"""
VAGUE = frozenset(_VAGUE.split())
"""Names that do not say what they bound."""
_OF_NOTHING = VAGUE | {"S", "NS", "MS", "BYTES", "RATIO", "STEPS", "OF", "A", "AS", "IT", "TO", "AND", "FOR"}
"""Words of which a name that says nothing may consist: units as well."""

DECIDING = ("costs", "diagnosis", "hang", "memory", "projection", "ranks", "replay", "timeline", "tracefile", "trial")
"""Rooms whose code decides what is said; others record or show."""
_UNITS = {3.6e12, 86_400e9, 255.0, 4.0}
"""An hour and a day in ns, a whole in 255ths, bytes of 32 bits."""
_ROUNDED = {0.005, 0.995, 0.9995, 9.95, 9.95e6, 99.5}
"""Where a number is rounded to another one on the page."""
_PLAIN = {0.0, 0.5, 1.0, 2.0, *(10.0**n for n in range(-300, 301))}
"""Numbers that say what they are: nothing, half, one, two, and powers of ten, of units or next to 0."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number in a module, a flat collection of numbers, or an alias of a calibrated one. `line` counts from 1; `text`
    is its docstring and comments. `type` is empty where it has none."""

    path: str
    line: int
    name: str
    type: str
    value: str
    text: str

    @property
    def key(self) -> str:
        """`gpuprof/replay/build/build.py:SLOT`, which survives edits above it."""
        return f"{self.path}:{self.name}"

    @property
    def room(self) -> str:
        return self.path.split("/")[1].removesuffix(".py")

    @property
    def status(self) -> str:
        """`Assumed`, `Measured`, `Published` or `Convention`; empty without a type that says it."""
        head = self.type.partition("[")[0]
        return head if head in STATUSES else ""

    @property
    def unit(self) -> str:
        """`Share`, `tuple[Ns, Ns]`; empty without a type that says it."""
        return self.type.partition("[")[2].removesuffix("]") if self.status else ""

    @property
    def is_alias(self) -> bool:
        """Whether it is another name of a number in the calibration table."""
        return "calibrat" in self.value

    @property
    def is_vague(self) -> bool:
        """Whether its name says nothing about what it bounds: `LEAST`, or `LEAST_BYTES` where it decides something."""
        name = self.name.lstrip("_")
        words = set(name.split("_"))
        return name in VAGUE or (self.status != "Convention" and words <= _OF_NOTHING and bool(words & VAGUE))


def constants(package: Path = PACKAGE, root: Path = ROOT) -> Iterator[Constant]:
    """All numbers in modules below `package` except those of the table, file by file, in the order of their lines."""
    for path in sorted(package.rglob("*.py")):
        if path.parent != package / "calibration":
            yield from constants_of(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())


def constants_of(source: str, path: str) -> Iterator[Constant]:
    """The numbers of one file: names in capitals that get a number, several numbers, or one from the table.

    Several names that get whole numbers in one line are the codes of an enumeration, which decide nothing; fractions
    are not codes.
    """
    body = ast.parse(source).body
    lines = source.splitlines()
    for node, after in zip(body, [*body[1:], None], strict=True):
        names, value, said = _assigned(node)
        if value is None or not names:
            continue
        if not _of_the_table(value) and (not _numeric(value) or (len(names) > 1 and _whole(value))):
            continue
        for name in names:
            yield Constant(path, node.lineno, name, said, ast.unparse(value), _text(lines, node, after))


def hidden_in(source: str) -> Iterator[tuple[int, str]]:
    """(line, code) of each fraction that stands within a statement of a module that gives it no status: compared,
    multiplied or passed on in a function, or among other things in a table."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).partition("[")[0] in STATUSES:
            continue
        for one in ast.walk(node):
            for part in _operands(one):
                value = part.value if isinstance(part, ast.Constant) else None
                if isinstance(value, float) and value not in _UNITS | _ROUNDED | _PLAIN:
                    yield part.lineno, ast.unparse(one)


def _operands(node: ast.AST) -> list[ast.expr]:
    """What is compared, computed with, passed on or listed in a piece of code."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.Call):
        return [*node.args, *(one.value for one in node.keywords)]
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return node.elts
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, ast.IfExp | ast.Return):
        return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node.value] if node.value else []
    if isinstance(node, ast.BoolOp):
        return node.values
    return [node.value] if isinstance(node, ast.Assign | ast.AugAssign) else []


def hidden(package: Path = PACKAGE, root: Path = ROOT) -> Iterator[str]:
    """`path:line code` of each in rooms that decide."""
    for room in DECIDING:
        for path in sorted((package / room).rglob("*.py")):
            for line, code in hidden_in(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(root).as_posix()}:{line} {code[:120]}"


def _of_the_table(value: ast.AST) -> bool:
    """Whether a value is computed from the table's numbers; a text that quotes them is not."""
    if isinstance(value, ast.JoinedStr):
        return False
    named = isinstance(value, ast.Name) and "calibrat" in value.id
    return named or any(_of_the_table(one) for one in ast.iter_child_nodes(value))


def _assigned(node: ast.stmt) -> tuple[list[str], ast.expr | None, str]:
    """Names in capitals that a statement assigns to, what they get, and the type it states."""
    if isinstance(node, ast.AnnAssign):
        targets, value, said = [node.target], node.value, ast.unparse(node.annotation)
    elif isinstance(node, ast.Assign):
        targets, value, said = node.targets, node.value, ""
    else:
        return [], None, ""
    elements = targets[0].elts if isinstance(targets[0], ast.Tuple) else targets
    names = [one.id for one in elements if isinstance(one, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z0-9_]*", one.id)]
    return (names, value, said) if len(names) == len(elements) else ([], None, "")


def _numeric(value: ast.expr) -> bool:
    """Whether a value is a number, arithmetic with one, or a collection of nothing else."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.UnaryOp):
        return _numeric(value.operand)
    if isinstance(value, ast.BinOp):
        return _numeric(value.left) or _numeric(value.right)
    if isinstance(value, ast.Tuple | ast.List | ast.Set):
        return bool(value.elts) and all(_numeric(one) for one in value.elts)
    if isinstance(value, ast.Dict):
        return bool(value.values) and all(_numeric(one) for one in value.values)
    return False


def _whole(value: ast.expr) -> bool:
    """Whether it contains no fraction."""
    return not any(isinstance(one, ast.Constant) and isinstance(one.value, float) for one in ast.walk(value))


def _text(lines: list[str], node: ast.stmt, after: ast.stmt | None) -> str:
    """Comment lines above, comments on its own lines, and the docstring below."""
    above = []
    at = node.lineno - 2
    while at >= 0 and lines[at].lstrip().startswith("#"):
        above.insert(0, lines[at].lstrip("# "))
        at -= 1
    around = [
        line.partition("#")[2].strip() for line in lines[node.lineno - 1 : node.end_lineno] if "#" in line
    ]  # a `#` inside of a string is rare here, and does no harm
    below = []
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        below = [" ".join(after.value.value.split())]
    return " ".join([*above, *around, *below])


def by_room(found: list[Constant]) -> str:
    """A line a room: how many numbers there are of each status, aliases of calibrated numbers, vague names."""
    heads = (*(status.lower() for status in STATUSES), "bare", "aliases", "vague")
    rows = [f"{'':12s}" + "".join(f"{head:>12s}" for head in heads)]
    for room in [*sorted({one.room for one in found}), ""]:
        here = [one for one in found if room in ("", one.room)]
        own = Counter(one.status or "bare" for one in here if not one.is_alias)
        counts = [*(own[status] for status in (*STATUSES, "bare")), sum(one.is_alias for one in here)]
        rows.append(f"{room or 'all':12s}" + "".join(f"{n:12d}" for n in (*counts, sum(one.is_vague for one in here))))
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", nargs="?", default="", help="every number of this part of gpuprof")
    parser.add_argument("--bare", action="store_true", help="those whose type says nothing, and vague names")
    parser.add_argument("--hidden", action="store_true", help="fractions without a name in rooms that decide")
    given = parser.parse_args()
    if given.hidden:
        print("\n".join(hidden()))
        return
    found = [one for one in constants() if given.room in one.path]
    shown = [one for one in found if one.is_alias or one.is_vague or not one.status] if given.bare else found
    if given.room or given.bare:
        for one in shown:
            print(f"{one.path}:{one.line}  {one.name} = {one.value[:80]}  [{one.type or 'bare'}]")
            if one.text:
                print(f"    {one.text}")
    print(by_room(found))


if __name__ == "__main__":
    main()
