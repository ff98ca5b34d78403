"""Ops and kernels as a trace records them, for the cost models."""

from __future__ import annotations

import json

from gpuprof.costs.arguments import Arguments, parse
from gpuprof.costs.cost import Kernel, Machine

H200 = Machine(50e6, 132)
PLAIN = Kernel("some_kernel", (132, 1, 1), 256)


def arguments(name: str, dims, types, strides=None, concrete=None) -> Arguments:
    return parse(name, *(None if x is None else json.dumps(x) for x in (dims, types, strides, concrete)))
