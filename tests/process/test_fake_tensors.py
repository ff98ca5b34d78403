"""Programs whose tensors have no data: they have the same peaks as with data, and reading numbers from tensors ends no
program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.paths import ROOT
from helpers.started import finished
from helpers.warm_torch import warm_python

need("torch")

AROUND = """
import sys
sys.path.insert(0, sys.argv[1])
import json
import torch
from gpuprof.record.base.fake_tensors import without_data
from gpuprof.record.patches.probe import counter

def peak(run, fake):
    mode = without_data() if fake else None
    count = counter(torch)
    try:
        run(count.restart)
    finally:
        count.__exit__(None, None, None)
        if mode is not None:
            mode.__exit__(None, None, None)
    return count.peak

PROGRAM
print(json.dumps([peak(run, fake) for fake in (False, True)]))
"""
TOKENS = """
def run(restart):
    layers = torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 97)
    model = torch.nn.Sequential(torch.nn.Embedding(97, 64), *layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        x = torch.randint(0, 97, (8, 32))
        labels = x.masked_fill(torch.arange(32) < 4, -100)
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        kept = logits[labels != -100]
        assert kept.shape == (8 * 28, 97), "which tokens count is known: labels are the program's own"
        if not torch.isfinite(loss) or torch.isnan(loss):
            raise SystemExit("the loss is no number")
        (loss + kept.mean()).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert norm.item() > 0 and f"{loss:.3f}"
        optimizer.step()
        optimizer.zero_grad()
        if not step:
            restart()
"""
IMAGES = """
import numpy

def run(restart):
    layers = torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Flatten()
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16 * 30 * 30, 10)).to(torch.float32)
    pixels = torch.from_numpy(numpy.ones((48, 3, 32, 32), "float32"))
    data = torch.utils.data.TensorDataset(pixels, torch.arange(48) % 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=16)):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        loss = torch.nn.functional.cross_entropy(out.float(), y)
        assert 0 <= (out.argmax(-1) == y).float().mean().item() <= 1
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        out.detach().float().numpy()
        if not step:
            restart()
"""


@pytest.mark.parametrize("program", [pytest.param(TOKENS, marks=pytest.mark.slow), IMAGES])
def test_the_peak_is_that_of_the_same_program_with_data(tmp_path: Path, program: str):
    (tmp_path / "both.py").write_text(AROUND.replace("PROGRAM", program))
    done = finished([warm_python(), "both.py", str(ROOT)], cwd=tmp_path, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    real, fake = json.loads(done.stdout.splitlines()[-1])
    assert real > 2**19 and fake == pytest.approx(real, rel=0.005)


def test_a_model_that_no_machine_holds_runs(tmp_path: Path):
    (tmp_path / "large.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import torch\n"
        "from gpuprof.record.base.fake_tensors import without_data\n"
        "without_data()\n"
        "layer = torch.nn.Linear(2**20, 2**20)\n"
        "layer(torch.randn(8, 2**20)).sum().backward()\n"
        "print(layer.weight.grad.untyped_storage().nbytes() == 2**42)\n"
    )
    done = finished([warm_python(), "large.py"], cwd=tmp_path, text=True, timeout=240)
    assert done.stdout.strip() == "True", done.stderr
