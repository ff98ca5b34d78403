"""Many ranks: what the joint replay costs, and whether it names what is slow. `python -m benchmarks.ranks [--large]`.

Jobs are generated with one slow rank, host, stage, link, or uneven batches; what the step takes without it is known
exactly. `--large` also measures 1,024 digests of 3,000 rows, read from a folder.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rank_jobs import Shape, Slow, digests, programs, simulate
from gpuprof.diagnosis.ranks import gang_of
from gpuprof.ranks.storage import from_bytes, to_bytes

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
    """Of the replayed step against the exact one."""
    without_error: float | None
    """Of the step without what is slow."""
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
    """Time and memory from a folder of digests to the answer. The job is made in another process' memory."""
    slow = Slow(frozenset((shape.ranks // 2 + 1,)), factor=1.5)
    with tempfile.TemporaryDirectory() as folder:
        rows = _write(shape, slow, Path(folder))
        begun = time.perf_counter()
        files = sorted(Path(folder).iterdir())
        found = [one for path in files if (one := from_bytes(path.read_bytes(), path.name)) is not None]
        read = time.perf_counter()
        gang = gang_of(found, [path.name for path in files])
        done = time.perf_counter()
        size = sum(path.stat().st_size for path in files)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{shape.ranks} digests of {rows} rows, {size / 1e6:.0f} MB: read {read - begun:.1f} s,"
        f" answer {done - read:.1f} s,"
    )
    print(f"peak {peak:,.0f} MB; {gang.job.verdict} {gang.job.culprit and gang.job.culprit.name},", end=" ")
    print(f"replay error {gang.job.replay_error:.1e}")


def _write(shape: Shape, slow: Slow, folder: Path) -> int:
    """Writes the digests from a process of its own, so that its memory is not counted here; their rows."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_make, (shape, slow, folder))


def _make(shape: Shape, slow: Slow, folder: Path) -> int:
    made = programs(shape, slow)
    for one in digests(shape, made, simulate(made)):
        (folder / f"{one.rank:05d}.npz").write_bytes(to_bytes(one))
    return len(made[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="1,024 digests of 3,000 rows too")
    parser.add_argument("--ranks", type=int, help="of the large job, a multiple of 64")
    options = parser.parse_args()
    for shape in (Shape(), Shape(tensor=2, pipeline=4, data=4, gpus=4), Shape(tensor=1, pipeline=1, data=8, gpus=4)):
        for one in outcomes(shape):
            after = "" if one.without_error is None else f", without it {100 * one.without_error:+.1f} %"
            print(
                f"{one.ranks:5} ranks  {one.name:8} {'ok   ' if one.right else 'WRONG'} {one.verdict} {one.culprit[:6]}"
                f"  step {100 * one.step_error:+.2f} %{after}, replay {one.replay_error:.1e}"
            )
    if options.large:
        large(LARGE if options.ranks is None else _of(options.ranks))


def _of(ranks: int) -> Shape:
    return Shape(8, 8, ranks // 64, LARGE.layers, LARGE.micro_batches, LARGE.steps, 8)


if __name__ == "__main__":
    main()
