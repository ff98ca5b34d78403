"""Computes the mean step from a graph.

Simulating a graph gives the usual step: the one whose batch is ready and in which nothing is saved or logged. The mean
step follows from it: batches may come slower than the training takes them (a queue: a faster step then only waits
longer), and some steps contain lumps of other work, during which workers continue until their queue is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from gpuprof.calibration import loader as calibrated
from gpuprof.replay.cpu_waits import cpu_waits
from gpuprof.replay.graph import INPUT, Graph, gpu_nodes
from gpuprof.replay.loader_queue import Loader, fed_step_ns, hidden_ns
from gpuprof.replay.simulate import step_of
from gpuprof.replay.transform import scaled
from gpuprof.units import Assumed, Share

SAME_PACE: Assumed[Share] = 0.03
"""Paces that differ by less than this share count as equal: such workers keep up with the training."""
HOST_LUMPS = ("save", "logging", "garbage_collection", "allocator", "new_shapes", "compile")
"""Lumps that a faster CPU shortens."""
WAITS = "waits"
"""Lump: waiting for batches beyond what the workers' pace explains, as at the start of an epoch. A faster input
shortens it, more workers of the same pace do not."""
WORKER_STARTS = "worker_starts"
"""Lump: ending the workers of an epoch, starting those of the next, and the wait for their first batch."""
PAUSES = "pauses"
"""Lump: excess of steps that take more than twice the usual step without a known cause."""
VARIATION = "variation"
"""Excess of the mean of steps without lumps and waiting over the usual step: not a lump, since it scales with the step;
but a change may leave a smaller part of it."""


@dataclass(frozen=True)
class MeanStep:
    """How long a step of a graph takes on average. The default is the usual step itself."""

    graph: Graph
    """The unchanged graph."""
    usual_ns: float | None = None
    """Its usual step as measured, ns; None: as simulated."""
    mean_ns: float | None = None
    """Its mean step as measured, ns; None: the usual step, since nothing else is known."""
    loader: Loader | None = None
    """Worker processes that feed the training; None without any, or where their pace is not known."""
    batches: float = 1.0
    """Batches in a step."""
    lumps_ns: Mapping[str, float] = field(default_factory=dict)
    """Cause → time that it adds to the mean step, except the workers' pace."""
    every: Mapping[str, float] = field(default_factory=dict)
    """Steps from one lump of a cause to the next, where that is known."""
    overlap: float = 0.0
    """Share of the work possible during lumps that workers actually do: at the end of an epoch it is 0."""
    paced: bool = False
    """Whether the pace of the workers was measured in them, so that another mean step would not change it."""

    def now_ns(self) -> float:
        """The mean step as it is, ns."""
        return self.of(self.graph)

    def of(
        self, graph: Graph, *, faster: Mapping[str, float] | None = None, loader: Loader | None = None,
        lumps: Mapping[str, float] | None = None,
    ) -> float:  # fmt: skip
        """The mean step of a changed graph, ns: see `of_step`."""
        return self.of_step(self.simulated(graph), faster=faster, loader=loader, lumps=lumps)

    def simulated(self, graph: Graph) -> float:
        """The simulated step of a graph, ns; where workers make the batches, without waiting for them."""
        return step_of(self.ready(graph))

    def ready(self, graph: Graph) -> Graph:
        """The graph that is simulated for a graph: where workers make the batches, that without waiting for them."""
        return _fetching(graph) if self._has_workers else graph

    def usual(self, graph: Graph) -> MeanStep:
        """The usual step of a graph alone: every batch is ready, and no step is longer."""
        return MeanStep(self.ready(graph))

    def with_faster_cpu(self, now: Graph, then: Graph, *, same_input: bool = False) -> float:
        """The simulated step of a graph that differs from another by a faster CPU and shorter GPU work only, ns.

        Never less than the step in which the GPU does not wait for the CPU: its other waits do not end earlier.
        `same_input`: what it waits for while the CPU prepares a batch counts with the latter."""
        gpu, _ = gpu_nodes(now)
        saved = float((now.duration_ns[gpu] - then.duration_ns[gpu]).sum()) / max(now.steps, 1)
        waits = cpu_waits(self.ready(now))
        floor = waits.host_floor_ns if same_input else waits.floor_ns
        return max(self.simulated(then), floor - max(saved, 0.0))

    def of_step(
        self, simulated_ns: float, *, faster: Mapping[str, float] | None = None, loader: Loader | None = None,
        lumps: Mapping[str, float] | None = None,
    ) -> float:  # fmt: skip
        """The mean step of a changed graph whose simulated step this is, ns.

        `faster`: resource → factor on its time, of those that also act outside the graph (`input`, `host`); `loader`:
        what makes the batches then; `lumps`: cause → factor on what it adds.
        """
        factors = faster or {}
        loader = loader or self.loader
        if loader is not None and factors.get("input", 1.0) != 1.0:
            loader = replace(loader, batch_ns=loader.batch_ns * factors["input"])
        each = {cause: factors.get(resource_of_lump(cause), 1.0) for cause in self.lumps_ns}
        each |= lumps or {}
        lumps_ns = {cause: ns * each[cause] for cause, ns in self.lumps_ns.items()}
        varies = 1 - self._variation * (1 - (lumps or {}).get(VARIATION, 1.0))
        return max(self._paid(simulated_ns * self._scale * varies, loader, lumps_ns), 1.0)

    @property
    def has_excess(self) -> bool:
        """Whether known causes make the mean step longer than the usual one."""
        return self.starved or any(ns > 0 for ns in self.lumps_ns.values())

    @cached_property
    def starved(self) -> bool:
        """Whether the workers, and not the training, set the pace."""
        if self.loader is None or self.loader.workers < 1:
            return False
        usual = step_of(self.graph) if self.usual_ns is None else self.usual_ns
        return fed_step_ns(self.loader, usual, self.batches) > usual

    def with_waits(self) -> MeanStep:
        """The same, as long as was measured where workers set the pace: waits beyond theirs are a lump of their own;
        where their pace and the lumps together would take longer, they overlap. Every step may wait for batches that
        workers make in time: what hands them over, or pins them, is too slow then."""
        if self.mean_ns is None or self.loader is None or self.loader.workers < 1:
            return self
        waits = self.mean_ns - self.now_ns()
        if not self.starved:
            late = self.paced and waits > SAME_PACE * self.mean_ns
            return replace(self, lumps_ns={**self.lumps_ns, WAITS: waits}) if late else self
        if waits >= 0:
            return replace(self, lumps_ns={**self.lumps_ns, WAITS: waits}) if self.paced and waits else self
        room = self._hidden_ns(1.0, self.consumer_ns(), self.loader, self.lumps_ns)
        return replace(self, overlap=min(self.overlap - waits / room, 1.0)) if room > 0 else self

    def with_mean(self, mean_ns: float) -> MeanStep:
        """The same as if another mean step had been measured: lumps and the loader's time are larger or smaller. What
        was measured in the workers stays."""
        if self.usual_ns is None or self.mean_ns is None or self.mean_ns <= self.usual_ns:
            return self
        if self.paced and self.starved:
            return self._with_lumps(mean_ns)
        part = max(mean_ns - self.usual_ns, 0.0) / (self.mean_ns - self.usual_ns)
        lumps = {cause: ns * part for cause, ns in self.lumps_ns.items()}
        loader = self.loader
        if loader is not None and self.starved:
            seen = part * (self.now_ns() - self.fed_ns())
            loader = replace(loader, batch_ns=loader.workers * max(mean_ns - seen, 1.0) / self.batches)
        return replace(self, mean_ns=max(mean_ns, self.usual_ns), lumps_ns=lumps, loader=loader)

    def _with_lumps(self, mean_ns: float) -> MeanStep:
        """The same as if another mean step had been measured, by its lumps alone: no mean is below what the workers
        allow."""
        fed, seen = self.fed_ns(), self.now_ns() - self.fed_ns()
        part = max(mean_ns - fed, 0.0) / seen if seen > 0 else 0.0
        lumps = {cause: ns * part for cause, ns in self.lumps_ns.items()}
        if self.overlap and mean_ns > self.now_ns():
            lumps = {**self.lumps_ns, WAITS: self.lumps_ns.get(WAITS, 0.0) + mean_ns - self.now_ns()}
        then = replace(self, lumps_ns=lumps)
        return replace(then, mean_ns=then.now_ns())

    def consumer_ns(self) -> float:
        """The step that the training takes when every batch is ready, ns."""
        return self.simulated(self.graph) * self._scale

    def fed_ns(self) -> float:
        """The step that the loader allows as it is, without lumps, ns."""
        return self._fed(self.consumer_ns(), self.loader)

    def _fed(self, step_ns: float, loader: Loader | None) -> float:
        """The step of a training that takes its batches from a loader; `step_ns`: with every batch ready."""
        return step_ns if loader is None or loader.workers < 1 else fed_step_ns(loader, step_ns, self.batches)

    def _paid(self, step_ns: float, loader: Loader | None, lumps_ns: Mapping[str, float]) -> float:
        """The mean step with its lumps; `step_ns`: usual, with every batch ready. Work that workers do during a lump
        saves waiting after it."""
        hidden = self._hidden_ns(self.overlap, step_ns, loader, lumps_ns)
        return self._fed(step_ns, loader) + sum(lumps_ns.values()) - hidden

    def _hidden_ns(self, share: float, step_ns: float, loader: Loader | None, lumps_ns: Mapping[str, float]) -> float:
        """Work that workers do during lumps, ns per step: `share` of what is possible, at most what the training
        waits."""
        if loader is None or loader.workers < 1 or not share:
            return 0.0
        waits = max(self._fed(step_ns, loader) - step_ns, 0.0)
        return min(share * hidden_ns(loader, lumps_ns, self.every), waits)

    @property
    def _has_workers(self) -> bool:
        return self.loader is not None and self.loader.workers >= 1

    @cached_property
    def _scale(self) -> float:
        """Mean of steps without lumps and waiting / the simulated step: the rest of the measured mean is scatter, which
        scales with the step."""
        simulated = step_of(self.graph)
        if self.usual_ns is None or simulated <= 0:
            return 1.0
        scale = self.usual_ns / simulated
        if self.mean_ns is None:
            return scale
        own = self._own_ns
        return scale if self.starved or own <= 0 else own / simulated

    @property
    def _own_ns(self) -> float:
        """The mean of steps without lumps, ns; with the waits of every step, which the graph has as well."""
        usual = 0.0 if self.starved else self.lumps_ns.get(WAITS, 0.0)
        return (self.mean_ns or 0.0) - sum(self.lumps_ns.values()) + usual

    @cached_property
    def _variation(self) -> float:
        """The share of steps without lumps and waiting that is above the usual step; 0 where that is not known."""
        if self.usual_ns is None or self.mean_ns is None or self.starved or self._own_ns <= self.usual_ns:
            return 0.0
        return 1 - self.usual_ns / self._own_ns


def resource_of_lump(cause: str) -> str:
    """The resource that shortens a lump."""
    return "input" if cause in (WAITS, WORKER_STARTS) else "host" if cause in HOST_LUMPS else ""


def _fetching(graph: Graph) -> Graph:
    """The graph in which every batch is ready when it is requested."""
    if "fetching" in graph.memo:
        return graph.memo["fetching"]
    nodes = graph.resource == INPUT
    total = float(graph.duration_ns[nodes].sum()) / max(graph.steps, 1)
    if total <= calibrated.FETCH_NS.value:
        return graph
    graph.memo["fetching"] = fetching = scaled(graph, nodes, calibrated.FETCH_NS.value / total)
    return fetching


def slowed_by_sharing(loader: Loader, workers: int, cpu_ns: float, cpus: float | None) -> Loader:
    """The same loader with another number of workers: with few CPU cores each takes longer. `cpu_ns`: CPU time of a
    batch; `cpus`: cores that the training and its workers may use.
    """
    busy = min(cpu_ns / loader.batch_ns, 1.0) if loader.batch_ns > 0 else 1.0

    def crowd(count: int) -> float:
        return max((count * busy + 1) / cpus, 1.0) if cpus else 1.0

    now, then = crowd(max(loader.workers, 0)), crowd(workers)
    waiting = max(loader.batch_ns - cpu_ns * now, 0.0)
    return replace(loader, workers=workers, batch_ns=waiting + (loader.batch_ns - waiting) * then / now)


def least_on_cores(batches_cpu_ns: float, training_cpu_ns: float, cpus: float | None) -> float:
    """The shortest step, ns, in which this number of cores does the CPU work of its batches and of the training; 0 if
    it is unknown."""
    return (batches_cpu_ns + training_cpu_ns) / cpus if cpus else 0.0


def useful_workers(loader: Loader, step_ns: float, batches: float, cpu_ns: float, cpus: float | None) -> int:
    """The fewest workers, a power of two and more than there are, that come within 3 % of what any number reaches."""
    counts = [n for n in (1, 2, 4, 8, 16, 32, 64) if n > loader.workers and (cpus is None or n <= max(cpus, 1))]
    if not counts:
        return loader.workers
    found = [fed_step_ns(slowed_by_sharing(loader, n, cpu_ns, cpus), step_ns, batches) for n in counts]
    return next(n for n, ns in zip(counts, found, strict=True) if ns <= (1 + SAME_PACE) * float(np.min(found)))
