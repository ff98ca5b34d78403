"""Ops that move elements to or from indexed places, concatenate tensors, sort or search."""

from __future__ import annotations

import math
import re

from gpuprof.costs.arguments import Arguments, Tensor
from gpuprof.costs.cost import SECTOR_BYTES, Cost, Kernel
from gpuprof.costs.dtypes import element_bytes, type_in_kernel_name
from gpuprof.costs.formulas.elementwise import words
from gpuprof.units import Assumed, Bytes, Elements, Published

_INTEGERS = words("int long") | {"long int"}
_ADDS = words("index_add scatter_add scatter_reduce")
_SETS = words("index_copy index_fill scatter")
_SORTED_ADDS = words("index_put _index_put_impl embedding_dense_backward")
_INDEX_BYTES: Published[Bytes] = 8
_ELEMENTWISE_PER_THREAD: Assumed[Elements] = 4


def cat(arguments: Arguments, kernel: Kernel) -> Cost | None:
    """Cost of concatenating; element types inside lists are not recorded, but the copying kernel's name has one."""
    parts = [t for t in arguments.all_tensors if t.elements]
    if not parts:
        return None
    opaque = re.search(r"OpaqueType<(\d+)", kernel.name)
    size = int(opaque[1]) if opaque else element_bytes(type_in_kernel_name(kernel.name) or "float") or 4
    moved = float(sum(t.elements * (element_bytes(t.type) or size) for t in parts))
    return Cost(read_bytes=moved, write_bytes=moved)


def by_index(arguments: Arguments, kernel: Kernel) -> Cost | None:
    """Cost of gathers and scatters. Contiguous rows cost their bytes, single elements a sector each."""
    tensors = arguments.tensors
    if not tensors:
        return None
    name = arguments.name.removeprefix("aten::").rstrip("_")
    source = tensors[0]
    index = next((t for t in tensors[1:] if t.type in _INTEGERS), None)
    index_bytes = index.bytes if index is not None else 0
    if name in ("index", "_unsafe_index", "masked_select"):
        out = _indexed_bytes(source, kernel)
        return Cost(read_bytes=out, write_bytes=out)
    if name in _SORTED_ADDS:
        added = source if name == "embedding_dense_backward" else tensors[-1]
        return _sorted_add(source, added, index, kernel)
    if name in _ADDS or name in _SETS:
        return _scatter(name, tensors, index)
    if index is None:
        return None
    if name in ("index_select", "embedding"):
        picked = index.elements * math.prod(source.shape[1:]) * source.element_bytes
        return Cost(read_bytes=picked + index_bytes, write_bytes=picked)
    # An index expanded over rows picks whole rows; else neighbouring elements need not be contiguous.
    rows = kernel.named("vectorized_gather") or (index.strides is not None and 0 in index.strides)
    each = source.element_bytes if rows else max(SECTOR_BYTES, source.element_bytes)
    read = min(index.elements * each, max(source.bytes, index.elements * source.element_bytes))
    return Cost(read_bytes=read + index_bytes, write_bytes=index.elements * source.element_bytes)


def _indexed_bytes(source: Tensor, kernel: Kernel) -> float:
    """Bytes of the result of indexing. The number of indices is not recorded, but the launch shows it: a gather of rows
    has a column of blocks for each index, an elementwise kernel at most four elements per thread."""
    if kernel.named("vectorized_gather"):
        return kernel.grid[0] * math.prod(source.shape[1:]) * source.element_bytes
    return kernel.blocks * kernel.threads * _ELEMENTWISE_PER_THREAD * source.element_bytes


def _sorted_add(source: Tensor, added: Tensor, index: Tensor | None, kernel: Kernel) -> Cost:
    """Cost of adding at indices that may repeat: they are sorted with their positions, then each run is summed."""
    if kernel.named("[rR]adix|[sS]ort"):
        rows = added.shape[0] if added.shape and added.shape[1:] == source.shape[1:] else added.elements
        pairs = 2.0 * _INDEX_BYTES * (index.elements if index is not None else rows)
        return Cost(read_bytes=pairs, write_bytes=pairs, whole=False)
    return Cost(read_bytes=2 * added.bytes, write_bytes=added.bytes)


def _scatter(name: str, tensors: list[Tensor], index: Tensor | None) -> Cost:
    """Cost of writing by an index; adding also reads the old values."""
    source = tensors[0]
    added = next((t for t in tensors[1:] if t is not index), None)
    elements = added.elements if added is not None else (index.elements if index is not None else 0)
    each = source.element_bytes if name.startswith("index") else max(SECTOR_BYTES, source.element_bytes)
    touched = float(min(elements * each, max(source.bytes, elements * source.element_bytes)))
    read = (touched if name in _ADDS else 0.0) + (added.bytes if added is not None else 0)
    return Cost(read_bytes=read + (index.bytes if index is not None else 0), write_bytes=touched)


def search(arguments: Arguments) -> Cost | None:
    """Cost of nonzero, unique and bincount: each of their kernels passes over the input."""
    tensors = arguments.tensors
    return Cost(read_bytes=tensors[0].bytes, whole=False) if tensors else None


def sort(arguments: Arguments, kernel: Kernel) -> Cost | None:
    """Cost of sorting and scans. A radix sort passes over keys and positions once for every 8 bits of the key."""
    tensors = arguments.tensors
    if not tensors:
        return None
    keys = tensors[0]
    if kernel.named("[rR]adix|[oO]nesweep"):
        moved = float(keys.elements * (keys.element_bytes + _INDEX_BYTES) * keys.element_bytes)
        return Cost(read_bytes=moved, write_bytes=moved)
    return Cost(read_bytes=keys.bytes, write_bytes=keys.bytes)
