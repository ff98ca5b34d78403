"""`gpuprof gpus` as a shell sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from helpers.command import gpuprof_command, in_process

import gpuprof.cli.trace
from gpuprof.costs.measured_rates import SCRIPT

STAND_IN = """
class _Cuda:
    @staticmethod
    def is_available(): return {sees}
cuda = _Cuda()
"""


def gpus(*arguments: object, **env: Any) -> subprocess.CompletedProcess[str]:
    return in_process("gpus", *arguments, **env)


def test_the_table_and_one_gpu_in_full(tmp_path):
    table = gpuprof_command("gpus", env={"COLUMNS": "120"})
    assert (table.returncode, table.stderr) == (0, "")
    assert any(line.startswith("H200 SXM") and "989" in line and "4,800" in line for line in table.stdout.splitlines())
    assert max(map(len, table.stdout.splitlines())) <= 120
    one = gpus("NVIDIA", "H200", XDG_CONFIG_HOME=str(tmp_path))
    assert (one.returncode, one.stderr) == (0, "")
    assert one.stdout.startswith("H200 SXM\n")
    assert "bf16 796" in one.stdout


def test_json_holds_everything(tmp_path):
    done = gpus("--json", XDG_CONFIG_HOME=str(tmp_path))
    found = json.loads(done.stdout)
    assert found["schema"] == "gpuprof.gpus/1"
    h200 = next(gpu for gpu in found["gpus"] if gpu["name"] == "H200 SXM")
    assert h200["dense_flops"]["bf16"] == 989.4e12
    assert h200["ceilings"]["memory_bytes_per_s"] == 4276e9
    assert h200["confidence"] == "A"
    few = json.loads(gpus("--json", "ada", XDG_CONFIG_HOME=str(tmp_path)).stdout)["gpus"]
    assert {"L4", "RTX 4090"} <= {gpu["name"] for gpu in few} < {gpu["name"] for gpu in found["gpus"]}


@pytest.mark.parametrize("written", ["rtx4090", "RTX-4090", "4090"])
def test_a_name_is_found_however_it_is_written(written: str):
    (found,) = json.loads(in_process("gpus", written, "--json").stdout)["gpus"]
    assert found["name"] == "RTX 4090"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["voodoo"], "unknown GPU 'voodoo'"),
        (["--save"], "--save needs --measure"),
        (["--measure", "h100"], "takes no NAME"),
        (["--gpus", "nowhere.csv"], "nowhere.csv: the list of GPUs cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, says):
    done = gpus(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_users_file_is_taken_by_option_and_by_variable(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("name,memory_gb,bandwidth_gbs,bf16_tflops\n[red]X1\x1b[31m,64,2000,500\n")
    by_option, by_variable = gpus("x1", "--gpus", file), gpus("x1", GPUPROF_GPUS=str(file))
    assert by_option.stdout == by_variable.stdout
    assert "[red]X1" in by_option.stdout  # a name is text, never markup or an escape
    assert "\x1b" not in by_option.stdout


@pytest.mark.parametrize(("sees", "says"), [("False", "torch sees no GPU"), (None, "it has no torch")])
def test_nothing_to_measure_is_one_line(tmp_path, sees, says):
    if sees:
        (tmp_path / "torch.py").write_text(STAND_IN.format(sees=sees))
    done = subprocess.run(
        [sys.executable, "-S", str(SCRIPT)], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (1, "", says)


def test_measuring_runs_the_script_and_saves_what_it_says(tmp_path, monkeypatch):
    """The interpreter with torch is a stand-in that answers as the script does on a GPU."""
    answer = {
        "device_name": "NVIDIA L4", "memory_bytes": 23_600_000_000, "flops": {"bf16": 5.8e13, "fp32": 1.1e13},
        "memory_bytes_per_s": 2.6e11, "link_bytes_per_s": 2.5e10, "launch_ns": 5200.0, "host_loop_ns": 41.0,
        "taken": "2026-01-01", "torch": "2.11",
    }  # fmt: skip
    tools = tmp_path / "bin"
    tools.mkdir()
    python = tools / "python"
    python.write_text(f"#!/bin/sh\ncase $1 in *measure_gpu.py) echo '{json.dumps(answer)}';; *) exit 3;; esac\n")
    python.chmod(0o755)
    env = {"XDG_CONFIG_HOME": str(tmp_path), "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    monkeypatch.setattr(gpuprof.cli.trace, "has_torch", lambda: False)
    done = gpus("--measure", "--save", **env)
    assert done.returncode == 0, done.stderr
    assert "bf16" in done.stdout
    assert "58.0 TFLOP/s" in done.stdout
    assert "48 % of 121" in done.stdout
    assert json.loads((tmp_path / "gpuprof" / "gpus.json").read_text())["NVIDIA L4"]["flops"] == answer["flops"]
    assert "from  " in gpus("L4", **env).stdout
    assert "measured on this machine" in gpus("L4", **env).stdout


def test_the_help_names_it():
    assert "gpus" in in_process("--help").stdout


def test_the_script_that_measures_imports_nothing_of_gpuprof():
    ran = subprocess.run([sys.executable, "-I", "-S", "-v", str(SCRIPT)], capture_output=True, text=True, timeout=60)
    assert "has no torch" in ran.stdout + ran.stderr
    assert "import 'gpuprof" not in ran.stderr
