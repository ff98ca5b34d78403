"""All that is derived from a trace, in one place: built once, read by every analysis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuprof.timeline.categories import categories
from gpuprof.timeline.devices import COMMUNICATE, DeviceTimeline, device_timelines, kinds
from gpuprof.timeline.generation_spans import with_generation
from gpuprof.timeline.links import Links, link
from gpuprof.timeline.nesting import Nesting, busiest_thread, nest
from gpuprof.timeline.phases import COMMUNICATION, HostPhases, gpu_phases, host_phases
from gpuprof.timeline.startup import StartUp, start_up
from gpuprof.timeline.steps import AnalysedSteps, find_steps, possible
from gpuprof.timeline.unit import Unit
from gpuprof.timeline.workload import Workload, workload_of
from gpuprof.tracefile.trace import ABSENT, ANNOTATION, I64, U8, Trace


@dataclass(frozen=True, slots=True)
class Timeline:
    """A trace with its steps, links, categories and phases, and its devices over the window."""

    trace: Trace
    nesting: Nesting
    """Nesting of ops and annotations."""
    call_nesting: Nesting
    """Nesting of calls."""
    links: Links
    steps: AnalysedSteps
    host: HostPhases
    category: U8
    """Per GPU event, index into CATEGORIES."""
    phase: U8
    """Per GPU event, index into PHASES."""
    kind: U8
    """Per GPU event: COMPUTE, COMMUNICATE or COPY."""
    devices: tuple[DeviceTimeline, ...]
    main_thread: int
    """The thread that steps, else the one that makes most calls; -1 without CPU events."""
    members: I64
    """Rows of the GPU work that belongs to the window: launched in it (or, launch unknown, begun in it)."""
    start_up: StartUp
    """The part of the window that is the program's start."""
    workload: Workload
    """Whether it is training or inference."""
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cache of `remembered`."""

    @property
    def window(self) -> tuple[int, int]:
        return self.steps.window

    @property
    def unit(self) -> Unit:
        """What one of its steps is called."""
        return self.workload.unit


def build_timeline(trace: Trace, step: str | None = None, skip: int = 0) -> Timeline | None:
    """Derives everything; None if the trace contains nothing that takes time, or impossible times.

    `step` and `skip` choose the steps (see `find_steps`).
    """
    nesting = nest(trace.ops.thread, trace.ops.start_ns, trace.ops.end_ns, trace.ops.external)
    links = link(trace, nesting)
    steps = find_steps(trace, links, step, skip)
    if steps is None or not possible(trace, steps):
        return None
    category = categories(trace, links.op)
    host = with_generation(trace, host_phases(trace, nesting, steps, links))
    kind = kinds(trace, category)
    low, high = steps.window
    phase = gpu_phases(trace, links, host)
    phase[kind == COMMUNICATE] = COMMUNICATION
    moment = np.where(links.begun_ns == ABSENT, trace.gpu.start_ns, links.begun_ns)
    return Timeline(
        trace=trace,
        nesting=nesting,
        call_nesting=nest(trace.calls.thread, trace.calls.start_ns, trace.calls.end_ns),
        links=links,
        steps=steps,
        host=host,
        category=category,
        phase=phase,
        kind=kind,
        devices=device_timelines(trace, links, kind, steps.window),
        main_thread=_main_thread(trace, steps, host),
        members=np.flatnonzero((moment >= low) & (moment < high)),
        start_up=start_up(trace, links, steps.start_ns, steps.end_ns, allocations=steps.source == "none"),
        workload=workload_of(trace, steps, host, category),
    )


def _main_thread(trace: Trace, steps: AnalysedSteps, host: HostPhases) -> int:
    """The thread whose range the steps are, else the one with most calls, else with most ops; never autograd's."""
    ops = trace.ops
    if steps.name is not None:
        rows = np.flatnonzero((ops.kind == ANNOTATION) & (ops.start_ns == steps.start_ns[0]))
        if len(rows):
            return int(ops.thread[rows[0]])
    for table in (trace.calls, ops):
        own = ~np.isin(table.thread, list(host.autograd))
        if own.any():
            return busiest_thread(table.thread[own], table.start_ns[own])
    return -1
