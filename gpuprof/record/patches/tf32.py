"""Matrix multiplications in fp32 may use TF32."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .context import Context, Patch, Proof, has_gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Published, Version


PATCH = Patch(
    name="tf32",
    does="fp32 matrix multiplications and convolutions use TF32 tensor cores",
    line='torch.set_float32_matmul_precision("high")',
    cannot="a program that sets the precision itself, after its imports",
    fields=lambda value, known: ({"tf32": True}, {}),
)
_AMPERE: Published[Version] = 8


def apply(context: Context) -> Callable[[], Proof]:
    """Sets the precision as soon as torch has been imported."""

    def allow(torch: Any) -> None:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True

    if not context.only_looks:
        context.on_import("torch", allow)

    def proof() -> Proof:
        torch = sys.modules.get("torch")
        if torch is None or not has_gpu():
            return Proof(False, "there is no GPU; TF32 is a format of NVIDIA's tensor cores")
        if torch.cuda.get_device_capability()[0] < _AMPERE:
            return Proof(False, "this GPU is older than Ampere and has no TF32")
        found = torch.get_float32_matmul_precision()
        if found == "highest":
            return Proof(False, "the program set the precision to highest after the patch")
        return Proof(True, f'matmul precision is "{found}"')

    return proof
