"""A projection in a sentence or two."""

from __future__ import annotations

from gpuprof.projection.projection import OnGpu
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.units import Assumed, Ratio

TIED_GPUS: Assumed[Ratio] = 1.05
"""GPUs that differ by less than this factor count as equal."""


def summarize(gpus: list[OnGpu], unit: Unit = STEP) -> str:
    """The summary for someone who reads a single line; `gpus`: best first."""
    if not gpus:
        return ""
    best, worst = gpus[0], gpus[-1]
    held = [one for one in gpus if one.bound == "host"]
    if len(gpus) > 1 and len(held) == len(gpus) and best.speedup.expected < TIED_GPUS * worst.speedup.expected:
        return f"The CPU (host) limits the {unit} on all of them: a faster GPU would not make it shorter."
    text = _best(best, len(gpus))
    if best.bound == "host":
        text += " A faster CPU (host) would help there, a faster GPU would not."
    priced = [one for one in gpus if one.cost.usd_per_million_tokens is not None]
    if len(priced) > 1:
        cheapest = min(priced, key=lambda one: one.cost.usd_per_million_tokens or 0.0)
        known = "" if len(priced) == len(gpus) else ", of those with a known price"
        text += f" Cheapest per token{known}: {cheapest.gpu}."
    none = [one.gpu for one in gpus if one.batch_share < 1]
    if none:
        text += f" The batch does not fit on {', '.join(none)}."
    return text


def _best(best: OnGpu, asked: int) -> str:
    """How much the best of several GPUs gets done, or the only one, or that the recorded one gets more done."""
    does = f"{best.speedup.expected:.2f}× the recorded work per time{_by(best)}."
    if asked == 1:
        return f"{best.gpu} does {does}"
    if best.speedup.expected < 1:
        return f"None of them gets as much done as the recorded GPU; {best.gpu} comes nearest: {does}"
    return f"{best.gpu} gets most done: {does}"


def _by(one: OnGpu) -> str:
    if one.bound is None:
        return ""
    if one.bound == "balanced":
        return ", with no single limit"
    names = {"host": "the CPU (host)", "memory": "memory bandwidth"}
    return f", limited by {names.get(one.bound, one.bound)}"
