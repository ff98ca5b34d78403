"""Calls of a model without gradients that belong together: the tokens of one text, texts of one batch.

A text that is generated is a call on the prompt, followed by calls on one token each that read a cache; or by calls on
the whole text, which is one token longer each time. Texts that are generated one after another, and inputs that go
through the model one after another, could be one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.batches.inner_passes import MODULE, inner_passes
from gpuprof.diagnosis.detect.batches.model_calls import PlainCall, alike, find_plain_calls, same_from_start
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.projection.changes.batch import event_growth
from gpuprof.record.phases.phase_names import REPEATED_RANGE
from gpuprof.replay.stretches import Stretches, nodes_in, place
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import DATA, GENERATION
from gpuprof.tracefile.trace import ANNOTATION, F64, I64, OP
from gpuprof.units import Assumed, Calls, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_GROWING: Assumed[Calls] = 4
"""Fewest calls on a text that grows by a token each time."""
BY_ONE: Assumed[Share] = 0.5
"""Smallest share of such calls that have exactly one token more: of a long text the recording leaves out calls."""
FEWEST_CALLS_OF_A_MODEL: Assumed[Calls] = 3
"""Fewest calls on inputs of one kind where modules have no ranges: two may be of two models of the same structure."""
CHOOSES = frozenset(
    f"aten::{name}" for name in ("argmax", "max", "topk", "sort", "multinomial", "exponential_", "gumbel_softmax")
)
"""Ops that choose tokens, which the next call may read."""

Text = Sequence[PlainCall]
"""The calls that generate one batch of texts; a single call is no generation."""


def find_growing_texts(case: Analysis) -> list[Text]:
    """Generated texts that are computed whole for each new token."""
    return [text for text in _texts(case) if _grows(text)]


def find_generated_texts(case: Analysis) -> list[Text]:
    """Texts that are generated with a cache, or without."""
    return [text for text in _texts(case) if len(text) > 1]


def lengthening_share(case: Analysis) -> float:
    """Share of the GPU work that the model's passes launch in calls on texts whose shapes differ from token to token:
    with the whole text, or with a cache that grows."""
    dims = case.trace.ops.dims
    calls = [
        one
        for text in find_generated_texts(case)
        if any(not np.array_equal(dims[a.rows], dims[b.rows]) for a, b in pairwise(text[1:]))
        for one in text
    ]
    if not calls:
        return 0.0
    graph = case.graph
    inside = nodes_in(graph, stretches_of(case, [(int(one.rows[0]), int(one.rows[-1])) for one in calls])) >= 0
    return float((inside & graph.on_gpu).sum()) / max(float(graph.on_gpu.sum()), 1.0)


def find_generations(case: Analysis) -> list[list[Text]]:
    """Texts that are generated one after another before the same backward pass, two or more. Not turns of one
    conversation, whose prompts have what was generated before."""
    found = []
    for _, group in groupby(_texts(case), key=lambda text: text[0].interval):
        texts = [text for text in group if len(text) > 1]
        if len(texts) > 1 and not _is_conversation(texts) and not _loads(case, texts[0][0], texts[-1][0]):
            found.append(texts)
    return found


def find_alike_calls(case: Analysis) -> list[list[PlainCall]]:
    """Calls with the same ops on other inputs, one after another, of which none chooses the tokens of the next."""
    if case.ops_named(lambda name: name.startswith(REPEATED_RANGE)).any() or inner_passes(case) is not None:
        return []  # the same inputs again, or parts of a batch that are encoded twice: other findings
    groups: list[list[PlainCall]] = []
    for text in _texts(case):
        call = text[0]
        if len(text) > 1 or call.tokens < 2:
            groups.append([])
        elif groups and groups[-1] and _adjacent(groups[-1][-1], call) and alike(case, groups[-1][0], call):
            groups[-1].append(call)
        else:
            groups.append([call])
    return [one for one in groups if len(one) > 1 and _is_one_model(case, one) and _independent(case, one)]


def _texts(case: Analysis) -> list[Text]:
    """All calls without gradients as texts, in order of time; found once for a case."""
    if "token_texts" not in case.memo:
        texts: list[list[PlainCall]] = []
        for call in find_plain_calls(case):
            if texts and _continues(case, texts[-1], call):
                texts[-1].append(call)
            else:
                texts.append([call])
        parts = ([text] if _is_generated(text) else [[call] for call in text] for text in texts)
        found: list[Text] = [part for each in parts for part in each]
        case.memo["token_texts"] = found
    return case.memo["token_texts"]


def _continues(case: Analysis, text: list[PlainCall], call: PlainCall) -> bool:
    """Whether a call is for the next token of a text."""
    last = text[-1]
    if call.of_pictures or not _adjacent(last, call) or last.sequences != call.sequences or _loads(case, last, call):
        return False
    if call.tokens == 1:
        return len(text) == 1 or last.tokens == 1
    generating = case.timeline.host.op[call.rows[0]] == GENERATION
    grown = call.tokens - last.tokens
    return (grown == 1 or (generating and grown > 1)) and alike(case, last, call)


def _adjacent(one: PlainCall, other: PlainCall) -> bool:
    return (one.interval, one.of_pictures, one.place + 1) == (other.interval, other.of_pictures, other.place)


def _is_generated(text: Text) -> bool:
    return len(text) > 1 and (text[-1].tokens == 1 or _grows(text))


def _grows(text: Text) -> bool:
    grown = [later.tokens - one.tokens for one, later in pairwise(text)]
    return len(text) >= FEWEST_GROWING and min(grown) > 0 and np.mean(np.array(grown) == 1) >= BY_ONE


def _is_conversation(texts: Sequence[Text]) -> bool:
    return all(later[0].tokens >= one[0].tokens + len(one) for one, later in pairwise(texts))


def _is_one_model(case: Analysis, calls: Sequence[PlainCall]) -> bool:
    """Whether calls are of one model: by the module that reads the batch, if modules have ranges. Otherwise two calls
    may be of two models (the policy before the update and its reference), unless the trained model is called on two
    parts of the batch as well."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    module = case.ops_named(lambda name: name.startswith(MODULE)) & (ops.kind == ANNOTATION)
    around = climb(parent[[int(one.rows[0]) for one in calls]], parent, module)
    if (around >= 0).all():
        return len(np.unique(ops.name[around])) == 1
    return len(calls) >= FEWEST_CALLS_OF_A_MODEL or calls[0].with_gradients >= len(calls)


def _independent(case: Analysis, calls: Sequence[PlainCall]) -> bool:
    """Whether no call's result becomes the tokens of another, and no batch is loaded in between."""
    choosing = case.ops_named(CHOOSES.__contains__)
    return not any(choosing[one.rows].any() for one in calls[:-1]) and not _loads(case, calls[0], calls[-1])


def _loads(case: Analysis, first: PlainCall, last: PlainCall) -> bool:
    """Whether a loader returns a batch between two calls."""
    ops = case.trace.ops
    if "loads_at" not in case.memo:
        case.memo["loads_at"] = np.sort(ops.start_ns[case.timeline.host.op == DATA])
    begun, ended = np.searchsorted(case.memo["loads_at"], ops.start_ns[[first.rows[0], last.rows[0]]])
    return bool(ended > begun)


def span_of(case: Analysis, calls: Sequence[PlainCall]) -> tuple[int, int]:
    """(first op, last op) of consecutive calls; of the last one only what another call has as well, since what follows
    it may be something else."""
    names = case.trace.ops.name
    *others, last = calls
    shared = same_from_start(names[others[-1].rows], names[last.rows]) if others else len(last.rows)
    return int(calls[0].rows[0]), int(last.rows[max(shared, 1) - 1])


def stretches_of(case: Analysis, spans: Sequence[tuple[int, int]]) -> Stretches:
    """Spans of ops as stretches of CPU time."""
    first, last = np.array(spans).reshape(-1, 2).T
    return Stretches.of(case.trace.ops, first, last)


def resized(case: Analysis, stretches: Stretches, tokens: F64, factor: F64, lengths: Sequence[frozenset[int]]) -> F64:
    """Factor on the time of each node of the graph if calls of a model take another number of tokens; 1 elsewhere.

    stretches: of the calls. tokens: how many each call takes; factor: how many times as many it is to take. lengths:
    sizes by which the tensors with a call's tokens are recognised; empty for all that it launches.
    """
    links, graph = case.timeline.links, case.graph
    mine = np.append(_of_calls(case, stretches, lengths), -1)[links.op]
    known = mine >= 0
    growth = event_growth(
        case.timeline,
        case.roofline,
        np.where(known, factor[mine], 1.0),
        np.where(known, tokens[mine], 1.0),
    )
    return np.append(np.where(known, growth, 1.0), 1.0)[graph.gpu_row]


def _of_calls(case: Analysis, stretches: Stretches, lengths: Sequence[frozenset[int]]) -> I64:
    """Per op the call whose tokens it computes with; -1: none."""
    ops = case.trace.ops
    which = place(stretches, ops.thread.astype(np.int64), ops.start_ns)
    which[ops.kind != OP] = -1
    for call, sizes in enumerate(lengths):
        if not sizes:
            continue
        rows = np.flatnonzero(which == call)
        texts, at = np.unique(ops.dims[rows], return_inverse=True)
        has = np.array([_has(case, int(text), sizes) for text in texts], bool)
        which[rows[~has[at]]] = -1
    return which


def _has(case: Analysis, text: int, sizes: frozenset[int]) -> bool:
    return any(shape and sizes & set(shape) for shape in shapes_in(case, text))
