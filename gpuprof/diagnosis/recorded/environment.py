"""What was recorded, and where: the file, the GPUs, the versions and the ranks."""

from __future__ import annotations

import numpy as np

from gpuprof.costs.hardware import name_of
from gpuprof.diagnosis.result.diagnosis import Environment, GpuName, Source
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.trace import Trace


def source_of(trace: Trace, run: RunFolder | None) -> Source:
    """The source: the run's folder, or the file if there is no run."""
    reading = trace.reading
    if run is not None:
        return Source(run.path, "run", reading.size_bytes, reading.events)
    return Source(reading.path, reading.kind, reading.size_bytes, reading.events)


def environment_of(trace: Trace | None, run: RunFolder | None) -> Environment:
    """The environment from the trace, completed from the run."""
    gpus: tuple[GpuName, ...] = ()
    versions: dict[str, str | int | float] = {}
    rank = world_size = None
    if trace is not None:
        used = set(np.unique(trace.gpu.device).tolist())
        named = [g for g in trace.meta.gpus if not used or g.device in used] or list(trace.meta.gpus)
        gpus = tuple(GpuName(g.device, name_of(g), g.memory_bytes) for g in named)
        versions = dict(trace.meta.versions)
        rank, world_size = trace.meta.rank, trace.meta.world_size
    if run is not None:
        own = run.own
        if not gpus and own.gpu and own.gpu.name:
            gpus = (GpuName(own.gpu.index or 0, own.gpu.name, own.gpu.memory_bytes),)
        versions = {**own.versions, **versions}
        if rank is None and (own.world_size or 1) > 1:
            rank, world_size = run.rank, own.world_size
    return Environment(gpus, versions, rank, world_size)
