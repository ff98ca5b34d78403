"""What `python -m benchmarks.rl_phases` records and times: traced trainers, changes of GRPO, scenarios."""

from __future__ import annotations

from typing import Any

TRACED = ("grpo", "rloo", "online_dpo")
CHANGES: dict[str, dict[str, Any]] = {
    "as_it_is": {},
    "half_the_length": {"tokens": 0.5},
    "rewards_at_once": {"parallel": True},
    "static_cache": {"static_cache": True},
    "twice_the_generations": {"batch": 2, "generations": 2},
    "no_reference": {"beta": 0},
    "as_it_is_again": {},
    "continuous_batching": {"continuous": True},
    "three_quarters_of_the_length": {"tokens": 0.75},
    "one_slow_reward": {"slow_rewards": 0.5},
    "half_the_generations": {"batch": 0.5, "generations": 0.5},
    "compiled_decode": {"static_cache": True, "compiled": True},
    "two_steps_a_generation": {"steps_per_generation": 2},
    "as_it_is_third": {},
    "a_quarter_of_the_length": {"tokens": 0.25},
    "half_again_the_length": {"tokens": 1.5},
    "four_times_the_batch": {"batch": 4},
    "half_the_length_twice_the_batch": {"tokens": 0.5, "batch": 2},
    "eight_generations": {"generations": 2},
    "two_passes": {"iterations": 2},
    "two_batches_a_step": {"accumulation": 2},
    "gradient_checkpointing": {"checkpointing": True},
}
"""What each change multiplies (numbers) or sets."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "half_the_length": {"max_completion_length": 40},
    "three_quarters_of_the_length": {"max_completion_length": 60},
    "half_the_generations": {"per_device_train_batch_size": 4},
    "two_steps_a_generation": {"steps_per_generation": 2},
    "a_quarter_of_the_length": {"max_completion_length": 20},
    "half_again_the_length": {"max_completion_length": 120},
    "four_times_the_batch": {"per_device_train_batch_size": 32},
    "half_the_length_twice_the_batch": {"max_completion_length": 40, "per_device_train_batch_size": 16},
    "eight_generations": {"num_generations": 8},
    "two_passes": {"num_iterations": 2},
    "two_batches_a_step": {"gradient_accumulation_steps": 2},
    "gradient_checkpointing": {"gradient_checkpointing": True},
}
"""Changes that are another value of an argument, for 8 completions of 80 tokens."""
SCENARIOS = ("rl_rewards", "rl_decode")
FIXED = {
    "rl_rewards": "", "rl_rewards-coroutines": "coroutines", "rl_decode": "", "rl_decode-static_cache": "static_cache",
    "rl_decode-half_length": "half_length", "rl_decode-twice_the_prompts": "twice_the_prompts",
}  # fmt: skip
"""Parts that are scenarios, and the fix of each."""
BASELINES = tuple(name for name, change in CHANGES.items() if not change)
COMPILED = ("compiled_decode",)
"""Those in which torch.compile works: transformers compiles the decode step over a static cache."""
PARTS = (
    "grpo", "as_it_is", "static_cache", "compiled_decode", "four_times_the_batch", "online_dpo",
    "a_quarter_of_the_length", "three_quarters_of_the_length", "one_slow_reward", "half_the_generations", "two_passes",
    "as_it_is_again", "two_steps_a_generation", "half_the_length", "two_batches_a_step", "rewards_at_once",
    "gradient_checkpointing", "half_again_the_length", "as_it_is_third", "twice_the_generations", "no_reference",
    "eight_generations", "half_the_length_twice_the_batch", "continuous_batching", *FIXED, "rloo",
)  # fmt: skip
"""In the order of their turns: what is worth most comes first."""
AT_ONCE = 24
"""Processes of a wave. While they are built they share the cores; then all but one wait."""
SETTLE, TIMED = 1, 2
"""Iterations of a turn that are not timed, and that are."""
ROUNDS = 4
"""Turns of each change, at most."""
