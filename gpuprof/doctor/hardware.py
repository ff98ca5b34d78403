"""Checks of the GPUs and the CPUs."""

from __future__ import annotations

from gpuprof.doctor.machine_facts import Check, MachineFacts
from gpuprof.units import Assumed, Cores, Percent

BUSY_PERCENT: Assumed[Percent] = 5.0
"""Utilization above which a GPU without a known process is still called busy."""
FEWEST_CPUS: Assumed[Cores] = 4
"""CPUs per GPU that a training needs: one for Python, one for autograd, two for DataLoader workers. A guess."""

SLOWDOWNS = {
    "hw_slowdown": "hardware slowdown", "sw_thermal": "software thermal slowdown",
    "hw_thermal": "hardware thermal slowdown", "hw_power_brake": "power brake",
}  # fmt: skip
"""Reasons for low clocks that indicate a problem, as users read them; idle, and a power cap under load, do not."""


def power(facts: MachineFacts) -> Check:
    """The power limit is the default."""
    if not facts.gpus or all(gpu.power_limit_w is None or gpu.default_limit_w is None for gpu in facts.gpus):
        return Check("power", "unknown", "the power limit could not be read (NVML, nvidia-smi)")
    for gpu in facts.gpus:
        limit, usual = gpu.power_limit_w, gpu.default_limit_w
        if limit is not None and usual is not None and limit < usual - 1:
            return Check(
                "power", "warning", f"GPU {gpu.index} is limited to {limit:.0f} W of {usual:.0f} W",
                f"sudo nvidia-smi -i {gpu.index} -pl {usual:.0f}, unless that is intended",
            )  # fmt: skip
    return Check("power", "ok", "power limits are the default ones")


def clocks(facts: MachineFacts) -> Check:
    """No clock is capped below its maximum, and nothing throttles it at the moment."""
    if not facts.gpus:
        return Check("clocks", "unknown", "the clocks could not be read (NVML, nvidia-smi)")
    for gpu in facts.gpus:
        slowdowns = [SLOWDOWNS[reason] for reason in gpu.clock_reasons if reason in SLOWDOWNS]
        if slowdowns:
            return Check(
                "clocks", "warning", f"GPU {gpu.index} is slowed down: {', '.join(slowdowns)}",
                "check its cooling and power supply, or wait until other work on this machine has ended",
            )  # fmt: skip
        if gpu.sm_limit_mhz and gpu.max_sm_mhz and gpu.sm_limit_mhz < gpu.max_sm_mhz - 1:
            return Check(
                "clocks", "note", f"the clock of GPU {gpu.index} is set to {gpu.sm_limit_mhz:.0f} MHz, it can reach"
                f" {gpu.max_sm_mhz:.0f} MHz", f"sudo nvidia-smi -i {gpu.index} -rac, unless that is intended",
            )  # fmt: skip
    return Check("clocks", "ok", "nothing slows the GPUs' clocks down")


def sharing(facts: MachineFacts) -> Check:
    """Nothing else computes on the GPUs."""
    if not facts.gpus:
        return Check("sharing", "unknown", "what else runs on the GPU could not be read (NVML, nvidia-smi)")
    for gpu in facts.gpus:
        if gpu.processes:
            return Check(
                "sharing", "warning", f"GPU {gpu.index} is used by {', '.join(gpu.processes[:3])}",
                "wait until they have ended, or choose another GPU with CUDA_VISIBLE_DEVICES",
            )  # fmt: skip
        if gpu.utilization is not None and gpu.utilization > BUSY_PERCENT:
            return Check(
                "sharing", "warning", f"GPU {gpu.index} is {gpu.utilization:.0f} % busy with work that is not visible"
                " from here", "look on the host itself, outside the container; or choose another GPU",
            )  # fmt: skip
    return Check("sharing", "ok", "nothing else uses the GPUs")


def mig(facts: MachineFacts) -> Check:
    """The GPU is not partitioned: a MIG slice has only a share of the SMs and the bandwidth."""
    sliced = [str(gpu.index) for gpu in facts.gpus if gpu.is_partitioned]
    if sliced:
        return Check(
            "mig", "warning", f"GPU {', '.join(sliced)} is partitioned (MIG): a slice is slower than gpuprof's figures"
            " of the whole GPU", "compare and project only between recordings of the same slice",
        )  # fmt: skip
    return Check("mig", "ok", "no GPU is partitioned (MIG)")


def cpus(facts: MachineFacts) -> Check:
    """There are enough CPUs for each GPU within the affinity and the control group's quota."""
    allowed = float(len(facts.affinity) or facts.machine_cpus)
    what = f"{allowed:.0f} CPUs"
    if facts.cpu_quota is not None and facts.cpu_quota < allowed:
        allowed = facts.cpu_quota
        what = f"{allowed:.3g} CPUs' worth of time (the control group's quota; {len(facts.affinity)} are visible)"
    gpus = len(facts.torch.devices) or len(facts.gpus) or int(facts.gpu_files)
    if allowed < FEWEST_CPUS * gpus:
        return Check(
            "cpus", "warning", f"{what} for {gpus} GPU{'s' if gpus > 1 else ''}: launches and data loading may be"
            " throttled", f"ask for at least {FEWEST_CPUS * gpus} (--cpus, --cpus-per-task, resources.limits.cpu)",
        )  # fmt: skip
    return Check("cpus", "ok", what)


def load(facts: MachineFacts) -> Check:
    """Other processes leave enough CPUs to the training."""
    allowed = len(facts.affinity) or facts.machine_cpus
    if facts.load is None:
        return Check("load", "unknown", "the load of this machine could not be read")
    if facts.load > 0.5 * facts.machine_cpus:
        return Check(
            "load", "warning", f"{facts.load:.1f} processes are running on {facts.machine_cpus} CPUs ({allowed} of them"
            " ours)", "wait until they have ended: launches are late where CPUs are shared",
        )  # fmt: skip
    return Check("load", "ok", f"load {facts.load:.1f} on {facts.machine_cpus} CPUs")


def affinity(facts: MachineFacts) -> Check:
    """Some of our CPUs are on the NUMA node of every GPU that is used."""
    nodes = {gpu.numa_node for gpu in facts.gpus if gpu.numa_node is not None and gpu.numa_node in facts.node_cpus}
    if not nodes or not facts.affinity or len(facts.node_cpus) < 2:
        return Check("affinity", "ok", "one NUMA node" if len(facts.node_cpus) < 2 else "no GPU names its NUMA node")
    far = sorted(node for node in nodes if not facts.node_cpus[node] & facts.affinity)
    if far:
        names = ", ".join(map(str, far))
        return Check(
            "affinity", "warning", f"a GPU is on NUMA node {names}, and none of our CPUs is: launches and copies take"
            " longer", f"numactl --cpunodebind={names} --membind={names}, or the scheduler's option for it",
        )  # fmt: skip
    return Check("affinity", "ok", "our CPUs include the GPUs' NUMA nodes")


def governor(facts: MachineFacts) -> Check:
    """CPUs run at full clock while launching. The powersave governors of intel_pstate and amd-pstate do, too."""
    if not facts.governors:
        return Check("governor", "unknown", "the CPU frequency governor could not be read")
    slow = [g for g in facts.governors if g.startswith("powersave") and "pstate" not in g]
    if slow:
        return Check(
            "governor", "warning", f"CPUs are kept at their lowest clock: {', '.join(slow)}",
            "sudo cpupower frequency-set -g performance",
        )  # fmt: skip
    return Check("governor", "ok", f"CPU frequency governor {', '.join(facts.governors)}")
