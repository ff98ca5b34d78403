"""Titles of the changes of an iteration, as the screen shows them: what `gpuprof explain` finds them by, too."""

from __future__ import annotations

TITLES: dict[str, tuple[str, ...]] = {
    "completion_tail": ("Cut the longest completions", "Do not wait for the longest completions"),
    "rewards_at_once": ("Run reward functions at the same time",),
    "rewards_in_processes": ("Score completions in several processes",),
    "generation_ahead": ("Generate one iteration ahead, on GPUs of its own",),
    "decode_cpu": ("Compile the decode step over a static cache",),
    "rollout_batch": ("Generate for more prompts at once",),
    "old_log_probabilities": ("Take the old policy's log-probabilities from the generator",),
    "generator_gpus": ("Twice the GPUs for generation",),
    "cache_copies": ("Static key-value cache",),
    "serving_engine": ("Generate with vLLM",),
    "ended_sequences": ("Continuous batching in generation",),
    "reference_pass": ("Train without a reference policy",),
    "one_pass": ("Old policy and reference in one pass",),
    "padded_completions": ("Micro-batches by tokens",),
    "weight_sync": ("Copy the weights in large pieces", "Copy the adapters only"),
    "rewards_beside": ("Score while log-probabilities are computed",),
}
"""Change → its titles: the second is that of logs, or where only adapters are trained."""
