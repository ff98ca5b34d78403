"""The work of NVTX ranges and the GPU's activity, compared with loops over rows.

For each kernel or copy its launch, for each launch the ranges that were open; for each nanosecond what ran in it.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.budgets import budget
from helpers.gpu_counters import DRAM, SM, sampled
from helpers.make_nsys import AUTOGRAD, MAIN, START_END, NsysBuilder
from helpers.nvtx_ranges import owned, projected
from helpers.timeline import timeline_of
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.timeline.gpu.activity import activity

TOKENS = ("open", "close", "launch", "launch", "autograd", "autograd", "side open", "side close")


@st.composite
def programs(draw):
    """(ranges, launches, where they run) of two threads: the main one's ranges nest, the other's lie within them."""
    tokens = draw(st.lists(st.tuples(st.sampled_from(TOKENS), st.sampled_from((0, 3, 10))), max_size=40))
    numbers = random.Random(draw(st.integers(0, 2**32)))
    ranges, launches, main, side, t = [], [], [], [], 100
    for token, pause in tokens:
        t += pause
        if token in ("open", "close"):
            while side:
                ranges.append((f"side {len(ranges)}", AUTOGRAD, side.pop(), t))
        if token == "open":
            main.append(t)
        elif token == "close" and main:
            ranges.append((f"range {'abc'[len(ranges) % 3]}", MAIN, main.pop(), t))
        elif token == "side open":
            side.append(t)
        elif token == "side close" and side:
            ranges.append((f"side {len(ranges)}", AUTOGRAD, side.pop(), t))
        elif "open" not in token and "close" not in token:
            start = t + numbers.randrange(2, 60)
            launches.append((AUTOGRAD if token == "autograd" else MAIN, t, start, start + numbers.randrange(80)))
            t += 2
    end = t + 10
    ranges += [(f"side {i}", AUTOGRAD, at, t) for i, at in enumerate(side)]
    ranges += [(f"range {i}", MAIN, at, end) for i, at in enumerate(main)]
    return [*ranges, ("whole", MAIN, 0, end + 1000)], launches


def made(ranges: list, launches: list, kind: int = 59) -> NsysBuilder:
    builder = NsysBuilder()
    for name, tid, start, end in ranges:
        builder.range(name, start, end, tid=tid, kind=kind)
    for i, (tid, begun, start, end) in enumerate(launches):
        builder.launch(f"k{i}", (begun, begun + 1), (start, end), tid=tid, stream=7 + i % 2)
    return builder


@budget(100)
@given(program=programs(), shuffle=st.integers(0, 99))
def test_projection_equals_the_loop(program, shuffle: int, tmp_path: Path):
    ranges, launches = program
    timeline = timeline_of(made(*program).write(tmp_path / "a.sqlite", shuffle))
    truth = owned(ranges, launches, timeline.window)
    assert without_names(projected(timeline)) == without_names(truth)


def without_names(rows: Counter) -> Counter:
    """Two ranges with the same times and work may have each other's names."""
    found = Counter()
    for (_, *rest), count in rows.items():
        found[tuple(rest)] += count
    return found


@budget(30)
@given(
    spans=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200)), max_size=8),
    begun=st.lists(st.integers(0, 550), max_size=12),
)
def test_ranges_that_overlap_own_what_they_were_open_for(spans, begun, tmp_path: Path):
    """Ranges of nvtxRangeStart need not nest: a range that begins in another may outlast it."""
    ranges = [(f"r{i}", MAIN, a, a + ns) for i, (a, ns) in enumerate(spans)] + [("whole", MAIN, 0, 2_000)]
    launches = [(MAIN, t, t + 3, t + 8) for t in begun]
    timeline = timeline_of(made(ranges, launches, START_END).write(tmp_path / "a.sqlite"))
    assert projected(timeline) == owned(ranges, launches, timeline.window)


def slow_activity(work: list[tuple[int, int]], group: list[int], times: list[int], values: list[int]) -> dict:
    """Group → (mean percent, ns), nanosecond by nanosecond: a sample's value is divided among what ran in it.

    Samples that are mostly a pause do not count.
    """
    sums: dict[int, float] = {}
    ns: dict[int, int] = {}
    for begin, end, value in zip(times, times[1:], values[1:], strict=False):
        ran = Counter()
        for t in range(begin, end):
            ran.update({g for (a, b), g in zip(work, group, strict=True) if a <= t < b})
        total = sum(ran.values())
        if total and 2 * total >= end - begin:
            for g, count in ran.items():
                sums[g] = sums.get(g, 0.0) + value * (end - begin) * count / total
                ns[g] = ns.get(g, 0) + count
    return {g: (min(sums[g] / ns[g], 100.0), ns[g]) for g in sums}


@budget(30)
@given(
    work=st.lists(st.tuples(st.integers(100, 900), st.integers(1, 150)), min_size=1, max_size=8),
    group=st.lists(st.integers(0, 2), min_size=8, max_size=8),
    gaps=st.lists(st.integers(5, 60), min_size=2, max_size=20),
    values=st.lists(st.integers(0, 100), min_size=21, max_size=21),
)
def test_activity_equals_the_loop(work, group, gaps, values, tmp_path: Path):
    spans = sorted((start, start + ns) for start, ns in work)
    times = [50]
    for gap in gaps:
        times.append(times[-1] + gap)
    values = values[: len(times)]
    samples = {SM: list(zip(times, values, strict=True)), DRAM[0]: [(t, v // 2) for t, v in zip(times, values)]}  # noqa: B905
    samples[DRAM[1]] = [(t, v // 3) for t, v in samples[SM]]
    timeline = timeline_of(sampled(samples, spans, (0, 1_200)).write(tmp_path / "a.sqlite"))
    gpu = timeline.trace.gpu
    number = {timeline.trace.strings[n]: i for i, n in enumerate(gpu.name.tolist())}
    key = np.full(len(gpu), -1, np.int64)
    for i in range(len(spans)):
        key[number[f"k{i}"]] = group[i]
    found = {g: one for g, one in activity(timeline, key).items() if one.busy_ns}
    group = group[: len(spans)]
    truth = slow_activity(spans, group, times, values)
    both = slow_activity(spans, group, times, [v // 2 + v // 3 for v in values])
    assert set(found) == set(truth)
    for g, one in found.items():
        assert one.busy_ns == truth[g][1]
        assert one.sm == pytest.approx(truth[g][0])
        assert one.dram == pytest.approx(both[g][0])
        assert one.tensor is None
