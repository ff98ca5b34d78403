"""Many ranks: what the joint replay costs, and whether it names what is slow. `python -m benchmarks.ranks [--large]`.

Jobs are generated with one slow rank, host, stage, link, or uneven batches; what the step takes without it is known
exactly. `--large` also measures 1,024 digests of 3,000 rows, read from a folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.rank_jobs import Shape, Slow, digests, programs, simulate
from gpuprof.diagnosis.ranks.rank_digest import digest_of_trace
from gpuprof.diagnosis.ranks.ranks import gang_of
from gpuprof.ranks.storage import from_bytes, to_bytes
from gpuprof.record.windows.memory import most_resident_bytes
from gpuprof.tracefile.read import read_trace

Result = TypeVar("Result")

LARGE = Shape(tensor=8, pipeline=8, data=16, layers=21, micro_batches=16, steps=4, gpus=8)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One generated job, as found and as it is."""

    name: str
    ranks: int
    verdict: str | None
    culprit: tuple[int, ...]
    expected: tuple[str | None, tuple[int, ...]]
    step_error: float
    """Error of the replayed step."""
    without_error: float | None
    """Error of the predicted step without what is slow."""
    replay_error: float

    @property
    def right(self) -> bool:
        return (self.verdict, self.culprit) == self.expected


def cases(shape: Shape) -> Iterator[tuple[str, Slow, str | None, tuple[int, ...]]]:
    """(name, what is slow, the right verdict, the right ranks)."""
    ranks = range(shape.ranks)
    host = tuple(r for r in ranks if r // shape.gpus == 1)
    stage = tuple(r for r in ranks if shape.place(r)[0] == shape.pipeline - 1)
    link = tuple(r for r in ranks if shape.place(r)[::2] == (0, 0))
    one = shape.ranks // 2 + 1
    yield "nothing", Slow(), None, ()
    yield "rank", Slow(frozenset((one,)), factor=1.5), "straggler", (one,)
    yield "host", Slow(frozenset(host), factor=1.4), "slow_host", host
    if shape.pipeline > 1 and stage != host:  # a stage that is one host may be either
        yield "stage", Slow(frozenset(stage), factor=1.5), "stage_imbalance", stage
    yield "batches", Slow(uneven=0.4), "uneven_batches", ()
    if len(link) < shape.ranks:  # a group that has no like cannot be compared
        yield "link", Slow(group="dp0.0", factor=40.0), "slow_link", link


def outcomes(shape: Shape, seed: int = 0) -> Iterator[Outcome]:
    for name, slow, verdict, ranks in cases(shape):
        made = programs(shape, slow, seed)
        times = simulate(made)
        gang = gang_of(digests(shape, made, times, lambda rank: 1_000_003 * rank), [])
        culprit = gang.job.culprit
        after = None
        if name in ("rank", "host", "link") and culprit is not None:
            exact = simulate(programs(shape, Slow(), seed)).step_ns
            after = culprit.step_ns / exact - 1
        yield Outcome(
            name, shape.ranks, gang.job.verdict, culprit.ranks if culprit else (), (verdict, ranks),
            gang.job.step_ns / times.step_ns - 1, after, gang.job.replay_error,
        )  # fmt: skip


def large(shape: Shape = LARGE) -> None:
    """Time and memory from a folder of digests to the answer. The job is generated in one process and diagnosed in
    another, so that the memory is that of the diagnosis."""
    slow = Slow(frozenset((shape.ranks // 2 + 1,)), factor=1.5)
    with tempfile.TemporaryDirectory() as folder:
        rows = _elsewhere(_make, shape, slow, Path(folder))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        print(f"{shape.ranks} digests of {rows} rows, {size / 1e6:.0f} MB: ", end="", flush=True)
        print(_elsewhere(_answer, Path(folder)))


def one_rank(recording: Path, times: int = 6) -> None:
    """What the digest of one recording costs, without imports and with everything compiled."""
    print(_elsewhere(_one, recording, times))


def processes(recording: Path, ranks: int = 64) -> None:
    """Copies of one recording as ranks, on one process and on two. The ratio that their CPU times allow is what two
    free cores reach; on a busy machine the measured one is lower."""
    (one, one_cpu), (two, two_cpu) = (_map(recording, ranks, workers) for workers in (1, 2))
    print(
        f"{ranks} full ranks: {one:.1f} s on one process, {two:.1f} s on two: {one / two:.2f}×; of CPU {one_cpu:.1f} s"
        f" and {two_cpu:.1f} s, which allow {2 * one_cpu / two_cpu:.2f}×"
    )


def _elsewhere(do: Callable[..., Result], *arguments: object) -> Result:
    """Done in a process of its own."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(do, arguments)


def _answer(folder: Path) -> str:
    begun, spent = time.perf_counter(), time.process_time()
    files = sorted(folder.iterdir())
    read = (one for path in files if (one := from_bytes(path.read_bytes(), path.name)) is not None)
    gang = gang_of(read, [path.name for path in files])
    took, spent = time.perf_counter() - begun, time.process_time() - spent
    return (
        f"{took:.1f} s ({spent:.1f} s of CPU), peak {_peak_mb():,.0f} MB; {gang.job.verdict}"
        f" {gang.job.culprit and gang.job.culprit.name}, replay error {gang.job.replay_error:.1e}"
    )


def _one(recording: Path, times: int) -> str:
    imported, wall, cpu = _peak_mb(), [], []
    for _ in range(times):
        begun, spent = time.perf_counter(), time.process_time()
        digest_of_trace(recording, read_trace)
        wall.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - spent)
    return (
        f"{recording.name}: {min(cpu[1:]):.2f} s of CPU warm ({cpu[0]:.2f} s at first), {min(wall[1:]):.2f} s of"
        f" time, peak {_peak_mb() - imported:.0f} MB over the {imported:.0f} MB of the imports"
    )


def _map(recording: Path, ranks: int, workers: int) -> tuple[float, float]:
    """Seconds that it takes, and of CPU in all processes."""
    import joblib

    todo = [joblib.delayed(_spent)(recording) for _ in range(ranks)]
    parallel = joblib.Parallel(n_jobs=workers, backend="loky")
    parallel(todo[: 2 * workers])  # starts the processes, which import and compile
    begun = time.perf_counter()
    spent: list[float] = list(parallel(todo))  # type: ignore[arg-type]
    return time.perf_counter() - begun, sum(spent)


def _spent(recording: Path) -> float:
    """Seconds of CPU for one digest."""
    begun = time.process_time()
    digest_of_trace(recording, read_trace)
    return time.process_time() - begun


def _peak_mb() -> float:
    return most_resident_bytes() / 2**20


def _make(shape: Shape, slow: Slow, folder: Path) -> int:
    made = programs(shape, slow)
    for one in digests(shape, made, simulate(made)):
        (folder / f"{one.rank:05d}.npz").write_bytes(to_bytes(one))
    return len(made[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="1,024 digests of 3,000 rows too")
    parser.add_argument("--ranks", type=int, default=LARGE.ranks, help="of the large job, a multiple of 64")
    parser.add_argument("--layers", type=int, default=LARGE.layers, help="of each of its stages: rows of a rank")
    parser.add_argument(
        "--recording", type=Path, help="of one rank: what its digest costs, and 64 of them on two processes"
    )
    options = parser.parse_args()
    for shape in (Shape(), Shape(tensor=2, pipeline=4, data=4, gpus=4), Shape(tensor=1, pipeline=1, data=8, gpus=4)):
        for one in outcomes(shape):
            after = "" if one.without_error is None else f", without it {100 * one.without_error:+.1f} %"
            print(
                f"{one.ranks:5} ranks  {one.name:8} {'ok   ' if one.right else 'WRONG'} {one.verdict} {one.culprit[:6]}"
                f"  step {100 * one.step_error:+.2f} %{after}, replay {one.replay_error:.1e}"
            )
    if options.large:
        large(dataclasses.replace(LARGE, data=options.ranks // 64, layers=options.layers))
    if options.recording:
        one_rank(options.recording)
        processes(options.recording)


if __name__ == "__main__":
    main()
