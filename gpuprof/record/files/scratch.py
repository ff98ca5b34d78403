"""Keeps a trial from changing anything: what the program writes goes to a scratch folder, or is refused.

Python's own calls that write, delete and rename are redirected to a copy of the tree in the scratch folder, which later
reads see; the real tree stays as it is (`scratch_calls`). Writes by any other Python call are refused by an audit hook
(PEP 578). Native code that writes files passes both; the launcher checks the tree for that.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .file_events import database_path, full_path, handlers, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes, Code, Published


BLOCKED = "blocked.log"
"""File in the trial's folder with one line for each refusal."""
FILES = "files"
"""The copy of the tree, in the scratch folder."""
COVERED = (
    "open", "mkdir", "remove", "unlink", "rmdir", "rename", "replace", "stat", "lstat", "access", "readlink",
    "chmod", "utime", "truncate", "symlink", "link", "listdir", "scandir",
    "fchmod", "lchmod", "chown", "fchown", "lchown", "setxattr", "removexattr", "mkfifo", "mknod",
)  # fmt: skip
"""Functions of `os` that are redirected in a trial, if this Python has them."""
CHANGES = os.O_WRONLY | os.O_RDWR
_SQLITE_ATTACH: Published[Code] = 24
LARGEST_COPIED_BYTES: Assumed[Bytes] = 1 << 28
"""Largest file, in bytes, that is copied so that it can be appended to."""


class Blocked(PermissionError):
    """Something that a trial may not do."""


class Scratch:
    """Where this process's writes go.

    folder: the scratch folder. allowed: folders that may be written, such as caches and temporary folders. network:
    whether connections beyond this machine are allowed. log: a file that says what was refused. seen: called with
    (verb, real path) for what the program would have changed. apart: None unless the process has a private view of the
    file system; then everything may be written except in these folders, which are read-only there.
    """

    def __init__(
        self,
        folder: str,
        allowed: tuple[str, ...],
        network: bool,
        log: str,
        seen: Callable[[str, str], None] | None = None,
        apart: tuple[str, ...] | None = None,
    ) -> None:
        self._files = os.path.join(folder, FILES)
        self._is_private, self._apart = apart is not None, apart or ()
        self._allowed = tuple(os.path.realpath(one) for one in (folder, *allowed, "/dev", "/proc"))
        self._network, self._log, self._seen = network, log, seen
        self._gone: set[str] = set()
        """Real paths that the program believes it has deleted."""
        self.real: dict[str, Any] = {name: getattr(os, name) for name in COVERED if hasattr(os, name)}
        """The original functions of `os`."""
        self._own_addresses: set[str] | None = None
        self._folders: dict[str, str] = {}
        """Folder → the same without links."""
        self._here = threading.local()

    # -- where a path leads

    def is_allowed(self, path: str) -> bool:
        """Whether this file may really be written."""
        real = self._resolved(path)
        if any(real == root or real.startswith(root + os.sep) for root in self._allowed):
            return True
        return self._is_private and not any(real == one or real.startswith(one + os.sep) for one in self._apart)

    def copy_of(self, path: str) -> str:
        """The path in the scratch folder that replaces a real one."""
        # The folder is resolved, the name is not: deleting a link must not delete what it leads to.
        folder, name = os.path.split(os.path.abspath(path))
        known = self._folders.get(folder)
        if known is None:
            known = self._folders[folder] = self._resolved(folder)
        return self._files + os.path.join(known, name)

    def _resolved(self, path: str) -> str:
        """The path without links, resolved in the real file system."""
        self._here.resolves = True
        try:
            return os.path.realpath(path)
        finally:
            self._here.resolves = False

    @property
    def resolves(self) -> bool:
        """Whether this thread is resolving links, so that calls must not be redirected."""
        return getattr(self._here, "resolves", False)

    def is_gone(self, path: str) -> bool:
        """Whether the program has deleted it."""
        if not self._gone:
            return False
        path = os.path.abspath(path)
        return any(path == gone or path.startswith(gone + os.sep) for gone in self._gone)

    def is_there(self, path: Any) -> bool:
        """Whether the program believes that there is such a file or folder."""
        try:
            self.real["lstat"](self.to_read(path))
        except OSError:
            return False
        return True

    def is_real_folder(self, path: Any) -> bool:
        """Whether it is a real folder that the program has not deleted."""
        text = text_of(path)
        try:
            return text is not None and not self.is_gone(text) and stat.S_ISDIR(self.real["stat"](text).st_mode)
        except (OSError, ValueError):
            return False

    def to_read(self, path: Any) -> Any:
        """The path to read: the copy, if the program has made one."""
        text = text_of(path)
        if text is None:
            return path
        copy = self.copy_of(text)
        if exists(self.real["lstat"], copy):
            return copy
        if self.is_gone(text):
            raise FileNotFoundError(2, "No such file or directory", text)
        return path

    def to_write(self, path: Any, keep: bool) -> Any:
        """The path to write. keep: the file's contents are kept (append, update)."""
        text = text_of(path)
        if text is None or self.is_allowed(text):
            return path
        copy = self.copy_of(text)
        if exists(self.real["lstat"], copy):
            return copy
        self.place_for("writes", text)
        if keep and not self.is_gone(text) and exists(self.real["stat"], text):
            if self.real["stat"](text).st_size > LARGEST_COPIED_BYTES:
                self.refuse(f"changes {text}, which is large")
            shutil.copyfile(text, copy)
        return copy

    def place_for(self, verb: str, text: str) -> str:
        """The copy's path for something about to be created; creates its folder if the program sees one."""
        self._tell(verb, text)
        copy, parent = self.copy_of(text), os.path.dirname(os.path.abspath(text))
        if not self.is_gone(parent) and exists(self.real["stat"], parent):
            _make_folders(self.real["mkdir"], os.path.dirname(copy))
        return copy

    def forget(self, text: str, remove: Callable[[str], Any] | None) -> None:
        """The program deletes a path: `remove` deletes its copy, and the real one is treated as gone."""
        self._tell("deletes" if remove is not None else "renames", text)
        copy = self.copy_of(text)
        if remove is not None and exists(self.real["lstat"], copy):
            remove(copy)
        self._gone.add(os.path.abspath(text))

    def entries(self, text: str) -> Iterator[Any]:
        """What the program believes to be in a folder: its own files first."""
        copy, seen, found = self.copy_of(text), set(), False
        for folder in (copy, text):
            if folder == text and self.is_gone(text):
                continue
            try:
                entries = list(self.real["scandir"](folder))
            except FileNotFoundError:
                continue
            found = True
            for entry in entries:
                if entry.name not in seen and not (folder == text and self.is_gone(os.path.join(text, entry.name))):
                    seen.add(entry.name)
                    yield entry
        if not found:
            raise FileNotFoundError(2, "No such file or directory", text)

    # -- what is refused

    def refuse(self, what: str) -> None:
        """Notes it and raises Blocked."""
        self.note(what)
        raise Blocked(13, f"gpuprof try does not let the program do this: it {what}")

    def note(self, what: str) -> None:
        """A line in the log of what was refused."""
        try:
            descriptor = self.real["open"](self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, (" ".join(what.split())[:1000] + "\n").encode("utf-8", "backslashreplace"))
            finally:
                os.close(descriptor)
        except OSError:
            pass

    def _tell(self, verb: str, text: str) -> None:
        if self._seen is not None:
            self._seen(verb, os.path.abspath(text))

    # -- calls that are not redirected

    def audit(self) -> Callable[[str, tuple[Any, ...]], None]:
        """The audit hook. It is called for every event of the interpreter, so most calls end after one look-up."""

        def changes(verb: str, path: str) -> None:
            if not self.is_allowed(path):
                self.refuse(f"{verb} {path}")

        def links(arguments: tuple[Any, ...]) -> None:
            # A hard link to a real file would be a way to write to it.
            for path, folder in zip(arguments[:2], arguments[2:4], strict=True):
                full = full_path(path, folder)
                if full is not None:
                    changes("links", full)

        def connects(arguments: tuple[Any, ...]) -> None:
            address = arguments[1]
            if self._network or not isinstance(address, tuple) or self._is_here(str(address[0])):
                return
            self.note(f"connects to {address[0]}:{address[1]}")
            raise ConnectionRefusedError(111, f"gpuprof try blocks connections beyond this machine: {address[0]}")

        def binds(arguments: tuple[Any, ...]) -> None:
            path = text_of(arguments[1]) if isinstance(arguments[1], (str, bytes)) else None
            if path and not path.startswith("\0"):  # a socket with a name in the file system
                changes("makes", os.path.abspath(path))

        def looks_up(arguments: tuple[Any, ...]) -> None:
            host = text_of(arguments[0])
            if self._network or not self._is_private or host is None or self._is_here(host):
                return
            self.note(f"connects to {host}:{arguments[1]}")
            raise socket.gaierror(-3, f"gpuprof try blocks connections beyond this machine: {host}")

        def watches_database(arguments: tuple[Any, ...]) -> None:
            arguments[0].set_authorizer(self._allows_in_database)

        found = {**handlers(changes), "os.link": links}
        if self._is_private and not self._apart:
            found = {"open": self._opens_large}
        else:
            found |= {"sqlite3.connect/handle": watches_database, "socket.bind": binds}
        find = {
            **found, "socket.connect": connects, "socket.sendto": connects, "socket.sendmsg": connects,
            "socket.getaddrinfo": looks_up,
        }.get  # fmt: skip

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            handler = find(event)
            if handler is not None:
                handler(arguments)

        return hook

    def _allows_in_database(self, action: int, name: Any, *_: Any) -> int:
        """Whether a statement may run: not if it would write another database (ATTACH, VACUUM INTO)."""
        path = database_path(name) if action == _SQLITE_ATTACH else None
        if path is None or self.is_allowed(path):
            return 0
        self.note(f"attaches {os.path.abspath(path)}")
        return 1

    def _opens_large(self, arguments: tuple[Any, ...]) -> None:
        """In a private view of the file system, refuses to change a large file, which would be copied whole."""
        path, _, flags = arguments[:3]
        if not isinstance(flags, int) or not flags & CHANGES or flags & os.O_TRUNC or isinstance(path, int):
            return
        full = full_path(path)
        try:
            size = 0 if full is None or self._is_real(full) else os.stat(full).st_size
        except OSError:
            return
        if size > LARGEST_COPIED_BYTES:
            self.refuse(f"changes {full}, which is large")

    def _is_real(self, path: str) -> bool:
        """Whether the path is in a folder whose files are not copied."""
        real = self._resolved(path)
        return any(real.startswith(root + os.sep) for root in self._allowed)

    def _is_here(self, host: str) -> bool:
        """Whether this address belongs to this machine."""
        if host.startswith("127.") or host in ("::1", "localhost", "0.0.0.0", "::", ""):
            return True
        if self._own_addresses is None:
            self._own_addresses = {socket.gethostname()}
            try:
                found = socket.getaddrinfo(socket.gethostname(), None)
                self._own_addresses |= {str(one[4][0]) for one in found}
            except OSError:
                pass
        return host in self._own_addresses


def exists(stat: Any, path: str) -> bool:
    """Whether `stat` finds the path."""
    try:
        stat(path)
    except (OSError, ValueError):
        return False
    return True


def _make_folders(mkdir: Any, path: str) -> None:
    if os.path.isdir(path):
        return
    _make_folders(mkdir, os.path.dirname(path))
    try:
        mkdir(path)
    except FileExistsError:
        pass
