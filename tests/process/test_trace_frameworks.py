"""`gpuprof trace` with the libraries that people fine-tune with: each trains unchanged, and is followed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.paths import ROOT
from helpers.trainings import Run, bare, trace

need("torch", "transformers", "peft")

EXAMPLE = ROOT / "examples" / "finetune_lora.py"


def traced_example(
    tmp_path: Path, *arguments: str, command: tuple[str, ...] = (), options: tuple[str, ...] = ("--baseline", "4")
) -> Run:
    code = f"""
    import runpy
    sys.argv = [sys.argv[0], "--model", "tiny", "--batch-size", "2", *sys.argv[1:]]
    runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
    """
    return trace(tmp_path, code, *options, command=command, arguments=arguments)


@pytest.mark.slow
def test_the_example_under_transformers_trainer(tmp_path: Path):
    run = traced_example(tmp_path, "--steps", "14", "--accumulate", "2", options=("--baseline", "2", "--steps", "2"))
    assert run.code == 0, run.stderr
    rank = run.rank()
    assert rank["step_source"] == "trainer"
    assert rank["steps_total"] == rank["steps_seen"] == 14
    assert run.stages()["trace"] == 2
    assert [step["micro_steps"] for step in run.steps()[5:13]] == [2] * 8
    for step in run.steps()[5:13]:  # masks of steps that are timed are read only as often as that costs next to nothing
        assert step["tokens"] > 0
        assert 0 < (step["real_tokens"] or step["tokens"]) <= step["tokens"]
        assert step["real_tokens"] is not None or step["stage"] != "trace"
    model = rank["model"]
    assert (model["class"], model["wrapper"], model["type"]) == ("LlamaForCausalLM", "PeftModelForCausalLM", "llama")
    assert model["lora"]["r"] == 16
    assert model["lora"]["adapted"]["q_proj"] == model["layers"] == 4
    assert model["trainable"] == model["lora"]["parameters"] < model["parameters"]
    ranges = run.ranges()
    assert ranges.count("forward") == ranges.count("backward") == 4
    assert ranges.count("nn.Module: LlamaDecoderLayer_3") == 4


@pytest.mark.slow
def test_a_short_trainer_run_gets_a_window_all_the_same(tmp_path: Path):
    run = traced_example(tmp_path, "--steps", "9", options=())
    assert run.code == 0, run.stderr
    assert run.rank()["windows"][0]["steps"] >= 1
    assert run.stages()["baseline_free"] >= 1


@pytest.mark.slow
def test_accelerate_launch(tmp_path: Path):
    options = "--cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no"
    launch = (sys.executable, "-m", "accelerate.commands.launch", *options.split())
    run = traced_example(tmp_path, "--steps", "20", command=launch)
    assert run.code == 0, run.stderr
    assert run.stages()["trace"] == 3


@pytest.mark.slow
def test_the_callback_for_a_trainer(tmp_path: Path):
    code = f"""
    import runpy
    import transformers
    import gpuprof
    before = transformers.Trainer.__init__
    def with_callback(self, *args, **kwargs):
        before(self, *args, **kwargs)
        self.add_callback(gpuprof.TrainerCallback(out="own", baseline=3))
    transformers.Trainer.__init__ = with_callback
    sys.argv = [sys.argv[0], "--model", "tiny", "--batch-size", "2", "--steps", "20"]
    runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
    """
    under = trace(tmp_path, code, "--baseline", "4", command=())
    assert under.code == 0, under.stderr
    assert under.rank()["steps_seen"] == 20, "counted once, though two callbacks saw every step"
    assert not (tmp_path / "own").exists()
    done = bare(tmp_path, (sys.executable,))
    assert done.returncode == 0, done.stderr
    own = Run(done, tmp_path / "own")
    assert own.rank()["steps_seen"] == 20
    assert own.stages()["trace"] == 3
