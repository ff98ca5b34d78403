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
}
"""What each change multiplies (numbers) or sets."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "half_the_length": {"max_completion_length": 40},
    "three_quarters_of_the_length": {"max_completion_length": 60},
    "half_the_generations": {"per_device_train_batch_size": 4},
    "two_steps_a_generation": {"steps_per_generation": 2},
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
    "grpo", "as_it_is", "static_cache", "compiled_decode", "online_dpo", "three_quarters_of_the_length",
    "one_slow_reward", "half_the_generations", "two_steps_a_generation", "as_it_is_again", "half_the_length",
    "rewards_at_once", "twice_the_generations", "no_reference", "continuous_batching", *FIXED, "rloo",
)  # fmt: skip
"""In the order of their turns: what is worth most comes first."""
AT_ONCE = 24
"""Processes of a wave. While they are built they share the cores; then all but one wait."""
SETTLE, TIMED = 1, 3
"""Iterations of a turn that are not timed, and that are."""
ROUNDS = 4
"""Turns of each change, at most."""
