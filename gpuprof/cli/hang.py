"""`gpuprof hang`: says why a job hangs: which rank, at which collective, at which line."""

from __future__ import annotations

import click

from gpuprof.cli.shared.option_types import WholeNumber
from gpuprof.cli.shared.output import show, write


@click.command(short_help="Say why a job hangs.")
@click.argument("places", metavar="[RUN|DUMPS|PID]…", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
@click.option("--top", type=WholeNumber(1), metavar="N", help="List N ranks (default 8).")
def command(places: tuple[str, ...], as_json: bool, top: int | None) -> int:
    """Say which rank of a job does not continue, at which collective and line, and why.

    RUN: the folder of a run of gpuprof trace; while it runs its ranks are asked for their stacks. DUMPS: files or a
    folder of torch's flight recorder (pickle or JSON, named after their ranks) and of stacks as faulthandler and py-spy
    print them. PID: running processes, by py-spy where it is installed. Without arguments: the latest run.
    """
    from gpuprof.hang.judge import judge
    from gpuprof.hang.load_states import states_of

    states, now_ns = states_of(places)
    found = judge(states, now_ns)
    if as_json:
        from gpuprof.hang.hang_json import dumps

        write(dumps(found, states) + "\n")
    else:
        from gpuprof.report.terminal.hang_terminal import ROWS, render

        show(lambda _: render(found, states, top or ROWS))
    return 0
