"""No sentence of a diagnosis is contradicted by the numbers that it is made of."""

from __future__ import annotations

import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT, SHARED
from helpers.sentences import contradictions

OWN = [
    *sorted((ROOT / "scenarios").glob("*/recording")), *sorted((ROOT / "scenarios").glob("*/fixed")),
    *sorted((ROOT / "tests" / "data").glob("*.json.gz")), *sorted((ROOT / "tests" / "data" / "pairs").glob("*.json.gz")),
    *sorted((ROOT / "tests" / "data" / "runs").glob("*/")), *sorted((ROOT / "tests" / "data" / "hosts").glob("*/")),
    *sorted((ROOT / "tests" / "data" / "nsys").glob("*/*.gz")), *sorted((ROOT / "gpuprof" / "data").glob("*.json.gz")),
]  # fmt: skip
TRACES = SHARED / "traces"
OTHERS = [
    *sorted(TRACES.glob("public/*.gz")), *sorted(TRACES.glob("public/param_dlrm_8rank")),
    *sorted(TRACES.glob("wild/*/")), *sorted(TRACES.glob("nsys/*.gz")), *sorted(TRACES.glob("h200/*.json.gz")),
]  # fmt: skip
"""The shared recordings, where they are."""


def name(path) -> str:
    parts = path.relative_to(ROOT if path.is_relative_to(ROOT) else TRACES).parts
    return "-".join(parts).removesuffix(".gz").removesuffix(".json")


@pytest.mark.parametrize("path", OWN, ids=name)
def test_its_own_numbers_bear_out_what_a_diagnosis_says(path):
    assert not contradictions(diagnosed(path))


@pytest.mark.slow
@pytest.mark.parametrize("path", OTHERS, ids=name)
def test_other_programs_recordings_are_told_as_consistently(path):
    assert not contradictions(diagnosed(path))
