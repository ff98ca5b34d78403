"""All checks, in display order."""

from __future__ import annotations

from collections.abc import Callable

from gpuprof.doctor import hardware, software, storage
from gpuprof.doctor.machine_facts import Check, MachineFacts

CHECKS: tuple[Callable[[MachineFacts], Check], ...] = (
    software.platform, software.torch, software.gpu, software.driver, software.tracing, storage.place, storage.disk,
    software.container, software.wsl, software.variables, hardware.sharing, hardware.mig, hardware.power,
    hardware.clocks, hardware.cpus, hardware.load, hardware.affinity, hardware.governor, storage.shared_memory,
    storage.data, software.counters, software.nsys,
)  # fmt: skip


def examine(facts: MachineFacts) -> tuple[Check, ...]:
    """Runs every check."""
    return tuple(check(facts) for check in CHECKS)


def can_record(checks: tuple[Check, ...]) -> bool:
    """Whether nothing stops a recording."""
    return all(check.status != "blocker" for check in checks)
