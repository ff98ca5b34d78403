"""The GPU driver of a machine, queried in every available way: which GPUs, their state, their memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.stand_in_nvml import load_stand_in, without_choices

from gpuprof.devices.amdgpu import find_amdgpu
from gpuprof.devices.find_driver import find_driver
from gpuprof.devices.gpu_driver import GpuDriver, InstalledGpu
from gpuprof.devices.kernel_files import counters_for_root_only, numa_node, nvidia_is_loaded
from gpuprof.devices.nvidia_smi import NvidiaSmi, cuda_version, read_gpus, sum_of_mib, with_processes
from gpuprof.devices.nvml import Nvml

H200 = "0, NVIDIA H200, 00000000:00:06.0, 580.159.04, 700.00, 700.00, 1980, 1980, Disabled, 0, 0x1"
"""An idle H200 as nvidia-smi of driver 580 prints it for FIELDS."""


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    without_choices(monkeypatch)
    return load_stand_in(tmp_path / "pynvml.py")


# ---- NVML: which GPUs CUDA may use, and their state


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (None, [0, 1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", [1]),
        ("1,0", [1, 0]),
        (" 1 , 0 ", [1, 0]),
        ("1,1", [1]),
        ("1,-1,0", [1]),
        ("0,7,1", [0]),
        ("GPU-aaaa2222-0000", [1]),
        ("GPU-aaaa2", [1]),
        ("GPU-aaaa", []),  # either of the two
        ("GPU-ffff,0", []),
        ("GPU-aaaa2222-0000,0", [1, 0]),
    ],
)
def test_visible_devices(wanted, seen, nvml, monkeypatch):
    if wanted is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
    assert [gpu["index"] for gpu in Nvml(nvml).sample()] == seen


@pytest.mark.parametrize(("order", "seen"), [("PCI_BUS_ID", [1]), ("FASTEST_FIRST", [0, 1]), (None, [0, 1])])
def test_where_gpus_differ_their_order_must_be_known(order, seen, nvml, monkeypatch):
    monkeypatch.setenv("NVML_NAMES", "NVIDIA T4,NVIDIA H200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    if order:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    assert [gpu["index"] for gpu in Nvml(nvml).sample()] == seen
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa2222")
    assert [gpu["index"] for gpu in Nvml(nvml).sample()] == [1]


def test_a_mig_instance(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-dddd,MIG-none")
    (gpu,) = Nvml(nvml).sample()
    assert (gpu["index"], gpu["uuid"]) == (1, "MIG-dddd")
    assert (gpu["used_bytes"], gpu["utilization"]) == (1 << 30, None)  # the instance's own
    assert gpu["power_w"] == 651.24  # the whole GPU's


def test_reasons_by_their_older_name(nvml, monkeypatch):
    monkeypatch.setenv("NVML_REFUSES", "nvmlDeviceGetCurrentClocksEventReasons")
    assert Nvml(nvml).sample()[0]["throttle"] == ["sw_power_cap", "board_limit", "0x800"]
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    assert Nvml(nvml).sample()[0]["throttle"] == ["sw_power_cap", "board_limit", "0x800"]


def test_a_gpu_that_is_lost_or_nameless(nvml, monkeypatch):
    monkeypatch.setenv("NVML_REFUSES", "nvmlDeviceGetUUID")
    assert [gpu["uuid"] for gpu in Nvml(nvml).sample()] == ["#0", "#1"]
    monkeypatch.setenv("NVML_REFUSES", "nvmlDeviceGetHandleByIndex")
    assert Nvml(nvml).sample() == []
    monkeypatch.setenv("NVML_REFUSES", "nvmlDeviceGetCount")
    assert Nvml(nvml).sample() == []


# ---- all GPUs of the machine


def test_a_gpu_as_nvidia_smi_writes_it():
    text = H200 + "\n1, NVIDIA L4, 00000000:AF:00.0, 550.54, [N/A], [N/A], 2040, [N/A], [N/A], [N/A], 0x48\n"
    first, second = read_gpus(text + "garbage\n")
    assert first == InstalledGpu(
        0, "NVIDIA H200", "00000000:00:06.0", "580.159.04", 700.0, 700.0, 1980.0, 1980.0, ("gpu_idle",), False, 0.0
    )
    assert second == InstalledGpu(
        1, "NVIDIA L4", "00000000:AF:00.0", "550.54", None, None, 2040.0, None, ("hw_slowdown", "hw_thermal")
    )
    with_process = with_processes((first, second), "00000000:00:06.0, 514, /usr/bin/python3\n")
    assert [gpu.processes for gpu in with_process] == [("python3 (514)",), ()]


def test_nvml_and_nvidia_smi_describe_one_gpu_alike(nvml):
    """An answer of nvidia-smi, and the NVML values that it was printed from."""
    first, second = Nvml(nvml).installed()
    (printed,) = read_gpus(H200.replace("0, 0x1", "97, 0x1a4"))
    (printed,) = with_processes((printed,), "00000000:00:06.0, 514, /usr/bin/python3\n")
    assert first == printed
    assert first.clock_reasons == ("sw_power_cap", "sw_thermal", "hw_power_brake", "display_clock")
    assert replace(second, is_partitioned=False, processes=first.processes) == replace(
        first, index=1, pci="00000000:00:07.0"
    )
    assert second.is_partitioned
    assert Nvml(nvml).newest_cuda() == "13.0" and Nvml(nvml).used_bytes() == 10 << 30


def test_what_nvml_refuses_is_unknown(nvml, monkeypatch):
    refused = [name for name in dir(nvml) if name.startswith("nvml") and "Count" not in name and "Handle" not in name]
    monkeypatch.setenv("NVML_REFUSES", ",".join(refused))
    driver = Nvml(nvml)
    assert driver.installed() == (InstalledGpu(0, "", "", ""), InstalledGpu(1, "", "", ""))
    assert driver.newest_cuda() is None and driver.used_bytes() is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("| NVIDIA-SMI 580.159.04   Driver Version: 580.159.04   CUDA Version: 13.0     |", "13.0"),
        ("| NVIDIA-SMI 590.44   KMD Version: 590.44   CUDA UMD Version: 13.1 |", "13.1"),
        ("", None),
    ],
)
def test_the_cuda_version_of_the_driver(text: str, version: str | None):
    assert cuda_version(text) == version


def test_memory_in_use_is_a_sum_only_where_each_gpu_has_one(tmp_path: Path):
    assert sum_of_mib("4\n512\n") == 516 << 20
    assert sum_of_mib("4\n[N/A]\n") is None and sum_of_mib("") is None
    assert find_amdgpu(tmp_path) is None
    for card, used in (("card0", "1048576\n"), ("card1", "512\n")):
        folder = tmp_path / "sys/class/drm" / card / "device"
        folder.mkdir(parents=True)
        (folder / "mem_info_vram_used").write_text(used)
    (tmp_path / "sys/class/drm/card2/device").mkdir(parents=True)  # another vendor's
    found = find_amdgpu(tmp_path)
    assert found is not None and found.used_bytes() == 1048576 + 512
    (tmp_path / "sys/class/drm/card1/device/mem_info_vram_used").write_text("")
    assert found.used_bytes() is None


def test_nvidia_smi_is_asked_where_pynvml_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not isinstance(find_driver(), NvidiaSmi)
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f"  --query-gpu=memory.used) echo 600; echo 24 ;;\n"
        f'  --query-gpu=*) echo "{H200}" ;;\n'
        '  --query-compute-apps=*) echo "00000000:00:06.0, 514, /usr/bin/python3" ;;\n'
        "  *) exit 9 ;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    driver = find_driver()
    assert isinstance(driver, NvidiaSmi)
    assert [(gpu.name, gpu.processes) for gpu in driver.installed()] == [("NVIDIA H200", ("python3 (514)",))]
    assert driver.used_bytes() == 624 << 20 and driver.newest_cuda() is None and driver.sample() == []


def test_without_a_driver_nothing_is_known():
    driver = GpuDriver()
    assert (driver.installed(), driver.newest_cuda(), driver.used_bytes(), driver.sample()) == ((), None, None, [])


# ---- the kernel's files


def test_what_the_kernel_says(tmp_path: Path):
    assert counters_for_root_only(tmp_path) is None and nvidia_is_loaded(tmp_path) is False
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").touch()
    (folder / "params").write_text("EnableMSI: 1\nRmProfilingAdminOnly: 1\n")
    assert counters_for_root_only(tmp_path) is True and nvidia_is_loaded(tmp_path) is True
    (folder / "params").write_text("RmProfilingAdminOnly: 0\n")
    assert counters_for_root_only(tmp_path) is False
    node = tmp_path / "sys/bus/pci/devices/0000:00:06.0/numa_node"
    node.parent.mkdir(parents=True)
    node.write_text("1\n")
    assert numa_node("00000000:00:06.0", tmp_path) == 1 and numa_node("00000000:00:07.0", tmp_path) is None
    node.write_text("-1\n")
    assert numa_node("00000000:00:06.0", tmp_path) is None
