"""`gpuprof memory RUN`, and memory in `diagnose` and the report of a run that has a snapshot."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from helpers.command import in_process
from helpers.diagnosed import each_diagnosed_once
from helpers.paths import ROOT
from jsonschema import Draft202012Validator

from gpuprof.diagnosis.written.diagnosis_json import schema as diagnosis_schema
from gpuprof.memory.memory_report import DOCUMENT as MEMORY

RUN = ROOT / "tests" / "data" / "runs" / "tiny_lora"
SNAPSHOT = ROOT / "tests" / "data" / "snapshots" / "llama.pickle.gz"


@pytest.fixture(scope="module", autouse=True)
def _the_runs_are_diagnosed_once(loaded: Path) -> Iterator[None]:
    with each_diagnosed_once(ROOT, loaded.parent):
        yield


@pytest.fixture
def with_snapshot(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    (run / "memory.rank0.pickle").write_bytes(gzip.decompress(SNAPSHOT.read_bytes()))
    return run


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as if a DataLoader with one sample per batch had fed it: only a loader says how many samples a pass
    has."""
    return with_loader(RUN, tmp_path_factory.mktemp("loaded") / "run")


def with_loader(run: Path, to: Path) -> Path:
    """A copy of a recording whose batches come from a DataLoader of one sample each."""
    shutil.copytree(run, to)
    rank = json.loads((to / "rank0.json").read_text())
    rank["loader"] = {"batch_size": 1}
    (to / "rank0.json").write_text(json.dumps(rank))
    return to


@cache
def document(*arguments: object) -> dict:
    """The JSON that a command prints, not to be modified: tests with the same command share it."""
    done = in_process(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, parse_constant=pytest.fail)


def test_a_run_without_a_snapshot_says_what_its_peak_is_made_of(loaded: Path):
    found = document("memory", loaded, "--to", "L40S")
    assert not list(Draft202012Validator(MEMORY.schema()).iter_errors(found))
    advice = found["advice"]
    assert found["devices"] == []
    assert sum(one["bytes"] for one in advice["owners"]) == advice["peak_bytes"]
    assert [one["gpu"] for one in advice["fits"]] == ["H200 SXM", "L40S"]
    assert advice["fits"][1]["batch"]["expected"] < advice["fits"][0]["batch"]["expected"]
    remedies = {one["id"]: one for one in advice["remedies"]}
    assert {"checkpointing", "half_micro_batch", "half_adapters"} <= remedies.keys()
    for one in advice["remedies"]:
        assert (one["peak_bytes"] is None) == bool(one["unknown"])
        assert (one["step_ns"] is None) == bool(one["step_unknown"] or one["unknown"])
        assert one["peak_bytes"] is None or one["peak_bytes"]["low"] <= one["peak_bytes"]["expected"]
    slower, now = remedies["checkpointing"]["step_ns"]["expected"], advice["now_ns"]
    assert now < slower < 2 * now


def test_what_fits_is_what_a_projection_says(loaded: Path):
    advice = document("memory", loaded, "--to", "L40S")["advice"]
    projected = document("project", loaded, "--to", "L40S")["gpus"][0]["memory"]
    assert advice["fits"][1]["batch"]["expected"] == projected["largest_batch"]


@pytest.mark.slow
def test_several_changes_together_and_in_a_projection(loaded: Path):
    found = document("memory", loaded, "--with", "checkpointing,half_micro_batch", "--to", "RTX 4090")["advice"]
    remedies = {one["id"]: one for one in found["remedies"]}
    both = remedies["together"]
    assert both["peak_bytes"]["expected"] <= min(
        remedies[name]["peak_bytes"]["expected"] for name in ("checkpointing", "half_micro_batch")
    )
    assert both["step_ns"]["expected"] > remedies["half_micro_batch"]["step_ns"]["expected"]
    projected = document("project", loaded, "--to", "RTX 4090")["gpus"][0]["memory"]
    fits = {one["fix"]: one["largest_batch"] for one in projected["with_fixes"]}
    for name in fits:
        assert remedies[name]["fits"][1]["batch"]["expected"] == fits[name]
    assert "with all of --with, RTX 4090: batch up to" in " ".join(
        in_process("memory", loaded, "--with", "checkpointing", "--to", "RTX 4090").stdout.split()
    )


def test_every_kth_layer_lies_between_all_and_none():
    found = document("memory", RUN, "--with", "checkpointing_every_3")["advice"]
    remedies = {one["id"]: one for one in found["remedies"]}
    third, half = remedies["together"], remedies["checkpointing_half"]
    assert half["peak_bytes"]["expected"] < third["peak_bytes"]["expected"] < found["peak_bytes"]
    assert found["now_ns"] < third["step_ns"]["expected"] < half["step_ns"]["expected"]


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ("more_memory", "choose from"),
        ("checkpointing_every_9999", "choose from"),
        ("checkpointing,checkpointing_half", "only one of the two"),
        ("offloaded_activations,checkpointing_every_2", "only one of the two"),
        ("eight_bit_optimizer,offloaded_optimizer", "only one of the two"),
    ],
)
def test_what_cannot_be_chosen_is_one_line(names: str, line: str):
    done = in_process("memory", RUN, "--with", names)
    assert done.returncode == 2 and line in done.stderr and len(done.stderr.splitlines()) == 1


def test_activations_on_the_cpu_leave_room_and_are_moved():
    found = document("memory", RUN)["advice"]
    (away,) = [one for one in found["remedies"] if one["id"] == "offloaded_activations"]
    activations = next(one["bytes"] for one in found["owners"] if one["owner"] == "activations")
    assert 0.5 * activations < away["saved_bytes"] <= activations
    assert found["now_ns"] < away["step_ns"]["expected"] < away["step_ns"]["high"]


def test_a_chunked_loss_costs_about_the_same():
    """It does the same work in other kernels, and the loss is a tenth of this step, so that little can change."""
    found = document("memory", RUN)["advice"]
    (loss,) = [one["step_ns"] for one in found["remedies"] if one["id"] == "chunked_loss"]
    assert loss["low"] < found["now_ns"] < loss["high"] < 1.2 * found["now_ns"]


@pytest.mark.slow
def test_a_paged_optimizer_says_what_each_step_moves(tmp_path: Path):
    run = ROOT / "scenarios" / "optimizer_memory" / "recording"
    if not run.is_dir():
        pytest.skip("the scenario's recording is not there")
    run = with_loader(run, tmp_path / "run")
    found = document("memory", run, "--to", "RTX 4090")
    assert not list(Draft202012Validator(MEMORY.schema()).iter_errors(found))
    remedies = {one["id"]: one for one in found["advice"]["remedies"]}
    paged, eight = remedies["paged_optimizer"], remedies["paged_eight_bit_optimizer"]
    here, there = (place["moved"] for place in paged["fits"])
    assert here["bytes"] == there["bytes"] > 3 * eight["fits"][0]["moved"]["bytes"]
    assert 0 < here["step_ns"]["low"] < here["step_ns"]["expected"] < there["step_ns"]["expected"]
    assert remedies["eight_bit_optimizer"]["fits"][0]["moved"] is None
    assert paged["fits"][1]["batch"]["expected"] > found["advice"]["fits"][1]["batch"]["expected"] == 0
    text = " ".join(in_process("memory", run).stdout.split())
    assert "paged optimizer: 14.3 GiB in each step" in text


def test_an_optimizer_on_the_cpu_takes_longer_and_adapters_are_too_small_to_page():
    found = document("memory", RUN)["advice"]
    remedies = {one["id"]: one for one in found["remedies"]}
    away = remedies["offloaded_optimizer"]
    assert away["saved_bytes"] > 0 and away["step_ns"]["high"] > found["now_ns"]
    assert not [name for name in remedies if name.startswith("paged")]


def test_the_answer_names_both_prices(loaded: Path):
    done = in_process("memory", loaded, COLUMNS="100")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if "checkpoint all layers" in line]
    assert lines and " ms " in lines[0] and "GiB" in lines[0]


@pytest.mark.slow
def test_diagnose_and_report_show_the_snapshot_of_a_run(with_snapshot: Path, tmp_path: Path):
    found = document("diagnose", with_snapshot)
    assert not list(Draft202012Validator(diagnosis_schema()).iter_errors(found))
    peak = found["memory"]["devices"][0]["peak"]
    assert sum(one["bytes"] for one in peak["owners"]) == peak["reserved_bytes"]
    assert "series" not in found["memory"]["devices"][0]
    assert "peak 3.8 GiB allocated" in " ".join(in_process("diagnose", with_snapshot, "-v").stdout.split())
    page = tmp_path / "report.html"
    assert in_process("report", with_snapshot, "-o", page).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert 'id="memory"' in text and "chart-memory_owners" in text and 'class="treemap"' in text


def test_a_recording_without_memory_has_none(tmp_path: Path):
    assert document("diagnose", RUN)["memory"] is None
    done = in_process("memory", ROOT / "tests" / "data" / "runs", "--to", "L40S")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
