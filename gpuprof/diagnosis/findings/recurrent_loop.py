"""A recurrence runs step by step in Python, where one kernel runs all steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import loops as loops_calibrated
from gpuprof.calibration import reference as reference_calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.replace_work import replacement_of, with_walk
from gpuprof.diagnosis.detect.loops.carried_loops import FEWEST_KERNELS, carried
from gpuprof.diagnosis.detect.loops.layer_ops import CELLS, RECURRENT_LAYERS
from gpuprof.diagnosis.detect.loops.recurrent_loops import (
    LOOKUPS,
    find_branches,
    find_recurrent_loops,
    growing,
)
from gpuprof.diagnosis.detect.loops.small_op_loops import SmallLoops, find_small_loops, ops_of, some_of
from gpuprof.diagnosis.detect.passes import shorter_walk
from gpuprof.diagnosis.result.fix import Code, Fix, as_fix, call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.stretches import nodes_in
from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Convention, Ops, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_LOOP_SHARE: Assumed[Share] = 0.05
"""Smallest share of the step in recurrences for a proposal."""
LEAST_COPIED_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step in copies of a growing tensor for which they are named."""
MOST_NAMED: Convention[Ops] = 4
"""Most ops of a round that are named."""
SOFTMAX = frozenset({"aten::softmax", "aten::_softmax"})
"""Ops that show, in a round that multiplies matrices, attention of one head."""
_LAYERS = {"aten::lstm_cell": "torch.nn.LSTM", "aten::gru_cell": "torch.nn.GRU"}

PAGE = Page(
    id="recurrent_loop",
    applies=("training",),
    title="A recurrence runs step by step in Python",
    means="""
The model calls an LSTM cell for each frame, or a gated delta rule or state-space scan goes from chunk to chunk in plain
torch. Each step launches a few small kernels, and needs the result of the step before, so it cannot be one op over all
steps. There are kernels that run the whole recurrence: `torch.nn.LSTM` and `torch.nn.GRU` (cuDNN), `fla` for linear
attention and delta rules, `mamba-ssm` for state spaces. A loop over attention heads, one after another, looks the same,
and can be one attention over all of them. A decoder that calls `torch.nn.LSTM` for one step at a time needs no loop in
training if the inputs of all steps are known (teacher forcing): one call takes the whole sequence, and what follows
each step takes all steps at once. Results that each step appends by `torch.cat` are copied again and again: the bytes
grow with the square of the steps.

The forward algorithm of a conditional random field or hidden Markov model goes from token to token in small ops,
without a matrix multiplication. Its rounds can be joined: two neighbours make one, for all pairs at once, so log2 of
the rounds are enough.
""",
    detected=f"""
A sequence of 1 to 48 ops with a matrix multiplication in it that repeats at least 8 times in the forward pass, 64 ops
in all, with the same shapes (those of `torch.cat` may grow) and in the same modules, with no backward pass in between:
layers, in contrast, are separate modules and have norms. It must take at least {percent(LEAST_LOOP_SHARE)} % of the
step. Not detected if the recording has no module ranges. Branches also count (heads of an attention, members of an
ensemble, a head that judges one state after another). They have 4 rounds or more, 20 ops in all, in one module or in
several of one class, and end in a loss, in another single value (the sum of the best similarities of two texts) or in a
multiplication whose result has another width than the input of a round's first one, so no round computes with the
result of the one before; or they are lookups in one table after another.

Rounds that can be joined: a loop over small ops with gradients (see `python_loop`), of {FEWEST_KERNELS} kernels a round
or more, in which nothing collects the results of the rounds: no op writes in place, the CPU reads nothing, no two
tensors of one shape are added or multiplied, and no list is joined after it in the forward pass. So each result goes
into the next round.
""",
    gain=f"""
Launches and Python code of the steps become those of {loops_calibrated.ROUNDS_LEFT.value:g} steps
({loops_calibrated.ROUNDS_LEFT.low:g} to {loops_calibrated.ROUNDS_LEFT.high:g}), and their kernels take
{percent(reference_calibrated.REFERENCE_LEFT.value)} % of their time ({percent(reference_calibrated.REFERENCE_LEFT.low)}
to {percent(reference_calibrated.REFERENCE_LEFT.high)} %), as when a fused kernel replaces a reference implementation;
the same holds for the backward pass. All numbers are assumed. Of the copies of a tensor that grows by `torch.cat`, one
of each round's result is left. Rounds that are joined become log2 of their number. The fix is listed under *Worth
trying* (probability {reference_calibrated.KERNEL_ODDS.value:g}, assumed; {loops_calibrated.INDEPENDENT.value:g} for a
layer that is called for each step, {loops_calibrated.JOINED.value:g} for rounds that are joined) unless torch.nn has a
layer for the cell.
""",
    wrong="""
A loop over samples that multiplies matrices looks the same: that is one batched multiplication. A modified cell (a
peephole, a norm inside) has no fused kernel: `torch.compile` of the step, or CUDA graphs, then gain part of this.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes one kernel over all steps in place of the loop, and one call for branches."""
    recurrences, branches = find_recurrent_loops(case), find_branches(case)
    if recurrences is not None:
        yield from _proposed(case, recurrences)
    if branches is not None:
        yield from _proposed(case, branches, branches=True)
    small = find_small_loops(case)
    if small is not None and (carries := carried(case, small)).any():
        yield from _proposed(case, some_of(small, carries), joined=True)


def _proposed(case: Analysis, loops: SmallLoops, branches: bool = False, joined: bool = False) -> Iterator[Proposal]:
    graph, count = case.graph, len(loops.rounds)
    forward = nodes_in(graph, loops.stretches)
    backward = np.where(forward >= 0, -1, nodes_in(graph, loops.backward))
    group = np.where(forward >= 0, forward, np.where(backward >= 0, backward + count, -1))
    inside = group >= 0
    host, gpu = inside & ~graph.on_gpu & ~graph.waits, inside & graph.on_gpu
    took: F64 = np.bincount(group[host], weights=graph.duration_ns[host], minlength=2 * count).astype(np.float64)
    work: F64 = np.bincount(group[gpu], weights=graph.duration_ns[gpu], minlength=2 * count).astype(np.float64)
    if max(case.per_step(float(each.sum())) for each in (took, work)) < LEAST_LOOP_SHARE * case.step_ns:
        return
    pieces, rounds = np.bincount(group[gpu], minlength=2 * count), np.tile(loops.rounds, 2)
    # Appended to a growing tensor, a round's result is copied in each round after it: (rounds + 1) / 2 times.
    grown = gpu & case.nodes_within(growing(case, loops))
    copies: F64 = np.bincount(group[grown], weights=graph.duration_ns[grown], minlength=2 * count).astype(np.float64)
    once = copies * 2.0 / (rounds + 1)

    times = np.ceil(np.log2(rounds)) if joined else 1.0  # halves, until one is left

    def change(level: int):
        left: F64 = np.minimum(loops_calibrated.ROUNDS_LEFT.rising[level] * times / rounds, 1.0).astype(np.float64)
        then = (work - copies) * reference_calibrated.REFERENCE_LEFT.rising[level] + once
        new = replacement_of(graph, group, took * left, then, np.ceil(pieces * left).astype(np.int64))
        walk = shorter_walk(case, loops.backward, left[count:])
        return partial(with_walk, replacement=new, factor=walk)

    largest = int(np.argmax(took[:count] + took[count:]))
    names = ops_of(case, loops, largest)
    few = ", ".join(name.removeprefix("aten::") for name in names[:MOST_NAMED]) + (
        " …" if len(names) > MOST_NAMED else ""
    )
    copied = case.per_step(float((copies - once).sum()))
    text = (
        f"{int(loops.rounds[largest])} rounds of {few}, one after another:"
        f" {case.per_step(float(gpu.sum())):,.0f} kernels {case.unit.a} and"
        f" {duration(case.per_step(float(took.sum())))} of CPU time, the backward pass included"
        + (
            f"; torch.cat copies all earlier rounds again in each: {duration(copied)} of GPU time"
            if copied >= LEAST_COPIED_SHARE * case.step_ns
            else ""
        )
    )
    kind = JOINED if joined else _kind(names, branches)
    yield Proposal(
        title=kind.title,
        evidence=spans(case, text, inside),
        fix=_JOIN if joined else _fix(names, branches),
        change=change(1),
        best=change(0),
        worst=change(2),
        odds=kind.odds,
        needs=kind.needs,
        key="branches" if branches else "joined" if joined else "",
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """The advice for one kind of loop."""

    title: str
    odds: float
    needs: str


JOINED = _Kind(
    "rounds of a recurrence joined in pairs",
    loops_calibrated.JOINED.value,
    "two rounds can become one: sums, products, maxima or the logarithm of a sum of a small state",
)
_JOIN = as_fix(
    "each round as a matrix (state before × state after) for all rounds at once; then neighbours joined in pairs\n"
    "until one matrix is left. A state that is only summed or multiplied: cumsum, cumprod, logcumsumexp"
)


def _kind(names: list[str], branches: bool) -> _Kind:
    """The kind of a loop with these ops in a round."""
    if branches and LOOKUPS & set(names):
        needs = "tables have rows of one width"
        return _Kind("one table for all lookups", loops_calibrated.BRANCHES.value, needs)
    if branches and not any(name in SOFTMAX for name in names):
        odds, needs = loops_calibrated.BRANCHES.value, "no round needs the one before"
        return _Kind("one call for all rounds of a branch", odds, needs)
    if any(name in RECURRENT_LAYERS for name in names):
        return _Kind(
            "the recurrent layer called once for all steps",
            loops_calibrated.INDEPENDENT.value,
            "the inputs of all steps are known before the loop: no step reads what the one before returned, except the"
            " layer's state",
        )
    recurrence = "one kernel over all steps of a recurrence"
    if any(name in CELLS for name in names):
        return _Kind(recurrence, 1.0, "")
    odds = reference_calibrated.KERNEL_ODDS.value
    if any(name in SOFTMAX for name in names):
        return _Kind("all heads in one attention", odds, "no round needs the one before")
    return _Kind(recurrence, odds, "a package has a kernel of this recurrence for this GPU, these types and sizes")


def _fix(names: list[str], branches: bool) -> Fix:
    if branches and LOOKUPS & set(names):
        return (
            code("rows = self.table(columns + self.offsets)") + "  # one nn.Embedding; offsets: rows before each table"
        )
    if branches and not any(name in SOFTMAX for name in names):
        one = code("results = head(torch.stack(states))") + "  # one module, called on each state: all at once"
        return one + "\n" + code("torch.bmm(inputs, weights)").otherwise() + "  # several modules: stacked weights"
    if any(name in RECURRENT_LAYERS for name in names):
        whole = code("states, _ = self.lstm(self.embed(tokens))  # (batch, steps, width): no loop over steps")
        return whole + "\n# what follows each step (attention, logits): also over all steps at once"
    if any(name in SOFTMAX for name in names):
        heads = call("torch.nn.functional.scaled_dot_product_attention", Code("q"), Code("k"), Code("v"))
        return heads + "  # q, k, v: (batch, heads, tokens, width), all heads at once"
    layer = next((_LAYERS[name] for name in names if name in _LAYERS), None)
    if layer is not None:
        return call(layer, ...) + "  # in place of the cell: all frames of a layer in one call"
    return as_fix("a kernel of the whole recurrence: fla (delta rules, linear attention), mamba-ssm (state spaces)")


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem("a recurrence, step by step in Python"),
    synonyms=(
        "recurrence",
        "heads",
        "branches",
        "ensemble",
        "lstm_cell",
        "gru_cell",
        "delta_rule",
        "linear_attention",
        "state_space",
        "teacher_forcing",
        "growing_cat",
        "associative_scan",
        "crf",
    ),
    titles=(
        "one_kernel_over_all_steps_of_a_recurrence",
        "all_heads_in_one_attention",
        "one_call_for_all_rounds_of_a_branch",
        "one_table_for_all_lookups",
        "the_recurrent_layer_called_once_for_all_steps",
        "rounds_of_a_recurrence_joined_in_pairs",
    ),
)
