"""`gpuprof trace --ncu` runs the program of a recording again, under a stand-in for Nsight Compute."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import stand_in_ncu

from gpuprof import diagnose
from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.counters.largest_kernels import MOST_LAUNCHES, largest_kernels, own_name
from gpuprof.errors import GpuprofError
from gpuprof.nsight.compute import candidates, count_command, find_ncu, why_none
from gpuprof.tracefile.trace import KERNEL

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "scenarios" / "cases" / "shared_prompt" / "recording"
TARGET = "import os, sys; print(sys.argv[1], os.environ['GPUPROF_COUNTED'])\n"


@pytest.fixture(scope="module")
def case():
    found = analysis_of(diagnose(RECORDING))
    assert found is not None
    return found


@pytest.fixture
def ncu(tmp_path: Path, case) -> dict[str, str]:
    """The environment with the stand-in, which runs the recorded kernels."""
    path = tmp_path / "bin" / "ncu"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stand_in_ncu.__file__}" "$@"\n')
    path.chmod(0o755)
    gpu, rows = case.trace.gpu, case.timeline.members
    rows = rows[gpu.kind[rows] == KERNEL]
    rows = rows[gpu.start_ns[rows].argsort(kind="stable")]
    size = [[getattr(gpu, f"{what}_{axis}") for axis in "xyz"] for what in ("grid", "block")]
    lines = [
        "\t".join(
            (case.trace.strings[int(gpu.name[row])], *(str(tuple(int(axis[row]) for axis in one)) for one in size))
        )
        for row in rows.tolist()
    ]
    (tmp_path / "kernels.txt").write_text("\n".join(lines))
    (tmp_path / "train.py").write_text(TARGET)
    return os.environ | {"GPUPROF_NCU": str(path), "STAND_IN_KERNELS": str(tmp_path / "kernels.txt")}


def run(where: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuprof", "trace", *words], cwd=where, env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_counts_the_largest_kernels_of_the_program(tmp_path: Path, ncu: dict[str, str], case):
    done = run(tmp_path, ncu, "--ncu", str(RECORDING), "--out", "counted", "train.py", "--lr")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--lr 1\n")  # the target ran, with its arguments and our output
    assert "the counters say compute: tensor pipes 72 %, DRAM 22 %, SMs 74 %, issue slots 31 %\n" in done.stdout
    table = tmp_path / "counted" / "ncu.csv"
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof", "diagnose", str(RECORDING), "--json", "--ncu", str(table)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    counters = json.loads(done.stdout)["counters"]
    assert counters["largest"][0]["counted"] == "tensor"
    assert counters["largest"][0]["issue_percent"] == 31.0
    wanted = largest_kernels(case)
    assert wanted is not None and counters["matched_share"] >= wanted.share - 1e-9


@pytest.mark.slow
def test_the_benchmark_compares_what_is_there_and_names_what_is_not(tmp_path: Path, ncu: dict[str, str]):
    shutil.copytree(RECORDING, tmp_path / "out" / "counted")
    done = run(tmp_path, ncu, "--ncu", str(tmp_path / "out" / "counted"), "train.py", "x")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "counted" / "ncu.csv").is_file(), "next to the recording"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ncu", "--out", str(tmp_path / "out"), "--compare", "counted", "missing"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    found = json.loads((tmp_path / "out" / "agreement.json").read_text())
    assert 0 <= found["counted"]["agreeing_share"] <= 1 and found["counted"]["why"] is None
    assert found["missing"]["agreeing_share"] is None and found["missing"]["why"]
    assert "1 programs: the limiter agrees" in done.stdout


@pytest.mark.slow
def test_a_metric_that_is_not_known_is_left_out(tmp_path: Path, ncu: dict[str, str]):
    done = run(tmp_path, ncu | {"STAND_IN": "old"}, "--ncu", str(RECORDING), "--out", "counted", "train.py", "x")
    assert done.returncode == 0, done.stderr
    assert "the counters say compute: tensor pipes 72 %, DRAM 22 %\n" in done.stdout


@pytest.mark.slow
def test_why_nothing_was_counted(tmp_path: Path, ncu: dict[str, str]):
    done = run(tmp_path, ncu | {"STAND_IN": "forbidden"}, "--ncu", str(RECORDING), "--out", "counted", "train.py", "x")
    assert done.returncode == 2
    assert "only administrators read counters" in done.stderr.splitlines()[-1]
    (tmp_path / "kernels.txt").write_text("another_kernel\t(1, 1, 1)\t(32, 1, 1)")
    done = run(tmp_path, ncu, "--ncu", str(RECORDING), "--out", "counted", "train.py", "x")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "gpuprof: Nsight Compute counted nothing: No kernels were profiled."
    assert "==WARNING== No kernels were profiled." in (tmp_path / "counted" / "ncu.log").read_text(), "all it printed"


def test_what_cannot_be_combined_is_one_line(tmp_path: Path, ncu: dict[str, str]):
    done = run(tmp_path, ncu, "--ncu", str(RECORDING), "--stacks", "train.py")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "gpuprof: with --ncu one step is counted and nothing else recorded: leave out --stacks"
    ]


def test_what_is_counted_covers_each_item(case):
    """Each of the largest kernels is among the launches that are counted."""
    wanted = largest_kernels(case)
    assert wanted is not None
    assert 0.3 < wanted.share <= 1
    assert 0 < wanted.launches <= MOST_LAUNCHES
    assert not [name for name in wanted.functions if "nccl" in name.lower() or "<" in name or "(" in name]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("void at::native::(anonymous namespace)::multi_kernel<at::X<4>, at::Y>(at::X<4>)", "multi_kernel"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"),
        ("void cutlass::Kernel2<cutlass_80_wmma>(cutlass_80_wmma::Params)", "Kernel2"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm90_10", "device_kernel"),
        ("_Z6kernelPf", "kernel"),
    ],
)  # fmt: skip
def test_names_match_as_functions_and_with_their_arguments(name: str, own: str):
    import re

    pattern = count_command("ncu", ["m"], [own], 1, Path("t"))[-3].removeprefix("regex:")
    assert own_name(name) == own
    assert re.search(pattern, own) and (re.search(pattern, name) or name.startswith("_Z"))
    assert not re.search(pattern, f"{own}_2")


def test_where_it_may_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for place in ("opt/nvidia/nsight-compute/2024.10.1", "opt/nvidia/nsight-compute/2024.9.0"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "ncu").write_text("")
        (tmp_path / place / "ncu").chmod(0o755)
    assert [Path(one).parent.name for one in candidates("", tmp_path)] == ["2024.10.1", "2024.9.0"]
    monkeypatch.setenv("GPUPROF_NCU", "/nowhere/ncu")
    with pytest.raises(GpuprofError, match="GPUPROF_NCU: /nowhere/ncu cannot be run"):
        find_ncu()
    assert why_none("") == "it printed no table"
