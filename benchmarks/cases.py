"""Would gpuprof have found what an expert found? A score over scenarios/cases.

    python -m benchmarks.cases [--runs FOLDER] [--page]

A case is a published fix of some project (`source` in scenario.json), made again as a program before and after it and
timed on a GPU; "before" was recorded by `gpuprof trace`. The score is about what a person sees first: the first three
of
*Fixes*, the first three of *Worth trying*, the three largest items above reach, and the three functions with a price.

- cause: one of these lines is of a finding that the case names (`causes`), or has one of its words (`named_by`).
- place: one of them names the module, function or op that was changed (`where`).
- gain: of every measured change that has a finding, and of the published one under the first line that names its
  cause, the share whose measured gain lies in the predicted interval; and, as `benchmarks.recall` counts, the share
  whose gain turn by turn meets it, since turns on a shared host differ.
A case that does not gain 3 % on this GPU is shown and not counted.
- after: the recording with the fix gets no such advice again; cases without one are not counted.

FOLDER holds recordings that are too large for the repository, as `cases.NAME`. `--page` writes docs/cases.md, and the
row of README that quotes it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gpuprof
from benchmarks import readme_cases
from benchmarks.accuracy import ROOT
from benchmarks.out_of_sample import wilson
from benchmarks.recall_pairs import Gain, gain_of
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Finding

CASES = ROOT / "scenarios" / "cases"
PAGE = ROOT / "docs" / "cases.md"
FIRST = 3
GAINED = 1.03
"""Measured gain from which the published cause costs something here."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a person reads first."""

    kind: str
    """fixes | worth trying | above reach | functions"""
    ids: tuple[str, ...]
    title: str
    text: str
    """The whole text, in which words are searched."""
    finding: Finding | None


@dataclass(frozen=True, slots=True)
class Score:
    """One case. None: not scored, since nothing was measured or recorded."""

    name: str
    title: str
    source: str
    published: float | None
    measured: float | None
    cause: str | None
    """The line that names the cause; empty: none."""
    place: bool | None
    gains: dict[str, tuple[Gain, float, float]]
    """Change → measured gain, and the predicted interval."""
    again: bool | None
    """Whether the fixed program gets the advice again; None where no such program was recorded, or where another
    change is advised than the published one, which may still be due after it."""
    code: str = ""
    """The library whose own code is slow; empty: the program was rewritten."""


def main() -> None:
    """Prints or writes the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="recordings that are too large for the repository")
    parser.add_argument("--page", action="store_true", help="write docs/cases.md")
    args = parser.parse_args()
    scores = [score_of(path.parent, args.runs) for path in sorted(CASES.glob("*/scenario.json"))]
    text = page(scores)
    if args.page:
        PAGE.write_text(text)
        readme_cases.main()
    else:
        print(text)


def score_of(folder: Path, runs: Path | None) -> Score:
    """The score of one case."""
    case = json.loads((folder / "scenario.json").read_text())
    measured = gains_of(folder / "truth.json")
    before = recording(folder, runs)
    base = {
        "name": folder.name,
        "title": case["title"],
        "source": case["source"],
        "published": next((fix.get("published") for fix in case["fixes"] if fix["name"] == "after"), None),
        "measured": measured["after"].middle if "after" in measured else None,
        "code": case.get("code", ""),
    }
    if before is None:
        return Score(**base, cause=None, place=None, gains={}, again=None)
    lines = [without_own_name(line, folder.name) for line in lines_of(gpuprof.diagnose(before))]
    named = [line for line in lines if names(line, case.get("causes", ()), case.get("named_by", ()))]
    place = any(word.lower() in line.text.lower() for line in lines for word in case["where"])
    after = recording(folder, runs, "fixed", ".after")
    published = next(fix["finding"] for fix in case["fixes"] if fix["name"] == "after")
    advised = {_advice(line.finding) for line in named if line.finding}
    again = None
    if after is not None and (published or not advised):
        left = {_advice(line.finding) for line in lines_of(gpuprof.diagnose(after)) if line.finding}
        again = bool(left & advised)
    return Score(
        **base,
        cause=f"{named[0].title} ({named[0].kind})" if named else "",
        place=place,
        gains=intervals(case["fixes"], measured, lines, named),
        again=again,
    )


def recording(folder: Path, runs: Path | None, inside: str = "recording", ending: str = "") -> Path | None:
    """The recording of the program before the fix, or with other names after it; None without a trace."""
    places = [folder / inside, *([runs / f"cases.{folder.name}{ending}"] if runs else [])]
    return next((path for path in places if any(path.glob("trace.*"))), None)


def lines_of(diagnosis: Diagnosis) -> list[Line]:
    """What a person reads first, in the order of the screen."""
    items = diagnosis.above_reach.largest if diagnosis.above_reach else ()
    functions = diagnosis.host.functions if diagnosis.host else ()
    found = [_of_finding("fixes", one) for one in diagnosis.findings[:FIRST]]
    found += [_of_finding("worth trying", one) for one in diagnosis.worth_trying[:FIRST]]
    for item in items[:FIRST]:
        fields: dict[str, Any] = asdict(item)
        ids = [fields.get("finding"), *(fields.get("findings") or ())]
        found.append(Line("above reach", tuple(filter(None, ids)), item.what, str(fields), None))
    found += [Line("functions", (), one.function, str(asdict(one)), None) for one in functions[:FIRST]]
    return found


def without_own_name(line: Line, name: str) -> Line:
    """The line without the folder of the case, whose name may say the cause."""
    return replace(line, text=line.text.replace(name, ""))


def _advice(finding: Finding) -> tuple[str, ...]:
    """What is advised: the finding, and the code that it shows."""
    return (finding.id, *(one.text for one in finding.fix_lines))


def _of_finding(kind: str, finding: Finding) -> Line:
    return Line(kind, (finding.id,), finding.title, str(asdict(finding)), finding)


def names(line: Line, causes: list[str], words: list[str]) -> bool:
    """Whether a line names the cause."""
    return bool(set(line.ids) & set(causes)) or any(word.lower() in line.text.lower() for word in words)


def intervals(
    fixes: list[dict[str, Any]], measured: dict[str, Gain], lines: list[Line], named: list[Line]
) -> dict[str, tuple[Gain, float, float]]:
    """Change → (measured gain, low and high of the predicted one) of all that were measured and shown.

    Changes that were made together (`also`) have no prediction of their own; their parts do.
    """
    found = {}
    shown = {line.finding.id: line.finding for line in reversed(lines) if line.finding}
    for fix in fixes:
        if fix.get("also"):
            continue
        finding = shown.get(fix["finding"])
        if fix["name"] == "after" and finding is None:
            finding = next((line.finding for line in named if line.finding), None)
        if finding is not None and fix["name"] in measured:
            found[fix["name"]] = (measured[fix["name"]], finding.speedup.low, finding.speedup.high)
    return found


def gains_of(truth: Path) -> dict[str, Gain]:
    """Change → measured gain: the median step as it is over the median step with it, of processes that took turns."""
    if not truth.exists():
        return {}
    took: dict[str, list[float]] = {}
    for process in json.loads(truth.read_text())["processes"]:
        took.setdefault(process["fix"], []).append(process["free_ms"])
    base = took.pop("")
    return {fix: gain_of(base, values) for fix, values in took.items()}


def page(scores: list[Score]) -> str:
    """docs/cases.md."""
    recorded = [one for one in scores if one.cause is not None]
    done = [one for one in recorded if (one.measured or 0.0) >= GAINED]
    held = [low <= gain.middle <= high for one in done for gain, low, high in one.gains.values()]
    met = [low <= gain.high and gain.low <= high for one in done for gain, low, high in one.gains.values()]
    again = [one for one in done if one.again is not None]
    names_again = "".join(f", `{one.name}`" for one in again if one.again)
    repeated = f"{sum(bool(one.again) for one in again)} of {len(again)}{names_again}"
    repeated = repeated if again else "no fixed program was recorded"
    rows = "\n".join(_row(one) for one in scores)
    own = sum(bool(one.code) for one in scores)
    return f"""# Published fixes: would gpuprof have found them?

Experts find the cause of a slow step by hand, and say in a pull request what it was, how they fixed it and what the fix
gained. Each case here reproduces such a fix as a small program. It was timed without a profiler on an H200 or H100,
with and without the fix in turns, and recorded without the fix. In {own} of {len(scores)} the slow code is the
library's own, as installed or with the fix taken back (*Code* names the library); the others were rewritten. Written by
`python -m benchmarks.cases --page`, which also says what counts; the programs are in `scenarios/cases/`.

| | | 80 % interval |
|---|---|---|
| cause in the first lines | {_share([bool(one.cause) for one in done])} |
| module, function or op right | {_share([bool(one.place) for one in done])} |
| measured gain in the predicted interval | {_share(held)} |
| interval of the measured gain over its turns overlaps the predicted one | {_share(met)} |
| the fixed program gets the advice again | {repeated} | |

Of {len(scores)} cases these are not counted: {len(scores) - len(recorded)} without a recording, and
{len(recorded) - len(done)} that gained less than 3 % on the GPU where they were timed.

| Case | Code | Published | Measured | What gpuprof says first of the cause | Place | Gain: measured, predicted |
|---|---|---|---|---|---|---|
{rows}
"""


def _share(hits: list[bool]) -> str:
    if not hits:
        return "none | "
    low, high = wilson(sum(hits), len(hits))
    return f"{sum(hits)} of {len(hits)} | {100 * low:.0f} to {100 * high:.0f} %"


def _row(one: Score) -> str:
    said = "not recorded" if one.cause is None else one.cause or "nothing"
    place = {None: "–", True: "right", False: "missed"}[one.place]
    gains = ", ".join(
        f"{name} {gain.middle:.2f} ({gain.low:.2f} to {gain.high:.2f}), {low:.2f}–{high:.2f}"
        for name, (gain, low, high) in one.gains.items()
    )
    return (
        f"| [{one.title}]({one.source}) (`{one.name}`) | {one.code or 'rewritten'} | {_times(one.published)} | "
        f"{_times(one.measured)} | {said} | {place} | {gains or '–'} |"
    )


def _times(gain: float | None) -> str:
    return "–" if gain is None else f"{gain:.2f}×"


if __name__ == "__main__":
    main()
