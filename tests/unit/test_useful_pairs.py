"""Which part of a batch's attention is useful, read from its tensors in host memory."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

from gpuprof.record.model.batch import WorkMeter, tensors_in, work_of  # noqa: E402
from gpuprof.record.model.useful_pairs import labelled_tokens, useful_pairs  # noqa: E402


def brute(blocks: list[list[int]], length: int) -> int:
    """The number of pairs, counted with an explicit mask."""
    total = 0
    for row in blocks:
        owner = torch.full((length,), -1)
        at = 0
        for number, n in enumerate(row):
            owner[at : at + n] = number
            at += n
        total += int(((owner[:, None] == owner[None, :]) & (owner >= 0)[:, None]).sum())
    return total


def test_packed_documents_by_their_positions():
    documents = [[5, 3, 8], [16]]
    positions = torch.tensor([[i for n in row for i in range(n)] for row in documents])
    assert useful_pairs({"position_ids": positions}, 2, 16) == brute(documents, 16) == 25 + 9 + 64 + 256


def test_one_sixteenth_of_the_scores():
    positions = torch.arange(2048).repeat(16)[None]
    batch = {"input_ids": torch.zeros(1, 32768, dtype=torch.long), "position_ids": positions}
    work = work_of(batch, tensors_in(batch))
    assert work is not None
    assert work.pairs == 32768**2
    assert work.useful_pairs == work.pairs // 16


def test_padding_by_its_mask():
    mask = torch.tensor([[1] * 6 + [0] * 2, [0] * 3 + [1] * 5])
    assert useful_pairs({"attention_mask": mask}, 2, 8) == 36 + 25


def test_lengths_and_their_sums():
    assert useful_pairs({"cu_seq_lens_q": torch.tensor([0, 4, 10], dtype=torch.int32)}, 1, 10) == 16 + 36
    assert useful_pairs({"seq_lengths": [[4, 6]]}, 1, 10) == 16 + 36
    assert useful_pairs({"cu_seq_lens_q": torch.tensor([0, 4, 9])}, 1, 10) is None, "they are of something else"


@pytest.mark.parametrize("float_mask", [False, True])
def test_a_mask_of_all_pairs(float_mask):
    """Block by block, and causal within the blocks: the same share of all pairs, causal or not."""
    blocks = torch.block_diag(torch.ones(3, 3), torch.ones(5, 5)).bool()
    for seen in (blocks, blocks & torch.ones(8, 8).tril().bool()):
        mask = torch.where(seen, 0.0, -1e9)[None, None] if float_mask else seen[None, None]
        assert useful_pairs({"attention_mask": mask}, 1, 8) == 9 + 25


@pytest.mark.parametrize("causal", [False, True])
def test_a_large_mask_of_all_pairs_is_counted_in_some_rows(causal):
    """Documents of 100 to 700 tokens in rows of 2048: nearly exact although only 64 of 2048 rows are read."""
    numbers = torch.arange(2048).div(torch.tensor([[300], [517]]), rounding_mode="floor")
    seen = numbers[:, :, None] == numbers[:, None]
    wanted = int(seen.sum())
    if causal:
        seen &= torch.ones(2048, 2048).tril().bool()
    with torch.profiler.profile(record_shapes=True) as profiler:
        found = useful_pairs({"attention_mask": seen[:, None]}, 2, 2048)
    assert found == pytest.approx(wanted, rel=0.05)
    shapes = [shape for event in profiler.events() for shape in event.input_shapes if event.name == "aten::sum"]
    assert shapes and all(torch.Size(shape).numel() <= 1 << 18 for shape in shapes if shape)


def test_positions_that_only_count_say_nothing():
    assert useful_pairs({"position_ids": torch.arange(8)[None]}, 1, 8) is None


def test_labels():
    labels = torch.tensor([[-100, -100, 5, 6]])
    assert labelled_tokens({"labels": labels}, 1, 4) == 2
    assert labelled_tokens({"labels": torch.tensor([1])}, 1, 4) is None


def test_the_loader_tells_of_a_batch_that_the_model_is_then_given():
    """The model gets its batch on the GPU, where nothing is read; the batch is recognised by its shape."""
    meter = WorkMeter()
    ids = torch.zeros(1, 8, dtype=torch.long)
    meter.fetched({"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])})
    meter.called({"input_ids": ids.to("meta")})
    work = meter.take()
    assert (work.pairs, work.useful_pairs) == (64, 9 + 25)


def test_nothing_is_read_from_another_device():
    assert useful_pairs({"attention_mask": torch.ones(1, 8, device="meta")}, 1, 8) is None


def test_values_are_read_for_a_share_of_the_time_only():
    """Always for a recorded step; otherwise not again before reading is a small part of the time. Shapes tell the
    tokens in each step."""
    meter, batch = WorkMeter(), {"input_ids": torch.zeros(2, 8, dtype=torch.long), "attention_mask": torch.ones(2, 8)}

    def step(now_ns: int, recorded: bool = False) -> tuple[int | None, int | None]:
        meter.begin(now_ns, every=recorded)
        meter.called(batch)
        work = meter.take()
        return work.tokens, work.real_tokens

    assert step(0) == (16, 16)
    assert step(1) == (16, None), "the first reading took longer than a nanosecond"
    assert step(2, recorded=True) == (16, 16)
    assert step(3) == (16, None)
    assert step(10**12) == (16, 16)


def test_a_batch_counts_in_steps_without_a_call():
    """Where every step calls the model, a loader's batch is looked at only for its values; the inputs of a model whose
    calls are not seen (because it is compiled, for instance) are known from the batch."""
    meter, batch = WorkMeter(), {"input_ids": torch.zeros(2, 8, dtype=torch.long)}
    meter.begin(0, every=True)
    meter.begin_calls()
    tokens = []
    for step, calls in enumerate([1, 1, 0, 0, 2]):
        meter.begin(step, every=False)
        meter.fetched(batch)
        for _ in range(calls):
            meter.called({"input_ids": torch.zeros(3, 8, dtype=torch.long)})
        tokens.append(meter.take().tokens)
    assert tokens[:2] + tokens[3:] == [24, 24, 16, 48]


def test_calls_without_names_are_known_by_their_types():
    meter = WorkMeter()
    shapes, works = [], []
    for one in (torch.zeros(2, 8), torch.zeros(2, 8, dtype=torch.long), torch.zeros(2, 8), torch.zeros(2, 9)):
        meter.called(((one,), {}))
        shapes.append(meter.new_shapes)
        works.append(meter.take().tokens)
    assert works == [None, 16, None, None] and shapes == [0, 1, 0, 1]


def test_tensors_are_found_with_their_keys():
    ids, mask = torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 4)
    found = tensors_in(((mask,), {"input_ids": ids, "more": {"attention_mask": mask, "note": "text"}}))
    assert [key for key, _ in found] == [None, "input_ids", "attention_mask"]
    assert tensors_in([[[[ids]]]]) == [], "not deeper than a batch is nested"


def test_a_forked_child_is_not_the_thread_that_trains():
    from gpuprof.record.steps.step_clock import StepClock

    clock = StepClock("recorder", lambda: None)
    assert clock.is_here()
    child = os.fork()
    if not child:
        os._exit(1 if clock.is_here() else 0)
    assert os.waitpid(child, 0)[1] == 0
    assert clock.is_here()
