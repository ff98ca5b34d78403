"""`python -m scenarios campaign`: real processes that take turns, results at once, recordings in pieces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.installed import need

from scenarios import campaign, campaign_results
from scenarios.catalogue import ROOT, Scenario, campaign_names, scenario

need("torch", "transformers")


def test_programs_say_what_they_are_and_what_is_expected():
    """Each has a role, an answer, and for each fix a guess or a published figure, written down before it ran."""
    names = campaign_names()
    assert len(names) > 30
    for entry in map(scenario, names):
        assert entry.role == "fit" or not entry.name.startswith("cases/"), entry.name
        assert entry.where and entry.why and entry.title and entry.fixes, entry.name
        assert (entry.folder / "train.py").is_file()
        assert not entry.name.startswith("cases/") or entry.source.startswith("https://github.com/"), entry.name
        for fix in entry.fixes:
            assert fix.expected is not None, (entry.name, fix.name)
            assert fix.expected[0] < fix.expected[1], (entry.name, fix.name)


def test_waves_hold_what_fits_and_each_program_is_recorded_once(tmp_path: Path):
    chosen = [scenario(name) for name in ("programs/cpu_adam", "programs/clip_and_log", "cases/host_reads")]
    waves = campaign.planned(chosen, 2, 1.0, tmp_path, gib=40.0)
    assert all(wave.gib <= 40.0 for wave in waves)
    assert [entry.entry.name for wave in waves for entry in wave.traced] == [entry.name for entry in chosen]
    for entry in chosen:
        fixes = [member.fix for wave in waves for member in wave.members if member.entry.name == entry.name]
        assert fixes == [*entry.variants(), *entry.variants()]
    assert [wave.set for wave in waves] == sorted(wave.set for wave in waves)


def test_programs_are_recorded_with_a_fix_too_or_only_with_it(tmp_path: Path):
    chosen = [scenario("cases/host_reads"), scenario("programs/clip_and_log")]
    options = {"each_s": 1.0, "logs": tmp_path / "logs", "gib": 40.0, "fixed": "after"}
    (*_, both) = campaign.planned(chosen, 2, **options)
    assert [(one.of, one.folder.name) for one in both.traced] == [
        ("cases/host_reads", "cases.host_reads"),
        ("cases/host_reads after", "cases.host_reads.after"),
        ("programs/clip_and_log", "programs.clip_and_log"),  # it has no fix of this name
    ]
    assert both.traced[1].command[-2:] == ["--fix", "after"]
    (only,) = campaign.planned(chosen, 0, **options)
    assert [one.of for one in only.traced] == ["cases/host_reads after"]
    assert not only.members


def test_spread_is_of_blocks_of_steps():
    assert campaign_results.spread([10.0] * 40) == 0.0
    assert campaign_results.spread([9.0, 11.0] * 20) == 0.0  # within each block of four
    assert campaign_results.spread([9.0] * 20 + [11.0] * 20) == pytest.approx(0.1)


def test_pieces_and_back(tmp_path: Path):
    """A run folder goes through a piece unchanged."""
    import gzip

    run = tmp_path / "programs.x"
    run.mkdir()
    (run / "manifest.json").write_text("{}")
    (run / "trace.rank0.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
    out = tmp_path / "out"
    out.mkdir()
    campaign_results.pack(run, tmp_path / "programs.x.tar.xz")
    assert "piece-0.tar" in campaign_results.put(tmp_path / "programs.x.tar.xz", out)
    assert campaign_results.unpack(out / "piece-0.tar", tmp_path / "back") == ["programs.x"]
    assert (tmp_path / "back/programs.x/manifest.json").read_text() == "{}"
    packed = (tmp_path / "back/programs.x/trace.rank0.json.gz").read_bytes()
    assert gzip.decompress(packed) == b'{"traceEvents": []}'


@pytest.mark.slow
def test_a_campaign_times_records_and_goes_on_after_a_failure(tmp_path: Path):
    """One program fails (its module imports something that does not exist), the others are timed and recorded."""
    out = tmp_path / "out"
    names = ["cases/host_reads", "programs/large_vocabulary"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "scenarios", "campaign", "--out", str(out), "--rounds", "1", *names]
    subprocess.run(command, cwd=ROOT.parent, env=environment, capture_output=True, timeout=540)
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    timed = {(line["program"], line["fix"]) for line in lines if "free_ms" in line}
    assert {("cases/host_reads", ""), ("cases/host_reads", "after"), ("programs/large_vocabulary", "needed")} <= timed
    failed = [line for line in lines if "failed" in line]
    assert all("liger" in " ".join(line["output"]) for line in failed)
    assert {line["program"] for line in lines if line.get("exit") == 0} == set(names)
    assert campaign_results.unpack(out / "piece-0.tar", tmp_path / "runs") == [
        "cases.host_reads",
        "programs.large_vocabulary",
    ]
    assert (tmp_path / "runs/cases.host_reads/said.txt").exists()


def test_truths_are_written_where_the_programs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(campaign_results, "ROOT", tmp_path)
    (tmp_path / "programs/x").mkdir(parents=True)
    head = {"machine": {"gpus": ["a"]}, "versions": {"torch": "2"}, "each_s": 1, "rounds": 1}
    rows = [{"program": "programs/x", "fix": fix, "free_ms": ms, "spread": 0.01} for fix, ms in (("", 2.0), ("a", 1.0))]
    results = tmp_path / "results.jsonl"
    results.write_text("\n".join(map(json.dumps, [head, *rows, {"program": "programs/x", "fix": "b", "failed": "no"}])))
    assert campaign_results.truths(results) == ["programs/x"]
    truth = json.loads((tmp_path / "programs/x/truth.json").read_text())
    assert [(process["fix"], process["free_ms"]) for process in truth["processes"]] == [("", 2.0), ("a", 1.0)]
    results.write_text("\n".join(json.dumps(row | {"importing": 4, "free_ms": 9.0}) for row in [head, *rows]))
    campaign_results.truths(results)
    assert len(json.loads((tmp_path / "programs/x/truth.json").read_text())["processes"]) == 4
    results.write_text("\n".join(json.dumps(row | {"importing": 0}) for row in [head, *rows]))
    campaign_results.truths(results)
    truth = json.loads((tmp_path / "programs/x/truth.json").read_text())
    assert 9.0 not in [process["free_ms"] for process in truth["processes"]], "timed alone replaces timed among others"
    assert isinstance(scenario("programs/cpu_adam"), Scenario)
