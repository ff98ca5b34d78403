"""A compiled model with graph breaks: each break with its line, frequency and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import breaks as calibrated
from gpuprof.calibration.quoted import percent, us
from gpuprof.diagnosis.detect.compiled.captured_graphs import captured, partly_captured
from gpuprof.diagnosis.detect.compiled.compiled_after_all import compiled_after_all
from gpuprof.diagnosis.detect.compiled.compiled_passes import shapes_vary
from gpuprof.diagnosis.detect.compiled.compiled_regions import BrokenAt, broken_at, calls_a_pass, never_compiled
from gpuprof.diagnosis.detect.compiled.dynamo_reasons import in_words, way_out
from gpuprof.diagnosis.detect.compiled.generated_code import generated_code
from gpuprof.diagnosis.detect.compiled.uncompiled import uncompiled
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import Fix, as_fix, call, without_call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.mean_step import PAUSES, VARIATION
from gpuprof.replay.transform import removed, without_waits
from gpuprof.replay.variation import variation_left
from gpuprof.tracefile.run_folder.compiler import GraphBreak
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Convention, Entries, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_LAUNCHING_LEFT: Assumed[Share] = 0.3
"""Smallest share that remains of what generated code takes the CPU to launch kernels."""
MOST_SHOWN: Convention[Entries] = 4
"""Most breaks that are named."""
ALWAYS = "what a branch leaves out is computed in each pass once nothing breaks the graph"
LEAST_GAIN_OVER_JOINING: Assumed[Ratio] = 1.05
"""Smallest gain of CUDA graphs over joined graphs, since they have more requirements."""

_STAYS_OF_8 = 8 / (8 + calibrated.CALL_OPS.value)

PAGE = Page(
    id="graph_breaks",
    title="Code that torch.compile cannot trace splits the compiled model",
    means="""
Where Dynamo meets code that it cannot put into a graph (`.item()`, logging, `print`, a disabled function, a C
extension), it ends the graph, runs that code as plain Python, and continues with a second graph. Each break costs
guards, entering a second graph in the forward and in the backward pass, the fusion across the break, and a wait for
the GPU where a value is read. CUDA graphs cannot capture across it.
""",
    detected="""
Dynamo's own log of breaks while it compiles (reason, line, calls), read by `gpuprof trace`, and the ranges of
compiled functions in the recording: a stretch between two calls of compiled graphs belongs to a break if the second
call is in a function that Dynamo resumed after it, or if Dynamo gave up on the function that makes both calls for the
same reason. A break inside a loop makes Dynamo give up on the whole function; where that leaves no compiled code at
all, the gain is that of compiling the model (see `compile`). `gpuprof diagnose -v` names breaks and failed guards with
the way out of each, also those without a price; `--json` lists all of them, and CUDA graph skips, under `run.compiler`.
""",
    gain=f"""
By replay, for each break alone and for all of them. The wait for the GPU in between is removed, and so is what the
graphs around the break compute on the CPU with values that they waited for. Of the CPU work in between and of setting
up the second graph, forward and backward, that part stays which grows with the graph (inputs, guards, tensors that are
saved): a call costs as much as {calibrated.CALL_OPS.value:g} ops of its graph add ({calibrated.CALL_OPS.low:g} to
{calibrated.CALL_OPS.high:g}, measured), so of a graph of 8 ops {percent(_STAYS_OF_8)} % stay. In the second graph's
generated code the work before the first launch and after the last is removed, and
{calibrated.FUSED_LAUNCHES.value:g} launches ({calibrated.FUSED_LAUNCHES.low:g} to {calibrated.FUSED_LAUNCHES.high:g})
of each pass for kernels that are fused across the break. GPU work launched in between is fused into its neighbours (not
in the worst case), except matrix multiplications, convolutions and attention: the joined graph launches them, too.
Where forward passes call different numbers of graphs, a branch leaves some out, and all of the compiled work
grows to that of the longest recorded pass: one graph has no branches. Where the CPU does far more in some recorded
steps than in the middle one (threads of a NumPy function that wait for one another on a busy machine), the mean step's
variation and pauses shrink as that shrinks. Where the code around a break computes on the CPU, its threads keep the
cores busy for a while after, and autograd's thread wakes late: without it, waking takes
{us(calibrated.WAKE_NS.value)} µs at most ({us(calibrated.WAKE_NS.low)} to {us(calibrated.WAKE_NS.high)}). With CUDA
graphs the CPU no longer launches the kernels of the joined graphs, and what it still does is quicker (see
[`cuda_graphs`](cuda_graphs.md)).

A model of many small graphs can be slower than the same model not compiled. That is priced, too: calls of compiled
graphs and Dynamo's work around them are replaced by the ops that Dynamo counted in those graphs, each of which takes
the CPU {calibrated.EAGER_OP.value:g} times as long in the forward and backward pass together as a matrix multiplication
({calibrated.EAGER_OP.low:g} to {calibrated.EAGER_OP.high:g}, measured); generated kernels are replaced by ones that
take {calibrated.EAGER_GPU.value:g} times as long ({calibrated.EAGER_GPU.low:g} to {calibrated.EAGER_GPU.high:g}).
""",
    wrong="""
A break may hide another one behind it: run again with `fullgraph=True`, which reports the next one. A value that the
computation depends on cannot always stay on the GPU. Joined graphs take longer to compile. A model that is not
compiled keeps more intermediate results in memory.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to remove the breaks, and then to use CUDA graphs."""
    found = broken_at(case)
    if not found:
        yield from _never_compiled(case)
        return
    generated = generated_code(case).inside
    calls = calls_a_pass(case)
    more = float(calls.max() / np.median(calls))  # the usual step is replayed
    joining = [partial(_joined, nodes=generated, factor=more, way=way) for way in range(3)]
    evidence = _evidence(case, found, joining[1])
    if more > 1:
        evidence += (Evidence(f"forward passes call {calls.min():,} to {calls.max():,} graphs; {ALWAYS}"),)
    fix = _fix([one.broken for one in found])
    joined, graph = [join(found) for join in joining], case.graph
    yield from _not_compiled(case, evidence)
    left = variation_left(graph, joined[1](graph))
    steadier = {VARIATION: left, PAUSES: left} if left < 1 else {}
    yield Proposal(
        title="no graph breaks",
        evidence=evidence,
        fix=fix,
        change=joined[1],
        best=joined[0],
        worst=joined[2],
        lumps=steadier,
        claims=("value_waits",) if any(one.waits.any() for one in found) else (),
        key="joined",
    )
    host = generated & (graph.lane >= 0) & ~graph.waits | np.logical_or.reduce([one.launching for one in found])
    if shapes_vary(case) or not host.any():
        return
    work = graph.on_gpu & (generated | np.logical_or.reduce([one.eager for one in found]))

    def with_graphs(way: int) -> Change:
        then = captured(graph, host, work, 2, way) if way < 2 else partly_captured(host)
        return lambda graph: then(joined[way](graph))

    if case.step_of(with_graphs(1)(graph)) * LEAST_GAIN_OVER_JOINING > case.step_of(joined[1](graph)):
        return
    yield Proposal(
        title="no graph breaks, and CUDA graphs",
        evidence=evidence[:1],
        fix=fix + "\nand then " + call("torch.compile", ..., mode="reduce-overhead"),
        change=with_graphs(1),
        best=with_graphs(0),
        worst=with_graphs(2),
        lumps=steadier,
        needs="nothing breaks the graphs any more",
        odds=calibrated.CAPTURABLE.value,
        parts=("no graph breaks", "CUDA graphs"),
        claims=("value_waits", "graph_capture"),
        last=True,
        key="graphs",
    )


def _not_compiled(case: Analysis, evidence: tuple[Evidence, ...]) -> Iterator[Proposal]:
    """Proposes not to compile the model, which is quicker where small graphs cost the CPU more than the ops in them."""
    found = uncompiled(case)
    if found is None:
        return
    called = duration(case.per_step(float(case.graph.duration_ns[found.called | found.around].sum())))
    ops = case.per_step(found.ops)
    text = f"calls of compiled graphs and what Dynamo does around them take the CPU {called} {case.unit.a}, for"
    yield Proposal(
        title="not compiled",
        evidence=(*evidence[:1], Evidence(f"{text} {ops:,.0f} ops of the forward pass and their backward")),
        fix=without_call("leave torch.compile out", "torch.compile") + ", if the breaks have to stay",
        change=found.without(1),
        best=found.without(0),
        worst=found.without(2),
        claims=("graph_capture", "compiled_code"),
        last=True,
        key="eager",
    )


def _never_compiled(case: Analysis) -> Iterator[Proposal]:
    """Proposes to compile the model if a break made Dynamo give up the function to be compiled."""
    functions = never_compiled(case)
    if not functions:
        return
    evidence = [
        Evidence(
            f"torch.compile could not compile {one.place}: {in_words(one.failed or '', one.failed_detail)}; no compiled"
            " code ran in what was recorded"
        )
        for one in functions[:MOST_SHOWN]
    ]
    fix = _fix(
        [
            GraphBreak(one.failed or "", one.failed_detail, (one.failed_at or one.place,), hint=one.failed_hint)
            for one in functions
        ]
    )
    needs = "nothing else breaks the graph"
    yield from compiled_after_all(
        case, "no graph breaks", evidence, fix, "joined", needs=needs, odds=calibrated.COMPILES.value
    )


def without(found: Sequence[BrokenAt], way: int) -> Change:
    """The graph without some breaks; `way` 0: at best, 1: as expected, 2: at worst."""
    waits = np.logical_or.reduce([one.waits for one in found])
    between = np.logical_or.reduce([one.between | one.gone for one in found])

    def change(graph: Graph) -> Graph:
        kept = graph.duration_ns
        graph = removed(without_waits(graph, waits), between)
        duration = graph.duration_ns.copy()
        for one in found:
            stays = one.ops / (one.ops + calibrated.CALL_OPS.falling[way])
            duration[one.between] = kept[one.between] * stays
            duration[one.launching] = one.launch_ns
            duration[one.waking] = np.minimum(duration[one.waking], calibrated.WAKE_NS.rising[way])
            duration[one.eager & ~one.library] *= calibrated.FUSED.rising[way]
            body = one.call >= 0
            took = np.bincount(one.call[body], weights=kept[body])
            less = np.minimum(calibrated.FUSED_LAUNCHES.falling[way] * one.launch_ns, (1 - LEAST_LAUNCHING_LEFT) * took)
            duration[body] *= (1 - less / np.maximum(took, 1.0))[one.call[body]]
        return graph.with_durations(duration)

    return change


def _joined(found: Sequence[BrokenAt], nodes: Mask, factor: float, way: int) -> Change:
    """The graph without some breaks, after which some nodes have `factor` times the work: joined graphs have no
    branches, and compute in each pass what was left out in some."""
    change = without(found, way)

    def changed(graph: Graph) -> Graph:
        graph = change(graph)
        return graph.with_durations(np.where(nodes, graph.duration_ns * factor, graph.duration_ns))

    return changed


def _evidence(
    case: Analysis, found: Sequence[BrokenAt], join: Callable[[Sequence[BrokenAt]], Change]
) -> tuple[Evidence, ...]:
    """Evidence: the number of breaks per step, and each break with its line and the gain of removing it alone."""
    times = sum(one.times for one in found)
    graph, now = case.graph, case.step_ns
    places = f"in {len(found)} places" if len(found) > 1 else "in one place"
    first = Evidence(f"{times:,.0f} graph breaks {case.unit.a} {places} split the compiled model")
    lines = []
    for one in found[:MOST_SHOWN]:
        gains = now - case.step_of(join([one])(graph))
        waits = f", {case.per_step(float(one.waits.sum())):,.0f} waits for the GPU" if one.waits.any() else ""
        reason = in_words(one.broken.reason, one.broken.detail)
        lines.append(
            Evidence(
                f"{one.broken.place}: {reason}; {one.times:,.0f} times {case.unit.a}{waits}; without it alone"
                f" {duration(max(gains, 0.0))} {case.unit.a} less"
            )
        )
    return first, *lines


def _fix(breaks: Sequence[GraphBreak]) -> Fix:
    """What to do about each kind of break."""
    lines = dict.fromkeys(
        f"{one.place.file or 'the compiled function'}:{one.place.line or '?'}:\n{way_out(one)}"
        for one in breaks[:MOST_SHOWN]
    )
    return as_fix("\n".join(lines))


FINDING = Declaration(
    page=PAGE,
    find=find,
    lowers=("launching",),
    synonyms=("graph_break", "fullgraph", "dynamo_break"),
    titles=("no_graph_breaks", "no_graph_breaks_and_cuda_graphs", "not_compiled"),
)
