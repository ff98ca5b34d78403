"""What changed between two recordings is named, one mechanism at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.compared import MS, NOTHING, make_facts

from gpuprof.diagnosis.comparison.compare import (
    compare_steps,
    compare_work,
)
from gpuprof.diagnosis.comparison.comparison import ComparedWork
from gpuprof.diagnosis.comparison.leftovers import WORK
from gpuprof.diagnosis.comparison.mechanisms import explain
from gpuprof.diagnosis.detect.pair.cells import Cell, Cells
from gpuprof.diagnosis.detect.pair.counts import Counts
from gpuprof.diagnosis.detect.pair.facts import Facts
from gpuprof.diagnosis.detect.pair.quantities import times

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
    "compile": (counts({}), BASE, counts({("backward", "elementwise"): 50.0}, compiled=0.9)),
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
"""Mechanism → counts and cells of the side that does more of it, and counts of the other side."""


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("turned", [False, True], ids=["fixed", "broken"])
def test_each_change_is_named_whichever_way_it_goes(name, turned):
    before, cells, after = CHANGES[name]
    after_cells = BASE
    if cells is BASE:  # these shorten all cells of the model
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


def first(a: Facts, b: Facts, work: ComparedWork | None = None) -> str:
    return explain(a, b, work).parts[0][0].id


def test_operands_of_another_type_are_no_tf32():
    before = make_facts(BASE, counts({}, float32_matmuls=90.0), ("tf32",))
    times = dict(before.counts.kernel_ns) | {("forward", "gemm"): 500_000.0}
    cells = BASE | {("busy", "gemm", "forward"): 5 * MS}
    allowed = make_facts(cells, replace(before.counts, kernel_ns=times))
    cast = replace(allowed, counts=replace(allowed.counts, float32_matmuls=10.0))
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
    work = ComparedWork("tokens", 128.0, 1024.0, 8.0, False, 1.0, 1.0)
    more = {cell: 2 * ns if cell[0] == "busy" else ns for cell, ns in BASE.items()}
    found = explain(make_facts(BASE, counts({})), make_facts(more, counts({})), work)
    assert found.parts[0][0].id == "larger_batch"
    gpu = explain(make_facts(BASE, counts({})), make_facts(more, counts({}), gpu="NVIDIA H100"), None)
    assert gpu.parts[0][0].id == "gpu"


def test_times_are_plain_numbers():
    assert [times(one) for one in (0.25, 1.44, 9.96, 128.0, 12_345.0)] == ["0.25", "1.4", "10", "128", "12,345"]
