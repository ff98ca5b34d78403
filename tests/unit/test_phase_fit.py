"""The CPU's time, fitted to what steps without a profiler show of it: of its parts, and where it runs ahead."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.program import MS, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.mean_step.steps_ahead import shortest_ahead
from gpuprof.diagnosis.run.sampled_phases import sampled_parts
from gpuprof.replay.simulate import ROUNDS, simulate, step_of
from gpuprof.replay.transform import scale
from gpuprof.replay.unprofiled.phase_fit import Parts, _nodes, _parts, fitted_to_parts
from gpuprof.replay.unprofiled.profiler_fit import no_slower_cpu, remove_profiler
from gpuprof.tracefile.run_folder.samples import HostSamples


def _case(tmp_path, passes: int = 1, gpu: int = 3 * US) -> Analysis:
    """40 ops before, 40 in each backward pass, and 20 at the end; the kernels are short, so the CPU is the limit."""
    program = Program()

    def body():
        for _ in range(passes):
            for _ in range(40):
                program.small_mm(gpu=gpu)
            program.backward(lambda: program.small_mm(gpu=gpu), 40)
        for _ in range(20):
            program.small_mm(gpu=gpu)

    for _ in range(3):
        program.step(body)
    return program.case(tmp_path)


def _shares(case: Analysis, graph) -> np.ndarray:
    nodes, last = _nodes(graph)
    found = _parts(simulate(graph, ROUNDS), nodes[1], last)
    assert found is not None
    return np.array(found) / sum(found)


@pytest.mark.parametrize("passes", [1, 3])
def test_parts_get_their_shares_and_the_step_stays(tmp_path, passes):
    case = _case(tmp_path, passes)
    wanted = Parts(0.55, 0.3, 0.15)
    before = _shares(case, case.graph)
    assert abs(before - np.array(wanted)).max() > 0.05, "otherwise this shows nothing"
    fitted = fitted_to_parts(case.graph, wanted)
    assert _shares(case, fitted) == pytest.approx(np.array(wanted), abs=0.02)
    assert step_of(fitted) == pytest.approx(case.step_ns, rel=0.005)
    assert (fitted.duration_ns[fitted.on_gpu] == case.graph.duration_ns[case.graph.on_gpu]).all()


def test_a_step_that_the_gpu_limits_stays_as_it_is(tmp_path):
    case = _case(tmp_path, gpu=100 * US)
    assert fitted_to_parts(case.graph, Parts(0.6, 0.3, 0.1)) is case.graph


def _samples(steps: int, marks: list[tuple[str, int]]) -> HostSamples:
    """Steps of 10 ms, each with these marks."""
    empty = np.empty(0, np.int64)
    every = tuple((name, i * 10 * MS + ns) for i in range(steps) for name, ns in marks)
    ends = np.arange(steps + 1, dtype=np.int64) * 10 * MS
    return HostSamples((), empty, empty, empty, empty, empty, empty, ends, every, 0, 1_000_000)


TWO_PASSES = [("forward", 0), ("backward", 2 * MS), ("backward_end", 4 * MS), ("forward", 4 * MS),
              ("backward", 5 * MS), ("backward_end", 8 * MS), ("optimizer", 9 * MS)]  # fmt: skip


def test_marks_say_the_parts_of_a_step():
    assert sampled_parts(_samples(4, TWO_PASSES), 10 * MS) == pytest.approx(Parts(0.3, 0.5, 0.2))


@pytest.mark.parametrize(
    ("samples", "step_ms"),
    [
        (None, 10), (_samples(2, TWO_PASSES), 10), (_samples(4, TWO_PASSES), 20), (_samples(4, TWO_PASSES), None),
        (_samples(4, [("forward", 0), ("optimizer", 9 * MS)]), 10),
        (_samples(4, [("data", 0), ("data_end", 2 * MS), *TWO_PASSES[1:]]), 10),
    ],
)  # fmt: skip
def test_another_step_few_of_them_or_no_marks_say_nothing(samples, step_ms):
    assert sampled_parts(samples, None if step_ms is None else step_ms * MS) is None


def test_a_cpu_that_ran_ahead_is_no_slower_than_it_showed(tmp_path):
    """A step of GPU work that hides the CPU: what recording left of its time is too long, as a timed step shows."""
    program = Program()
    for _ in range(3):
        program.step(lambda: [program.small_mm(gpu=60 * US) for _ in range(60)])
    graph = program.case(tmp_path).graph
    step, alone = step_of(graph), step_of(scale(graph, device=0.0))
    found = remove_profiler(graph, step, cpu_ns=alone / 3).graph
    assert step_of(scale(found, device=0.0)) == pytest.approx(alone / 3, rel=0.1)
    assert step_of(found) == pytest.approx(step, rel=0.005), "the step is as it was timed"
    assert no_slower_cpu(graph, 2 * alone) is graph


def test_the_shortest_step_of_the_usual_work_in_which_the_cpu_was_ahead():
    gpu = np.array([100, 100, 100, 20, 900])
    assert shortest_ahead(np.array([60, 70, 100, 10, 30]), gpu) == 60, "less work, and more, count for nothing"
    assert shortest_ahead(np.array([95, 99, 100, 10, 900]), gpu) is None, "a step that waits shows nothing"
    assert shortest_ahead(np.zeros(5, np.int64), gpu) is None
