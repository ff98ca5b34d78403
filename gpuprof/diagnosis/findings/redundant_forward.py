"""A model is called again with the same inputs and weights within a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import parse
from gpuprof.costs.formulas.gemm import is_matmul
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerParts
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.pair.candidates import MODEL, Candidate, claim_busy
from gpuprof.diagnosis.detect.pair.quantities import kernel_counts
from gpuprof.diagnosis.detect.pair.signs import advised, alike_compiled
from gpuprof.diagnosis.detect.passes import backward_of, without_recompute
from gpuprof.diagnosis.detect.repeated.discarded_gradients import find_discarded
from gpuprof.diagnosis.detect.repeated.repeated_matmuls import find_repeated_matmuls
from gpuprof.diagnosis.detect.repeated.zeroed_work import find_zeroed
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.record.phases.phase_names import REPEATED_RANGE
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.replay.transform import removed
from gpuprof.tracefile.trace import ANNOTATION, I64, Mask
from gpuprof.units import Assumed, Calls, Place, Published, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.detect.pair.facts import Facts

RANDOM = ("native_dropout", "_fused_dropout", "bernoulli", "multinomial", "rand", "normal_", "uniform_")
"""Prefixes, after `aten::`, of ops whose results differ from one call to the next."""
FEWEST_MATMULS: Assumed[Calls] = 2
"""Fewest matmuls of a call for it to be compared with an earlier one."""
DROPOUT_PLACE: Published[Place] = 4
"""Place of its dropout among the arguments of `scaled_dot_product_attention`."""
MOST_KERNELS_LEFT: Assumed[Share] = 0.95
"""Largest share of the model's kernels that remains if a forward pass is gone."""

PAGE = Page(
    id="redundant_forward",
    applies=("training",),
    title="A forward pass runs twice, or its result is not used",
    means="""
A teacher that is called once for its logits and once for its hidden states, a reference model that scores the same
batch for two losses, log-probabilities that are computed without gradients just before the same pass with gradients:
same weights, inputs and outputs. One call would do. Or a tower whose result is multiplied by zero, as a vision tower
is for batches without a picture: its forward and its backward pass change nothing. Or a single matrix multiplication
that is computed twice: an adapter multiplies its input by the base weight, as the base layer has done before it.
""",
    detected="""
In the recorded steps the recorder looks at the calls of the process's largest models. A call repeats an earlier one
of the same step if its tensors have the same storage, offset and version, no weight or buffer changed in between, the
same adapters are enabled, and no dropout is active. Nothing is read from the GPU. In the recording, its matmuls must
be the same in order and shape as those of an earlier stretch, and nothing in it may draw random numbers. Not detected
in recordings of other tools, in compiled models, and where inputs are copied in between. Work that is multiplied by
zero: autograd's graph of a step that is not recorded shows a multiplication by a number of the program that is 0, and
the loss depends on what is below it in no other way; in the recorded steps the ops of the same numbers are marked. The
same graph shows multiplications that are computed twice: both operands come from the same op, or are the same tensor.
""",
    gain="""
The CPU and GPU work of repeated calls is removed from the graph, and the step is replayed. Backward passes stay: a
gradient that flowed through both calls flows through one. Only a backward pass through one of the calls whose gradients
are not used (see `discarded_gradients`) is removed as well: the use that needs none gets the detached outputs. At worst
it stays. For work that is multiplied by zero, and for multiplications that are computed twice, the backward pass is
removed as well; the optimizer's work on its weights stays.
""",
    wrong="""
Outputs of the first call have to be kept until they are needed again: memory. A function that draws random numbers in
a kernel of its own is not seen. Weights below a zero get zero gradients, and weight decay still shrinks them; without
gradients they stay as they are.
""",
)


@dataclass(frozen=True, slots=True)
class Repeated:
    """Calls that repeat others."""

    nodes: Mask
    """Nodes of the graph: their work on the CPU and the GPU."""
    calls: int
    models: tuple[str, ...]
    discarded: Mask
    """Nodes of the graph: backward passes through one of the calls whose gradients are not used. A call that both uses
    share is differentiated for the other one alone."""


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes one call in place of two, no work that is multiplied by zero, and no multiplication twice."""
    yield from _zeroed(case)
    yield from _matmuls(case)
    found = find_repeated(case)
    if found is None:
        return
    ns = case.per_step(float(case.graph.duration_ns[found.nodes & case.graph.on_gpu].sum()))
    unused = case.per_step(float(case.graph.duration_ns[found.discarded & case.graph.on_gpu].sum()))
    text = (
        f"{found.calls / case.steps:,.3g} calls a step of {', '.join(found.models)} have the inputs and weights of an"
        f" earlier one: {duration(ns)} of GPU time"
        + (
            f", and {duration(unused)} of a backward pass through one of them whose gradients are not used"
            * bool(unused)
        )
    )
    given, seen = "inputs", "outputs"
    if case.stack.from_transformers:
        given, seen = "**batch, output_hidden_states=True", "outputs.logits"
    yield Proposal(
        title="one forward pass instead of two",
        evidence=spans(case, text, found.nodes),
        fix=code(
            f"outputs = model({given})  # once; keep what both uses need\n"
            f"# for the use that needs no gradients: {seen}.detach()"
        ),
        change=partial(removed, nodes=found.nodes | found.discarded),
        worst=partial(removed, nodes=found.nodes),
    )


def _zeroed(case: Analysis) -> Iterator[Proposal]:
    """Proposes to skip the forward and backward pass of what is multiplied by zero."""
    found = find_zeroed(case)
    if found is None:
        return
    ns = case.per_step(float(case.graph.duration_ns[found.nodes & case.graph.on_gpu].sum()))
    what = f" ({', '.join(found.modules)})" if found.modules else ""
    text = (
        f"the result of {found.stretches / case.steps:,.3g} stretches a step{what} is multiplied by a constant zero:"
        f" {duration(ns)} of GPU time, forward and backward"
    )
    yield Proposal(
        title="no work that is multiplied by zero",
        evidence=spans(case, text, found.nodes),
        fix=code(
            "if has_images:  # skip the tower where its result does not count\n    loss = loss + tower(images)\n"
            "# DistributedDataParallel: find_unused_parameters=True"
        ),
        change=partial(removed, nodes=found.nodes),
        key="zeroed",
    )


def _matmuls(case: Analysis) -> Iterator[Proposal]:
    """Proposes to compute each multiplication once; those in repeated calls belong to the fix for the calls."""
    found = find_repeated_matmuls(case)
    if found is None or find_repeated(case) is not None:
        return
    ns = case.per_step(float(case.graph.duration_ns[found.nodes & case.graph.on_gpu].sum()))
    what = f" (in {', '.join(found.modules)})" if found.modules else ""
    text = (
        f"{found.count / case.steps:,.3g} matrix multiplications a step{what} are computed twice, of the same tensors:"
        f" {duration(ns)} of GPU time, forward and backward"
    )
    yield Proposal(
        title="no matrix multiplication that is computed twice",
        evidence=spans(case, text, found.nodes),
        fix=code("result = layer(x)  # once; give the result to whatever multiplies x by the same weight again"),
        change=partial(removed, nodes=found.nodes),
        key="products",
    )


def find_repeated(case: Analysis) -> Repeated | None:
    """The calls that the recorder marked, and whose ops are those of an earlier stretch; None without any."""
    ops, trace = case.trace.ops, case.trace
    marked = trace.rows_named(ops.name, lambda text: text.startswith(REPEATED_RANGE)) & (ops.kind == ANNOTATION)
    low, high = case.timeline.window
    rows = np.flatnonzero(marked & (ops.start_ns >= low) & (ops.end_ns <= high))
    if not len(rows):
        return None
    launches = np.zeros(len(ops) + 1, bool)
    launches[case.timeline.links.op] = True
    matmuls = case.ops_named(lambda text: is_matmul(text) or "convolution" in text) & launches[:-1]
    random = case.ops_named(lambda text: text.removeprefix("aten::").startswith(RANDOM))
    earlier = [_repeats(case, row, matmuls, random) for row in rows.tolist()]
    alike = np.array([one is not None for one in earlier])
    if not alike.any():
        return None
    chosen = np.zeros(len(ops), bool)
    chosen[rows[alike]] = True
    nodes = case.nodes_within(chosen)
    names = {trace.strings[int(ops.name[row])].removeprefix(REPEATED_RANGE) for row in rows[alike].tolist()}
    if not nodes.any():
        return None
    same = [(int(ops.start_ns[row]), int(ops.end_ns[row])) for row in rows[alike].tolist()]
    same += [one for one in earlier if one is not None]
    start, end = np.array(same, np.int64).T
    calls = Stretches(np.tile(ops.thread[rows[alike]].astype(np.int64), 2), start, end)
    return Repeated(nodes, int(alike.sum()), tuple(sorted(names)), _discarded(case, calls))


def _discarded(case: Analysis, calls: Stretches) -> Mask:
    """Nodes of the calls' backward passes whose gradients are not used."""
    found = find_discarded(case)
    if found is None:
        return np.zeros(len(case.graph), bool)
    unused = (nodes_in(case.graph, found.stretches) >= 0) & ~case.graph.waits
    return unused & (without_recompute(case, nodes_in(case.graph, backward_of(case, calls))) >= 0)


def _repeats(case: Analysis, row: int, matmuls: Mask, random: Mask) -> tuple[int, int] | None:
    """(start, end) of the last earlier stretch of a call's step that multiplies what the call does, in that order; None
    without any, or where the call draws random numbers."""
    ops = case.trace.ops
    step = int(np.searchsorted(case.timeline.steps.start_ns, ops.start_ns[row], side="right")) - 1
    if step < 0:
        return None
    begun, start, end = int(case.timeline.steps.start_ns[step]), int(ops.start_ns[row]), int(ops.end_ns[row])
    mine = (ops.thread == ops.thread[row]) & (ops.start_ns >= begun)
    inside = mine & (ops.start_ns >= start) & (ops.end_ns <= end)
    if (random & inside).any() or any(_drops(case, one) for one in np.flatnonzero(inside & _attention(case)).tolist()):
        return None
    keys = _keys(case, _in_order(case, matmuls & inside))
    rows = _in_order(case, matmuls & mine & (ops.end_ns <= start))
    before, count = _keys(case, rows), len(keys)
    if count < FEWEST_MATMULS or len(before) < count:
        return None
    first = np.flatnonzero((before[: len(before) - count + 1] == keys[0]).all(axis=1))
    for at in reversed(first.tolist()):
        if np.array_equal(before[at : at + count], keys):
            return int(ops.start_ns[rows[at]]), int(ops.end_ns[rows[at + count - 1]])
    return None


def _in_order(case: Analysis, which: Mask) -> I64:
    """Rows of some ops in order of time."""
    rows = np.flatnonzero(which)
    return rows[np.argsort(case.trace.ops.start_ns[rows], kind="stable")]


def _attention(case: Analysis) -> Mask:
    return case.ops_named(lambda text: text == "aten::scaled_dot_product_attention")


def _drops(case: Analysis, row: int) -> bool:
    """Whether a call of torch's attention is given a dropout, its fifth argument."""
    given = parse("", "[]", None, None, case.trace.text(int(case.trace.ops.concrete[row]))).text(DROPOUT_PLACE)
    return given not in ("", "0.", "0.0", "0")


def _keys(case: Analysis, rows: I64) -> np.ndarray:
    """[ops, 2]: name and shapes of ops."""
    ops = case.trace.ops
    return np.stack([ops.name[rows], ops.dims[rows]], axis=1)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Fewer kernels in the model's passes, where only the side with more of them repeats a call."""
    pieces = kernel_counts(a, b, (), MODEL)
    if advised(a, b, PAGE.id, pieces) and pieces.fell(to=MOST_KERNELS_LEFT) and alike_compiled(a, b):
        yield Candidate(
            PAGE.id,
            "a forward pass that ran twice",
            f"kernels of the model's passes: {pieces} a step",
            claim_busy(1.0),
            pieces.more,
        )


def ledger_parts(case: Analysis) -> Iterator[LedgerPart]:
    """Calls and multiplications that repeat an earlier one in the step, and work that is multiplied by zero."""
    zero = find_zeroed(case)
    if zero is not None:
        named = f", in {', '.join(zero.modules)}" if zero.modules else ""
        yield LedgerPart(
            kind="gpu",
            what=f"work that is multiplied by zero{named}",
            nodes=zero.nodes,
            change=partial(removed, nodes=zero.nodes),
            why="the loss depends on its result only through a constant zero",
            useful=0.0,
        )
    found, again = find_repeated(case), find_repeated_matmuls(case)
    if again is not None and found is None:
        named = f", in {', '.join(again.modules)}" if again.modules else ""
        yield LedgerPart(
            kind="gpu",
            what=f"matrix multiplications that are computed twice{named}",
            nodes=again.nodes,
            change=partial(removed, nodes=again.nodes),
            why="both operands are the same tensors",
            useful=0.0,
        )
    if found is not None:
        yield LedgerPart(
            kind="gpu",
            what=f"the same forward pass again, of {', '.join(found.models)}",
            nodes=found.nodes | found.discarded,
            change=partial(removed, nodes=found.nodes | found.discarded),
            why="inputs and weights are the same as in an earlier call of the step",
            useful=0.0,
        )


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerParts(ledger_parts, stage="repeated", useless=True),
    change=change,
    synonyms=(
        "the_same_forward_pass_runs_twice",
        "multiplied_by_zero",
        "repeated_forward",
        "same_forward",
        "computed_twice",
    ),
    titles=(
        "one_forward_pass_instead_of_two",
        "no_work_that_is_multiplied_by_zero",
        "no_matrix_multiplication_that_is_computed_twice",
    ),
)
