"""Findings of other packages: entry points in the group `gpuprof.findings`, each a `Declaration`.

    [project.entry-points."gpuprof.findings"]
    my_finding = "my_package.my_finding:FINDING"

A plug-in that cannot be loaded is left out and reported in one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.findings import BUILT_IN
from gpuprof.record.patches import NAMES
from gpuprof.units import Characters, Convention

GROUP = "gpuprof.findings"
LONGEST_ERROR: Convention[Characters] = 200
"""Characters of an error that are shown."""


@dataclass(frozen=True, slots=True)
class PlugIns:
    """Findings that installed packages add."""

    findings: tuple[Declaration, ...] = ()
    failures: tuple[str, ...] = ()
    """One line for each entry that is left out."""


def declarations() -> tuple[Declaration, ...]:
    """Every kind of finding: gpuprof's own in the order of the documentation, then those of plug-ins."""
    return (*BUILT_IN, *plug_ins().findings)


def patches() -> dict[str, Path]:
    """Name → file of the plug-ins' patches; a patch has the name of its finding."""
    return {one.id: one.patch for one in plug_ins().findings if one.patch is not None}


@cache
def plug_ins() -> PlugIns:
    """The plug-ins of the environment that gpuprof runs in, loaded once."""
    taken = {one.id for one in BUILT_IN} | set(NAMES)
    found: list[Declaration] = []
    failures: list[str] = []
    for name, value in sorted(set(entries(sys.path))):
        try:
            one = _loaded(value)
            if one.id in taken:
                raise ValueError(f"there is a finding {one.id} already")
            if one.patch is not None and not one.patch.is_file():
                raise FileNotFoundError(f"its patch {one.patch} does not exist")
        except Exception as error:
            if os.environ.get("GPUPROF_DEBUG"):
                raise
            said = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_ERROR]
            failures.append(f"The plug-in {name} ({value}) could not be loaded ({said}): its finding is left out.")
        else:
            taken.add(one.id)
            found.append(one)
    return PlugIns(tuple(found), tuple(failures))


def _loaded(value: str) -> Declaration:
    """The declaration that an entry names. Raises whatever its package raises, and TypeError if it is no
    Declaration."""
    from importlib.metadata import EntryPoint

    one = EntryPoint("", value, GROUP).load()
    if not isinstance(one, Declaration):
        raise TypeError(f"{value} is a {type(one).__name__}, not a Declaration")
    return one


def entries(path: list[str]) -> Iterator[tuple[str, str]]:
    """(name, module:object) of the group's entries in the packages on a path.

    importlib.metadata reads the same files but takes ten times as long.
    """
    for folder in dict.fromkeys(path):
        try:
            with os.scandir(folder or ".") as found:
                packages = [one.path for one in found if one.name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        for package in packages:
            try:
                text = Path(package, "entry_points.txt").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            if GROUP in text:
                yield from _of_group(text)


def _of_group(text: str) -> Iterator[tuple[str, str]]:
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            inside = line == f"[{GROUP}]"
        elif inside and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()
