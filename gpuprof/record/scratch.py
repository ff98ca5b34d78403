"""Keeps a trial from changing anything: what the program writes goes to a scratch folder, or is refused.

Python's own calls that write, delete and rename are led to a copy of the tree in the scratch folder, which later reads
see; the real tree stays as it is. What comes past them, by a path that is not covered, meets an audit hook
(PEP 578), which refuses it. Native code that writes files meets neither; the launcher looks at the tree for that.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

BLOCKED = "blocked.log"
"""What was refused, a line each, in the trial's folder."""
FILES = "files"
"""The copy of the tree, in the scratch folder."""
COPIED = 1 << 28
"""Bytes of a file that is copied so that it can be appended to; a larger one is not worth the time."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_WRITE_MODES = frozenset("wax+")


class Blocked(PermissionError):
    """Something that a trial may not do."""


class Scratch:
    """Where this process's writes go.

    folder: the scratch folder. allowed: folders whose files are caches, or no one's, and may be written. network:
    whether connections beyond this machine are allowed. log: a file that says what was refused.
    """

    def __init__(self, folder: str, allowed: tuple[str, ...], network: bool, log: str) -> None:
        self._files = os.path.join(folder, FILES)
        self._allowed = tuple(os.path.realpath(one) for one in (folder, *allowed, "/dev", "/proc"))
        self._network, self._log = network, log
        self._gone: set[str] = set()
        """Real paths that the program believes it has deleted."""
        self._real: dict[str, Any] = {name: getattr(os, name) for name in _COVERED}
        self._open = builtins.open
        self._rmtree = shutil.rmtree
        self._own_addresses: set[str] | None = None
        self._folders: dict[str, str] = {}
        """Folder → the same without links."""
        self._here = threading.local()

    # -- where a path leads

    def is_allowed(self, path: str) -> bool:
        """Whether this file may really be written."""
        real = self._resolved(path)
        return any(real == root or real.startswith(root + os.sep) for root in self._allowed)

    def copy_of(self, path: str) -> str:
        """The path in the scratch folder that stands for a real one."""
        # The folder is resolved, the name is not: deleting a link must not delete what it leads to.
        folder, name = os.path.split(os.path.abspath(path))
        known = self._folders.get(folder)
        if known is None:
            known = self._folders[folder] = self._resolved(folder)
        return self._files + os.path.join(known, name)

    def _resolved(self, path: str) -> str:
        """The path without links; what that looks at is looked at as it is."""
        self._here.resolves = True
        try:
            return os.path.realpath(path)
        finally:
            self._here.resolves = False

    def is_gone(self, path: str) -> bool:
        """Whether the program has deleted it."""
        if not self._gone:
            return False
        path = os.path.abspath(path)
        return any(path == gone or path.startswith(gone + os.sep) for gone in self._gone)

    def to_read(self, path: Any) -> Any:
        """The path that a reader is led to: the copy, where the program has made one."""
        text = _text(path)
        if text is None:
            return path
        copy = self.copy_of(text)
        if _exists(self._real["lstat"], copy):
            return copy
        if self.is_gone(text):
            raise FileNotFoundError(2, "No such file or directory", text)
        return path

    def to_write(self, path: Any, keep: bool) -> Any:
        """The path that a writer is led to. keep: it goes on with what the file holds."""
        text = _text(path)
        if text is None or self.is_allowed(text):
            return path
        copy = self.copy_of(text)
        if _exists(self._real["lstat"], copy):
            return copy
        self._make_parents(text, copy)
        if keep and not self.is_gone(text) and _exists(self._real["stat"], text):
            if self._real["stat"](text).st_size > COPIED:
                self.refuse(f"changes {text}, which is large")
            shutil.copyfile(text, copy)
        return copy

    def _make_parents(self, text: str, copy: str) -> None:
        """The copy's folder, if the real one is there or the program has made it."""
        parent = os.path.dirname(os.path.abspath(text))
        real = not self.is_gone(parent) and _exists(self._real["stat"], parent)
        if real:
            _make_folders(self._real["mkdir"], os.path.dirname(copy))

    # -- what is refused

    def refuse(self, what: str) -> None:
        """Notes it and raises Blocked."""
        self.note(what)
        raise Blocked(13, f"gpuprof try does not let the program do this: it {what}")

    def note(self, what: str) -> None:
        try:
            descriptor = self._real["open"](self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, (" ".join(what.split())[:1000] + "\n").encode("utf-8", "backslashreplace"))
            finally:
                os.close(descriptor)
        except OSError:
            pass

    # -- the calls that are led elsewhere

    def cover(self) -> None:
        """From now on, in this process and its forks."""
        real = self._real

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            writes = not _WRITE_MODES.isdisjoint(mode)
            file = self.to_write(file, keep="a" in mode or "r" in mode) if writes else self.to_read(file)
            return self._open(file, mode, *args, **kwargs)

        def opened_by_flags(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
            if dir_fd is not None:
                return real["open"](path, flags, mode, dir_fd=dir_fd)
            if flags & _WRITES:
                if flags & os.O_EXCL and self._is_there(path):
                    raise FileExistsError(17, "File exists", path)
                return real["open"](self.to_write(path, keep=not flags & os.O_TRUNC), flags, mode)
            return real["open"](self.to_read(path), flags, mode)

        def made(path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
            text = _text(path)
            if dir_fd is not None or text is None or self.is_allowed(text):
                return real["mkdir"](path, mode, **_where(dir_fd))
            if self._is_there(text):
                raise FileExistsError(17, "File exists", text)
            copy = self.copy_of(text)
            self._make_parents(text, copy)
            return real["mkdir"](copy, mode)

        def removed(name: str) -> Callable[..., None]:
            def remove(path: Any, *, dir_fd: Any = None) -> None:
                text = _text(path)
                if dir_fd is not None or text is None or self.is_allowed(text):
                    return real[name](path, **_where(dir_fd))
                copy = self.copy_of(text)
                if not self._is_there(text):
                    raise FileNotFoundError(2, "No such file or directory", text)
                if _exists(real["lstat"], copy):
                    real[name](copy)
                self._gone.add(os.path.abspath(text))
                return None

            return remove

        def renamed(name: str) -> Callable[..., None]:
            def rename(src: Any, dst: Any, **folders: Any) -> None:
                source, target = _text(src), _text(dst)
                if any(one is not None for one in folders.values()) or source is None or target is None:
                    return real[name](src, dst, **folders)
                if self.is_allowed(source) and self.is_allowed(target):
                    return real[name](src, dst)
                found = self.to_read(source)
                real["stat"](found)  # raises what the program expects where there is none
                copy = target if self.is_allowed(target) else self.copy_of(target)
                if copy != target:
                    self._make_parents(target, copy)
                if found == source and not self.is_allowed(source):
                    _copy(found, copy)
                    self._gone.add(os.path.abspath(source))
                else:
                    real["replace"](found, copy)
                return None

            return rename

        def looked(name: str) -> Callable[..., Any]:
            def look(path: Any, *args: Any, **kwargs: Any) -> Any:
                if kwargs.get("dir_fd") is None and not getattr(self._here, "resolves", False):
                    path = self.to_read(path)
                return real[name](path, *args, **kwargs)

            return look

        def changed(name: str) -> Callable[..., Any]:
            def change(path: Any, *args: Any, **kwargs: Any) -> Any:
                text = _text(path)
                if text is None or kwargs.get("dir_fd") is not None or self.is_allowed(text):
                    return real[name](path, *args, **kwargs)
                copy = self.copy_of(text)
                if name == "truncate":
                    copy = self.to_write(path, keep=True)
                # Permissions and times of a real file stay what they are.
                return real[name](copy, *args, **kwargs) if _exists(real["lstat"], copy) else None

            return change

        def linked(name: str) -> Callable[..., Any]:
            def link(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
                return real[name](src, self.to_write(dst, keep=False), *args, **kwargs)

            return link

        def listed(path: Any = ".") -> list[Any]:
            return [entry if isinstance(path, bytes) else _text(entry) for entry in self._names(path)]

        def scanned(path: Any = ".") -> Any:
            text = _text(path)
            if text is None or self.is_allowed(text):
                return real["scandir"](path)
            return _Scan(list(self._entries(text)))

        def tree_removed(path: Any, *args: Any, **kwargs: Any) -> Any:
            text = _text(path)
            if text is None or self.is_allowed(text):
                return self._rmtree(path, *args, **kwargs)
            if not self._is_there(text):
                if args[:1] == (True,) or kwargs.get("ignore_errors"):
                    return None
                raise FileNotFoundError(2, "No such file or directory", text)
            copy = self.copy_of(text)
            if _exists(real["lstat"], copy):
                self._rmtree(copy)
            self._gone.add(os.path.abspath(text))
            return None

        builtins.open = io.open = opened  # type: ignore[assignment]
        os.open, os.mkdir, shutil.rmtree = opened_by_flags, made, tree_removed  # type: ignore[assignment]
        os.listdir, os.scandir = listed, scanned  # type: ignore[assignment]
        for name in ("remove", "unlink", "rmdir"):
            setattr(os, name, removed(name))
        for name in ("rename", "replace"):
            setattr(os, name, renamed(name))
        for name in ("stat", "lstat", "access", "readlink"):
            setattr(os, name, looked(name))
        for name in ("chmod", "utime", "truncate"):
            setattr(os, name, changed(name))
        for name in ("symlink", "link"):
            setattr(os, name, linked(name))
        # `os` asks these sets whether a function takes a folder or follows links.
        for group in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            group |= {getattr(os, name) for name in _COVERED if real[name] in group}
        sys.addaudithook(self._audit())

    def _is_there(self, path: Any) -> bool:
        try:
            self._real["lstat"](self.to_read(path))
        except OSError:
            return False
        return True

    def _names(self, path: Any) -> list[Any]:
        text = _text(path)
        if text is None or self.is_allowed(text):
            return self._real["listdir"](path)
        return [entry.name for entry in self._entries(text)]

    def _entries(self, text: str) -> Iterator[Any]:
        """What the program believes to be in a folder: its own files first."""
        copy, seen, found = self.copy_of(text), set(), False
        for folder in (copy, text):
            if folder == text and self.is_gone(text):
                continue
            try:
                entries = list(self._real["scandir"](folder))
            except FileNotFoundError:
                continue
            found = True
            for entry in entries:
                if entry.name not in seen and not (folder == text and self.is_gone(os.path.join(text, entry.name))):
                    seen.add(entry.name)
                    yield entry
        if not found:
            raise FileNotFoundError(2, "No such file or directory", text)

    # -- what comes past them

    def _audit(self) -> Callable[[str, tuple[Any, ...]], None]:
        """The audit hook. It is called for every event of the interpreter, so most end at one look-up."""

        def opens(arguments: tuple[Any, ...]) -> None:
            path, _, flags = arguments[:3]
            if isinstance(flags, int) and flags & _WRITES and not isinstance(path, int):
                writes("writes", (path,))

        def writes(verb: str, paths: tuple[Any, ...], folder: Any = -1) -> None:
            for path in paths:
                text = _text(path)
                if text is None:
                    continue
                if isinstance(folder, int) and folder >= 0 and not os.path.isabs(text):
                    text = os.path.join(os.path.realpath(f"/proc/self/fd/{folder}"), text)
                if not self.is_allowed(text):
                    self.refuse(f"{verb} {os.path.abspath(text)}")

        def connects(arguments: tuple[Any, ...]) -> None:
            address = arguments[1]
            if self._network or not isinstance(address, tuple) or self._is_here(str(address[0])):
                return
            self.note(f"connects to {address[0]}:{address[1]}")
            raise ConnectionRefusedError(111, f"gpuprof try blocks connections beyond this machine: {address[0]}")

        def database(arguments: tuple[Any, ...]) -> None:
            path = _text(arguments[0])
            if path and path != ":memory:" and not path.startswith("file:") and not self.is_allowed(path):
                self.refuse(f"opens the database {os.path.abspath(path)}")

        handlers: dict[str, Callable[[tuple[Any, ...]], None]] = {
            "open": opens,
            "os.mkdir": lambda a: writes("makes", a[:1], a[-1]),
            "os.rmdir": lambda a: writes("deletes", a[:1], a[-1]),
            "os.remove": lambda a: writes("deletes", a[:1], a[-1]),
            "os.rename": lambda a: writes("renames", a[:2], a[-1]),
            "os.link": lambda a: writes("links", a[1:2], a[-1]),
            "os.symlink": lambda a: writes("links", a[1:2], a[-1]),
            "os.truncate": lambda a: writes("changes", a[:1]),
            "os.chmod": lambda a: writes("changes", a[:1]),
            "os.chown": lambda a: writes("changes", a[:1]),
            "socket.connect": connects,
            "sqlite3.connect": database,
        }
        find = handlers.get

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            handler = find(event)
            if handler is not None:
                handler(arguments)

        return hook

    def _is_here(self, host: str) -> bool:
        """Whether this address is of this machine."""
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


_COVERED = (
    "open", "mkdir", "remove", "unlink", "rmdir", "rename", "replace", "stat", "lstat", "access", "readlink",
    "chmod", "utime", "truncate", "symlink", "link", "listdir", "scandir",
)  # fmt: skip


class _Scan:
    """What `os.scandir` returns, over a list."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _text(path: Any) -> str | None:
    """The path as text; None for a descriptor."""
    if isinstance(path, int) or path is None:
        return None if path is not None else "."
    try:
        return os.fsdecode(path)
    except TypeError:
        return None


def _where(dir_fd: Any) -> dict[str, Any]:
    return {} if dir_fd is None else {"dir_fd": dir_fd}


def _exists(stat: Any, path: str) -> bool:
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


def _copy(source: str, target: str) -> None:
    """A file or a folder, for a rename that must leave the original."""
    if os.path.isdir(source):
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
