"""The ledger: everything above reach is removed, one item after the other, and the step is replayed each time.

The order is fixed, because items overlap: waiting for input; garbage collection; state in host memory; single slow CPU
calls; ops on tensors in host memory; waiting for the GPU; copies that block; allocating; reference implementations that
a fused one replaces, and scores that a mask discards; repeated work; padding; logits without a label; norms, gates and
losses in many kernels, and matrix multiplications without tensor cores; kernels slower than usual for their kind; long
stretches of Python; waiting for other ranks; small kernels that are launched one by one, where that is most of the
step; and last, kernels for which no rate is known. What is left is the reach: the useful work of the same training at
the usual rates of its kinds of op and sizes on this GPU, launched by this CPU at its own speed, or as in a CUDA graph
where launching is most of the step."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.ledger_part import Cost, LedgerPart, Sampled
from gpuprof.diagnosis.plug_ins import declarations
from gpuprof.diagnosis.reach.declared_parts import declared
from gpuprof.diagnosis.reach.host_parts import (
    allocations,
    blocking_copies,
    computing,
    python_stretches,
    slow_ops,
    waits,
)
from gpuprof.diagnosis.reach.input_parts import batches, peers
from gpuprof.diagnosis.reach.kernel_parts import slow_kernels, unknown_kernels
from gpuprof.diagnosis.reach.launch_parts import launches
from gpuprof.diagnosis.reach.places import places, spot_of
from gpuprof.diagnosis.reach.sampled import sampled_in
from gpuprof.diagnosis.result.above_reach import AboveReach, Item, Where
from gpuprof.replay.noise import change_noise
from gpuprof.units import Assumed, Convention, Share
from gpuprof.value_range import Range

ORDER = (
    batches, declared("stalled"), declared("moved"), slow_ops, computing, waits, blocking_copies, allocations,
    declared("replaced"), declared("repeated"), declared("discarded"), declared("faster"), slow_kernels,
    python_stretches, peers, launches, unknown_kernels,
)  # fmt: skip


LEAST_ITEM_SHARE: Convention[Share] = 1e-3
"""Smallest excess of an item over its reach, as a share of the step; smaller ones stay in the reach."""


LEAST_SAMPLED_ITEM: Assumed[Share] = 0.02
"""Smallest share of the step of an item for which its function is looked up in the samples."""


def above_reach(case: Analysis, usual_ns: int | None, advised: Sequence[str]) -> AboveReach | None:
    """The ledger of the usual step; None if nothing was replayed.

    `usual_ns`: the measured usual step, if there is one; `advised`: ids of findings that are advised or worth trying,
    the best first.
    """
    if not len(case.graph):
        return None
    graph, mean, scale = case.graph, case.mean, _to_usual(case, usual_ns)
    now = round(scale * mean.simulated(graph))
    first, items, spots = now, [], []
    lowers = {one.id: one.lowers for one in declarations()}
    for find in ORDER:
        for part in find(case, advised):
            own_ns = scale * float(graph.duration_ns[part.nodes].sum()) / graph.steps
            waited = graph.waits[part.nodes].any()
            if not waited and own_ns * (1 - (part.reach or 0.0)) < LEAST_ITEM_SHARE * now:
                continue
            graph = part.change(graph)
            then = min(now, round(scale * mean.simulated(graph)))  # a replay of few steps may end later with less work
            if then < now:
                item = _item(part, now - then, own_ns, _finding(part, advised, lowers))
                items.append(replace(item, gain=gain_without(now - then, first)))
                spots.append((spot_of(case, part.nodes), part.sampled or _sampled(case, part, now - then, now)))
            now = then
    usual = first if usual_ns is None else usual_ns
    found = places(case, [spot for spot, _ in spots])
    items = [
        replace(item, where=_with_sampled(where, sampled))
        for item, where, (_, sampled) in zip(items, found, spots, strict=True)
    ]
    unknown = sum(item.ns for item in items if item.reach_ns is None)
    return AboveReach(usual, now, usual - first, unknown, tuple(items))


def _sampled(case: Analysis, part: LedgerPart, ns: int, now: int) -> Sampled | None:
    """The sampled function of the CPU's part of an item that takes a good part of the step."""
    return sampled_in(case, part.nodes) if ns >= LEAST_SAMPLED_ITEM * now else None


def _with_sampled(where: Where, sampled: Sampled | None) -> Where:
    """The place with its sampled function, if the recording's stacks have none."""
    if sampled is None or where.function is not None:
        return where
    return replace(where, function=f"{sampled.file}: {sampled.function}", line=sampled.line, before=None)


def _to_usual(case: Analysis, usual_ns: int | None) -> float:
    """Usual step / a step with the work of the recorded ones, both timed without a profiler; 1 if either was not timed.
    Recorded steps may have longer batches, or more of them, than most."""
    like_recorded = case.step_times.unprofiled_ns
    return usual_ns / like_recorded if usual_ns and like_recorded else 1.0


def _finding(part: LedgerPart, advised: Sequence[str], lowers: Mapping[str, Collection[Cost]]) -> str | None:
    """The best advised finding that removes a part: the one that declares it, or one that lowers its kind of cost."""
    return next((one for one in advised if one == part.finding or part.cost in lowers.get(one, ())), None)


def _item(part: LedgerPart, ns: int, own_ns: float, finding: str | None) -> Item:
    return Item(
        kind=part.kind,
        what=part.what,
        where=Where(None, None, None, None),
        ns=ns,
        own_ns=round(own_ns),
        reach_ns=None if part.reach is None else round(part.reach * own_ns),
        why=part.why,
        finding=finding,
    )


def gain_without(ns: int, step_ns: int) -> Range | None:
    """How many times as fast a step is that gets this much shorter, with its 80 % interval; None if it does not."""
    if not 0 < ns < step_ns:
        return None
    gain = step_ns / (step_ns - ns)
    away = math.hypot(change_noise(gain), math.log1p(noise_calibrated.GAIN.value))
    return Range(gain * math.exp(-away), gain, gain * math.exp(away))


def explained(found: AboveReach) -> float:
    """Share of the usual step that is explained: without the residual and items of unknown reach."""
    return 1 - (abs(found.residual_ns) + found.unknown_ns) / max(found.usual_ns, 1)
