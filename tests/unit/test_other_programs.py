"""Programs of other projects: their commands, how their steps are counted, and first contact compared with the
truth."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.installed import need

from benchmarks import blind_predictions, other_programs_page, try_proof
from benchmarks.same_steps import same_steps
from scenarios.catalogue import Fix, Program, Scenario, scenarios
from scenarios.record import traced
from scenarios.support import program as others
from scenarios.support.from_outside import FromOutside

PROGRAM = Program(module="somebody.train", arguments={"--batch": 2, "--fast": "", "--seed": 1}, tiny={"--batch": 1})
FIX = Fix("larger", "a larger batch", None, arguments={"--batch": 8, "--seed": None}, environment={"A": "1"})
ROOT = Path(__file__).parents[2]
ENTRY = Scenario("made_up", "Made up", "Not real.", ("host",), None, (FIX,), "test", free=30, program=PROGRAM)


def test_arguments_of_a_fix_replace_the_programs_own():
    assert PROGRAM.words() == ["--batch=2", "--fast", "--seed=1"]
    assert PROGRAM.words(FIX) == ["--batch=8", "--fast"]
    assert PROGRAM.words(tiny=True) == ["--batch=1", "--fast", "--seed=1"]


def test_a_recording_is_of_the_program_itself():
    words = traced(ENTRY, FIX, Path("/runs/made_up"), tiny=False)
    assert words[1:4] == ["-m", "gpuprof", "trace"]
    assert words[words.index("--stop") + 1 :] == ["-m", "somebody.train", "--batch=8", "--fast"]


def test_a_fix_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(KeyError, match="larger"):
        ENTRY.fix("smaller")
    assert ENTRY.fix("") is None and ENTRY.fix("larger") is FIX


def test_a_script_is_found_in_the_checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = Program(script="project/train.py", positional=("data",))
    monkeypatch.setenv(others.CHECKOUTS, str(tmp_path))
    with pytest.raises(FileNotFoundError, match=others.CHECKOUTS):
        others.command(script, None, tiny=False)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").touch()
    assert others.command(script, None, tiny=False) == [str(tmp_path / "project" / "train.py"), "data"]


def test_its_folder_has_the_material_and_the_files_next_to_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for path in ("material/texts/train.jsonl", "checkouts/project/train.py", "checkouts/project/other.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.setenv(others.CHECKOUTS, str(tmp_path / "checkouts"))
    monkeypatch.setenv("SCENARIO_MATERIAL", str(tmp_path / "material"))
    (tmp_path / "here").mkdir()
    here = others.workplace(Program(script="project/train.py"), tmp_path / "here")
    assert {path.name for path in here.iterdir()} == {"texts", "train.py", "other.py"}
    assert (here / "texts" / "train.jsonl").exists()


def test_a_script_that_is_edited_runs_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(others.CHECKOUTS, str(tmp_path / "checkouts"))
    monkeypatch.setenv("SCENARIO_MATERIAL", str(tmp_path / "material"))
    for name, text in (("train.py", "steps = 100\n"), ("model.py", "")):
        (tmp_path / "checkouts" / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkouts" / "project" / name).write_text(text)
    for folder in ("material", "here"):
        (tmp_path / folder).mkdir()
    script, fix = Program(script="project/train.py"), replace(FIX, arguments={}, edits={"steps = 100": "steps = 9"})
    here = others.workplace(script, tmp_path / "here", fix)
    assert others.command(script, fix, tiny=False) == ["train.py"]
    assert (here / "train.py").read_text() == "steps = 9\n" and (here / "model.py").exists()
    assert (tmp_path / "checkouts" / "project" / "train.py").read_text() == "steps = 100\n"
    with pytest.raises(ValueError, match="another version"):
        others.edited("steps = 50", fix.edits)


def test_an_interval_holds_where_it_meets_the_measured_steps():
    def held(low: float, high: float) -> bool:
        return other_programs_page.Contact(low, (low + high) / 2, high, (10.0, 12.0)).held

    assert held(9, 10.5) and held(11.5, 14) and held(9, 14) and held(10.5, 11)
    assert not held(7, 9.9) and not held(12.1, 14)


@pytest.mark.parametrize(("work", "word"), [(1.0, "advised"), (4.0, "nothing")])
def test_a_fix_is_held_against_the_finding_that_does_the_same_work(work: float, word: str):
    found = {"id": "larger_batch", "title": "", "work": 1.1, "changes": None, "step_ms": [1.0, 2.0, 3.0]}
    fix = replace(FIX, finding="larger_batch", work=work)
    said, contact, _ = other_programs_page.of_fix(ENTRY, fix, {"findings": [found], "considered": []})
    assert (said, contact) == (word, None)  # it was never timed


def test_a_first_contact_has_no_second(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    (name, *_) = (one.name for one in scenarios() if (one.folder / blind_predictions.NAME).exists())
    monkeypatch.setattr("sys.argv", ["first_contact", name])
    with pytest.raises(SystemExit):
        blind_predictions.main()
    assert "exists already" in capsys.readouterr().err


def test_a_program_that_was_timed_was_predicted_before():
    for one in scenarios():
        if one.program is not None and one.truth is not None:
            predicted = json.loads((one.folder / blind_predictions.NAME).read_text())
            assert predicted["bound"] and len(predicted["mean_ms"]) == 3


def test_the_page_is_the_one_that_is_written():
    reasons = json.loads(other_programs_page.REASONS.read_text(encoding="utf-8"))
    written = Path(other_programs_page.ROOT / "docs" / "other_programs.md").read_text(encoding="utf-8")
    assert "".join(other_programs_page.page(reasons)) == written


def test_steps_are_counted_where_the_optimizer_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    need("torch")
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(2))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "while True:\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
    )
    monkeypatch.setenv(others.CHECKOUTS, str(tmp_path))
    monkeypatch.setattr("sys.argv", ["program"])
    monkeypatch.setattr("sys.path", [*sys.path])

    class Run:
        tiny, count, seen, over = True, 5, 0, False

        def end_step(self, step: int) -> None:
            assert step == self.seen
            self.seen += 1

        def end(self) -> None:
            self.over = True

    run = Run()
    others.run_here(replace(ENTRY, program=Program(script="train.py")), None, run)  # type: ignore[arg-type]
    assert (run.seen, run.over) == (5, True)


def test_a_patch_that_took_no_effect_fails_before_its_time_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    need("torch")
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(2))\n"
        "optimizer = torch.optim.RMSprop([weight])\n"
        "while True:\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
    )
    monkeypatch.setenv(others.CHECKOUTS, str(tmp_path))
    monkeypatch.setattr("sys.argv", ["program"])
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.meta_path", [*sys.meta_path])
    run = SimpleNamespace(tiny=True, count=3, seen=[], end_step=lambda step: run.seen.append(step), end=lambda: None)
    with pytest.raises(RuntimeError, match="optimizer was not applied: no Adam"):
        others.run_here(
            replace(ENTRY, program=Program(script="train.py")), None, run, FromOutside("optimizer")  # type: ignore[arg-type]
        )  # fmt: skip
    assert run.seen == [0, 1]


def test_a_program_that_fails_early_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    need("torch")
    (tmp_path / "train.py").write_text("raise OSError('no data')")
    monkeypatch.setenv(others.CHECKOUTS, str(tmp_path))
    monkeypatch.setattr("sys.argv", ["program"])
    monkeypatch.setattr("sys.path", [*sys.path])
    with pytest.raises(OSError, match="no data"):
        others.run_here(replace(ENTRY, program=Program(script="train.py")), None, SimpleNamespace(tiny=True, count=5))  # type: ignore[arg-type]


def test_the_proof_of_trials_is_the_one_that_was_measured():
    """Twelve fixes of six programs: their table is in docs/try.md, no fix made by hand differs from the same fix tried
    by more than processes do, and half of them differ by less than 5 %."""
    rows = json.loads((ROOT / "benchmarks" / "try_proof_h200.json").read_text(encoding="utf-8"))
    shown, *_ = try_proof.table(rows).split("\n\n")
    assert shown in (ROOT / "docs" / "try.md").read_text(encoding="utf-8")
    assert len(rows) == 12 and len({row["program"] for row in rows if row["of"] == "TRL"}) == 3
    assert not any(try_proof.disagrees(row) or row["why"] for row in rows)
    apart = [abs(one) for row in rows if (one := try_proof.difference(row)) is not None]
    assert statistics.median(apart) < 0.05


def test_steps_that_both_took_are_compared():
    """Compared with the recorded steps of one committed recording, read plainly from its files."""
    entry = next(one for one in scenarios() if one.name == "timm_resnet50")
    found = same_steps(entry)
    assert found is not None and entry.recording is not None and entry.truth is not None
    lines = map(json.loads, (entry.recording / "steps.jsonl").read_text(encoding="utf-8").splitlines())
    own = [line["ns"] / 1e6 for line in lines if line["stage"] == "baseline_free" and line["step"] >= 15]
    assert (found.first, found.last) == (15, 20) and len(own) == 6
    assert found.recorded_ms == pytest.approx(statistics.fmean(own))
    timed = [each["free_each_ms"][:6] for each in entry.truth["processes"] if each["fix"] == ""]
    assert found.timed_ms == pytest.approx([statistics.fmean(each) for each in timed])
    slowest = max(found.timed_ms) / found.recorded_ms
    assert found.of_stretch(200.0)[1] == pytest.approx(200 * slowest)
