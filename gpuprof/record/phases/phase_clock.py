"""Splits the wall time of a step by phase, exactly: each moment belongs to the innermost open phase."""

from __future__ import annotations

import time
from typing import Any

from .phase_names import BACKWARD, FORWARD, GENERATION, LOG_PROBABILITIES, OPTIMIZER, OTHER, TRAINING, WHOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Convention, Names


MOST_PARTS: Convention[Names] = 64
"""Names of parts that are kept per step."""


class PhaseClock:
    """Splits the time of the current step. The phases sum to the step's time. Steps have no phases until one is marked:
    those of a supervised training have none.
    Time outside of all marks belongs to forward once the model is called to train, to optimizer from the end of a
    backward pass to the end of the step, and otherwise to other.
    """

    def __init__(self) -> None:
        self.marked = False
        """Whether a phase was marked, by the program or in its trainer."""
        self.generation = Generation()
        self.iteration_steps = 0
        """Optimizer steps from one generation to the next; 0 before the second."""
        self._apart: int | None = None
        """Steps since the last one that generated; None before the first."""
        self._stack: list[str] = []
        self._rest = OTHER
        """The phase that gets the time outside of all marks."""
        self._since = 0
        self._ns: dict[str, int] = {}
        self._parts: dict[str, int] = {}
        self._parts_cpu: dict[str, int] = {}
        self._passes = 0
        """How many times log-probabilities were computed: of the old policy, of the reference."""

    def begin(self, now: int) -> None:
        """A step begins; 0 for one that is not timed."""
        self._since, self._rest = now, OTHER
        if self.marked or self._ns or self._parts:
            self._ns, self._parts, self._parts_cpu = {}, {}, {}
            self._passes = 0
            self.generation.take()

    @property
    def phase(self) -> str:
        """The phase of this moment."""
        found = next((phase for phase in reversed(self._stack) if phase != TRAINING), None)
        if found is not None:
            return found
        return FORWARD if self._stack and self._rest == OTHER else self._rest

    def is_in(self, *phases: str) -> bool:
        """Whether one of these phases is open."""
        return any(phase in self._stack for phase in phases)

    def enter(self, phase: str, now: int | None = None) -> int:
        """A phase begins, now or at a moment that is just over; returns what `leave` takes."""
        if self.marked:
            self._account(time.perf_counter_ns() if now is None else now)
        if phase == LOG_PROBABILITIES and phase not in self._stack:
            self._passes += 1
        whole = self._stack[-1] if self._stack and self._stack[-1] in WHOLE else None
        self._stack.append(whole or phase)
        return len(self._stack)

    def leave(self, depth: int) -> None:
        """The phase ends, as do all that began inside it and have not ended."""
        if len(self._stack) >= depth:
            if self.marked:
                self._account(time.perf_counter_ns())
            del self._stack[depth - 1 :]

    def trained(self) -> None:
        """The model is called to train."""
        self._becomes(FORWARD)

    def backward(self) -> int:
        """A backward pass begins; returns what `leave` takes."""
        return self.enter(BACKWARD)

    def backward_ended(self, depth: int) -> None:
        """The backward pass is over."""
        self.leave(depth)
        self._becomes(OPTIMIZER)

    def fetching(self) -> None:
        """The next batch is requested: the phase before it is over."""
        self._becomes(OTHER)

    def add_part(self, name: str, ns: int, cpu_ns: int) -> None:
        """Adds the time of a part of a phase, such as a reward function; parts may overlap. cpu_ns: CPU time of its
        thread, far less than `ns` where it waits for something."""
        if name in self._parts or len(self._parts) < MOST_PARTS:
            self._parts[name] = self._parts.get(name, 0) + ns
            self._parts_cpu[name] = self._parts_cpu.get(name, 0) + cpu_ns

    def take(self, now: int) -> dict[str, Any]:
        """The phases of the step that ends now, for its line in steps.jsonl; empty if no phase was ever marked."""
        if not self.marked:
            return {}
        self._account(now)
        if not self._ns:
            return {}
        self._apart = None if self._apart is None else self._apart + 1
        if GENERATION in self._ns:
            self.iteration_steps, self._apart = self._apart or self.iteration_steps, 0
        found: dict[str, Any] = {"phases_ns": self._ns}
        if self._parts:
            found["rewards_ns"], found["rewards_cpu_ns"] = self._parts, self._parts_cpu
        if self._passes:
            found["log_probability_passes"] = self._passes
        generated = self.generation.take()
        if generated is not None:
            found["generation"] = generated
        return found

    def _becomes(self, rest: str) -> None:
        if rest != self._rest:
            if self.marked:
                self._account(time.perf_counter_ns())
            self._rest = rest

    def _account(self, now: int) -> None:
        """Adds the time since the last call to the open phase. Does nothing before a phase is marked, so that a
        supervised training pays nothing."""
        if self._since and self.marked:
            phase = self.phase
            self._ns[phase] = self._ns.get(phase, 0) + max(now - self._since, 0)
            self._since = now


class Generation:
    """What the generate loops of a step did: forward passes, sequences, time until the first token and after it."""

    def __init__(self) -> None:
        self._calls = self._forwards = self._slots = self._sequences = self._prefill_ns = self._decode_ns = 0
        self._begun = self._first = self._here = 0
        self._lengths: list[int] = []

    def begin(self) -> None:
        """A generate loop begins."""
        self._calls += 1
        self._begun, self._first, self._here = time.perf_counter_ns(), 0, 0

    def token(self, sequences: int) -> int:
        """A forward pass of the loop is over; returns how many there were in it."""
        self._here += 1
        if self._here == 1:
            self._first = time.perf_counter_ns()
            self._prefill_ns += self._first - self._begun
            self._sequences += sequences
        self._forwards += 1
        self._slots += sequences
        return self._here

    def end(self) -> None:
        """The loop is over."""
        if self._first:
            self._decode_ns += time.perf_counter_ns() - self._first
        self._begun = self._first = 0

    def completed(self, lengths: list[int]) -> None:
        """Completions of these lengths, where the trainer knows them in host memory."""
        self._lengths += lengths

    def take(self) -> dict[str, Any] | None:
        """What there was since the last time; None where nothing was generated."""
        if not self._calls and not self._lengths:
            return None
        lengths = sorted(self._lengths)
        found = {
            "calls": self._calls,
            "forwards": self._forwards,
            "slots": self._slots,
            "sequences": self._sequences or len(lengths),
            "prefill_ns": self._prefill_ns,
            "decode_ns": self._decode_ns,
            "tokens": sum(lengths) if lengths else None,
            "longest": lengths[-1] if lengths else None,
            "p95": lengths[min(int(0.95 * len(lengths)), len(lengths) - 1)] if lengths else None,
        }
        self._calls = self._forwards = self._slots = self._sequences = self._prefill_ns = self._decode_ns = 0
        self._lengths = []
        return found
