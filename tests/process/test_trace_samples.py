"""The samples of a step, as `gpuprof trace` counts them: the sampler's or the loader's, never a tensor's rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.installed import need
from helpers.trainings import trace

need("torch")

DATA = """
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

    class Boxes:
        def __len__(self):
            return 10_000

        def __getitem__(self, i):
            return torch.zeros(1 + i % 7, 8)  # of each image some boxes

    def joined(samples):
        return torch.cat(samples)  # a batch of images is as many rows as they have boxes

    class Endless:  # as ultralytics wraps a sampler
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            while True:
                yield from iter(self.sampler)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter([torch.zeros(2, 8)] * 10_000)

    class Lengths:  # batches of any number of samples
        def __iter__(self):
            return iter([[0, 1, 2], [3], [4, 5]] * 100)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(loader, passes=1, steps=60, ahead=False):
        batches = iter(loader)
        following = next(batches) if ahead else None  # as accelerate fetches
        for _ in range(steps):
            for _ in range(passes):
                batch, following = (following, next(batches)) if ahead else (next(batches), None)
                model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def samples(tmp_path: Path, code: str) -> tuple[list[int | None], dict]:
    """The samples of the window's steps, and what the run says about the loader."""
    run = trace(tmp_path, DATA + code, "--baseline", "5")
    assert run.code == 0, run.stderr
    loader = run.rank()["loader"] or {}
    return [step["samples"] for step in run.steps() if step["stage"] == "trace"], loader


@pytest.mark.parametrize(
    ("code", "expected", "size"),
    [
        ("train(DataLoader(Boxes(), 16, collate_fn=joined, num_workers=2), passes=2)", [32] * 3, 16),
        ("train(DataLoader(Boxes(), 16, collate_fn=joined), ahead=True)", [16] * 3, 16),
        ("train(DataLoader(Stream(), 4))", [4] * 3, 4),
        ("train(DataLoader(Stream(), None))", [None] * 3, None),
    ],
    ids=["accumulated, with workers", "fetched ahead", "iterated over", "batches of the data set"],
)
def test_a_batch_is_what_the_sampler_chose(tmp_path: Path, code: str, expected: list[int | None], size: int | None):
    found, loader = samples(tmp_path, f"    {code}\n")
    assert found == expected
    assert loader["batch_size"] == size and loader["counts_samples"]


def test_a_sampler_inside_another(tmp_path: Path):
    code = """
    loader = DataLoader(Boxes(), 16, collate_fn=joined, num_workers=2)
    object.__setattr__(loader, "batch_sampler", Endless(loader.batch_sampler))
    train(loader)
    """
    found, loader = samples(tmp_path, code)
    assert found == [16] * 3 and loader["batch_size"] == 16


def test_batches_of_any_number_of_samples(tmp_path: Path):
    code = """
    train(DataLoader(Boxes(), batch_sampler=Lengths(), collate_fn=joined), passes=3)
    """
    found, loader = samples(tmp_path, code)
    assert found == [6] * 3 and loader["batch_size"] is None


def test_what_is_evaluated_in_between_is_not_trained_on(tmp_path: Path):
    code = """
    for _ in range(12):
        train(DataLoader(Boxes(), 16, collate_fn=joined), steps=3)
        model.eval()
        for batch in DataLoader(torch.zeros(100, 8), 50):
            model(batch)
        model.train()
    """
    found, _ = samples(tmp_path, code)
    assert found == [16] * 3
