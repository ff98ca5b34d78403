"""A large square matrix that is not trained is multiplied as a dense one, and may be mostly zeros."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import OP, Mask
from gpuprof.units import Assumed, Entries, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_NODES: Assumed[Entries] = 4096
"""Fewest rows of such a matrix: smaller ones are transforms (a Fourier or a wavelet basis), which have no zeros."""
LEAST_DENSE_SHARE: Assumed[Share] = 0.1
"""Smallest share of GPU time in such multiplications for a proposal: how many zeros there are is not known."""
_MATMULS = frozenset({"aten::mm", "aten::addmm"})
_MADE_HERE = frozenset({"aten::softmax", "aten::_softmax", "aten::exp", "aten::sigmoid", "aten::relu", "aten::cdist"})

PAGE = Page(
    id="sparse_matrix",
    title="A large constant matrix is multiplied as a dense one",
    means="""
A graph as a matrix of nodes × nodes has as many entries as pairs of nodes, and nearly all are zero: a multiplication
reads and multiplies every one of them, in each layer, forward and backward. A sparse matrix
(`adjacency.to_sparse_csr()`), or sums over a list of edges, take time that scales with the edges.
""",
    detected=f"""
A multiplication of a square matrix of at least {FEWEST_NODES:,} rows by features of each row, where no multiplication
or softmax of the step makes a matrix of that shape (so it is no attention, and it gets no gradient). With elementwise
ops and sums on matrices of that shape such multiplications take at least {percent(LEAST_DENSE_SHARE)} % of the GPU's
time. Not detected without shapes.
""",
    gain=f"""
These multiplications and ops take {percent(calibrated.SPARSE_LEFT.value)} % of their time
({percent(calibrated.SPARSE_LEFT.low)} to {percent(calibrated.SPARSE_LEFT.high)} %, assumed).
""",
    wrong=f"""
A recording has no values, so it does not show how many entries are zero: the probability that most are is
{percent(calibrated.SPARSE_ODDS.value)} % (assumed). A matrix of kernels or distances between all points has none. With
more than about 1 % of entries a dense multiplication on tensor cores (TF32, bf16) may be faster.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes a sparse matrix in place of a dense one."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    inside = (ops.kind == OP) & (ops.start_ns >= low) & (ops.start_ns < high)
    sizes = _sizes(case, inside)
    if not sizes:
        return
    size = max(sizes)
    takes = np.array([text for text in np.unique(ops.dims[inside]).tolist() if (size, size) in shapes_in(case, text)])
    graph = case.graph
    nodes = case.nodes_within(inside & np.isin(ops.dims, takes)) & graph.on_gpu
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (nodes, graph.on_gpu))
    if took < LEAST_DENSE_SHARE * whole:
        return
    text = (
        f"multiplications by a matrix of {size:,} × {size:,} that is not trained, and ops on it:"
        f" {duration(case.per_step(took))} of GPU time {case.unit.a}, {100 * took / whole:.0f} % of it"
    )
    best, usual, worst = (partial(scaled, nodes=nodes, factor=left) for left in calibrated.SPARSE_LEFT.rising)
    yield Proposal(
        title="a sparse matrix instead of a dense one",
        evidence=spans(case, text, nodes),
        fix=code("adjacency = adjacency.to_sparse_csr()")
        + "  # once, before the training; then adjacency @ x as before\n"
        + code("torch.zeros_like(x).index_add(0, target, x[source] * weight)")
        + "  # or along a list of edges",
        change=usual,
        best=best,
        worst=worst,
        odds=calibrated.SPARSE_ODDS.value,
        needs="most entries of the matrix are zero, as of a graph's",
    )


def _sizes(case: Analysis, inside: Mask) -> set[int]:
    """Rows of square matrices that are multiplied by features of each row and that no op of the step makes."""
    ops, strings = case.trace.ops, case.trace.strings
    named = case.ops_named(lambda name: name in _MATMULS or name in _MADE_HERE)
    rows = np.flatnonzero(inside & named)
    used, made = set[int](), set[int]()
    for name, dims in {(int(ops.name[row]), int(ops.dims[row])) for row in rows.tolist()}:
        shapes = [shape for shape in shapes_in(case, dims) if shape and len(shape) == 2]
        if strings[name] in _MADE_HERE:
            made |= {one[0] for one in shapes if one[0] == one[1]}
        elif len(shapes) >= 2:
            left, right = shapes[-2:]
            used |= {left[0]} if left[0] == left[1] >= FEWEST_NODES and right[1] != left[0] else set()
            made |= {left[0]} if left[0] == right[1] else set()
    return used - made


FINDING = Declaration(
    page=PAGE,
    find=find,
    synonyms=("graph_convolution", "sparse_csr", "spmm", "sparse_adjacency"),
    titles=("a_sparse_matrix_instead_of_a_dense_one",),
)
