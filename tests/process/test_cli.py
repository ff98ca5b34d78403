"""The command as a shell sees it: exit codes, what goes to which stream, and one line for whatever goes wrong."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command import gpuprof_command, in_process, one_line, run
from helpers.make_diagnosis import host_bound, timed, two_devices, unusable
from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT
from helpers.quick import few
from jsonschema import Draft202012Validator

from gpuprof.cli.shared import progress
from gpuprof.cli.shared.gates import CAUSES, SHARES, TIMES, measure, parse
from gpuprof.diagnosis.idle import gaps
from gpuprof.diagnosis.written.diagnosis_json import schema

MS = 1_000_000
DIAGNOSES = "gpuprof.diagnosis.diagnose_recording.diagnose_recording"


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    """Four steps of 10 ms on one device, which computes for 3 ms of each and then waits for the host."""
    builder = TraceBuilder()
    for i in range(4):
        at = i * 10 * MS
        builder.step(i, at, at + 10 * MS)
        builder.op("aten::mm", at + MS, at + 2 * MS)
        builder.launch("gemm_kernel", (at + MS + 1000, at + MS + 9000), (at + MS + 20_000, at + 4 * MS))
    return builder.write(tmp_path_factory.mktemp("trace") / "steps.json")


@pytest.fixture(scope="module")
def cpu_only(tmp_path_factory) -> Path:
    """A recording without a device."""
    builder = TraceBuilder()
    for i in range(4):
        builder.step(i, i * MS, (i + 1) * MS).op("aten::mm", i * MS, i * MS + 1000)
    return builder.write(tmp_path_factory.mktemp("trace") / "cpu.json")


# -- real processes


def test_diagnose_prints_to_stdout_and_nothing_else(trace):
    done = gpuprof_command("diagnose", trace)
    assert (done.returncode, done.stderr) == (0, "")
    assert "10 ms an iteration" in done.stdout.splitlines()[0]
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_json_is_valid_and_ascii(trace):
    done = in_process("diagnose", trace, "--json", "--top", "3")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert not list(Draft202012Validator(schema()).iter_errors(document))
    assert document["steps"]["count"] == 4
    assert len(document["gaps"]["largest"]) <= 3


@pytest.mark.slow
def test_the_demo_runs_and_says_what_to_type(tmp_path):
    done = in_process("demo", "-o", tmp_path / "demo.html", COLUMNS="100")
    assert done.returncode == 0
    assert "H200" in done.stdout.splitlines()[1]
    report, advice = done.stderr.splitlines()
    assert report == f"gpuprof: report: {tmp_path / 'demo.html'}"
    assert "gpuprof diagnose" in advice


def test_an_unusable_recording_exits_2_with_its_json(cpu_only):
    done = gpuprof_command("diagnose", cpu_only, "--json")
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert document["quality"]["status"] == "unusable" and document["verdict"]["bound"] is None
    assert not list(Draft202012Validator(schema()).iter_errors(document))
    assert "cannot be diagnosed" in one_line(done.stderr)
    done = in_process("diagnose", cpu_only, "--fail-on", "idle:1%")
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("UNUSABLE RECORDING")


def test_gates(trace):
    done = in_process("diagnose", trace, "--fail-on", "idle:90%", "--fail-on", "step_time:20ms")
    assert (done.returncode, done.stderr) == (0, "")
    done = in_process("diagnose", trace, "--json", "--fail-on", "idle:40%", "--fail-on", "step_time:9ms")
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("gpuprof: gate failed: idle is 70.2 %") and first.endswith("the limit is 40%")
    assert second == "gpuprof: gate failed: step_time is 10 ms, the limit is 9ms"
    assert json.loads(done.stdout), "the diagnosis is printed all the same"


def test_variables_set_options(trace):
    done = in_process("diagnose", trace, GPUPROF_DIAGNOSE_FAIL_ON="idle:40% input:50%")
    assert done.returncode == 1
    assert one_line(done.stderr).startswith("gpuprof: gate failed: idle")
    done = in_process("diagnose", trace, GPUPROF_VERSION="1", GPUPROF_DIAGNOSE_JSON="1")
    assert done.returncode == 0 and json.loads(done.stdout), "GPUPROF_VERSION may be anybody's"


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_a_reader_that_leaves_is_no_error(trace):
    command = f"{sys.executable} -m gpuprof diagnose {trace} --json | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["{", "0"]
    assert done.stderr == ""


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_help_into_a_closed_pipe():
    command = f"{sys.executable} -m gpuprof diagnose --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error(trace):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpuprof", "diagnose", str(trace)],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 2
    assert "cannot be written" in one_line(done.stderr)


def test_a_terminal_that_knows_ascii_only(trace):
    done = gpuprof_command("diagnose", trace, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stdout.isascii() and "iteration  ###" in done.stdout


@pytest.mark.parametrize("closed", few(["1", "2"], ["1"]))
def test_closed_streams(trace, closed):
    command = f"{sys.executable} -m gpuprof diagnose {trace} {closed}>&-"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_ends_it_quietly():
    code = (
        "import sys, time\n"
        "from gpuprof.cli import main\n"
        "from gpuprof.diagnosis import diagnose_recording\n"
        "def diagnose(*_, **__): print('reading', flush=True); [time.sleep(0.05) for _ in range(1200)]\n"
        "diagnose_recording.diagnose_recording = diagnose\n"
        "sys.exit(main(['diagnose', 'trace.json']))"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None and running.stdout.readline() == "reading\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    finally:
        running.kill()
    assert (running.returncode, out, err) == (130, "", "")


# -- one line for whatever goes wrong


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("diagnose",), "gpuprof diagnose PATH"),
        (("diagnose", "absent.json"), "absent.json: no such file"),
        (("diagnose", "a\x1b[31m\u202e.json"), r"a\x1b[31m\u202e.json: no such file"),
        (("diagnose", "."), "is a folder"),
        (("diagnose", "x", "--top", "0"), "'--top': 0 is less than 1"),
        (("diagnose", "x", "--top", "many"), "'--top': 'many' is not a whole number"),
        (("view", "x", "--port", "99999"), "'--port': 99999 is more than 65535"),
        (("diagnose", "x", "--step-ms", "nan"), "above 0"),
        (("diagnose", "x", "--step-ms", "0"), "above 0"),
        (("diagnose", "x", "--skip", "-1"), "--skip"),
        (("diagnose", "x", "--jsno"), "--jsno"),
        (("diagnose", "x", "y"), "x: no such file"),
        (("diagnos",), "there is no command 'diagnos'; did you mean 'diagnose'?"),
        (("record",), "there is no command 'record'; did you mean 'trace'?"),
        (
            ("xyzzy",),
            "there is no command 'xyzzy'; choose from trace, diagnose, report, try, compare, project, memory,",
        ),
        (
            ("train.py", "--lr", "1e 4"),
            "'train.py' is not a command; to record it: gpuprof trace train.py --lr '1e 4'?",
        ),
        (("torchrun", "train.py"), "to record it: gpuprof trace torchrun train.py?"),
        (("pyproject.toml",), "gpuprof diagnose pyproject.toml"),
        (("diagnose", "x", "--fail-on", "foo:3%"), "choose from idle, cpu_bound, unattributed, step_time and"),
        (("diagnose", "x", "--fail-on", "idle"), "such as idle:40%"),
        (("diagnose", "x", "--fail-on", "idle:40"), "such as idle:40%"),
        (("diagnose", "x", "--fail-on", "idle:140%"), "such as idle:40%"),
        (("diagnose", "x", "--fail-on", "step_time:3%"), "such as step_time:200ms"),
    ],
)
def test_mistakes_are_one_line(capsys, monkeypatch, arguments, says):
    monkeypatch.chdir(ROOT)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says in one_line(err)


def test_what_may_not_be_read_is_said_like_what_is_absent(capsys, monkeypatch):
    """Arguments are not checked apart from reading them: as root, permissions would not show it."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    code, _, err = run(capsys, "diagnose", str(ROOT / "pyproject.toml"))
    assert code == 2 and "is not a profiler trace" in one_line(err)


def test_options_that_do_not_fit_the_trace(capsys, trace):
    for arguments in (("--skip", "99"), ("--step", "("), ("--step", "nowhere")):
        code, out, err = run(capsys, "diagnose", trace, *arguments)
        assert (code, out) == (2, "")
        assert arguments[0] in one_line(err)


@pytest.mark.parametrize("error", [RuntimeError("two\nlines \x1b"), EOFError("cut"), RecursionError()])
def test_the_unexpected_is_one_line_too(capsys, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(DIAGNOSES, fail)
    monkeypatch.delenv("GPUPROF_DEBUG", raising=False)
    code, out, err = run(capsys, "diagnose", "x")
    assert (code, out) == (2, "")
    assert f"unexpected {type(error).__name__}" in one_line(err) and "GPUPROF_DEBUG=1" in err
    monkeypatch.setenv("GPUPROF_DEBUG", "1")
    assert "Traceback" in run(capsys, "diagnose", "x")[2]


def test_memory_and_interrupts(capsys, monkeypatch):
    def fail(*_, **__):
        raise errors.pop()

    monkeypatch.setattr(DIAGNOSES, fail)
    errors: list[BaseException] = [KeyboardInterrupt(), MemoryError()]
    code, _, err = run(capsys, "diagnose", "x")
    assert code == 2 and "not enough memory" in one_line(err)
    assert run(capsys, "diagnose", "x") == (130, "", "")


def test_help_and_version(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "") and "diagnose" in out and "demo" in out
    code, out, err = run(capsys, "diagnose", "--help")
    assert (code, err) == (0, "") and "--fail-on" in out
    code, out, err = run(capsys, "--version")
    assert (code, err) == (0, "") and out.startswith("gpuprof ")


def test_a_gate_that_cannot_be_checked_does_not_pass(capsys, monkeypatch):
    monkeypatch.setattr(DIAGNOSES, lambda *_, **__: two_devices(devices=(), gaps=None))
    code, out, err = run(capsys, "diagnose", "x", "--fail-on", "cpu_bound:30%")
    assert code == 2 and out and "not known from" in one_line(err)


@pytest.mark.parametrize(("patience_s", "seen"), [(0, True), (3600, False)])
def test_a_bar_shows_only_what_takes_long(monkeypatch, patience_s, seen):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(progress, "PATIENCE_S", patience_s)
    monkeypatch.setenv("TERM", "xterm")
    with progress.reading("evil[bold]\x1b.json") as update:
        assert update is not None
        update(50, 100)
    assert (r"reading evil[bold]\x1b.json" in terminal.getvalue()) is seen


def test_no_bar_in_a_pipe(capsys):
    with progress.reading("trace.json") as update:
        assert update is None


# -- gates


def test_gates_measure_what_they_name():
    diagnosis = host_bound()
    window = diagnosis.devices[0].window_ns

    def value(metric: str, of=diagnosis) -> float | None:
        return measure(parse(f"{metric}:1ms" if metric in TIMES else f"{metric}:1%"), of)

    assert value("idle") == pytest.approx(1 - 61 * MS / window)
    assert value("cpu_bound") == 0.87
    assert value("cpu_bound", two_devices()) == 0.02, "the worst that is known"
    assert value("idle", timed()) == pytest.approx(58.75 / 74), "the step without the profiler, where known"
    assert value("cpu_bound", timed()) == 0.74
    assert value("step_time", timed()) == 74 * MS
    assert value("python") == pytest.approx(90 * MS / window)
    assert value("input") == 0
    assert value("unattributed") == pytest.approx(1 / 61)
    assert value("step_time") == 168 * MS
    assert all(value(metric, unusable(steps=None)) is None for metric in (*SHARES, *TIMES, *CAUSES))


def test_limits():
    assert parse("idle:40%").limit == 0.4
    assert parse(" idle : 12.5 % ").limit == 0.125
    assert [parse(f"step_time:{t}").limit for t in ("1s", "2ms", "3us", "3µs", "4ns")] == [
        1e9,
        2e6,
        3e3,
        3e3,
        4,
    ]


def test_every_cause_can_be_a_gate():
    assert set(CAUSES) == set(gaps.IDLE_CAUSES)
