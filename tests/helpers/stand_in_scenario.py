"""Trains nothing, as a scenario's program is run and timed: `stand_in_scenario.py -m MODULE [--timed] [--fix NAME]`.

Without torch, so that many processes start in no time. FAILS in the environment: it raises. SLOW: steps take
minutes.
"""

from __future__ import annotations

import os
import sys
import time
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scenarios.support.run import Run, main


def train(run: Run) -> None:
    """Steps of a millisecond, or of a minute."""
    if "FAILS" in os.environ:
        raise ValueError("environment variable RANK expected, but not set")
    for _ in run.steps():
        time.sleep(60 if "SLOW" in os.environ else 0.001)


if __name__ == "__main__":
    torch = types.ModuleType("torch")
    torch.__dict__["cuda"] = types.SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False)
    sys.modules["torch"] = torch
    del sys.argv[1:3]
    main(train)
