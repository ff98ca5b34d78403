"""The local channel between an armed training and `gpuprof attach`: a Unix socket in a private folder of the user's.

One request and one answer a connection, each a line of JSON of bounded length. The socket has mode 0600, its folder
0700, and both sides ask the kernel whose process is at the other end. Nothing listens on any other address.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes, Published, Seconds


LARGEST_REQUEST_BYTES: Assumed[Bytes] = 1 << 16
"""A longer request or answer is refused."""
TIMEOUT_S: Assumed[Seconds] = 2.0
"""A request or an answer takes no longer than this."""
LOOK_S: Assumed[Seconds] = 5.0
"""How often a training checks that its socket still exists: the system may empty the folder at a logout."""
NAME = re.compile(r"(\d{1,10})-(\d{1,20})\.sock")
"""Process id and number of its pid namespace."""
_LONGEST_PATH: Published[Bytes] = 100
"""Longest path of a socket; Linux takes 107 bytes."""
_CREDENTIALS = struct.Struct("3i")

Message = dict[str, Any]


class Refused(OSError):
    """The other end is not what it should be, or its message is not understood; one line."""


def folders() -> list[Path]:
    """Where the sockets of this user may be, the preferred folder first. A job and a later login may have different
    environments, so all are searched."""
    uid = os.getuid()
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    bases = [Path(given)] if os.path.isabs(given) else []
    bases.append(Path(f"/run/user/{uid}"))
    return list(dict.fromkeys([*(base / "gpuprof" for base in bases), Path(f"/tmp/gpuprof-{uid}")]))


def why_not_private(folder: Path) -> str | None:
    """Why a folder cannot be trusted with a socket; None if only this user has access."""
    try:
        found = folder.lstat()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is not a folder"
    if found.st_uid != os.getuid():
        return f"{folder} belongs to another user"
    if found.st_mode & 0o077:
        return f"{folder} is open to other users (chmod 700 {folder})"
    return None


def _made_folder() -> Path:
    """The first folder that is private or could be created so. Raises Refused if there is none."""
    why = "no folder for a socket"
    for folder in folders():
        if not folder.parent.is_dir() or len(str(folder)) + 32 > _LONGEST_PATH:
            continue
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700)
        why = why_not_private(folder) or ""
        if not why and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise Refused(why)


def pid_namespace(pid: int | str = "self") -> int | None:
    """The number of a process's pid namespace; None where it may not be read, or there is no /proc."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return None


class Server(threading.Thread):
    """Answers requests, one after the other, until it is closed; sleeps in the kernel between them.

    answer: computes the reply to a request of this user (or root). An exception of it is sent as an error.
    """

    def __init__(self, answer: Callable[[Message], Message]) -> None:
        super().__init__(name="gpuprof-on-demand", daemon=True)
        self._answer = answer
        self._pid = os.getpid()
        self._closed = False
        self._path, self._socket = self._listen()

    def _listen(self) -> tuple[Path, socket.socket]:
        path = _made_folder() / f"{self._pid}-{pid_namespace() or 0}.sock"
        not_yet = path.with_suffix(".new")
        not_yet.unlink(missing_ok=True)  # left by an earlier process with the same pid
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(str(not_yet))
            not_yet.chmod(0o600)
            made.listen(8)
            made.settimeout(LOOK_S)
            not_yet.replace(path)  # only now can others find it: a socket that does not listen yet refuses them
        except BaseException:
            made.close()
            raise
        return path, made

    def run(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                if not self._path.exists():
                    self._listen_again()
                continue
            except OSError:  # it was closed
                return
            with connection, contextlib.suppress(OSError, ValueError):
                self._serve(connection)

    def _listen_again(self) -> None:
        with contextlib.suppress(OSError):
            before, (self._path, self._socket) = self._socket, self._listen()
            before.close()

    def _serve(self, connection: socket.socket) -> None:
        if user_of(connection) not in (os.getuid(), 0):
            return
        try:
            answer = self._answer(receive(connection))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        send(connection, answer)

    def close(self) -> None:
        """Ends it and removes the socket. Never raises."""
        self._closed = True
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """In a forked child: the socket is its parent's."""
        self._closed = True
        with contextlib.suppress(OSError):
            if os.getpid() == self._pid:  # wakes the thread, which sleeps in accept
                self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._socket.close()


def user_of(connection: socket.socket) -> int:
    """The user id of the process at the other end, as the kernel knows it."""
    return _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]


def send(connection: socket.socket, message: Message) -> None:
    """Sends one message. Raises Refused where it is too long, OSError where it cannot be sent."""
    text = json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    if len(text) > LARGEST_REQUEST_BYTES:
        raise Refused(f"a message of {len(text):,} bytes is too long")
    connection.settimeout(TIMEOUT_S)
    connection.sendall(text)


def receive(connection: socket.socket) -> Message:
    """Receives one message. Raises Refused if it is not one, is too long, or does not arrive in time."""
    until = time.monotonic() + TIMEOUT_S
    text = b""
    while not text.endswith(b"\n"):
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise Refused("no answer in time")
        connection.settimeout(left_s)
        try:
            part = connection.recv(LARGEST_REQUEST_BYTES)
        except TimeoutError:
            raise Refused("no answer in time") from None
        text += part
        if not part:
            raise Refused("it ended in the middle of a message")
        if len(text) > LARGEST_REQUEST_BYTES:
            raise Refused("a message is too long")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused("a message that is not JSON") from None
    if not isinstance(message, dict):
        raise Refused("a message that is not a JSON object")
    return message


def ask(path: Path, request: Message) -> Message:
    """The answer of the training at a socket. Raises OSError if none comes; Refused, one line, if it is another
    user's, or not understood."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(path))
        if user_of(connection) != os.getuid() and os.getuid() != 0:
            raise Refused("another user's process answers")
        send(connection, request)
        return receive(connection)
