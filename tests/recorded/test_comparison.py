"""Two recordings side by side: every sum is exact, what changed is named, and nothing differs from itself."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from helpers.compared import MS, PAIRS, check_sums, compared, diagnosed
from helpers.make_trace import TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import gpuprof
from benchmarks import fixed_pairs
from gpuprof.diagnosis.baseline import step_time
from gpuprof.diagnosis.comparison import mechanisms
from gpuprof.diagnosis.comparison.cells import Cell, Cells, allot, busy_shares
from gpuprof.diagnosis.comparison.compare import (
    compare,
    compare_steps,
    compare_work,
    phase_differences,
    terms,
)
from gpuprof.diagnosis.comparison.comparison import Side, Work
from gpuprof.diagnosis.comparison.counts import Counts, OpTable, own_work
from gpuprof.diagnosis.comparison.facts import Facts
from gpuprof.diagnosis.comparison.json import dumps, schema, to_json
from gpuprof.diagnosis.comparison.kernels import KernelTable, compare_kernels, compare_ops, difference
from gpuprof.diagnosis.comparison.leftovers import WORK
from gpuprof.diagnosis.comparison.mechanisms import explain
from gpuprof.diagnosis.comparison.significance import (
    arrangements,
    correlation,
    doubled_ranks,
    rank_sum,
    significance,
    unprofiled,
)
from gpuprof.diagnosis.diagnosis import Finding, Measured, Range
from gpuprof.diagnosis.gaps import CAUSES
from gpuprof.errors import GpuprofError
from gpuprof.report.comparison_words import prediction
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.devices import COMPUTE
from gpuprof.timeline.exclusive_time import exclusive_ns
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import build_timeline

TWINS = fixed_pairs.RECORDED_PAIRS
"""One program recorded without and with a change: before, after, and the finding that advises it. Those of the
scenarios are in tests/accuracy."""
NAMES = [f"{before} → {after}" for before, after, _ in TWINS]


# -- the parts


@given(
    st.integers(-(10**15), 10**15),
    st.lists(st.floats(0, 1e15, allow_nan=False, allow_subnormal=False), min_size=1, max_size=40),
)
def test_parts_sum_to_the_whole(whole, weights):
    parts = allot(whole, weights)
    assert sum(parts) == whole
    assert all(part * whole >= 0 for part in parts)
    total = sum(weights)
    if total > 0:
        assert all(abs(p - whole * (w / total)) <= 1 + 1e-12 * abs(whole) for p, w in zip(parts, weights, strict=True))


def test_no_parts_and_no_weights():
    assert allot(5, []) == []
    assert allot(5, [0.0, 0.0]) == [5, 0]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 2)), max_size=12))
def test_every_moment_belongs_to_somebody_once(rows):
    low, high = 5, 35
    start, end, level = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    found = exclusive_ns(start, end, level.astype(np.uint8), low, high)
    owned = np.zeros(len(rows))
    for t in range(low, high):
        running = [i for i, (a, b, _) in enumerate(rows) if a <= t < b]
        lowest = min((rows[i][2] for i in running), default=None)
        mine = [i for i in running if rows[i][2] == lowest]
        for i in mine:
            owned[i] += 1 / len(mine)
    assert np.allclose(found, owned)


# -- the work that the steps launched


def test_what_was_queued_before_is_not_of_the_window(tmp_path):
    """The host runs a step ahead: the GPU does the work of the first, unlinked, while the second's is launched."""
    builder = TraceBuilder().step(0, 0, 10 * MS)
    for i in range(4):
        builder.gpu("queued", 2 * i * MS, 2 * (i + 1) * MS)
    for i in range(3):
        builder.launch("own", (i * MS, i * MS + 1000), ((8 + 2 * i) * MS, (10 + 2 * i) * MS))
    timeline = build_timeline(gpuprof.load(builder.write(tmp_path / "ahead.json")))
    assert timeline is not None and len(timeline.members) == 7
    names = [timeline.trace.strings[n] for n in timeline.trace.gpu.name[own_work(timeline)].tolist()]
    assert names == ["own"] * 3
    busy = busy_shares(timeline, 0)[COMPUTE]
    assert sum(busy.values()) == 6 * MS


# -- the test of significance


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.lists(st.integers(0, 6), min_size=1, max_size=5))
@settings(deadline=None)
def test_the_exact_test_counts_every_arrangement(a, b):
    values = np.array([*a, *b], np.float64)
    ranks, n = doubled_ranks(values), len(a)
    sums = [int(ranks[list(chosen)].sum()) for chosen in itertools.combinations(range(len(values)), n)]
    counts = arrangements(ranks, n)
    assert all(counts[s] == sums.count(s) for s in set(sums)) and counts.sum() == len(sums)
    middle = n * (len(values) + 1)
    off = abs(int(ranks[:n].sum()) - middle)
    found = rank_sum(values[:n], values[n:])
    assert found is not None and found.exact
    assert found.p == pytest.approx(sum(abs(s - middle) >= off for s in sums) / len(sums))


def test_the_normal_distribution_takes_over_smoothly():
    rng = np.random.default_rng(1)
    a, b = rng.normal(100, 5, 30), rng.normal(103, 5, 30)
    exact, near = rank_sum(a, b), rank_sum(a, np.append(b, np.median(b)))
    assert exact is not None and near is not None
    assert exact.exact and not near.exact
    assert near.p == pytest.approx(exact.p, rel=0.5)
    both = rank_sum(np.full(40, 3.0), np.full(40, 3.0))
    assert both is not None and both.p == 1


def test_few_steps_show_nothing():
    three = rank_sum(np.arange(3.0), np.arange(3.0) + 10)
    four = rank_sum(np.arange(4.0), np.arange(4.0) + 10)
    assert three is not None and four is not None
    assert three.least > 0.05 > four.least == four.p
    assert rank_sum(np.empty(0), np.arange(3.0)) is None


def test_neighbouring_steps_that_resemble_each_other():
    assert correlation(np.arange(20.0)) > 0.8  # type: ignore[operator]
    assert correlation(np.tile([1.0, 2.0], 10)) < -0.8  # type: ignore[operator]
    assert correlation(np.ones(20)) is None and correlation(np.arange(4.0)) is None


def test_the_steps_of_a_run_are_those_its_step_was_estimated_from():
    run = diagnosed("tests/data/runs/tiny_lora")
    steps = unprofiled(run)
    found_there = step_time(steps, None, None)
    assert found_there is not None and run.steps is not None and found_there.ns == run.steps.unprofiled_ns
    assert run.run is not None and len(steps) == run.run.baseline.free_steps
    assert len(unprofiled(diagnosed("tiny"))) == 0


# -- cells and their sums

CELL = st.one_of(
    st.tuples(st.just("busy"), st.sampled_from(CATEGORIES), st.sampled_from(PHASES)),
    st.tuples(st.just("idle"), st.sampled_from(CAUSES), st.sampled_from(PHASES)),
)
CELLS = st.dictionaries(CELL, st.integers(1, 10**12), min_size=1, max_size=30)
KEYED = st.dictionaries(st.tuples(st.sampled_from(PHASES), st.sampled_from(CATEGORIES)), st.floats(0, 1e4), max_size=12)
FEW_COUNTS = st.sampled_from([0.0, 1.0, 40.0, 900.0])


@st.composite
def any_facts(draw) -> Facts:
    kernels = draw(KEYED)
    counts = Counts(
        kernels=kernels, kernel_ns={key: value * 1000 for key, value in kernels.items()},
        launches=draw(FEW_COUNTS), graph_kernels=draw(FEW_COUNTS), compiled=draw(FEW_COUNTS),
        compiling_ns=draw(FEW_COUNTS) * MS, syncs=draw(FEW_COUNTS), blocking_copies=draw(FEW_COUNTS),
        allocator_calls=draw(FEW_COUNTS), pageable_bytes=draw(FEW_COUNTS) * MS, product_flops=None,
    )  # fmt: skip
    return make_facts(draw(CELLS), counts, tuple(draw(st.lists(st.sampled_from(["tf32", "adapter_casts"])))))


def make_facts(cells: Cells, counts: Counts, findings: tuple[str, ...] = (), **changes) -> Facts:
    step = sum(cells.values())
    side = Side(
        path="x.json", kind="kineto", quality="ok", bound="host", cause="launch", gpu="NVIDIA H200", rank=None,
        world_size=None, device=0, steps=1, step_ns=step, known="estimated", recorded_ns=step, tokens=None,
        real_tokens=None, samples=None, product_flops=None, products=100,
        kernels=counts.total, launches=counts.launches, syncs=counts.syncs, peak_bytes=None,
    )  # fmt: skip
    found_there = tuple(
        Finding(name, name, "high", (), "do it", Range(1.0, 2.0, 3.0), Range(1.0, 1.5, 2.0)) for name in findings
    )
    table = KernelTable(1, {}, {})
    return Facts(replace(side, **changes), cells, counts, table, OpTable({}, {}), found_there)


@given(CELLS, CELLS)
def test_terms_and_phases_sum_to_both_steps(a, b):
    for rows in (terms(a, b), phase_differences(a, b)):
        assert sum(row.a_ns for row in rows) == sum(a.values())
        assert sum(row.b_ns for row in rows) == sum(b.values())
        assert sum(row.difference_ns for row in rows) == sum(b.values()) - sum(a.values())


@given(any_facts(), any_facts(), st.sampled_from([None, 1.0, 8.0]))
@settings(deadline=None)
def test_mechanisms_and_the_rest_sum_to_the_difference(a, b, ratio):
    work = None if ratio is None else Work("tokens", 100.0, 100.0 * ratio, ratio, ratio == 1, 1.0, 1.0)
    found = explain(a, b, work)
    found_there = sum(sum(phases.values()) for _, phases in found.parts)
    assert found_there + found.rest_ns == b.side.step_ns - a.side.step_ns
    # Nothing that costs time is said to have saved some.
    assert all(one.more * sum(phases.values()) >= 0 for one, phases in found.parts)


@given(any_facts(), any_facts())
@settings(deadline=None)
def test_the_order_of_the_findings_makes_no_difference(a, b):
    def said():
        found = explain(a, b, None)
        return [(one.id, one.text, phases) for one, phases in found.parts], found.rest_ns

    as_registered = said()
    with patch.object(mechanisms, "CHANGES", mechanisms.CHANGES[::-1]):
        assert said() == as_registered


COUNT = st.one_of(st.just(0.0), st.floats(0.01, 1e5))


@given(COUNT, st.integers(0, 10**12), COUNT, st.integers(0, 10**12))
def test_a_kernel_changes_by_number_and_by_time(a_count, a_ns, b_count, b_ns):
    row = difference(("k", "gemm", None, None), a_count, a_ns, b_count, b_ns)
    back = difference(("k", "gemm", None, None), b_count, b_ns, a_count, a_ns)
    assert row.count_ns + row.duration_ns == row.difference_ns == b_ns - a_ns
    assert back.difference_ns == -row.difference_ns and abs(back.count_ns + row.count_ns) <= 1


def test_kernels_are_aligned_by_what_both_know():
    whole = KernelTable(2, {("k", "gemm", "aten::mm", "Linear"): 4, ("k", "gemm", "aten::mm", "Head"): 2}, {})
    whole = replace(whole, ns={key: n * 1000 for key, n in whole.count.items()})
    bare = KernelTable(1, {("k", "gemm", "aten::mm", None): 3}, {("k", "gemm", "aten::mm", None): 3000})
    unnamed = KernelTable(1, {("k", "other", None, None): 3}, {("k", "other", None, None): 3000})
    for other in (bare, unnamed):
        found = compare_kernels(whole, other, 10)
        assert (found.new, found.gone, found.both, found.difference_ns) == (0, 0, 1, 0)
    assert len(compare_kernels(whole, replace(whole, steps=1), 10).rows) == 2
    assert compare_ops(OpTable({}, {}), OpTable({("a", "forward"): 1.0}, {("a", "forward"): 5.0}), 3) == ()


# -- mechanisms, one by one

NOTHING = Counts({}, {}, 0, 0, 0, 0, 0, 0, 0, 0, None)
BASE: Cells = {
    ("busy", "gemm", "forward"): 20 * MS,
    ("busy", "elementwise", "backward"): 10 * MS,
    ("idle", "launch", "forward"): 30 * MS,
    ("idle", "launch", "optimizer"): 5 * MS,
}


def counts(kernels: dict[tuple[str, str], float], **changes) -> Counts:
    found = {("forward", "gemm"): 100.0, ("backward", "elementwise"): 400.0, ("optimizer", "optimizer"): 20.0} | kernels
    times = {key: n * 20_000 for key, n in found.items()}
    return replace(NOTHING, kernels=found, kernel_ns=times, **({"launches": sum(found.values())} | changes))


def less(cell: Cell, ns: int) -> Cells:
    return BASE | {cell: BASE.get(cell, 0) + ns}


CHANGES = {
    "compile": (counts({}), BASE, counts({("backward", "elementwise"): 50.0}, compiled=9.0)),
    "cuda_graphs": (counts({}), BASE, counts({}, graph_kernels=490.0, launches=30.0)),
    "recompute": (counts({("recompute", "gemm"): 60.0}), less(("idle", "launch", "recompute"), 9 * MS), counts({})),
    "optimizer": (
        counts({("optimizer", "elementwise"): 900.0}),
        less(("idle", "launch", "optimizer"), 40 * MS),
        counts({}),
    ),
    "dequantize": (counts({("forward", "dequantize"): 90.0}), less(("busy", "dequantize", "forward"), MS), counts({})),
    "eager_attention": (
        counts({("forward", "softmax"): 30.0}),
        less(("busy", "softmax", "forward"), 50 * MS),
        counts({("forward", "attention"): 30.0}),
    ),
    "expert_loop": (
        counts({("forward", "gemm"): 900.0}, syncs=2.0),
        less(("idle", "launch", "forward"), 50 * MS),
        counts({("forward", "grouped_gemm"): 12.0}, syncs=2.0),
    ),
    "syncs": (counts({}, syncs=60.0), less(("idle", "sync", "forward"), 9 * MS), counts({}, syncs=1.0)),
    "input_workers": (counts({}), less(("idle", "input", "forward"), 30 * MS), counts({})),
    "pageable_copies": (
        counts({}, pageable_bytes=1e8),
        less(("idle", "transfer", "forward"), 30 * MS),
        counts({}, pageable_bytes=0.0),
    ),
    "allocator": (counts({}, allocator_calls=30.0), less(("idle", "allocator", "forward"), 9 * MS), counts({})),
    "recompiles": (counts({}, compiling_ns=4e7), less(("idle", "python", "forward"), 40 * MS), counts({})),
    "exposed_communication": (counts({}), less(("busy", "communication", "communication"), 9 * MS), counts({})),
    "kernels": (counts({}), less(("busy", "gemm", "forward"), 30 * MS), counts({})),
    "host": (counts({}), less(("idle", "launch", "forward"), 20 * MS), counts({})),
    "launches": (counts({("forward", "elementwise"): 90.0}), less(("idle", "launch", "forward"), 9 * MS), counts({})),
}
"""What is first → counts and cells of the side that does more of it, and counts of the one that does not."""


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("turned", [False, True], ids=["fixed", "broken"])
def test_each_change_is_named_whichever_way_it_goes(name, turned):
    before, cells, after = CHANGES[name]
    after_cells = BASE
    if cells is BASE:  # what these shorten is in all cells of the model
        after_cells = {cell: ns // 3 if cell[0] == "idle" and cell[2] == "forward" else ns for cell, ns in BASE.items()}
    a, b = make_facts(cells, before), make_facts(after_cells, after)
    if turned:
        a, b = b, a
    first, phases = explain(a, b, None).parts[0]
    assert first.id == name
    assert (sum(phases.values()) < 0) != turned
    assert "→" in first.text or name == "compile"


def test_waits_for_kernels_that_compiling_tries_are_compilings():
    before = make_facts(
        less(("idle", "sync", "forward"), 40 * MS), counts({}, compiling_ns=4e7, syncs=6000.0, launches=9000.0)
    )
    after = make_facts(BASE, counts({}))
    assert first(before, after) == first(after, before) == "recompiles"
    accident = make_facts(less(("idle", "sync", "forward"), 40 * MS), counts({}, compiling_ns=4e6, syncs=6000.0))
    assert first(accident, after) == "syncs"


def test_fixes_that_only_their_findings_recognise():
    before, after = make_facts(BASE, counts({}), ("tf32",)), make_facts(BASE, counts({}))
    times = dict(after.counts.kernel_ns) | {("forward", "gemm"): 500_000.0}
    cells = BASE | {("busy", "gemm", "forward"): 5 * MS}
    fixed = make_facts(cells, replace(after.counts, kernel_ns=times))
    assert explain(before, fixed, None).parts[0][0].id == "tf32"
    unadvised = explain(after, fixed, None).parts[0][0]
    assert unadvised.id == "kernels"


def first(a: Facts, b: Facts, work: Work | None = None) -> str:
    return explain(a, b, work).parts[0][0].id


def test_operands_of_another_type_are_no_tf32():
    before = make_facts(BASE, counts({}, float32_products=90.0), ("tf32",))
    times = dict(before.counts.kernel_ns) | {("forward", "gemm"): 500_000.0}
    cells = BASE | {("busy", "gemm", "forward"): 5 * MS}
    allowed = make_facts(cells, replace(before.counts, kernel_ns=times))
    cast = replace(allowed, counts=replace(allowed.counts, float32_products=10.0))
    assert first(before, allowed) == "tf32"
    assert first(before, cast) == "kernels"


def test_a_model_of_fewer_kernels_recomputes_fewer():
    cells = less(("busy", "gemm", "recompute"), 20 * MS)
    many = counts({("forward", "gemm"): 900.0, ("recompute", "gemm"): 900.0})
    fewer = counts({("forward", "gemm"): 90.0, ("recompute", "gemm"): 90.0})
    none = counts({("forward", "gemm"): 900.0})
    ids = {one.id for one, _ in explain(make_facts(cells, many), make_facts(BASE, fewer), None).parts}
    assert "recompute" not in ids
    assert first(make_facts(cells, many), make_facts(BASE, none)) == "recompute"


def test_weights_unpacked_in_fewer_pieces_are_still_unpacked():
    kind = ("forward", "dequantize")
    cells = less(("busy", "dequantize", "forward"), MS)
    before, after = counts({kind: 90.0}), counts({kind: 9.0})
    as_long = replace(after, kernel_ns={**after.kernel_ns, kind: before.kernel_ns[kind]})
    assert first(make_facts(cells, before), make_facts(BASE, after)) == "dequantize"
    assert first(make_facts(cells, before), make_facts(BASE, as_long)) != "dequantize"


def test_a_lower_clock_makes_nothing_faster():
    slow, fast = less(("busy", "gemm", "forward"), 20 * MS), BASE
    low, high = (replace(make_facts(fast, counts({})), clock_mhz=mhz) for mhz in (1500.0, 1900.0))
    longer = replace(make_facts(slow, counts({})), clock_mhz=1500.0)
    assert first(high, longer) == "throttling"
    assert first(replace(longer, clock_mhz=1900.0), low) == "kernels"
    other = replace(make_facts(slow, counts({("forward", "gemm"): 900.0})), clock_mhz=1500.0)
    assert first(high, other) == "kernels", "other kernels draw other power"


def padded(tokens: float, real: float | None, step_ns: int = 100 * MS) -> Facts:
    share = step_ns // sum(BASE.values())
    return make_facts({cell: ns * share for cell, ns in BASE.items()}, counts({}), tokens=tokens, real_tokens=real)


def test_less_padding_is_distinguished_from_a_larger_batch():
    a, packed, grouped, larger = padded(1000, 400), padded(1050, 1030), padded(450, 400), padded(8000, 3200)
    for b, name in ((packed, "padding"), (grouped, "padding"), (larger, "larger_batch")):
        work = compare_work(a.side, b.side)
        assert work is not None
        shorter = replace(b, cells={cell: ns // 2 for cell, ns in b.cells.items()})
        shorter = replace(shorter, side=replace(shorter.side, step_ns=sum(shorter.cells.values())))
        found_there = {one.id: one.text for one, _ in explain(a, shorter, work).parts if one.id in WORK}
        assert list(found_there) == [name]
        if b is packed:
            assert found_there[name].startswith(
                "60 % of A's tokens are padding, 2 % of B's: 400 → 1,030 tokens a step are real"
            )


def test_tokens_without_a_mask_all_count():
    work = compare_work(padded(1000, 400).side, padded(1050, None).side)
    assert work is not None and (work.a, work.b) == (400, 1050)
    known = replace(padded(1000, 400).side, known="unprofiled", token_ns=9.0)
    other = replace(padded(1050, None).side, known="unprofiled", token_ns=3.0)
    work = compare_work(known, other)
    assert work is not None and (work.a_ns_per, work.b_ns_per) == (9.0, 3.0), "over all steps, where they differ"
    assert compare_steps(known, other, work, None).speedup == 3.0


def test_another_batch_comes_first():
    work = Work("tokens", 128.0, 1024.0, 8.0, False, 1.0, 1.0)
    more = {cell: 2 * ns if cell[0] == "busy" else ns for cell, ns in BASE.items()}
    found = explain(make_facts(BASE, counts({})), make_facts(more, counts({})), work)
    assert found.parts[0][0].id == "larger_batch"
    gpu = explain(make_facts(BASE, counts({})), make_facts(more, counts({}), gpu="NVIDIA H100"), None)
    assert gpu.parts[0][0].id == "gpu"


# -- recorded twins


@pytest.mark.parametrize(("a", "b", "mechanism"), TWINS, ids=NAMES)
def test_the_fix_of_a_twin_comes_first(a, b, mechanism):
    c = compared(a, b)
    check_sums(c)
    assert c.step.outcome == "faster"
    assert c.mechanisms[0].id == mechanism
    assert c.mechanisms[0].found == "a"
    found_there = c.mechanisms[0].predictions
    assert [p.by for p in found_there] == ["a"] and found_there[0].inside
    assert found_there[0].measured_ns == c.step.b_ns


def test_what_a_trial_measured_stands_next_to_what_was_predicted():
    a, b, mechanism = TWINS[0]
    before, after = diagnosed(a), diagnosed(b)
    tried = Measured("confirmed", 7 * MS, 1.0, 1.1, 1.2, "bitwise", "")
    found = [replace(one, measured=tried) if one.id == mechanism else one for one in before.findings]
    c = compare(replace(before, findings=tuple(found)), after)
    (found_there,) = c.mechanisms[0].predictions
    assert found_there.tried_ns == 7 * MS
    assert "; gpuprof try measured 7.0 ms; B " in prediction(found_there)
    assert not list(Draft202012Validator(schema()).iter_errors(to_json(c)))
    assert compared(a, b).mechanisms[0].predictions[0].tried_ns is None


@pytest.mark.parametrize(("a", "b", "mechanism"), TWINS, ids=NAMES)
def test_a_fix_taken_back_is_named_too(a, b, mechanism):
    forth, back = compared(a, b), compared(b, a)
    check_sums(back)
    assert back.step.outcome == "slower" and back.step.difference_ns == -forth.step.difference_ns
    assert back.mechanisms[0].id == mechanism and back.mechanisms[0].found == "b"
    assert [p.by for p in back.mechanisms[0].predictions] == ["b"]


TWO_RANKS = ["scenarios/ddp_scaling/recording", "scenarios/fsdp_exposed/recording"]


@pytest.mark.parametrize("name", ["tiny", "moe_big", "scenarios/input_starved/recording", *TWO_RANKS])
def test_a_recording_does_not_differ_from_itself(name):
    c = compared(name, name)
    check_sums(c)
    assert c.step.outcome == "same" and c.step.difference_ns == 0 and c.step.speedup == 1
    assert not c.mechanisms and not c.unexplained_ns and not c.kernels.rows and not c.ops
    assert all(row.difference_ns == 0 for row in (*c.terms, *c.phases))
    assert c.kernels.new == c.kernels.gone == c.kernels.count_ns == c.kernels.duration_ns == 0
    assert "do not differ" in c.summary
    assert all(r.a_pace_ns == r.b_pace_ns and r.a_waiting_ns == r.b_waiting_ns for r in c.ranks or ())


def test_runs_of_several_ranks():
    c = compared(*TWO_RANKS)
    check_sums(c)
    assert c.ranks is not None and [one.rank for one in c.ranks] == [0, 1]
    assert any(note.id == "one_rank" and "rank 0 of both, of 2 ranks" in note.message for note in c.notes)
    assert c.mechanisms[0].id != "throttling", "of other kernels the clock says little"
    assert compared("tiny", "tiny").ranks is None


def test_copies_that_no_longer_block():
    """Two programs of one model, of which one copies teacher logits from pageable memory."""
    c = compared("copies", "mid")
    check_sums(c)
    assert c.mechanisms[0].id == "pageable_copies"


def test_the_same_program_on_two_hosts_differs_by_its_host():
    c = compared("tests/data/hosts/small_batch", "tests/data/runs/tiny_lora")
    check_sums(c)
    assert c.mechanisms[0].id == "host" and abs(c.mechanisms[0].share or 0) > 0.95
    assert any(note.id == "same_program" for note in c.notes)
    assert c.significance is not None and c.significance.of == "unprofiled" and c.significance.significant
    assert (c.a.known, c.b.known) == ("unprofiled", "unprofiled")
    assert c.work is not None and c.work.equal and c.work.measure == "tokens"


def test_programs_that_have_nothing_in_common_still_sum():
    for a, b in (("moe_big", "tf32"), ("four_bit", "scenarios/input_starved/recording"), ("optimizer", "host_encoder")):
        check_sums(compared(a, b))
        check_sums(compared(b, a))


def test_recordings_of_one_program_with_other_tools(shared: Path, tmp_path: Path):
    folder = shared / "traces" / "h200"
    plain, stacks = (diagnosed(str(folder / f"tiny_lora_small_batch{x}.json.gz")) for x in ("", "_stack"))
    c = compare(plain, stacks)
    check_sums(c)
    assert abs(c.step.ratio - 1) < 0.1 and c.kernels.new == c.kernels.gone == 0
    assert {m.id for m in c.mechanisms} <= {"host", "kernels"}
    nsys = tmp_path / "x.nsys.sqlite.gz"
    nsys.write_bytes((folder / "tiny_lora_small_batch.nsys.sqlite.gz").read_bytes())
    c = compare(plain, gpuprof.diagnose(nsys))
    check_sums(c)
    assert c.kernels.both > 20 and c.ops == ()
    assert any(note.id == "other_tool" for note in c.notes)


def test_ranks_of_one_run(shared: Path):
    folder = shared / "traces" / "h200"
    c = compared(*(str(folder / f"ddp_straggler_rank{rank}.json.gz") for rank in (0, 1)))
    check_sums(c)
    assert c.mechanisms[0].id == "exposed_communication"
    assert any(note.id == "other_rank" for note in c.notes)


# -- which step, and which is faster


def test_a_recorded_step_is_never_compared_with_one_without_the_profiler():
    a, b = diagnosed("tiny"), diagnosed("tiny.compile")
    assert b.steps is not None and a.steps is not None
    blind = replace(b, steps=replace(b.steps, estimated_ns=None))
    c = compare(a, blind)
    check_sums(c)
    assert (c.a.known, c.b.known) == ("recorded", "recorded")
    assert (c.step.a_ns, c.step.b_ns) == (a.steps.recorded_ns, b.steps.recorded_ns)
    assert any(note.id == "recorded_steps" for note in c.notes)
    timed = gpuprof.diagnose(PAIRS / "tiny.json.gz", step_ms=60)
    c = compare(timed, b)
    check_sums(c)
    assert (c.a.known, c.b.known) == ("unprofiled", "estimated") and c.step.a_ns == 60 * MS and not c.step.alike
    assert any(note.id == "unlike_steps" for note in c.notes)


def side(step_ns: int, **changes) -> Side:
    return make_facts({("busy", "gemm", "forward"): step_ns}, NOTHING, **changes).side


def test_more_work_in_a_step_is_accounted_for():
    a, b = side(100 * MS, tokens=128.0, samples=1.0), side(120 * MS, tokens=1024.0, samples=8.0)
    work = compare_work(a, b)
    assert work is not None and (work.measure, work.ratio, work.equal) == ("tokens", 8.0, False)
    step = compare_steps(a, b, work, None)
    assert step.outcome == "faster" and step.speedup == pytest.approx(8 / 1.2)
    real = compare_work(replace(a, real_tokens=100.0), replace(b, real_tokens=101.0))
    assert real is not None and real.equal and real.a == 100
    samples = compare_work(replace(a, tokens=None), b)
    assert samples is not None and samples.measure == "samples"
    hinted = compare_work(side(MS, product_flops=1e12), side(MS, product_flops=4e12))
    assert hinted is not None and hinted.measure == "product FLOPs" and not hinted.equal
    assert compare_work(side(MS, product_flops=1e12), side(MS, product_flops=4e12, products=500)) is None
    assert compare_work(side(MS), side(MS)) is None


def test_what_scatter_explains_is_no_difference():
    a, b = diagnosed("tests/data/runs/tiny_lora"), diagnosed("tests/data/hosts/small_batch")
    tested = significance(a, b)
    assert tested is not None and tested.significant
    unsure = replace(tested, p=0.4, significant=False)
    assert compare_steps(side(100), side(120), None, unsure).outcome == "same"
    assert compare_steps(side(100), side(120), None, tested).outcome == "slower"
    likely = replace(tested, p=0.07, significant=False)
    step = compare_steps(side(100), side(126), None, likely)
    assert (step.outcome, step.sure) == ("slower", False)
    assert compare_steps(side(100), side(105), None, likely).outcome == "same", "processes differ by as much"
    contrary = replace(tested, a_median_ns=tested.b_median_ns, b_median_ns=tested.a_median_ns)
    assert compare_steps(side(100), side(120), None, contrary).outcome == "same"
    assert compare_steps(side(1000), side(1050), None, None).outcome == "same", "processes differ by as much"
    assert compare_steps(side(1000), side(1100), None, None).outcome == "slower"


@pytest.mark.parametrize("what", ["quality", "devices", "steps"])
def test_what_cannot_be_compared_is_said(what, tmp_path):
    good = diagnosed("tiny")
    if what == "steps":
        assert good.steps is not None
        bad = replace(good, steps=replace(good.steps, source="none"))
    elif what == "devices":
        bad = replace(good, devices=())
    else:
        builder = TraceBuilder()
        for i in range(4):
            builder.step(i, i * MS, (i + 1) * MS).op("aten::mm", i * MS, i * MS + 1000)
        bad = gpuprof.diagnose(builder.write(tmp_path / "cpu.json"))
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(GpuprofError, match=r"[AB]"):
            compare(*pair)


# -- JSON

VALIDATOR = Draft202012Validator(schema())


def test_the_schema_is_one():
    Draft202012Validator.check_schema(schema())
    document = to_json(compared("tiny", "tiny.compile"))
    assert list(document) == list(schema()["properties"])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *[(a, b) for a, b, _ in TWINS],
        ("tiny", "tiny"),
        ("scenarios/small_batch/recording", "scenarios/input_starved/recording"),
    ],
)
def test_every_comparison_is_valid(a, b):
    text = dumps(compared(a, b))
    assert text.isascii()
    document = json.loads(text)
    assert [f"{e.json_path}: {e.message}" for e in VALIDATOR.iter_errors(document)] == []
    assert document["step"]["difference_ns"] == sum(term["difference_ns"] for term in document["terms"])


# -- the API


def test_the_api_takes_paths_traces_and_diagnoses():
    path = PAIRS / "tiny.graphs.json.gz"
    c = gpuprof.compare(path, diagnosed("tiny.graphs"), top=3)
    assert isinstance(c, gpuprof.Comparison) and c.step.difference_ns == 0
    assert c.diagnoses is not None and c.diagnoses[1] is diagnosed("tiny.graphs")
    c = gpuprof.compare(gpuprof.load(path), [PAIRS / "tiny.compile.json.gz"], top=3)
    check_sums(c)
    assert len(c.kernels.rows) == 3 and len(c.ops) == 3
