"""Host time of a step by phase: exact, given to the innermost phase, and only after a phase was marked."""

from __future__ import annotations

import contextlib
import os
import time

import pytest
from helpers.cpu_time import times_as_long

import gpuprof
from gpuprof.record.phases.decode_window import FEWEST_PASSES, MOST_PASSES, SHORT_LOOP_PASSES, DecodeWindow
from gpuprof.record.phases.phase_clock import PhaseClock
from gpuprof.record.phases.phase_patches import PhasePatches, completion_lengths
from gpuprof.record.steps.free_run_length import MOST_TIMED_STEPS
from gpuprof.record.steps.schedule import iterations_left, of_iterations, plan

MS = 1_000_000


def wait(ms: float) -> None:
    end = time.perf_counter_ns() + int(ms * MS)
    while time.perf_counter_ns() < end:
        pass


class Marked:
    """A phase of a clock, as a session marks it."""

    def __init__(self, clock: PhaseClock, phase: str) -> None:
        self.clock, self.phase = clock, phase

    def __enter__(self) -> None:
        self.clock.marked = True
        self.depth = self.clock.enter(self.phase)

    def __exit__(self, *_: object) -> None:
        self.clock.leave(self.depth)


def test_an_iteration_is_split_exactly():
    clock = PhaseClock()
    begun = time.perf_counter_ns()
    clock.begin(begun)
    wait(1)
    with Marked(clock, "advantage"):
        with Marked(clock, "generation"):
            wait(4)
        with Marked(clock, "reward"):
            wait(3)
        wait(2)
    clock.trained()
    wait(2)
    depth = clock.backward()
    wait(3)
    clock.backward_ended(depth)
    wait(1)
    now = time.perf_counter_ns()
    found = clock.take(now)["phases_ns"]
    assert sum(found.values()) == now - begun
    expected = {"other": 1, "generation": 4, "reward": 3, "advantage": 2, "forward": 2, "backward": 3, "optimizer": 1}
    assert set(found) == set(expected)
    for name, ms in expected.items():
        assert found[name] >= ms * MS, name


def test_a_supervised_step_says_nothing():
    clock = PhaseClock()
    clock.begin(time.perf_counter_ns())
    clock.trained()
    clock.backward_ended(clock.backward())
    assert clock.take(time.perf_counter_ns()) == {}


def test_generation_in_a_validation_is_validation():
    clock = PhaseClock()
    clock.begin(time.perf_counter_ns())
    with Marked(clock, "validation"), Marked(clock, "generation"):
        assert clock.phase == "validation"
        wait(1)
    assert set(clock.take(time.perf_counter_ns())["phases_ns"]) <= {"other", "validation"}


def test_a_phase_that_was_left_open_ends_with_the_one_around_it():
    clock = PhaseClock()
    clock.begin(time.perf_counter_ns())
    outer = clock.enter("reward")
    clock.enter("generation")
    clock.leave(outer)
    assert clock.phase == "other"
    clock.leave(outer)  # a second time does no harm
    assert clock.phase == "other"


def test_within_training_the_parts_are_found():
    clock = PhaseClock()
    clock.begin(time.perf_counter_ns())
    with Marked(clock, "training"):
        assert clock.phase == "forward"
        depth = clock.backward()
        assert clock.phase == "backward"
        clock.backward_ended(depth)
        assert clock.phase == "optimizer"


def test_steps_from_one_generation_to_the_next_are_counted():
    clock = PhaseClock()
    counted = []
    for step in range(7):
        clock.begin(time.perf_counter_ns())
        if step % 3 == 0:
            with Marked(clock, "generation"):
                wait(0.01)
        clock.take(time.perf_counter_ns())
        counted.append(clock.iteration_steps)
    assert counted == [0, 0, 0, 3, 3, 3, 3]


def test_a_long_loop_is_recorded_at_its_ends_and_in_the_middle():
    window = DecodeWindow(0)
    assert all(window.records(number) for number in range(1, 500))  # nothing is known of its length
    window.seen(400)
    check_parts(window, MOST_PASSES)
    window.seen(SHORT_LOOP_PASSES)
    assert all(window.records(number) for number in range(1, SHORT_LOOP_PASSES + 1))


def check_parts(window: DecodeWindow, part: int) -> None:
    recorded = [number for number in range(1, 401) if window.records(number)]
    assert recorded[:part] == list(range(1, part + 1))
    assert recorded[-part + 1 :] == list(range(400 - part + 2, 401))
    assert sum(150 < number < 250 for number in recorded) == part
    assert len(recorded) == 3 * part


@pytest.mark.parametrize(
    ("token_ms", "part"), [(2, MOST_PASSES), (12, MOST_PASSES), (20, 5), (40, 2), (300, FEWEST_PASSES)]
)
def test_of_long_decode_steps_fewer_are_recorded(token_ms: int, part: int):
    """The step's time goes into launching kernels, and the profiler needs time for each when it stops."""
    window = DecodeWindow(0)
    window.seen(400, 400 * token_ms * MS)
    check_parts(window, part)
    window.seen(400, 4000 * token_ms * MS)  # held up, for instance by a profiler
    check_parts(window, part)


@pytest.mark.parametrize("returned", [None, [[1]], ([1],), ("prompts", "text"), ("prompts", [1, 2])])
def test_lengths_are_only_read_from_lists(returned):
    assert completion_lengths(returned) == []


def test_lengths_of_completions():
    assert completion_lengths((["p"], [[1, 2, 3], [4]], None)) == [3, 1]


def test_reward_functions_are_timed_where_the_trainer_does_not():
    """Functions and methods are timed; what trainers recognise (models, coroutines) is left unchanged, and everything
    is restored afterwards."""
    timed: list[str] = []

    class Listener:
        def on_phase(self, phase: str, part: str | None = None, kept: bool = True, now: int | None = None) -> None:
            assert (phase, kept, now) == ("", True, None)

        def on_part(self, name: str, ns: int, cpu_ns: int) -> None:
            assert ns >= 0 and cpu_ns >= 0
            timed.append(name)

        def on_generate(self, generating: bool) -> None: ...
        def on_token(self, sequences: int) -> None: ...
        def on_completions(self, lengths: list[int]) -> None: ...
        def is_in(self, *phases: str) -> bool:
            return False

    def length(texts: list[str]) -> list[int]:
        return [len(one) for one in texts]

    def fails(texts: list[str]) -> list[int]:
        raise ValueError(texts[0])

    async def judge(texts: list[str]) -> list[int]:
        return [0 for _ in texts]

    class Model:
        def score(self, texts: list[str]) -> list[int]:
            return [1 for _ in texts]

    class Trainer:
        def __init__(self, *functions: object) -> None:
            self.reward_funcs = [*functions]

        def rewards(self, texts: list[str]) -> list[object]:
            self.seen = [*self.reward_funcs]
            return [one(texts) for one in self.reward_funcs if one not in (judge, model)]  # type: ignore[operator]

    model = Model()
    around = PhasePatches(Listener()).by_function(Trainer.rewards)
    trainer = Trainer(length, model.score, judge, model)
    assert around(trainer, ["ab", "c"]) == [[2, 1], [1, 1]]
    assert timed == ["length", "score"]
    assert trainer.seen[2:] == [judge, model]
    assert trainer.reward_funcs == [length, model.score, judge, model]
    failing = Trainer(fails)
    with pytest.raises(ValueError, match="ab"):
        around(failing, ["ab"])
    assert timed[-1] == "fails" and failing.reward_funcs == [fails]


def test_iterations_of_4_s_have_a_verdict_within_a_minute():
    found = of_iterations(plan(settle=0, step_s=4.0), 4.0, 1)
    settled = 2  # iterations before the plan is made
    recording = (settled + found.needs()) * 4.0
    assert found.trace == 1
    further = 4.0 * iterations_left(4.0, 4.0 * found.baseline)  # where the mean is not known well enough
    assert recording + further + 20 <= 60.0  # the rest is reading


def test_iterations_are_timed_for_so_long_at_most():
    assert [iterations_left(4.0, timed) for timed in (0.0, 8.0, 12.0, 13.0, 30.0)] == [4, 2, 1, 0, 0]
    assert iterations_left(0.5, 30.0) == MOST_TIMED_STEPS  # short ones are treated like any other steps


def test_stages_hold_whole_iterations():
    found = of_iterations(plan(settle=0, step_s=1.0), 4.0, 4)
    assert found.trace % 4 == 0 == found.baseline % 4
    assert found.trace


def test_short_iterations_are_planned_as_steps():
    before = plan(step_s=0.1)
    assert of_iterations(before, 0.1, 1) == before


@pytest.mark.parametrize(("iteration_s", "recorded"), [(0.3, 3), (0.6, 1), (1.2, 1), (4.0, 1)])
def test_no_more_is_recorded_than_the_profiler_stops_for_in_3_s(iteration_s: float, recorded: int):
    """It stopped for 1.3 to 1.65 s after an iteration of 1.2 s."""
    assert of_iterations(plan(step_s=iteration_s), iteration_s, 1).trace == recorded


def test_a_phase_costs_nothing_where_nothing_records():
    with gpuprof.phase("generation"):
        pass

    def marked() -> None:
        for _ in range(2000):
            with gpuprof.phase("reward"):
                pass

    def looked_up() -> None:
        for _ in range(2000):
            with contextlib.nullcontext():
                os.environ.get("GPUPROF_RUN")

    assert times_as_long(marked, looked_up, 5) < 15


def test_an_unknown_phase_is_refused():
    with pytest.raises(ValueError, match="generation, environment"):
        gpuprof.phase("rollout")


def test_a_profiler_of_the_programs_own_sees_the_phase():
    torch = pytest.importorskip("torch")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler, gpuprof.phase("generation"):
        torch.ones(3).sum()
    assert "phase: generation" in {event.key for event in profiler.key_averages()}
