"""Output of commands: data goes to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, cast

from gpuprof.errors import GpuprofError
from gpuprof.units import Characters, Code, Convention

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

GATE_FAILED: Convention[Code] = 1
"""Exit code of a command whose gate failed (`--fail-on`), or that did not find what it was to confirm."""
_LONGEST_MESSAGE: Convention[Characters] = 2000

_PLAIN = str.maketrans("█▓▒░∙╱╲▚╳─┄∿▤▥▧▨▩▣▦▪≈◧◫▬·…←×µ–−→✗", "#%=-:/\\o*_.~SELGPNC!^DW&-~<xu-->x")
"""ASCII replacements of the same width for our own characters; fills of bars stay distinguishable."""


def say(message: str) -> None:
    """Prints one line to stderr; control characters in names are escaped."""
    from gpuprof.report.names import escape

    if sys.stderr is None:
        return
    line = escape(" ".join(message.split()))[:_LONGEST_MESSAGE]
    with contextlib.suppress(OSError):  # stderr is closed
        sys.stderr.write(encodable(f"gpuprof: {line}\n", sys.stderr))
        sys.stderr.flush()


def write(text: str) -> None:
    """Writes text to stdout. A closed pipe (`| head`) is not an error."""
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
    """Prints `render(width of the terminal)`, in colour if stdout is a terminal."""
    from rich.console import Console

    if sys.stdout is None:
        return
    write("".join(f"{line}\n" for line in drawn(render, Console())))


def drawn(render: Callable[[int], RenderableType], console: Console) -> list[str]:
    """The lines of `render(width of the console)`, in colour if that is a terminal."""
    from rich.console import Console

    # Drawn into a buffer first: a rich console ends the process if the pipe is closed.
    page = Console(
        file=io.StringIO(), width=console.width, force_terminal=console.is_terminal, no_color=console.no_color,
        color_system=cast("Any", console.color_system), highlight=False, markup=False, emoji=False,
    )  # fmt: skip
    with page.capture() as captured:
        page.print(render(page.width))
    # Rows are filled up to the full width, and a blank tail would wrap in a narrower pager.
    return [line.rstrip() for line in captured.get().splitlines()]


def encodable(text: str, stream: TextIO) -> str:
    """The text limited to characters that the stream's encoding has."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    return text


def discard(stream: TextIO) -> None:
    """Discards what is still buffered, or Python would print an error at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
