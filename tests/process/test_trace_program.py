"""What `gpuprof trace` notes about a program (trainer, arguments, flags, autocast and warnings), without the program
noticing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.installed import need
from helpers.run_schema import errors_in
from helpers.trainings import Run, bare, trace

import gpuprof

need("torch")

SECRET = "hf_abcdefghijklmnopqrstuv"
WARNS = """
    def chunk_gated_delta_rule(x):
        log.warning("`%s` is falling back to its reference PyTorch implementation because `%s` is not installed."
                    " This is correct but much slower; token={0}", "chunk_gated_delta_rule", "flash-linear-attention")
        return x * 2
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(16, 16)
        def forward(self, x):
            return chunk_gated_delta_rule(self.inner(x))
    def slow_model():
        model = Model()
        model.layers[1] = Net()
        return model
    def steps(model, n=30):
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(n):
            loss_of(model, next(batches(1))).backward()
            opt.step()
            opt.zero_grad()
""".replace("{0}", SECRET)


def program_of(run: Run) -> dict[str, Any]:
    assert run.code == 0, run.stderr
    assert errors_in(run.folder) == []
    assert SECRET not in (run.folder / "rank0.json").read_text(), "a secret"
    return run.rank()["program"]


def kinds(program: dict[str, Any]) -> dict[str, str]:
    return {flag["names"][0]: flag["kind"] for flag in program["flags"]}


def words_of_program(text: str) -> list[str]:
    """Lines on stderr that are not gpuprof's, nor those of the profiler that it runs."""
    return [line for line in text.splitlines() if "gpuprof" not in line and "profiler_" not in line and line]


# -- flags


def test_flags_of_argparse(tmp_path: Path):
    code = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", "-b", type=int, default=2)
    parser.add_argument("--hf_token")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction)
    parser.add_argument("--no_pin", action="store_false", dest="pin")
    parser.add_argument("--broken", type=bool)
    parser.add_argument("--checkpoint", type=lambda text: text == "1")
    subs = parser.add_subparsers(dest="task")
    inner = subs.add_parser("train")
    inner.add_argument("--compile", action="store_true")
    library = argparse.ArgumentParser()
    library.add_argument("--of-a-library")
    library.parse_args(["--of-a-library", "3"])
    args = parser.parse_args()
    print(args)
    train(25)
    """
    words = ("-b", "4", "--hf_token", SECRET, "train", "--compile")
    run = trace(tmp_path, code, "--baseline", "2", arguments=words)
    found = kinds(program_of(run))
    assert found == {
        "--batch-size": "value", "--hf_token": "value", "--bf16": "on_off", "--checkpoint": "value",
        "--compile": "switch",
    }  # fmt: skip
    assert run.stdout == bare(tmp_path, arguments=words).stdout


def test_flags_of_click(tmp_path: Path):
    need("click")
    code = """
    import click
    @click.group()
    def main():
        pass
    @main.command()
    @click.option("--workers", type=int, default=0)
    @click.option("--compile/--no-compile")
    @click.option("--fast", is_flag=True)
    @click.option("--tf32", type=bool)
    def run(**options):
        print(options)
        train(25)
    main()
    """
    words = ("run", "--workers", "2")
    found = kinds(program_of(trace(tmp_path, code, "--baseline", "2", arguments=words)))
    assert found == {"--workers": "value", "--compile": "on_off", "--fast": "switch", "--tf32": "boolean"}


def test_variables_that_a_command_line_overrides(tmp_path: Path):
    code = """
    batch_size, compile, secret = 4, False, "s3"
    config_keys = ["batch_size", "compile"]
    exec("compile = True")
    train(25)
    """
    assert kinds(program_of(trace(tmp_path, code, "--baseline", "2"))) == {
        "--batch_size": "assigned",
        "--compile": "assigned",
    }


def test_a_wrong_command_line_is_the_programs_own_error(tmp_path: Path):
    code = """
    import argparse
    parser = argparse.ArgumentParser(prog="mine")
    parser.add_argument("--steps", type=int)
    parser.parse_args()
    """
    run = trace(tmp_path, code, arguments=("--steps", "many"))
    alone = bare(tmp_path, arguments=("--steps", "many"))
    assert run.code == alone.returncode == 2
    assert words_of_program(run.stderr) == words_of_program(alone.stderr)


# -- warnings

LOGGERS = {
    "a logger without handlers": "log = logging.getLogger('transformers.models.x')",
    "a root logger that is set up later": """
    log = logging.getLogger("transformers.models.x")
    logging.basicConfig(format="%(name)s %(levelname)s %(lineno)d %(message)s", level=logging.INFO)
    """,
    "a handler that looks who logs": """
    log = logging.getLogger("x")
    class Intercept(logging.Handler):
        def emit(self, record):
            frame = sys._getframe(1)
            while frame.f_code.co_filename == logging.__file__:
                frame = frame.f_back
            print(os.path.basename(frame.f_code.co_filename), frame.f_code.co_name, record.getMessage())
    log.addHandler(Intercept())
    log.propagate = False
    """,
    "a record factory of its own": """
    log = logging.getLogger("x")
    before = logging.getLogRecordFactory()
    def factory(*args, **kwargs):
        record = before(*args, **kwargs)
        record.mine = 1
        return record
    logging.setLogRecordFactory(factory)
    """,
    "warnings that are caught, shown and logged": """
    import warnings
    class log:
        @staticmethod
        def warning(text, *args):
            warnings.warn(text % args, stacklevel=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("slow kernels")
    print(len(caught), caught[0].lineno)
    """,
}


@pytest.mark.parametrize("setup", LOGGERS)
def test_warnings_of_slow_paths(tmp_path: Path, setup: str):
    code = f"""
    import logging
    {LOGGERS[setup]}
    {WARNS}
    steps(slow_model())
    log.warning("this is nothing")
    print("done")
    """
    run = trace(tmp_path, code, "--baseline", "4")
    alone = bare(tmp_path)
    assert (run.stdout, words_of_program(run.stderr)) == (alone.stdout, words_of_program(alone.stderr))
    program = program_of(run)
    warning = next(each for each in program["warnings"] if "reference" in each["text"])
    assert warning["text"].startswith("`chunk_gated_delta_rule` is falling back") and "<redacted>" in warning["text"]
    assert warning["count"] >= (1 if "caught" in setup else 10)
    assert program["reference"] == [{"class": "Net", "function": "chunk_gated_delta_rule", "modules": 1}]
    assert "slow path was used" in gpuprof.diagnose(run.folder).quality.issues[-1].message
    assert run.ranges().count("nn.Module: Net_1") == 3


def test_logging_and_warnings_are_left_as_they_were(tmp_path: Path):
    code = """
    import argparse, logging, warnings
    train(60)
    print(logging.getLogRecordFactory() is logging.LogRecord, "shown" in warnings._showwarnmsg.__code__.co_name)
    print(hasattr(argparse.ArgumentParser.parse_known_args, "__wrapped__"), logging.getLogger().handlers)
    """
    run = trace(tmp_path, code, "--baseline", "2")
    assert run.code == 0, run.stderr
    assert run.stdout == "True False\nFalse []\n"


# -- autocast


@pytest.mark.parametrize("on", [True, False])
def test_autocast(tmp_path: Path, on: bool):
    code = f"""
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(30):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled={on}):
            loss = loss_of(model, batch)
        loss.backward()
        opt.step()
    print(len(model.embedding._forward_pre_hooks))
    """
    run = trace(tmp_path, code, "--baseline", "4")
    assert program_of(run)["autocast"] == ("bfloat16" if on else "off")
    assert run.stdout == "0\n"


# -- trainers

DATA = """
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers import PreTrainedTokenizerFast, Qwen2Config

    words = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefghij"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    config = Qwen2Config(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=2, vocab_size=len(words), pad_token_id=0, num_labels=1)
    pairs = Dataset.from_dict({"prompt": ["a b"] * 80, "chosen": ["c d"] * 80, "rejected": ["e f g"] * 80})
    common = dict(output_dir="out", max_steps=16, per_device_train_batch_size=2, report_to="none", use_cpu=True,
                  save_strategy="no")
"""
TRAINERS = {
    "SFTTrainer": (
        "SFTConfig",
        """
    args = SFTConfig(**(common | {"max_steps": 22}), bf16=True, logging_steps=3, eval_strategy="epoch")
    trainer = SFTTrainer(AutoModelForCausalLM.from_config(config), args=args,
                         train_dataset=Dataset.from_dict({"text": ["a b c d e", "f g h", "i j a b c d e f"] * 40}),
                         eval_dataset=Dataset.from_dict({"text": ["a b c"] * 2}), processing_class=tokenizer)
    """,
    ),
    "DPOTrainer": (
        "DPOConfig",
        """
    models = [AutoModelForCausalLM.from_config(config) for _ in range(2)]
    trainer = DPOTrainer(*models, args=DPOConfig(**common, bf16=False),
                         train_dataset=pairs, processing_class=tokenizer)
    """,
    ),
    "RewardTrainer": (
        "RewardConfig",
        """
    trainer = RewardTrainer(AutoModelForSequenceClassification.from_config(config),
                            args=RewardConfig(**common, bf16=False), train_dataset=pairs, processing_class=tokenizer)
    """,
    ),
}


@pytest.mark.slow
def test_trl_sft(tmp_path: Path):
    run = traced_trainer(tmp_path, "SFTTrainer")
    assert run.rank()["step_source"] == "trainer"
    assert run.rank()["intervals"] == {"logging": 3, "evaluation": 22}, "the only epoch ends with the training"
    assert [s["step"] % 3 for s in run.steps() if "logging_ns" in s and s["stage"].startswith("baseline")] == [1] * 3
    assert run.stages()["trace"] == 3
    assert run.steps()[15]["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TRAINERS.keys() - {"SFTTrainer"}))
def test_other_trainers_of_trl(tmp_path: Path, name: str):
    traced_trainer(tmp_path, name)


def traced_trainer(tmp_path: Path, name: str) -> Run:
    """A run of one of TRL's trainers, checked to be named in the recording."""
    need("trl", "datasets")
    arguments, make = TRAINERS[name]
    code = f"{DATA}\n    from trl import {name}, {arguments}\n{make}\n    trainer.train()\n"
    run = trace(tmp_path, code, "--baseline", "4" if name == "SFTTrainer" else "2")
    program = program_of(run)
    assert program["trainer"]["class"] == name and program["trainer"]["module"].startswith("trl.")
    assert "transformers.trainer.Trainer" in program["trainer"]["bases"]
    assert program["arguments"]["class"] == arguments
    assert ("packing" in program["arguments"]["fields"]) == (arguments == "SFTConfig")
    assert program["arguments"]["set"]["per_device_train_batch_size"] == 2
    assert program["autocast"] == ("bfloat16" if arguments == "SFTConfig" else "off"), "accelerate's, inside the model"
    model, loader = run.rank()["model"], run.rank()["loader"]
    assert (model["library"], model["module"]) == ("transformers", "transformers.models.qwen2.modeling_qwen2")
    assert loader["collate"] and loader["sampler"] and loader["iterable"] is False
    return run


@pytest.mark.slow
def test_arguments_from_the_command_line_of_a_trainer(tmp_path: Path):
    need("transformers", "datasets")
    code = f"""{DATA}
    from dataclasses import dataclass
    from transformers import DataCollatorForLanguageModeling, HfArgumentParser, Trainer, TrainingArguments

    @dataclass
    class Mine(TrainingArguments):
        flavour: str = "plain"

    args, = HfArgumentParser(Mine).parse_args_into_dataclasses()
    rows = [{{"input_ids": [3, 4, 5, 6], "attention_mask": [1] * 4}}] * 80
    Trainer(AutoModelForCausalLM.from_config(config), args, train_dataset=rows,
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False)).train()
    """
    words = (
        "--output_dir", "out", "--max_steps", "16", "--per_device_train_batch_size", "2", "--report_to", "none",
        "--use_cpu", "true", "--save_strategy", "no",
    )  # fmt: skip
    program = program_of(trace(tmp_path, code, "--baseline", "2", command=(), arguments=words))
    found = kinds(program)
    assert (found["--gradient_checkpointing"], found["--dataloader_num_workers"]) == ("boolean", "value")
    assert program["arguments"]["class"] == "Mine" and "flavour" in program["arguments"]["fields"]
    assert program["arguments"]["bases"][0] == "transformers.training_args.TrainingArguments"


@pytest.mark.slow
def test_a_trainer_of_lightning(tmp_path: Path):
    need("lightning")
    code = """
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()
        def training_step(self, batch, _):
            return loss_of(self.model, batch)
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(max_steps=25, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, precision="bf16-mixed", accumulate_grad_batches=2)
    trainer.fit(Module(), torch.utils.data.DataLoader(list(batches(60)), batch_size=None))
    """
    run = trace(tmp_path, code, "--baseline", "4", command=())
    assert run.stages()["trace"] == 3
    assert all(step["micro_steps"] == 2 for step in run.steps()[3:18])
    assert run.ranges().count("backward") == 6
    program = program_of(run)
    assert program["trainer"]["module"].startswith(("lightning.", "pytorch_lightning."))
    assert program["autocast"] == "bfloat16"
