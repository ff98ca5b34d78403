"""The state of one rank of a job that hangs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuprof.hang.dump import Dump, DumpFrame
from gpuprof.hang.stacks import ThreadStack, own_frame

Life = Literal["running", "stopped", "dead", "unknown"]
"""State of a process; `stopped` by a signal (SIGSTOP, a debugger)."""


@dataclass(frozen=True, slots=True)
class RankState:
    rank: int
    dump: Dump | None = None
    stack: ThreadStack | None = None
    life: Life = "unknown"
    error: str | None = None
    """The error that ended its program, or why its dump cannot be read."""
    last_step: int | None = None
    last_step_unix_ns: int | None = None
    phase: str | None = None
    """Phase of its last step: data, save, evaluation, logging; None: unknown."""

    @property
    def doing(self) -> str:
        """collective, loader, save, compile, python, or unknown without a stack."""
        return self.stack.doing if self.stack is not None else "unknown"

    @property
    def at(self) -> DumpFrame | None:
        """Where its program is: from its stack, else the place of its last collective."""
        if self.stack is not None:
            return self.stack.own
        calls = [c for g in (self.dump.groups if self.dump else ()) for c in (*g.calls, *g.transfers)]
        last = max(calls, key=lambda call: call.created_ns, default=None)
        return own_frame(last.frames) if last is not None else None
