"""Each patch of `gpuprof try` on a small real training on the CPU: it takes effect, or says why not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.installed import need
from helpers.trials import applied, tried

from gpuprof.record.launcher.command import Target
from gpuprof.trial import same_training
from gpuprof.trial.fixes import parse
from gpuprof.trial.own_flags import OwnFlags
from gpuprof.trial.starter import Outcome, Starter

need("torch")

LOADER = "loader = torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True)\n"
PLAIN = LOADER + "train(net(), loader)"
SLOW = """
loader = torch.utils.data.DataLoader(Data(wait=0.002), batch_size=8, shuffle=True)
train(net(), loader)
"""
CHECKPOINTED = (
    LOADER
    + """
from torch.utils.checkpoint import checkpoint
train(net(), loader, loss_of=lambda model, x: checkpoint(model, x, use_reentrant=False).square().mean())
"""
)
IMAGES = """
class Images(Data):
    def __getitem__(self, i):
        return torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(i))

model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
train(model, torch.utils.data.DataLoader(Images(), batch_size=4))
"""
MANY_TENSORS = (
    LOADER
    + """
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(60)])
train(model, loader)
"""
)

TIMED_S = 0.5
"""Length in seconds of the stretches that are compared."""


def nothing_left(folder: Path) -> bool:
    return [path.name for path in folder.iterdir()] == ["train.py"]


def test_compiled_code_of_each_variant_is_kept_apart(tmp_path: Path):
    code = "import os; raise ValueError(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    found = []
    with Starter(Target((sys.executable, "-c", code), "python", sys.executable, True, ()), network=False) as starter:
        for fix in ("", "tf32"):
            error = starter.run(parse(fix) if fix else (), None, None, 0.1, 60).process.error or ""
            found.append(error.removeprefix(f"it failed (exit code 1): ValueError: {starter.scratch}/compiled/"))
    assert found == ["inductor", "tf32/inductor"]


def test_nothing_runs_on_if_a_signal_comes_as_a_process_is_started(monkeypatch: pytest.MonkeyPatch):
    """The signal comes before anything but the system knows the process."""
    really, seen = subprocess.Popen, list[subprocess.Popen[bytes]]()

    def interrupted(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        seen.append(really(argv, **options))
        raise KeyboardInterrupt

    target = Target((sys.executable, "-S", "-c", "import time; time.sleep(60)"), "python", sys.executable, True, ())
    with pytest.raises(KeyboardInterrupt), Starter(target, network=False) as starter:
        monkeypatch.setattr(subprocess, "Popen", interrupted)
        starter.run((), None, None, 0.1, 60)
    assert seen[0].wait(10) == -signal.SIGKILL
    assert not starter.scratch.exists()


def test_workers_shorten_the_step_and_leave_the_batches_alone(tmp_path: Path):
    plain, fixed = (tried(tmp_path, SLOW, fix, seconds=TIMED_S) for fix in ("", "input_workers=2"))
    assert applied(fixed) == "2 workers alive, before: 0"
    assert plain.process.step_ns and fixed.process.step_ns
    assert fixed.process.step_ns < 0.75 * plain.process.step_ns
    assert same_training.compare(fixed.ranks, plain.ranks, None).verdict == "bitwise"
    assert nothing_left(tmp_path)


def test_workers_that_there_are_already_are_kept_between_epochs(tmp_path: Path):
    code = """
samples = torch.utils.data.TensorDataset(torch.randn(64, 16))
train(net(), torch.utils.data.DataLoader([row for row, in samples], batch_size=8, num_workers=2))
"""
    assert applied(tried(tmp_path, code, "input_workers=2")) == "2 workers alive, which now stay alive between epochs"


def test_workers_of_a_data_set_that_is_not_split_among_them_are_seen(tmp_path: Path):
    code = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for i in range(4000):
            yield torch.randn(16, generator=torch.Generator().manual_seed(i))

train(net(), torch.utils.data.DataLoader(Stream(), batch_size=8))
"""
    plain, fixed = tried(tmp_path, code), tried(tmp_path, code, "input_workers=2")
    found = same_training.compare(fixed.ranks, plain.ranks, None)
    assert found.verdict == "different" and found.text.startswith("samples are repeated")


@pytest.mark.measures_time
def test_a_fused_optimizer_takes_the_steps(tmp_path: Path):
    plain, fixed = (tried(tmp_path, MANY_TENSORS, fix, seconds=TIMED_S) for fix in ("", "optimizer"))
    assert applied(fixed) == "AdamW(fused=True) took the steps"
    assert plain.process.step_ns and fixed.process.step_ns
    assert fixed.process.step_ns < 0.9 * plain.process.step_ns
    assert same_training.compare(fixed.ranks, plain.ranks, plain.ranks).verdict in ("bitwise", "within_scatter")


def test_an_optimizer_without_state_takes_the_steps_too(tmp_path: Path):
    code = LOADER + "model = net()\ntrain(model, loader, torch.optim.SGD(model.parameters(), lr=0.01))"
    assert applied(tried(tmp_path, code, "optimizer")) == "SGD(fused=True) took the steps"


def test_an_optimizer_that_refuses_gets_its_own_arguments_back(tmp_path: Path):
    code = LOADER + "train(net(), loader, torch.optim.AdamW(net().parameters(), differentiable=True))"
    fixed = tried(tmp_path, code, "optimizer")
    assert fixed.process.error is None or "optimizer" not in fixed.process.error
    assert fixed.not_applied


def test_checkpointed_calls_become_plain_ones(tmp_path: Path):
    plain, fixed = tried(tmp_path, CHECKPOINTED), tried(tmp_path, CHECKPOINTED, "recompute")
    assert applied(fixed).endswith("checkpointed calls ran without")
    assert same_training.compare(fixed.ranks, plain.ranks, None).verdict == "bitwise"


def test_autocast_computes_in_bf16_and_says_that_it_is_another_arithmetic(tmp_path: Path):
    plain, fixed = tried(tmp_path, PLAIN), tried(tmp_path, PLAIN, "autocast")
    assert applied(fixed) == "a linear layer's output is bfloat16"
    found = same_training.compare(fixed.ranks, plain.ranks, plain.ranks)
    assert found.verdict == "different" and found.text.startswith("the same samples")


def test_convolutions_get_their_channels_last(tmp_path: Path):
    assert applied(tried(tmp_path, IMAGES, "channels_last")) == "a convolution's output has its channels last"


@pytest.mark.slow
def test_a_model_is_compiled_after_its_first_step(tmp_path: Path):
    code = LOADER + (
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(3)])\n"
        "    def forward(self, x):\n"
        "        for layer in self.layers:\n"
        "            x = layer(x).relu()\n"
        "        return x\n"
        "train(Net(), loader)\n"
    )
    fixed = tried(tmp_path, code, "compile", fresh=True)
    assert applied(fixed).startswith("Net compiled, ")
    assert fixed.ranks[0]["compilations"] > 0
    assert fixed.ranks[0]["settle"] >= 12, "the stretch begins ten steps after the last compilation"


def reasons(outcome: Outcome) -> dict[str, str]:
    """Why each fix was not applied, in a process where none was."""
    assert outcome.process.error is None, outcome.process.error
    (rank,) = outcome.ranks
    assert not any(patch["applied"] for patch in rank["patches"]), rank["patches"]
    return {patch["name"]: patch["text"] for patch in rank["patches"]}


@pytest.mark.slow
def test_what_needs_a_gpu_says_so(tmp_path: Path):
    names = ("tf32", "pageable_copies", "planning", "cuda_graphs", "allocator")
    found = reasons(tried(tmp_path, PLAIN, ",".join(names)))
    assert set(found) == set(names)
    assert all(text.startswith("there is no GPU") for text in found.values()), found


def test_what_is_not_there_is_said(tmp_path: Path):
    expected = {
        "adapter_casts": "no PEFT model was made",
        "eager_attention": "transformers is not used",
        "pad_to_multiple": "no collator of transformers or TRL was used",
        "recompute": "nothing was checkpointed by torch.utils.checkpoint",
        "larger_batch": "the program makes no TrainingArguments",
        "expert_loop": "transformers is not used",
        "syncs": "the program makes no TrainingArguments",
        "channels_last": "the model has no 2-D convolution to convert",
    }
    assert reasons(tried(tmp_path, PLAIN, ",".join(expected))) == expected


RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo")
sampler = torch.utils.data.distributed.DistributedSampler(Data())
loader = torch.utils.data.DataLoader(Data(), batch_size=8, sampler=sampler)
train(torch.nn.parallel.DistributedDataParallel(net()), loader)
"""
ACCELERATED = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = net()
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, loader = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True)
)
while True:
    for x in loader:
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
ACCELERATE = (
    "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
    "--dynamo_backend=no", "--main_process_port=0",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "code"), [(TORCHRUN, RANKS), (ACCELERATE, ACCELERATED)], ids=["torchrun", "accelerate"]
)
def test_all_ranks_get_the_same_fixes(tmp_path: Path, launcher: tuple[str, ...], code: str):
    need("accelerate")
    found = tried(tmp_path, code, "input_workers=2,optimizer", launcher=launcher)
    assert found.process.error is None, found.process.error
    assert [(rank["rank"], rank["world_size"], rank["steps"]) for rank in found.ranks] == [(0, 2, 20), (1, 2, 20)]
    patches = [{patch["name"]: (patch["applied"], patch["text"]) for patch in rank["patches"]} for rank in found.ranks]
    assert patches[0] == patches[1] == {
        "input_workers": (True, "2 workers alive, before: 0"), "optimizer": (True, "AdamW(fused=True) took the steps"),
    }  # fmt: skip
    firsts = [rank["batches"][0]["whole"] for rank in found.ranks]
    assert firsts[0] != firsts[1], "each rank has its own samples"
    slowest = max(rank["mean_ns"] for rank in found.ranks)
    assert found.process.step_ns == round(slowest)
    assert nothing_left(tmp_path)


TRAINER = """
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models
from transformers import (
    DataCollatorForLanguageModeling, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments
)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=256, attn_implementation="eager",
)
model = LlamaForCausalLM(config).to(torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
words = Tokenizer(models.WordLevel({str(i): i for i in range(64)}, unk_token="0"))
collate = DataCollatorForLanguageModeling(PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0"), mlm=False)

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        n = int(torch.randint(10, 40, (1,), generator=draw))
        return {"input_ids": torch.randint(1, 64, (n,), generator=draw).tolist()}

arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=60, logging_steps=1, save_steps=5,
    use_cpu=True, gradient_checkpointing=True, report_to="none",
)
trainer = Trainer(model, arguments, train_dataset=Texts(), data_collator=collate)
trainer.train()
trainer.save_model("final")
"""


FLAGGED = """
import argparse
from torch.utils.checkpoint import checkpoint
parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--no-checkpointing", action="store_true")
given = parser.parse_args()
loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=given.workers)

def loss_of(model, x):
    y = model(x) if given.no_checkpointing else checkpoint(model, x, use_reentrant=False)
    return y.square().mean()

train(net(), loader, loss_of=loss_of)
"""


@pytest.mark.parametrize(
    ("fix", "words", "proof"),
    [
        ("input_workers=2", ("--workers", "2"), "2 workers alive"),
        ("recompute", ("--no-checkpointing",), "nothing is checkpointed"),
    ],
)
def test_the_programs_own_flags_make_a_fix(tmp_path: Path, fix: str, words: tuple[str, ...], proof: str):
    assert applied(tried(tmp_path, FLAGGED, fix, flags={parse(fix)[0]: OwnFlags(words)})) == proof


def test_a_flag_that_does_something_else_is_seen(tmp_path: Path):
    found = tried(tmp_path, FLAGGED, "recompute", flags={parse("recompute")[0]: OwnFlags(("--workers", "1"))})
    assert found.not_applied and found.not_applied.endswith("calls were checkpointed")


@pytest.mark.slow
def test_what_is_applied_to_a_trainer_through_its_arguments_and_its_model(tmp_path: Path):
    need("transformers", "peft")
    fixes = "eager_attention=sdpa,larger_batch=2,pad_to_multiple=16,syncs,adapter_casts,recompute,input_workers=2"
    found = tried(tmp_path, TRAINER, fixes, fresh=True)
    assert found.process.error is None, found.process.error
    said = {patch["name"]: (patch["applied"], patch["text"]) for patch in found.ranks[0]["patches"]}
    assert all(applied for applied, _ in said.values()), said
    assert said["eager_attention"][1] == "LlamaForCausalLM went from eager to sdpa"
    assert said["larger_batch"][1] == "2 × 4 became 4 × 2 samples"
    assert said["adapter_casts"][1] == "adapters are bfloat16"
    assert found.ranks[0]["samples"] == 8
    assert nothing_left(tmp_path), "neither checkpoints nor the final model"
