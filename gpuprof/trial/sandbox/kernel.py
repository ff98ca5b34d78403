"""The Linux system calls that a sandbox needs, through ctypes; each raises OSError that names the call."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Code, Published


CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH: Published[Code] = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
_MOUNT_SETATTR, _CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 442, 444, 445, 446
"""Numbers of system calls, the same on all architectures since Linux 5.1."""
_AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = -100, 0x8000, 1
_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1

# include/uapi/linux/landlock.h: rights by bit, and the first version that knows them.
_WRITE_FILE, _REMOVE_AND_MAKE, _REFER, _TRUNCATE = 1 << 1, sum(1 << bit for bit in range(4, 13)), 1 << 13, 1 << 14
_OF_FILES = _WRITE_FILE | _TRUNCATE
"""Rights that a rule for a file, not a folder, may grant."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def unshare(flags: int) -> None:
    """Moves this process to new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    result = _libc.mount(_bytes(source), _bytes(target), _bytes(kind), ctypes.c_ulong(flags), _bytes(data))
    _check(result, f"mount {kind or 'of'} {target}")


def bind(source: str, target: str) -> None:
    """Bind-mounts a tree, with everything mounted below it, to another place."""
    mount(source, target, None, MS_BIND | MS_REC)


def make_read_only(target: str) -> None:
    """Makes a mount and all below it read-only. Needs Linux 5.12."""
    attributes = struct.pack("QQQQ", _ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, _bytes(target), _AT_RECURSIVE, attributes, ctypes.c_size_t(len(attributes))
    )
    _check(result, f"mount_setattr of {target}")


def enter_root(folder: str) -> None:
    """Makes the mount at `folder` the root, and detaches the old root."""
    os.chdir(folder)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")


def prctl(option: int, value: int = 0) -> None:
    """prctl(2) with one argument."""
    _check(_libc.prctl(option, *(ctypes.c_ulong(one) for one in (value, 0, 0, 0))), f"prctl {option}")


def drop_capabilities(kept: frozenset[int]) -> None:
    """Programs started from now on get only these capabilities, also as root; set-user-ID programs gain none."""
    number = 0
    while number < 64:
        try:
            if number not in kept:
                prctl(PR_CAPBSET_DROP, number)
        except OSError:  # beyond the last capability, or not permitted
            pass
        number += 1
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def landlock_version() -> int:
    """Version of this kernel's Landlock; 0 without it."""
    found = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_RULESET_VERSION))
    return max(0, int(found))


def allow_writes_only_below(paths: list[str]) -> None:
    """From now on this process and all that it starts may write, create, rename and delete files only below these
    paths, in any programming language. Raises OSError without Landlock."""
    version = landlock_version()
    rights = _WRITE_FILE | _REMOVE_AND_MAKE
    if version >= 2:
        rights |= _REFER
    if version >= 3:
        rights |= _TRUNCATE
    attributes = struct.pack("Q", rights)
    ruleset = _check(
        _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)), "Landlock"
    )
    try:
        for path in paths:
            _allow_below(ruleset, path, rights)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        _check(_libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint(0)), "Landlock")
    finally:
        os.close(ruleset)


def _allow_below(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # a cache that does not exist
        return
    try:
        granted = rights if os.path.isdir(path) else rights & _OF_FILES
        rule = struct.pack("=Qi", granted, place)
        _check(_libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, ctypes.c_uint(0)), f"Landlock of {path}")
    finally:
        os.close(place)


def raise_loopback(addresses: list[str]) -> None:
    """In a new network namespace, brings up 127.0.0.1 and these IPv4 addresses, which were the machine's."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING))
        for number, address in enumerate(addresses):
            name = f"lo:{number}".encode()
            for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
                fcntl.ioctl(handle, request, struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(value)))


_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCGIFCONF = 0x8914, 0x8916, 0x891C, 0x8912
_IFF_UP, _IFF_RUNNING = 1, 64


def addresses_of_machine() -> list[str]:
    """IPv4 addresses of this machine's interfaces, without the loopback."""
    import array
    import fcntl
    import socket

    room = array.array("B", bytes(40 * 128))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            request: Any = struct.pack("iL", len(room), room.buffer_info()[0])
            used = struct.unpack("iL", fcntl.ioctl(handle, _SIOCGIFCONF, request))[0]
    except OSError:
        return []
    entries = bytes(room)[:used]
    found = [socket.inet_ntoa(entries[at + 20 : at + 24]) for at in range(0, used, 40)]
    return [one for one in dict.fromkeys(found) if not one.startswith("127.")]


def is_supported() -> bool:
    """Whether this is a Linux with the structure layouts assumed above."""
    return platform.system() == "Linux" and struct.calcsize("P") == 8
