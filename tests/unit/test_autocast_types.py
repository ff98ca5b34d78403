"""Autocast where only the types of operands are known, as in recordings on GPUs of before TF32."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.make_trace import TraceBuilder
from helpers.program import BF16, FLOAT, GB, MS, Program

import gpuprof
from gpuprof.calibration.kernels import AUTOCAST_FP32_REACHED
from gpuprof.diagnosis.result.diagnosis import Diagnosis

V100 = {"id": 0, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 32 * GB, "numSms": 80, "computeMajor": 7}
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 80 * GB, "numSms": 108, "computeMajor": 8}


def convolving(tmp_path: Path, gpu: dict, types: list[str]) -> Diagnosis:
    """Convolutions whose stride was not recorded, as before torch 2.1, so that their FLOPs are unknown."""
    program = Program()
    program.trace = TraceBuilder(deviceProperties=[gpu])
    shapes = [[64, 256, 56, 56], [256, 256, 3, 3], []]

    def layer() -> None:
        program.op("aten::cudnn_convolution", "volta_scudnn_128x64_relu_interior_nn_v1", 12 * MS, shapes, types)
        program.elementwise()

    def body() -> None:
        for _ in range(6):
            layer()
        program.backward(layer, 6)

    for _ in range(3):
        program.step(body)
    return gpuprof.diagnose(program.trace.write(tmp_path / "trace.json"))


@pytest.mark.parametrize(
    ("gpu", "types", "advised"),
    [
        (V100, [FLOAT, FLOAT, ""], True),
        (V100, [FLOAT, BF16, ""], False),
        (V100, [], False),
        (A100, [FLOAT, FLOAT, ""], False),
    ],
    ids=["fp32 on a V100", "mixed", "types not recorded", "fp32 or TF32 on an A100"],
)
def test_operands_known_by_their_types_are_advised_autocast(tmp_path: Path, gpu: dict, types: list[str], advised: bool):
    found = convolving(tmp_path, gpu, types)
    autocast = next((one for one in found.findings if one.id == "autocast"), None)
    assert (autocast is not None) == advised
    if autocast is not None:
        assert autocast.title == "fp16 autocast" and "GradScaler" in str(autocast.fix)
        # At most the ratio of the two peaks, 125 to 15.7 TFLOP/s, over the share of its peak that fp32 is assumed to
        # reach; at least what an inefficient fp16 leaves of that.
        assert 2 < autocast.speedup.low < autocast.speedup.expected < 125 / 15.7 / AUTOCAST_FP32_REACHED.value
    else:
        assert "operands are not known" in next(one.reason for one in found.considered if one.id == "autocast")
