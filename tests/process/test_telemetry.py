"""The sampler that accompanies a run: what it writes, how it ends, and how it handles NVML's answers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.present import present
from helpers.stand_in_nvml import NVML, nvml_on_path

from gpuprof import runfile
from gpuprof.record.launcher import telemetry

PACKAGE = Path(telemetry.__file__).parents[2]

READING = {
    "index": 0, "uuid": "GPU-aaaa1111-0000", "power_w": 651.23, "energy_j": 98765.43, "limit_w": 700.0, "sm_mhz": 1980,
    "memory_mhz": 3201, "temperature_c": 61, "utilization": 0.97, "memory_utilization": 0.4, "used_bytes": 5 << 30,
    "throttle": ["sw_power_cap", "sw_thermal", "hw_power_brake", "display_clock"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def nvml(tmp_path, monkeypatch):
    """The stand-in for pynvml, first on the path of the processes that a test starts."""
    return nvml_on_path(tmp_path, monkeypatch)


@pytest.fixture
def run(tmp_path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def sampler(run):
    process = telemetry.start(run)
    assert process is not None
    yield process
    telemetry.stop(process)
    assert process.returncode is not None


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not in {seconds} s: {what}"
        time.sleep(0.05)


def lines(run: Path) -> list[dict]:
    return list(runfile.read_lines(run / runfile.TELEMETRY))


def wait_for_lines(run: Path, count: int) -> list[dict]:
    wait_for(lambda: len(lines(run)) >= count, f"{count} lines")
    return lines(run)


def gone(pid: int) -> bool:
    """Whether a process has ended, even if no one has read its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


# ---- the process


def test_writes_lines_and_ends_on_request(run, sampler):
    wait_for_lines(run, 3)
    telemetry.stop(sampler)
    assert sampler.returncode == 0
    found = lines(run)
    assert all(line.keys() == {"unix_ns", "load1", "cpu", "gpus"} for line in found)
    assert all(abs(line["unix_ns"] - time.time_ns()) < 300e9 for line in found)
    assert found == sorted(found, key=lambda line: line["unix_ns"])
    assert all(line["load1"] >= 0 for line in found)
    assert found[0]["cpu"] is None or 0 <= found[0]["cpu"] <= 1
    assert all(0 <= line["cpu"] <= 1 for line in found[2:])
    assert [gpu["index"] for gpu in found[-1]["gpus"]] == [0, 1]
    assert found[-1]["gpus"][0] == READING
    assert (run / runfile.TELEMETRY).stat().st_mode & 0o777 == 0o600


def test_what_it_kept_back_is_written_at_the_end(run, sampler):
    wait_for_lines(run, 1)
    before = time.time_ns()
    wait_for(lambda: time.time_ns() - before > 0.6e9, "a moment")
    telemetry.stop(sampler)
    assert lines(run)[-1]["unix_ns"] > before


@pytest.mark.parametrize("pynvml", ["raise ImportError", "raise RuntimeError", "nvmlInit = None", NVML])
def test_without_nvml_there_are_no_gpus(pynvml, run, tmp_path, monkeypatch):
    (tmp_path / "nvml" / "pynvml.py").write_text(pynvml)
    monkeypatch.setenv("NVML_REFUSES", "nvmlInit")
    process = telemetry.start(run)
    found = wait_for_lines(run, 1)
    telemetry.stop(process)
    assert found[0]["gpus"] == []
    assert found[0]["load1"] is not None


def test_values_that_the_driver_refuses_are_null(run, monkeypatch):
    refused = (
        "PowerUsage", "TotalEnergyConsumption", "EnforcedPowerLimit", "ClockInfo", "Temperature", "UtilizationRates",
        "MemoryInfo",
        "CurrentClocksEventReasons", "CurrentClocksThrottleReasons",
    )  # fmt: skip
    monkeypatch.setenv("NVML_REFUSES", ",".join(f"nvmlDeviceGet{name}" for name in refused))
    process = telemetry.start(run)
    gpu = wait_for_lines(run, 1)[0]["gpus"][0]
    telemetry.stop(process)
    assert gpu == dict.fromkeys(READING) | {"index": 0, "uuid": READING["uuid"]}


def test_signals_to_the_job_do_not_end_it(run, sampler):
    wait_for_lines(run, 1)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        sampler.send_signal(getattr(signal, name))
    wait_for_lines(run, len(lines(run)) + 4)
    assert sampler.poll() is None


def test_it_is_niced_in_a_session_of_its_own(run, sampler):
    wait_for_lines(run, 1)
    assert os.getpriority(os.PRIO_PROCESS, sampler.pid) >= min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    assert os.getsid(sampler.pid) == sampler.pid


@pytest.mark.parametrize("heir", [False, True], ids=["alone", "a forked process holds the pipe"])
def test_it_ends_with_a_parent_that_is_killed(run, heir):
    parent = subprocess.Popen(
        [
            sys.executable, "-c",
            "import os, sys, time\n"
            "from gpuprof.record.launcher import telemetry\n"
            "process = telemetry.start(sys.argv[1])\n"
            "heir = os.fork() if len(sys.argv) > 2 else None\n"
            "if heir != 0: print(process.pid, heir or 0, flush=True)\n"
            "time.sleep(600)",
            run, *["heir"] * heir,
        ],
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{os.environ['PYTHONPATH']}"},
    )  # fmt: skip
    assert parent.stdout is not None
    sampler, forked = map(int, parent.stdout.readline().split())
    try:
        wait_for_lines(run, 1)
        assert not gone(sampler)
        parent.kill()
        wait_for(lambda: gone(sampler), "the sampler's end")
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        if forked:
            os.kill(forked, signal.SIGKILL)


def test_it_ends_when_the_folder_is_gone(run, sampler):
    wait_for_lines(run, 1)
    shutil.rmtree(run)
    assert sampler.wait(60) == 1
    assert not run.exists()


def test_it_ends_when_the_disk_is_full(run):
    (run / runfile.TELEMETRY).symlink_to("/dev/full")
    process = telemetry.start(run)
    assert process is not None
    assert process.wait(60) == 1
    assert "No space left" in (run / runfile.LOG).read_text()
    telemetry.stop(process)


def test_it_does_not_take_itself_for_a_training(run, tmp_path, monkeypatch):
    monkeypatch.setenv(runfile.RUN_VARIABLE, str(run))
    kept = os.environ["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE / "record" / "inject"), kept]))
    process = present(telemetry.start(run))
    wait_for_lines(run, 1)
    entries = Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
    telemetry.stop(process)
    assert f"PYTHONPATH={kept}" in entries
    assert not any(entry.startswith(runfile.RUN_VARIABLE) for entry in entries)
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE / "record" / "inject"))
    assert "PYTHONPATH" not in telemetry._environment()


def test_nothing_is_imported_from_the_working_directory(run, tmp_path, monkeypatch):
    for name in ("types", "signal", "select", "pynvml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    process = present(telemetry.start("run"))
    wait_for_lines(run, 1)
    telemetry.stop(process)
    assert process.returncode == 0


def test_under_another_package_name(run, tmp_path):
    """As the training process has it: no `gpuprof` among its modules, nothing but the standard library."""
    code = (
        "import sys, time, types\n"
        "package = types.ModuleType('private'); package.__path__ = [sys.argv[1]]; sys.modules['private'] = package\n"
        "from private.record.launcher import telemetry\n"
        "assert not {'gpuprof', 'numpy', 'pynvml'} & set(sys.modules)\n"
        "process = telemetry.start(sys.argv[2])\n"
        "while not telemetry.Path(sys.argv[2], 'telemetry.jsonl').exists(): time.sleep(0.05)\n"
        "telemetry.stop(process); telemetry.stop(process); telemetry.stop(None)\n"
        "sys.exit(process.returncode)"
    )
    subprocess.run([sys.executable, "-I", "-c", code, PACKAGE, run], check=True, cwd=tmp_path, timeout=120)
    assert lines(run)


def test_from_the_command_line(run):
    command = [sys.executable, "-m", "gpuprof.record.launcher.telemetry"]
    inside = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    process = subprocess.Popen([*command, run], stdin=subprocess.PIPE, env=inside)
    wait_for_lines(run, 1)
    process.communicate(b"no end yet", timeout=60)
    assert process.returncode == 0
    wrong = subprocess.run(command, stdin=subprocess.DEVNULL, env=inside, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("usage:")


def test_starting_one_never_raises(run, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(run / "nothing"))
    assert telemetry.start(run) is None
    assert "no telemetry" in (run / runfile.LOG).read_text()
    monkeypatch.setattr(sys, "executable", None)
    assert telemetry.start(run) is None
    assert telemetry.start(run / "nowhere") is None


def test_a_sampler_that_hangs_is_killed():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE)
    telemetry.stop(process, wait_s=0.2)
    assert process.returncode == -signal.SIGKILL


# ---- how often, and how much


@pytest.mark.parametrize(
    ("elapsed_s", "size_bytes", "expected"),
    [(0, 0, 0.25), (599, 1 << 20, 0.25), (601, 1 << 20, 1), (601, 30 << 20, 10), (10, 50 << 20, None)],
)
def test_rate_drops_and_the_file_is_bounded(elapsed_s, size_bytes, expected):
    assert telemetry.interval(elapsed_s, size_bytes) == expected


def test_it_ends_when_the_file_is_full(run):
    with (run / runfile.TELEMETRY).open("wb") as file:
        file.truncate(telemetry.LARGEST_FILE_BYTES)
    process = telemetry.start(run)
    assert process is not None
    assert process.wait(60) == 0
    telemetry.stop(process)


def test_cpu_share(tmp_path):
    file = tmp_path / "stat"
    file.write_text("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3\n")
    cpu = telemetry.CpuShare(file)
    assert cpu.since_last_time() is None  # no tick has passed
    file.write_text("cpu  160 10 60 810 60 0 0 0 70 0\n")
    assert cpu.since_last_time() == 0.8
    file.write_text("nonsense")
    assert cpu.since_last_time() is None
    assert telemetry.CpuShare(tmp_path / "nothing").since_last_time() is None
