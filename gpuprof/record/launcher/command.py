"""From the words after the options to the command that is started."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Characters, Convention


class CannotStart(ValueError):
    """The command cannot be started; one line says why and what to do."""


class Target(NamedTuple):
    """The command to start."""

    argv: tuple[str, ...]
    """The words passed to exec(2); the first may need a search on PATH."""
    stem: str
    """First part of the run's name."""
    python: str | None
    """The interpreter, where it is known."""
    recordable: bool
    """False if this interpreter will not load the recorder."""
    notes: tuple[str, ...]
    """Printed before the start."""


_INTERPRETER = r"(python|pypy)[\d.]*t?d?"
_ARCHIVES = (".pyz", ".zip")
_LONGEST_STEM: Convention[Characters] = 60
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")
"""Modules that start the program named after them."""


def resolve(
    words: Sequence[str],
    module: str | None,
    executable: str,
    has_torch: Callable[[], bool],
    path: str | None = None,
) -> Target:
    """The command of `words`, or of a module and its arguments.

    executable: the interpreter that gpuprof runs under. has_torch: whether that one has torch, asked only where it
    matters. path: where commands are looked for (PATH).
    """
    path = os.environ.get("PATH", os.defpath) if path is None else path
    if module is not None:
        if not module:
            raise CannotStart("-m needs the name of a module")
        python, notes = _interpreter(executable, has_torch, path)
        return Target(
            (python, "-m", module, *words), _stem(_named_in((python, "-m", module, *words))), python, True, notes
        )
    if not words or not words[0]:
        raise CannotStart("nothing to run: gpuprof trace train.py, or -m module, torchrun …, python …")
    program = words[0]
    if _is_script(program):
        python, notes = _interpreter(executable, has_torch, path)
        return Target((python, *words), _stem(_base(program)), python, True, notes)
    found = _executable(program, path)
    if not re.fullmatch(_INTERPRETER, os.path.basename(program)):
        return Target(tuple(words), _stem(_named_in(words)), None, True, ())
    deaf = _deaf_flags(words[1:])
    notes = ()
    if deaf:
        flags = " ".join(f"-{flag}" for flag in deaf)
        notes = (f"{os.path.basename(program)} {flags} keeps the recorder from loading: this run is not recorded",)
    return Target(tuple(words), _stem(_named_in(words)), found, not deaf, notes)


def which(program: str, path: str) -> str | None:
    """The path of a command found on PATH."""
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder or os.curdir, program)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def _is_script(program: str) -> bool:
    """Whether Python runs this by its path; raises if it would not find it."""
    if program.endswith((".py", *_ARCHIVES)):
        if os.path.isdir(program) and not os.path.isfile(os.path.join(program, "__main__.py")):
            raise CannotStart(f"{program} is a folder without a __main__.py")
        if not os.path.exists(program):
            raise CannotStart(f"{program}: no such file")
        return True
    if os.path.isdir(program) and (os.sep in program or os.path.isfile(os.path.join(program, "__main__.py"))):
        if not os.path.isfile(os.path.join(program, "__main__.py")):
            raise CannotStart(f"{program} is a folder without a __main__.py")
        return True
    return False


def _executable(program: str, path: str) -> str:
    """The file that will run; raises if there is none."""
    if os.sep not in program:
        found = which(program, path)
        if found is None:
            if not os.path.isfile(program):
                raise CannotStart(f"{program}: no such command")
            if os.access(program, os.X_OK):
                raise CannotStart(f"{program}: no such command; to run the file here: ./{program}")
            raise CannotStart(f"{program} is a file that may not be executed: name the command of a training")
        return found
    if not os.path.exists(program):
        raise CannotStart(f"{program}: no such file")
    if not os.access(program, os.X_OK):
        raise CannotStart(f"{program} may not be executed: chmod +x it, or name what runs it (bash {program})")
    return program


def _interpreter(executable: str, has_torch: Callable[[], bool], path: str) -> tuple[str, tuple[str, ...]]:
    """Our own interpreter if it has torch, else the `python` on PATH; and notes to print."""
    if executable and has_torch():
        return executable, ()
    found = which("python", path) or which("python3", path)
    if found is None:
        if executable:
            return executable, ()
        raise CannotStart("there is no python on PATH")
    if executable and os.path.dirname(os.path.abspath(found)) == os.path.dirname(os.path.abspath(executable)):
        return executable, ()
    return found, (f"running it under {found}, as gpuprof's own Python has no torch",)


def _deaf_flags(arguments: Sequence[str]) -> list[str]:
    """Which of -I, -E and -S an interpreter is given: with any of them it does not load gpuprof's sitecustomize."""
    deaf: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--check-hash-based-pycs":
            next(rest, None)
            continue
        if word.startswith("--") and word != "--":
            continue
        if not word.startswith("-") or word in ("-", "--"):
            break
        for i, flag in enumerate(word[1:], 1):
            if flag in "cm":
                return deaf
            if flag in "WX":  # the rest of the word, or the next one, is its value
                if i == len(word) - 1:
                    next(rest, None)
                break
            if flag in "IES" and flag not in deaf:
                deaf.append(flag)
    return deaf


def _named_in(words: Sequence[str]) -> str:
    """Name of what a launcher is asked to run, else of the launcher itself."""
    launcher = _base(words[0])
    for i, word in enumerate(words[1:], 1):
        if word.endswith(".py") and not word.startswith("-"):
            return _base(word)
        if word in ("-m", "--module") and i + 1 < len(words) and not words[i + 1].startswith("-"):
            launcher = words[i + 1].rpartition(".")[2]
            if words[i + 1] not in _LAUNCHERS:
                return launcher
        if word == "-c":
            break
    return launcher


def _base(path: str) -> str:
    name = os.path.basename(os.path.abspath(path))
    for ending in (".py", *_ARCHIVES):
        name = name.removesuffix(ending)
    return name


def _stem(name: str) -> str:
    """The name with only characters that any file system accepts."""
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip("._-")[:_LONGEST_STEM] or "run"
