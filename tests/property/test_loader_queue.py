"""The queue of a DataLoader's workers, compared with a plain event-by-event simulation, and properties that must
hold."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.replay.loader_queue import BATCHES, Loader, _batch_times, fed_step_ns

times = st.floats(1e5, 1e9)
workers = st.integers(1, 16)


def by_events(loader: Loader, consume_ns: float) -> float:
    """Mean time between batches, by a simulation with an event heap: workers, tasks and a consumer."""
    took = _batch_times(loader).tolist() if loader.spread else [loader.batch_ns] * BATCHES
    outstanding = loader.workers * loader.prefetch
    tasks: dict[int, list[int]] = {w: [] for w in range(loader.workers)}
    busy: dict[int, bool] = dict.fromkeys(range(loader.workers), False)
    events: list[tuple[float, int, str, int]] = []
    finished: set[int] = set()
    sent = 0
    taken: list[float] = []
    serial = 0
    ready = True

    def push(at: float, kind: str, number: int) -> None:
        nonlocal serial
        serial += 1
        heapq.heappush(events, (at, serial, kind, number))

    def send(now: float) -> None:
        nonlocal sent
        if sent < BATCHES:
            worker = sent % loader.workers
            tasks[worker].append(sent)
            sent += 1
            work(worker, now)

    def work(worker: int, now: float) -> None:
        if not busy[worker] and tasks[worker]:
            busy[worker] = True
            push(now + took[tasks[worker][0]], "made", worker)

    def take(now: float) -> None:
        nonlocal ready
        if ready and len(taken) < BATCHES and len(taken) in finished:
            taken.append(now)
            ready = False
            push(now + consume_ns, "free", 0)
            send(now)

    for _ in range(outstanding):
        send(0.0)
    while events:
        now, _, kind, worker = heapq.heappop(events)
        if kind == "made":
            finished.add(tasks[worker].pop(0))
            busy[worker] = False
            work(worker, now)
        else:
            ready = True
        take(now)
    first = BATCHES // 4
    return (taken[-1] - taken[first]) / (BATCHES - 1 - first)


@given(times, times, workers, st.integers(1, 4), st.sampled_from([0.1, 0.4, 1.0]))
def test_the_recurrence_is_the_simulation_by_events(batch, step, count, prefetch, spread):
    loader = Loader(batch, count, prefetch, spread)
    assert fed_step_ns(loader, step) == pytest.approx(by_events(loader, step), rel=1e-6)


@given(times, times, workers)
def test_without_spread_the_slower_side_sets_the_pace(batch, step, count):
    loader = Loader(batch, count)
    assert fed_step_ns(loader, step) == pytest.approx(by_events(loader, step), rel=count / 300)
    assert fed_step_ns(loader, step) == max(step, batch / count)


@given(times, times, workers, st.sampled_from([0.0, 0.3]))
def test_more_workers_and_faster_batches_never_hurt(batch, step, count, spread):
    mean = fed_step_ns(Loader(batch, count, 2, spread), step)
    assert fed_step_ns(Loader(batch, 2 * count, 2, spread), step) <= mean * 1.001
    assert fed_step_ns(Loader(batch / 2, count, 2, spread), step) <= mean * 1.001
    assert mean >= max(step, batch / count) * 0.999


def test_a_starved_training_does_not_gain_from_a_faster_step():
    loader = Loader(200e6, 4)
    assert fed_step_ns(loader, 20e6) == fed_step_ns(loader, 10e6) == 50e6
    assert fed_step_ns(Loader(200e6, 16), 20e6) == 20e6


def test_without_workers_making_a_batch_is_part_of_the_step():
    assert fed_step_ns(Loader(30e6, 0), 20e6) == 50e6
    assert fed_step_ns(Loader(30e6, 0), 20e6, batches=2) == 80e6
