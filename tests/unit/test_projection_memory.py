"""What fits, compared with sums done by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpuprof.costs.hardware import Gpu, find
from gpuprof.diagnosis.projection_input.pass_peaks import pass_peaks
from gpuprof.projection.memory.activations import LinearBytes, Loss, RecordedPeak, activations
from gpuprof.projection.memory.recorded_memory import RecordedMemory, fit, share_that_fits, usage
from gpuprof.runfile import STAGES
from gpuprof.tracefile.run_folder.run import StepColumns
from gpuprof.tracefile.trace import ABSENT

GB = 1e9
PLAIN = RecordedPeak(above_bytes=8 * GB, tokens=4_000)
RECORDED = RecordedMemory(10_000_000_000, PLAIN, embedding_bytes=2 * GB)


def gpu(name: str) -> Gpu:
    found = find(name)
    assert found is not None
    return found


def near(line: LinearBytes, fixed: float, per_token: float) -> bool:
    return (line.fixed_bytes, line.per_token) == (pytest.approx(fixed, abs=1), pytest.approx(per_token))


# -- sums done by hand


def test_static_goes_with_layers_and_experts():
    assert usage(RECORDED).static_bytes == 10 * GB
    assert usage(RECORDED, deeper=3.0).static_bytes == 2 * GB + 3 * 8 * GB
    moe = dataclasses.replace(RECORDED, expert_share=0.5)
    assert usage(moe, wider=4.0).static_bytes == 2 * GB + 4 * GB + 4 * 4 * GB


def test_without_more_known_all_of_the_peak_grows():
    found = activations(PLAIN)
    assert found.basis == "grows"
    assert near(found.likely, 0, 2e6)
    assert near(found.least, 0.8 * GB, 1.8e6)
    assert near(activations(PLAIN, deeper=3.0).likely, 0, 6e6), "without checkpointing activations go with the layers"
    kept = dataclasses.replace(PLAIN, checkpointing=True, kept_bytes=1e4)
    assert near(activations(kept, deeper=3.0, more_layers=20).likely, 0, 2e6 + 20e4)


def test_logits_are_there_once_however_many_layers():
    result = dataclasses.replace(PLAIN, loss=Loss(50_000, 1.0))
    assert near(activations(result, deeper=3.0).likely, 0, 12 * 50_000 + 3 * (2e6 - 12 * 50_000))


def test_a_peak_in_the_loss_holds_no_gradients():
    result = dataclasses.replace(PLAIN, gradient_bytes=2 * GB)
    assert near(activations(result).likely, -2 * GB, 2.5e6)
    assert activations(result).likely.at(4_000) == pytest.approx(8 * GB)


def test_a_peak_of_the_optimizer_is_a_floor():
    result = RecordedPeak(7.3 * GB, 256, layers=4, hidden=4096, loss=Loss(128_256, 1.0), gradient_bytes=7.3 * GB,
                    temporary_bytes=7.3 * GB)  # fmt: skip
    found = activations(result)
    assert found.basis == "optimizer"
    assert found.likely.at(2048) == found.most.at(2048) == 7.3 * GB
    assert found.likely.at(20_000) == pytest.approx((12 * 128_256 + 50 * 4 * 4096) * 20_000 - 7.3 * GB)
    fused = dataclasses.replace(result, temporary_bytes=0.0, above_bytes=4e6)
    assert activations(fused).basis == "optimizer", "no room for activations above gradients that are all there"


def test_a_loss_in_pieces_leaves_a_rest_that_stays():
    result = RecordedPeak(4 * GB, 4_000, checkpointing=True, layers=4, hidden=2880, loss=Loss(200_000, 0.25))
    found = activations(result)
    slope = 12 * 200_000 * 0.25 + 50 * 2880
    assert found.basis == "shape"
    assert near(found.likely, 4 * GB - slope * 4_000, slope)
    assert near(found.least, 4 * GB - 34 * 2880 * 4_000, 34 * 2880), "pieces may be made smaller"
    assert near(found.most, 0, 1e6)
    sized = dataclasses.replace(result, loss=Loss(200_000, 0.1, fixed_rows=512))
    assert near(activations(sized).likely, 4 * GB - 50 * 2880 * 4_000, 50 * 2880)
    whole = dataclasses.replace(result, loss=Loss(200_000, 1.0))
    assert activations(whole).basis == "grows"


def test_scores_that_are_written_out_go_with_the_length_too():
    result = dataclasses.replace(PLAIN, score_bytes=4 * GB)
    assert near(activations(result, longer=3.0).likely, 0, 1e6 + 3 * 1e6)
    # Recomputed layer by layer, they exist while the logits do not.
    again = activations(dataclasses.replace(result, checkpointing=True, layers=4, hidden=4096), longer=3.0).likely
    assert near(again, 0, 2e6)
    assert again.at(4_000) == pytest.approx((50 * 4096 + 3 * 1e6) * 4_000)
    assert again.most_tokens(again.at(4_000)) == pytest.approx(4_000)


def test_what_fits():
    use, one, total = usage(RECORDED), gpu("RTX 4090"), 25_770_000_000
    found = fit(one, use, 8_000, 4, total)
    assert found.usable_bytes == int((total - 1_500_000_000) / 1.04)
    assert found.activation_bytes == 16_000_000_000
    assert not found.fits
    room = found.usable_bytes - 10 * GB
    assert found.largest_batch == int(4 * room / 16e9) == 3
    assert found.largest_batch_low == int(4 * room / 16.48e9)
    assert share_that_fits(found, use, 8_000, 4) == 0.5
    none = dataclasses.replace(use, static_bytes=25 * GB)
    assert share_that_fits(found, none, 8_000, 4) is None
    assert fit(one, none, 8_000, 4, total).largest_batch == 0


# -- the run's own peaks


def steps(rows: list[tuple[str, int, int]], allocated: int = 1_000) -> StepColumns:
    """(stage, tokens, peak so far) by step."""
    count = len(rows)
    absent = np.full(count, ABSENT, np.int64)
    return StepColumns(
        rank=np.zeros(count, np.int32), step=np.arange(1, count + 1),
        stage=np.array([STAGES.index(stage) for stage, _, _ in rows], np.uint8), unix_ns=absent, ns=absent,
        device_ns=absent, data_ns=absent, micro_steps=np.ones(count, np.int64), samples=absent,
        tokens=np.array([tokens for _, tokens, _ in rows], np.int64), real_tokens=absent, pairs=absent,
        useful_pairs=absent, labelled_tokens=absent,
        allocated_bytes=np.full(count, allocated), reserved_bytes=absent,
        peak_bytes=np.array([peak for _, _, peak in rows], np.int64), device_allocations=absent,
        new_shapes=absent, save_ns=absent, evaluation_ns=absent, logging_ns=absent, garbage_collection_ns=absent,
        compile_ns=absent, profiled=np.zeros(count, bool),
    )  # fmt: skip


def test_peaks_of_passes_of_other_lengths_give_the_line():
    timed = [("baseline_free", n, 1_000 + 500 + 2 * n) for n in (100, 200, 400)]
    lower = [("baseline_free", 300, timed[-1][2])]
    found = pass_peaks(steps([("settle", 900, 1_600), *timed, *lower]), 0)
    assert found.tokens == 400
    assert found.fixed_bytes == pytest.approx(500)


def test_peaks_that_nothing_raised_only_bound():
    found = pass_peaks(steps([("settle", 900, 9_000), ("baseline_free", 300, 9_000), ("baseline_sync", 700, 9_000)]), 0)
    assert (found.tokens, found.fixed_bytes) == (700, None), "what settling steps tell may be of the next batch"
    assert pass_peaks(steps([]), 0).tokens is None


def test_points_that_lie_on_no_line_are_none():
    rows = [("settle", 1, 1_100), ("baseline_free", 100, 2_000), ("baseline_free", 90, 3_000),
            ("baseline_free", 300, 3_100)]  # fmt: skip
    assert pass_peaks(steps(rows), 0).fixed_bytes is None
