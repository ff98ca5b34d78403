"""Where a command's words go: data to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, cast

from gpuprof.errors import GpuprofError
from gpuprof.units import Characters, Convention

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_LONGEST_MESSAGE: Convention[Characters] = 2000

_PLAIN = str.maketrans("█▓▒░∙╱╲▚╳─┄∿▤▥▧▨▩▣▦▪≈◧▬·…←×µ–−→✗", "#%=-:/\\o*_.~SELGPNC!^D&-~<xu-->x")
"""For each of our own characters one that every encoding has, of the same width; fills of bars stay different."""


def say(message: str) -> None:
    """One line on stderr; names in it are text, whatever they hold."""
    from gpuprof.report.names import escape

    if sys.stderr is None:
        return
    line = escape(" ".join(message.split()))[:_LONGEST_MESSAGE]
    with contextlib.suppress(OSError):  # no one is left to tell
        sys.stderr.write(encodable(f"gpuprof: {line}\n", sys.stderr))
        sys.stderr.flush()


def write(text: str) -> None:
    """Text on stdout. A reader that has gone away (`| head`) is no error."""
    stdout = sys.stdout
    if stdout is None:
        return
    try:
        stdout.write(encodable(text, stdout))
        stdout.flush()
    except BrokenPipeError:
        discard(stdout)
    except OSError as error:
        discard(stdout)
        raise GpuprofError(f"the output cannot be written: {error.strerror}") from error


def show(render: Callable[[int], RenderableType]) -> None:
    """What `render` draws for the width of the terminal, coloured if stdout is one."""
    from rich.console import Console

    if sys.stdout is None:
        return
    write("".join(f"{line}\n" for line in drawn(render, Console())))


def drawn(render: Callable[[int], RenderableType], console: Console) -> list[str]:
    """The lines of what `render` draws for the width of a console, coloured if that one is a terminal."""
    from rich.console import Console

    # On a page of its own: a console ends the process where its reader has gone away.
    page = Console(
        file=io.StringIO(), width=console.width, force_terminal=console.is_terminal, no_color=console.no_color,
        color_system=cast("Any", console.color_system), highlight=False, markup=False, emoji=False,
    )  # fmt: skip
    with page.capture() as captured:
        page.print(render(page.width))
    # Rows are filled up to the full width, and a blank tail would wrap in a narrower pager.
    return [line.rstrip() for line in captured.get().splitlines()]


def encodable(text: str, stream: TextIO) -> str:
    """The text as the stream's encoding can hold it."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    return text


def discard(stream: TextIO) -> None:
    """Sends what is still buffered nowhere, or Python would complain about it at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
