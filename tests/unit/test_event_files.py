"""TensorBoard's event files, written by TensorBoard's own writer; the reader is compared with TensorBoard's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.installed import need

from gpuprof.diagnosis.iterations.logged import diagnose_logs
from gpuprof.errors import UnreadableTrace
from gpuprof.tracefile.training_logs.event_files import _crc32c, event_entries, event_files
from gpuprof.tracefile.training_logs.read import is_training_log, read_training_log

need("torch", "tensorboard")

STEP, GEN, TRAIN = "timing_s/step", "timing_s/gen", "timing_s/update_actor"


def written(folder: Path, steps: range, gen: float = 70.0) -> Path:
    """An event file of verl's scalars, with all kinds of numbers that writers produce."""
    import numpy as np
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder), filename_suffix=f".{steps.start}")
    writer.add_text("config", "lr: 1e-6\n" * 500)
    for step in steps:
        at = 1.7e9 + 101.5 * step
        writer.add_scalar(STEP, 100.0 + step, step, walltime=at)
        writer.add_scalar(GEN, gen + step, step, walltime=at, new_style=True)
        writer.add_scalar(TRAIN, 20.25, step, walltime=at, double_precision=True)
        writer.add_scalar("actor/loss", 0.1, step, walltime=at)
        writer.add_histogram("lengths", np.arange(3.0), step)
    writer.close()
    return next(path for path in event_files(folder) if path.name.endswith(f".{steps.start}"))


def test_the_checksum():
    assert _crc32c(b"123456789") == 0xE3069283  # RFC 3720's check value


def test_scalars_are_those_of_tensorboards_reader(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = written(tmp_path, range(1, 6))
    theirs = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    theirs.Reload()
    expected = {(tag, one.step): one.value for tag in (STEP, TRAIN) for one in theirs.Scalars(tag)}
    ours = {(tag, one.step): value for one in event_entries(path) for tag, value in one.values.items()}
    assert {key: value for key, value in ours.items() if key[0] != GEN} == pytest.approx(expected)
    assert ours[GEN, 3] == pytest.approx(73.0)
    assert {tag for tag, _ in ours} == {STEP, GEN, TRAIN}


def test_a_folder_of_event_files_is_one_log(tmp_path: Path):
    """A resumed training writes another file; the later one wins."""
    written(tmp_path, range(1, 4))
    written(tmp_path, range(3, 6), gen=60.0)
    assert is_training_log(tmp_path)
    log = read_training_log(tmp_path)
    assert [one.step for one in log.iterations] == [1, 2, 3, 4, 5]
    assert [one.values[GEN] for one in log.iterations] == pytest.approx([71, 72, 63, 64, 65])
    found = diagnose_logs([str(tmp_path)])
    assert found.framework == "verl"
    assert found.count == 4
    # The clock of the file: iterations are 101.5 s apart, and 103.5 s of the mean are logged.
    assert found.between_ns == pytest.approx(-2e9, abs=1e6)


def test_what_is_cut_or_damaged_is_left_out(tmp_path: Path):
    path = written(tmp_path, range(1, 6))
    whole = path.read_bytes()
    before = sum(len(one.values) for one in event_entries(path))
    path.write_bytes(whole[:-30])
    assert before - 2 <= sum(len(one.values) for one in event_entries(path)) < before + 1
    half = len(whole) // 2
    path.write_bytes(whole[:half] + b"\xff" * 40 + whole[half:])
    assert 0 < sum(len(one.values) for one in event_entries(path)) < before
    for text in (b"", b"\0" * 100, b"not an event file at all"):
        path.write_bytes(text)
        assert list(event_entries(path)) == []
        assert not is_training_log(path)
        with pytest.raises(UnreadableTrace):
            read_training_log(path)


def test_event_files_of_another_training_are_no_log(tmp_path: Path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    writer.add_scalar("train/loss", 1.0, 1)
    writer.close()
    assert not is_training_log(tmp_path)
