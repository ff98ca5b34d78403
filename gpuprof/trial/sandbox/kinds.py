"""Kinds of sandboxes, and how to request one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds


NAMESPACE, LANDLOCK, HOOKS = "namespace", "landlock", "hooks"
"""A mount namespace; kernel rules for writes; Python's hooks alone."""
VARIABLE = "GPUPROF_SANDBOX"
"""Environment variable that chooses a kind; by default the best that the kernel allows."""
_ROOT = str(Path(__file__).parents[3])
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from gpuprof.trial.sandbox.launcher import main; main()"
_PROBE_S: Assumed[Seconds] = 20.0


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The sandbox of a trial's processes."""

    kind: str
    why: str | None = None
    """Why it is not a namespace."""

    @property
    def keeps_all(self) -> bool:
        """Whether no process, in any language, can change the user's files."""
        return self.kind == NAMESPACE

    @property
    def line(self) -> str:
        """Description for the user."""
        if self.kind == NAMESPACE:
            return "sandbox: the processes see private copies of all files (mount namespace)"
        others = "are refused (Landlock)" if self.kind == LANDLOCK else "are only noticed"
        return (
            f"sandbox: no private mount namespace here ({self.why}): Python's writes go to a scratch folder, "
            f"other programs' {others}"
        )


def command(plan: Path, control: int, argv: list[str]) -> list[str]:
    """The command that runs `argv` in a sandbox; `control` is a descriptor that is passed on, see `launcher`."""
    return [sys.executable, "-I", "-S", "-c", _START, str(plan), str(control), "--", *argv]


def write_plan(folder: Path, result: Path, real: list[str], network: bool, is_free: bool, chosen: str = "") -> Path:
    """Writes the plan of one process into a folder that it creates. result: file for the sandbox's outcome. is_free:
    without a namespace, nothing is refused. chosen: the kind; from the environment if empty."""
    chosen = chosen or os.environ.get(VARIABLE) or NAMESPACE
    plan: dict[str, Any] = {
        "folder": str(folder), "result": str(result), "real": [os.path.realpath(one) for one in real],
        "network": network, "namespace": chosen == NAMESPACE, "landlock": chosen != HOOKS and not is_free,
    }  # fmt: skip
    folder.mkdir()
    place = folder / "plan.json"
    place.write_text(json.dumps(plan), encoding="utf-8")
    return place


@lru_cache
def sandbox(network: bool, is_free: bool, chosen: str) -> Sandbox:
    """The sandbox that this machine allows, found by starting a process that does nothing. chosen: value of
    VARIABLE."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-sandbox-", ignore_cleanup_errors=True) as name:
        result = Path(name, "result.json")
        plan = write_plan(Path(name, "probe"), result, [name], network, is_free, chosen)
        reads, writes = os.pipe()
        try:
            words = command(plan, reads, [sys.executable, "-I", "-S", "-c", ""])
            done = subprocess.run(
                words, pass_fds=(reads,), stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False
            )
            found = json.loads(result.read_text(encoding="utf-8"))
            if done.returncode:
                return Sandbox(HOOKS, "a process did not start in it")
            return Sandbox(str(found["kind"]), found["why"])
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            return Sandbox(HOOKS, f"{type(error).__name__}")
        finally:
            os.close(reads)
            os.close(writes)
