"""A Diagnosis as `gpuprof.diagnosis/1`: the dataclasses' fields as keys, in reading order.

What a trace does not show is null. The ends of the window are decimal strings: they exceed the integers that a
JavaScript number holds exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuprof import documents
from gpuprof.diagnosis.result.diagnosis import SCHEMA, AnalysedWindow, Diagnosis
from gpuprof.diagnosis.verdict.headline import headline
from gpuprof.documents import plain

if TYPE_CHECKING:
    from gpuprof.memory.memory_report import MemoryReport


def dumps(diagnosis: Diagnosis, indent: int | None = 2) -> str:
    """The JSON text, in ASCII."""
    return documents.dumps(to_json(diagnosis), indent)


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
    return documents.schema(SCHEMA)


def _memory(memory: MemoryReport | None) -> dict[str, Any] | None:
    """As `gpuprof.memory/1` without the series over time, which `gpuprof memory` prints."""
    found = plain(memory)
    if found is not None:
        found["devices"] = [{key: one[key] for key in one if key != "series"} for one in found["devices"]]
    return found


def _window(window: AnalysedWindow | None) -> dict[str, str] | None:
    if window is None:
        return None
    return {"start_ns": str(int(window.start_ns)), "end_ns": str(int(window.end_ns))}
