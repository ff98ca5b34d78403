"""`gpuprof fit` as a user sees it, on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.started import finished
from helpers.trainings import variables
from helpers.warm_torch import warm_python
from jsonschema import Draft202012Validator

from gpuprof.trial.fit import DOCUMENT as FIT

need("torch")

TRAINING = """
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--seq_len", type=int, default=64)
args = parser.parse_args()

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        return torch.randint(0, 97, (args.seq_len,))

embedding, head = torch.nn.Embedding(97, 64), torch.nn.Linear(64, 97)
layers = [part for _ in range(3) for part in (torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))]
model = torch.nn.Sequential(embedding, *layers, head)
optimizer = torch.optim.AdamW(model.parameters())
for x in torch.utils.data.DataLoader(Data(), batch_size=args.batch_size):
    torch.nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FIXED = """
import torch
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
for _ in range(400):
    layer(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.timeout(240)
def test_a_probe_that_changes_a_file_ends_it_with_its_name(tmp_path: Path):
    (tmp_path / "kept.txt").write_text("kept")
    done = fit(tmp_path, FIXED.replace("    optimizer.step()", "    os.system('rm -f kept.txt')\n    optimizer.step()")
               .replace("import torch", "import os, torch"))  # fmt: skip
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert f"deleted {tmp_path}/kept.txt, outside the scratch folder" in done.stderr.splitlines()[-1]


def fit(folder: Path, code: str, *options: str, words: tuple[str, ...] = ()):
    (folder / "train.py").write_text(code)
    command = [sys.executable, "-m", "gpuprof", "fit", *options, warm_python(), "train.py", *words]
    return finished(command, cwd=folder, env=variables(), text=True, timeout=240)


@pytest.mark.slow
def test_a_larger_batch_takes_what_was_said(tmp_path: Path):
    """Predicted from batches of 4 and 8, lengths of 64 and 128; counted with a batch of 16."""
    done = fit(tmp_path, TRAINING, "--batch", "16,64", "--json", "--to", "L40S")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert not list(Draft202012Validator(FIT.schema()).iter_errors(found))
    assert found["changed"] == {"batch": "--batch_size", "length": "--seq_len"}
    assert [(one["batch"], one["length"]) for one in found["measured"]] == [(4, 64), (8, 64), (4, 128)]
    assert found["of"] == "tensors" and any("what a GPU adds" in line for line in found["unknown"])
    (cell,) = [one for one in found["cells"] if (one["batch"], one["length"]) == (16, 128)]
    again = fit(tmp_path, TRAINING, "--json", words=("--batch_size", "16", "--seq_len", "128"))
    counted = json.loads(again.stdout)["measured"][0]
    assert (counted["batch"], counted["length"]) == (16, 128)
    assert cell["low_bytes"] <= counted["peak_bytes"] <= cell["high_bytes"]
    assert cell["peak_bytes"] == pytest.approx(counted["peak_bytes"], rel=0.03)


TRAINER = """
import sys
import torch
import transformers
args = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses()[0]
args.report_to, args.logging_steps = [], 1
config = transformers.LlamaConfig(hidden_size=64, num_hidden_layers=2, intermediate_size=128, num_attention_heads=4,
                                  num_key_value_heads=2, vocab_size=500)
data = [{"input_ids": torch.arange(64) + i, "labels": torch.arange(64) + i} for i in range(400)]
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
transformers.Trainer(model, args, train_dataset=data).train()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("code", "words"), [(TRAINING, ()), (TRAINER, ("--output_dir", "out", "--use_cpu", "True"))])
def test_without_data_it_says_the_same(tmp_path: Path, code: str, words: tuple[str, ...]):
    if code is TRAINER:
        need("transformers", "accelerate")
    with_data, without = (
        json.loads(fit(tmp_path, code, "--json", *options, words=words).stdout) for options in ((), ("--fake",))
    )
    assert not list(Draft202012Validator(FIT.schema()).iter_errors(without))
    assert without["fake"] and not with_data["fake"] and without["of"] == with_data["of"] == "tensors"
    assert [one["step_ns"] for one in without["measured"]] == [None] * len(without["measured"])
    for one, other in zip(with_data["measured"], without["measured"], strict=True):
        assert (one["batch"], one["length"]) == (other["batch"], other["length"])
        assert other["peak_bytes"] == pytest.approx(one["peak_bytes"], rel=0.01)


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        ((), FIXED, "neither embeddings nor a DataLoader"),
        pytest.param((), "raise ValueError('no data')", "no data", marks=pytest.mark.slow),
        (
            ("--fake",),
            "import torch\n(torch.randn(9) > 0).nonzero()",
            "the result of aten.nonzero.default depends on computed values",
        ),
        pytest.param(
            ("--fake",), "import torch\ntorch.nn.Linear(2, 2).cuda()", "has to run on the CPU", marks=pytest.mark.slow
        ),
    ],
)
def test_what_cannot_be_changed_is_one_line(tmp_path: Path, options: tuple[str, ...], code: str, line: str):
    done = fit(tmp_path, code, *options)
    assert done.returncode == 2 and done.stdout == ""
    assert line in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_wrong_options_are_one_line(tmp_path: Path):
    for options in (("--batch", "many"), ("--to", "no such GPU")):
        done = fit(tmp_path, TRAINING, *options)
        assert done.returncode == 2 and len(done.stderr.splitlines()) <= 3
