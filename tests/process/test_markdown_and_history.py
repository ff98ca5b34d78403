"""`diagnose --markdown`, `compare --markdown` and `gpuprof history`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import make_diagnosis as made
from helpers.command import in_process, one_line
from helpers.cpu_time import least_s
from helpers.diagnosed import each_diagnosed_once
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
    assert (
        done.stdout.startswith("### WAITING FOR THE CPU")
        and "HOST-BOUND" in done.stdout
        and "| what to change |" in done.stdout
    )


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


@pytest.fixture(scope="module")
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of runs of 90, 80 and 81 ms a step, each diagnosed once."""
    runs = runs_of(tmp_path_factory.mktemp("history"), 90.0, 80.0, 81.0)
    with each_diagnosed_once(runs.parent):
        yield runs


def test_a_folder_of_runs_is_shown_oldest_first(three_runs: Path):
    done = in_process("history", three_runs, "--last", "2", "--json")
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
    assert before.count("█") == history.BAR_WIDTH > after.count("█") > 0
    done = in_process("history", A, B, "--markdown")
    assert len(done.stdout.strip().splitlines()) == 4 and "HOST" in done.stdout


@pytest.mark.parametrize(
    ("paths", "shown"),
    [
        (("runs/a", "runs/b"), ["a", "b"]),
        (("x/a/recording", "x/b/recording"), ["a", "b"]),
        (("x/a/one", "y/a/one"), ["x", "y"]),
        (("x/a", "x/a/b"), ["a", "a/b"]),
        (("x/a", "x/a"), ["x/a", "x/a"]),
        (("x/a",), ["x/a"]),
    ],
)
def test_names_keep_what_distinguishes_them(paths: tuple[str, ...], shown: list[str]):
    entries = [history.HistoryEntry(path, None, "ok", "HOST-BOUND", {}) for path in paths]
    assert [one.path for one in history.shortened(entries)] == shown


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    done = in_process("history", broken, A, "--json")
    assert done.returncode == 0 and "broken.json" in one_line(done.stderr)
    assert len(json.loads(done.stdout)["runs"]) == 1
    done = in_process("history", broken)
    assert done.returncode == 2 and "ends before its first event" in done.stderr
    done = in_process("history", cwd=tmp_path)
    assert done.returncode == 2 and "gpuprof trace" in one_line(done.stderr)


def test_on_a_narrow_screen_names_stay_apart_and_verdicts_whole():
    names = ["programs.fp32_wide", "programs.fp8_wide", "programs.cpu_adam"]
    for width in range(8, 20):
        short = [history.told_apart(one, names, width) for one in names]
        assert len(set(short)) == 3 and all(len(one) <= width for one in short)
    assert history.told_apart("a" * 30, ["a" * 30, "b" * 30], 9) == "aaaa…aaaa"
    one = history.HistoryEntry("run", None, "ok", "HOST-BOUND · launch", {"mean_step_ms": 80.0})
    assert history.rows([one], width=80)[0][4] == "HOST"
    assert history.rows([one], width=history.NARROW_WIDTH)[0][4] == "HOST-BOUND · launch"


def runs_of(folder: Path, *steps_ms: float) -> Path:
    for day, ms in enumerate(steps_ms, 1):
        usual_run(ms).write(folder / "gpuprof-runs" / f"2026-01-{day:02}_000000_train")
    return folder / "gpuprof-runs"


@pytest.mark.slow
def test_the_run_at_which_the_step_became_slower_is_named_and_explained(tmp_path: Path):
    runs = runs_of(tmp_path, 80, 81, 100, 99)
    done = in_process("history", runs, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split()[-1] == "tokens/s" and all(len(line) <= 80 for line in (head, *lines[:4]))
    assert lines[0].startswith("2026-01-01_000000_train ") and lines[0].split()[-1].replace(",", "").isdigit()
    assert "slower from 2026-01-03_000000_train on: 81 ms → 100 ms (+2" in done.stdout
    done = in_process("history", runs, "--explain")
    assert "A TAKES" not in done.stdout and "waterfall" in done.stdout


def test_a_narrow_screen_shows_fewer_columns_and_keeps_the_tokens(three_runs: Path):
    for width in (40, 60):
        head, *lines = in_process("history", three_runs, "--last", "2", COLUMNS=str(width)).stdout.splitlines()
        assert len(lines) == 2 and all(len(line) <= width for line in (head, *lines))
        assert head.split()[-1] == "tokens/s" and all(line.split()[-1].replace(",", "").isdigit() for line in lines)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(80, 0), (81, 0), (100, 0), (99, 0)], 2),
        ([(80, 0), (82, 0), (81, 0)], None),
        ([(80, 0), (140, 0), (81, 0), (80, 0)], None),  # one odd run
        ([(80, 1000), (160, 2000), (161, 2000)], None),  # twice the batch
        ([(80, 1000), (80, 1000), (80, 700)], 2),  # as long for less
        ([(80, 0), (140, 0), (81, 0)], None),  # the last is as before
        ([(80, 0), (140, 0)], 1),
        ([(80, 0)] * 3 + [(100, 0)] * 9 + [(95, 0)] * 3, 3),  # long ago, and still
        ([(80, 0)] * 3 + [(100, 0)] * 9 + [(80, 0)] * 3, None),  # mended since
        ([(100, 0), (80, 0)], None),
        ([], None),
    ],
)
def test_slower_is_the_time_for_the_same_work(values: list[tuple[float, float]], expected: int | None):
    entries = [
        history.HistoryEntry(f"run{i}", None, "ok", "", {"mean_step_ms": ms} | ({"tokens_per_s": rate} if rate else {}))
        for i, (ms, rate) in enumerate(values)
    ]
    found = history.slower_at(entries)
    assert (None if found is None else found.at) == expected
    assert found is None or found.same_work == any(rate for _, rate in values)


def test_a_step_that_became_slower_before_the_runs_that_are_shown_is_named(three_runs: Path, tmp_path: Path):
    first = min(three_runs.iterdir())
    runs = tmp_path / "gpuprof-runs"
    for at, ms in enumerate((80, 80, 100, 100, 100, 100, 100)):
        run = shutil.copytree(first, runs / f"2026-02-{at + 1:02}_000000_train")
        values = {"mean_step_ms": ms, "gpu_busy": 8 / ms}
        entry = {"schema": history.ENTRY_SCHEMA, "status": "ok", "verdict": "HOST-BOUND", "values": values}
        (run / "history.json").write_text(json.dumps(entry))
        (run / "trace.rank0.json.gz").unlink()
    done = in_process("history", runs, "--last", "3", "--explain")
    assert "2026-02-02" not in done.stdout
    assert "slower from 2026-02-03_000000_train on: 80 ms → 100 ms (+25 %)" in done.stdout
    assert "cannot be compared" in one_line(done.stderr), "the traces are gone"
    assert done.stdout.endswith("  mean_step_ms: 80 → 100\n  gpu_busy: 0.1 → 0.08\n")
    assert len(json.loads(in_process("history", runs, "--last", "3", "--json").stdout)["runs"]) == 3


@pytest.mark.slow
def test_only_runs_of_one_program_are_compared(tmp_path: Path):
    steps = ((80, "a"), (300, "b"), (81, "a"), (100, "a"), (301, "b"))
    entries = [history.HistoryEntry(f"run{i}", None, "ok", "", {"mean_step_ms": ms}) for i, (ms, _) in enumerate(steps)]
    found = history.slower_at(entries, [program for _, program in steps])
    assert found is not None and (found.before, found.at, found.before_ms, found.after_ms) == (2, 3, 81, 100)
    runs = runs_of(tmp_path, 80, 200)
    manifest = runs / "2026-01-02_000000_train" / "manifest.json"
    for command, is_named in ((["python", "-m", "other.train"], False), (["torchrun", "train.py", "--lr", "1"], True)):
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"command": command}))
        assert ("slower from" in in_process("history", runs).stdout) == is_named


@pytest.mark.slow
@pytest.mark.measures_time
def test_hundreds_of_runs_are_shown_without_a_diagnosis_of_each(tmp_path: Path):
    runs = runs_of(tmp_path, 80)
    first = runs / "2026-01-01_000000_train"
    diagnosis_s = least_s(lambda: in_process("diagnose", first), tries=1)
    assert in_process("history", runs).returncode == 0
    (first / "trace.rank0.json.gz").unlink()
    for i in range(300):
        shutil.copytree(first, runs / f"2026-02-{i // 24 + 1:02}_{i % 24:02}0000_train")
    # 300 are read in a fifth of the time of one diagnosis.
    assert len(in_process("history", runs, "--last", "1000").stdout.splitlines()) == 302
    assert least_s(lambda: in_process("history", runs, "--last", "1000"), tries=1) < 3 * diagnosis_s


@pytest.mark.slow
def test_clean_removes_what_is_large_of_old_runs(tmp_path: Path):
    runs = runs_of(tmp_path, 80, 81, 82)
    running = runs / "2026-01-01_000000_train" / "manifest.json"
    running.write_text(json.dumps(json.loads(running.read_text()) | {"status": "running"}))
    (runs / "2026-01-02_000000_train" / "memory.rank0.pickle").write_bytes(b"x" * 1000)
    (runs / "2026-01-02_000000_train" / "nsys.sqlite").symlink_to(A)
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    done = in_process("clean", runs, "--keep", "1", "--dry-run")
    assert done.returncode == 0 and "would be freed in 1 run of 3" in done.stdout
    assert before == {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    done = in_process("clean", runs, "--keep", "1")
    assert re.fullmatch(r"1\.\d MB freed in 1 run of 3; logs and step times stay\n", done.stdout)
    assert (
        "gpuprof clean removed memory.rank0.pickle, trace" in (runs / "2026-01-02_000000_train/gpuprof.log").read_text()
    )
    gone = {path.relative_to(runs).as_posix() for path in before if not path.exists()}
    assert gone == {f"2026-01-02_000000_train/{name}" for name in ("memory.rank0.pickle", "trace.rank0.json.gz")}
    assert in_process("history", runs).stdout.count("_train") >= 3
    done = in_process("clean", tmp_path / "nothing")
    assert done.returncode == 2 and one_line(done.stderr).endswith("nothing: no such folder")
    (tmp_path / "empty").mkdir()
    assert "holds no run" in one_line(in_process("clean", tmp_path / "empty").stderr)
