"""What of a recording is compiled code already: a share of its kernels, since a library's own compiled function (an
attention, a loss) is a few of them and says nothing of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.compiler_names import COMPILED
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.nesting import inside
from gpuprof.timeline.phases import BACKWARD, FORWARD, RECOMPUTE
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.timeline.timeline import Timeline

FUSABLE = ("elementwise", "cast/copy", "reduction", "norm", "softmax", "dropout", "rope", "loss")
"""Categories whose kernels Inductor generates itself, and so fuses with their neighbours."""
COMPILED_SHARE: Assumed[Share] = 0.25
"""Of the kernels that a compiler writes or would fuse the part that is compiled, from which on the model counts as
compiled. A library's own compiled function (attention, a loss) is a few per cent of them."""


@remembered
def compiled_share(timeline: Timeline) -> float:
    """Of the kernels of forward and backward passes that are compiled or that a compiler would fuse, the part that is
    compiled, 0 to 1; 0 where there are none."""
    rows = timeline.members
    rows = rows[np.isin(timeline.phase[rows], (FORWARD, BACKWARD, RECOMPUTE))]
    done = compiled_work(timeline)[rows]
    fusable = done | np.isin(timeline.category[rows], [CATEGORIES.index(name) for name in (*FUSABLE, "triton_fused")])
    return float(done.sum() / fusable.sum()) if fusable.any() else 0.0


@remembered
def compiled_work(timeline: Timeline) -> Mask:
    """Per GPU event whether Inductor wrote it, or it was launched in a range of compiled code."""
    trace = timeline.trace
    ranges = trace.rows_named(trace.ops.name, COMPILED.search)
    within = np.append(inside(timeline.nesting, ranges), False)
    return trace.rows_named(trace.gpu.name, COMPILED.search) | within[timeline.links.scope]
