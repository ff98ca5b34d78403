"""A local TCP proxy that passes only a few bytes a second."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

PIECE_BYTES = 4096
BURST_BYTES = 1024
"""Of each piece these pass at once, so that processes can meet through a link that is too slow for a digest."""


@contextlib.contextmanager
def slow_link(port: int, bytes_per_s: float, passed: list[bytearray] | None = None) -> Iterator[int]:
    """The port that stands for `port` of this machine; connections are limited to these bytes a second. passed: gets
    the bytes that went through, one way of one connection in each."""
    listening = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = [listening]

    def accept() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            far = _connect(port)
            opened.extend((near, far))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_pass_on, args=(one, other, bytes_per_s, passed), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        for one in opened:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _connect(port: int, seconds: float = 60.0) -> socket.socket:
    """To the other side, which may begin to listen later."""
    until = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _pass_on(near: socket.socket, far: socket.socket, bytes_per_s: float, passed: list[bytearray] | None) -> None:
    seen = bytearray()
    if passed is not None:
        passed.append(seen)
    with contextlib.suppress(OSError):
        while data := near.recv(PIECE_BYTES):
            if passed is not None:
                seen += data
            time.sleep(max(len(data) - BURST_BYTES, 0) / bytes_per_s)
            far.sendall(data)
    with contextlib.suppress(OSError):
        far.shutdown(socket.SHUT_WR)
