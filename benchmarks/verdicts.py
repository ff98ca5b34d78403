"""Which verdicts and steps changed between two versions, next to what was measured.

    python -m benchmarks.same_json OTHER_CHECKOUT --keep FOLDER
    python -m benchmarks.verdicts FOLDER/BEFORE FOLDER/AFTER [--shared FOLDER]

Reads the texts that `benchmarks.same_json --keep` wrote for two commits. For every recording: what limits it and why,
its step, the cost of the profiler, and its ranks; for every projection, the limit there and the step. Prints what
differs as a table in Markdown, with the truth of benchmarks/accuracy.py where it is known.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy import MS, ROOT, Case, cases
from benchmarks.same_json import folder_of, recordings

STEP = 0.001
"""Times that differ by less are the same."""


@dataclass(frozen=True)
class Change:
    """One difference."""

    recording: str
    what: str
    before: str
    after: str
    truth: str


def changes(before: Path, after: Path, truths: dict[str, Case]) -> Iterator[Change]:
    """What differs between the texts of two versions; of recordings that only one of them has nothing."""
    for folder in sorted(path.name for path in before.iterdir() if (after / path.name).is_dir()):
        case = truths.get(folder)
        for file, said in (("diagnosis.json", of_diagnosis), ("projection.json", of_projection)):
            old, new = (_read(version / folder / file) for version in (before, after))
            if old is None or new is None:
                if (old is None) != (new is None):
                    was, is_now = ("error" if one is None else "ok" for one in (old, new))
                    yield Change(_name(folder), file, was, is_now, "–")
                continue
            one, other = said(old), said(new)
            for what in dict.fromkeys([*one, *other]):
                if _differ(one.get(what), other.get(what)):
                    truth = _truth(case, what) if file == "diagnosis.json" else "–"
                    yield Change(_name(folder), what, _text(one.get(what)), _text(other.get(what)), truth)


def of_diagnosis(document: dict[str, Any]) -> dict[str, str | float | None]:
    """What is compared of a diagnosis; times in ms."""
    steps, budget, profiler = (document.get(key) or {} for key in ("steps", "budget", "profiler"))
    found = {
        "verdict": _verdict(document["verdict"]),
        "estimated step": _ms(steps.get("estimated_ns")),
        "mean step": _ms(budget.get("mean_ns")),
        "profiler, least": _ms(profiler.get("low_ns")),
        "profiler": _ms(profiler.get("typical_ns")),
        "profiler, most": _ms(profiler.get("high_ns")),
    }
    for rank in document.get("ranks") or ():
        found |= {f"rank {rank['rank']}: verdict": _verdict(rank), f"rank {rank['rank']}: pace": _ms(rank["pace_ns"])}
    return found


def of_projection(document: dict[str, Any]) -> dict[str, str | float | None]:
    """What is compared of a projection; times in ms."""
    found: dict[str, str | float | None] = {}
    for gpu in document["gpus"]:
        found |= {f"{gpu['gpu']}: verdict": gpu["bound"], f"{gpu['gpu']}: step": _ms(gpu["step_ns"]["expected"])}
    return found


def truths(shared: Path) -> dict[str, Case]:
    """Folder of same_json → what was measured of that recording."""
    known = {case.path.resolve(): case for case in cases(shared)}
    named = recordings(shared if shared.is_dir() else None)
    return {folder_of(name): known[path.resolve()] for name, path in named if path.resolve() in known}


def _truth(case: Case | None, what: str) -> str:
    if case is None:
        return "–"
    if what == "verdict" and case.verdict:
        return " or ".join(case.verdict) + (f" ({case.cause})" if case.cause else "")
    if what in ("estimated step", "mean step") and case.unprofiled_ms:
        return "–".join(f"{ms:.4g}" for ms in case.unprofiled_ms)
    return "–"


def _verdict(said: dict[str, Any]) -> str | None:
    return f"{said['bound']} ({said['cause']})" if said["cause"] else said["bound"]


def _differ(one: str | float | None, other: str | float | None) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) > STEP * max(abs(one), abs(other))
    return one != other


def _text(value: str | float | None) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else f"{value:.4g}"


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / MS


def _name(folder: str) -> str:
    return folder.replace("~", "/")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    asked = parser.parse_args()
    print("| recording | what | before | after | measured |\n|---|---|---|---|---|")
    for one in changes(asked.before, asked.after, truths(asked.shared)):
        print(f"| {one.recording} | {one.what} | {one.before} | {one.after} | {one.truth} |")


if __name__ == "__main__":
    main()
