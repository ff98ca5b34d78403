"""Texts of `gpuprof hang`: headline, what happened, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.hang.dump import DumpFrame
from gpuprof.hang.judge import Hang, Waiting
from gpuprof.hang.rank_state import RankState
from gpuprof.units import Convention, Ranks

MOST_RANKS: Convention[Ranks] = 8
"""Up to this many ranks are named one by one."""
_HEADLINES = {
    "mismatch": "MISMATCH", "deadlock": "DEADLOCK", "dead": "A PROCESS IS DEAD",
    "stopped": "A PROCESS IS STOPPED", "no_dump": "A RANK IS SILENT", "save": "SAVING",
    "loader": "WAITING FOR DATA", "compile": "COMPILING", "missing": "A RANK IS MISSING", "stuck": "STUCK",
    "late": "A RANK IS LATE", "none": "NOTHING HANGS",
}  # fmt: skip
_NEXT = {
    "mismatch": "make every rank call the same collectives in the same order, with the same sizes and types",
    "deadlock": "call the groups' collectives, and matching sends and receives, in the same order on every rank",
    "dead": "look at the end of that rank's output; the others end at their timeout",
    "stopped": "a signal or a debugger stopped it: kill -CONT continues it",
    "no_dump": "check whether its process still runs: gpuprof hang PID, or its log",
    "save": "a long save is not a hang: let it end, or save asynchronously, or raise the timeout of init_process_group",
    "loader": "find out why no data arrives: a dead or blocked worker, a lock, a file system (DataLoader(timeout=…))",
    "compile": "compile before the first collective, or raise the timeout of init_process_group",
    "missing": "find out why that rank does not continue: a branch that only it takes, a loop, a lock",
    "stuck": "all have called it: look at the network and the GPUs (NCCL_DEBUG=INFO, gpuprof doctor)",
    "late": "look again in a minute: gpuprof hang",
    "none": "look again while it stalls; TORCH_FR_BUFFER_SIZE=2000 makes torch remember the collectives",
}

_ALONE = "find out why it does not continue: a loop, a lock, a file system, the network"
"""Advice if no waiting collective is known."""


def headline(hang: Hang) -> str:
    """`A RANK IS MISSING · rank 3`."""
    words = _HEADLINES[hang.kind]
    if hang.kind == "mismatch" and hang.mismatch is not None:
        words = f"DIFFERENT {hang.mismatch.what.upper()}{'S' if hang.mismatch.what == 'collective' else ''}"
    return f"{words} · {ranks(hang.ranks)}" if hang.ranks else words


def ranks(numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2 and 5`, `ranks 0–511 …`."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > MOST_RANKS:
        return f"{len(numbers):,} ranks ({', '.join(map(str, numbers[:4]))} …)"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if numbers else "no rank"


def sentences(hang: Hang) -> list[str]:
    """What happened, in one to three sentences."""
    said = []
    if (found := hang.mismatch) is not None:
        others = "; ".join(
            f"rank {rank} calls {called or 'another'}{_at(found.at.get(rank))}"
            for rank, called in list(found.others.items())[:MOST_RANKS]
        )
        usual = f"the usual call is {found.usual}; " if found.usual else ""
        said.append(f"Collective {found.seq} of group {found.group}: {usual}{others}.")
    if hang.waiting is not None and hang.mismatch is None:
        said.append(_waits(hang.waiting, hang.waited_ns))
    reason = _reason(hang)
    return [*said, *([reason] if reason else [])]


def place(frame: DumpFrame | None) -> str:
    """`train.py:12 in train`; empty where it is unknown."""
    return "" if frame is None else f"{frame.file}:{frame.line} in {frame.function}"


def next_step(hang: Hang) -> str:
    """What to do, in one line."""
    return _ALONE if hang.kind == "stuck" and hang.waiting is None else _NEXT[hang.kind]


def state(one: RankState) -> str:
    """What a rank does, in a line."""
    parts = [one.life if one.life in ("dead", "stopped") else one.doing if one.stack is not None else ""]
    parts += [place(one.at), "" if one.last_step is None else f"after step {one.last_step}", one.error or ""]
    if one.dump is None:
        parts.append("no dump")
    return " · ".join(part for part in parts if part)


def _at(frame: DumpFrame | None) -> str:
    return f" at {place(frame)}" if frame is not None else ""


def _waits(one: Waiting, waited_ns: int | None) -> str:
    sizes = ", ".join("×".join(map(str, size)) or "a scalar" for size in one.sizes[:3])
    what = f"{one.op} {one.seq} of group {one.group}" + (f" ({one.description})" if one.description else "")
    of = f" of {sizes}" if sizes else ""
    types = f" {', '.join(dict.fromkeys(one.dtypes))}" if one.dtypes else ""
    since = "" if waited_ns is None else f" for {waited_ns / 1e9:,.0f} s"
    who = ranks(one.came)
    waits = "waits" if len(one.came) == 1 else "wait"
    return f"{who[0].upper()}{who[1:]} {waits} in {what}{of}{types}{since}{_at(one.at)}."


def _reason(hang: Hang) -> str:
    who, verb = ranks(hang.ranks), "is" if len(hang.ranks) == 1 else "are"
    at = _at(hang.at)
    if hang.kind in ("missing", "late"):
        has = "has" if len(hang.ranks) == 1 else "have"
        there = "it is" if len(hang.ranks) == 1 else "they are"
        return f"{who[0].upper()}{who[1:]} {has} not called it: {there}{at or ' elsewhere'}."
    by_kind = {
        "dead": f"{who} {verb} dead{', last seen' + at if at else ''}", "stopped": f"{who} {verb} stopped{at}",
        "no_dump": f"{who} left neither a dump nor a stack", "save": f"{who} {verb} saving{at}",
        "loader": f"{who} {verb} waiting for the next batch{at}", "compile": f"{who} {verb} compiling{at}",
        "deadlock": f"{who} wait for each other{at}",
        "stuck": _stuck(hang.waiting) if hang.waiting else f"{who} {verb}{at}",
        "none": "no rank waits in a collective, and no stack is known",
    }  # fmt: skip
    text = by_kind.get(hang.kind, "")
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _stuck(one: Waiting) -> str:
    if one.members_named:
        return "every rank has called it and it does not end"
    return "every rank that left a dump has called it; the dumps do not name the group's ranks: another may be missing"
