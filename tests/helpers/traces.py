"""Which recorded traces the tests run over: those of the repository always, the shared ones where they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.paths import ROOT, SHARED

COMMITTED = sorted([*(ROOT / "tests" / "data").glob("*.json.gz"), ROOT / "gpuprof" / "data" / "demo.json.gz"])
RUNS = [ROOT / "tests" / "data" / "runs" / name / "trace.rank0.json.gz" for name in ("tiny_lora", "dense8b_lora")]
"""Two of the recorded runs: one with all its events, and one whose CPU runs ahead; the others are similar."""

# fmt: off
_SHARED = """
h200/ddp_straggler_rank0 h200/ddp_straggler_rank1 h200/dense8b_lora_compute h200/hf_trainer_lora
h200/moe_gptoss_expert_loop h200/roofline_pair h200/tiny_lora_dataloader h200/tiny_lora_small_batch
h200/tiny_lora_small_batch_stack h200/unsloth_llama1b
public/hta_a100_16rank_5streams_rank0 public/hta_a100_event_sync_3streams public/hta_a100_nccl_meta_2rank_rank0
public/hta_bigint_20digit_comms_id.pt.trace public/hta_cpu_only_rank34.pt.trace public/hta_v100_2rank_nccl_5steps
public/kineto_v100_oldschema_resnet50_nw0.pt.trace public/tl_h100_owlv2_fwd public/tl_h100_qwen1.5-0.5b_fwd
public/tl_mi300_resnet_train_ckpt_8rank_rank0 public/zoology_a100_runtime_but_no_kernels
public/param_dlrm_8rank/worker0_step_12.1694128201545.pt.trace
public/param_dlrm_8rank/worker5_step_12.1694128201549.pt.trace
""".split()  # noqa: SIM905
# fmt: on


_LARGE = 2_000_000
"""Bytes, compressed. Larger recordings take a test ten seconds each, and are there for the slow tests."""


def marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    """Marks of a test that reads a shared recording: `slow` if that is large."""
    path = SHARED / "traces" / f"{name}.json.gz"
    return (pytest.mark.slow,) if path.is_file() and path.stat().st_size > _LARGE else ()


def shared_trace(name: str) -> Path:
    """A recording of the shared folder; the test is skipped where there is none."""
    path = SHARED / "traces" / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no recorded trace at {path} (set GPUPROF_SHARED)")
    return path


def shared_truth() -> dict[str, Any]:
    """What was measured of each recording of the shared folder's h200; the test is skipped where it is not."""
    path = SHARED / "traces" / "h200" / "truth.json"
    if not path.is_file():
        pytest.skip(f"no measured times at {path} (set GPUPROF_SHARED)")
    return json.loads(path.read_text())["runs"]


def each_shared(*rows: str | tuple, folder: str = "", slow: bool = True) -> list:
    """Parameters of a test that runs once for each of some shared recordings; without the folder one that is skipped.

    rows: names, or tuples of parameters that begin with a name. folder: the names are of recordings in it.
    slow: whether a test of a large recording is marked so.
    """
    each = [row if isinstance(row, tuple) else (row,) for row in rows]
    if not (SHARED / "traces").is_dir():
        skip = pytest.mark.skip(reason=f"no recorded traces at {SHARED} (set GPUPROF_SHARED)")
        return [pytest.param(*each[0], id="shared", marks=skip)]
    return [pytest.param(*row, id=row[0], marks=marks(f"{folder}{row[0]}") if slow else ()) for row in each]


WHOLE = [
    *(pytest.param(path, id=path.name.split(".")[0]) for path in COMMITTED),
    *(pytest.param(path, id=f"run {path.parent.name}") for path in RUNS),
    *each_shared(*_SHARED),
]
"""Parameters for every whole recording; turn one into a path with `resolve`."""


def resolve(trace: Path | str) -> Path:
    return trace if isinstance(trace, Path) else shared_trace(trace)
