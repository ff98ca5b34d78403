"""Folders in which libraries keep downloads and compiled code; a trial may write to them, as any run does."""

from __future__ import annotations

import os

_NAMED = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME", "XDG_CACHE_HOME")
"""Environment variables that name a cache."""
_OF_HOME = (".cache", ".triton", ".nv", ".config/matplotlib")


def caches() -> list[str]:
    """The caches that lie outside of the working directory.

    A folder inside the working directory is never one, whatever its name; nor is a whole home directory.
    """
    found = [os.environ[name] for name in _NAMED if os.environ.get(name)]
    found += [os.path.join(os.path.expanduser("~"), name) for name in _OF_HOME]
    here = os.path.realpath(os.getcwd())
    return [path for path in found if not f"{here}{os.sep}".startswith(os.path.realpath(path) + os.sep)
            and not os.path.realpath(path).startswith(here + os.sep)]  # fmt: skip
