"""Whether two recordings are of the same model: by what their runs say, else by the shapes of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuprof.diagnosis.detect.pair.facts import Facts
from gpuprof.units import Assumed, Entries, Ratio, Share

FEWEST_SHAPES: Assumed[Entries] = 3
"""Fewest shapes of weights for a recording to say anything about its model."""
SHARED_SHAPES: Assumed[Share] = 0.5
"""Smallest share of the shapes of the recording with fewer of them that the other must have as well. A fix may merge or
drop some (projections in one matrix, experts in one call); most stay."""
SIZES = ("hidden_size", "layers")
"""Sizes of a model that no fix changes."""
MORE_PARAMETERS: Assumed[Ratio] = 1.2
"""Two models of one class are different if their numbers of parameters, without adapters, differ by more than this
factor. Assumed: a larger vocabulary or another head changes fewer."""
SHARDED = ("FullyShardedDataParallel", "DeepSpeedEngine")
"""Wrappers that shard the parameters, so that a rank's number of them does not identify the model."""

Model = Mapping[str, Any] | None


def other_model(a: Facts, b: Facts, models: tuple[Model, Model]) -> str | None:
    """How the models of two recordings differ, as part of a sentence; None if they do not, or if it is unknown.

    models: each run's description of its model.
    """
    one, other = (tuple(model.get(key) for key in SIZES) if model else (None,) for model in models)
    sized = None not in (*one, *other)
    if sized and one != other:
        return f"{_sizes(models[0])} in A, {_sizes(models[1])} in B"
    differ = _other_class(*models, one_world=(a.side.world_size or 1) == (b.side.world_size or 1))
    if differ is not None or sized:
        return differ
    fewer, common = min(len(a.weights), len(b.weights)), len(a.weights & b.weights)
    if fewer < FEWEST_SHAPES or common >= SHARED_SHAPES * fewer:
        return None
    return f"of the {fewer:,} shapes of weights in one, {common or 'none'} {'is' if common < 2 else 'are'} in the other"


def _other_class(a: Model, b: Model, one_world: bool) -> str | None:
    """How two models differ in class or number of parameters. Another class with exactly the same number of parameters
    is the same model in a user's wrapper."""
    if not (a and b and a.get("class") and b.get("class")):
        return None
    counts = (_base(a), _base(b)) if one_world and _packing(a) == _packing(b) else (None, None)
    names = (str(a["class"]), str(b["class"]))
    one, other = counts
    if one and other:
        apart = max(one, other) / min(one, other) > MORE_PARAMETERS
        if apart or (names[0] != names[1] and one != other):
            return f"{names[0]} of {one:,} parameters in A, {names[1]} of {other:,} in B"
        return None
    return None if names[0] == names[1] else f"{names[0]} in A, {names[1]} in B"


def _base(model: Mapping[str, Any]) -> int | None:
    """Number of parameters without adapters; None if a rank does not have them all."""
    if model.get("wrapper") in SHARDED or not model.get("parameters"):
        return None
    return model["parameters"] - ((model.get("lora") or {}).get("parameters") or 0)


def _packing(model: Mapping[str, Any]) -> tuple[object, ...]:
    """How weights are stored, which may change their counted number: some libraries pack quantized weights."""
    whole = sorted(name for name in model.get("dtypes") or {} if name.startswith(("int", "uint")))
    return (model.get("quantization") or {}).get("method"), *whole


def _sizes(model: Model) -> str:
    known = model or {}
    hidden, layers = (known.get(key) for key in SIZES)
    return f"{known.get('class') or 'a model'} of {layers} layers and hidden size {hidden}"
