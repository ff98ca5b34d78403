"""`gpuprof view`: the recording in Perfetto's viewer, which runs in the browser and reads it from this machine."""

from __future__ import annotations

import re
import signal
import tempfile
from pathlib import Path

import click

from gpuprof.cli.export import SUFFIXES, choose, draw_ranks, parsed, remark, whole_file
from gpuprof.cli.output import say
from gpuprof.cli.recordings import RECORDING, diagnose_given, given
from gpuprof.diagnosis.asked import Asked

PORT = 9001
"""The one port of this machine that Perfetto's viewer may read from."""
VIEWER = "https://ui.perfetto.dev"
_ASKED = "if the browser asks whether the page may reach this device, allow it"
"""Since 2025 Chrome asks before a page may read from a server on its user's own machine."""
_REPORTS = (".html", ".htm")


@click.command(short_help="Open a recording in the Perfetto viewer.")
@click.argument("path", metavar="[PATH]", required=False, type=RECORDING)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=PORT, metavar="N", show_default=True,
    help="Port to serve the file on; ui.perfetto.dev reads only from the default.",
)  # fmt: skip
@click.option("--no-open", is_flag=True, help="Print the address instead of opening a browser.")
@click.option("--step", metavar="REGEX", help="Name of the range or op that is a step; detected by default.")
@click.option("--skip", type=click.IntRange(min=0), default=0, metavar="N", help="Skip the first N steps.")
@click.option("--ranks", metavar="0,1", help="These ranks of several, or all, on one clock.")
def command(path: str | None, port: int, no_open: bool, step: str | None, skip: int, ranks: str | None) -> int:
    """Open the training recorded in PATH, with its findings, in the Perfetto viewer (ui.perfetto.dev).

    The viewer runs in your browser. It reads one file that gpuprof serves on 127.0.0.1; nothing is uploaded. Without
    PATH: the latest run in gpuprof-runs. A report (.html) is opened directly. Ctrl-C stops the server.
    """
    if path and path.lower().endswith(_REPORTS) and Path(path).is_file():
        show(Path(path).resolve().as_uri(), no_open)
        return 0
    from gpuprof.cli.serve import server
    from gpuprof.interop.perfetto import write_perfetto

    # However it is ended, the temporary file goes; started with & a shell has Ctrl-C ignored, and only this is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    recording = given(path)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", recording.name).strip(".") + SUFFIXES["perfetto"]
    with tempfile.TemporaryDirectory(prefix="gpuprof-view-") as folder:
        file = Path(folder) / "trace"
        with server(file, name, port, VIEWER) as serving:  # before the work: a taken port is said at once
            diagnosis = diagnose_given(recording, Asked(step, skip))
            with whole_file(file) as out:
                if ranks is None:
                    write_perfetto(diagnosis, out)
                else:
                    draw_ranks(choose(diagnosis, parsed(ranks), recording), out, step, skip)
            if ranks is None:
                remark(diagnosis)
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


def show(address: str, no_open: bool) -> None:
    """Opens the address in a browser; says what it is where there is none, or none is wanted."""
    import webbrowser

    try:
        opened = not no_open and webbrowser.open(address)
    except (webbrowser.Error, OSError):
        opened = False
    say(f"opened {address}" if opened else f"open {address}")
