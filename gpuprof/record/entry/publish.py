"""After a recording: diagnoses it in a separate process, and passes the numbers to the program's trackers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ...runfile import REPORT, RUN_VARIABLE, log
from .scalars import in_words, scalars
from .trackers import Trackers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds


TIMEOUT_S: Assumed[Seconds] = 300.0

_CODE = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from gpuprof.cli import main
sys.exit(main(sys.argv[2:]))
"""


def publish(folder: Path, trackers: Trackers) -> str | None:
    """Logs a run's numbers and its report. Returns a line for the user, or None. Never raises."""
    try:
        document = diagnosed(folder)
        if document is None:
            return "the recording could not be diagnosed: nothing is logged to the trackers"
        report = folder / REPORT
        step = (document.get("run") or {}).get("steps_seen") or 0
        found = scalars(document)
        summary = in_words(document)
        done, failed = trackers.log(found, summary, step, report if report.is_file() else None)
        for name, error in failed:
            log(folder, f"{name} took no numbers: {type(error).__name__}: {error}")
        said = [f"logged {len(found)} numbers to {', '.join(done)}"] if done else []
        said += [f"{name} took none ({type(error).__name__})" for name, error in failed]
        return "; ".join(said) or None
    except Exception as error:
        log(folder, f"the trackers got nothing: {type(error).__name__}: {error}")
        return f"nothing is logged to the trackers: {type(error).__name__}: {error}"


def diagnosed(folder: Path) -> dict[str, Any] | None:
    """The diagnosis as JSON, and the report in the run's folder; None where that fails or takes too long.

    An unusable recording (of a training on CPUs, for example) also has a diagnosis, which holds the timed steps.
    """
    root = str(Path(__file__).parents[3])
    path = [root, *(entry for entry in sys.path if entry not in ("", ".", root, os.getcwd()))]
    command = [sys.executable, "-I", "-c", _CODE, json.dumps(path), "diagnose", str(folder), "--json"]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("GPUPROF_") and k != RUN_VARIABLE}
    variables["CUDA_VISIBLE_DEVICES"] = ""  # the diagnosis needs no GPU, and must not take its memory
    try:
        done = subprocess.run(
            [*command, "--html", str(folder / REPORT)], stdin=subprocess.DEVNULL, capture_output=True, env=variables,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        document = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        log(folder, f"the recording is not diagnosed for the trackers: {type(error).__name__}: {error}"[:1000])
        return None
    return document if isinstance(document, dict) else None
