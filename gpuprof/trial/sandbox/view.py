"""A private view of the file system: everything can be read and seemingly written, but no real file changes.
Every file system is covered by an overlay whose upper layer is in the trial's scratch folder; where that is not
possible (a file system that the kernel does not accept as a layer, a mounted file) it is read-only. In a user namespace
a tree with mounts inside cannot be a layer: its folder is recreated, and its entries are covered one by one. The
scratch folder itself and the caches are real. Shared memory, processes and, if wanted, the network are private.
"""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import kernel, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Entries


KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 14, 18, 19, 23, 24, 31})
"""Capabilities that a program running as root keeps: files of other users, users and groups, priorities, locked memory,
chroot, debugging. It loses mounts, devices, modules, network settings, and files by handle (capability 2)."""
MOST_ENTRIES: Assumed[Entries] = 400
"""Most entries of a folder that is recreated; a larger one is read-only."""
_READ_ONLY_IN_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")


@dataclass(frozen=True, slots=True)
class Kinds:
    """Which namespaces are created."""

    user: bool
    processes: bool
    network: bool
    """Whether there is a private, unconnected network."""

    @property
    def flags(self) -> int:
        found = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC
        found |= kernel.CLONE_NEWUSER if self.user else 0
        found |= kernel.CLONE_NEWPID if self.processes else 0
        return found | (kernel.CLONE_NEWNET if self.network else 0)


def attempts(is_root: bool, network: bool) -> list[Kinds]:
    """Combinations to try, best first. Only root can create the others without a user namespace."""
    # With root's rights a whole tree is one layer; root's rights beyond files are still dropped.
    users = (False, True) if is_root else (True,)
    return [Kinds(user, processes, network) for processes in (True, False) for user in users]


def enter(kinds: Kinds) -> None:
    """Moves this process to new namespaces, as the same user. It must have one thread."""
    user, group = os.geteuid(), os.getegid()
    addresses = kernel.addresses_of_machine() if kinds.network else []
    maps = {name: Path(f"/proc/self/{name}_map").read_text() for name in ("uid", "gid")} if kinds.user else {}
    wakes, written = _mapper(maps) if kinds.user and user == 0 else (None, None)
    try:
        kernel.unshare(kinds.flags)
    finally:
        if wakes is not None:
            os.close(wakes)
    if kinds.user and not (written is not None and _is_mapped(written)):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    if kinds.network:
        kernel.raise_loopback(addresses)


def _mapper(maps: dict[str, str]) -> tuple[int, int]:
    """Forks a process outside of the new user namespace that maps all users to themselves once the first descriptor is
    closed; the second one then becomes readable."""
    waits, wakes = os.pipe()
    written, writes = os.pipe()
    whom = os.getpid()
    if os.fork():
        os.close(waits)
        os.close(writes)
        return wakes, written
    try:
        os.close(wakes)
        os.read(waits, 1)
        for name, text in maps.items():
            lines = [line.split() for line in text.splitlines()]
            whole = "".join(f"{inside} {inside} {count}\n" for inside, _, count in lines)
            Path(f"/proc/{whom}/{name}_map").write_text(whole)
        os.write(writes, b"1")
    finally:
        os._exit(0)


def _is_mapped(written: int) -> bool:
    try:
        return os.read(written, 1) == b"1"
    finally:
        os.close(written)
        os.wait()


@dataclass(frozen=True, slots=True)
class View:
    """The resulting view."""

    read_only: tuple[str, ...]
    """Folders that could not be covered by an overlay."""


def build(kinds: Kinds, folder: str, real: list[str], mountinfo: str) -> View:
    """Builds the view below `folder`, and makes it this process's root. real: folders that stay writable."""
    root, layers = os.path.join(folder, "root"), os.path.join(folder, "layers")
    for path in (root, layers):
        os.makedirs(path, exist_ok=True)
    if not _takes_layers(kinds, layers):
        kernel.mount("gpuprof", layers, "tmpfs", 0, "mode=700")
    found = mounts.visible(mountinfo)
    cover = _Cover(kinds, layers, tuple(one.point for one in found))
    read_only = []
    for one in found:
        target = root + (one.point if one.point != "/" else "")
        if one.point != "/" and not os.path.lexists(target):
            continue
        if not (one.holds_files and os.path.isdir(one.point) and cover.shows(one.point, target)):
            if one.point == "/":
                raise OSError(22, "the root's file system takes no overlay")
            _show_read_only(one.point, target)
            if one.holds_files and os.path.isdir(target):
                read_only.append(one.point)
    _show_kernels_trees(kinds, root)
    for path in real:
        if os.path.isdir(path) and os.path.isdir(root + path):
            kernel.bind(path, root + path)
    kernel.enter_root(root)
    return View(tuple(read_only))


def _show_read_only(point: str, target: str) -> None:
    kernel.bind(point, target)
    kernel.make_read_only(target)


class _Cover:
    """Covers trees with overlays, so that writes do not reach them."""

    def __init__(self, kinds: Kinds, layers: str, points: tuple[str, ...]) -> None:
        """points: mount points."""
        self._kinds, self._layers, self._points = kinds, layers, points
        self._number = 0

    def shows(self, point: str, target: str) -> bool:
        """Covers a mount; False if that is not possible."""
        whole = not self._kinds.user or not self._has_below(point)
        if whole and self._overlay(point, target):
            return True
        if not self._has_below(point) or len(os.listdir(point)) > MOST_ENTRIES:
            return False
        kernel.mount("gpuprof", target, "tmpfs", 0, "mode=755")
        self._make_again(point, target)
        return True

    def _has_below(self, folder: str) -> bool:
        return any(one != folder and mounts.is_below(one, folder) for one in self._points)

    def _make_again(self, folder: str, target: str) -> None:
        """Recreates a folder with its entries, each covered or read-only; mount points are left empty."""
        _copy_rights(folder, target)
        for entry in os.scandir(folder):
            path, place = os.path.join(folder, entry.name), os.path.join(target, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(path), place)
            elif entry.is_dir():
                os.mkdir(place)
                if path in self._points or path in ("/proc", "/sys", "/dev"):
                    continue
                if self._has_below(path) and len(os.listdir(path)) <= MOST_ENTRIES:
                    self._make_again(path, place)
                elif self._has_below(path) or not self._overlay(path, place):
                    _show_read_only(path, place)
            elif entry.is_file():
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
                if path not in self._points:
                    _show_read_only(path, place)

    def _overlay(self, point: str, target: str) -> bool:
        """Covers a folder with its own overlay; False if the kernel refuses."""
        self._number += 1
        upper, work = (os.path.join(self._layers, f"{name}{self._number}") for name in ("upper", "work"))
        for path in (upper, work):
            os.mkdir(path)
        _copy_rights(point, upper)
        try:
            _mount_overlay(self._kinds, (point, upper, work), target)
        except OSError:
            return False
        return True


def _copy_rights(source: str, target: str) -> None:
    status = os.stat(source)
    try:
        os.chmod(target, stat.S_IMODE(status.st_mode))
        os.chown(target, status.st_uid, status.st_gid)
    except OSError:  # another user's folder, which we cannot write to anyway
        pass


def _mount_overlay(kinds: Kinds, folders: tuple[str, str, str], target: str) -> None:
    """folders: lower, upper and work. Mounts by descriptors, since a path may contain the separators of options."""
    descriptors = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in folders]
    try:
        lower, upper, work = (f"/proc/self/fd/{one}" for one in descriptors)
        data = f"lowerdir={lower},upperdir={upper},workdir={work}" + (",userxattr" if kinds.user else "")
        kernel.mount("overlay", target, "overlay", 0, data)
    finally:
        for one in descriptors:
            os.close(one)


def _takes_layers(kinds: Kinds, layers: str) -> bool:
    """Whether the file system of this folder can hold an overlay's upper layer."""
    probe = tempfile.mkdtemp(dir=layers)
    lower, upper, work, place = (os.path.join(probe, name) for name in ("lower", "upper", "work", "place"))
    for path in (lower, upper, work, place):
        os.mkdir(path)
    try:
        _mount_overlay(kinds, (lower, upper, work), place)
    except OSError:
        return False
    return True


def _show_kernels_trees(kinds: Kinds, root: str) -> None:
    """Mounts /dev without disks and with private shared memory, /sys read-only, /proc of our processes."""
    for name in ("dev", "sys"):
        if os.path.isdir(f"/{name}"):
            kernel.bind(f"/{name}", f"{root}/{name}")
            kernel.make_read_only(f"{root}/{name}")
    if os.path.isdir(f"{root}/dev/shm"):
        kernel.mount("tmpfs", f"{root}/dev/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777")
    for entry in os.scandir("/dev"):
        if not entry.is_symlink() and stat.S_ISBLK(entry.stat().st_mode):
            kernel.mount("/dev/null", f"{root}/dev/{entry.name}", None, kernel.MS_BIND)
    if not kinds.processes:
        kernel.bind("/proc", f"{root}/proc")
    else:
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("proc", f"{root}/proc", "proc", flags)
    for name in _READ_ONLY_IN_PROC if os.geteuid() == 0 else ():
        path = f"{root}/proc/{name}"
        if os.path.lexists(path):
            kernel.bind(path, path)
            kernel.make_read_only(path)
