"""The programs of `benchmarks.try_proof` with tiny shapes: each is timed with its fixes, both applied by gpuprof and
made by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers.command import working_in
from helpers.installed import need
from helpers.warm_torch import warm_python

from benchmarks.try_proof import PROGRAMS, Program, difference, disagrees, make_inputs, table
from gpuprof.record.launcher.command import Target
from gpuprof.trial.fixes import parse
from gpuprof.trial.own_flags import OwnFlags
from gpuprof.trial.starter import Outcome, Starter
from gpuprof.trial.trial import TriedFix

SECONDS, LIMIT_S = 0.1, 200.0
SEEN = ("input_workers", "recompute")
"""Fixes whose patches notice if the program makes them itself."""
NEEDS_GPU = {"tf32": "there is no GPU"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the programs run."""
    need("torch", "transformers", "trl", "tokenizers")
    folder = tmp_path_factory.mktemp("proof")
    make_inputs(folder, tiny=True)
    return folder


def timed(program: Program, fix: str, fixes: list[TriedFix], changes: bool = True) -> Outcome:
    """Runs a process of a program with one fix made by hand, and others applied from outside or only looked for."""
    python, *words = program.command(fix, Path.cwd(), tiny=True)
    python = python if program.module else warm_python()
    with Starter(Target((python, *words), program.name, sys.executable, True, ()), network=False) as starter:
        flags = None if changes else {one: OwnFlags() for one in fixes}
        return starter.run(fixes, None, None, SECONDS, LIMIT_S, flags)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_of_the_proof_is_timed_with_each_fix(program: Program, inputs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with working_in(inputs):
        tried = timed(program, "", [parse(fix)[0] for fix in program.by_hand])
        assert tried.process.error is None and tried.process.step_ns, tried.process.error
        patches = {patch["name"]: patch for patch in tried.ranks[0]["patches"]}
        for name, patch in patches.items():
            assert patch["applied"] or patch["text"].startswith(NEEDS_GPU.get(name, "nothing")), patch
        assert set(patches) == {fix.partition("=")[0] for fix in program.by_hand}
        for fix in program.by_hand:
            looked_at = [one for one in parse(fix) if one.name in SEEN]
            edited = timed(program, fix, looked_at, changes=False)
            assert edited.process.error is None and edited.process.step_ns, f"{fix}: {edited.process.error}"
            assert edited.not_applied is None, f"{fix} by hand: {edited.not_applied}"
    assert not (inputs / "out").exists()


def row(tried: tuple, edited: tuple, disturbed: int = 0) -> dict:
    return {
        "program": "sft", "of": "TRL", "fix": "recompute", "predicted": None, "tried": list(tried),
        "edited": list(edited), "cpu_apart": 0.01, "disturbed": disturbed, "processes": 7, "why": None,
    }  # fmt: skip


def test_a_difference_counts_where_neither_intervals_nor_the_machine_explain_it():
    apart = row((1.9, 2.0, 2.1), (1.0, 1.1, 1.2))
    assert difference(apart) == pytest.approx(2.0 / 1.1 - 1) and disagrees(apart)
    assert not disagrees(row((1.0, 2.0, 3.0), (1.0, 1.1, 1.2))), "intervals overlap"
    assert not disagrees(row((1.9, 2.0, 2.1), (1.0, 1.1, 1.2), disturbed=3))
    assert disagrees(row((None, 2.0, None), (None, 1.1, None))), "one round has no interval to hide behind"
    shown = table([apart])
    assert "+81.8 % | 0 of 7 | +1.0 %" in shown and "differ by 81.8 % in the median of 1" in shown
