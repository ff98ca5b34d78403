"""Optimizer state that is paged or lies on the CPU: what it saves, and what moving it costs."""

from __future__ import annotations

import pytest

from gpuprof.costs.hardware import find
from gpuprof.diagnosis.fixes.memory_remedies import memory_fixes
from gpuprof.projection.memory.activations import RecordedPeak
from gpuprof.projection.memory.memory_fixes import MemoryFix, recorded_footprint
from gpuprof.projection.memory.paging import moved_ns
from gpuprof.projection.memory.recorded_memory import RecordedMemory, Trained

GIB = 2**30
PARAMETERS = 2e9


def memory(state_bytes: float = 8 * PARAMETERS, tensors: int = 40, adam: bool = True) -> RecordedMemory:
    trained = Trained(PARAMETERS, state_bytes, 2 * PARAMETERS, adam, False, tensors)
    return RecordedMemory(30 * GIB, RecordedPeak(10 * GIB, 4096.0, layers=32, hidden=4096), trained=trained)


def fixes(found: RecordedMemory) -> dict[str, MemoryFix]:
    return {fix.id: fix for fix in memory_fixes(found)}


def peak(found: RecordedMemory, name: str) -> float:
    change = fixes(found)[name].change
    assert change is not None
    return change(recorded_footprint(found)).peak_bytes(4096.0)[1]


def test_paged_state_is_not_counted_and_is_what_moves():
    found = memory()
    now = recorded_footprint(found).peak_bytes(4096.0)[1]
    assert now - peak(found, "paged_optimizer") == pytest.approx(8 * PARAMETERS)
    assert (
        peak(found, "paged_optimizer") == peak(found, "paged_eight_bit_optimizer") == peak(found, "offloaded_optimizer")
    )
    assert peak(found, "paged_optimizer") < peak(found, "eight_bit_optimizer") < now
    assert fixes(found)["paged_optimizer"].moved_bytes == 8 * PARAMETERS
    assert 2 * PARAMETERS < fixes(found)["paged_eight_bit_optimizer"].moved_bytes < 2.1 * PARAMETERS


def test_what_is_not_there_to_be_paged_is_not_offered():
    assert "paged_optimizer" not in fixes(memory(tensors=40_000)), "bitsandbytes pages no small tensors"
    assert "paged_optimizer" not in fixes(memory(tensors=0)), "how large tensors are is not known"
    assert not [name for name in fixes(memory(adam=False)) if name.startswith("paged")]
    eight = fixes(memory(state_bytes=2.05 * PARAMETERS))
    assert "paged_optimizer" not in eight and "paged_eight_bit_optimizer" in eight


def test_moving_a_gigabyte_takes_what_bitsandbytes_documents():
    """1 GB over half of 16 lanes of PCIe 3.0: 125 ms."""
    v100, gh200 = find("V100 PCIe 32GB"), find("GH200 96GB")
    assert v100 is not None and gh200 is not None
    found = moved_ns(v100, 1e9)
    assert found is not None and found[1] == pytest.approx(127e6, rel=0.01) and found[0] < found[1] < found[2]
    assert moved_ns(v100, 1e9, room_bytes=1e9) == (0, 0, 0), "all fits"
    half = moved_ns(v100, 1e9, room_bytes=0.5e9)
    assert half is not None and half == (pytest.approx(found[0] / 2), found[1], found[2])
    faster = moved_ns(gh200, 1e9)
    assert faster is not None and faster[2] < found[0]
