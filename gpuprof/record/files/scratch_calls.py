"""Redirects Python's calls that write, delete, rename or look at files to the copies in a trial's scratch folder.
One function per call: it takes the `Scratch` and returns the replacement of the call. Where a call names a folder by
its descriptor, the path is put together from both.
"""

from __future__ import annotations

import builtins
import io
import os
import posix
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .file_events import WRITES, full_path, text_of
from .scratch import Scratch, exists

_WRITE_MODES = frozenset("wax+")
_TEMPORARY = getattr(os, "O_TMPFILE", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
"""Flags that open a file without a name in a folder."""


def cover(scratch: Scratch) -> None:
    """From now on this process and its forks write only into the scratch folder."""
    builtins.open = io.open = _opened(scratch)  # type: ignore[assignment]
    shutil.rmtree = _tree_removed(scratch)  # type: ignore[assignment]
    makers: dict[str, Callable[[Scratch, str], Any]] = {
        "open": _opened_by_flags, "mkdir": _made, "listdir": _listed, "scandir": _scanned,
        "remove": _removed, "unlink": _removed, "rmdir": _removed, "rename": _renamed, "replace": _renamed,
        "stat": _looked, "lstat": _looked, "access": _looked, "readlink": _looked,
        "chmod": _changed, "utime": _changed, "truncate": _changed, "symlink": _linked, "link": _linked,
        "fchmod": _changed, "lchmod": _changed, "chown": _changed, "fchown": _changed, "lchown": _changed,
        "setxattr": _changed, "removexattr": _changed, "mkfifo": _made_special, "mknod": _made_special,
    }  # fmt: skip
    for name in scratch.real:
        covered = makers[name](scratch, name)
        for module in (os, posix):
            setattr(module, name, covered)
    # `os` asks these sets whether a function takes a folder or follows links.
    for group in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        group |= {getattr(os, name) for name in scratch.real if scratch.real[name] in group}
    sys.addaudithook(scratch.audit())


# -- opening


def _opened(scratch: Scratch) -> Callable[..., Any]:
    real = builtins.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = not _WRITE_MODES.isdisjoint(mode)
        file = scratch.to_write(file, keep="a" in mode or "r" in mode) if writes else scratch.to_read(file)
        return real(file, mode, *args, **kwargs)

    return opened


def _opened_by_flags(scratch: Scratch, name: str) -> Callable[..., int]:
    real = scratch.real[name]

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
        path = _from(path, dir_fd)
        if not flags & (WRITES & ~os.O_APPEND):
            # A real folder is opened as such: paths relative to its descriptor are redirected later.
            return real(path if scratch.is_real_folder(path) else scratch.to_read(path), flags, mode)
        if flags & os.O_EXCL and flags & os.O_CREAT and scratch.is_there(path):
            raise FileExistsError(17, "File exists", path)
        text = text_of(path)
        if flags & _TEMPORARY == _TEMPORARY and text is not None and not scratch.is_allowed(text):
            return real(os.path.dirname(scratch.place_for("writes", os.path.join(text, "temporary"))), flags, mode)
        was_there = not flags & os.O_CREAT and scratch.is_there(path)
        target = scratch.to_write(path, keep=not flags & os.O_TRUNC)
        if was_there and not exists(scratch.real["lstat"], target):
            os.close(real(target, os.O_WRONLY | os.O_CREAT, 0o600))  # truncating needs an existing file
        return real(target, flags, mode)

    return opened


# -- making, deleting, renaming


def _made(scratch: Scratch, name: str) -> Callable[..., None]:
    real = scratch.real[name]

    def made(path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
        path = _from(path, dir_fd)
        text = text_of(path)
        if text is None or scratch.is_allowed(text):
            return real(path, mode)
        if scratch.is_there(text):
            raise FileExistsError(17, "File exists", text)
        return real(scratch.place_for("makes", text), mode)

    return made


def _removed(scratch: Scratch, name: str) -> Callable[..., None]:
    real = scratch.real[name]

    def removed(path: Any, *, dir_fd: Any = None) -> None:
        path = _from(path, dir_fd)
        text = text_of(path)
        if text is None or scratch.is_allowed(text):
            return real(path)
        if not scratch.is_there(text):
            raise FileNotFoundError(2, "No such file or directory", text)
        scratch.forget(text, real)
        return None

    return removed


def _tree_removed(scratch: Scratch) -> Callable[..., Any]:
    real = shutil.rmtree

    def removed(path: Any, *args: Any, **kwargs: Any) -> Any:
        text = text_of(path)
        if text is None or scratch.is_allowed(text):
            return real(path, *args, **kwargs)
        if not scratch.is_there(text):
            if args[:1] == (True,) or kwargs.get("ignore_errors"):
                return None
            raise FileNotFoundError(2, "No such file or directory", text)
        scratch.forget(text, real)
        return None

    return removed


def _renamed(scratch: Scratch, name: str) -> Callable[..., None]:
    real = scratch.real[name]

    def renamed(src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
        src, dst = _from(src, src_dir_fd), _from(dst, dst_dir_fd)
        source, target = text_of(src), text_of(dst)
        if source is None or target is None:
            return real(src, dst)
        if scratch.is_allowed(source) and scratch.is_allowed(target):
            return real(src, dst)
        found = scratch.to_read(source)
        scratch.real["stat"](found)  # raises what the program expects where there is none
        copy = target if scratch.is_allowed(target) else scratch.place_for("renames", target)
        if found == source and not scratch.is_allowed(source):
            _copy(found, copy)
            scratch.forget(source, None)
        else:
            scratch.real["replace"](found, copy)
            if not scratch.is_allowed(source):
                scratch.forget(source, None)  # a real file may exist behind the copy
        return None

    return renamed


def _linked(scratch: Scratch, name: str) -> Callable[..., Any]:
    real = scratch.real[name]

    def symbolic(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: Any = None) -> None:
        dst = _from(dst, dir_fd)
        if scratch.is_there(dst):
            raise FileExistsError(17, "File exists", src, None, dst)
        real(src, scratch.to_write(dst, keep=False))

    def hard(
        src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None, follow_symlinks: bool = True
    ) -> None:
        src, dst = _from(src, src_dir_fd), _from(dst, dst_dir_fd)
        if scratch.is_there(dst):
            raise FileExistsError(17, "File exists", src, None, dst)
        found = scratch.to_read(src)
        place, text = scratch.to_write(dst, keep=False), text_of(found)
        if text is None or (scratch.is_allowed(text) and not os.path.islink(text)):
            real(found, place)
        else:  # a hard link to a real file would be a way to write to it
            shutil.copyfile(found, place)

    return hard if name == "link" else symbolic


def _made_special(scratch: Scratch, name: str) -> Callable[..., None]:
    real = scratch.real[name]

    def made(path: Any, *args: Any, dir_fd: Any = None, **kwargs: Any) -> None:
        path = _from(path, dir_fd)
        if scratch.is_there(path):
            raise FileExistsError(17, "File exists", path)
        real(scratch.to_write(path, keep=False), *args, **kwargs)

    return made


def _changed(scratch: Scratch, name: str) -> Callable[..., Any]:
    real = scratch.real[name]

    def changed(path: Any, *args: Any, dir_fd: Any = None, **kwargs: Any) -> Any:
        if isinstance(path, int):
            text = full_path(path)
            return real(path, *args, **kwargs) if text is None or scratch.is_allowed(text) else None
        path = _from(path, dir_fd)
        text = text_of(path)
        if text is None or scratch.is_allowed(text):
            return real(path, *args, **kwargs)
        copy = scratch.to_write(path, keep=True) if name == "truncate" else scratch.copy_of(text)
        # Permissions and times of a real file stay what they are.
        return real(copy, *args, **kwargs) if exists(scratch.real["lstat"], copy) else None

    return changed


# -- looking


def _looked(scratch: Scratch, name: str) -> Callable[..., Any]:
    real = scratch.real[name]

    def looked(path: Any, *args: Any, dir_fd: Any = None, **kwargs: Any) -> Any:
        if scratch.resolves or isinstance(path, int):
            return real(path, *args, **kwargs) if dir_fd is None else real(path, *args, dir_fd=dir_fd, **kwargs)
        return real(scratch.to_read(_from(path, dir_fd)), *args, **kwargs)

    return looked


def _listed(scratch: Scratch, name: str) -> Callable[..., list[Any]]:
    real = scratch.real[name]

    def listed(path: Any = ".") -> list[Any]:
        text = text_of(path)
        if text is None or scratch.is_allowed(text):
            names = real(path)
        else:
            names = [entry.name for entry in scratch.entries(text)]
        return [entry if isinstance(path, bytes) else text_of(entry) for entry in names]

    return listed


def _scanned(scratch: Scratch, name: str) -> Callable[..., Any]:
    real = scratch.real[name]

    def scanned(path: Any = ".") -> Any:
        text = text_of(path)
        if text is None or scratch.is_allowed(text):
            return real(path)
        return _Scan(list(scratch.entries(text)))

    return scanned


class _Scan:
    """Like the result of `os.scandir`, over a list."""

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


# -- shared


def _from(path: Any, folder: Any) -> Any:
    """The path, joined to the folder whose descriptor is given, if any."""
    return path if folder is None or isinstance(path, int) else full_path(path, folder)


def _copy(source: str, target: str) -> None:
    """Copies a file or a folder, for a rename that must keep the original."""
    if os.path.isdir(source):
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
