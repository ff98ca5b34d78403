"""Whether two recordings are of one model: by what their runs say of it, else by the weights that they multiply by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuprof.diagnosis.detect.pair.facts import Facts

FEWEST = 3
"""Shapes of weights that a recording must have to say anything about its model."""
SHARED = 0.5
"""Of the shapes of the recording that has fewer, the share that the other must have as well. A fix may merge or drop
some (projections in one matrix, experts in one call); most stay."""
SIZES = ("hidden_size", "layers")
"""What no fix changes about a model."""

Model = Mapping[str, Any] | None


def other_model(a: Facts, b: Facts, models: tuple[Model, Model]) -> str | None:
    """How the models of two recordings differ, as part of a sentence; None where they do not, or it is not known.

    models: what the run of each says of its model.
    """
    one, other = (tuple(model.get(key) for key in SIZES) if model else (None,) for model in models)
    if None not in (*one, *other):
        return None if one == other else f"{_sizes(models[0])} in A, {_sizes(models[1])} in B"
    fewer, common = min(len(a.weights), len(b.weights)), len(a.weights & b.weights)
    if fewer < FEWEST or common >= SHARED * fewer:
        return None
    return f"of the {fewer:,} shapes of weights in one, {common or 'none'} {'is' if common < 2 else 'are'} in the other"


def _sizes(model: Model) -> str:
    known = model or {}
    hidden, layers = (known.get(key) for key in SIZES)
    return f"{known.get('class') or 'a model'} of {layers} layers and hidden size {hidden}"
