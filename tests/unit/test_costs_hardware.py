"""The table of GPUs: its figures agree with each other, drivers' names are found, and users may add GPUs."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from gpuprof.calibration import roofs as roofs_calibrated
from gpuprof.costs.ceilings import ceilings, ceilings_of
from gpuprof.costs.hardware import find, load_gpus, name_of
from gpuprof.costs.measured_rates import Measurement, load_measurements, save_measurement
from gpuprof.errors import GpuprofError
from gpuprof.tracefile.trace import GpuInfo

GPUS = load_gpus()
BY_NAME = {gpu.name: gpu for gpu in GPUS}
MEASURED = Measurement("NVIDIA L4", 24 * 10**9, {"bf16": 60e12}, 250e9, 25e9, 5_000.0, 40.0, "2026-01-01", "2.11")


def test_a_dense_rate_is_what_the_chip_does_in_a_clock():
    """It is FLOPs per clock and SM × SMs × boost clock; the note explains where it differs."""
    for gpu in GPUS:
        assert gpu.flops_per_clock and gpu.multiprocessors and gpu.boost_mhz, gpu.name
        derived = gpu.flops_per_clock * gpu.multiprocessors * gpu.boost_mhz * 1e6
        explained = "clock" in gpu.note or "MHz" in gpu.note
        assert derived == pytest.approx(gpu.half_flops, rel=0.1 if explained else 0.015), gpu.name


def test_formats_stand_in_the_proportions_of_their_architecture():
    for gpu in GPUS:
        dense = gpu.dense_flops
        assert gpu.half_flops is not None, gpu.name
        if "tf32" in dense:
            assert dense["tf32"] == pytest.approx(dense["bf16"] / 2, rel=0.02)
        if "fp8" in dense:
            assert dense["fp8"] == pytest.approx(dense["bf16"] * 2, rel=0.02)
        if "fp4" in dense:
            # GeForce halves formats that accumulate in fp32, but not fp4; Blackwell Ultra has more fp4.
            most = 4 if gpu.name.startswith("RTX 50") else 3
            assert 1.99 <= dense["fp4"] / dense["fp8"] <= most * 1.01
        assert ("bf16" in dense) == (gpu.architecture not in ("Volta", "Turing")), gpu.name
        assert dense["fp32"] < gpu.half_flops, gpu.name
        if gpu.measured_flops:
            least = 0.5 if (gpu.tdp_w or 0) > 100 else 0.3  # the smallest boards are limited most
            assert least < gpu.measured_flops / gpu.half_flops < 1.05, gpu.name


def test_every_row_says_where_it_is_from():
    for gpu in GPUS:
        assert gpu.source and gpu.confidence in ("A", "B", "C"), gpu.name
        assert bool(gpu.measured_source) == bool(gpu.measured_flops or gpu.measured_bytes_per_s), gpu.name


def test_a_name_is_that_of_one_gpu():
    names = Counter(name for gpu in GPUS for name in {gpu.name, *gpu.driver_names})
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("NVIDIA H100 NVL", "H100 NVL 94GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100-PG509-200", "A100 SXM4 40GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"),
        ("NVIDIA GeForce RTX 4080 SUPER", "RTX 4080 Super"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell Max-Q"),
        ("NVIDIA B200", "B200 SXM"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA H20", "H20 96GB"),
        ("NVIDIA H20-3e", "H20 141GB"),
        ("NVIDIA H800", "H800 SXM5 80GB"),
        ("NVIDIA H800 PCIe", "H800 PCIe 80GB"),
        ("NVIDIA A800-SXM4-80GB", "A800 SXM4 80GB"),
        ("NVIDIA A800 80GB PCIe", "A800 PCIe 80GB"),
        ("NVIDIA L20", "L20"),
        ("AMD Instinct MI300X", "MI300X"),
        ("h200 sxm", "H200 SXM"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None),
        ("Quadro P400", None),
        ("", None),
    ],
)
def test_what_a_driver_says_is_found(said, name):
    found = find(said)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("name", "memory", "properties", "said"),
    [
        ("", 206141652992, {"computeMajor": 9, "computeMinor": 4, "numSms": 304}, "Instinct MI300X"),
        ("", 191503138816, {"computeMajor": 10, "computeMinor": 0, "numSms": 148}, "B200"),
        ("NVIDIA L4", 206141652992, {"computeMajor": 9, "computeMinor": 4, "numSms": 304}, "NVIDIA L4"),
        # Several GPUs match, none matches, and nothing is stated.
        ("", 85_000_000_000, {"computeMajor": 9, "computeMinor": 0, "numSms": 132}, ""),
        ("", 206141652992, {"computeMajor": 9, "computeMinor": 4, "numSms": 303}, ""),
        ("", 150_000_000_000, {"computeMajor": 9, "computeMinor": 4, "numSms": 304}, ""),
        ("", None, {}, ""),
    ],
)
def test_a_gpu_without_a_name_is_known_by_its_properties(name, memory, properties, said):
    assert name_of(GpuInfo(0, name, memory, properties)) == said


def test_a_user_adds_and_overrides(tmp_path, monkeypatch):
    file = tmp_path / "gpus.csv"
    file.write_text(
        "# ours\nname,driver_names,memory_gb,bandwidth_gbs,bf16_tflops\nX1,X1 Turbo,64,2000,500\nL4,,,290,\n"
    )
    gpus = load_gpus(str(file))
    added = find("NVIDIA X1 Turbo", gpus=gpus)
    assert added is not None
    assert (added.memory_bytes, added.half_flops, added.confidence) == (64 * 10**9, 500e12, "user")
    changed = {gpu.name: gpu for gpu in gpus}["L4"]
    assert changed.memory_bytes_per_s == 290e9
    assert changed.dense_flops == BY_NAME["L4"].dense_flops
    assert len(gpus) == len(GPUS) + 1
    monkeypatch.setenv("GPUPROF_GPUS", str(file))
    assert load_gpus() == gpus


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,speed\nX,1\n", "no column 'speed'"),
        ("memory_gb\n1\n", "no column 'name'"),
        ("name,memory_gb\nX,many\n", "line 2: memory_gb is 'many'"),
        ("name,memory_gb,bandwidth_gbs\nX,1,1\n", "X is new and lacks bf16_tflops"),
        ("name,bf16_tflops\nX,1\n", "X is new and lacks memory_gb, bandwidth_gbs"),
        ("name,memory_gb\nX\n", "line 2: cells and columns differ"),
        ("name,memory_gb\nL4,-3\n", "is '-3'"),
        ("name,memory_gb\nL4,nan\n", "is 'nan'"),
        (" \n", "no column 'name'"),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path, text, says):
    file = tmp_path / "gpus.csv"
    file.write_text(text)
    with pytest.raises(GpuprofError) as error:
        load_gpus(str(file))
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(GpuprofError, match="cannot be read"):
        load_gpus(str(tmp_path / "none.csv"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(GpuprofError, match="not text"):
        load_gpus(str(tmp_path / "binary.csv"))


def test_ceilings_are_measured_where_known():
    h200 = ceilings("NVIDIA H200", measurements={})
    assert h200 is not None
    assert h200.flops["bf16"] == pytest.approx(796e12, rel=0.001)
    assert h200.memory_bytes_per_s == pytest.approx(4.28e12, rel=0.001)
    assert h200.peak_flops["bf16"] == 989.4e12
    # The power limit reduces the other tensor formats as much as bf16.
    assert h200.flops["fp8"] / h200.peak_flops["fp8"] == pytest.approx(796 / 989.4, rel=0.001)
    assert ceilings("Voodoo 3", measurements={}) is None
    for gpu in GPUS:
        limits = ceilings_of(gpu)
        assert all(0 < rate <= limits.peak_flops[dtype] * 1.05 for dtype, rate in limits.flops.items())
        assert 0 < limits.memory_bytes_per_s <= gpu.memory_bytes_per_s


def test_rates_of_gpus_without_measurements():
    """The usual efficiency is the median over those that were; its docstring states the range."""
    reached = [gpu.measured_flops / gpu.half_flops for gpu in GPUS if gpu.measured_flops and gpu.half_flops]
    assert statistics.median(reached) == pytest.approx(roofs_calibrated.TENSOR_EFFICIENCY.value, abs=0.02)
    assert (min(reached), max(reached)) == pytest.approx((0.37, 1.04), abs=0.01)


def test_host_links():
    assert BY_NAME["H200 SXM"].host_link_bytes_per_s == pytest.approx(63e9, rel=0.01)  # PCIe 5.0 x16
    assert BY_NAME["T4"].host_link_bytes_per_s == pytest.approx(15.75e9, rel=0.01)  # 3.0 x16
    assert BY_NAME["GH200 96GB"].host_link_bytes_per_s == 450e9


def test_a_saved_measurement_is_the_ceiling_from_then_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load_measurements() == {}
    path = save_measurement(MEASURED)
    assert path == tmp_path / "gpuprof" / "gpus.json"
    assert load_measurements() == {"NVIDIA L4": MEASURED}
    found = ceilings("NVIDIA L4")
    assert found is not None
    assert (found.flops["bf16"], found.memory_bytes_per_s, found.source) == (60e12, 250e9, "measured")
    other = ceilings("NVIDIA L40")
    assert other is not None
    assert other.source == "stated"


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": {}}', '{"a": 3}'])
def test_a_broken_file_of_measurements_is_one_line(tmp_path, text):
    path = tmp_path / "gpus.json"
    path.write_text(text)
    with pytest.raises(GpuprofError, match="remove it"):
        load_measurements(path)
