"""Ops that only prepare a value which the CPU reads, in recordings of real programs."""

from __future__ import annotations

from collections import Counter

import numpy as np
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT

from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.detect.value_chains import preparing


def prepared(name: str) -> tuple[Counter[str], int]:
    """Names of the ops that only prepare what `aten::item` reads, and how often it reads."""
    case = analysis_of(diagnosed(ROOT / "scenarios" / name / "recording"))
    reads = case.outermost(case.ops_named("aten::item".__eq__))
    rows = np.flatnonzero(preparing(case, reads)).tolist()
    return Counter(case.trace.strings[case.trace.ops.name[row]] for row in rows), len(reads)


def test_lengths_that_are_made_to_be_read():
    """The program computes the longest document from the lengths, in each layer, and reads it."""
    names, reads = prepared("cases/layer_sync")
    assert set(names) == {"aten::cumsum", "aten::pad", "aten::diff", "aten::max"}
    assert set(names.values()) == {reads}


def test_a_reduction_of_large_tensors_stays():
    """The program reads the largest value of each block's hidden states."""
    names, reads = prepared("programs/breaks_item")
    assert reads
    assert not any(name in names for name in ("aten::abs", "aten::max", "aten::amax"))
