"""NVTX ranges of an export: what they are, which GPU work belongs to them, and what the GPU's counters showed
meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.gpu_counters import DRAM, SM, TENSOR, sampled
from helpers.make_nsys import AUTOGRAD, START_END, NsysBuilder, training
from helpers.nsys_exports import issues
from helpers.nvtx_ranges import projected
from helpers.timeline import timeline_of
from helpers.valid_json import document

import gpuprof
from gpuprof.timeline.gpu.activity import activity
from gpuprof.tracefile.trace import ANNOTATION, NO_TEXT, OP

# -- reading ranges


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


# -- the work of ranges


def test_ranges_of_autograds_thread_take_nothing_away(tmp_path: Path):
    """Libraries mark their own calls (CCCL does), on any thread that calls them."""
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


# -- counters


@pytest.mark.parametrize("shift", [0, 13, 50, 77])
def test_a_constant_load_is_shown_as_it_is(shift: int, tmp_path: Path):
    """Samples at the beginning or end of the window count no more than others."""
    work = [(100 * i, 100 * i + 100) for i in range(-3, 14)]
    times = [100 * i + shift for i in range(-3, 14)]
    builder = sampled({SM: [(t, 60) for t in times]}, work, (0, 1_000))
    timeline = timeline_of(builder.write(tmp_path / "a.sqlite"))
    found = activity(timeline, np.zeros(len(timeline.trace.gpu), np.int64))
    assert found[0].sm == pytest.approx(60)


@pytest.mark.parametrize("junk", [-1, -8_000_000_000, 101, 2**40])
def test_values_that_are_no_percentage_are_left_out(junk: int, tmp_path: Path):
    """One bad sample of a counter does not change what the others show."""
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
