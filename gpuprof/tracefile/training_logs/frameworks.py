"""Names of RL post-training frameworks for the phases of their iterations, in ranges, logs and trackers.

Names read in November 2026 from the frameworks' sources and documentation, and from logs that users published in their
issues. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from gpuprof.record.phases.phase_names import (
    ADVANTAGE,
    DATA,
    ENVIRONMENT,
    GENERATION,
    IDLE,
    LOG_PROBABILITIES,
    OTHER,
    REWARD,
    SAVE,
    TRAINING,
    VALIDATION,
    WEIGHT_SYNC,
)

Kind = Literal[
    "trainer_idle_share", "generator_idle_share", "trainer_wait_s", "generator_wait_s", "generator_busy_s", "queue",
    "staleness", "tokens_per_s", "completion_mean", "completion_longest", "cut_share", "request_mean_s",
    "request_longest_s", "old_log_probabilities_s",
]  # fmt: skip
"""Kinds of logged quantities. Waits and shares are per iteration; queue and staleness belong to asynchronous trainers:
samples waiting to be trained on, and the age of their policy in updates; requests are single completions."""


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework's names. Keys are those in trackers."""

    name: str
    total: tuple[str, ...]
    """Keys of the iteration's wall time; the first that exists counts."""
    phases: dict[str, str]
    """Key of a time → its phase."""
    inside: dict[str, str] = field(default_factory=dict)
    """Key of a time → the key whose time includes it."""
    quantities: dict[str, Kind] = field(default_factory=dict)
    asynchronous: tuple[str, ...] = ()
    """Keys logged only by trainers that generate while they train."""
    role: str = "trainer"
    """Role of the process that logs it."""
    ahead: str = ""
    """How to enable generation while training; empty if it is always on."""
    reuse: str = ""
    """How to use the generator's log-probabilities as those of the old policy."""
    partial: str = ""
    """How to let the longest completions continue in the next iteration."""

    def knows(self, key: str) -> bool:
        """Whether a key is one of its names."""
        return key in self.total or key in self.phases or key in self.quantities or key in self.asynchronous


def _prefixed(prefix: str, names: dict[str, str]) -> dict[str, str]:
    return {prefix + name: value for name, value in names.items()}


_VERL = {
    "gen": GENERATION, "gen_max": GENERATION, "reward": REWARD, "old_log_prob": LOG_PROBABILITIES,
    "ref": LOG_PROBABILITIES, "values": LOG_PROBABILITIES, "adv": ADVANTAGE, "update_actor": TRAINING,
    "update_critic": TRAINING, "update_weights": WEIGHT_SYNC, "param_sync": WEIGHT_SYNC,
    "timing_s/param_sync": WEIGHT_SYNC, "switch_to_rollout": WEIGHT_SYNC, "testing": VALIDATION,
    "save_checkpoint": SAVE, "dump_rollout_generations": OTHER,
}  # fmt: skip
_NEMO = {
    "data_processing": DATA, "buffer_sampling": DATA, "generation": GENERATION, "exposed_generation": GENERATION,
    "prepare_for_generation/total": WEIGHT_SYNC, "prepare_for_generation/transfer_and_update_weights": WEIGHT_SYNC,
    "weight_sync": WEIGHT_SYNC, "reward_calculation": REWARD, "logprob_inference_prep": LOG_PROBABILITIES,
    "policy_and_reference_logprobs": LOG_PROBABILITIES, "policy_logprobs": LOG_PROBABILITIES,
    "reference_logprobs": LOG_PROBABILITIES, "advantage_calculation": ADVANTAGE, "training_prep": TRAINING,
    "policy_training": TRAINING, "value_training": TRAINING, "validation": VALIDATION, "checkpointing": SAVE,
}  # fmt: skip
_SLIME = {
    "train_wait_time": GENERATION, "sleep_time": WEIGHT_SYNC, "update_weights_time": WEIGHT_SYNC,
    "wake_up_time": WEIGHT_SYNC, "data_preprocess_time": DATA, "ref_log_probs_time": LOG_PROBABILITIES,
    "log_probs_time": LOG_PROBABILITIES, "actor_train_time": TRAINING, "critic_train_time": TRAINING,
}  # fmt: skip
_OPENRLHF = {
    "generation": GENERATION, "make_experience": LOG_PROBABILITIES, "ppo_train": TRAINING, "policy_train": TRAINING,
    "broadcast": WEIGHT_SYNC,
}  # fmt: skip
_SKYRL = {
    "generate": GENERATION, "wait_for_generation_buffer": GENERATION, "postprocess_generator_output": DATA,
    "convert_to_training_input": DATA, "fwd_logprobs_values_reward": LOG_PROBABILITIES,
    "apply_reward_kl_penalty": ADVANTAGE, "compute_advantages_and_returns": ADVANTAGE,
    "train_critic_and_policy": TRAINING, "policy_train": TRAINING, "critic_train": TRAINING,
    "sync_weights": WEIGHT_SYNC, "eval": VALIDATION, "save_checkpoints": SAVE, "save_checkpoint": SAVE,
    "save_hf_model": SAVE,
}  # fmt: skip
_PRIME = {
    "wait_for_batch": GENERATION, "load_data": DATA, "forward_backward": TRAINING, "broadcast_weights": WEIGHT_SYNC,
    "save_ckpt": SAVE,
}  # fmt: skip
_TIMING, _NEMO_TIMING, _PERF, _TIME = "timing_s/", "timing/train/", "perf/", "time/"

VERL = Framework(
    "verl", (_TIMING + "step",), _prefixed(_TIMING, _VERL),
    quantities={
        "fully_async/trainer/idle_ratio": "trainer_idle_share", "fully_async/rollouter/idle_ratio":
        "generator_idle_share", "trainer/idle_ratio": "trainer_idle_share", "rollouter/idle_ratio":
        "generator_idle_share", "fully_async/monitor/queue/mq_queue_size": "queue", "dynamic_resource/mq_size": "queue",
        "training/off_policy/trajectory_staleness/mean": "staleness", "perf/throughput": "tokens_per_s",
        "timing_s/old_log_prob": "old_log_probabilities_s",
        "response_length/mean": "completion_mean", "response_length/max": "completion_longest",
        "response_length/clip_ratio": "cut_share",
        "timing_s/agent_loop/generate_sequences/mean": "request_mean_s",
        "agent_loop/generate_sequences/mean": "request_mean_s",
        "timing_s/agent_loop/generate_sequences/max": "request_longest_s",
        "agent_loop/generate_sequences/max": "request_longest_s",
    },
    asynchronous=("fully_async/trainer/idle_ratio", "fully_async/rollouter/idle_ratio", "rollouter/idle_ratio"),
    ahead="verl.experimental.one_step_off_policy, or fully_async_policy, with GPUs for the rollouts",
    reuse="algorithm.rollout_correction.bypass_mode=True actor_rollout_ref.rollout.calculate_log_probs=True",
    partial="verl.experimental.fully_async_policy with async_training.partial_rollout=True",
)  # fmt: skip
NEMO_RL = Framework(
    "NeMo-RL", (_NEMO_TIMING + "total_step_time",), _prefixed(_NEMO_TIMING, _NEMO),
    inside={
        _NEMO_TIMING + "prepare_for_generation/transfer_and_update_weights":
        _NEMO_TIMING + "prepare_for_generation/total",
        _NEMO_TIMING + "policy_logprobs": _NEMO_TIMING + "policy_and_reference_logprobs",
        _NEMO_TIMING + "reference_logprobs": _NEMO_TIMING + "policy_and_reference_logprobs",
    },
    quantities={
        "train/buffer_size": "queue", "train/avg_trajectory_age": "staleness",
        "train/mean_gen_tokens_per_sample": "completion_mean",
    },
    asynchronous=(_NEMO_TIMING + "exposed_generation",),
    ahead="grpo.async_grpo.enabled=true, with GPUs for the generation",
)  # fmt: skip
SLIME = Framework(
    "slime", (_PERF + "step_time",), _prefixed(_PERF, _SLIME),
    inside={_PERF + name: _PERF + "train_wait_time" for name in ("sleep_time", "update_weights_time", "wake_up_time")},
    quantities={
        _PERF + "rollout_time": "generator_busy_s", _PERF + "log_probs_time": "old_log_probabilities_s",
        "rollout/response_lengths": "completion_mean",
        "rollout/response_len/mean": "completion_mean", "rollout/response_len/max": "completion_longest",
        "rollout/truncated": "cut_share", "rollout/truncated_ratio": "cut_share",
    },
    ahead="train_async.py instead of train.py, with GPUs for the rollouts",
    reuse="--use-rollout-logprobs",
    partial="--partial-rollout",
)  # fmt: skip
OPENRLHF = Framework(
    "OpenRLHF", ("timing/step_total",), _prefixed("timing/", _OPENRLHF),
    quantities={"response_length": "completion_mean", "rollout/response_length_mean": "completion_mean"},
    asynchronous=("timing/broadcast_lock_wait",),
    ahead="--train.async_enable (older versions: --async_train)",
)  # fmt: skip
SKYRL = Framework(
    "SkyRL", ("timing/step",), _prefixed("timing/", _SKYRL),
    inside={f"timing/{name}": "timing/train_critic_and_policy" for name in ("policy_train", "critic_train")},
    quantities={"generate/avg_num_tokens": "completion_mean"},
    asynchronous=("timing/wait_for_generation_buffer",),
    ahead="the fully asynchronous trainer (examples/train/fully_async)",
)  # fmt: skip
PRIME_RL = Framework(
    "prime-rl", (_TIME + "step",), _prefixed(_TIME, _PRIME),
    quantities={_TIME + "wait_for_batch": "trainer_wait_s", "perf/throughput": "tokens_per_s"},
    asynchronous=(_TIME + "wait_for_batch",),
)  # fmt: skip
PRIME_RL_GENERATOR = Framework(
    "prime-rl", (_TIME + "step",),
    {_TIME + "generate_completions": GENERATION, _TIME + "wait_for_policy": WEIGHT_SYNC,
     _TIME + "wait_for_ckpt": WEIGHT_SYNC, _TIME + "save_ckpt": SAVE, _TIME + "env": ENVIRONMENT},
    quantities={
        _TIME + "wait_for_policy": "generator_wait_s", _TIME + "wait_for_ckpt": "generator_wait_s",
        "off_policy/mean": "staleness", "batch/async_level": "queue", "batch/off_policy_level/max": "staleness",
    },
    asynchronous=(_TIME + "wait_for_policy", _TIME + "wait_for_ckpt"),
    role="generator",
)  # fmt: skip

FRAMEWORKS: tuple[Framework, ...] = (VERL, NEMO_RL, SLIME, OPENRLHF, SKYRL, PRIME_RL, PRIME_RL_GENERATOR)

_VERL_WORKER = {
    "generate_sequences": GENERATION, "compute_log_prob": LOG_PROBABILITIES,
    "compute_ref_log_prob": LOG_PROBABILITIES, "compute_values": LOG_PROBABILITIES, "compute_rm_score": REWARD,
    "train_batch": TRAINING, "generate_async": GENERATION, "sync_rollout_weights": WEIGHT_SYNC,
    "wait_for_enough_samples": IDLE,
}  # fmt: skip
"""What verl's `DistProfiler.annotate` calls the methods of its workers (torch ranges, or NVTX with Nsight Systems), and
further timers of its asynchronous trainers."""
RANGES: dict[str, dict[str, str]] = {"verl": {**_VERL, **_VERL_WORKER}, "NeMo-RL": _NEMO}
"""Phases of frameworks whose marks are ranges in a recording: verl's `marked_timer` in the controlling process, and its
workers' methods; NeMo-RL's timers. OpenRLHF marks nothing."""
OWN_RANGES: frozenset[str] = frozenset(
    ("generate_sequences", "compute_log_prob", "compute_ref_log_prob", "compute_rm_score", "update_actor",
     "update_critic")
)  # fmt: skip
"""Ranges that identify the framework on their own: verl can record each method of a worker in a separate file."""

PREFIXES = ("train/",)
"""Prefixes that trackers put before a framework's keys."""


def framework_of(keys: Iterable[str]) -> Framework | None:
    """The framework with most of these keys, if they include an iteration's time and at least one phase; else None."""
    there = set(keys)
    found = [one for one in FRAMEWORKS if any(key in there for key in one.total) and there & one.phases.keys()]
    return max(found, key=lambda one: len(there & one.phases.keys()), default=None)


def plain_key(key: str) -> str | None:
    """A key as in the table; None if no framework has it."""
    for name in (key, *(key[len(prefix) :] for prefix in PREFIXES if key.startswith(prefix))):
        if any(one.knows(name) for one in FRAMEWORKS):
            return name
    return None
