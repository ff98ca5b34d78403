"""Makes a projection: for each GPU the step, its limit, what fits, the cost, and the uncertainty."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gpuprof.calibration import batch as batch_calibrated
from gpuprof.calibration import noise as noise_calibrated
from gpuprof.calibration import projection as calibrated
from gpuprof.costs.hardware import Gpu
from gpuprof.costs.split import COMPUTE, LATENCY, MEMORY
from gpuprof.errors import GpuprofError
from gpuprof.projection import assumptions
from gpuprof.projection.changes.other_cpu import SHOWN_FACTORS
from gpuprof.projection.cost import cost, mean_power_w, price_of
from gpuprof.projection.data_parallel import scaling
from gpuprof.projection.explain import explain
from gpuprof.projection.memory.footprint import footprint
from gpuprof.projection.memory.recorded_memory import fit, share_that_fits
from gpuprof.projection.projected_step import LIKELIEST, ProjectedStep, combined
from gpuprof.projection.projection import (
    FitWith,
    HostStep,
    MemoryFit,
    OnGpu,
    ProjectedWork,
    Projection,
    ProjectionExplanation,
    ProjectionRequest,
    RecordedStep,
)
from gpuprof.projection.projection_sentence import summarize
from gpuprof.projection.question import ProjectionQuestion
from gpuprof.projection.subject import Subject
from gpuprof.projection.sustained_rates import Reach, reach_of
from gpuprof.replay.bound import Bound, bound_of
from gpuprof.replay.graph import Graph
from gpuprof.replay.sensitivity import Sensitivities, gain_without, sensitivities
from gpuprof.value_range import Range


def project(subject: Subject, question: ProjectionQuestion) -> Projection:
    """The recorded step on every requested GPU; the one that gets most done comes first."""
    answerable(subject, question)
    projected = ProjectedStep(subject, question)
    found = [on_gpu(projected, gpu) for gpu in question.gpus]
    found.sort(key=lambda one: -one.speedup.expected)
    return Projection(
        summary=summarize(found, subject.unit),
        recorded=_recorded(projected),
        asked=_asked(projected),
        gpus=tuple(found),
        explanation=_explanation(projected, found),
        assumptions=assumptions.of_all(projected),
        unit=subject.unit,
    )


def answerable(subject: Subject, question: ProjectionQuestion) -> None:
    """Raises GpuprofError, one line, if the recording lacks what a part of the question is about: ignoring that part
    would look like an answer."""
    lacks = (
        ("batch", question.batch, subject.pass_samples, "how many samples a forward pass has is not known"),
        ("tokens of a sample", question.sample_tokens, subject.pass_samples and subject.pass_tokens,
         "how many tokens its samples have is not known"),
        ("layers", question.layers, subject.layers, "which of its work is a layer's is not known"),
        ("experts", question.experts, subject.experts, "no loop over experts was found"),
    )  # fmt: skip
    for name, asked, known, why in lacks:
        if asked is not None and not known:
            hint = "" if name == "experts" else "; gpuprof trace records it"
            raise GpuprofError(f"{subject.path}: {name}: {why}{hint}")


def on_gpu(projected: ProjectedStep, gpu: Gpu) -> OnGpu:
    """The step on one GPU, with as much of the batch as fits."""
    subject, question = projected.subject, projected.question
    there = reach_of(gpu)
    memory = _memory(projected, gpu)
    share = batch_share(projected, memory)
    graph = projected.graph(there, share)
    step, ratio = intervals(projected, there, share)
    samples, tokens = projected.work(share)
    busy = projected.busy_ns(graph, there, share)
    bound, gains = _bound(projected, graph, there, share)
    price = price_of(gpu, question.prices)
    power = mean_power_w(gpu, step.expected, busy, subject.power_ratio)
    work = projected.factor(share) / projected.longer if samples is not None else projected.factor(share)
    hosts = tuple(
        HostStep(factor, projected.step_ns(there, share, replace(LIKELIEST, host=factor / projected.host_factor)))
        for factor in SHOWN_FACTORS
    )
    backward = subject.backward_ns / ratio.expected
    gradients = (
        (subject.trained_bytes or 0.0) * projected.deeper * (1 + subject.expert_adapters * (projected.wider - 1))
    )
    per_hour = 3.6e12 / step.expected
    return OnGpu(
        gpu=gpu.name,
        architecture=gpu.architecture,
        confidence=gpu.confidence,
        rates=there.rates,
        batch=_batch(projected, share),
        batch_share=share,
        work=ProjectedWork(samples, tokens),
        step_ns=step,
        speedup=Range(work * ratio.low, work * ratio.expected, work * ratio.high),
        busy_ns=sum(busy.values()),
        host_floor_ns=projected.mean(share, there).of(
            graph.with_durations(np.where(graph.on_gpu, 0.0, graph.duration_ns)), faster={"host": projected.host_factor}
        ),
        bound=bound,
        sensitivities=gains,
        samples_per_hour=None if samples is None else samples * per_hour,
        tokens_per_hour=None if tokens is None else tokens * per_hour,
        host_steps=hosts,
        memory=memory,
        cost=cost(power, step.expected, samples, tokens, price, question.epoch_samples),
        scaling=tuple(scaling(gpu, n, step.expected, backward, gradients) for n in question.ranks)
        if subject.trained_bytes
        else (),
        assumptions=assumptions.of_gpu(projected, there, memory, share),
    )


def batch_share(projected: ProjectedStep, memory: MemoryFit | None) -> float:
    """The largest of the batch, a half, a quarter … of it that fits; all of it if that is not known, or if nothing
    fits."""
    use, tokens = projected.usage(), projected.peak_tokens
    if memory is None or use is None or tokens is None or projected.question.whole_batch:
        return 1.0
    return share_that_fits(memory, use, tokens, _batch(projected, 1.0)) or 1.0


def intervals(projected: ProjectedStep, there: Reach, share: float) -> tuple[Range, Range]:
    """The step there, ns, and the recorded step divided by it, each with its 80 % interval.

    Each uncertain assumption is replayed at both of its ends, with all others at their likeliest value. The uncertainty
    of the CPU's own time changes both steps, and their ratio only as far as it changes them differently. The precision
    of the timed mean step cancels, since both are means, or both usual steps. What applies only there does not cancel:
    how kernels and rates differ between the GPUs, another machine's CPU, another batch or model, and the noise between
    processes.
    """
    question, subject = projected.question, projected.subject
    expected, recorded = projected.step_ns(there, share), projected.recorded_ns(there)

    def at(**changed: object) -> float:
        return projected.step_ns(there, share, replace(LIKELIEST, **changed))  # type: ignore[arg-type]

    of_the_cpu = [at(graph="quicker"), at(graph="slower")]
    here = [projected.recorded_ns(there, graph) / recorded for graph in ("quicker", "slower")]
    ends: list[float] = []
    same = there.gpu == subject.gpu
    if not same:
        ends += [at(kernels="low"), at(kernels="high")]
        kept = (
            calibrated.EFFICIENCY_KEPT_NEAR.value
            if there.gpu.architecture == subject.gpu.architecture
            else calibrated.EFFICIENCY_KEPT.value
        )
        ends += [at(device=1 / kept), at(device=kept), *_rate_ends(projected, there, share)]
    if not same or question.host_factor not in (None, 1.0):
        ends += [at(host=1 / calibrated.HOSTS.value), at(host=calibrated.HOSTS.value)]
    if projected.batch_factor * share != 1:
        ends += [at(of_a_round=batch_calibrated.ROUND.rising[0]), at(of_a_round=batch_calibrated.ROUND.rising[2])]
    if projected.factor(share) != 1:
        ends += [at(grows=batch_calibrated.GROWS.rising[0]), at(grows=batch_calibrated.GROWS.rising[2])]
    if projected.deeper != 1 or projected.wider != 1:
        ends += [at(deeper=1 / calibrated.REPEATS.value), at(deeper=calibrated.REPEATS.value)]
    low, high = combined(expected, [*of_the_cpu, *ends], 1 + noise_calibrated.GPU_PROCESS.value)
    relative = [ns / factor for ns, factor in zip(of_the_cpu, here, strict=True)]
    least, most = combined(expected, [*relative, *ends], 1 + noise_calibrated.GPU_PROCESS.value)
    if same and question.host_factor in (None, 1.0) and projected.factor(share) == projected.longer == 1:
        # The recorded step itself, as the diagnosis has it.
        low, high = min(low, subject.step_ns.low), max(high, subject.step_ns.high)
    return Range(low, expected, high), Range(recorded / most, recorded / expected, recorded / least)


def _rate_ends(projected: ProjectedStep, there: Reach, share: float) -> list[float]:
    """The step if the GPU sustains more, or less, than assumed: separately for arithmetic and for memory."""
    found = []
    for sign in (1, -1):
        by = math.exp(sign * math.log(there.half_spread))
        found.append(replace(there, flops={name: rate * by for name, rate in there.flops.items()}))
        by = math.exp(sign * math.log(there.memory_spread))
        found.append(replace(there, memory_bytes_per_s=there.memory_bytes_per_s * by))
    return [projected.step_ns(one, share) for one in found]


def _memory(projected: ProjectedStep, gpu: Gpu) -> MemoryFit | None:
    use, tokens = projected.usage(), projected.peak_tokens
    if use is None or tokens is None:
        return None
    own = projected.subject.memory_bytes if gpu == projected.subject.gpu else None
    batch = _batch(projected, 1.0)
    found = fit(gpu, use, tokens, batch, own)
    memory = projected.subject.memory
    if memory is None or (projected.deeper, projected.wider, projected.longer) != (1, 1, 1):
        return found
    then = []
    for fix in projected.subject.memory_fixes:
        if fix.change is not None:
            one = fit(gpu, fix.change(footprint(memory.recorded, use)).usage(), tokens, batch, own)
            ends = one.largest_batch, one.largest_batch_low, one.largest_batch_high
            then.append(FitWith(fix.id, fix.title, one.fits, *ends))
    return replace(found, with_fixes=tuple(then))


def _batch(projected: ProjectedStep, share: float) -> float | None:
    """Samples of a forward pass."""
    samples = projected.subject.pass_samples
    return None if samples is None else samples * projected.batch_factor * share


def _bound(projected: ProjectedStep, graph: Graph, there: Reach, share: float) -> tuple[Bound | None, dict[str, float]]:
    """What limits the step there, and what each resource would gain."""
    gpu = graph.timeline.trace.gpu
    whole = (gpu.end_ns - gpu.start_ns).clip(0).astype(np.float64)
    bound, mean = projected.bound(there, share), projected.mean(share, there)
    codes = {"compute": COMPUTE, "memory": MEMORY, "latency": LATENCY}
    found = sensitivities(graph, {name: np.where(bound == code, whole, 0.0) for name, code in codes.items()}, mean)
    gains = {name: getattr(found, name) for name in Sensitivities.__dataclass_fields__}
    gains = {name: value for name, value in gains.items() if value is not None}
    return bound_of(found, gain_without(graph, mean)), gains


def _recorded(projected: ProjectedStep) -> RecordedStep:
    s = projected.subject
    gpu = s.graph.on_gpu
    return RecordedStep(
        path=s.path,
        gpu=s.gpu.name,
        device_name=s.device_name,
        step_ns=s.step_ns,
        busy_ns=float(s.graph.duration_ns[gpu].sum()) / s.graph.steps,
        work=ProjectedWork(s.samples, s.tokens),
        layers=s.layers.count if s.layers else None,
        experts=s.experts,
        unmodelled_share=s.roofline.unmodelled_share,
        usual_ns=assumptions.usual_ns(projected),
    )


def _asked(projected: ProjectedStep) -> ProjectionRequest:
    q = projected.question
    return ProjectionRequest(
        batch=q.batch, sample_tokens=q.sample_tokens, host_factor=projected.host_factor, host_source=q.host_source,
        layers=q.layers, experts=q.experts, ranks=q.ranks, epoch_samples=q.epoch_samples,
    )  # fmt: skip


def _explanation(projected: ProjectedStep, found: list[OnGpu]) -> ProjectionExplanation | None:
    if projected.question.explain is None:
        return None
    known = {one.gpu: one for one in found}
    first, second = (known.get(gpu.name) or on_gpu(projected, gpu) for gpu in projected.question.explain)
    return explain(projected, first, second)
