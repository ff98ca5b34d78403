"""Small RL trainings with TRL, and wall clocks put around their phases by hand.

The model is random, its tokenizer is made here, and the rewards are Python functions; two of them wait on purpose, like
a judge behind an API. Nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scenarios.support.run import Run

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "0.1b": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
    "0.4b": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
}
VOCABULARY = 1024
"""Few words, so that a random model ends some of its completions early."""
PHASES = ("generation", "reward", "log-probabilities", "advantage", "training", "optimizer")
"""What the clocks measure; `training` is the forward and backward passes."""


@dataclass(frozen=True)
class Job:
    """A training: its trainer and its sizes."""

    trainer: str = "grpo"
    shape: str = "tiny"
    steps: int = 4
    batch: int = 8
    generations: int = 4
    tokens: int = 32
    """Tokens of the longest completion."""
    wait_s: float = 0.05
    """Seconds that each of the two slow rewards waits."""
    parallel: bool = False
    """Whether the slow rewards are coroutines, which TRL runs at the same time."""
    slow_rewards: int = 2
    static_cache: bool = False
    compiled: bool = False
    """Whether `generate` may compile the decode step, which it does with a static cache: TRL forbids it, whatever
    generation_kwargs say."""
    continuous: bool = False
    """Whether generation is TRL's continuous batching (`transformers.generate_batch`)."""
    bfloat16: bool = False
    """Whether the weights are bfloat16; else they are float32, and autocast to bfloat16 on a GPU. A static cache needs
    this: transformers gives it the weights' type, which autocast's keys do not match."""
    beta: float = 0.04
    """Weight of the reference policy; 0 for none."""
    steps_per_generation: int = 1
    """Optimizer steps per generation, each on its own completions."""
    iterations: int = 1
    """Optimizer passes over one generation (GRPO's and RLOO's num_iterations)."""
    accumulation: int = 1
    """Batches of an optimizer step; a generation is for all of them (gradient_accumulation_steps)."""
    checkpointing: bool = False
    """Whether activations are computed again in the backward pass."""

    @property
    def steps_per_iteration(self) -> int:
        """Optimizer steps from one generation to the next."""
        return self.steps_per_generation * self.iterations


def changed(job: Job, change: dict[str, float]) -> Job:
    """The job with a change: switches are set, numbers multiplied."""
    new = {name: by if isinstance(by, bool) else int(getattr(job, name) * by) for name, by in change.items()}
    return replace(job, **new)


def train(run: Run, job: Job) -> None:
    """A scenario's training: the model is made in a temporary folder, and the run counts the steps."""
    with tempfile.TemporaryDirectory(prefix="scenario_") as folder:
        save_model(Path(folder) / "model", job.shape)
        build(job, Path(folder) / "model", Path(folder) / "out", [run.callback()]).train()


def save_model(folder: Path, shape: str) -> None:
    """Writes a random model and its tokenizer, as `from_pretrained` reads them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{i}": 3 + i for i in range(VOCABULARY - 3)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    size = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=VOCABULARY, num_key_value_heads=size["num_attention_heads"] // 2, max_position_embeddings=2048,
        eos_token_id=1, pad_token_id=0, bos_token_id=None, **size,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)


def prompts(count: int = 4000) -> Any:
    """A data set of short prompts."""
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [f"w{i % 900} w{(7 * i) % 900} w{(3 * i) % 900}" for i in range(count)]})


def rewards(job: Job) -> list[Callable[..., Any]]:
    """A reward that takes no time, and some that wait."""

    def length(completions: list[str], **_: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    def waiting(name: str) -> Callable[..., Any]:
        def judge(completions: list[str], **_: Any) -> list[float]:
            time.sleep(job.wait_s)
            return [float(i) for i in range(len(completions))]

        async def judge_async(completions: list[str], **_: Any) -> list[float]:
            await asyncio.sleep(job.wait_s)
            return [float(i) for i in range(len(completions))]

        found = judge_async if job.parallel else judge
        found.__name__ = name
        return found

    return [length, *map(waiting, ("judge_style", "judge_facts")[: job.slow_rewards])]


def build(job: Job, model: Path, out: Path, callbacks: list[Any]) -> Any:
    """The trainer, ready to train."""
    on_gpu = torch.cuda.is_available()
    common: dict[str, Any] = {
        "output_dir": str(out), "per_device_train_batch_size": job.batch, "max_steps": job.steps, "report_to": [],
        "logging_steps": 1, "save_strategy": "no", "use_cpu": not on_gpu, "bf16": on_gpu, "learning_rate": 1e-6,
        "disable_tqdm": True, "gradient_checkpointing": job.checkpointing,
        "gradient_accumulation_steps": job.accumulation,
    }  # fmt: skip
    from transformers import PreTrainedTokenizerFast

    given: dict[str, Any] = {
        "train_dataset": prompts(), "reward_funcs": rewards(job), "callbacks": callbacks,
        "processing_class": PreTrainedTokenizerFast.from_pretrained(model),
    }  # fmt: skip
    extra: dict[str, Any] = {}
    if job.static_cache:
        extra["generation_kwargs"] = {"cache_implementation": "static"}
    if job.trainer == "online_dpo":
        from transformers import AutoModelForCausalLM
        from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

        loaded = AutoModelForCausalLM.from_pretrained(model)
        arguments = OnlineDPOConfig(max_new_tokens=job.tokens, **common, **extra)
        return OnlineDPOTrainer(model=loaded, args=arguments, **given)
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    config, trainer = (GRPOConfig, GRPOTrainer) if job.trainer == "grpo" else (RLOOConfig, RLOOTrainer)
    if job.continuous:
        extra["use_transformers_continuous_batching"] = True
        # Enough for the job; by default it takes most of the free memory each time.
        extra["transformers_continuous_batching_config"] = {"num_blocks": 4 * job.batch, "max_batch_tokens": 512}
    if job.bfloat16:
        extra["model_init_kwargs"] = {"dtype": "bfloat16"}
    arguments = config(
        num_generations=job.generations, max_completion_length=job.tokens, beta=job.beta,
        num_iterations=job.iterations, steps_per_generation=job.steps_per_generation * job.accumulation,
        **common, **extra,
    )  # fmt: skip
    made = trainer(model=str(model), args=arguments, **given)
    if job.compiled:
        made.generation_config.disable_compile = False
    return made


class Clocks:
    """Wall clocks around the methods of a trainer, put there by hand: exclusive ns of each of PHASES per step.

    A clock's time excludes that of the clocks inside it. They wrap methods of the instance, so that what gpuprof wraps,
    those of the classes, is inside them.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []
        self.step_ns: list[int] = []
        self._now: dict[str, int] = dict.fromkeys(PHASES, 0)
        self._inside: list[int] = [0]
        self._begun = self._trained = 0

    def put_around(self, trainer: Any) -> None:
        """Wraps a trainer's methods. The optimizer's clock runs from the end of the last backward pass to the end of
        the step."""
        names = {
            "_generate": "generation",
            "_calculate_rewards": "reward",
            "_calculate_rewards_from_functions": "reward",
            "_get_per_token_logps_and_entropies": "log-probabilities",
            "_forward": "log-probabilities",
            "_generate_and_score_completions": "advantage",
            "_prepare_inputs": "advantage",
            "training_step": "training",
        }
        for name, phase in names.items():
            if hasattr(trainer, name):
                setattr(trainer, name, self._timed(trainer, name, phase))
        callbacks = trainer.callback_handler.callbacks
        callbacks.sort(
            key=lambda one: not getattr(one, "is_clock", False)
        )  # before gpuprof's own callback at a step's end

    def begin(self) -> None:
        """A step begins now: the time between the end of the last step and this one belongs to no step."""
        self._begun = time.perf_counter_ns()

    def callback(self) -> Any:
        """Tells the clocks where steps end."""
        from transformers import TrainerCallback

        clocks = self

        class Steps(TrainerCallback):
            is_clock = True

            def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                clocks._begun = time.perf_counter_ns()

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                now = time.perf_counter_ns()
                clocks._now["optimizer"] += now - clocks._trained
                clocks.steps.append(clocks._now)
                clocks.step_ns.append(now - clocks._begun)
                clocks._now, clocks._begun = dict.fromkeys(PHASES, 0), now

        return Steps()

    def _timed(self, trainer: Any, name: str, phase: str) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            mine = "training" if phase == "log-probabilities" and torch.is_grad_enabled() else phase
            begun = time.perf_counter_ns()
            self._inside.append(0)
            try:
                return getattr(type(trainer), name)(trainer, *args, **kwargs)
            finally:
                whole = time.perf_counter_ns() - begun
                self._now[mine] += whole - self._inside.pop()
                self._inside[-1] += whole
                if name == "training_step":
                    self._trained = time.perf_counter_ns()

        return wrapper
