"""Damaged run folders get a diagnosis or one line."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from helpers.budgets import budget
from helpers.make_diagnosis import HOSTILE
from helpers.make_run import BEGUN_NS, MS, RunBuilder, three_steps
from helpers.valid_json import is_valid
from hypothesis import given
from hypothesis import strategies as st

import gpuprof
from gpuprof.diagnosis.written.diagnosis_json import dumps
from gpuprof.errors import GpuprofError
from gpuprof.report.notebook import diagnosis_html
from gpuprof.report.terminal.terminal import plain

PROGRAM = {
    "trainer": {"class": "Trainer", "module": "transformers.trainer", "bases": ["a.B"]},
    "arguments": {"class": "DPOConfig", "module": "trl", "bases": ["a.B"], "fields": ["tf32"], "set": {"bf16": True}},
    "autocast": "bfloat16",
    "flags": [{"names": ["--compile"], "kind": "assigned"}, {"names": ["--batch_size"], "kind": "value"}],
    "warnings": [{"source": "x", "text": "falling back to a slow implementation", "count": 2}],
    "reference": [{"class": "Net", "function": "scan_fn", "modules": 2}],
}
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(HOSTILE),
    st.integers(10**30, 10**40), st.lists(st.integers(), max_size=3), st.just({"a": {"b": []}}), st.just("9" * 400),
)  # fmt: skip


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Every place inside a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def put(document, path: tuple, value):
    if not path:
        return value
    here = document
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    return document


@st.composite
def damage(draw) -> tuple[str, str, object]:
    name = draw(st.sampled_from(["manifest.json", "rank0.json", "steps.jsonl", "telemetry.jsonl", "trace.rank0.json"]))
    how = draw(st.sampled_from(["gone", "cut", "garbage", "value", "value", "folder", "nested"]))
    return name, how, draw(st.tuples(st.floats(0, 1), st.binary(max_size=40), JUNK))


def harm(folder: Path, name: str, how: str, what) -> None:
    share, garbage, junk = what
    path = folder / name
    if not path.is_file():
        return
    content = path.read_bytes()
    at = int(share * len(content))
    if how in ("gone", "folder"):
        path.unlink()
        if how == "folder":
            path.mkdir()
    elif how == "cut":
        path.write_bytes(content[:at])
    elif how == "garbage":
        path.write_bytes(content[:at] + garbage + content[at + len(garbage) :])
    elif how == "nested":
        path.write_bytes(b"[" * 100_000)
    elif name.startswith("trace") or not content:
        return
    else:
        lines = content.decode(errors="replace").splitlines()
        row = min(int(share * len(lines)), len(lines) - 1)
        try:
            document = json.loads(lines[row])
        except (ValueError, RecursionError):
            return
        found = places(document)
        lines[row] = json.dumps(put(document, found[int(share * 7919) % len(found)], junk))
        path.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return three_steps(tmp_path_factory.mktemp("trace") / "steps.json")


@given(st.lists(damage(), min_size=1, max_size=4))
@budget(40)
def test_damage_never_ends_in_a_traceback(small, hurts):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        run = RunBuilder().stage("settle", [9.0] * 2).stage("baseline_free", [9.0] * 4).stage("trace", [10.0] * 3)
        for k in range(3):
            run.sample(BEGUN_NS + k * 20 * MS, ("sw_power_cap",))
        run.rank["notes"] = ["a note"]
        run.rank["program"] = PROGRAM
        run.stage("after", [9.0] * 5).write(folder, small)
        for hurt in hurts:
            harm(folder, *hurt)
        try:
            diagnosis = is_valid(gpuprof.diagnose(folder))
        except GpuprofError as error:
            assert str(error) and "\n" not in str(error)
            return
        shown = plain(diagnosis, 80)
        assert all(char.isprintable() for row in shown.splitlines() for char in row)
        diagnosis_html(diagnosis)
        if diagnosis.quality.status != "unusable":
            assert diagnosis.run and diagnosis.devices


def test_negative_counts_are_unknown(tmp_path: Path):
    run = RunBuilder().stage("settle", [9.0] * 2).stage("baseline_free", [9.0] * 4)
    for key in ("model", "optimizer", "loader"):
        run.rank[key] = {"parameters": -5, "layers": 3, "lora": {"r": -8, "adapted": [-1, 2]}}
    found = json.loads(dumps(gpuprof.diagnose(run.write(tmp_path / "run"))))["run"]
    for key in ("model", "optimizer", "loader"):
        assert found[key]["parameters"] is None and found[key]["layers"] == 3, key
        assert found[key]["lora"] == {"r": None, "adapted": [None, 2]}, key
