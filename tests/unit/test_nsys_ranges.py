"""NVTX ranges of an export: what they are, which GPU work is theirs, and what the GPU's counters showed meanwhile.

The oracles are loops over rows: for each piece of work its launch, for each launch the ranges that were open; for each
nanosecond what ran in it.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.make_nsys import AUTOGRAD, MAIN, START_END, NsysBuilder, training
from helpers.nsys_exports import TINY, document, issues, pids, shared_export, unpacked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuprof
from gpuprof.timeline.activity import activity
from gpuprof.timeline.phases import BACKWARD
from gpuprof.timeline.projection import project
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.model import ANNOTATION, NO_TEXT, OP

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def timeline_of(path: Path) -> Timeline:
    found = build_timeline(gpuprof.load(path))
    assert found is not None
    return found


def projected(timeline: Timeline) -> Counter:
    """(name, start, events, summed ns, busy ns) of each range that owns work."""
    found, ops = project(timeline), timeline.trace.ops
    columns = (ops.start_ns[found.row], found.events, found.gpu_ns, found.busy_ns)
    names = [timeline.trace.strings[i] for i in ops.name[found.row].tolist()]
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return Counter(row for row in rows if row[2])


# -- ranges as they are read


def test_ranges_are_annotations_and_what_emit_nvtx_wrote_are_ops(tmp_path: Path):
    builder = NsysBuilder().domain(3, "PyTorch").domain(4, "NCCL")
    builder.range("mine", 0, 1000).range("late, seq 5", 1, 900, registered=True)
    builder.range("aten::mm, seq = 5, op_id = 7, sizes = [[2, 3], [3, 4]]", 10, 100)
    builder.range("aten::add, op_id = 8", 110, 200, registered=True)
    builder.range("Linear", 210, 300, domain=3).range("ncclAllReduce", 310, 400, domain=4)
    builder.range("async", 20, 500, kind=START_END, uint64Value=9).range("cut off", 30, None)
    builder.mark("here", 600).range("another's", 0, 5, pid=77).launch("gemm", (40, 50), (60, 90))
    trace = gpuprof.load(builder.write(tmp_path / "a.sqlite", shuffle=3))
    ops, texts = trace.ops, trace.strings
    rows = {texts[name]: i for i, name in enumerate(ops.name.tolist())}
    kinds = {name: int(ops.kind[i]) for name, i in rows.items()}
    assert kinds == {
        "mine": ANNOTATION, "late, seq 5": ANNOTATION, "aten::mm": OP, "aten::add": OP, "Linear": OP,
        "ncclAllReduce": ANNOTATION, "async": ANNOTATION, "cut off": ANNOTATION,
    }  # fmt: skip
    mm = rows["aten::mm"]
    assert (ops.sequence[mm], ops.external[mm], texts[ops.dims[mm]]) == (5, 7, "[[2, 3], [3, 4]]")
    assert ops.external[rows["aten::add"]] == 8
    assert ops.dims[rows["aten::add"]] == NO_TEXT
    assert ops.end_ns[rows["cut off"]] == 1000, "to where the last range ends"
    assert texts[ops.extra[rows["async"]]] == '{"payload": 9}'
    marks = [texts[n] for n, c in zip(trace.other.name, trace.other.category, strict=True) if texts[c] == "nvtx_mark"]
    assert marks == ["here"]


@pytest.mark.parametrize("name", ["nsys/mfu_2gpu_before", "nsys/h100_2gpu_1s"])
def test_ops_of_a_recorded_export(name: str):
    path = shared_export(name)
    database = unpacked(path)
    text = "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))"
    for pid in pids(database):
        asked = (
            f"SELECT SUM(t LIKE '%, op\\_id = %' ESCAPE '\\'), SUM(t NOT LIKE '%, op\\_id = %' ESCAPE '\\') FROM"
            f" (SELECT {text} t FROM NVTX_EVENTS WHERE eventType = 59 AND (globalTid >> 24) & 0xFFFFFF = {pid})"
        )
        ops, annotations = database.execute(asked).fetchone()
        trace = gpuprof.load(f"{path}#pid={pid}")
        assert (int((trace.ops.kind == OP).sum()), int((trace.ops.kind == ANNOTATION).sum())) == (ops, annotations)


# -- the work of ranges


def owned(ranges: list, launches: list, window: tuple[int, int]) -> Counter:
    """The slow way. `ranges`: (name, tid, start, end); `launches`: (tid, begun, start, end of the work).

    A launch belongs to the ranges that are open on its own thread, and those of the main thread.
    """
    found = Counter()
    for name, tid, start, end in ranges:
        mine = [
            (a, b) for thread, begun, a, b in launches if start <= begun < end and (thread == tid or tid == MAIN)
        ]  # fmt: skip
        if mine and window[0] <= start < window[1]:
            ran = sum(b - a for a, b in mine)
            found[name, start, len(mine), ran, covered(mine)] += 1
    return found


def covered(spans: list[tuple[int, int]]) -> int:
    """The time in which any runs."""
    total, reach = 0, min(a for a, _ in spans)
    for start, end in sorted(spans):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total


@pytest.fixture(scope="module")
def tiny() -> tuple[Timeline, list, list]:
    """(timeline, ranges, launches) of a recorded training; the lists are from SQL."""
    path = shared_export(f"{TINY}.nsys")
    database = unpacked(path)
    named = "COALESCE(n.text, (SELECT value FROM StringIds WHERE id = n.textId))"
    asked = f"SELECT {named}, globalTid & 0xFFFFFF, start, end FROM NVTX_EVENTS n WHERE eventType = 59"
    ranges = database.execute(asked).fetchall()
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    work = " UNION ALL ".join(f"SELECT correlationId c, start, end FROM CUPTI_ACTIVITY_KIND_{t}" for t in tables)
    calls = "CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = w.c"
    asked = f"SELECT r.globalTid & 0xFFFFFF, r.start, w.start, w.end FROM ({work}) w JOIN {calls}"
    return timeline_of(path), ranges, database.execute(asked).fetchall()


def test_backward_owns_what_autograds_thread_launched(tiny):
    timeline, ranges, launches = tiny
    threads = {tid for _, tid, _, _ in ranges}
    assert threads == {MAIN}
    assert sum(tid != MAIN for tid, *_ in launches) > 0.5 * len(launches)
    found = projected(timeline)
    assert found == owned(ranges, launches, timeline.window)
    assert sum(row[3] for row in found if row[0] == "backward") > 30e6


def test_the_parts_of_a_step_own_all_its_launches(tiny):
    timeline, ranges, launches = tiny
    found = list(projected(timeline).elements())
    for name, _, start, end in ranges:
        if name.startswith("step_"):
            inside = sum(start <= begun < end for _, begun, *_ in launches)
            parts = [row for row in found if start < row[1] < end and not row[0].startswith("cub")]
            assert {row[0] for row in parts} <= {"forward", "backward", "optimizer", "log"}
            assert sum(row[2] for row in parts) == inside > 5_000


def test_what_backward_launched_is_backward(tiny):
    timeline, ranges, launches = tiny
    open_in = [(start, end) for name, _, start, end in ranges if name == "backward"]
    begun = {(a, b): at for _, at, a, b in launches}
    gpu = timeline.trace.gpu
    mine = [
        any(start <= begun[a, b] < end for start, end in open_in)
        for a, b in zip(gpu.start_ns.tolist(), gpu.end_ns.tolist(), strict=True)
    ]
    assert sum(mine) > 10_000
    assert set(timeline.phase[np.array(mine)].tolist()) == {BACKWARD}


def test_ranges_by_name_are_summed(tiny):
    timeline, ranges, launches = tiny
    found = {row["name"]: row for row in document(gpuprof.diagnose(timeline.trace))["ranges"]}
    truth = owned(ranges, launches, timeline.window)
    for name in ("forward", "backward", "optimizer"):
        rows = [row for row in truth.elements() if row[0] == name]
        host = sum(end - start for n, _, start, end in ranges if n == name)
        assert found[name] == {
            "name": name, "count": 4, "ns": host, "launches": sum(row[2] for row in rows),
            "gpu_ns": sum(row[3] for row in rows), "busy_ns": sum(row[4] for row in rows),
        }  # fmt: skip
    assert found["step_#"]["count"] == 4


def test_ranges_of_autograds_thread_take_nothing_away(tmp_path: Path):
    """Libraries mark their own calls (CCCL does), on whatever thread they are called from."""
    plain = training()
    before = timeline_of(plain.write(tmp_path / "a.sqlite"))
    calls = [row for row in plain.rows["CUPTI_ACTIVITY_KIND_RUNTIME"] if row["globalTid"] & 0xFFFFFF == AUTOGRAD]
    plain.domain(2, "CCCL")
    for row in calls[::3]:
        plain.range("cub::DeviceScan", row["start"] - 5, row["end"] + 5, tid=AUTOGRAD, domain=2)
    after = timeline_of(plain.write(tmp_path / "b.sqlite"))
    rows = projected(after)
    assert {row: n for row, n in rows.items() if not row[0].startswith("cub")} == projected(before)
    assert sum(row[0].startswith("cub") for row in rows.elements()) == len(calls[::3])
    assert (after.phase == before.phase).all()
    backward = next(row for row in gpuprof.diagnose(after.trace).ranges if row.name == "backward")
    assert backward.launches == len(calls)


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


@EXAMPLES
@given(program=programs(), shuffle=st.integers(0, 99))
def test_projection_equals_the_loop(program, shuffle: int, tmp_path: Path):
    ranges, launches = program
    timeline = timeline_of(made(*program).write(tmp_path / "a.sqlite", shuffle))
    truth = owned(ranges, launches, timeline.window)
    assert without_names(projected(timeline)) == without_names(truth)


def without_names(rows: Counter) -> Counter:
    """Of two ranges with the same times and work either may bear either name."""
    found = Counter()
    for (_, *rest), count in rows.items():
        found[tuple(rest)] += count
    return found


@EXAMPLES
@given(
    spans=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200)), max_size=8),
    begun=st.lists(st.integers(0, 550), max_size=12),
)
def test_ranges_that_overlap_own_what_they_were_open_for(spans, begun, tmp_path: Path):
    """Ranges of nvtxRangeStart need not nest: one that begins in another may outlast it."""
    ranges = [(f"r{i}", MAIN, a, a + ns) for i, (a, ns) in enumerate(spans)] + [("whole", MAIN, 0, 2_000)]
    launches = [(MAIN, t, t + 3, t + 8) for t in begun]
    timeline = timeline_of(made(ranges, launches, START_END).write(tmp_path / "a.sqlite"))
    assert projected(timeline) == owned(ranges, launches, timeline.window)


# -- counters


def sampled(
    samples: dict[str, list[tuple[int, int]]], work: list[tuple[int, int]], window: tuple[int, int]
) -> NsysBuilder:
    """Kernels, each launched just before it runs, in one step; counters by name as (time, percent)."""
    builder = NsysBuilder().gpu_info(number=1, device=0).range("step", *window).range("step", window[1], window[1] + 1)
    for i, (start, end) in enumerate(work):
        builder.launch(f"k{i}", (start - 2, start - 1), (start, end), stream=7 + i)
    for number, (name, values) in enumerate(samples.items()):
        builder.metric(number, name, gpu=1)
        for at, percent in values:
            builder.sample(number, at, percent, gpu=1)
    return builder


SM, TENSOR = "SMs Active [Throughput %]", "Tensor Active [Throughput %]"
DRAM = ("DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]")


def slow_activity(work: list[tuple[int, int]], group: list[int], times: list[int], values: list[int]) -> dict:
    """Group → (mean percent, ns), nanosecond by nanosecond: a sample's value is shared out over what ran in it.

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


@EXAMPLES
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


@pytest.mark.parametrize("shift", [0, 13, 50, 77])
def test_a_constant_load_is_shown_as_it_is(shift: int, tmp_path: Path):
    """Samples that the window begins or ends in count no more than others."""
    work = [(100 * i, 100 * i + 100) for i in range(-3, 14)]
    times = [100 * i + shift for i in range(-3, 14)]
    builder = sampled({SM: [(t, 60) for t in times]}, work, (0, 1_000))
    timeline = timeline_of(builder.write(tmp_path / "a.sqlite"))
    found = activity(timeline, np.zeros(len(timeline.trace.gpu), np.int64))
    assert found[0].sm == pytest.approx(60)


@pytest.mark.parametrize("junk", [-1, -8_000_000_000, 101, 2**40])
def test_values_that_are_no_percentage_are_left_out(junk: int, tmp_path: Path):
    """One bad sample of a counter changes what the others show by nothing."""
    work = [(100 * i, 100 * i + (100 if i % 4 else 15)) for i in range(1, 11)]
    samples = {SM: [(100 * i, 80) for i in range(12)], TENSOR: [(100 * i, 20 + i) for i in range(12)]}

    def shown(name: str):
        timeline = timeline_of(sampled(samples, work, (0, 1_200)).write(tmp_path / name))
        return activity(timeline, np.zeros(len(timeline.trace.gpu), np.int64))[0]

    before = shown("a.sqlite")
    samples[SM][6] = (600, junk)  # the next sample then stands for both, and shows the same load
    after = shown("b.sqlite")
    assert (after.sm, after.tensor) == (pytest.approx(before.sm), pytest.approx(before.tensor))
    samples[SM][5:7] = (500, junk), (600, 80)  # a sample that is mostly a pause
    assert shown("c.sqlite").tensor == pytest.approx(before.tensor)


def test_phases_show_their_activity(tmp_path: Path):
    builder = NsysBuilder().gpu_info()
    metrics = (SM, TENSOR, *DRAM)
    for number, name in enumerate(metrics):
        builder.metric(number, name)
    shows = {"forward": (90, 50, 20, 10), "backward": (40, 10, 30, 30)}
    for step in range(2):
        t = step * 10_000_000
        builder.range("step", t, t + 10_000_000)
        for phase, percents in shows.items():
            builder.range(phase, t + 1, t + 4_000_000)
            for i in range(4):
                at = t + i * 1_000_000
                builder.launch("gemm", (at + 100, at + 2_000), (at + 5_000, at + 1_000_000))
            for k in range(1, 41):
                for number, percent in enumerate(percents):
                    builder.sample(number, t + k * 100_000, percent)
            t += 5_000_000
            for number in range(4):  # the device pauses, and is sampled
                builder.sample(number, t - 900_000, 0).sample(number, t - 1, 0)
    diagnosis = gpuprof.diagnose(builder.write(tmp_path / "a.sqlite", shuffle=5))
    found = {row["phase"]: row for row in document(diagnosis)["activity"]}
    assert set(found) == set(shows)
    for phase, (sm, tensor, read, write) in shows.items():
        row = found[phase]
        assert row["busy_ns"] == pytest.approx(2 * 4 * 995_000, rel=0.02)
        assert (row["sm_percent"], row["tensor_percent"]) == (
            pytest.approx(sm, rel=0.02),
            pytest.approx(tensor, rel=0.02),
        )
        assert row["dram_percent"] == pytest.approx(read + write, rel=0.02)


def test_without_counters_there_is_no_activity(tmp_path: Path):
    builder = training()
    diagnosis = gpuprof.diagnose(builder.write(tmp_path / "a.sqlite"))
    assert document(diagnosis)["activity"] is None
    builder.metric(1, "Unicorns Active").sample(1, 2_000_000, 50).sample(1, 3_000_000, 50)
    builder.metric(2, SM, gpu=5).sample(2, 2_000_000, 50, gpu=5).sample(2, 3_000_000, 50, gpu=5)
    assert document(gpuprof.diagnose(builder.write(tmp_path / "b.sqlite")))["activity"] is None
    assert "no_ops" in issues(diagnosis)
