"""The tool `try` of `gpuprof mcp --allow-run`: the only one that starts anything."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.nsight.convert import READ_ONLY
from gpuprof.trial.own_process import own_command
from gpuprof.units import Assumed, Seconds

_ENDING_S: Assumed[Seconds] = 30.0
"""Seconds that `gpuprof try` gets to end its processes once the client cancels."""


async def try_fixes(
    command: list[str], fixes: list[str] | None = None, budget: str = "5m", folder: str = "", until: str = ""
) -> str:
    """Runs a training command again with one fix after the other applied from outside, and measures what each gains.

    command: what one types after `gpuprof try`, for example ["train.py", "--lr", "1e-4"]. fixes: for example
    ["input_workers=4"]; those that are advised if empty. budget: how long it may take, such as 90s, 5m or 1h; the
    client has to wait for as long. folder: where the command is run. until: stop at the first combination of fixes
    that reaches this gain, such as 1.3x. Files are written to a scratch folder and
    connections beyond this machine are blocked. Times are nanoseconds.
    """
    from anyio import to_thread  # comes with mcp

    from gpuprof.cli.shared.mcp_guard import in_tools
    from gpuprof.interop.agent_answers import text
    from gpuprof.interop.next_steps import after_trial
    from gpuprof.report.untrusted import cleaned

    if not command:
        raise GpuprofError('command is empty: name what to run, for example ["train.py", "--lr", "1e-4"]')
    place = Path(folder).expanduser() if folder else Path.cwd()
    if not place.is_dir():
        raise GpuprofError(f"{folder}: there is no such folder")
    code, out, err = await _run(_arguments(command, fixes or [], budget, until), place)
    said = [line.removeprefix("gpuprof: ") for line in err.splitlines() if line.startswith("gpuprof: ")]
    if code or not out.strip():
        if code or not said:
            raise GpuprofError(said[-1] if said else f"gpuprof try ended with exit code {code} and said nothing")
        return text(cleaned({"rows": [], "notes": [in_tools(one) for one in said[-1:]]}))
    trial = json.loads(out)
    return text(
        cleaned(
            {**trial, "next_steps": after_trial(trial, str(place), await to_thread.run_sync(_comparable, trial, place))}
        )
    )


def _comparable(trial: dict[str, Any], place: Path) -> bool:
    """Whether the run that was tried has a diagnosis, which a comparison needs."""
    from gpuprof import diagnose

    with contextlib.suppress(GpuprofError):
        return bool(trial["run"]) and diagnose(str(place / trial["run"])).quality.status != "unusable"
    return False


def _arguments(command: list[str], fixes: list[str], budget: str, until: str) -> list[str]:
    """Arguments for `gpuprof try`: after `--` no word of the command can act as an option of gpuprof, such as --yes."""
    gain = [f"--until={until}"] if until else []
    return ["--json", f"--budget={budget}", *gain, *(f"--fix={fix}" for fix in fixes), "--", *command]


async def _run(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `gpuprof try` in a subprocess, which is ended if the client cancels."""
    import asyncio

    import anyio  # comes with mcp

    environment = {name: value for name, value in os.environ.items() if name != READ_ONLY}
    process = await asyncio.create_subprocess_exec(
        *own_command("try", *arguments, with_parent=True), cwd=folder, env=environment,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()  # it ends its own processes
            with anyio.move_on_after(_ENDING_S, shield=True):
                await process.wait()
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")
