"""`diagnose --markdown`, `compare --markdown` and `gpuprof history`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers import make_diagnosis as made
from helpers.command import in_process, one_line
from helpers.make_run import usual_run
from helpers.paths import ROOT

from gpuprof.report import history, markdown

PAIRS = ROOT / "tests" / "data" / "pairs"
A, B = PAIRS / "tiny.json.gz", PAIRS / "tiny.compile.json.gz"


def is_markdown(text: str) -> None:
    """Every table has as many cells in each line; nothing is HTML, a mention or an escape sequence."""
    assert text.startswith("### ") and text.endswith("\n")
    for block in text.split("\n\n"):
        if block.startswith("|"):
            lines = block.strip().splitlines()
            cells = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
            assert len(cells) == 1 and set(lines[1]) <= set("| -"), block
    assert not re.search(r"(?<!\\)[<>]|(?<!\\)@|\x1b|\u202e", re.sub(r"`[^`\n]*`", "", text))


def test_a_diagnosis_as_markdown():
    done = in_process("diagnose", A, "--markdown")
    assert (done.returncode, done.stderr) == (0, "")
    is_markdown(done.stdout)
    assert "HOST-BOUND" in done.stdout.splitlines()[0] and "| what to change |" in done.stdout


def test_a_comparison_as_markdown_with_its_gate():
    done = in_process("compare", B, A, "--markdown", "--fail-on", "kernels:5%")
    assert done.returncode == 1
    is_markdown(done.stdout)
    assert "| B − A |" in done.stdout and "gate failed: kernels" in one_line(done.stderr)


@pytest.mark.parametrize("make", [made.hostile, made.timed, made.two_devices, made.unusable, made.empty])
def test_markdown_of_any_diagnosis_is_safe(make):
    is_markdown(markdown.diagnosis(make()))


@pytest.mark.parametrize("command", [("diagnose", A), ("compare", A, B), ("history", A)])
def test_two_formats_at_once_are_refused(command: tuple):
    done = in_process(*command, "--json", "--markdown")
    assert done.returncode == 2 and "exclude each other" in one_line(done.stderr)


# -- history


def test_a_folder_of_runs_is_shown_oldest_first(tmp_path: Path):
    for day, ms in ((1, 90.0), (2, 70.0), (3, 81.0)):
        usual_run(ms).write(tmp_path / "runs" / f"2026-01-0{day}_000000_train")
    done = in_process("history", tmp_path / "runs", "--last", "2", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["schema"] == "gpuprof.history/1"
    assert [Path(run["path"]).name[:10] for run in document["runs"]] == ["2026-01-02", "2026-01-03"]
    first, second = (run["values"]["mean_step_ms"] for run in document["runs"])
    assert first < second
    assert document["runs"][0]["began"].endswith("+00:00")


def test_a_history_as_text_and_markdown():
    done = in_process("history", A, B, COLUMNS="120")
    head, before, after = done.stdout.splitlines()
    assert head.split()[:3] == ["run", "began", "step"]
    assert before.count("█") == history.BAR > after.count("█") > 0
    done = in_process("history", A, B, "--markdown")
    assert len(done.stdout.strip().splitlines()) == 4 and "HOST" in done.stdout


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    done = in_process("history", broken, A, "--json")
    assert done.returncode == 0 and "broken.json" in one_line(done.stderr)
    assert len(json.loads(done.stdout)["runs"]) == 1
    done = in_process("history", broken)
    assert done.returncode == 2 and "none of these" in done.stderr
    done = in_process("history", cwd=tmp_path)
    assert done.returncode == 2 and "gpuprof trace" in one_line(done.stderr)
