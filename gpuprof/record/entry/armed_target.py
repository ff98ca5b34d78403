"""`gpuprof trace --on-demand`: this process becomes the target, whose Pythons arm themselves."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from ...runfile import RUN_VARIABLE
from ..launcher.command import CannotStart, Target
from ..launcher.signals import RESTORED
from ..launcher.target_environment import led_to_us
from ..launcher.tell import tell
from .on_demand import VARIABLE


def become(target: Target) -> NoReturn:
    """Replaces this process by the target: its id, its signals and its exit code are its own.

    Raises CannotStart where it cannot be started.
    """
    for note in target.notes:
        tell(note)
    if target.recordable:
        tell(f"armed, nothing is recorded yet: gpuprof attach {os.getpid()} records while it trains")
    for number in RESTORED:
        signal.signal(number, signal.SIG_DFL)
    variables = {**led_to_us(), VARIABLE: "1"}
    variables.pop(RUN_VARIABLE, None)
    try:
        os.execvpe(target.argv[0], list(target.argv), variables)
    except OSError as error:
        raise CannotStart(f"{target.argv[0]}: cannot be started ({error.strerror})") from None
