"""Lines as RL post-training frameworks print and track them, with the times that users published in their issues."""

from __future__ import annotations

import json

VERL = (
    "(TaskRunner pid=16292) step:{step} - global_seqlen/min:538646.000 - response_length/mean:324.958 - "
    "response_length/max:1024.000 - response_length/clip_ratio:0.004 - timing_s/gen:74.020 - "
    "timing_s/old_log_prob:3.566 - timing_s/ref:3.420 - timing_s/adv:1.167 - timing_s/update_actor:14.302 - "
    "timing_s/step:{total} - timing_per_token_ms/adv:0.001 - perf/throughput:np.float64(524.4)\n"
)
"""verl#1208."""
SLIME = (
    "(MegatronTrainRayActor pid=38610) [2026-01-05 12:{minute:02d}:{second:02d}] train_metric_utils.py:44 - "
    "perf {step}: {{'perf/sleep_time': 4.0, 'perf/update_weights_time': 0.5, 'perf/wake_up_time': 2.0, "
    "'perf/train_wait_time': 11.5, 'perf/ref_log_probs_time': 1.4, 'perf/log_probs_time': np.float64(0.1), "
    "'perf/actor_train_time': 1.0, 'perf/train_time': 2.8, 'perf/step_time': 14.3, 'perf/wait_time_ratio': 0.8}}\n"
    "(RolloutManager pid=2) perf {step}: {{'perf/rollout_time': np.float64(4.5), 'rollout/truncated_ratio': 0.25}}\n"
    "(MegatronTrainRayActor pid=38610) step {optimizer_step}: {{'train/loss': 0.01, 'train/grad_norm': 0.3}}\n"
)
"""slime#1102, rounded."""
NEMO_RL = """\
========================= Step {step}/10 =========================
📊 Training Results:
  • Loss: 0.1032
  • Buffer Size: 64
  • Avg Trajectory Age: 1.00 steps

⏱️  Timing:
  • Total step time: 66.55s
  • exposed_generation: 32.52s (48.9%)
  • policy_training: 25.05s (37.6%)
  • policy_and_reference_logprobs: 4.78s (7.2%)
  • buffer_sampling: 1.38s (2.1%)
  • logprob_inference_prep: 1.34s (2.0%)
  • training_prep: 1.06s (1.6%)
  • data_processing: 0.23s (0.4%)
  • weight_sync: 0.13s (0.2%)
"""
"""NeMo RL#1052."""
SKYRL = (
    "\x1b[32m2026-06-15 13:25:28.074\x1b[0m | INFO | 'timing/step': '286.05', 'timing/generate': '27.65', "
    "'timing/policy_train': '191.74', 'timing/fwd_logprobs_values_reward': '47.40', 'trainer/global_step': '{step}'\n"
)
OPENRLHF = {
    "_step": 7, "train/timing/generation": 88.0, "train/timing/make_experience": 20.5, "train/timing/ppo_train": 60.25,
    "train/timing/broadcast": 4.5, "train/timing/step_total": 173.25, "_wandb": {"runtime": 1400},
}  # fmt: skip
PRIME_TRAINER = {"time/step": 196.0, "time/wait_for_batch": 19.6, "time/forward_backward": 175.0}
PRIME_GENERATOR = {"time/step": 190.0, "time/wait_for_policy": 60.0, "off_policy/mean": 1.5}


def verl(steps: int = 4) -> str:
    """Iterations of verl; the first one is slower."""
    return "".join(VERL.format(step=n, total=96.551 if n > 1 else 130.0) for n in range(1, steps + 1))


def slime(steps: int = 4, apart_s: int = 20) -> str:
    """Iterations of slime that end apart_s seconds after each other, each with four optimizer steps."""
    ends = [apart_s * n for n in range(steps)]
    lines = (
        SLIME.format(step=n, minute=end // 60, second=end % 60, optimizer_step=4 * n) for n, end in enumerate(ends)
    )
    return "".join(lines)


def rows(row: dict, steps: int, at_s: float, apart_s: float = 200.0) -> str:
    """JSON lines of a tracker with a clock."""
    return "".join(json.dumps({"step": n, "_timestamp": at_s + n * apart_s, **row}) + "\n" for n in range(steps))
