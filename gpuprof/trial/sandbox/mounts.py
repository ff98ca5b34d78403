"""Which file systems are mounted, and how a private view shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass

KERNELS = frozenset({
    "proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "bpf",
    "pstore", "configfs", "fusectl", "efivarfs", "binfmt_misc", "autofs", "nsfs", "rpc_pipefs", "hugetlbfs",
})  # fmt: skip
"""File systems without user files."""
_APART = ("/proc", "/sys", "/dev")
"""Trees that are shown with everything that is mounted in them."""


@dataclass(frozen=True, slots=True)
class VisibleMount:
    """A mount that can be seen."""

    point: str
    kind: str
    """Its file system."""

    @property
    def holds_files(self) -> bool:
        return self.kind not in KERNELS


def visible(mountinfo: str) -> list[VisibleMount]:
    """The mounts of /proc/self/mountinfo that no later one hides, outer ones first, without those of /proc, /sys and
    /dev."""
    found: dict[str, VisibleMount] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) < 5 or not after:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[4])
        found = {one: mount for one, mount in found.items() if not is_below(one, point)}
        found[point] = VisibleMount(point, after.split()[0])
    kept = [one for one in found.values() if not any(is_below(one.point, apart) for apart in _APART)]
    return sorted(kept, key=lambda one: one.point.rstrip("/").count("/"))


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")
