"""The observer of failed allocations, tested with stand-ins for torch's functions that only work on a GPU."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gpuprof.record.windows.observer import MOST_EVENTS, Observer
from gpuprof.runfile import LOG, snapshots_in

torch = pytest.importorskip("torch", reason="torch is not installed")


class Gpu:
    """Does what torch would do on a machine with a GPU: runs what waits for CUDA, and calls observers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting, self.history, self.observers, self.fails = [], [], [], False
        monkeypatch.setattr(torch.cuda, "_lazy_call", self.waiting.append)
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", self.record)
        monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", self.dump)
        monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", self.observers.append, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: bool(self.history), raising=False)

    def record(self, enabled="all", context="all", stacks="all", max_entries=None):
        self.history.append((enabled, context, stacks, max_entries))

    def dump(self, filename):
        Path(filename).write_bytes(pickle.dumps({"segments": [], "device_traces": []})[: 4 if self.fails else None])
        if self.fails:
            raise OSError(28, "No space left on device")

    def initialise(self):
        for call in self.waiting:
            call()

    def run_out(self):
        for observer in self.observers:
            assert observer(0, 1 << 30, 1 << 34, 1 << 20) is None


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_it_waits_for_cuda_and_bounds_the_history(gpu: Gpu, tmp_path: Path):
    observer = Observer()
    observer.watch(tmp_path)
    observer.watch(tmp_path)
    assert not gpu.history and not observer.armed
    gpu.initialise()
    assert gpu.history == [("all", "alloc", "python", MOST_EVENTS)]
    assert len(gpu.observers) == 1 and observer.armed
    assert "cost" in observer.notes[0]


def test_a_failed_allocation_is_written_down(gpu: Gpu, tmp_path: Path):
    observer = Observer()
    observer.watch(tmp_path)
    gpu.initialise()
    gpu.run_out()
    gpu.run_out()
    observer.end()
    assert [path.name for path in snapshots_in(tmp_path)] == ["memory.rank0.oom.pickle"]
    assert pickle.loads(snapshots_in(tmp_path)[0].read_bytes()) == {"segments": [], "device_traces": []}


def test_the_end_of_the_recording_is_written_down_where_nothing_failed(gpu: Gpu, tmp_path: Path):
    observer = Observer()
    observer.end()
    observer.watch(tmp_path)
    gpu.initialise()
    observer.end()
    observer.end()
    assert [path.name for path in tmp_path.iterdir()] == ["memory.rank0.pickle"]


def test_what_goes_wrong_stays_inside_and_leaves_no_half_file(gpu: Gpu, tmp_path: Path):
    observer = Observer()
    observer.watch(tmp_path)
    gpu.initialise()
    gpu.fails = True
    gpu.run_out()
    observer.end()
    assert [path.name for path in tmp_path.iterdir()] == [LOG]
    assert "No space left" in (tmp_path / LOG).read_text()


def test_a_history_of_the_program_is_left_alone(gpu: Gpu, tmp_path: Path):
    gpu.history.append("the program's own")
    observer = Observer()
    observer.watch(tmp_path)
    gpu.initialise()
    assert gpu.history == ["the program's own"] and len(gpu.observers) == 1


def test_a_torch_that_cannot_bound_it_is_not_armed(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda enabled=True, record_context=True: None)
    observer = Observer()
    observer.watch(tmp_path)
    gpu.initialise()
    assert not observer.armed and not gpu.observers
    assert "cannot bound" in observer.notes[0]
