"""The phases of an iteration, and what RL trainers call them.

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
"""Phases that a program can mark, in the order of an iteration."""
TRAINING_PARTS: tuple[str, ...] = (FORWARD, BACKWARD, "recompute", OPTIMIZER)
"""Parts of the training phase. CPU clocks cannot distinguish recomputation from the rest of a backward pass."""
TIMED: tuple[str, ...] = (
    DATA, GENERATION, ENVIRONMENT, REWARD, LOG_PROBABILITIES, ADVANTAGE, FORWARD, BACKWARD, OPTIMIZER, WEIGHT_SYNC,
    VALIDATION, SAVE, OTHER, IDLE,
)  # fmt: skip
"""The phases that an iteration's time is split into."""
WHOLE: tuple[str, ...] = (VALIDATION, SAVE)
"""Phases whose time is not split further: generation in a validation is validation."""

RANGE = "phase: "
"""Prefix of the name of a phase's range in a trace."""
PART_RANGE = "part: "
"""The prefix for a part of a phase, such as one reward function."""
REPEATED_RANGE = "forward again: "
"""The prefix of the range around a model's call that repeats an earlier one of the same step."""
ZEROED_RANGE = "multiplied by zero: "
"""The prefix of a mark at the start of a backward pass; followed by the first and last sequence number of the forward
ops whose results it multiplies by zero."""
AGAIN_RANGE = "multiplied again: "
"""The prefix of a mark at the start of a backward pass; followed by the sequence numbers of the forward multiplications
that repeat an earlier one of the same operands."""
UNRECORDED_RANGE = "not recorded: decoding"
"""Name of the range around forward passes of a generate loop that the window left out."""

CONTEXTS: dict[str, str] = {
    "transformers.generate": GENERATION,
    "transformers.generate_batch": GENERATION,
    "vLLM.generate": GENERATION,
    "sync_weights": WEIGHT_SYNC,
}
"""Names of TRL's ProfilingContext, without the class before the dot. Any other name inside the rewards is a reward
function."""

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
"""Methods of TRL's trainers. The method around generation and scoring also prepares the batch; its own time counts as
the computation of advantages. Log-probabilities computed with gradients are the training's forward pass."""
SURROUNDED: tuple[str, ...] = (GENERATION, ENVIRONMENT, REWARD, LOG_PROBABILITIES)
"""Phases inside the computation of advantages. Preparing a batch within one of them, such as the inputs of `generate`,
counts for that phase."""
GENERATING: frozenset[str] = frozenset(name for name, phase in METHODS.items() if phase == GENERATION)
"""A trainer with one of these trains on its own generations."""


def range_of(phase: str) -> str:
    """Name of a phase's range in a trace."""
    return RANGE + phase
