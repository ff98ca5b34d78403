"""The target when nsys runs between it and us: its stdin, stdout and stderr, its pid, and its exit status.
nsys runs its program in a new session, gives it pipes instead of the terminal, and may end with another code. So a
small program (`nsys_relay.py`) runs between nsys and the target: it gets our three descriptors over a socket, starts
the target with them, and reports its pid and later its exit status. Signals then go to the target itself, and we exit
as it did; the output of nsys goes to the run's log.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

RELAY = Path(__file__).parent / "nsys_relay.py"
_CREDENTIALS = "3i"
"""pid, user and group, as the kernel reports them for the other end."""


class TargetUnderNsys:
    """Our end of the socket. Create it before our own descriptors are closed."""

    def __init__(self) -> None:
        self._ours = [os.dup(descriptor) if _is_open(descriptor) else None for descriptor in (0, 1, 2)]
        # An abstract socket name: it needs no file, whose path could be too long, and disappears with us.
        self._name = f"gpuprof-{os.getpid()}-{secrets.token_hex(8)}"
        self._door: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(f"\0{self._name}")
        self._door.listen(1)
        self._line: socket.socket | None = None
        self._heard = b""
        self.is_answered = False
        """Whether the relay has fetched the descriptors, so that the target has started or is about to."""
        self.pid: int | None = None
        """The target's, once it runs."""
        self.status: int | None = None
        """Its exit code, or its signal as a negative number, once it has ended."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """What the tool is to start in place of the target."""
        return [sys.executable, "-I", "-S", str(RELAY), self._name, *argv]

    def listen(self, patience_s: float) -> None:
        """Reads what has arrived, waiting at most `patience_s`."""
        door = self._line or self._door
        if door is None or not select.select([door], [], [], patience_s)[0]:
            return
        if self._line is None:
            self._answer()
            return
        try:
            heard = self._line.recv(256)
        except ConnectionError:
            heard = b""
        if not heard:
            self.close()
            return
        self._heard += heard
        numbers = [int(line) for line in self._heard.split(b"\n")[:-1]]
        self.pid = numbers[0] if numbers else None
        self.status = numbers[1] if len(numbers) > 1 else None

    def _answer(self) -> None:
        """Accepts a connection: hands out the descriptors if it is from a process of the same user."""
        assert self._door is not None
        line, _ = self._door.accept()
        who = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_CREDENTIALS))
        if struct.unpack(_CREDENTIALS, who)[1] != os.geteuid():
            line.close()
            return
        given = [descriptor for descriptor in self._ours if descriptor is not None]
        which = "".join("-" if descriptor is None else "+" for descriptor in self._ours)
        socket.send_fds(line, [which.encode()], given)
        self._let_go()
        self._door.close()
        self._door, self._line, self.is_answered = None, line, True

    def _let_go(self) -> None:
        """Closes our copies: a reader of the target's output must see when the target has closed it."""
        for descriptor in self._ours:
            if descriptor is not None:
                os.close(descriptor)
        self._ours = []

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can arrive."""
        return self._line is None and self._door is None

    def take_back(self) -> None:
        """Restores our descriptors, if they were not fetched."""
        for number, descriptor in enumerate(self._ours):
            if descriptor is not None:
                os.dup2(descriptor, number)
        self.close()

    def close(self) -> None:
        """Closes the socket; what it received stays."""
        self._let_go()
        for end in (self._line, self._door):
            if end is not None:
                end.close()
        self._line = self._door = None


def _is_open(descriptor: int) -> bool:
    """Whether the target gets this descriptor; a stream that was closed has been replaced by a file of ours."""
    try:
        return os.get_inheritable(descriptor)
    except OSError:
        return False
