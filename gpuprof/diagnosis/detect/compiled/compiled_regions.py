"""Calls of compiled graphs in the forward passes, and the work between two of them that a graph break causes.

Breaks come from what the run recorded about torch.compile; the trace shows their cost. A stretch between two graph
calls belongs to a break if the second call is in a function that Dynamo resumed after the break, or if a function that
calls both was given up for the same reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.compiled.compiled_passes import waiting
from gpuprof.diagnosis.detect.compiled.generated_code import generated_code
from gpuprof.diagnosis.detect.passes import backward_of
from gpuprof.replay.graph import HANDOVER, launcher_of
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.timeline.categories import TENSOR_CATEGORIES
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.run_folder.compiler import CompiledFunction, Compiler, GraphBreak
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, F64, I64, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

REGION = re.compile(r"Torch-Compiled Region: (?:\[?!?\d+/)?(\d+)/(\d+)")
"""Range around a whole compiled function, including what it calls after a break."""
GRAPH_CALL = re.compile(r"^CompiledFunction$|CompiledFxGraph")
"""Range around one call of a compiled graph."""


@dataclass(frozen=True, slots=True)
class BrokenAt:
    """One graph break with its cost in the recorded steps; masks are over the nodes of the graph."""

    broken: GraphBreak
    times: float
    """How often it occurs per step."""
    ops: float
    """Ops of the graph after it; 0: unknown."""
    between: Mask
    """CPU work between the two graph calls, and that of setting up the second one, forward and backward."""
    gone: Mask
    """CPU work that a joined graph has no use for: entering the second graph's generated code, and what the code around
    the break computes on the CPU itself, with values that it waited for."""
    eager: Mask
    """GPU work launched in between, and its backward work."""
    library: Mask
    """Part of it that Inductor does not generate, such as matrix multiplications: the joined graph launches it, too."""
    launching: Mask
    """CPU work that launches that part."""
    waits: Mask
    """Waits for the GPU in between, and for values that the first graph copies to the CPU."""
    waking: Mask
    """CPU work of the training thread that ends once autograd's thread has woken, if the code around the break computes
    on the CPU: its threads keep the cores busy for a while after, waiting for more, and others wake late."""
    call: I64
    """Per node the call of the generated code after it, forward or backward, in which the CPU launches it; else -1."""
    launch_ns: float
    """CPU time of generated code per kernel that it launches, ns."""


@remembered
def broken_at(case: Analysis) -> tuple[BrokenAt, ...]:
    """Graph breaks of the recorded forward passes, the most frequent first; none if the run recorded none."""
    compiler = case.run.compiler if case.run else None
    if compiler is None or not compiler.breaks:
        return ()
    calls, function, version = graph_calls(case)
    if len(calls) < 2:
        return ()
    ops, graph = case.trace.ops, case.graph
    # Neighbouring calls of one thread in one pass: no backward pass and no step boundary lies in between.
    first, second = calls[:-1], calls[1:]
    passes = _passes(case, calls)
    together = (ops.thread[first] == ops.thread[second]) & (passes[:-1] == passes[1:])
    which = _breaks_of(compiler, function[1:])
    pairs = np.flatnonzero(together & (which >= 0))
    if not len(pairs):
        return ()
    gaps = Stretches(
        ops.thread[first[pairs]].astype(np.int64), ops.end_ns[first[pairs]], ops.start_ns[second[pairs]]
    )  # fmt: skip
    before, after = (Stretches.of(ops, rows) for rows in (first[pairs], second[pairs]))
    of_gap, of_first = nodes_in(graph, gaps), nodes_in(graph, before)
    of_gap_backward = nodes_in(graph, backward_of(case, gaps))
    of_call = nodes_in(graph, after)
    of_call_backward = nodes_in(graph, backward_of(case, after))
    generated, host = generated_code(case), (graph.lane >= 0) & ~graph.waits
    waits, library, source, waking = waiting(case), _by_library(case), launcher_of(graph), _waking(case)
    size = ops_of_calls(compiler, function, version)[0][1:][pairs]
    found = []
    for number, broken in enumerate(compiler.breaks):
        mine = which[pairs] == number
        if not mine.any():
            continue
        # An op without a gradient carries the number of the next op, here the second graph, whose backward is excluded.
        between = (_of(of_gap, mine) | _of(of_gap_backward, mine)) & ~generated.inside
        call = _of(of_call, mine) | _of(of_call_backward, mine)
        computed = generated.computing & (call | _of(of_first, mine))
        launching = np.zeros(len(graph), bool)
        launching[source[between & library & (source >= 0)]] = True
        body = host & call & generated.inside & ~generated.entering & ~computed
        found.append(
            BrokenAt(
                broken,
                times=float(mine.sum()) / case.steps,
                ops=float(size[mine].mean()),
                between=host & (between | (call & ~generated.inside)) & ~launching,
                gone=computed | (call & generated.entering),
                eager=graph.on_gpu & between,
                library=between & library,
                launching=host & launching,
                waking=waking & bool(computed.any()),
                waits=((_of(of_gap, mine) & ~generated.inside) | _of(of_first, mine)) & waits,
                call=np.where(body, generated.call, -1),
                launch_ns=generated.launch_ns,
            )
        )
    return tuple(sorted(found, key=lambda one: -one.times))


def _by_library(case: Analysis) -> Mask:
    """Kernels of matrix multiplications, convolutions and attention, which compiled code calls as eager code does."""
    return np.append(case.category(*TENSOR_CATEGORIES), False)[case.graph.gpu_row] & case.graph.on_gpu


def _waking(case: Analysis) -> Mask:
    """The training thread's last work before each backward pass on another thread."""
    graph, edges = case.graph, case.graph.edges
    lane = graph.lane
    called = (edges.kind == HANDOVER) & (lane[edges.source] == case.timeline.main_thread)
    found = np.zeros(len(graph), bool)
    found[edges.source[called & (lane[edges.target] != lane[edges.source])]] = True
    return found


def _of(stretch: I64, mine: Mask) -> Mask:
    """Nodes in one of the stretches of a mask."""
    return (stretch >= 0) & mine[np.maximum(stretch, 0)]


def graph_calls(case: Analysis) -> tuple[I64, I64, I64]:
    """(rows of the outermost graph calls of forward passes by thread and time, number of the compiled function around
    each, number of its version), -1: unknown."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    low, high = case.timeline.window
    rows = case.outermost(case.ops_named(GRAPH_CALL.search))
    backward = case.ops_within(case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE)))
    rows = rows[~backward[rows] & (ops.start_ns[rows] >= low) & (ops.start_ns[rows] < high)]
    rows = rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]
    region = climb(parent[rows], parent, case.ops_named(REGION.search))
    numbers = np.array([_numbers(case, row) for row in region.tolist()], np.int64).reshape(-1, 2)
    return rows, numbers[:, 0], numbers[:, 1]


def _numbers(case: Analysis, row: int) -> tuple[int, int]:
    found = REGION.search(case.trace.strings[case.trace.ops.name[row]]) if row >= 0 else None
    return (int(found[1]), int(found[2])) if found else (-1, -1)


def ops_of_calls(compiler: Compiler, function: I64, version: I64) -> tuple[F64, Mask]:
    """(ops in the graph of each call; 0: unknown, whether they are those of its version: else they are those of the
    function's largest graph)."""
    by_number = {one.number: one for one in compiler.functions}
    ops, exact = np.zeros(len(function)), np.zeros(len(function), bool)
    for call, (number, which) in enumerate(zip(function.tolist(), version.tolist(), strict=True)):
        one = by_number.get(number)
        if one is None:
            continue
        exact[call] = 0 <= which < len(one.ops_of_versions) and one.ops_of_versions[which] > 0
        ops[call] = one.ops_of_versions[which] if exact[call] else one.ops
    return ops, exact


def _breaks_of(compiler: Compiler, function: I64) -> I64:
    """Row of the break before each compiled function; -1: unknown."""
    by_number = {one.number: one for one in compiler.functions}
    of = {number: _break_before(compiler, by_number.get(number)) for number in set(function.tolist())}
    return np.array([of[number] for number in function.tolist()], np.int64)


def _break_before(compiler: Compiler, function: CompiledFunction | None) -> int:
    """Row of the break after which a function resumes, or for a whole function, the one for which its caller was given
    up."""
    if function is None:
        return -1
    if function.resumed_at is not None:
        here = (function.place.file, function.resumed_at)
        return next(
            (
                row
                for row, one in enumerate(compiler.breaks)
                if any((call.file, call.line) == here for call in one.calls)
            ),
            -1,
        )
    given_up = {one.failed for one in compiler.functions if one.failed}
    return next((row for row, one in enumerate(compiler.breaks) if one.reason in given_up), -1)


def _passes(case: Analysis, calls: I64) -> I64:
    """Number of the forward pass that each call belongs to."""
    begun = np.sort(np.concatenate([case.timeline.host.backward.start, case.timeline.steps.start_ns]))
    return np.searchsorted(begun, case.trace.ops.start_ns[calls], side="right")


def calls_a_pass(case: Analysis) -> I64:
    """Calls of compiled graphs in each recorded forward pass that has some. They differ where a branch of the program
    leaves some out."""
    counts = np.bincount(_passes(case, graph_calls(case)[0]))
    return counts[counts > 0]


def functions_given_up(case: Analysis) -> tuple[CompiledFunction, ...]:
    """Functions that reached the limit of recompilations, those with the most failed guards first."""
    compiler = case.run.compiler if case.run else None
    found = [] if compiler is None else [one for one in compiler.functions if one.reached_limit]
    return tuple(sorted(found, key=lambda one: -sum(guard.count for guard in one.failed_guards)))


def never_compiled(case: Analysis) -> tuple[CompiledFunction, ...]:
    """Functions that Dynamo could not compile, if the recorded forward passes call no compiled graph at all."""
    compiler = case.run.compiler if case.run else None
    if compiler is None or len(graph_calls(case)[0]):
        return ()
    return tuple(one for one in compiler.functions if one.failed and one.resumed_at is None)
