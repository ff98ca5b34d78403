"""What an agent should do next: a tool to call with arguments, or an action without a tool, and why.
Answers of `gpuprof mcp` have a list of these as `next_steps`. The first continues the usual sequence, diagnose →
explain → try → compare; an action by hand is followed by the entry after it; all others are alternatives.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuprof import runfile
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import BEFORE_COMMAND, Finding
from gpuprof.diagnosis.result.fix import PatchValue
from gpuprof.record.base.redact import MASK
from gpuprof.trial.fixes import FixToTry, advised, lines_for
from gpuprof.trial.patches import names
from gpuprof.trial.trial import TriedFix
from gpuprof.trial.trial_subject import START_S, TrialSubject, with_workers
from gpuprof.units import Characters, Convention, Entries

MOST_EXPLAINED: Convention[Entries] = 3
"""Fixes whose page a diagnosis names."""
_LONGEST_FIX: Convention[Characters] = 300
"""Longest text of a fix by hand, or of a command in a sentence; the findings have it in full."""


def call(tool: str, why: str, **arguments: Any) -> dict[str, Any]:
    """A tool to call."""
    return {"tool": tool, "arguments": arguments, "why": why}


def by_hand(action: str, why: str) -> dict[str, Any]:
    """An action without a tool: a change to the program, or a shell command."""
    return {"do": action, "why": why}


def after_runs(newest: str | None) -> list[dict[str, Any]]:
    """After a list of runs. newest: path of the first."""
    return [] if newest is None else [call("diagnose", "the newest of these runs", path=newest)]


def after_diagnosis(diagnosis: Diagnosis, path: str) -> list[dict[str, Any]]:
    """After a diagnosis: explain the fixes that gain most; without fixes, if the recording is unusable, record
    again."""
    found = [
        call("explain", f"what {one!r} means and when it is wrong, before it is tried", finding=one, path=path)
        for one in _fixes(diagnosis)[:MOST_EXPLAINED]
    ]
    if not found and diagnosis.quality.status == "unusable":
        message = next((one.message for one in diagnosis.quality.issues), "there is nothing to diagnose")
        return [by_hand("record the training again with gpuprof trace", message)]
    return found


def after_page(finding: str, diagnosis: Diagnosis, path: str, may_run: bool) -> list[dict[str, Any]]:
    """After the page of a finding: try its fix on the recorded command, else settle it otherwise."""
    fix = next((one.fix for one in _candidates(diagnosis) if finding in (one.finding, one.fix.name)), None)
    if fix is not None:
        return _to_try(fix, diagnosis, path, may_run)
    known = _known(finding, diagnosis)
    if known is None:
        if finding in names() or not _fixes(diagnosis):
            return []
        return [call("diagnose", f"{finding!r} is not advised for this recording; this says what is", path=path)]
    return [by_hand(f"write: {_short(known.fix)}", "no tool can apply this fix from outside"), *_to_compare(path, None)]


def after_trial(trial: dict[str, Any], folder: str, comparable: bool) -> list[dict[str, Any]]:
    """After a trial as JSON: apply confirmed fixes, record again and compare; else try what was left, or apply
    undecided fixes and compare recordings, which settles them; else look at the other fixes. comparable: whether the
    tried run has a diagnosis, which a comparison needs.
    """
    rows, run = trial["rows"], trial["run"]
    lines = next((row["lines"] for row in rows if trial["best"] and row["fixes"] == trial["best"]), "")
    undecided = next((row["lines"] for row in rows if row["status"] == "unconfirmed"), "")
    before = str(Path(folder, run)) if run else ""
    latest = str(Path(folder, runfile.RUNS, runfile.LATEST))
    left = [
        call(
            "try", f"{one['why']} yet", command=trial["command"], folder=folder,
            fixes=["=".join(filter(None, (fix["name"], fix["value"]))) for fix in one["fixes"]],
            budget=f"{max(round(one['seconds'] / 60), 1)}m",
        )
        for one in trial["next"]
    ]  # fmt: skip
    compared = _to_compare(before, latest) if comparable else []
    if lines:
        return [by_hand(f"write: {_short(lines)}", "confirmed by this trial"), *compared, *left]
    if undecided and compared:
        settle = by_hand(
            f"write: {_short(undecided)}", "not decided by this trial: a comparison of recordings settles it"
        )
        return [*left, settle, *compared]
    return [*left, *([call("findings", "the other fixes", path=before)] if before else [])]


def after_comparison(document: dict[str, Any], b: str) -> list[dict[str, Any]]:
    """After a comparison as JSON: if the step became faster, diagnose what limits it now."""
    if document["step"]["outcome"] != "faster":
        return []
    return [call("diagnose", "what bounds the step now", path=b)]


def after_functions(places: Sequence[tuple[str, int]], path: str) -> list[dict[str, Any]]:
    """After a page of functions, as (file, line): explain what the first costs."""
    return [
        call("explain", "what this line costs, and the step if it were free", finding=f"{file}:{line}", path=path)
        for file, line in places[:1]
    ]


def _to_try(fix: TriedFix, diagnosis: Diagnosis, path: str, may_run: bool) -> list[dict[str, Any]]:
    """The tool try; if nothing may be run, the shell command, and what follows if the fix is confirmed."""
    command, folder = _started(diagnosis)
    fixes = [str(fix)]
    if may_run and command is not None and not any(MASK in word for word in command):
        why = "measures the fix before anything is edited; ask the user first"
        return [call("try", why, command=list(command), fixes=fixes, folder=folder or "")]
    if may_run:
        why = "measures the fix; ask the user for the training's command, which this recording does not have"
        return [call("try", why, command=[], fixes=fixes, folder="")]
    settle = BEFORE_COMMAND.join(filter(None, (PatchValue(fix.name, fix.value).command(), shlex.join(command or ()))))
    return [
        by_hand(f"run in a shell: {_short(settle)}", "measures the fix; this server only reads"),
        by_hand(f"if it is confirmed, write: {_short(lines_for(fix))}", "what the fix is in code"),
        *_to_compare(path, None),
    ]


def _to_compare(before: str, after: str | None) -> list[dict[str, Any]]:
    """Record the changed program, and compare both recordings."""
    return [
        by_hand("record the changed training: gpuprof trace and its command", "so that both can be compared"),
        call("compare", "where the difference comes from; b is the new recording", a=before, b=after or ""),
    ]


def _started(diagnosis: Diagnosis) -> tuple[tuple[str, ...] | None, str | None]:
    """(recorded command, secrets masked; its working directory)."""
    run = diagnosis.folder
    if run is None or not run.command:
        return None, None
    cwd = (runfile.read_json(Path(run.path) / runfile.MANIFEST) or {}).get("cwd")
    return run.command, cwd if isinstance(cwd, str) else None


def _fixes(diagnosis: Diagnosis) -> list[str]:
    """The findings of both lists, most useful first; else the fixes that a trial would try without findings."""
    listed = [one.id for one in (*diagnosis.findings, *diagnosis.worth_trying)]
    return listed or [one.finding or one.fix.name for one in _candidates(diagnosis)]


def _candidates(diagnosis: Diagnosis) -> list[FixToTry]:
    found, _ = advised(diagnosis)
    if diagnosis.folder is None:
        return found
    return with_workers(TrialSubject(Path(diagnosis.folder.path), diagnosis.folder, diagnosis, START_S, None), found)


def _known(finding: str, diagnosis: Diagnosis) -> Finding | None:
    return next((one for one in (*diagnosis.findings, *diagnosis.worth_trying) if one.id == finding), None)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_FIX else f"{text[: _LONGEST_FIX - 1]}…"
