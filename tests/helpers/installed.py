"""What the tests need and an installation may lack."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def need(*packages: str) -> None:
    """Skips a test, or a module that calls it at its top, unless all of them are installed. Imports none of them.

    `pytest.importorskip` would import torch and its trainers, which takes seconds, wherever tests are collected.
    """
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
