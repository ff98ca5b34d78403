"""List the numeric module constants of gpuprof: where each stands, what it says of itself, and whether it is in the
calibration table.

    python -m benchmarks.constants             # every constant
    python -m benchmarks.constants --measured  # those that say they were fitted, measured or assumed
    python -m benchmarks.constants replay      # of one room

A constant that was fitted to recordings belongs in `gpuprof/calibration/`; what stays next to its code are
definitions, formats, physics and thresholds of taste.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gpuprof"
TABLE = PACKAGE / "calibration"

MEASURED = re.compile(r"\b(fitted|measured|recordings|runs|guess\w*|assumed|[HAVB]\d00s?)\b", re.IGNORECASE)
"""Words that a constant uses when its number comes from recordings, or should."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A module constant with a number in it. `line` counts from 1; `text` is its docstring and comments."""

    path: str
    line: int
    name: str
    value: str
    text: str

    @property
    def key(self) -> str:
        """`gpuprof/replay/build.py:SLOT`, which survives edits above it."""
        return f"{self.path}:{self.name}"

    @property
    def in_table(self) -> bool:
        """Whether its value comes from the calibration table."""
        return self.path.startswith("gpuprof/calibration/") or "calibrat" in self.value

    @property
    def says_measured(self) -> bool:
        """Whether its text says that the number comes from recordings, or is a guess at what they would say."""
        return MEASURED.search(self.text) is not None


def constants(package: Path = PACKAGE, root: Path = ROOT) -> Iterator[Constant]:
    """Every numeric module constant below `package`, file by file, in the order of their lines."""
    for path in sorted(package.rglob("*.py")):
        yield from constants_of(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())


def constants_of(source: str, path: str) -> Iterator[Constant]:
    """Those of one file: names in capitals that get a value with a number in it, or one from the table."""
    tree = ast.parse(source)
    lines = source.splitlines()
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        target, value = _assigned(node)
        if target is None or value is None or not (_numeric(value) or "calibrat" in ast.unparse(value)):
            continue
        yield Constant(path, node.lineno, target, ast.unparse(value), _text(lines, node, after))


def _assigned(node: ast.stmt) -> tuple[str | None, ast.expr | None]:
    """Name and value of an assignment to one or more names in capitals."""
    if isinstance(node, ast.AnnAssign):
        targets, value = [node.target], node.value
    elif isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    else:
        return None, None
    elements = targets[0].elts if isinstance(targets[0], ast.Tuple) else targets
    names = [target.id for target in elements if isinstance(target, ast.Name)]
    capitals = [name for name in names if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name)]
    return (", ".join(capitals), value) if capitals and len(capitals) == len(elements) else (None, None)


def _numeric(value: ast.expr) -> bool:
    """Whether a number is part of the value, other than an index, a flag or a string's."""
    return any(
        isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
        for node in ast.walk(value)
    )


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", nargs="?", default="", help="only constants of this part of gpuprof")
    parser.add_argument("--measured", action="store_true", help="only those that say they come from recordings")
    given = parser.parse_args()
    shown = [one for one in constants() if given.room in one.path and (one.says_measured or not given.measured)]
    for one in shown:
        place = "table" if one.in_table else "code"
        print(f"{one.path}:{one.line}  {one.name} = {one.value[:80]}  [{place}]")
        if one.text:
            print(f"    {one.text}")
    print(f"{len(shown)} constants, {sum(one.in_table for one in shown)} of them from the table")


if __name__ == "__main__":
    main()
