"""Decoding for few sequences: each iteration reads all weights for a token or two."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import inference as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.batches.batch_scaling import scaled_batch
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import Code, call, code, option
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.changes.batch import model_phases
from gpuprof.replay.graph import Graph
from gpuprof.units import Assumed, Sequences, Tokens

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

MOST_SEQUENCES: Assumed[Sequences] = 2
"""Most simultaneous sequences for a proposal: with more, the arithmetic of rejected tokens is no longer free."""
DRAFTED_TOKENS: Assumed[Tokens] = 4
"""Tokens drafted per iteration."""

PAGE = Page(
    id="speculative_decoding",
    applies=("inference",),
    title="Decoding reads all weights for each token of few sequences",
    means="""
To generate one token, every weight of the model is read. With one sequence that takes the whole iteration: the GPU
could compute a hundred tokens in that time. With speculative decoding a cheap method drafts the next tokens, and one
iteration of the model checks them all and keeps those that it would have generated.
""",
    detected=f"""
Iterations that generate one token for each of at most {MOST_SEQUENCES} sequences, without drafting already.
""",
    gain=f"""
An iteration over 5 tokens instead of 1, with its kernels grown as for a larger batch, and {DRAFTED_TOKENS} drafted
tokens at {percent(calibrated.DRAFT_COST.value)} % of an iteration each. With {percent(calibrated.ACCEPTED.value)} % of
drafted tokens accepted each iteration gives 2.5 tokens: (1 − a⁵) / (1 − a), as Leviathan et al. (2023) derive. The
interval covers {percent(calibrated.ACCEPTED.low)} to {percent(calibrated.ACCEPTED.high)} %.
""",
    wrong="""
How many drafted tokens are accepted depends on the text: code and extraction accept most, free prose at high
temperature few. A draft model takes memory. With many requests at once the gain is gone.
""",
)

_SPECULATES = re.compile(
    r"TARGET_VERIFY|DRAFT_EXTEND|eagle_worker|spec_decode/(eagle|medusa|ngram)|assisted_decoding|candidate_generator"
)
_FIXES = {
    "vllm": option(
        'vllm serve ... --speculative-config \'{"method": "ngram", "num_speculative_tokens": 4}\'',
        "--speculative-config",
        {"method": "ngram", "num_speculative_tokens": 4},
        "vllm serve",
    )
    + "  # or eagle3",
    "sglang": option("sglang ... --speculative-algorithm EAGLE3", "--speculative-algorithm", "EAGLE3", "sglang")
    + code(" --speculative-draft-model-path ..."),
}
_OTHERWISE = (
    call("model.generate", ..., assistant_model=Code("small_model"))
    + "  # of the same family, or prompt_lookup_num_tokens=4"
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes drafted tokens if few sequences are decoded at once."""
    work, graph = case.workload, case.graph
    if not work.decodes or work.batch is None or work.batch > MOST_SEQUENCES or speculates(case):
        return
    model = model_phases(graph)
    tokens = [(1 - share ** (DRAFTED_TOKENS + 1)) / (1 - share) for share in calibrated.ACCEPTED.falling]

    def change(way: int) -> Change:
        def then(graph: Graph) -> Graph:
            checked = scaled_batch(case, DRAFTED_TOKENS + 1, way)(graph)
            # Fewer accepted tokens mean more iterations for the same text.
            factor = (1 + DRAFTED_TOKENS * calibrated.DRAFT_COST.rising[way]) * tokens[1] / tokens[way]
            return checked.with_durations(np.where(model, checked.duration_ns * factor, checked.duration_ns))

        return then

    sequences = f"{work.batch} sequence{'s' if work.batch > 1 else ''}"
    text = f"all weights are read for one token of {sequences}, which takes {duration(case.step_ns)}"
    yield Proposal(
        title="speculative decoding",
        evidence=spans(case, text, model & graph.on_gpu),
        fix=_FIXES.get(work.engine or "", _OTHERWISE),
        change=change(1),
        best=change(0),
        worst=change(2),
        work=tokens[1],
        same_batch=True,
        claims=("decoding",),
    )


def speculates(case: Analysis) -> bool:
    """Whether tokens are drafted already."""
    trace = case.trace
    return any(bool(trace.rows_named(table.name, _SPECULATES.search).any()) for table in (trace.ops, trace.frames))


FINDING = Declaration(
    page=PAGE,
    find=find,
    synonyms=("speculative", "draft_model", "assisted_generation"),
)
