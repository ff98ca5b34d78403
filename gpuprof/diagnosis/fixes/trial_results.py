"""What `gpuprof try` measured for a run's findings, read from its file in the run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuprof import runfile
from gpuprof.diagnosis.result.finding_model import Finding, Measured

STATUSES = ("confirmed", "slower", "no_difference", "unconfirmed", "not_applied", "failed")
SAME = ("bitwise", "within_scatter", "other_random_numbers", "different")


def with_measured(findings: Sequence[Finding], folder: str | None) -> tuple[Finding, ...]:
    """The findings with their measurements; unchanged if nothing was tried."""
    document = runfile.read_json(Path(folder) / runfile.TRIAL) if folder else None
    if document is None:
        return tuple(findings)
    known = {row["finding"]: row for row in _rows(document) if isinstance(row.get("finding"), str)}
    return tuple(
        replace(finding, measured=_measured(known[finding.id])) if finding.id in known else finding
        for finding in findings
    )


def failures(folder: str | None) -> dict[str, str]:
    """Finding → why its fix failed in `gpuprof try`, for fixes that failed."""
    document = runfile.read_json(Path(folder) / runfile.TRIAL) if folder else None
    found: dict[str, str] = {}
    for row in _rows(document or {}):
        fix = row["fixes"][0]
        finding = row.get("finding") or (fix.get("name") if isinstance(fix, dict) else None)
        if row.get("status") == "failed" and isinstance(finding, str):
            found[finding] = str(row.get("reason") or "no reason is known")
    return found


def _rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    rows = document.get("rows")
    single = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [row for row in single if isinstance(row.get("fixes"), list) and len(row["fixes"]) == 1]


def _measured(row: dict[str, Any]) -> Measured | None:
    """The measurement in a row; None if the row was not tried or is damaged."""
    status = row.get("status")
    if status not in STATUSES:
        return None
    gain = row.get("speedup") if isinstance(row.get("speedup"), dict) else {}
    same = row.get("sameness") if isinstance(row.get("sameness"), dict) else {}
    return Measured(
        status=str(status),
        step_ns=_whole(row.get("step_ns")),
        speedup_low=_number(gain.get("low")),  # type: ignore[union-attr]
        speedup=_number(gain.get("expected")),  # type: ignore[union-attr]
        speedup_high=_number(gain.get("high")),  # type: ignore[union-attr]
        sameness=same.get("verdict") if same.get("verdict") in SAME else None,  # type: ignore[union-attr]
        reason=str(row.get("reason") or ""),
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None
