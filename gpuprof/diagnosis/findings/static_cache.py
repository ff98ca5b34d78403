"""A key-value cache that is copied whole for each new token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import inference as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import Code, assigned, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.timeline.gpu.cache_appends import cache_appends

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change


PAGE = Page(
    id="static_cache",
    applies=("inference",),
    title="The key-value cache is copied for each token",
    means="""
Decoding appends one token's keys and values to the cache of every layer. Appending by concatenation allocates a new
cache and copies the old one, for each layer and token: traffic that grows with the text, and shapes that differ in each
iteration, so that neither torch.compile nor CUDA graphs apply. A static cache has its full length from the beginning,
and the token is written into its place.
""",
    detected="""
Concatenations of two four-dimensional tensors, the first with many positions, the second with one: a cache and a
token. Not detected without shapes.
""",
    gain=f"""
The concatenations take {percent(calibrated.CACHE_LEFT.value)} % ({percent(calibrated.CACHE_LEFT.low)} to
{percent(calibrated.CACHE_LEFT.high)} %) of what they took. Compiling the iteration or capturing it as a CUDA graph,
which is then possible, is a separate finding.
""",
    wrong="""
Attention over a static cache reads its full length, filled or not: choose the length of the longest text, not of the
model. Its memory is allocated from the start.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes a cache of fixed length if the cache grows by concatenation."""
    if not case.workload.is_inference:
        return
    ops = cache_appends(case.trace, case.timeline.window)
    nodes = case.nodes_within(ops) & ~case.graph.waits
    if not nodes.any():
        return
    graph = case.graph

    def change(level: int) -> Change:
        def then(graph: Graph) -> Graph:
            return graph.with_durations(
                np.where(nodes, graph.duration_ns * calibrated.CACHE_LEFT.rising[level], graph.duration_ns)
            )

        return then

    count = case.per_step(float(ops.sum()))
    gpu_ns = case.per_step(float(graph.duration_ns[nodes & graph.on_gpu].sum()))
    yield Proposal(
        title="static key-value cache",
        evidence=spans(
            case, f"{count:,.0f} concatenations {case.unit.a} copy the cache: {duration(gpu_ns)} of GPU time", nodes
        ),
        fix=assigned("model.generation_config.cache_implementation", "static")
        + "\nor in your own code: "
        + call("transformers.StaticCache", config=Code("model.config"), max_cache_len=Code("...")).otherwise(),
        change=change(1),
        best=change(0),
        worst=change(2),
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    synonyms=("kv_cache", "cache_implementation", "key_value_cache"),
    titles=("static_key_value_cache",),
)
