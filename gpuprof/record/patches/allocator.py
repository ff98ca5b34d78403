"""torch's allocator grows its segments instead of allocating new ones from the driver (expandable segments)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from .context import Context, Patch, Proof, has_gpu

PATCH = Patch(
    name="allocator",
    does="the allocator's segments grow (expandable_segments), so that memory is not fragmented",
    line="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment",
    cannot="an allocator that is not torch's own",
)
_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_SETTING = "expandable_segments:True"


def apply(context: Context) -> Callable[[], Proof]:
    """torch reads the variable when it first allocates, so it is set before torch is imported."""
    given = next((name for name in _VARIABLES if os.environ.get(name)), _VARIABLES[0])
    before = os.environ.get(given, "")
    if _SETTING in before:
        context.refuse("it is set already")
    else:
        others = [part for part in before.split(",") if part and not part.startswith("expandable_segments")]
        os.environ[given] = ",".join([*others, _SETTING])

    def proof() -> Proof:
        torch = sys.modules.get("torch")
        if context.refusal:
            return Proof(False, context.refusal)
        if torch is None or not has_gpu():
            return Proof(False, "there is no GPU, so none of its memory is allocated")
        grown = sum(bool(segment.get("is_expandable")) for segment in torch.cuda.memory.memory_snapshot())
        if not grown:
            return Proof(False, "no segment of the allocator can grow")
        return Proof(True, f"{grown} segments can grow")

    return proof
