"""Finds the backward pass's thread if nothing names it: no autograd op, no range, no thread name.

In a training two threads launch work in turns: the one that runs the program launches the forward pass and the
optimizer, autograd's launches the backward pass while the other waits in `backward()`.
"""

from __future__ import annotations

import re

import numpy as np

from gpuprof.timeline.links import Links, annotating_thread
from gpuprof.tracefile.trace import KERNEL, Trace
from gpuprof.units import Assumed, Share

GRADIENT_KERNEL = re.compile(r"backward|[^a-z](?<!igemm_)bwd[^a-z]|wgrad|igemm_wrw", re.IGNORECASE)
"""Kernels of a backward pass. Not `dgrad` (MIOpen: `igemm_bwd`): the forward pass of a transposed convolution is the
gradient of a convolution's input."""
OPTIMIZER_KERNEL = re.compile(r"adam(?!ax)|multi_tensor_lamb", re.IGNORECASE)
_OPTIMIZER = re.compile(r"^Optimizer\.|^aten::_fused_(adamw?|sgd|adagrad)|^aten::_foreach_addc")

LEAST_LAUNCHES: Assumed[Share] = 0.1
"""Smallest share of the launches that either thread makes."""
LAUNCHES_IN_A_ROW: Assumed[Share] = 0.9
"""Smallest share of each thread's launches that follow a launch of the same thread. Threads that work independently of
each other mix theirs."""
GRADIENT_KERNELS: Assumed[Share] = 0.95
"""Smallest share of the kernels named as gradients that the thread launches."""


def backward_threads(trace: Trace, links: Links) -> frozenset[int]:
    """The thread that launches the backward pass by what it launches and when; empty if that does not show it.

    For recordings in which no op, range or thread name shows it.
    """
    gpu = trace.gpu
    rows = np.flatnonzero((links.call >= 0) & (links.thread >= 0) & (gpu.kind == KERNEL))
    rows = rows[np.argsort(links.begun_ns[rows], kind="stable")]
    threads, counts = np.unique(links.thread[rows], return_counts=True)
    working = threads[counts >= LEAST_LAUNCHES * len(rows)]
    if len(working) != 2:
        return frozenset()
    launching = links.thread[rows]
    launching = launching[np.isin(launching, working)]
    if any(_in_a_row(launching, thread) < LAUNCHES_IN_A_ROW for thread in working.tolist()):
        return frozenset()
    first = int(launching[0])
    main = annotating_thread(trace)
    main = main if main in working else first
    other = int(working[working != main][0])
    found = frozenset({other})
    gradients = rows[trace.rows_named(gpu.name, GRADIENT_KERNEL.search)[rows]]
    if len(gradients):
        return found if float(np.mean(links.thread[gradients] == other)) >= GRADIENT_KERNELS else frozenset()
    return found if _optimizes(trace, links, rows, main) else frozenset()


def _in_a_row(launching: np.ndarray, thread: int) -> float:
    """Share of a thread's launches that follow one of its own; 0 if its only launch is the first of all. `launching`:
    the thread of each launch, in order."""
    follows = launching[:-1][launching[1:] == thread]
    return float(np.mean(follows == thread)) if len(follows) else 0.0


def _optimizes(trace: Trace, links: Links, rows: np.ndarray, thread: int) -> bool:
    """Whether an optimizer's work was recorded on this thread and on no other."""
    ops = trace.ops
    found = rows[trace.rows_named(trace.gpu.name, OPTIMIZER_KERNEL.search)[rows]]
    threads = np.concatenate([links.thread[found], ops.thread[trace.rows_named(ops.name, _OPTIMIZER.search)]])
    return bool(len(threads)) and bool(np.all(threads == thread))
