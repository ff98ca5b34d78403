"""Loads the state of each rank from what the user names: a run, dumps, or processes."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from gpuprof import runfile
from gpuprof.errors import GpuprofError, UnreadableTrace
from gpuprof.hang import process_state
from gpuprof.hang.dump import Dump, frames_of, is_dump, merged, rank_of, read
from gpuprof.hang.rank_state import RankState
from gpuprof.hang.stacks import ThreadStack, is_stack, parse
from gpuprof.tracefile.recording import resolve
from gpuprof.units import Assumed, Bytes, Seconds

MOST_TEXT_BYTES: Assumed[Bytes] = 4 << 20
"""Most bytes of a stack file that are read."""
_TAIL_BYTES: Assumed[Bytes] = 64 << 10
ANSWER_S: Assumed[Seconds] = 20.0
"""Seconds that the processes of a run have to write their stacks: for its first dump torch imports its compiler, which
takes seconds. A process that holds the GIL never answers."""
_PHASES = (("save_ns", "save"), ("evaluation_ns", "evaluation"), ("logging_ns", "logging"))


def states_of(places: Sequence[str], may_ask: bool = True) -> tuple[list[RankState], int | None]:
    """(states of the ranks of a run, dumps or processes; when they were taken, ns since 1970, None: unknown).
    may_ask: whether running processes may be asked for their stacks; else only files are used.
    Raises GpuprofError, one line, for anything else.
    """
    if places and all(place.isdigit() and not Path(place).exists() for place in places):
        if not may_ask:
            raise GpuprofError(f"{places[0]}: processes are not asked for their stacks here; use gpuprof hang PID")
        return states_of_processes([int(place) for place in places]), time.time_ns()
    try:
        named = resolve(places[0] if places else None) if len(places) < 2 else None
    except GpuprofError as error:
        if places:
            raise
        why = str(error).partition(": make one")[0]
        raise GpuprofError(f"{why}: name dumps, or a process: gpuprof hang DUMPS, gpuprof hang PID") from None
    folder = named and named.run_folder
    if folder is not None and (folder / runfile.MANIFEST).is_file():
        asked = may_ask and ask(folder)
        return states_of_run(folder), time.time_ns() if asked else None
    return states_of_dumps([Path(place).expanduser() for place in places]), None


def ask(folder: Path) -> bool:
    """Asks the processes of a live run for their stacks, and waits for their answers up to ANSWER_S.
    Returns whether the run still runs.
    """
    manifest = runfile.read_json(folder / runfile.MANIFEST) or {}
    if manifest.get("status") != "running":
        return False
    place = folder / runfile.HANG
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        begun_ns = time.time_ns()
        (place / runfile.ASKED).write_text(f"{begun_ns}\n", encoding="ascii")
    except OSError as error:
        raise GpuprofError(
            f"{place}: cannot be written ({error.strerror}): the run's processes cannot be asked"
        ) from None
    ranks = [int(m[1]) for path in folder.iterdir() if (m := re.fullmatch(r"rank(\d{1,6})\.json", path.name))]
    alive = [rank for rank in ranks if _pid_runs(runfile.read_json(folder / runfile.rank_file(rank)))]
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        if all(_is_newer(place / runfile.answer_file(rank), begun_ns) for rank in alive):
            break
        time.sleep(0.1)
    return True


def _pid_runs(facts: dict[str, object] | None) -> bool:
    pid = (facts or {}).get("pid")
    return isinstance(pid, int) and process_state.life_of(pid) == "running"


def _is_newer(path: Path, unix_ns: int) -> bool:
    try:
        return path.stat().st_mtime_ns >= unix_ns
    except OSError:
        return False


def states_of_dumps(paths: Sequence[Path]) -> list[RankState]:
    """States from files and folders of flight recorder dumps and stack texts, by rank. A damaged file becomes the
    rank's error. Raises UnreadableTrace if they contain nothing about any rank."""
    files = [file for path in paths for file in _files(path)]
    states: dict[int, RankState] = {}
    for file in files:
        head = _head(file)
        rank = rank_of(file)
        if rank is None:
            continue
        state = states.get(rank, RankState(rank))
        if is_dump(head):
            states[rank] = _with_dump(state, file)
        elif is_stack(head.decode("utf-8", "replace")):
            states[rank] = replace(state, stack=parse(_text(file)) or state.stack)
        elif len(paths) == len(files):
            states[rank] = replace(state, error=f"{file.name} is neither a dump nor a stack")
    if not any(state.dump or state.stack for state in states.values()):
        said = next((state.error for state in states.values() if state.error), None)
        where = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        raise UnreadableTrace(
            said or f"{where}: no flight recorder dump and no stack of a rank, such as nccl_trace_rank_0"
        )
    return [states[rank] for rank in sorted(states)]


def states_of_run(folder: Path) -> list[RankState]:
    """States of a run of `gpuprof trace`: what its ranks wrote when they stalled, their processes, and last steps."""
    ranks = {int(m[1]): path for path in folder.iterdir() if (m := re.fullmatch(r"rank(\d{1,6})\.json", path.name))}
    written = folder / runfile.HANG
    found = {state.rank: state for state in states_of_dumps([written])} if _has_files(written) else {}
    last = _last_steps(folder)
    status = (runfile.read_json(folder / runfile.MANIFEST) or {}).get("status")
    for rank, path in sorted(ranks.items()):
        facts = runfile.read_json(path) or {}
        pid = facts.get("pid")
        state = found.get(rank, RankState(rank))
        if isinstance(pid, int) and status == "running":
            state = replace(state, life=process_state.life_of(pid))
        error = runfile.read_json(written / runfile.ended_file(rank)) if written.is_dir() else None
        if error and error.get("error"):
            frames = frames_of(error.get("frames"))
            state = replace(
                state, life="dead", error=str(error["error"]), stack=ThreadStack(frames) if frames else state.stack
            )
        found[rank] = replace(state, **last.get(rank, {}))
    if not found:
        raise UnreadableTrace(f"{folder}: no rank has taken a step yet, and none has written its stack")
    return [found[rank] for rank in sorted(found)]


def states_of_processes(pids: Sequence[int]) -> list[RankState]:
    """States of running processes; ranks from RANK in their environment, else in the given order."""
    for pid in pids:
        process_state.check(pid)
    with ThreadPoolExecutor(8) as pool:
        stacks = list(pool.map(process_state.stack_of, pids))
    states = []
    for number, (pid, (stack, why)) in enumerate(zip(pids, stacks, strict=True)):
        rank = process_state.environment_of(pid, "RANK") or ""
        states.append(
            RankState(int(rank) if rank.isdigit() else number, stack=stack, life=process_state.life_of(pid), error=why)
        )
    if len({state.rank for state in states}) < len(states):
        states = [replace(state, rank=number) for number, state in enumerate(states)]
    return sorted(states, key=lambda state: state.rank)


def _files(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return sorted(one for one in path.iterdir() if one.is_file() and rank_of(one) is not None)
        if path.is_file():
            return [path]
        raise GpuprofError(f"{path}: no such file, folder or process" if not path.exists() else f"{path} is not a file")
    except (OSError, ValueError) as error:
        raise GpuprofError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(rank_of(one) is not None for one in folder.iterdir())


def _head(file: Path) -> bytes:
    try:
        with runfile.open_regular(file) as opened:
            return opened.read(4096)
    except OSError:
        return b""


def _text(file: Path) -> str:
    with runfile.open_regular(file) as opened:
        return opened.read(MOST_TEXT_BYTES).decode("utf-8", "replace")


def _with_dump(state: RankState, file: Path) -> RankState:
    try:
        dump: Dump = read(file, state.rank)
    except UnreadableTrace as error:
        return replace(state, error=str(error))
    return replace(state, dump=dump if state.dump is None else merged(state.dump, dump))


def _last_steps(folder: Path) -> dict[int, dict[str, object]]:
    """Rank → its last step, when it ended and what took most of it, from the end of steps.jsonl."""
    import json

    try:
        with runfile.open_regular(folder / runfile.STEPS) as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - _TAIL_BYTES, 0))
            lines = file.read().splitlines()
    except OSError:
        return {}
    found: dict[int, dict[str, object]] = {}
    for line in lines:
        try:
            row = json.loads(line)
            rank, step, ended = int(row["rank"]), int(row["step"]), int(row["unix_ns"])
        except (ValueError, KeyError, TypeError):  # the first line may be cut
            continue
        phase = next((name for key, name in _PHASES if isinstance(row.get(key), int) and row[key] > 0), None)
        found[rank] = {"last_step": step, "last_step_unix_ns": ended, "phase": phase}
    return found
