"""Generation within a training: found by ranges that mark it, otherwise by series of single-token forward passes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gpuprof
from gpuprof.timeline.intervals import EMPTY, union
from gpuprof.timeline.iteration_phases import phase_of, phase_spans, times_in_window, unrecorded
from gpuprof.timeline.phases import GENERATION, PHASES
from gpuprof.timeline.timeline import Timeline, build_timeline

torch = pytest.importorskip("torch")
WORDS, WIDTH, LENGTH = 50, 16, 24


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def iteration(model: Model, optimizer, length: int, marked: bool) -> None:
    def phase(name: str):
        return gpuprof.phase(name) if marked else torch.no_grad()

    tokens = torch.zeros(4, 5, dtype=torch.long)
    with phase("generation"), torch.no_grad():
        for _ in range(length):
            tokens = model(tokens)[:, -1:].argmax(-1)
    with phase("reward"):
        torch.ones(64, 64).sum()
    model(torch.zeros(4, 30, dtype=torch.long)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def recorded(path: Path, length: int, marked: bool, then: Callable[[], None] = lambda: None) -> Timeline:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    iteration(model, optimizer, length, marked)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(3):
            with torch.profiler.record_function("train_step"):
                iteration(model, optimizer, length, marked)
    profiler.export_chrome_trace(str(path))
    timeline = build_timeline(gpuprof.load(path))
    assert timeline is not None
    return timeline


def generated(timeline: Timeline, name: str) -> tuple[int, int]:
    """How many of the ops of this name are in generation, and how many there are."""
    trace = timeline.trace
    rows = np.flatnonzero(trace.rows_named(trace.ops.name, name.__eq__))
    return int(np.sum(timeline.host.op[rows] == GENERATION)), len(rows)


@pytest.mark.parametrize("marked", [True, False])
def test_decoding_is_not_a_forward_pass(tmp_path: Path, marked: bool):
    timeline = recorded(tmp_path / "trace.json", LENGTH, marked)
    mine, all_ = generated(timeline, "aten::embedding")
    assert all_ == 3 * (LENGTH + 1)
    # Without marks the prompt, which is not a single token, is not recognised as part of it.
    assert mine == 3 * LENGTH - (0 if marked else 3)
    names = {PHASES[code] for code in np.unique(timeline.host.op).tolist()}
    assert {"forward", "backward", "optimizer", "generation"} <= names


def test_a_few_single_tokens_are_no_decoding(tmp_path: Path):
    timeline = recorded(tmp_path / "trace.json", 6, marked=False)
    assert generated(timeline, "aten::embedding")[0] == 0


def test_marks_are_spans_without_overlap(tmp_path: Path):
    timeline = recorded(tmp_path / "trace.json", LENGTH, marked=True)
    spans = phase_spans(timeline.trace)
    assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(spans))
    assert [span.phase for span in spans if span.phase in ("generation", "reward")] == ["generation", "reward"] * 3
    times = times_in_window(spans, EMPTY, EMPTY, timeline.window)
    assert times["generation"][0] > times["reward"][0] > 0


def test_the_timeline_shows_phases_and_decode_steps(tmp_path: Path):
    from gpuprof.report.page.views.iteration_tracks import decode_steps, iteration_tracks
    from gpuprof.report.page.views.texts import Texts
    from gpuprof.report.page.views.timeline_window import choose

    timeline = recorded(tmp_path / "trace.json", LENGTH, marked=True)
    phases, decoding = iteration_tracks(timeline, choose(timeline), Texts(timeline.trace.strings), 0)
    assert (phases.name, phases.open, decoding.name, decoding.open) == ("iteration", True, "decode steps", False)
    start, end = decode_steps(timeline, list(phase_spans(timeline.trace)))
    assert len(start) == 3 * (LENGTH - 1)  # without the prompt
    assert (start[1:] >= end[:-1]).all() and (end > start).all()
    unmarked = recorded(tmp_path / "other.json", LENGTH, marked=False)
    assert iteration_tracks(unmarked, choose(unmarked), Texts(unmarked.trace.strings), 0) == []


def test_what_was_left_out_is_not_counted():
    spans = phase_spans_of((("generation", 0, 100), ("reward", 100, 150)))
    hidden = union(np.array([20]), np.array([60]))
    busy = union(np.array([0, 50]), np.array([10, 120]))
    assert times_in_window(spans, hidden, busy, (0, 200)) == {"generation": (60, 50), "reward": (50, 20)}


def phase_spans_of(given):
    from gpuprof.timeline.iteration_phases import PhaseSpan

    return tuple(PhaseSpan(*one) for one in given)


VERL = {
    ("gen", "reward", "old_log_prob", "update_actor"): ["generation", "reward", "log-probabilities"],
    ("gen", "mine", "other"): [],
    ("gen", "adv"): [],
    ("compute_ref_log_prob",): ["log-probabilities"],
    ("generate_sequences", "compute_rm_score"): ["generation", "reward"],
    ("update_actor",): [],
}
"""Marks → phases, without those of training, whose parts are found in other ways."""


@pytest.mark.parametrize("names", VERL)
def test_marks_of_a_framework(tmp_path: Path, names: tuple[str, ...]):
    """verl's timers count where several of them are present, as one alone may be anything; a worker's method counts
    alone."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        for name in names:
            with torch.profiler.record_function(name):
                torch.ones(3).sum()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = gpuprof.load(tmp_path / "trace.json")
    assert [span.phase for span in phase_spans(trace)] == VERL[names]
    trains = [span.phase for span in phase_spans(trace, training=True)].count("training")
    assert trains == ("update_actor" in names)


def test_names_that_are_no_phases():
    assert phase_of("phase: generation") == "generation"
    for name in ("generation", "phase: ", "phase: unheard of", "my phase: reward"):
        assert phase_of(name) is None


def test_a_pause_of_the_profiler_is_a_range(tmp_path: Path):
    from gpuprof.record.base.ranges import Ranges
    from gpuprof.record.windows.pause import Pause

    ranges = Ranges()
    ranges.record(True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        torch.ones(3).sum()
        pause = Pause(profiler, ranges)
        for _ in range(5):
            torch.ones(3).exp()
        assert pause.end() > 0
        torch.ones(3).sum()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = gpuprof.load(tmp_path / "trace.json")
    assert not trace.rows_named(trace.ops.name, "aten::exp".__eq__).any()
    sums = trace.ops.start_ns[trace.rows_named(trace.ops.name, "aten::sum".__eq__)]
    left_out = unrecorded(trace)
    assert len(left_out) == 1
    assert sums.min() < left_out.start[0] < left_out.end[0] < sums.max()


def test_a_profiler_that_cannot_pause_leaves_no_range():
    from gpuprof.record.base.ranges import Ranges
    from gpuprof.record.windows.pause import Pause

    class Unable:
        activities = ()

        def toggle_collection_dynamic(self, on: bool, activities: list) -> None:
            raise RuntimeError("not here")

    ranges = Ranges()
    ranges.record(True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with pytest.raises(RuntimeError, match="not here"):
            Pause(Unable(), ranges)
        torch.ones(3).sum()
    names = [event.key for event in profiler.key_averages()]
    assert names.count("not recorded: decoding") == 1  # it has ended: what follows is outside
    assert "aten::sum" in names


def test_a_decoder_that_is_trained_step_by_step_does_not_generate(tmp_path):
    """Each call takes one token of each sequence, and a backward pass goes through all calls; the same without
    gradients is generation."""
    model = Model()

    def decode():
        return torch.cat([model(torch.zeros(4, 1, dtype=torch.long)) for _ in range(LENGTH)], 1)

    def record(path: Path, train: bool) -> Timeline:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            for _ in range(3):
                with torch.profiler.record_function("train_step"):
                    with torch.set_grad_enabled(train):
                        logits = decode()
                    (logits if train else model(torch.zeros(4, 30, dtype=torch.long))).sum().backward()
        profiler.export_chrome_trace(str(path))
        timeline = build_timeline(gpuprof.load(path))
        assert timeline is not None
        return timeline

    assert len(record(tmp_path / "trained.json", True).host.generation) == 0
    assert len(record(tmp_path / "generated.json", False).host.generation) == 3
