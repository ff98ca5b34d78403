"""Fixes that save time which an earlier one already saves come after those that save other time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.program import PLAIN, US, Program

from gpuprof.diagnosis.analysis import Change
from gpuprof.diagnosis.detect.declared.proposal import Proposal
from gpuprof.diagnosis.fixes import predict
from gpuprof.diagnosis.fixes.alternatives import leaders_first
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.diagnosis.result.fix import as_fix
from gpuprof.tracefile.trace import Mask


def test_what_takes_off_other_time_comes_first_in_the_given_order():
    found = leaders_first(["a1", "a2", "b1", "a3", "b2"], lambda first, later: first[0] == later[0])
    assert found == [("a1", None), ("b1", None), ("a2", "a1"), ("a3", "a1"), ("b2", "b1")]
    assert leaders_first(["a2", "b1"], lambda first, later: first[0] == later[0], ["a1"]) == [
        ("b1", None),
        ("a2", "a1"),
    ]


def shorter(nodes: Mask, most_ns: float) -> Change:
    return lambda graph: graph.with_durations(
        np.where(nodes, np.minimum(graph.duration_ns, most_ns), graph.duration_ns)
    )


def fixes_of(folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> tuple[Finding, ...]:
    """The fixes of a GPU-bound step with two kinds of kernels: two for the matmuls and one for the others."""
    program = Program()

    def body() -> None:
        for _ in range(6):
            program.small_mm(20 * US, 500 * US)
            program.plain("mul", [4096], gpu=300 * US)

    for _ in range(3):
        program.step(body)
    case = program.case(folder)
    on_gpu = case.graph.on_gpu
    plain = case.nodes_of_gpu(case.trace.rows_named(case.trace.gpu.name, PLAIN.__eq__)) & on_gpu
    each = (
        Proposal("shorter", (), as_fix("x"), shorter(on_gpu & ~plain, 200 * US), **more),
        Proposal("a little shorter", (), as_fix("x"), shorter(on_gpu & ~plain, 250 * US)),
        Proposal("others", (), as_fix("x"), shorter(plain, 150 * US), **more),
    )
    page = predict.FINDINGS[0][0]
    found = [(replace(page, id=f"fix_{at}"), lambda _, one=one: [one]) for at, one in enumerate(each)]
    monkeypatch.setattr(predict, "FINDINGS", found)
    return predict.fixes(case).findings


def test_two_fixes_for_the_same_kernels_are_one_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = fixes_of(tmp_path, monkeypatch)
    assert [(one.title, one.overlaps) for one in found] == [
        ("shorter", None), ("others", None), ("a little shorter", "shorter"),
    ]  # fmt: skip


def test_a_fix_that_claims_what_another_claims_stands_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = fixes_of(tmp_path, monkeypatch, claims=("kernels",))
    assert [one.overlaps for one in found] == [None, "shorter", "shorter"]
