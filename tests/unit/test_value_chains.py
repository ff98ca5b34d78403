"""Ops that only prepare a value which the CPU reads, in recordings of real programs."""

from __future__ import annotations

from collections import Counter

from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from helpers.present import present

from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.detect.losses.value_chains import preparations
from gpuprof.replay.stretches import place
from gpuprof.tracefile.trace import OP


def prepared(name: str) -> tuple[Counter[str], int]:
    """Names of the ops that only prepare what `aten::item` reads, and how often it reads."""
    case = present(analysis_of(diagnosed(ROOT / "scenarios" / name / "recording")))
    reads = case.outermost(case.ops_named("aten::item".__eq__))
    ops = case.trace.ops
    outer = case.outermost(ops.kind == OP)
    found = place(preparations(case, reads), ops.thread[outer].astype("int64"), ops.start_ns[outer])
    return Counter(case.trace.strings[ops.name[row]] for row in outer[found >= 0].tolist()), len(reads)


def test_lengths_that_are_made_to_be_read():
    """The program computes the longest document from the lengths, in each layer, and reads it."""
    names, reads = prepared("cases/layer_sync")
    assert set(names) == {"aten::cumsum", "aten::pad", "aten::diff", "aten::max", "aten::item"}
    assert set(names.values()) == {reads}


def test_a_reduction_of_large_tensors_stays():
    """The program reads the largest value of each block's hidden states."""
    case = present(analysis_of(diagnosed(ROOT / "scenarios" / "programs/breaks_item" / "recording")))
    reads = case.outermost(case.ops_named("aten::item".__eq__))
    assert len(reads) > 0
    assert sorted(preparations(case, reads).start_ns) == sorted(case.trace.ops.start_ns[reads])
