"""Snapshots that torch wrote on an H200 (benchmarks/out_of_memory.py): the named owner is the reason.

Each program fitted into its 8.4 GiB once that reason was removed: it took 2,653 MiB with a smaller batch (activations),
4,628 (logits), 3,903 with SGD (optimizer), and 3,386 keeping numbers instead of tensors (leak).
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from helpers.paths import ROOT

from gpuprof.memory.load_memory import load_memory
from gpuprof.memory.memory_report import ReportedDevice

SNAPSHOTS = ROOT / "tests" / "data" / "snapshots"


def recorded(name: str, folder: Path) -> ReportedDevice:
    path = folder / f"{name}.pickle"
    with gzip.open(SNAPSHOTS / f"{name}.pickle.gz") as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
    report = load_memory(path)
    assert len(report.devices) == 1
    device = report.devices[0]
    assert sum(one.bytes for one in device.peak.owners) == device.peak.reserved_bytes
    return device


@pytest.mark.parametrize(
    "name, owner, share",
    [("activations", "activations", 0.9), ("logits", "logits", 0.8), ("optimizer", "optimizer_state", 0.4)],
)
def test_the_reason_is_the_largest_owner(name: str, owner: str, share: float, tmp_path: Path):
    device = recorded(name, tmp_path)
    largest = device.peak.owners[0]
    assert largest.owner == owner
    assert device.peak.reserved_bytes is not None
    assert largest.bytes > share * device.peak.reserved_bytes
    assert device.failure is not None
    assert not device.leaks


@pytest.mark.parametrize("name", ["llama", "llama_all_stacks"])
def test_workspaces_of_cublas_are_known_without_their_frames(name: str, tmp_path: Path):
    """One for the forward pass and one for autograd's thread, 32 MiB each on an H200."""
    series = recorded(name, tmp_path).series
    assert series.owners["workspace"][-1] == 2 * 33_554_432


def test_what_grows_is_named_with_its_line(tmp_path: Path):
    device = recorded("leak", tmp_path)
    (leak,) = device.leaks
    logits = 16 * 512 * 8000 * 4
    assert leak.bytes_per_step == logits
    assert (leak.owner, leak.function) == ("logits", "forward")
    assert device.failure is not None and device.failure.requested_bytes == logits


@pytest.mark.parametrize("name", ["llama", "llama_all_stacks"])
def test_owners_of_a_usual_training(name: str, tmp_path: Path):
    """A Llama of 155.5 million parameters in bf16: its weights and AdamW's two numbers per parameter are exact to the
    byte."""
    device = recorded(name, tmp_path)
    held = {one.owner: one.bytes for one in device.peak.owners}
    parameters = 32000 * 1024 * 2 + 8 * (1024 * (1024 * 2 + 256 * 2 + 2816 * 3) + 2 * 1024) + 1024
    assert held["weights"] == pytest.approx(2 * parameters, rel=1e-3)
    assert held["optimizer_state"] == pytest.approx(4 * parameters, rel=1e-3)
    logits = 8 * 512 * 32000
    assert held["logits"] == pytest.approx(logits * (2 + 4 + 4 + 2), rel=0.05)  # bf16, fp32, its log-softmax, gradients
    assert device.peak.allocated_bytes == pytest.approx(4074799104, rel=0.01)  # by torch, which rounds up


LLAMA_2, LLAMA_3 = (
    32_000 * 2048 * 2 + layers * (2048 * (2048 * 2 + 256 * 2 + 5632 * 3) + 2 * 2048) + 2048 for layers in (2, 3)
)
"""Parameters of TinyLlama with so few layers; rotary frequencies are two buffers of 128 bytes more."""


@pytest.mark.parametrize(
    ("name", "peak_mib", "held"),
    [
        ("lora", 1346.1, {"weights": 2 * LLAMA_3 + 256, "optimizer_state": 2 * 3_440_640, "adapters": 3_440_640}),
        ("full", 2443.9, {"weights": 2 * LLAMA_2 + 256, "optimizer_state": 4 * LLAMA_2}),
        ("out_of_memory", 2475.3, {"weights": 2 * LLAMA_2 + 256, "logits": 2 * 4096 * 32_000 * 2}),
    ],
)
def test_owners_of_trainings_with_torch_2_11(name: str, peak_mib: float, held: dict[str, int], tmp_path: Path):
    """By benchmarks/take_snapshots.py on an H100. peak_mib: as reported by the allocator, which counts whole blocks."""
    device = recorded(f"{name}_torch_2.11", tmp_path)
    assert device.peak.allocated_bytes == pytest.approx(peak_mib * 2**20, rel=0.01)
    found = {one.owner: one.bytes for one in device.peak.owners}
    assert {owner: found[owner] for owner in held} == held
    assert not device.leaks
    if name == "out_of_memory":
        assert device.failure is not None and device.failure.requested_bytes == 4 * 2 * 4096 * 32_000
        assert (device.failure.phase, device.failure.function) == ("forward", "steps")
    else:
        assert device.failure is None and device.peak.phase == "backward"
