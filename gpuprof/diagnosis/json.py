"""A Diagnosis as `gpuprof.diagnosis/1`: the keys of the dataclasses, in the order in which a person reads.

`schema/diagnosis-1.json` is the published JSON Schema. What a trace cannot tell is null; NaN and infinity
never appear. The ends of the window are decimal strings: they exceed what a JavaScript number holds exactly.
"""

from __future__ import annotations

import dataclasses
import json
import math
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.diagnosis.diagnosis import SCHEMA, Diagnosis, Window
from gpuprof.diagnosis.headline import headline

if TYPE_CHECKING:
    from gpuprof.memory.memory_report import MemoryReport

SCHEMA_FILE = Path(__file__).with_name("schema") / "diagnosis-1.json"


def dumps(diagnosis: Diagnosis, indent: int | None = 2) -> str:
    """The JSON text, in ASCII: any pipe and parser takes it, whatever a trace calls its kernels."""
    return json.dumps(to_json(diagnosis), indent=indent, ensure_ascii=True, allow_nan=False)


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    d = diagnosis
    return {
        "schema": SCHEMA,
        "source": plain(d.source),
        "quality": plain(d.quality),
        "environment": plain(d.environment),
        "run": plain(d.run),
        "workload": plain(d.workload),
        "start_up": plain(d.start_up),
        "steps": plain(d.steps),
        "budget": plain(d.budget),
        "iteration": plain(d.iteration),
        "window": _window(d.window),
        "devices": plain(d.devices),
        "devices_estimated": plain(d.devices_estimated),
        "gaps": plain(d.gaps),
        "kernels": plain(d.kernels),
        "phases": plain(d.phases),
        "cpu_step": plain(d.cpu_step),
        "host": plain(d.host),
        "ranges": plain(d.ranges),
        "activity": plain(d.activity),
        "profiler": plain(d.profiler),
        "roofline": plain(d.roofline),
        "replay": plain(d.replay),
        "sensitivities": plain(d.sensitivities),
        "ranks": plain(d.ranks),
        "job": plain(d.job),
        "memory": _memory(d.memory),
        "verdict": {"headline": headline(d), "summary": plain(d.verdict.summary), **plain(d.verdict)},
        "findings": plain(d.findings),
        "combined": plain(d.combined),
        "worth_trying": plain(d.worth_trying),
        "considered": plain(d.considered),
        "above_reach": plain(d.above_reach),
        "counters": plain(d.counters),
    }


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def _memory(memory: MemoryReport | None) -> dict[str, Any] | None:
    """As `gpuprof.memory/1`, but for the series over time, which `gpuprof memory` prints."""
    found = plain(memory)
    if found is not None:
        found["devices"] = [{key: one[key] for key in one if key != "series"} for one in found["devices"]]
    return found


def _window(window: Window | None) -> dict[str, str] | None:
    if window is None:
        return None
    return {"start_ns": str(int(window.start_ns)), "end_ns": str(int(window.end_ns))}


def plain(value: Any) -> Any:
    """The value as JSON knows it; numbers may be numpy's."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {_encodable(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    raise TypeError(f"a Diagnosis holds no {type(value).__name__}")


def _encodable(text: str) -> str:
    """Text that any UTF-8 writer takes: half a surrogate pair becomes U+FFFD, both halves their character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
