"""The Python function that the CPU runs in the longest gaps, from samples of unprofiled steps at the same places."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.result.diagnosis import Gap, Gaps
from gpuprof.diagnosis.sampled.host_calls import SampledFrame, StackColumns
from gpuprof.diagnosis.sampled.host_places import as_recorded
from gpuprof.tracefile.run_folder.samples import HostSamples
from gpuprof.units import Assumed, Samples, Share

FEWEST_SAMPLES: Assumed[Samples] = 5
NAMING_SHARE: Assumed[Share] = 0.6
"""A gap gets a function if at least this many samples lie at its place and this share of them are in the function."""


def with_frames(gaps: Gaps, samples: HostSamples, case: Analysis) -> Gaps:
    """The gaps with the function that the CPU was in, if the recording has no Python frames: the innermost function of
    the user's that most samples are in. Gaps without such a function get none."""
    if all(gap.frame for gap in gaps.largest):
        return gaps
    at = as_recorded(case, samples)
    if at is None:
        return gaps
    stacks = StackColumns(samples)

    def named(gap: Gap) -> Gap:
        inside = at.within(gap.start_ns, gap.start_ns + gap.ns)
        if gap.frame or len(inside) < FEWEST_SAMPLES:
            return gap
        lines: Counter[SampledFrame] = Counter()
        depth: dict[int, int] = {}
        for i in inside.tolist():
            for k, frame in _own(stacks, stacks.of_sample[i]).items():
                lines[frame] += 1
                depth[frame.function] = max(depth.get(frame.function, 0), k)
        times: Counter[int] = Counter()
        for frame, count in lines.items():
            times[frame.function] += count
        prevailing = [function for function, count in times.items() if count >= NAMING_SHARE * len(inside)]
        if not prevailing:
            return gap
        function = max(prevailing, key=lambda one: depth[one])
        line = max((frame for frame in lines if frame.function == function), key=lambda one: lines[one]).line
        found = stacks.functions[function]
        return replace(gap, frame=f"{found.file}({line}): {found.name}")

    return replace(gaps, largest=tuple(named(gap) for gap in gaps.largest))


def _own(stacks: StackColumns, path: tuple[SampledFrame, ...]) -> dict[int, SampledFrame]:
    """Depth → call, for the innermost call of each of the user's functions; in a backward pass only of those called by
    it, since the line that starts the pass does not say which part of it runs."""
    begin = max((k for k, frame in enumerate(path) if frame.function in stacks.engine), default=-1) + 1
    own = {f.function: k for k, f in enumerate(path) if k >= begin and stacks.functions[f.function].kind == "own"}
    return {k: path[k] for k in own.values()}
