"""The trainer of an iteration, as far as known, and how its arguments are set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuprof.diagnosis.quarantine import ASYNCHRONOUS_TWINS, AWAITS_REWARDS, NEVER_COMPILES_GENERATE
from gpuprof.diagnosis.result.fix import Fix, Setting, TextPart, in_code, in_json
from gpuprof.record.patches.trainer_arguments import as_value


@dataclass(frozen=True, slots=True)
class Trainer:
    """The trainer as far as known: its class and the names of its arguments."""

    fields: frozenset[str]
    name: str | None
    arguments: str | None = None
    """Class of its arguments."""
    settings: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Values of some of the arguments."""
    weight_bytes: int | None = None
    """Size of the model's parameters, bytes."""
    trainable_share: float | None = None
    """Share of the parameters that are trained, 0 to 1."""
    cpus: float | None = None
    """CPU cores that the program may use."""
    mixed: bool = False
    """Whether its weights are float32 and its passes use autocast to a smaller type."""

    def first(self, *names: str) -> str | None:
        """The first of these arguments that it has; the very first if its arguments are unknown."""
        if not self.fields:
            return names[0]
        return next((name for name in names if name in self.fields), None)

    @property
    def forbids_compiling(self) -> bool:
        """Whether its `generate` never compiles, whatever its arguments say."""
        return (self.name or "").startswith(NEVER_COMPILES_GENERATE)

    @property
    def awaits_rewards(self) -> bool:
        """Whether it awaits reward functions that are coroutines; true where it is not known."""
        return self.name is None or self.name.startswith(AWAITS_REWARDS)

    @property
    def asynchronous_twin(self) -> str:
        """Which trainer does the same while another GPU generates; in general words where none is known."""
        twins = (twin for name, twin in ASYNCHRONOUS_TWINS.items() if (self.name or "").startswith(name))
        return next(twins, "an asynchronous trainer with a generator on another GPU")

    def static_cache(self, name: str, value: Any) -> tuple[Fix, str | None]:
        """(the arguments that make the cache static, what they change about the training).

        transformers creates the cache in the weights' dtype: keys in autocast's dtype do not fit, and generation raises
        an error (TRL 1.15, transformers 5.17, on a GPU). So the weights must have that dtype, too.
        """
        if not self.mixed:
            return self.set(name, value), None
        if self.first("model_init_kwargs") is None:
            return self.set(name, value), "the weights have to be loaded in the dtype of autocast"
        both = self.set(name, value, "model_init_kwargs", {"dtype": "bfloat16"})
        return (
            both,
            "weights and optimizer states are bfloat16: a static cache does not accept autocast's keys and values",
        )

    def set(self, *names_and_values: Any) -> Fix:
        """Arguments to set (a name, its value, a name, …), with the patch that sets them."""
        given = dict(zip(names_and_values[::2], names_and_values[1::2], strict=True))
        written = ", ".join(f"{name}={in_code(value)}" for name, value in given.items())
        settings = tuple(Setting("argument", name, in_json(value), self.arguments) for name, value in given.items())
        text = f"{self.arguments}({written})" if self.arguments else written
        return Fix((TextPart(text, settings),)).by("trainer_arguments", as_value(given))
