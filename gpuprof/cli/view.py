"""`gpuprof view`: opens a recording in Perfetto's viewer, which runs in the browser and reads it from this machine."""

from __future__ import annotations

import re
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.export import SUFFIXES, choose, draw_ranks, draw_roles, parsed, remark, whole_file
from gpuprof.cli.shared.option_types import WholeNumber
from gpuprof.cli.shared.output import say
from gpuprof.cli.shared.recordings import RECORDING, diagnose_given, given
from gpuprof.diagnosis.asked import Asked
from gpuprof.units import Code, Published

if TYPE_CHECKING:
    from gpuprof.tracefile.recording import Recording

PORT: Published[Code] = 9001
"""The only local port that Perfetto's viewer may read from."""
VIEWER = "https://ui.perfetto.dev"
_ASKED = "if the browser asks whether the page may reach this device, allow it"
"""Since 2025 Chrome asks before a page may read from a server on its user's own machine."""
_REPORTS = (".html", ".htm")


@click.command(short_help="Open a recording in the Perfetto viewer.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=RECORDING)
@click.option(
    "--port", type=WholeNumber(1, 65535), default=PORT, metavar="N", show_default=True,
    help="Port to serve the file on; ui.perfetto.dev reads only from the default.",
)  # fmt: skip
@click.option("--no-open", is_flag=True, help="Print the address instead of opening a browser.")
@click.option("--step", metavar="REGEX", help="Name of the range or op that is a step; detected by default.")
@click.option("--skip", type=WholeNumber(0), default=0, metavar="N", help="Skip the first N steps.")
@click.option("--ranks", metavar="0,1", help="These ranks of several, or all, on one clock.")
@click.option("--roles", is_flag=True, help="Processes of different roles (trainer, generator) on one timeline.")
def command(
    paths: tuple[str, ...], port: int, no_open: bool, step: str | None, skip: int, ranks: str | None, roles: bool
) -> int:
    """Open the training recorded in PATH, with its findings, in the Perfetto viewer (ui.perfetto.dev).

    The viewer runs in your browser. It reads one file that gpuprof serves on 127.0.0.1; nothing is uploaded. Without
    PATH: the latest run in gpuprof-runs. A report (.html) is opened directly. Ctrl-C stops the server.
    """
    if len(paths) == 1 and paths[0].lower().endswith(_REPORTS) and Path(paths[0]).is_file():
        show(Path(paths[0]).resolve().as_uri(), no_open)
        return 0
    from gpuprof.cli.shared.serve import server

    # The temporary file must be removed on SIGTERM, too: a shell ignores Ctrl-C for a command started with &.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    recording = given(paths)
    roles = roles or recording.kind == "roles"
    if roles and (step or skip or ranks is not None):
        raise click.UsageError("for roles on one timeline there is only --port and --no-open")
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", recording.name).strip(".") + SUFFIXES["perfetto"]
    with tempfile.TemporaryDirectory(prefix="gpuprof-view-") as folder:
        file = Path(folder) / "trace"
        with server(file, name, port, VIEWER) as serving:  # before the work, so that a taken port is reported at once
            if roles:
                draw_roles(recording, file)
            else:
                _draw(recording, Asked(step, skip), ranks, file)
            address = f"http://127.0.0.1:{port}/{name}"
            if port != PORT:
                say(f"ui.perfetto.dev reads from port {PORT} only: with port {port} use your own copy of the viewer")
            try:
                show(f"{VIEWER}/#!/?url={address}", no_open)
                say(f"serving {address} until Ctrl-C; {_ASKED}")
                serving.serve_forever()
            except KeyboardInterrupt:
                say("stopped serving")
    return 0


def _draw(recording: Recording, asked: Asked, ranks: str | None, file: Path) -> None:
    from gpuprof.interop.perfetto import write_perfetto

    diagnosis = diagnose_given(recording, asked)
    with whole_file(file) as out:
        if ranks is None:
            write_perfetto(diagnosis, out)
        else:
            draw_ranks(choose(diagnosis, parsed(ranks), recording), out, asked.step, asked.skip)
    if ranks is None:
        remark(diagnosis)


def show(address: str, no_open: bool) -> None:
    """Opens the address in a browser; prints it if there is none, or with no_open."""
    import webbrowser

    try:
        opened = not no_open and webbrowser.open(address)
    except (webbrowser.Error, OSError):
        opened = False
    say(f"opened {address}" if opened else f"open {address}")
