"""No sentence of a diagnosis contradicts the numbers behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT, SHARED
from helpers.quick import OF_EACH_KIND, few
from helpers.sentences import contradictions


def runs(folder: Path, pattern: str) -> list[Path]:
    return sorted(manifest.parent for manifest in folder.glob(f"{pattern}/manifest.json"))


DATA = ROOT / "tests" / "data"
OWN = [
    *runs(ROOT / "scenarios", "*/recording"), *runs(ROOT / "scenarios", "*/fixed"),
    *sorted(DATA.glob("*.json.gz")), *sorted(DATA.glob("pairs/*.json.gz")), *runs(DATA, "runs/*"),
    *runs(DATA, "hosts/*"), *sorted(DATA.glob("vision/*.json.gz")), *sorted(DATA.glob("nsys/*/*.sqlite.gz")),
    *sorted((ROOT / "gpuprof").glob("data/*.json.gz")),
]  # fmt: skip
TRACES = SHARED / "traces"
OTHERS = [
    *sorted(TRACES.glob("public/*.gz")), *sorted(TRACES.glob("public/param_dlrm_8rank")), *runs(TRACES, "wild/*"),
    *sorted(TRACES.glob("nsys/*.gz")), *sorted(TRACES.glob("h200/*.json.gz")),
]  # fmt: skip
"""The shared recordings, where they are present."""


def name(path: Path) -> str:
    parts = path.relative_to(ROOT if path.is_relative_to(ROOT) else TRACES).parts
    return "-".join(parts).removesuffix(".gz").removesuffix(".json")


QUICK = (*(f"scenarios-{one}-recording" for one in OF_EACH_KIND), "tests-data-tiny_lora_dataloader")


@pytest.mark.parametrize("path", few([pytest.param(path, id=name(path)) for path in OWN], QUICK))
def test_its_own_numbers_bear_out_what_a_diagnosis_says(path):
    assert not contradictions(diagnosed(path))


@pytest.mark.slow
@pytest.mark.parametrize("path", OTHERS, ids=name)
def test_other_programs_recordings_are_described_as_consistently(path):
    assert not contradictions(diagnosed(path))
