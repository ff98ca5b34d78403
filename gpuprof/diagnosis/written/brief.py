"""The few numbers of a Diagnosis that a program or an agent needs for decisions, as `gpuprof.brief/1` in under 4 kB.

Texts are shortened and findings come with the most useful first; findings that do not fit are dropped from the end and
counted, so the limit holds for every recording.
"""

from __future__ import annotations

import json
from typing import Any

from gpuprof import documents
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.diagnosis.verdict.headline import headline
from gpuprof.diagnosis.verdict.step_parts import bars as bars_of
from gpuprof.documents import plain
from gpuprof.units import Bytes, Characters, Convention, Entries

SCHEMA = "gpuprof.brief/1"
LARGEST_BYTES: Convention[Bytes] = 4000
"""Limit on the text that `dumps` returns, without a line end."""
_LONGEST_TEXT: Convention[Characters] = 240
_MOST_ISSUES: Convention[Entries] = 3
_MOST_CAUSES: Convention[Entries] = 6
_MOST_TRIES: Convention[Entries] = 4


def dumps(diagnosis: Diagnosis, **more: Any) -> str:
    """The JSON text, in ASCII on one line, at most LARGEST_BYTES long; `more` is kept whole."""
    document = to_json(diagnosis) | more
    while len(text := _encoded(document)) > LARGEST_BYTES and _lessen(document):
        pass
    return text


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts, not yet cut to size."""
    d, verdict, steps = diagnosis, diagnosis.verdict, diagnosis.steps
    return {
        "schema": SCHEMA,
        "path": _short(d.source.path),
        "kind": d.source.kind,
        "quality": {
            "status": d.quality.status,
            "issues": [{"id": i.id, "message": _short(i.message)} for i in d.quality.issues[:_MOST_ISSUES]],
        },
        "gpus": [_short(gpu.name, 40) for gpu in d.environment.gpus[:8]],
        "verdict": {
            "headline": headline(d),
            "bound": verdict.bound,
            "cause": verdict.cause,
            "second": verdict.second,
            "confidence": plain(verdict.confidence),
            "summary": _short(verdict.summary, 400),
        },
        "step_ns": None if d.step_ns is None else int(d.step_ns),
        "recorded_ns": None if steps is None else int(steps.recorded_ns),
        "budget": _budget(diagnosis),
        "idle": _idle(diagnosis),
        "findings": [_finding(finding) for finding in d.findings],
        "findings_left_out": 0,
        "worth_trying": [_worth_trying(finding) for finding in d.worth_trying[:_MOST_TRIES]],
    }


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return documents.schema(SCHEMA)


def _budget(diagnosis: Diagnosis) -> dict[str, Any] | None:
    budget = diagnosis.budget
    if budget is None:
        return None
    return {
        "mean_ns": int(budget.mean_ns),
        "low_ns": int(budget.low),
        "high_ns": int(budget.high),
        "usual_ns": int(budget.usual_ns),
        "excess": [{"cause": e.cause, "mean_ns": plain(e.mean_ns)} for e in budget.excess[:_MOST_CAUSES]],
        "residual_ns": int(budget.residual_ns),
        "steps": int(budget.steps),
        "source": budget.source,
    }


def _idle(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Idle share of the step and its causes, for the device that is idle longest. Events of some steps that may use the
    device, such as evaluation, are not idle time; they are in `budget`."""
    bars = [bar for bar in bars_of(diagnosis) if bar.total_ns > 0]
    if not bars:
        return None
    bar = max(bars, key=lambda one: one.idle_ns() / one.total_ns)
    largest = sorted((part for part in bar.parts if part.idle), key=lambda part: -part.ns)[:_MOST_CAUSES]
    return {
        "device": int(bar.device),
        "share": round(bar.idle_ns() / bar.total_ns, 4),
        "causes": {part.key: round(part.ns / bar.total_ns, 4) for part in largest},
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "title": _short(finding.title, 100),
        "severity": finding.severity,
        "fix": _short(finding.fix),
        "changes": None if finding.changes is None else _short(finding.changes, 120),
        "step_ns": {name: int(getattr(finding.step_ns, name)) for name in ("low", "expected", "high")},
        "speedup": {name: round(getattr(finding.speedup, name), 3) for name in ("low", "expected", "high")},
    }


def _worth_trying(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "title": _short(finding.title, 100),
        "changes": None if finding.changes is None else _short(finding.changes, 120),
        "speedup": {name: round(getattr(finding.speedup, name), 3) for name in ("low", "expected", "high")},
        "probability": round(finding.probability, 2),
        "settle": None if finding.settle is None else _settle(finding.settle),
    }


def _settle(text: str) -> str:
    """The whole command line, or without the training's own command: one that is cut short would do something else."""
    return text if len(text) <= _LONGEST_TEXT else text.partition(" -- ")[0]


def _lessen(document: dict[str, Any]) -> bool:
    """Removes what matters least; False if only required parts are left."""
    if len(document["worth_trying"]) > 2 or (document["worth_trying"] and not document["findings"]):
        document["worth_trying"].pop()
    elif document["findings"]:
        document["findings"].pop()
        document["findings_left_out"] += 1
    elif document["quality"]["issues"]:
        document["quality"]["issues"].pop()
    elif document["gpus"]:
        document["gpus"].pop()
    else:
        return False
    return True


def _encoded(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _short(text: str, longest: int = _LONGEST_TEXT) -> str:
    """The text, cut to at most `longest` bytes of JSON (a non-ASCII character takes six)."""
    text = plain(text)
    if len(json.dumps(text)) - 2 <= longest:
        return text
    low, high = 0, len(text)
    while low < high:  # the longest beginning that fits, with three dots
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(json.dumps(text[:middle])) + 1 <= longest else (low, middle - 1)
    return f"{text[:low]}..."
