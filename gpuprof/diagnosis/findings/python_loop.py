"""A Python loop runs a few small ops for each sample, box or tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import latency as latency_calibrated
from gpuprof.calibration import loops as calibrated
from gpuprof.calibration.quoted import ms, percent, us
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.replace_work import replacement_of, with_walk
from gpuprof.diagnosis.detect.gpu.rows_on_cpu import computed_on_cpu
from gpuprof.diagnosis.detect.loops.carried_loops import carried
from gpuprof.diagnosis.detect.loops.loops_over_rows import FEWEST_ROUNDS as FEWEST_ROWS
from gpuprof.diagnosis.detect.loops.loops_over_rows import MOST_ELEMENTS, loops_over_rows
from gpuprof.diagnosis.detect.loops.recurrent_loops import find_fed_loops
from gpuprof.diagnosis.detect.loops.repeated_blocks import FEWEST_NAMES, LOOKUPS, find_repeated_blocks
from gpuprof.diagnosis.detect.loops.repeated_blocks import FEWEST_ROUNDS as FEWEST_BLOCKS
from gpuprof.diagnosis.detect.loops.small_op_loops import SmallLoops, find_small_loops, ops_of, some_of
from gpuprof.diagnosis.detect.loops.tensor_loops import LISTS, reading_loops
from gpuprof.diagnosis.detect.pair.candidates import PASSES, Candidate, claim_where
from gpuprof.diagnosis.detect.pair.quantities import kernel_counts
from gpuprof.diagnosis.detect.pair.signs import advised
from gpuprof.diagnosis.detect.passes import shorter_walk
from gpuprof.diagnosis.result.fix import Code, Fix, as_fix, call, code, joined
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.replay.transform import removed, scaled, without_waits
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Convention, Ops, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts

LEAST_LOOP_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step in such loops for a proposal."""
LEAST_BLOCKS_SHARE: Assumed[Share] = 0.1
"""The same for long sequences of ops that are repeated a few times."""
MOST_NAMED: Convention[Ops] = 4
"""Most ops of a round that are named."""
IN_PLACE = re.compile(r"^aten::(add|sub|mul|div|lerp|addcmul|addcdiv|copy|clamp_min|clamp_max)_$")
NORMS = re.compile(r"^aten::(linalg_vector_norm|norm)$")
SEPARATE = re.compile(
    r"^aten::(linalg_vector_norm|norm|copy_|zero_|to|_to_copy|detach|item|_local_scalar_dense|empty\w*)$"
)
"""Ops on separate tensors, so that no round needs the one before: values of each tensor, and copies."""
PENALTY = re.compile(r"^aten::(linalg_vector_norm|norm|pow|square|sum|mul|add|add_)$")
"""Ops of a sum of squares or norms of whole tensors: with a backward pass, of weights."""

PAGE = Page(
    id="python_loop",
    title="A Python loop runs a few small ops again and again",
    means="""
Code such as `for i in range(batch): total += loss(x[i])` launches its small kernels once for each sample, box, segment
or tensor. Each launch takes the CPU 5 to 20 µs and the GPU 2 µs, and a value that is read in the loop (`.item()`,
`if mask.any()`) makes the CPU wait for the GPU in each round. The same ops over all rounds at once (a stacked tensor,
`index_add_`, `scatter_reduce`, `torch._foreach_…`) take as long as one or two rounds.
""",
    detected=f"""
A sequence of 1 to 48 ops that repeats at least 8 times in a row, 32 ops in all (loops directly in a loop are one, and
so are those that another branch interrupts), or of up to 160 ops of which at least one is such a loop, with any
number of rounds (over pictures, and in each over its boxes). What splits a tensor into rounds directly before the
loop (`unbind`, `split`), and joins them directly after it (`stack`, `cat`), belongs to it. All outside autograd,
optimizers and data loaders, if it takes at least {percent(LEAST_LOOP_SHARE)} % of the step. It has no matrix
multiplications, convolutions, attention or norms: those are layers, which need the result of the layer before. A loop
that only lists tensors (views, `.detach()`) and launches nothing does not count: an op over all rounds needs that
list, too. The other case is a model that is called again and again (8 rounds, 64 ops in all) on a tensor that the CPU
copies to the GPU in each round, as a policy is for one environment after another. The result of one round can reach
the next one through Python only. The rounds between two long pauses (at least 4 times the usual Python between
rounds) are counted: their rows are known at once. Not in inference.

Also a long sequence of at least {FEWEST_NAMES} different ops that the forward pass runs at least
{FEWEST_BLOCKS} times in a row, one of which sums something up, without an op that has weights, with a backward pass, if
it takes {percent(LEAST_BLOCKS_SHARE)} % of the step: a loss with its matching or targets, for the output of each layer,
scale or head. Where it looks up a table or a grid (`embedding`, `grid_sample`), it is a lookup for each level of an
encoding.

Loops over rows of tensors without gradients, at least {FEWEST_ROWS} rounds with tensors of at most {MOST_ELEMENTS:,}
elements in each, can also be computed on the CPU: advantages and returns, from the last moment to the first.
""",
    gain=f"""
Launches and Python code of a loop become those of {calibrated.ROUNDS_LEFT.value:g} rounds
({calibrated.ROUNDS_LEFT.low:g} to {calibrated.ROUNDS_LEFT.high:g}); a loop within it also has one round. The same holds
for the fixed part of each kernel's time (1 µs); {percent(calibrated.GPU_LEFT.value)} % of the rest of it is left
({percent(calibrated.GPU_LEFT.low)} to {percent(calibrated.GPU_LEFT.high)} %). The loop waits for the GPU only in its
last round. The same holds for its backward pass, and for the time in which autograd goes through its nodes before the
first of them runs. A model that is called for each row is called once for the rows that are known at once, and the
Python between the calls stays; where no number of rows stands out and results are read,
{percent(calibrated.CALLS_LEFT.value)} % of the calls are left ({percent(calibrated.CALLS_LEFT.low)} % to all). All
these numbers but the 1 µs are assumed. A loss for several outputs becomes one over all, by the same rule, or is left
for one of them, with its part of all times; at best that one lies outside of what repeats. On the CPU, each kernel
becomes an op of {us(calibrated.ROW_OP_NS.value)} µs ({us(calibrated.ROW_OP_NS.low)} to {us(calibrated.ROW_OP_NS.high)})
on a small array, and {ms(calibrated.ROW_COPIES_NS.value)} ms ({ms(calibrated.ROW_COPIES_NS.low)} to
{ms(calibrated.ROW_COPIES_NS.high)}) are for copies (assumed).
""",
    wrong=f"""
Where a round needs the result of the one before, the loop cannot be written in this way: the recording shows ops
without their tensors, so the probability is {percent(calibrated.INDEPENDENT.value)} %;
{percent(calibrated.SEPARATE.value)} % for norms and copies of many tensors, and
{percent(calibrated.INDEPENDENT.low)} % for rows without gradients, which are often a recurrence. Of calls for rows that
the CPU copies it is {percent(calibrated.AT_ONCE.value)} %, or {percent(calibrated.AT_ONCE.low)} % where results are
read and no number of rows stands out. Rounds of very different sizes need padding or segments. Losses of several
outputs: {percent(calibrated.ONE_LOSS.value)} % for one over all of them, {percent(calibrated.LAST_LOSS.value)} % that
the last one's alone is enough, which changes the training: detectors and segmenters are trained with all of them for a
reason.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes ops over all rounds in place of a loop, and one call for rounds that are fed from the CPU."""
    yield from _ops(case)
    yield from _blocks(case)
    fed = None if case.workload.is_inference else find_fed_loops(case)
    if fed is not None and fed.together is not None and fed.between is not None:
        yield from _calls(case, fed, fed.together, fed.between)


def _calls(case: Analysis, loops: SmallLoops, together: I64, between: Stretches) -> Iterator[Proposal]:
    """Proposes one call for rows that follow one another directly, for a model that is called on one row after another,
    each copied by the CPU. Python between them (an environment that moves) stays."""
    graph, count = case.graph, len(loops.rounds)
    forward = nodes_in(graph, loops.stretches)
    backward = np.where(forward >= 0, -1, nodes_in(graph, loops.backward))
    group = np.where(forward >= 0, forward, np.where(backward >= 0, backward + count, -1))
    group[(nodes_in(graph, between) >= 0) & (graph.call < 0) & ~graph.on_gpu] = -1
    inside = group >= 0
    host, gpu, waits = inside & ~graph.on_gpu & ~graph.waits, inside & graph.on_gpu, inside & graph.waits
    took: F64 = np.bincount(group[host], weights=graph.duration_ns[host], minlength=2 * count).astype(np.float64)
    if case.per_step(float(took.sum())) < LEAST_LOOP_SHARE * case.step_ns:
        return
    work: F64 = np.bincount(group[gpu], weights=graph.duration_ns[gpu], minlength=2 * count).astype(np.float64)
    pieces = np.bincount(group[gpu], minlength=2 * count)
    least = np.minimum(graph.duration_ns[gpu], latency_calibrated.FLOOR_NS.value)
    nothing: F64 = np.bincount(group[gpu], weights=least, minlength=2 * count).astype(np.float64)
    read = bool((waits & (forward >= 0)).any())
    largest = int(np.argmax(took[:count]))
    known = not read or bool(together.all())

    def change(level: int):
        left = np.tile(_calls_left(loops.rounds, together, read, level), 2)
        stays = np.zeros(len(graph), bool)
        for one in range(count):
            mine = np.flatnonzero(graph.waits & (forward == one))
            mine = mine[np.argsort(graph.recorded_start_ns[mine], kind="stable")]
            stays[mine[: round(len(mine) * left[one])]] = True
        then = (work - nothing) * calibrated.GPU_LEFT.rising[level] + nothing * left
        new = replacement_of(
            graph, np.where(stays, -1, group), took * left, then, np.ceil(pieces * left).astype(np.int64)
        )
        walk = shorter_walk(case, loops.backward, left[count:])
        return partial(with_walk, replacement=new, factor=walk)

    rounds, at_once = int(loops.rounds[largest]), int(together[largest])
    text = (
        f"the same ops on a copy from the CPU, {rounds:,} times in a row"
        + (f", {at_once:,} at once before Python does something else" if at_once else "")
        + f": {case.per_step(float(gpu.sum())):,.0f} kernels and copies {case.unit.a},"
        f" {duration(case.per_step(float(took.sum())))} of CPU time"
        + (f"; the CPU reads results {case.per_step(float(waits.sum())):,.0f} times" if read else "")
    )
    yield Proposal(
        title="one call for all rounds of a Python loop",
        evidence=spans(case, text, inside),
        fix=code('results = model(torch.tensor(rows).to("cuda"))')
        + "  # one copy and one call for all rows (environments, samples, queries)\n"
        + code("values = results.tolist()")
        + "  # one read for all",
        change=change(1),
        best=change(0),
        worst=change(2),
        odds=calibrated.AT_ONCE.value if known else calibrated.AT_ONCE.low,
        needs="no round needs what Python made of the result of the one before",
        key="calls",
    )


def _calls_left(rounds: I64, together: I64, read: bool, level: int) -> F64:
    """Share of the calls that remains, by loop. Where results are read and no number of rounds stands out, each round
    may need the one before."""
    calls = np.where(together > 0, np.ceil(rounds / np.maximum(together, 1)), 1.0)
    left = np.minimum(calls * calibrated.ROUNDS_LEFT.rising[level] / rounds, 1.0)
    unknown = (together == 0) & read
    return np.where(unknown, calibrated.CALLS_LEFT.rising[level], left).astype(np.float64)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Loops, and the step in which ops over all rounds take their place."""

    inside: Mask
    """Nodes of the loops and of their backward pass."""
    took: F64
    """CPU time by loop, forward and then backward, ns."""
    changes: tuple[Change, Change, Change]
    """At best, as expected, at worst."""

    @property
    def largest(self) -> int:
        """The loop with most CPU time."""
        count = len(self.took) // 2
        return int(np.argmax(self.took[:count] + self.took[count:]))


def _at_once(case: Analysis, loops: SmallLoops) -> AtOnce:
    """Ops over all rounds: launches, Python and the fixed part of kernels of a few rounds, and waits of the last."""
    graph, count = case.graph, len(loops.rounds)
    forward = nodes_in(graph, loops.stretches)
    backward = np.where(forward >= 0, -1, nodes_in(graph, loops.backward))
    group = np.where(forward >= 0, forward, np.where(backward >= 0, backward + count, -1))
    group[graph.waits & (nodes_in(graph, loops.last) >= 0) & (nodes_in(graph, loops.again) < 0)] = -1
    inside = group >= 0
    host, gpu = inside & ~graph.on_gpu & ~graph.waits, inside & graph.on_gpu
    took: F64 = np.bincount(group[host], weights=graph.duration_ns[host], minlength=2 * count).astype(np.float64)
    work: F64 = np.bincount(group[gpu], weights=graph.duration_ns[gpu], minlength=2 * count).astype(np.float64)
    pieces = np.bincount(group[gpu], minlength=2 * count)
    # The time of a kernel that does next to nothing is paid once per kernel, however much it does.
    least_ns = np.minimum(graph.duration_ns[gpu], latency_calibrated.FLOOR_NS.value)
    nothing: F64 = np.bincount(group[gpu], weights=least_ns, minlength=2 * count).astype(np.float64)
    one_round = np.tile(loops.one_round, 2)

    def change(level: int) -> Change:
        left: F64 = np.minimum(calibrated.ROUNDS_LEFT.rising[level] * one_round, 1.0).astype(np.float64)
        launches = np.ceil(pieces * left).astype(np.int64)
        then = (work - nothing) * calibrated.GPU_LEFT.rising[level] + nothing * left
        new = replacement_of(graph, group, took * left, then, launches)
        walk = shorter_walk(case, loops.backward, left[count:])
        return partial(with_walk, replacement=new, factor=walk)

    return AtOnce(inside, took, (change(0), change(1), change(2)))


def _ops(case: Analysis) -> Iterator[Proposal]:
    """Proposes ops over all rounds in place of a loop."""
    loops, reading = find_small_loops(case), reading_loops(case)
    if loops is not None and reading is not None:  # the finding `syncs` has those
        loops = some_of(loops, ~reading.which)
    if loops is not None and len(loops.rounds):  # the finding `recurrent_loop` has those
        loops = some_of(loops, ~carried(case, loops))
    if loops is None or not len(loops.rounds):
        return
    graph, found = case.graph, _at_once(case, loops)
    host_ns = case.per_step(float(found.took.sum()))
    if host_ns < LEAST_LOOP_SHARE * case.step_ns:
        return
    over_rows = loops_over_rows(case, loops)
    if over_rows.all():
        yield from _on_cpu(case, loops)
    names = ops_of(case, loops, found.largest)
    waits = case.per_step(float((found.inside & graph.waits).sum()))
    text = (
        f"{int(loops.rounds[found.largest])} rounds of {_few(names)}:"
        f" {case.per_step(float((found.inside & graph.on_gpu).sum())):,.0f} kernels {case.unit.a}"
        f" and {duration(host_ns)} of CPU time, the backward pass included"
        + (f"; the CPU waits for the GPU {waits:,.0f} times in it" if waits >= 1 else "")
    )
    separate = all(SEPARATE.match(name) for name in names)
    odds = calibrated.SEPARATE if separate else calibrated.INDEPENDENT
    best, usual, worst = found.changes
    yield Proposal(
        title="one op over all rounds of a Python loop",
        evidence=spans(case, text, found.inside),
        fix=_fix(names, learns=bool(loops.backward.end_ns[found.largest])),
        change=usual,
        best=best,
        worst=worst,
        odds=calibrated.INDEPENDENT.low if over_rows.all() else odds.value,
        needs="" if separate else "no round of the loop needs the result of the one before",
    )
    if over_rows.any() and not over_rows.all():
        yield from _on_cpu(case, some_of(loops, over_rows))


def _on_cpu(case: Analysis, loops: SmallLoops) -> Iterator[Proposal]:
    """Proposes to compute loops over the rows of small tensors on the CPU, whether a round needs the one before or
    not."""
    graph = case.graph
    inside = nodes_in(graph, loops.stretches) >= 0
    kernels = case.per_step(float((inside & graph.on_gpu).sum()))
    best, usual, worst = computed_on_cpu(case, loops)
    text = (
        f"{int(loops.rounds.max())} rounds over rows of small tensors, without gradients: {kernels:,.0f} kernels"
        f" {case.unit.a} for what the CPU could compute itself"
    )
    yield Proposal(
        title="a loop over rows on the CPU",
        evidence=spans(case, text, inside),
        fix=code("rewards, values = rewards.cpu().numpy(), values.cpu().numpy()")
        + "  # once, before the loop; its result goes back in one copy"
        + "\n# or one compiled function, if the data should stay on the GPU",
        change=usual,
        best=best,
        worst=worst,
        odds=calibrated.SEPARATE.value,
        needs="the GPU has computed the rows before the loop begins, and nothing reads its results in between",
        key="rows",
    )


def _blocks(case: Analysis) -> Iterator[Proposal]:
    """Proposes one loss over several outputs, or that of the last one alone, where it is computed for each."""
    loops = find_repeated_blocks(case)
    if loops is None:
        return
    graph, found = case.graph, _at_once(case, loops)
    on_gpu = float(graph.duration_ns[found.inside & graph.on_gpu].sum())
    if case.per_step(max(float(found.took.sum()), on_gpu)) < LEAST_BLOCKS_SHARE * case.step_ns:
        return
    names, rounds = ops_of(case, loops, found.largest), int(loops.rounds[found.largest])
    text = (
        f"{rounds} times {len(names)} different ops ({_few(names)}) without a layer's weights:"
        f" {case.per_step(float((found.inside & graph.on_gpu).sum())):,.0f} kernels {case.unit.a} and"
        f" {duration(case.per_step(float(found.took.sum())))} of CPU time, the backward pass included"
    )
    best, usual, worst = found.changes
    if LOOKUPS & set(names):
        yield Proposal(
            title="one lookup for all levels",
            evidence=spans(case, text, found.inside),
            fix=code("features = tables(indices + offsets)")
            + "  # one table and one lookup for all levels; grids of one size stacked for one grid_sample;\n"
            + "# or a fused encoding (tiny-cuda-nn)",
            change=usual,
            best=best,
            worst=worst,
            odds=calibrated.INDEPENDENT.value,
            needs="no level is looked up at places that the level before returned",
            key="levels",
        )
        return
    yield Proposal(
        title="one loss over all outputs",
        evidence=spans(case, text, found.inside),
        fix=code("loss = criterion(torch.stack(outputs), targets)")
        + "  # all outputs at once; matches and targets found for one output serve the others",
        change=usual,
        best=best,
        worst=worst,
        odds=calibrated.ONE_LOSS.value,
        needs="no output's loss needs the result of the one before",
        key="blocks",
    )
    parts = np.tile(1.0 / loops.rounds, 2)
    forward, backward = nodes_in(graph, loops.stretches), nodes_in(graph, loops.backward)
    which = np.where(forward >= 0, forward, np.where(backward >= 0, backward + len(loops.rounds), -1))
    factor = np.where(which >= 0, parts[which], 1.0)
    rest = (forward >= 0) & (nodes_in(graph, loops.last) < 0)
    yield Proposal(
        title="the loss of the last output alone",
        evidence=spans(case, text, found.inside),
        fix=code("loss = criterion(outputs[-1], targets)") + "  # auxiliary_loss=False, or fewer of them",
        change=lambda graph: scaled(without_waits(graph, rest & graph.waits), which >= 0, factor),
        best=lambda graph: removed(without_waits(graph, (which >= 0) & graph.waits), which >= 0),
        changes="other outputs get no loss of their own",
        odds=calibrated.LAST_LOSS.value,
        needs="the blocks are losses of several outputs, and the model trains as well with fewer of them",
        key="last",
    )


def _few(names: list[str]) -> str:
    """The first ops of a round."""
    few = ", ".join(name.removeprefix("aten::") for name in names[:MOST_NAMED])
    return few + (" …" if len(names) > MOST_NAMED else "")


def _fix(names: list[str], learns: bool) -> Fix:
    """The fix, with the libraries' own replacements for these ops first. learns: there is a backward pass."""
    ways: list[Fix] = []
    if learns and all(PENALTY.match(name) for name in names):
        ways.append(
            call("torch.optim.Adam", ..., weight_decay=Code("2 * factor"))
            + "  # in place of factor * the sum of all squared weights; or "
            + call("torch._foreach_norm", Code("weights"))
        )
    elif any(NORMS.match(name) for name in names):
        ways.append(LISTS)
    if "aten::zero_" in names:
        ways.append(call("optimizer.zero_grad", set_to_none=True))
    in_place = next((match[1] for name in names if (match := IN_PLACE.match(name))), None)
    if in_place and not ways:
        ways.append(call(f"torch._foreach_{in_place}_", Code("tensors"), ...))
    if not ways:
        ways.append(as_fix("index_add_, scatter_reduce or one stacked tensor in place of the loop"))
    return joined(ways)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """A loop that only one side has."""
    pieces = kernel_counts(a, b, (), PASSES)
    if advised(a, b, PAGE.id, pieces) and pieces.fell():
        yield Candidate(
            PAGE.id,
            "a Python loop over small ops",
            f"kernels: {pieces} {a.unit.a}",
            claim_where(lambda cell: cell[0] == "idle"),
            pieces.more,
        )


FINDING = Declaration(
    page=PAGE,
    find=find,
    change=change,
    ledger=LedgerItem("small ops in a Python loop, one iteration after another"),
    synonyms=(
        "loop",
        "for_loop",
        "vectorise",
        "vectorize",
        "batched_ops",
        "vectorised_environments",
        "auxiliary_loss",
        "deep_supervision",
        "hungarian_matcher",
        "hash_grid",
        "multi_resolution_encoding",
        "gae",
        "advantages",
    ),
    titles=(
        "one_op_over_all_rounds_of_a_python_loop",
        "one_call_for_all_rounds_of_a_python_loop",
        "one_loss_over_all_outputs",
        "one_lookup_for_all_levels",
        "the_loss_of_the_last_output_alone",
        "a_loop_over_rows_on_the_cpu",
    ),
)
