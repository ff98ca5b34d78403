"""A rich renderable as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof.units import Cells, Convention

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH: Convention[Cells] = 80
"""Columns where the width is not known."""


def drawn(what: RenderableType, width: int = WIDTH) -> str:
    """The lines without colours, and without blanks at their ends."""
    from rich.console import Console

    console = Console(width=width, color_system=None, force_terminal=False, force_jupyter=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(what, soft_wrap=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
