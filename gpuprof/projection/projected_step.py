"""The recorded step on another GPU: a graph made from the recorded one by the changes in `changes`, one per file."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpuprof.calibration import batch as batch_calibrated
from gpuprof.costs.roofline import Roofline
from gpuprof.costs.split import COMPUTE, LATENCY, MEMORY, NO_BOUND
from gpuprof.projection.changes.batch import Grown, another_batch, grown
from gpuprof.projection.changes.depth import stretched, times
from gpuprof.projection.changes.experts import rows_and_factor
from gpuprof.projection.changes.other_cpu import another_host
from gpuprof.projection.changes.other_gpu import Scaled, on_graph, scaled_kernels
from gpuprof.projection.changes.per_sample_attention import rounds_of
from gpuprof.projection.memory.recorded_memory import Usage, usage
from gpuprof.projection.question import ProjectionQuestion
from gpuprof.projection.subject import Subject
from gpuprof.projection.sustained_rates import Reach, reach_of
from gpuprof.replay.graph import DEVICE, Graph
from gpuprof.replay.mean_step import MeanStep
from gpuprof.tracefile.trace import F64, I64, U8

PARTS = {"compute": COMPUTE, "memory": MEMORY, "latency": LATENCY}


@dataclass(frozen=True, slots=True)
class Variant:
    """One set of assumptions: all at their likeliest, or one of them at one end of its range."""

    graph: str = "graph"
    """Which of the subject's graphs: graph | quicker | slower."""
    kernels: str = "factor"
    """Which factor for kernels whose work is unknown or guessed: factor | low | high."""
    of_a_round: float = batch_calibrated.ROUND.rising[1]
    """CPU time of one more sample that goes through attention by itself, over that of a recorded one."""
    host: float = 1.0
    device: float = 1.0
    """Factors on the host factor, and on the GPU's work."""
    grows: float = 1.0
    """Exponent of the kernels' growth with the batch."""
    deeper: float = 1.0
    """Factor on what is added for layers and experts that were not recorded."""


LIKELIEST = Variant()


class ProjectedStep:
    """A recording and a question; answers what a step takes on a GPU."""

    def __init__(self, subject: Subject, question: ProjectionQuestion) -> None:
        self.subject, self.question = subject, question
        self.here = reach_of(subject.gpu)
        self.host_factor = 1.0 if question.host_factor is None else question.host_factor
        self.deeper = _ratio(question.layers, subject.layers.count if subject.layers else None)
        self.wider = _ratio(question.experts, subject.experts)
        samples = subject.pass_samples
        self.batch_factor = _ratio(question.batch, samples)
        recorded = None if not samples or subject.pass_tokens is None else subject.pass_tokens / samples
        self.longer = _ratio(question.sample_tokens, recorded)
        self._grown: dict[float, Grown] = {}
        self._recorded: dict[tuple[bool, str], float] = {}
        self._scaled: dict[tuple[int, float], tuple[Reach, Scaled]] = {}

    @property
    def roofline(self) -> Roofline:
        return self.subject.roofline

    @cached_property
    def repeated(self) -> F64:
        """For each node, how many times as often the requested model executes it."""
        s = self.subject
        return times(s.graph, s.layers, self.deeper, s.expert_nodes, self.wider, self.trained)

    @cached_property
    def rounds(self) -> I64:
        """For each node, the rounds of the loop over samples that it is in."""
        return rounds_of(self.subject.graph)

    @property
    def trained(self) -> float:
        """Trained parameters over the recorded ones."""
        return self.deeper * (1 + self.subject.expert_adapters * (self.wider - 1))

    def factor(self, share: float) -> float:
        """Tokens of a step over the recorded ones, with a `share` of the requested batch."""
        return self.batch_factor * self.longer * share

    def work(self, share: float) -> tuple[float | None, float | None]:
        """(samples, tokens) of a step."""
        s = self.subject
        samples = None if s.samples is None else s.samples * self.batch_factor * share
        return samples, None if s.tokens is None else s.tokens * self.factor(share)

    def usage(self) -> Usage | None:
        memory, s = self.subject.memory, self.subject
        if memory is None:
            return None
        more = self.question.layers - s.layers.count if self.question.layers and s.layers else 0
        return usage(memory, self.deeper, self.wider, more, self.longer)

    @property
    def peak_tokens(self) -> float | None:
        """Tokens of the largest forward pass with the whole requested batch, padding included.

        Passes differ as the recorded ones do; but if the tokens of a sample are given, all samples have that number.
        """
        s = self.subject
        if self.question.sample_tokens is None and s.memory is not None:
            return s.memory.recorded.tokens * self.batch_factor
        return None if s.pass_tokens is None else s.pass_tokens * self.factor(1.0)

    def grown(self, share: float) -> Grown:
        """What that share of the batch makes of every GPU event here."""
        if share not in self._grown:
            s, factor = self.subject, self.factor(share)
            each = (s.experts_active or 1) / s.experts if s.experts else 1.0
            rows, tokens = rows_and_factor(s.graph, s.expert_nodes, s.pass_tokens, factor, each, self.wider)
            self._grown[share] = grown(s.graph.timeline, s.roofline, tokens, rows, self.longer)
        return self._grown[share]

    def scaled(self, there: Reach, share: float) -> Scaled:
        """Time of each GPU event there over here, with that share of the batch."""
        key = (id(there), share)
        if key not in self._scaled:  # keeps the rates alive, so that no other object gets their id
            s = self.subject
            found = scaled_kernels(s.graph.timeline, s.roofline, self.here, there, self.grown(share))
            self._scaled[key] = (there, found)
        return self._scaled[key][1]

    def graph(self, there: Reach, share: float, variant: Variant = LIKELIEST) -> Graph:
        """The step on a GPU that sustains `there`, with that share of the batch."""
        s = self.subject
        graph: Graph = getattr(s, variant.graph)
        growth = self.grown(share).growth ** variant.grows
        samples = self.batch_factor * share
        rounds = None if samples == 1 else self.rounds
        graph = another_batch(s.graph, growth, self.factor(share), samples, variant.of_a_round, rounds)(graph)
        graph = on_graph(graph, getattr(self.scaled(there, share), variant.kernels))
        graph = another_host(graph, self.host_factor * variant.host)
        graph = stretched(graph, np.maximum(1 + (self.repeated - 1) * variant.deeper, 1e-9))
        if variant.device != 1:
            graph = graph.with_durations(np.where(graph.resource == DEVICE, variant.device, 1.0) * graph.duration_ns)
        return graph

    def mean(self, share: float, there: Reach) -> MeanStep:
        """How the mean step follows from a graph there: the time of workers scales with the batch."""
        mean, samples = self._known_mean(there), self.batch_factor * share
        if mean.loader is None or samples == 1:
            return mean
        return replace(mean, loader=replace(mean.loader, batch_ns=mean.loader.batch_ns * samples))

    def recorded_ns(self, there: Reach, graph: str = "graph") -> float:
        """The recorded step that the one there is compared with, ns: the usual one if that one is. `graph`: see
        `Variant.graph`."""
        mean = self._known_mean(there)
        key = (mean is self.subject.mean, graph)
        if key not in self._recorded:
            self._recorded[key] = mean.of(getattr(self.subject, graph))
        return self._recorded[key]

    def _known_mean(self, there: Reach) -> MeanStep:
        """How the mean step follows from a graph, as far as that is known there."""
        mean = self.subject.mean
        if there.gpu != self.subject.gpu and not mean.starved:
            return MeanStep(self.subject.graph)  # how long saves and first calls take there is not known
        return mean

    def step_ns(self, there: Reach, share: float, variant: Variant = LIKELIEST) -> float:
        """The mean step there, ns."""
        host = {"host": self.host_factor * variant.host, "input": self.host_factor * variant.host}
        return self.mean(share, there).of(self.graph(there, share, variant), faster=host)

    def bound(self, there: Reach, share: float) -> U8:
        """For each GPU event, what limits it there; on the recorded GPU, what the diagnosis says if its work is not
        known."""
        found = self.scaled(there, share).bound
        if there.gpu != self.subject.gpu:
            return found
        return np.where(found == NO_BOUND, self.subject.bound, found)

    def busy_ns(self, graph: Graph, there: Reach, share: float) -> dict[str, float]:
        """GPU time of a step by what limits it."""
        bound = self.scaled(there, share).bound
        gpu = np.flatnonzero(graph.on_gpu)
        code = bound[graph.gpu_row[gpu]]
        ns = graph.duration_ns[gpu] / graph.steps
        known = {name: float(ns[code == number].sum()) for name, number in PARTS.items()}
        return {**known, "unknown": float(ns.sum()) - sum(known.values())}


def _ratio(wanted: float | None, recorded: float | None) -> float:
    return 1.0 if wanted is None or not recorded else wanted / recorded


def combined(step_ns: float, others_ns: list[float], *always: float) -> tuple[float, float]:
    """(low, high) of a step, from its times at the ends of single assumptions, which are independent of each other;
    `always`: spreads that apply to both sides."""
    fixed = [math.log(spread) ** 2 for spread in always]
    low = math.sqrt(sum([*(math.log(step_ns / min(ns, step_ns)) ** 2 for ns in others_ns if ns > 0), *fixed]))
    high = math.sqrt(sum([*(math.log(max(ns, step_ns) / step_ns) ** 2 for ns in others_ns if ns > 0), *fixed]))
    return step_ns * math.exp(-low), step_ns * math.exp(high)
