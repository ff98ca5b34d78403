"""Metrics of all logits in each step; not a teacher's pass, moving averages, or what the loss may contain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.case import only
from helpers.make_samples import planted_samples, write_samples
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.present import present
from helpers.program import FLOAT, MS, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import step_metrics
from gpuprof.diagnosis.sampled.host_calls import StackColumns
from gpuprof.diagnosis.sampled.host_places import places
from gpuprof.tracefile.run_folder.samples import read_samples

ENGINE = "autograd::engine::evaluate_function"
LOGITS = [8, 1024, 32_000]
PASS, METRIC = 10 * MS, 2 * MS


class Training(Program):
    """Passes whose backward evaluates their ops' sequence numbers, the last op's in a separate range."""

    def forward(self, layers: int = 40) -> list[int]:
        numbers = list[int]()
        for _ in range(layers):
            self.op("aten::mm", "nvjet", PASS // layers, [[8192, 1024], [1024, 1024]], [FLOAT, FLOAT])
            numbers.append(self.sequence)
        return numbers

    def loss(self) -> int:
        self.plain("sum", LOGITS, type=FLOAT, gpu=100 * US)
        return self.sequence

    def gradients_of(self, numbers: list[int]) -> None:
        self.tid = AUTOGRAD
        for number in reversed(numbers):
            start = self.now
            self.op("aten::mm", "nvjet", PASS // len(numbers), [[8192, 1024], [1024, 1024]], [FLOAT, FLOAT])
            arguments: dict[str, Any] = {"Sequence number": number, "Fwd thread id": 1}
            self.trace.op(f"{ENGINE}: MmBackward0", start - US, self.now + US, AUTOGRAD, **arguments)
            self.now += 2 * US
        self.tid = MAIN

    def metrics(self, read: bool = True) -> None:
        for name in ("softmax", "topk"):
            self.plain(name, LOGITS, type=FLOAT, gpu=METRIC)
        self.plain("mean", [8, 1024], type=FLOAT, gpu=10 * US)
        if read:
            self.item()

    def without_gradients(self, body: Callable[[], object]) -> None:
        self.gradients = False
        body()
        self.gradients = True

    def decode(self, reads: int = 100) -> None:
        """Reads one value after the other, with Python in between."""
        self.plain("max", LOGITS, type=FLOAT, gpu=100 * US)
        for _ in range(reads):
            self.python(50 * US)
            self.item()


def nothing(_: Training) -> None:
    pass


def trained(
    folder: Path,
    before: Callable[[Training], object],
    after: Callable[[Training], object],
    between: Callable[[Training], object] = nothing,
    steps: int = 4,
) -> Analysis:
    """Steps; `before` runs between the model and the loss, `between` between loss and backward pass, `after` after
    that."""
    program = Training()

    def body():
        numbers = program.forward()
        before(program)
        numbers.append(program.loss())
        first = program.sequence
        between(program)
        program.gradients_of([*numbers, *range(first + 1, program.sequence + 1)])
        after(program)

    for _ in range(steps):
        program.step(body)
    return program.case(folder)


def no_grad(program: Training) -> None:
    program.without_gradients(program.metrics)


def test_metrics_after_the_backward_pass_stay_in_one_step_of_50(tmp_path: Path):
    case = trained(tmp_path, nothing, no_grad)
    proposal = only(step_metrics, case)
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert 0.95 * 2 * METRIC < saved < 1.3 * 2 * METRIC
    assert case.step_of(proposal.change(case.graph)) <= case.step_of(present(proposal.worst)(case.graph)) < case.step_ns
    text = proposal.evidence[0].text
    assert "softmax" in text and "8 × 1,024 × 32,000" in text and "for 1 values" in text


def test_gradients_that_no_backward_pass_computes_make_no_difference(tmp_path: Path):
    assert list(step_metrics.find(trained(tmp_path, nothing, Training.metrics)))


def test_metrics_between_the_loss_and_the_backward_pass(tmp_path: Path):
    case = trained(tmp_path, nothing, nothing, no_grad)
    assert case.step_of(only(step_metrics, case).change(case.graph)) < case.step_ns - 0.95 * 2 * METRIC


def decoded(program: Training) -> None:
    program.without_gradients(program.decode)


def test_many_reads_with_little_gpu_work_may_be_needed(tmp_path: Path):
    case = trained(tmp_path, nothing, decoded)
    proposal = only(step_metrics, case)
    assert proposal.odds < 1 and proposal.needs
    assert case.step_ns - case.step_of(proposal.change(case.graph)) > 0.9 * 100 * 60 * US
    assert case.step_of(proposal.change(case.graph)) < case.step_of(present(proposal.worst)(case.graph)) < case.step_ns


def test_a_step_that_begins_with_what_the_one_before_read(tmp_path: Path):
    program = Training()

    def body() -> None:
        no_grad(program)
        program.gradients_of([*program.forward(), program.loss()])

    program.step(body)
    assert list(step_metrics.find(program.case(tmp_path)))


@pytest.mark.parametrize(("file", "is_sure"), [("torchmetrics/text/wer.py", True), ("rewards/wer.py", False)])
def test_a_package_of_metrics_computes_what_was_read(tmp_path: Path, file: str, is_sure: bool):
    """Reads little, and then stays in Python for as long as a pass takes."""

    def read(program: Training) -> None:
        program.without_gradients(lambda: (program.plain("argmax", [8, 100]), program.item()))
        program.python(PASS)

    case = trained(tmp_path, nothing, read)
    graph = case.graph
    long = (graph.duration_ns > 0.9 * PASS) & (graph.lane == case.timeline.main_thread) & ~graph.waits
    document: Any = planted_samples(case, {"distance": long})
    document["functions"][1][1] = file
    write_samples(document, tmp_path)
    samples = present(read_samples(tmp_path, 0))
    case.memo["sampled"] = StackColumns(samples), present(places(case, samples))
    if not is_sure:
        assert not list(step_metrics.find(case))
        return
    proposal = only(step_metrics, case)
    assert proposal.odds == 1 and "package of metrics" in proposal.evidence[0].text
    assert case.step_ns - case.step_of(proposal.change(graph)) == pytest.approx(PASS, rel=0.15)


def weighted(program: Training) -> None:
    """The rows of a loss, each times what was read."""
    no_grad(program)
    program.plain("mul", [8], [8], type=FLOAT)


def test_not_what_a_loss_is_weighted_by(tmp_path: Path):
    assert not list(step_metrics.find(trained(tmp_path, nothing, nothing, weighted)))


def teacher(program: Training) -> None:
    program.without_gradients(program.forward)
    no_grad(program)


def average(program: Training) -> None:
    program.without_gradients(lambda: program.plain("lerp_", LOGITS, LOGITS, type=FLOAT, gpu=METRIC))
    program.item()


def unread(program: Training) -> None:
    program.without_gradients(lambda: program.metrics(read=False))
    program.small_mm()


@pytest.mark.parametrize(
    ("before", "after"),
    [(no_grad, nothing), (nothing, teacher), (teacher, nothing), (nothing, average), (nothing, unread)],
    ids=["in front of the loss", "a teacher's", "a teacher's in front of the loss", "a moving average", "not read"],
)
def test_not_what_a_loss_may_contain_or_what_is_kept(tmp_path: Path, before, after):
    assert not list(step_metrics.find(trained(tmp_path, before, after)))


def test_not_what_follows_the_copy_of_the_next_batch(tmp_path: Path):
    def prepared(program: Training) -> None:
        start = program.now
        program.launch("Memcpy HtoD (Pinned -> Device)", (start + 2 * US, start + 6 * US), 5 * US, cat="gpu_memcpy")
        program.now += 10 * US
        program.trace.op("aten::to", start, program.now)
        decoded(program)

    assert not list(step_metrics.find(trained(tmp_path, nothing, prepared)))


def test_not_inputs_of_the_next_pass(tmp_path: Path):
    """The next pass begins with a tensor of the size of what the run computes."""

    def scaled(program: Training) -> None:
        program.without_gradients(lambda: program.plain("div", [8192, 1024], type=FLOAT, gpu=METRIC))
        program.item()

    assert not list(step_metrics.find(trained(tmp_path, nothing, scaled)))


def norms(program: Training, tensors: int = 40, then: str = "") -> None:
    """The norm of each gradient, one after the other, all of which are read; `then`: an op on each gradient."""
    shapes = [[1024, 1024], [4096, 1024]] * (tensors // 2)

    def body() -> None:
        for shape in shapes:
            program.plain("linalg_vector_norm", shape, [], type=FLOAT, gpu=5 * US)
        for _ in shapes:
            program.item()
        for shape in shapes if then else ():
            program.plain(then, shape, [], type=FLOAT, gpu=5 * US)

    program.without_gradients(body)


def test_norms_of_gradients_stay_in_one_step_of_50(tmp_path: Path):
    case = trained(tmp_path, nothing, norms)
    proposal = only(step_metrics, case, "gradients")
    assert "of 40 tensors" in proposal.evidence[0].text and "40 values" in proposal.evidence[0].text
    assert proposal.odds < 1
    assert case.step_of(proposal.change(case.graph)) < case.step_ns - 40 * 20 * US
    assert case.step_of(present(proposal.worst)(case.graph)) < case.step_ns


def test_the_optimizers_weight_decay_is_no_clipping(tmp_path: Path):
    def logged(program: Training) -> None:
        norms(program)
        start = program.now
        program.without_gradients(lambda: program.plain("_foreach_mul_", [4096, 1024], [], type=FLOAT))
        program.trace.annotation("Optimizer.step#AdamW.step", start - 1, program.now)

    assert only(step_metrics, trained(tmp_path, nothing, logged), "gradients")


@pytest.mark.parametrize(("tensors", "then"), [(8, ""), (40, "mul_")], ids=["few", "clipping"])
def test_norms_that_are_few_or_clip_are_no_log(tmp_path: Path, tensors: int, then: str):
    assert not list(step_metrics.find(trained(tmp_path, nothing, lambda program: norms(program, tensors, then))))
