"""The timeline of a recording, wherever it is."""

from __future__ import annotations

from pathlib import Path

import gpuprof
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.kineto.build import build
from gpuprof.tracefile.kineto.msgspec_reader import read_small
from gpuprof.tracefile.trace import Trace
from helpers.make_trace import TraceBuilder


def timeline_of(recording: Path | Trace | TraceBuilder, **options) -> Timeline:
    """Of a file, a loaded trace or a builder; `options` are those of `build_timeline`."""
    found = build_timeline(_trace_of(recording), **options)
    assert found is not None
    return found


def _trace_of(recording: Path | Trace | TraceBuilder) -> Trace:
    if isinstance(recording, Trace):
        return recording
    return built(recording) if isinstance(recording, TraceBuilder) else gpuprof.load(recording)


def built(builder: TraceBuilder) -> Trace:
    """What a builder holds, read without a file."""
    data = builder.text().encode()
    parsed = read_small(data)
    assert parsed
    return build(parsed, "t.json", len(data))
