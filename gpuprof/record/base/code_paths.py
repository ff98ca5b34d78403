"""Names of source files that may leave the machine: relative to the working directory, the script's folder or the
folder of installed packages."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

OWN, LIBRARY, STANDARD, GENERATED, OURS = "own", "library", "standard", "generated", "gpuprof"
"""Whose code a file is: the user's, an installed package's, Python's, generated while the program ran, or gpuprof's."""
_CELL = re.compile(r".*[/\\]ipykernel_\d+[/\\]\d+\.py|<ipython-input-.*>", re.DOTALL)
CELL = "cell.py"
"""The file name for all cells of a notebook, whose own names change every time they are run."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\](.+)", re.DOTALL)
_GENERATED = re.compile(r".*[/\\](torchinductor_[^/\\]*)[/\\](.+)", re.DOTALL)
_COMPILED = re.compile(r"(?:.*[/\\])?c[a-z2-7]{51}\.py", re.DOTALL)
"""A file of torch.compile's cache in any folder: c and the base 32 of a SHA-256 (torch/_inductor/codecache.py)."""


def shortened(file: str, roots: Sequence[str]) -> tuple[str, str]:
    """(whose it is, path that is kept) of a source file.

    roots: the working directory and the program's import path. A file in none of them keeps its last two parts.
    """
    if _inside(file, _PACKAGE):
        return OURS, os.path.relpath(file, os.path.dirname(_PACKAGE))
    for pattern, kind in ((_GENERATED, GENERATED), (_INSTALLED, LIBRARY)):
        found = pattern.fullmatch(file)
        if found:
            return kind, "/".join(found.groups())
    if _CELL.fullmatch(file):
        return OWN, CELL
    if is_compiled(file):
        return GENERATED, "/".join(file.replace("\\", "/").rsplit("/", 2)[-2:])
    if file.startswith("<"):
        return (STANDARD if file.startswith("<frozen") else GENERATED), file
    library = os.path.dirname(os.__file__)
    if _inside(file, library):
        return STANDARD, os.path.relpath(file, library)
    within = [root for root in roots if root and _inside(file, root)]
    if within:
        return OWN, os.path.relpath(file, roots[0] if roots[0] in within else max(within, key=len))
    return OWN, "/".join(file.replace("\\", "/").rsplit("/", 2)[-2:]) if os.path.isabs(file) else file


def is_compiled(file: str) -> bool:
    """Whether torch.compile wrote this file."""
    return _COMPILED.fullmatch(file) is not None


def _inside(file: str, folder: str) -> bool:
    return file.startswith(folder.rstrip("/\\") + os.sep)
