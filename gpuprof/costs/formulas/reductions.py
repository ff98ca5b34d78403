"""Ops over whole rows: reductions, softmax, norms, losses."""

from __future__ import annotations

import math
import re

from gpuprof.costs.arguments import Arguments
from gpuprof.costs.cost import SECTOR_BYTES, Cost, Kernel, Machine
from gpuprof.costs.formulas.cache import rereads
from gpuprof.costs.formulas.elementwise import words
from gpuprof.units import Place, Published, Threads

REDUCES = words("""
    sum mean max min amax amin prod std var var_mean std_mean norm linalg_vector_norm linalg_norm all any argmax argmin
    logsumexp count_nonzero aminmax median mode nansum nanmean _assert_async isin equal trace
""")
SOFTMAX = words("_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data")
_WITH_INDICES = words("max min argmax argmin median mode")
_DIMENSIONS_AT: Published[dict[str, Place]] = {"linalg_vector_norm": 2, "linalg_norm": 2, "norm": 2}
_THREADS_A_MULTIPROCESSOR: Published[Threads] = 2048


def reduction(arguments: Arguments, name: str) -> Cost | None:
    """Cost of an op that reduces dimensions: all of them, those recorded as an argument, else the last."""
    tensors = arguments.tensors
    if not tensors:
        return None
    source = tensors[0]
    position = _DIMENSIONS_AT.get(name, 1)
    text = arguments.text(position)
    folds = arguments.integers(position) or ([int(text)] if re.fullmatch(r"-?\d+", text) else None)
    if folds is None and (len(arguments.values) <= 2 or text == "[]"):
        left = 1.0
    else:
        folds = [d for d in folds or [-1] if -len(source.shape) <= d < len(source.shape)]
        left = source.elements / max(math.prod(source.shape[d] for d in folds), 1)
    indices = 8 if name in _WITH_INDICES and left > 1 else 0
    return Cost(read_bytes=source.bytes, write_bytes=left * (source.element_bytes + indices))


def softmax(arguments: Arguments, kernel: Kernel, machine: Machine) -> Cost | None:
    """Cost of (log-)softmax and its gradient.

    Kernels that hold a row in registers or shared memory read it once. Others pass over it three times forward
    (maximum, sum, result) and twice backward; the rows in progress, one per resident block, may stay in the L2.
    """
    tensors = [t for t in arguments.tensors if t.elements]
    backward = "backward" in arguments.name
    inputs = tensors[: 2 if backward else 1]
    if not inputs:
        return None
    read = float(sum(t.bytes for t in inputs))
    written = inputs[0].elements * tensors[-1 if len(tensors) > len(inputs) else 0].element_bytes
    if kernel.named(r"cunn_SoftMax(Forward|Backward)(Gmem)?<"):
        rows = machine.multiprocessors * max(_THREADS_A_MULTIPROCESSOR // max(kernel.threads, 1), 1)
        at_work = read / max(kernel.blocks, 1) * rows
        read += (1 if backward else 2) * rereads(read, at_work, machine.l2_bytes)
    return Cost(read_bytes=read, write_bytes=written)


def norm(arguments: Arguments, kernel: Kernel) -> Cost | None:
    """Cost of layer, RMS, group and batch norm: forward reads and writes the input once, backward reads it and the
    gradient.

    Statistics over the batch, and gradients of the weights, take a separate pass.
    """
    tensors = [t for t in arguments.all_tensors if t.elements]
    if not tensors:
        return None
    most = max(t.elements for t in tensors)
    wide = [t for t in tensors if t.elements == most]
    small = float(sum(t.bytes for t in tensors if t.elements != most))
    if "backward" not in arguments.name.lower():
        passes = 2 if "batch_norm" in arguments.name else 1
        return Cost(read_bytes=passes * wide[0].bytes + small, write_bytes=wide[0].bytes)
    read = float(sum(t.bytes for t in wide))
    if kernel.named(r"[gG]amma|[bB]eta|reduce_kernel"):
        return Cost(read_bytes=read, write_bytes=small / 2, whole=False)
    return Cost(read_bytes=read + small, write_bytes=wide[0].bytes)


def picked_loss(arguments: Arguments) -> Cost | None:
    """Cost of negative log-likelihood: one element of each row is picked, or gets its gradient; both move a sector."""
    scores = next((t for t in arguments.tensors if len(t.shape) > 1), None)
    if scores is None:
        return None
    touched = float(math.prod(scores.shape[:-1]) * (SECTOR_BYTES + 8))
    return Cost(read_bytes=touched, write_bytes=touched if "backward" in arguments.name else 4.0)
