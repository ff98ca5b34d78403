"""Hosts of a cluster as network namespaces of this machine, joined by a bridge. They need no root where the system lets
users make namespaces."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

INTERFACE = "eth0"
SLEEP = ("sleep", "600")


@dataclass(frozen=True, slots=True)
class Host:
    """A host, and its address on the bridge."""

    pid: int
    address: str

    def enter(self, words: Sequence[str]) -> list[str]:
        """A command that runs on it."""
        return [*_enter(self.pid), *words]

    def throttle(self, bytes_per_s: float) -> None:
        """Limits what it sends, in bytes a second."""
        rate = ["rate", f"{bytes_per_s * 8:.0f}bit", "burst", "4kb", "latency", "2s"]
        _run(self.enter(["tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", *rate]))


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Skips the test if namespaces, a bridge or the tools for them are not available."""
    held: list[subprocess.Popen[bytes]] = []
    try:
        try:
            switch = _hold(held, ["unshare", "--user", "--map-root-user", "--net", *SLEEP])
            _run([*_enter(switch), "ip", "link", "add", "br0", "type", "bridge"])
            _run([*_enter(switch), "ip", "link", "set", "br0", "up"])
            made = [_made(held, switch, number) for number in range(count)]
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here ({error})")
        yield made
    finally:
        for one in held:
            one.kill()
            one.wait()


def _made(held: list[subprocess.Popen[bytes]], switch: int, number: int) -> Host:
    host = Host(_hold(held, [*_enter(switch), "unshare", "--net", *SLEEP]), f"10.77.0.{number + 1}")
    link = f"host{number}"
    _run(
        [*_enter(switch), "ip", "link", "add", link, "type", "veth", "peer", "name", INTERFACE, "netns", str(host.pid)]
    )
    _run([*_enter(switch), "ip", "link", "set", link, "master", "br0", "up"])
    _run(host.enter(["ip", "addr", "add", f"{host.address}/24", "dev", INTERFACE]))
    for name in (INTERFACE, "lo"):
        _run(host.enter(["ip", "link", "set", name, "up"]))
    return host


def _enter(pid: int) -> list[str]:
    return ["nsenter", "--target", str(pid), "--user", "--net", "--preserve-credentials"]


def _hold(held: list[subprocess.Popen[bytes]], words: Sequence[str]) -> int:
    """Starts a process that keeps a namespace alive; its id once it is in there."""
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    held.append(process)
    until = time.monotonic() + 10
    while _name_of(process.pid) != SLEEP[0]:
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            raise OSError(process.communicate()[1].decode().strip() or words[0])
        time.sleep(0.01)
    return process.pid


def _name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    return ""


def _run(words: Sequence[str]) -> None:
    subprocess.run(words, check=True, capture_output=True)
