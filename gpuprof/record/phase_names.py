"""The phases of an iteration, and what programs that train on their own generations call them.

An iteration generates once and trains for one or more optimizer steps. Names read from the sources of TRL 1.15 and 1.16
(`trl.extras.profiling`, `trl.trainer`, `trl.experimental.online_dpo`).
"""

from __future__ import annotations

GENERATION, ENVIRONMENT, REWARD, LOG_PROBABILITIES = "generation", "environment", "reward", "log-probabilities"
ADVANTAGE, TRAINING, WEIGHT_SYNC = "advantage", "training", "weight sync"
VALIDATION, SAVE, OTHER, IDLE = "validation", "save", "other", "idle"
DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"

MARKED: tuple[str, ...] = (
    GENERATION, ENVIRONMENT, REWARD, LOG_PROBABILITIES, ADVANTAGE, TRAINING, WEIGHT_SYNC, VALIDATION, SAVE, OTHER, IDLE,
)  # fmt: skip
"""What a program can mark, in the order in which an iteration goes through them."""
TRAINING_PARTS: tuple[str, ...] = (FORWARD, BACKWARD, "recompute", OPTIMIZER)
"""What the training phase consists of. Host clocks cannot tell recomputation from the rest of a backward pass."""
TIMED: tuple[str, ...] = (
    DATA, GENERATION, ENVIRONMENT, REWARD, LOG_PROBABILITIES, ADVANTAGE, FORWARD, BACKWARD, OPTIMIZER, WEIGHT_SYNC,
    VALIDATION, SAVE, OTHER, IDLE,
)  # fmt: skip
"""What the host time of an iteration is split into."""
WHOLE: tuple[str, ...] = (VALIDATION, SAVE)
"""Phases whose time is not split further: generation in a validation is validation."""

RANGE = "phase: "
"""What the name of a phase's range in a trace begins with."""
PART_RANGE = "part: "
"""The same of a part of a phase, such as one reward function."""
REPEATED_RANGE = "forward again: "
"""What the name of a range begins with around a call of a model that repeats one of the same step."""
ZEROED_RANGE = "multiplied by zero: "
"""What the name of a mark begins with at the begin of a backward pass: then the first and last number of the forward
ops whose results it multiplies by zero."""
UNRECORDED_RANGE = "not recorded: decoding"
"""The name of the range around forward passes of a generate loop that the window left out."""

CONTEXTS: dict[str, str] = {
    "transformers.generate": GENERATION,
    "transformers.generate_batch": GENERATION,
    "vLLM.generate": GENERATION,
    "sync_weights": WEIGHT_SYNC,
}
"""Names of TRL's ProfilingContext, without the class before the dot. Any other inside the rewards is a reward's."""

METHODS: dict[str, str] = {
    "_generate": GENERATION,
    "_generate_vllm": GENERATION,
    "_generate_single_turn": GENERATION,
    "_tool_call_loop": ENVIRONMENT,
    "_calculate_rewards": REWARD,
    "_calculate_rewards_from_functions": REWARD,
    "_get_per_token_logps_and_entropies": LOG_PROBABILITIES,
    "_get_per_token_logps": LOG_PROBABILITIES,
    "_forward": LOG_PROBABILITIES,
    "_generate_and_score_completions": ADVANTAGE,
    "_prepare_inputs": ADVANTAGE,
    "training_step": FORWARD,
    "compute_loss": FORWARD,
    "evaluate": VALIDATION,
    "_save_checkpoint": SAVE,
}
"""Methods of TRL's trainers. What surrounds generation and scoring is the computation of advantages, with preparing the
batch. Log-probabilities that are computed with gradients are the forward pass of the training."""
SURROUNDED: tuple[str, ...] = (GENERATION, ENVIRONMENT, REWARD, LOG_PROBABILITIES)
"""Phases that the computation of advantages surrounds: what prepares a batch within one of them, as `generate`'s own
inputs, is a part of it."""
GENERATING: frozenset[str] = frozenset(name for name, phase in METHODS.items() if phase == GENERATION)
"""A trainer with one of these trains on its own generations."""


def range_of(phase: str) -> str:
    """Name of a phase's range in a trace."""
    return RANGE + phase
