"""A model called on one row after another, each copied by the CPU; tables that the CPU computes at each call."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.program import MS, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.loops.recurrent_loops import fed_nodes, find_fed_loops, find_recurrent_loops
from gpuprof.diagnosis.detect.repeated.copied_tables import find_copied_tables
from gpuprof.diagnosis.findings import python_loop, rebuilt_constants, syncs

AT_ONCE, TIMES, WIDTH = 8, 4, 24


def copied(program: Program, shape: list[int], size: int) -> None:
    """`.to("cuda")` of a tensor in pageable memory."""
    start = program.now
    call = (start + 4 * US, start + 10 * US)
    program.launch("Memcpy HtoD (Pageable -> Device)", call, 1 * US, cat="gpu_memcpy", bytes=size)
    program.trace.op("aten::to", start, start + 12 * US, **{"Input Dims": [shape], **program.numbered()})
    program.now = start + 12 * US


def asked(folder: Path, *, fed: bool = True, pause: int = 1 * MS) -> Analysis:
    """A policy of three layers called for one environment after another: AT_ONCE of them, TIMES times, then all
    move."""
    program = Program()

    def one() -> None:
        if fed:
            copied(program, [WIDTH], 4 * WIDTH)
        start = program.now
        for width in (WIDTH, 256, 256):
            program.op("aten::linear", "kernel", 2 * US, [[width], [256, width], [256]])
            program.op("aten::tanh", "kernel", 2 * US, [[256]])
        program.now += 2 * US
        program.trace.annotation("nn.Module: Policy_0", start, program.now, program.tid)
        program.item()

    def body() -> None:
        for _ in range(TIMES):
            for _ in range(AT_ONCE):
                one()
            program.python(pause)
        program.small_mm()

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_rows_that_are_known_at_once_are_one_call(tmp_path: Path):
    case = asked(tmp_path)
    loops = find_fed_loops(case)
    assert loops is not None and loops.rounds.tolist() == [AT_ONCE * TIMES] * 3
    assert loops.together is not None and loops.together.tolist() == [AT_ONCE] * 3
    assert find_recurrent_loops(case) is None
    proposal = only(python_loop, case, "calls")
    assert proposal.best is not None
    best = case.step_of(proposal.best(case.graph))
    # At best one round of eight is left; moving the environments stays.
    assert case.step_ns - best == pytest.approx((case.step_ns - TIMES * MS) * (1 - 1 / AT_ONCE), rel=0.15)
    assert 0.7 < proposal.odds < 0.9 and "8 at once" in proposal.evidence[0].text
    assert not list(syncs.find(case)), "the CPU needs what it reads for what it copies next"


def test_each_row_may_need_the_one_before_where_all_wait_alike(tmp_path: Path):
    proposal = only(python_loop, asked(tmp_path, pause=0), "calls")
    case = asked(tmp_path / "again", pause=0)
    assert proposal.odds == 0.5 and proposal.worst is not None
    assert case.step_of(proposal.worst(case.graph)) > 0.9 * case.step_ns


def test_rounds_on_tensors_of_the_gpu_stay_recurrences(tmp_path: Path):
    case = asked(tmp_path, fed=False)
    assert find_fed_loops(case) is None and find_recurrent_loops(case) is not None and not fed_nodes(case).any()


def spectra(folder: Path, *, computes: int = 600 * US, reads: bool = False, sizes: tuple[int, ...] = (8_192, 8_192)):
    """Spectra whose filters Python computes and copies at each call."""
    program = Program()

    def body() -> None:
        for size in sizes:
            program.python(computes)
            copied(program, [size // 4], size)
            for _ in range(10):
                program.small_mm()
            if reads:
                program.item()

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_tables_computed_at_each_call_are_kept(tmp_path: Path):
    case = spectra(tmp_path)
    proposal = only(rebuilt_constants, case, "copied")
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert saved == pytest.approx(2 * 600 * US, rel=0.1)
    assert "8 KiB" in proposal.evidence[0].text and "2 times a step" in proposal.evidence[0].text


@pytest.mark.parametrize("other", [{"computes": 50 * US}, {"reads": True}, {"sizes": (8_192, 4_096)}])
def test_batches_what_depends_on_results_and_other_sizes_are_none(tmp_path: Path, other: dict):
    assert find_copied_tables(spectra(tmp_path, **other)) is None
