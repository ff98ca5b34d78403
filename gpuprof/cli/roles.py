"""Paths of a command that are the processes of a job in different roles: its trainer, its generator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.cli.recordings import given

if TYPE_CHECKING:
    from gpuprof.diagnosis.roles.model import Roles


def are_roles(paths: tuple[str, ...], asked: bool) -> bool:
    """Whether the command is about roles: it was asked for them, or several paths have some."""
    return asked or (len(paths) > 1 and have_roles(paths))


def have_roles(paths: tuple[str, ...]) -> bool:
    """Whether these are runs whose processes have different roles."""
    from gpuprof.diagnosis.roles.sources import have_roles

    return have_roles(paths)


def roles_given(paths: tuple[str, ...]) -> Roles:
    """The roles of the paths; of none those of the latest run."""
    from gpuprof.diagnosis.roles.sources import diagnose_roles

    return diagnose_roles(paths or given(paths).given)


def files_of(paths: tuple[str, ...]) -> tuple[Path, ...]:
    """The files that no result may replace."""
    places = [Path(path) for path in paths]
    return tuple(file for place in places for file in (place.iterdir() if place.is_dir() else (place,)))
