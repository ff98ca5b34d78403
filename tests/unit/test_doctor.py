"""`gpuprof doctor`: every check fails when it should; facts are read as the kernel and the driver write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuprof.devices.gpu_driver import InstalledGpu
from gpuprof.doctor import facts as facts_of
from gpuprof.doctor import probe
from gpuprof.doctor.examine import CHECKS, can_record, examine
from gpuprof.doctor.machine_facts import Check, MachineFacts, Mount, Torch

GPU = InstalledGpu(
    0, "NVIDIA H200", "00000000:00:06.0", "580.159.04", 700.0, 700.0, 1980.0, 1980.0, ("gpu_idle",), False, 0.0
)
SOUND = MachineFacts(
    platform="linux", kernel="Linux version 6.8.0-1044", python="/venv/bin/python",
    torch=Torch("2.11.0+cu130", "13.0", None, ("NVIDIA H200",), 2), gpus=(GPU,), gpu_files=True, driver_cuda="13.0",
    admin_only=False, nsys="2025.3.1: /usr/bin/nsys", out="gpuprof-runs", out_free_bytes=500 << 30,
    shared_memory_bytes=64 << 30, machine_cpus=32, affinity=frozenset(range(32)),
    node_cpus={0: frozenset(range(16)), 1: frozenset(range(16, 32))}, load=0.4, governors=("performance (acpi)",),
    data=(Mount("/data", "ext4", "/dev/sda1"),),
)  # fmt: skip
"""A machine without problems."""


def on_gpu(**changes: object) -> dict[str, object]:
    return {"gpus": (replace(GPU, **changes),)}


def on_torch(**changes: object) -> dict[str, object]:
    return {"torch": replace(SOUND.torch, **changes)}


FAILING = [
    ("platform", "blocker", {"platform": "darwin"}, "Linux only"),
    ("torch", "blocker", {"torch": Torch(None, error="ModuleNotFoundError: No module named 'torch'")}, "cannot import"),
    ("torch", "warning", on_torch(version="1.13.1+cu117"), "older than 2.4"),
    ("torch", "warning", on_torch(version="2.3.1+cu121"), "older than 2.4"),
    ("gpu", "warning", {"torch": Torch("2.13.0+cpu"), "gpus": (), "gpu_files": False}, "no GPU here"),
    ("gpu", "blocker", {"torch": Torch("2.13.0+cpu")}, "built for CPUs only"),
    ("gpu", "blocker", {**on_torch(devices=()), "variables": {"CUDA_VISIBLE_DEVICES": ""}}, "hides all GPUs"),
    ("gpu", "blocker", on_torch(devices=(), error="The NVIDIA driver on your system is too old"), "too old"),
    ("driver", "blocker", {"driver_cuda": "12.4"}, "supports CUDA 12.4"),
    ("tracing", "blocker", on_torch(gpu_events=0), "recorded no GPU work"),
    ("tracing", "blocker", on_torch(gpu_events=0, error="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"), "may not trace"),
    ("counters", "note", {"admin_only": True}, "administrators only"),
    ("nsys", "note", {"nsys": None, "nsys_error": "it is not installed"}, "it is not installed"),
    ("wsl", "warning", {"kernel": "Linux version 5.15.90.1-microsoft-standard-WSL2"}, "WSL"),
    ("container", "warning", {"container": "Docker", "variables": {"NVIDIA_DRIVER_CAPABILITIES": "compute"}},
     "lacks the driver's utility"),
    ("variables", "warning", {"variables": {"CUDA_LAUNCH_BLOCKING": "1"}}, "waits for every kernel"),
    ("variables", "warning", {"variables": {"CUDA_INJECTION64_PATH": "/x.so"}}, "another profiler"),
    ("variables", "warning", {"variables": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}, "slow collectives"),
    ("sharing", "warning", on_gpu(processes=("python3 (514)",)), "python3 (514)"),
    ("sharing", "warning", on_gpu(utilization=100.0), "100 % busy"),
    ("mig", "warning", on_gpu(is_partitioned=True), "partitioned"),
    ("power", "warning", on_gpu(power_limit_w=450.0), "450 W of 700 W"),
    ("clocks", "warning", on_gpu(clock_reasons=("sw_power_cap", "hw_thermal")), "down: hardware thermal slowdown"),
    ("clocks", "note", on_gpu(sm_limit_mhz=1200.0), "1200 MHz"),
    ("cpus", "warning", {"affinity": frozenset({0, 1})}, "2 CPUs for 1 GPU"),
    ("cpus", "warning", {"cpu_quota": 1.5}, "quota"),
    ("load", "warning", {"load": 20.0}, "20.0 processes"),
    ("affinity", "warning", {**on_gpu(numa_node=1), "affinity": frozenset(range(16))}, "NUMA node 1"),
    ("governor", "warning", {"governors": ("powersave (acpi-cpufreq)",)}, "lowest clock"),
    ("place", "blocker", {"out_error": "Permission denied"}, "Permission denied"),
    ("disk", "blocker", {"out_free_bytes": 1 << 30}, "1.1 GB are free"),
    ("disk", "warning", {"out_free_bytes": 5 << 30}, "5.4 GB are free"),
    ("shared_memory", "warning", {"shared_memory_bytes": 64 << 20}, "67 MB"),
    ("data", "warning", {"data": (Mount("/data", "nfs4", "server:/data"),)}, "/data (nfs4)"),
]  # fmt: skip


def checked(facts: MachineFacts, name: str) -> Check:
    return next(check for check in examine(facts) if check.id == name)


def test_a_machine_without_a_gpu_has_enough_cpus_for_none():
    """It is no blocker, as a training's steps on the CPU can be timed."""
    alone = replace(SOUND, torch=Torch("2.13.0+cpu"), gpus=(), gpu_files=False, affinity=frozenset({0, 1}))
    assert "blocker" not in {check.status for check in examine(alone)}
    assert checked(alone, "cpus") == Check("cpus", "ok", "2 CPUs")


def test_a_sound_machine_passes_every_check():
    found = examine(SOUND)
    assert [(check.id, check.status) for check in found if check.status != "ok"] == []
    assert can_record(found) and all(check.remedy is None for check in found)


@pytest.mark.parametrize(("name", "status", "changes", "text"), FAILING)
def test_each_check_fails_with_its_remedy(name: str, status: str, changes: dict, text: str):
    facts = replace(SOUND, **changes)
    check = checked(facts, name)
    assert check.status == status
    assert text in check.message
    assert check.remedy
    assert can_record(examine(facts)) is (status != "blocker")


def test_every_check_has_a_test_that_makes_it_fail():
    assert {name for name, *_ in FAILING} == {check(SOUND).id for check in CHECKS}


def test_what_cannot_be_read_is_unknown_and_no_complaint():
    facts = replace(
        SOUND, gpus=(), driver_cuda=None, admin_only=None, out_free_bytes=None, shared_memory_bytes=None, load=None,
        governors=(), data=(),
    )  # fmt: skip
    unknown = {check.id for check in examine(facts) if check.status == "unknown"}
    assert unknown == {"driver", "counters", "disk", "shared_memory", "load", "governor", "data", "sharing", "power",
                       "clocks"}  # fmt: skip
    assert can_record(examine(facts))


@pytest.mark.parametrize(
    "changes",
    [
        {"admin_only": True, "is_root": True},
        {"driver_cuda": "13.2"},
        {"governors": ("powersave (intel_pstate)",)},
        {"container": "Docker", "variables": {"NVIDIA_DRIVER_CAPABILITIES": "all"}},
        {"affinity": frozenset(range(16, 32)), "gpus": (replace(GPU, numa_node=1),)},
        {"data": (Mount("/data", "overlay", "overlay"),)},
    ],
)
def test_what_looks_alike_but_is_fine_passes(changes: dict):
    assert all(check.status == "ok" for check in examine(replace(SOUND, **changes)))


# -- how the facts are read


def test_the_deepest_mount_is_the_one_that_counts(tmp_path: Path):
    folder = tmp_path / "with space" / "set"
    folder.mkdir(parents=True)
    parent = str(tmp_path / "with space").replace(" ", "\\040")
    text = (
        "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
        f"40 22 0:40 / {parent} rw,relatime shared:7 - nfs4 server:/export rw,vers=4.2\n"
        f"41 22 0:41 / {tmp_path}/other rw - tmpfs tmpfs rw\n"
        "broken line\n"
    )
    mounts = facts_of.read_mounts(text)
    assert facts_of.mount_of(folder, mounts) == Mount(str(folder), "nfs4", "server:/export")
    assert facts_of.mount_of(tmp_path, mounts) == Mount(str(tmp_path), "ext4", "/dev/sda1")
    over = facts_of.read_mounts(text + f"50 22 0:50 / {parent} rw - ext4 /dev/sdb rw\n")
    assert facts_of.mount_of(folder, over) == Mount(str(folder), "ext4", "/dev/sdb")


def test_cpus_nodes_and_governors(tmp_path: Path):
    assert facts_of.cpu_list("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert facts_of.cpu_list("") == frozenset()
    (tmp_path / "node0").mkdir()
    (tmp_path / "node0" / "cpulist").write_text("0-1\n")
    (tmp_path / "has_cpu").touch()
    assert facts_of.node_cpus(tmp_path) == {0: {0, 1}}
    assert facts_of.node_cpus(tmp_path / "none") == {}
    for cpu in ("cpu0", "cpu1"):
        (tmp_path / cpu / "cpufreq").mkdir(parents=True)
        (tmp_path / cpu / "cpufreq" / "scaling_governor").write_text("powersave\n")
        (tmp_path / cpu / "cpufreq" / "scaling_driver").write_text("acpi-cpufreq\n")
    assert facts_of.governors(tmp_path) == ("powersave (acpi-cpufreq)",)


@pytest.mark.parametrize(
    ("files", "variables", "kind"),
    [
        ([".dockerenv"], {}, "Docker"),
        (["run/.containerenv"], {}, "Podman"),
        ([".dockerenv"], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "Kubernetes"),
        ([], {"APPTAINER_CONTAINER": "/x.sif"}, "Apptainer"),
        ([], {}, None),
    ],
)
def test_kinds_of_containers(tmp_path: Path, files: list[str], variables: dict[str, str], kind: str | None):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert facts_of.container(tmp_path, variables) == kind


def test_a_place_that_cannot_be_written(tmp_path: Path):
    assert facts_of.why_not_writable(tmp_path / "new" / "deeper") == ""
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert facts_of.why_not_writable(tmp_path / "file") == "it is a file"
    assert facts_of.why_not_writable(Path("/proc/gpuprof-runs")) != ""


def test_answers_of_the_probe():
    assert probe.read("noise\n", "Traceback\nSegmentation fault\n", -11) == Torch(None, error="Segmentation fault")
    assert probe.read("", "", -9).error == "its Python ended with code -9"
    answer = '{"version": "2.5.1", "cuda": "12.4", "hip": null, "devices": ["T4"], "gpu_events": 0, "error": ""}'
    said = "W0101 CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)\n"
    found = probe.read(f"hello\n{answer}\n", said, 0)
    assert found.gpu_events == 0 and "INSUFFICIENT_PRIVILEGES" in found.error
    fine = probe.read(answer.replace('"gpu_events": 0', '"gpu_events": 2'), said, 0)
    assert fine.error == "", "what CUPTI printed is of no interest where it has recorded"
    assert probe.probe("/no/such/python").error == "No such file or directory"
