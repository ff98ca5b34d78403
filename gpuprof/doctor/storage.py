"""Checks of disks, shared memory and the storage of the data."""

from __future__ import annotations

from gpuprof.doctor.machine_facts import Check, MachineFacts
from gpuprof.record.windows.window import LEAST_DISK_BYTES
from gpuprof.units import Assumed, Bytes

SCARCE_DISK_BYTES: Assumed[Bytes] = 8 << 30
"""Space that a long recording of a large step may need before it is compressed. A guess."""
LEAST_SHARED_BYTES: Assumed[Bytes] = 1 << 30
"""Docker's default of 64 MB is too small for a few workers' batches."""
NETWORK = (
    "nfs", "cifs", "smb", "lustre", "gpfs", "ceph", "beegfs", "glusterfs", "afs", "9p", "virtiofs", "orangefs", "pvfs",
    "panfs", "weka", "wekafs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "gcsfuse", "fuse.goofys", "fuse.rclone",
    "fuse.juicefs", "fuse.blobfuse", "fuse.mount-s3", "mountpoint-s3",
)  # fmt: skip
"""Prefixes of the names of network file systems."""


def place(facts: MachineFacts) -> Check:
    """The folder for runs is writable."""
    if facts.out_error:
        return Check(
            "place", "blocker", f"no run can be written to {facts.out}: {facts.out_error}",
            "name another folder: gpuprof trace --out DIR",
        )  # fmt: skip
    return Check("place", "ok", f"runs can be written to {facts.out}")


def disk(facts: MachineFacts) -> Check:
    """There is room for a recording."""
    free = facts.out_free_bytes
    if free is None:
        return Check("disk", "unknown", f"the free space of {facts.out} could not be read")
    if free < SCARCE_DISK_BYTES:
        return Check(
            "disk", "blocker" if free < LEAST_DISK_BYTES else "warning",
            f"{free / 1e9:.1f} GB are free on the disk of {facts.out}; a recording takes up to a few GB",
            "make room, or name another folder: gpuprof trace --out DIR",
        )  # fmt: skip
    return Check("disk", "ok", f"{free / 1e9:.0f} GB free for recordings")


def shared_memory(facts: MachineFacts) -> Check:
    """/dev/shm, through which DataLoader workers pass batches, is large enough."""
    size = facts.shared_memory_bytes
    if size is None:
        return Check("shared_memory", "unknown", "the size of /dev/shm could not be read")
    if size < LEAST_SHARED_BYTES:
        return Check(
            "shared_memory", "warning", f"/dev/shm has only {size / 1e6:.0f} MB: DataLoader workers may fail or wait",
            "start the container with --ipc=host or --shm-size=8g",
        )  # fmt: skip
    return Check("shared_memory", "ok", f"/dev/shm has {size / 1e9:.1f} GB")


def data(facts: MachineFacts) -> Check:
    """Data is on local disks: reading over a network delays steps in bursts that a short recording may miss."""
    remote = [mount for mount in facts.data if mount.kind.startswith(NETWORK)]
    if remote:
        named = ", ".join(f"{mount.folder} ({mount.kind})" for mount in remote)
        return Check(
            "data", "warning", f"read over a network: {named}",
            "copy the data set to a local disk, or record long enough to see its slow moments: trace --baseline 100",
        )  # fmt: skip
    if not facts.data:
        return Check("data", "unknown", "the file system of the data could not be read")
    return Check("data", "ok", f"data is on local disks ({', '.join(sorted({m.kind for m in facts.data}))})")
