"""Diagnoses every trace in a folder and checks what must hold for any diagnosis.

    python -m benchmarks.corpus FOLDER… [--jobs 1]

Prints a line for each recording (verdict, confidence, step, fixes, what share of the GPU's time has no category) and
which of `benchmarks.invariants` are broken; exits with 1 if any is. A file that gpuprof refuses in one line counts as
refused, not as broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import gpuprof
from benchmarks.invariants import broken, inapplicable
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.errors import GpuprofError

ENDINGS = (".json", ".json.gz", ".sqlite", ".sqlite.gz")
OTHER = 0.05
"""Share of the GPU's time in kernels without a category, above which their names should be looked at."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result for one recording."""

    path: str
    text: str
    broken: tuple[str, ...] = ()
    other: float = 0.0
    seconds: float = 0.0


def recordings(folder: Path) -> Iterator[Path]:
    """Runs as their folder, other traces as files."""
    runs = {path.parent for path in folder.rglob("manifest.json")}
    yield from sorted(runs)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name.endswith(ENDINGS) and not runs & set(path.parents):
            yield path


def row(path: Path) -> Row:
    """The diagnosis of one recording, in a line, and what is broken in it."""
    begun = time.perf_counter()
    try:
        found = gpuprof.diagnose(path)
    except GpuprofError as error:
        lines = str(error).splitlines()
        return Row(str(path), f"refused: {lines[0][:90]}", ("a refusal of several lines",) if len(lines) > 1 else ())
    except Exception as error:
        return Row(str(path), "", (f"{type(error).__name__}: {error}",))
    try:
        wrong = (*broken(found), *inapplicable(found))
    except Exception as error:
        wrong = (f"{type(error).__name__}: {error}",)
    return Row(str(path), _text(found), wrong, _other(found), time.perf_counter() - begun)


def _text(found: Diagnosis) -> str:
    verdict, step = found.verdict, found.step_ns
    bound = verdict.bound or ("unusable" if found.quality.status == "unusable" else "unclear")
    cause = f" ({verdict.cause})" if verdict.cause else ""
    sure = f" {verdict.confidence:.2f}" if verdict.confidence is not None else ""
    took = "" if step is None else f" · {step / 1e6:,.1f} ms"
    fixes = ", ".join(f"{one.id} {one.speedup.low:.2g}–{one.speedup.high:.2g}×" for one in found.findings)
    issues = ", ".join(issue.id for issue in found.quality.issues if issue.severity != "info")
    return f"{bound}{cause}{sure}{took}" + (f" · {fixes}" if fixes else "") + (f" · {issues}" if issues else "")


def _other(found: Diagnosis) -> float:
    kernels = found.kernels
    if kernels is None or not kernels.total_ns:
        return 0.0
    return sum(one.ns for one in kernels.by_category if one.category == "other") / kernels.total_ns


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    paths = [path for folder in options.folders for path in recordings(folder)]
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(row, paths))
    else:
        rows = [row(path) for path in paths]
    for one in rows:
        unnamed = f" · {100 * one.other:.0f} % of no category" if one.other > OTHER else ""
        print(f"{'BROKEN' if one.broken else 'ok':6} {one.seconds:5.1f} s  {one.path[-60:]:60}  {one.text}{unnamed}")
        for what in one.broken:
            print(f"         {what}")
    wrong = sum(bool(one.broken) for one in rows)
    print(f"{len(rows)} recordings, {wrong} with something broken")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
