"""transformers.TrainingArguments and derived classes: the names of fields that the recorder reads and patches change.
Which fields advice may name follows from the recording (`diagnosis/run/trainer_arguments.py`).
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Convention, Entries, Levels


CLASS, MODULE = "TrainingArguments", "transformers.training_args"
BATCH, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
BF16, FP16 = "bf16", "fp16"
LOGGING_STEPS, LOSS_FILTER = "logging_steps", "logging_nan_inf_filter"

MOST_FIELDS: Convention[Entries] = 600
MOST_BASES: Convention[Levels] = 10
_SETTINGS = (
    BATCH, ACCUMULATION, BF16, FP16, "tf32", "gradient_checkpointing",
    "activation_checkpointing",
    "torch_compile", "torch_compile_mode", "optim", "use_liger_kernel", "packing", "padding_free", "max_length",
    "group_by_length", "train_sampling_strategy", "dataloader_num_workers", "dataloader_pin_memory",
    "dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_drop_last", LOGGING_STEPS,
    LOSS_FILTER, "precompute_ref_log_probs", "num_generations", "use_vllm", "torch_empty_cache_steps",
    "beta", "num_iterations", "cache_implementation", "use_transformers_continuous_batching",
    "steps_per_generation", "max_completion_length", "max_new_tokens", "response_length",
)  # fmt: skip
"""Settings whose values are kept: numbers, switches and choices that reveal nothing personal."""
_CHOICE = re.compile(r"[\w.-]{1,40}")
_EVENTS = {
    "save": ("save_strategy", "save_steps"),
    "evaluation": ("eval_strategy", "eval_steps"),
    "logging": ("logging_strategy", LOGGING_STEPS),
}
"""Event → names of its strategy and of its interval in transformers.TrainingArguments and TrainerState."""
SILENT = {"save_strategy": "no", "report_to": [], "push_to_hub": False, "load_best_model_at_end": False}
"""Values with which a trainer neither saves, uploads nor reports."""
OUTPUT, LOGGING = "output_dir", "logging_dir"


def describe_class(kind: type) -> dict[str, Any]:
    """A class's name, its module, and what it derives from, the nearest first."""
    bases = [base for base in kind.__mro__[1:] if base.__module__ != "builtins"]
    return {
        "class": kind.__name__,
        "module": kind.__module__,
        "bases": [f"{base.__module__}.{base.__name__}" for base in bases[:MOST_BASES]],
    }


def describe_arguments(args: Any) -> dict[str, Any]:
    """The class of a trainer's arguments, the names of its fields, and the values of harmless ones."""
    fields = [f.name for f in dataclasses.fields(args) if f.init] if dataclasses.is_dataclass(args) else []
    values = {name: _harmless(getattr(args, name, None)) for name in _SETTINGS if name in fields}
    return {
        **describe_class(type(args)),
        "fields": sorted(fields)[:MOST_FIELDS],
        "set": {name: value for name, value in values.items() if value is not None},
    }


def _harmless(value: Any) -> bool | int | float | str | None:
    """The value if it is a number, a switch, or the name of a choice; else None."""
    value = getattr(value, "value", value)
    if isinstance(value, (bool, int, float)):
        return value
    return value if isinstance(value, str) and _CHOICE.fullmatch(value) else None


def trainer_intervals(args: Any, state: Any) -> dict[str, int]:
    """Event (save | evaluation | logging) → optimizer steps from one to the next.

    args, state: transformers' TrainingArguments and TrainerState at the beginning of a training. Events that never
    happen within the training, or whose interval the settings do not give, are left out.
    """
    total = _whole(getattr(state, "max_steps", None))
    epochs = getattr(state, "num_train_epochs", None)
    epoch = round(total / epochs) if total and isinstance(epochs, (int, float)) and epochs > 0 else None
    found: dict[str, int] = {}
    for event, (strategy_name, steps_name) in _EVENTS.items():
        strategy = getattr(args, strategy_name, None)
        strategy = getattr(strategy, "value", strategy)
        every = None
        if strategy == "steps":
            every = _steps(getattr(state, steps_name, None) or getattr(args, steps_name, None), total)
        elif strategy == "epoch":
            every = epoch
        if every and (total is None or every <= total):
            found[event] = every
    return found


def _steps(value: Any, total: int | None) -> int | None:
    """Steps of an interval; a number below 1 is a share of the whole training."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        return None
    if value < 1:
        return max(round(value * total), 1) if total else None
    return round(value)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
