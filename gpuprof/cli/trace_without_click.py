"""Parses `gpuprof trace` without click, and leaves --help and all command lines that are not clearly valid to it.

A second parser is worth its lines because every recorded training waits for it: with click the process takes 79 ms of
CPU time until it starts the target, without it 46 ms (`python -m benchmarks.start_up`; 31 to 50 ms less in eight of ten
pairs). How words are split between gpuprof and the target is the same code for both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from gpuprof.record.base.options import DEFAULTS, LARGEST_NUMBER, OPTIONS

COUNTS = {option.flag: option for option in OPTIONS if option.least is not None}
"""Options that take a whole number."""
SWITCHES = {
    flag: (option.name, flag == option.flag)
    for option in OPTIONS
    if isinstance(option.default, bool)
    for flag in (option.flag, option.opposite)
    if flag is not None
}
"""Flag → (name of the option, whether the flag switches it on)."""
NCU = "--ncu"
"""Counts kernels of a recorded program instead of recording it."""
_WITH_TEXT = ("--out", "--ranks", "-m", NCU)
ON_DEMAND = "--on-demand"
"""Arms the target instead of recording it: not an option of a recording."""


class TraceRequest:
    """A parsed command line: the recording's options, its folder, and what to run. on_demand: nothing is recorded yet.
    ncu: the recording whose kernels are counted instead."""

    def __init__(
        self,
        options: dict[str, object],
        out: str | None,
        module: str | None,
        words: Sequence[str],
        on_demand: bool = False,
        ncu: str | None = None,
    ) -> None:
        self.options, self.out, self.module, self.words = options, out, module, tuple(words)
        self.on_demand, self.ncu = on_demand, ncu


def parse(arguments: Sequence[str]) -> TraceRequest | None:
    """The request in the words after `trace`, or None to leave them to click."""
    if "GPUPROF_DEBUG" in os.environ or any(name.startswith("GPUPROF_TRACE_") for name in os.environ):
        return None
    options, out, module, on_demand, ncu = dict(DEFAULTS), None, None, False, None
    ours, words = split(arguments)
    at = 0
    while at < len(ours):
        name, has_value, value = ours[at].partition("=")
        at += 1
        if name == ON_DEMAND and not has_value:
            on_demand = True
            continue
        if name in SWITCHES and not has_value:
            switched, on = SWITCHES[name]
            options[switched] = on
            continue
        if name not in COUNTS and name not in _WITH_TEXT:
            return None
        if not has_value:
            if at == len(ours):
                return None
            value = ours[at]
            at += 1
        if name == "-m":
            if has_value:
                return None
            module = value
        elif name == "--out":
            out = value
        elif name == NCU:
            ncu = value
        elif name == "--ranks":
            options["ranks"] = ranks(value)
            if options["ranks"] is None:
                return None
        else:
            option, count = COUNTS[name], number(value)
            if count is None or not (option.least or 0) <= count <= LARGEST_NUMBER:
                return None
            options[option.name] = count
    if "" in (out, module, ncu) or not (words or module):
        return None
    return TraceRequest(options, out, module, words, on_demand, ncu)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(our options, the target's words untouched). An option given without its optional number gets its default."""
    ours: list[str] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            return ours, list(arguments[at + 1 :])
        if not word.startswith("-") or word == "-":
            break
        at += 1
        following = arguments[at] if at < len(arguments) else None
        alone = COUNTS[word].alone if word in COUNTS else None
        if alone is not None and (following is None or number(following) is None):
            ours.append(f"{word}={alone}")
        elif word in COUNTS or word in _WITH_TEXT:
            ours.append(word)
            if following is not None:
                ours.append(following)
                at += 1
            if word == "-m":
                break
        elif word.startswith("-m") and not word.startswith("--"):
            ours += ["-m", word[2:]]
            break
        else:
            ours.append(word)
    return ours, list(arguments[at:])


def number(text: str) -> int | None:
    """Parses a whole number; None if it is not one."""
    return int(text) if text.isascii() and text.isdigit() else None


def ranks(text: str) -> list[int] | None:
    """`0,1`: the ranks, in order, each once."""
    found = [number(part.strip()) for part in text.split(",")]
    return None if None in found else sorted({rank for rank in found if rank is not None})
