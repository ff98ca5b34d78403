"""A run's mean step on the CPU: irregular costs are measured, and the pace of a loader's workers predicts other numbers
of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.installed import need
from helpers.trainings import trace

from gpuprof.diagnosis.run.run_facts import run_facts
from gpuprof.replay.loader_queue import fed_step_ns
from gpuprof.replay.mean_step import slowed_by_sharing
from gpuprof.tracefile.run_folder.run import read_run

need("torch")

MS = 1e6

SLOW = """
    import time
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 4000
        def __getitem__(self, index):
            time.sleep(0.006)  # a disk, say: as many workers as one likes wait at once
            return torch.randint(0, 50, (8,))

    def main():
        model = Model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, batch in enumerate(DataLoader(Slow(), batch_size=10, num_workers=WORKERS)):
            model(batch).square().mean().backward()
            time.sleep(0.02)
            opt.step()
            opt.zero_grad()

    if __name__ == "__main__":
        main()
"""
"""60 ms for a batch, 20 ms and a little for a step."""


@pytest.mark.measures_time
@pytest.mark.slow
def test_the_pace_of_workers_predicts_other_numbers_of_workers(tmp_path: Path):
    measured, feeds = {}, {}
    for workers in (1, 2, 4, 8):
        folder = tmp_path / str(workers)
        folder.mkdir()
        run = trace(folder, SLOW.replace("WORKERS", str(workers)), "--stop", command=())
        assert run.code == 0, run.stderr
        found = run_facts(read_run(run.folder))
        assert found.budget is not None and found.feed is not None and found.feed.measured
        measured[workers], feeds[workers] = found.budget.mean_ns, found.feed
    usual = measured[8]  # eight workers keep it fed
    for known, feed in feeds.items():
        for workers, mean_ns in measured.items():
            loader = slowed_by_sharing(feed.loader, workers, feed.cpu_ns, feed.cpus)
            assert fed_step_ns(loader, usual) == pytest.approx(mean_ns, rel=0.10), (known, workers)


@pytest.mark.measures_time
@pytest.mark.slow  # 20 s of steps, and on a busy machine their scatter
def test_a_stretch_of_unknown_length_continues_after_the_windows(tmp_path: Path):
    """The length of this training is unknown; every fourth step takes 40 ms instead of 5. It ends once its mean step is
    known, and not before."""
    code = """
    import time
    def main():
        model = Model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, batch in enumerate(batches(20000)):
            loss_of(model, batch).backward()
            time.sleep(0.04 if i % 4 == 3 else 0.005)
            opt.step()
            opt.zero_grad()
    main()
    """
    run = trace(tmp_path, code, "--stop")
    assert run.code == 0, run.stderr
    stages = run.stages()
    assert stages["baseline_free"] == 10 and 300 < stages["after"] < 3000, "5 s of them pay for the recording"
    found = run_facts(read_run(run.folder)).budget
    assert found is not None and 50 < found.steps <= 200
    assert found.mean_ns == pytest.approx((0.25 * 40 + 0.75 * 5 + 0.8) * MS, rel=0.15)


@pytest.mark.measures_time
def test_saving_logging_and_collecting_are_measured(tmp_path: Path):
    code = """
    import gc, time
    def main():
        model = Model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, batch in enumerate(batches(45)):
            model.train()
            loss_of(model, batch).backward()
            opt.step()
            opt.zero_grad()
            time.sleep(0.002)
            if i % 4 == 0:
                torch.save(model.state_dict(), SlowFile())
            if i % 10 == 0:
                gc.collect()
            if i == 8:
                model.eval()
                with torch.no_grad():
                    model(**batch)
                time.sleep(0.05)

    class SlowFile:
        def __init__(self):
            self.slept = False
        def write(self, data):
            if not self.slept:
                self.slept = True
                time.sleep(0.02)
            return len(data)
        def flush(self):
            pass
    main()
    """
    run = trace(tmp_path, code)
    assert run.code == 0, run.stderr
    steps = {step["step"]: step for step in run.steps() if step["stage"].startswith("baseline")}
    # The step in which something happens ends with the next optimizer step.
    saved = {number for number, step in steps.items() if step.get("save_ns", 0) > 15 * MS}
    assert saved == {number for number in steps if (number - 2) % 4 == 0}
    assert all(steps[number].get("garbage_collection_ns", 0) > 0 for number in steps if (number - 2) % 10 == 0)
    assert [number for number, step in steps.items() if step.get("evaluation_ns", 0) > 40 * MS] == [10]
    assert all(step["new_shapes"] == 0 for step in steps.values())
