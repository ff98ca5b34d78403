"""Jobs of three gloo ranks that hang, each with another fault; every rank writes what it writes under `gpuprof trace`.

`python -m helpers.hang_jobs FOLDER FAULT…`: torch is imported once, each rank is a fork; a run folder for each fault.
The faults stop where a person would say that the job hangs; then the ranks are asked, and ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

RANKS = 3
CULPRIT = 2
BEGUN = "begun.rank{}"
"""File of a rank's run folder that it makes before its fault."""
LOOK_S, LOOKS = 0.2, 5
"""A job hangs once LOOKS observations, LOOK_S seconds apart, show no change."""
PATIENCE_S = 120.0


def reduce(size: int = 4, dtype=None, group=None) -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(size, dtype=dtype), group=group)


def missing_rank(rank: int) -> None:
    if rank == CULPRIT:
        wait_forever()
    reduce()


def order(rank: int) -> None:
    import torch
    import torch.distributed as dist

    if rank == CULPRIT:
        dist.broadcast(torch.ones(4), 0)  # FAULT
    reduce()


def size(rank: int) -> None:
    reduce(5 if rank == CULPRIT else 4)  # FAULT
    wait_forever()


def dtype(rank: int) -> None:
    import torch

    reduce(4, torch.float64 if rank == CULPRIT else torch.float32)  # FAULT
    wait_forever()


def exception(rank: int) -> None:
    if rank == CULPRIT:
        raise ValueError("the batch is empty")  # FAULT
    reduce()


def loader(rank: int) -> None:
    import torch

    class Stuck(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, at):
            time.sleep(3600)

    if rank == CULPRIT:
        next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))  # FAULT
    reduce()


def checkpoint(rank: int) -> None:
    import torch

    class Slow:
        def write(self, data):
            time.sleep(3600)  # FAULT
            return len(data)

        def flush(self): ...

    if rank == CULPRIT:
        torch.save({"weights": torch.ones(4)}, Slow())  # pyright: ignore[reportArgumentType]  # FAULT
    reduce()


def stopped(rank: int) -> None:
    if rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGSTOP)  # FAULT
    reduce()


def dead(rank: int) -> None:
    if rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)
    reduce()


def nested_groups(rank: int) -> None:
    """Ranks 0 and 1 enter two groups in opposite order; rank 2 waits in one of them."""
    import torch.distributed as dist

    one, two = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    if rank != CULPRIT:
        reduce(group=one)
    reduce(group=two)
    if rank == 0:
        reduce(group=one)  # FAULT
        reduce(group=two)
    else:
        reduce(group=two)
        if rank == 1:
            reduce(group=one)


def unequal_batches(rank: int) -> None:
    """One rank has a batch less, and continues with the evaluation."""
    import torch
    import torch.distributed as dist

    for _ in range(1 if rank == CULPRIT else 2):
        reduce()
    dist.all_gather([torch.ones(1) for _ in range(RANKS)], torch.ones(1))  # FAULT


def cpu_loop(rank: int) -> None:
    if rank == CULPRIT:
        while True:  # FAULT
            pass
    reduce()


def wait_forever() -> None:
    time.sleep(3600)  # FAULT


FAULTS = (
    missing_rank, order, size, dtype, exception, loader, checkpoint, stopped, dead, nested_groups, unequal_batches,
    cpu_loop,
)  # fmt: skip


def rank_of_job(fault, folder: Path, rank: int) -> None:
    import torch.distributed as dist

    from gpuprof.record.recording.stall import StallWatch

    watch = StallWatch(folder, rank, RANKS, lambda: 0, lambda _: None)
    watch.start()
    facts = {"rank": rank, "pid": os.getpid(), "world_size": RANKS}
    (folder / f"rank{rank}.json").write_text(json.dumps(facts), encoding="utf-8")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    reduce()
    (folder / BEGUN.format(rank)).touch()
    try:
        fault(rank)
        wait_forever()
    except Exception as error:
        sys.last_value = error
        watch.close()


def start(fault, folder: Path) -> list[int]:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"status": "running"}), encoding="utf-8")
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            try:
                rank_of_job(fault, folder, rank)
            finally:
                os._exit(1)
        pids.append(pid)
    return pids


def wait_until_they_hang(folders: list[Path], pids: list[int]) -> None:
    """Returns once every rank has begun with its fault, and the main threads of these processes have done nothing for
    a while: none runs or is about to, and none has taken CPU time."""
    looks, before, until = 0, [], time.monotonic() + PATIENCE_S
    while looks < LOOKS:
        time.sleep(LOOK_S)
        assert time.monotonic() < until, before
        now = [_main_thread(pid) for pid in pids]
        begun = all((folder / BEGUN.format(rank)).exists() for folder in folders for rank in range(RANKS))
        quiet = begun and now == before and not any(state in "RD" for state, *_ in now)
        looks, before = looks + 1 if quiet else 0, now


def _main_thread(pid: int) -> tuple[str, ...]:
    """State and CPU time of a process's main thread, as the kernel counts it; a special state if it has ended."""
    try:
        words = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ("X",)
    return words[0], *words[11:13]


def main(folder: str, *names: str) -> None:
    import torch
    import torch._dynamo  # which torch needs for its dumps
    import torch.distributed

    torch.set_num_threads(1)
    from gpuprof.hang.hang_json import to_json
    from gpuprof.hang.judge import judge
    from gpuprof.hang.load_states import ask, states_of_run

    jobs = {fault.__name__: (Path(folder) / fault.__name__, fault) for fault in FAULTS if fault.__name__ in names}
    started = {name: start(fault, place) for name, (place, fault) in jobs.items()}
    of_loop = started.get("cpu_loop", [])[CULPRIT:]  # it runs for ever
    try:
        wait_until_they_hang(
            [place for place, _ in jobs.values()],
            [pid for pids in started.values() for pid in pids if pid not in of_loop],
        )
        for place, _ in jobs.values():
            ask(place)
            states = states_of_run(place)
            (place / "answer.json").write_text(
                json.dumps(to_json(judge(states, time.time_ns() + 60_000_000_000), states))
            )
    finally:
        for pid in (pid for pids in started.values() for pid in pids):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
