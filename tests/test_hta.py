"""Handing a Trace to HolisticTraceAnalysis: the same as its own parser where that is right, and right where it errs.

HTA lives in a venv of its own; `hta_script.py` runs there and prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

import gpuprof
from gpuprof.interop.hta import trace_analysis

DATA = ROOT / "tests" / "data"
DEMO = ROOT / "gpuprof" / "data" / "demo.json.gz"
ROOFLINE = DATA / "roofline_pair.json.gz"
INDUCTOR = DATA / "unsloth_llama1b.json.gz"
OURS = [ROOFLINE, DATA / "tiny_lora_dataloader.json.gz", DEMO]
SHARED = [
    "h200/ddp_straggler_rank0.json.gz",
    "h200/moe_gptoss_expert_loop.json.gz",
    "public/hta_a100_nccl_meta_2rank_rank0.json.gz",
    "public/hta_a100_16rank_5streams_rank0.json.gz",
    "public/hta_v100_2rank_nccl_5steps.json.gz",
    "public/param_dlrm_8rank/worker0_step_12.1694128201545.pt.trace.json.gz",
]


@cache
def run(python: str, what: str, *traces: Path) -> dict[str, Any]:
    """What `hta_script.py` prints about traces; several are ranks of one run."""
    done = subprocess.run(
        [python, str(ROOT / "tests" / "hta_script.py"), what, *map(str, traces)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(params=[*OURS, *SHARED], ids=lambda p: Path(p).name.split(".")[0])
def trace(request: pytest.FixtureRequest) -> Path:
    """A recording of one device per process: ours, and others where they are present."""
    if isinstance(request.param, Path):
        return request.param
    return request.getfixturevalue("shared") / "traces" / request.param


def test_the_table_is_the_one_that_hta_would_have_made(hta_python: str, trace: Path):
    said = run(hta_python, "breakdowns", trace)
    differences = said["differences"]["0"]
    # A file in whole µs gives the bandwidth of a copy with more digits than follow from its duration.
    differences.pop("memory_bw_gbps", None) if in_whole_microseconds(trace) else None
    assert not differences
    assert said["min_ts"][0] == said["min_ts"][1]
    assert said["end_is_consistent"]


def in_whole_microseconds(trace: Path) -> bool:
    return not (gpuprof.load(trace).gpu.start_ns % 1000).any()


def test_analyses_of_rounded_times_return_what_hta_returns(hta_python: str, trace: Path):
    """Also where HTA fails: on the demo its rounding leaves negative durations."""
    said = run(hta_python, "breakdowns", trace)
    assert set(said["hta"]) == {"temporal", "kernels", "idle", "overlap"}
    for name, result in said["hta"].items():
        assert said["ours"][name] == result, name


def test_hta_agrees_with_gpuprof_to_the_nanosecond(hta_python: str, trace: Path):
    """Busy time and compute time within HTA's own span, which goes from the first kernel to the last."""
    said = run(hta_python, "breakdowns", trace)
    own = said["gpuprof"]["0"]
    for parser, tolerance in (("ours_exact", 0.001), ("hta_exact", 1.0)):  # HTA's doubles carry about 1 ns
        (row,) = said[parser]["temporal"]
        assert row["kernel_time(us)"] == pytest.approx(own["span"], abs=tolerance)
        assert row["compute_time(us)"] == pytest.approx(own["compute"], abs=tolerance)
        busy = row["compute_time(us)"] + row["non_compute_time(us)"]
        assert busy == pytest.approx(own["busy"], abs=tolerance)
        if own["overlap_percent"] is not None:
            (row,) = said[parser]["overlap"]
            assert row["comp_comm_overlap_pctg"] == pytest.approx(own["overlap_percent"], abs=0.01)
