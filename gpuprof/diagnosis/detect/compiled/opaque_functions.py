"""Custom autograd functions that Dynamo cannot trace: they launch an extension's kernels without a PyTorch op.

Dynamo traces autograd functions made of PyTorch ops, custom operators or Triton kernels. An extension's function that
is called directly breaks the graph and stays eager."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import OP, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

NAME = re.compile(r"^[A-Za-z_]\w*$")
"""Name of a Python class; ops have a namespace, and autograd's own nodes a number."""
BACKWARD = "Backward"
COMPILED = "CompiledFunction"
LAUNCHES = re.compile(r"^cudaLaunch(Cooperative)?Kernel")
"""Launches through the CUDA runtime; Triton launches through the driver."""


@remembered
def opaque_functions(case: Analysis) -> Mask:
    """Rows of ops: calls of such functions, forward only."""
    return _opaque(case, "")


@remembered
def opaque_nodes(case: Analysis) -> Mask:
    """Nodes of the graph in such functions, forward and backward."""
    return case.nodes_within(opaque_functions(case) | _opaque(case, BACKWARD))


def _opaque(case: Analysis, ending: str) -> Mask:
    found = {name + ending for name in _names(case)}
    return case.ops_named(found.__contains__) & (case.trace.ops.kind == OP)


@remembered
def _names(case: Analysis) -> frozenset[str]:
    """Functions that launch a kernel themselves, forward or backward."""
    trace, links = case.trace, case.timeline.links
    used = {trace.strings[name] for name in np.unique(trace.ops.name[trace.ops.kind == OP]).tolist()}
    custom = {name for name in used if NAME.match(name) and name + BACKWARD in used and name != COMPILED}
    if not custom:
        return frozenset()
    direct = np.append(trace.rows_named(trace.calls.name, LAUNCHES.search), False)[links.call]
    launching = np.unique(trace.ops.name[links.op[direct & (links.op >= 0)]]).tolist()
    by = {trace.strings[name] for name in launching}
    return frozenset(name for name in custom if name in by or name + BACKWARD in by)
