"""Launches of the same work in every step, which CUDA graphs would make with one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import compile as compile_calibrated
from gpuprof.calibration.quoted import ms, percent
from gpuprof.diagnosis.detect.batches.micro_batches import micro_batches
from gpuprof.diagnosis.detect.batches.token_call_groups import lengthening_share
from gpuprof.diagnosis.detect.compiled.captured_graphs import captured, graphed, partly_captured
from gpuprof.diagnosis.detect.compiled.compile_time import compile_ns
from gpuprof.diagnosis.detect.compiled.compiled_passes import (
    REWRITTEN,
    TOO_OLD,
    TWICE,
    Passes,
    code_of,
    compiled,
    passes,
    passes_launch,
    shapes_vary,
    whole_passes,
)
from gpuprof.diagnosis.detect.compiled.compiled_regions import functions_given_up, never_compiled
from gpuprof.diagnosis.detect.compiled.dynamo_reasons import way_into_graphs
from gpuprof.diagnosis.detect.compiled.foreseen_breaks import further_calls, with_further_calls
from gpuprof.diagnosis.detect.compiled.generated_code import GENERATED
from gpuprof.diagnosis.detect.compiled.graph_breaks import Breaks, first_links, once_gone
from gpuprof.diagnosis.detect.compiled.second_derivatives import captured_step
from gpuprof.diagnosis.detect.compiler_names import GRAPH_LAUNCH
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.loops.expert_loops import find_loops
from gpuprof.diagnosis.detect.pair.candidates import Candidate, claim_model
from gpuprof.diagnosis.detect.pair.quantities import quantity
from gpuprof.diagnosis.detect.pair.signs import alike_compiled, fewer_launches, graph_shares, other_graphs
from gpuprof.diagnosis.detect.passes import differentiates_gradients
from gpuprof.diagnosis.detect.torch_version import is_before_2
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import Code, Fix, as_fix, assigned, call, code, in_file, joined, option
from gpuprof.diagnosis.sentences import count, duration, listed
from gpuprof.projection.changes.batch import model_phases
from gpuprof.replay.bound import LEAST_SENSITIVITY
from gpuprof.replay.graph import launcher_of
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Convention, Entries, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts

SERVERS = ("vllm", "sglang", "tgi", "tensorrt_llm")
"""Engines that capture decoding themselves unless that is disabled."""
LEAST_LENGTHENING: Assumed[Share] = 0.2
"""Smallest share of the GPU's work in calls of a model whose shapes differ from token to token, above which graphs are
not proposed: there would be one for each length of a text."""
LEAST_GAIN_OVER_COMPILE: Assumed[Ratio] = 1.05
"""Smallest gain of graphs over plain `torch.compile`, which has fewer requirements."""
MOST_REGIONS: Assumed[Entries] = 10
"""Most compiled regions in one pass of a compiled model with a few breaks; more are single functions (a library's own
kernels)."""
MOST_SKIPS: Convention[Entries] = 3
"""Most of torch's reasons for skipping CUDA graphs that are named."""
GRAPHED_SHARE: Assumed[Share] = 0.5
"""Share of the passes' kernels launched by CUDA graphs from which on the step counts as captured."""
MOST_OUTSIDE: Assumed[Share] = 0.2
"""A compiled model launches nearly all of its work from generated code; if more than this share is outside, little
would be captured."""
CLONED = code("""
for parameter in model.parameters():  # after each backward pass: the next replay overwrites what is not cloned
    parameter.grad = None if parameter.grad is None else parameter.grad.clone()""")
"""Additional code for gradient accumulation."""

CAPTURED = code("""
graph = torch.cuda.CUDAGraph()  # after some steps on a side stream
with torch.cuda.graph(graph):
    loss = loss_of(batch)  # with its calls of torch.autograd.grad; the batch's tensors keep their places
    loss.backward()""") + (
    "\n"
    + code("batch.copy_(new_batch); graph.replay(); optimizer.step()")
    + "  # in each step; "
    + call("zero_grad", set_to_none=False)
    + " within the graph"
)
"""How a program captures its passes itself."""
TITLE = "torch.compile with CUDA graphs"
BY_HAND = "the passes in a CUDA graph of one's own"

PAGE = Page(
    id="cuda_graphs",
    title="The CPU cannot launch kernels as fast as the GPU runs them",
    means="""
Kernels of a few microseconds finish before the CPU has launched the next one. A CUDA graph captures all launches of a
forward or backward pass once and replays them with one call, so that the GPU runs them without the CPU.
`torch.compile(mode="reduce-overhead")` does this after fusing what can be fused.
""",
    detected="""
Passes that `torch.compile` could fuse (see `compile`), or passes that are compiled already but launched kernel by
kernel. NCCL collectives can be captured, too. Not shown if CUDA graphs launch most kernels already, unless torch
says that it skipped them for others (`run.compiler.skips`): then those are priced. If the passes
wait for values from the GPU, a chain is proposed (see `compile`). If the recorded steps have batches of different
shapes, they are padded to a multiple of 64 first, and kernels that scale with the tokens take longer accordingly; the
probability that padding is possible is 0.8 (assumed). Not shown for a training that generates text with another shape
for each token (without a cache, or with one that grows), where that is a good part of the work.

Where a program differentiates gradients (`create_graph=True`: forces, gradient penalties, derivatives of an equation),
`torch.compile` fails, and the program has to capture its passes itself. That is possible with a probability of
"""
    + f"{compile_calibrated.BY_HAND.value:g} (assumed): nothing in the passes may wait for the GPU.\n",
    gain=f"""
As for `compile`; in addition the CPU no longer launches the kernels of the passes (at worst
{percent(compile_calibrated.LAUNCHED.high)} % of that work stays). It still checks and copies the inputs,
{ms(compile_calibrated.PASS_NS.low)} to {ms(compile_calibrated.PASS_NS.high)} ms for each pass
({ms(compile_calibrated.GRAPH_NS.low)} to {ms(compile_calibrated.GRAPH_NS.value)} ms more if the pass is compiled
already), and accumulates gradients. What stays of the CPU's short work takes {compile_calibrated.WARM.value:g} times as
long as before ({compile_calibrated.WARM.low:g} to {compile_calibrated.WARM.high:g}, measured on a CPU): the code of
hundreds of launches no longer takes the caches from it. In a graph, the next kernel starts after {
        compile_calibrated.NEXT_NS.value / 1e3:.1f} µs.
""",
    wrong="""
Each batch length is captured separately and takes memory of its own: pad to a few fixed lengths. Tensors on the CPU,
or inputs modified in place from outside, keep a pass out of the graphs; torch then logs `skipping cudagraphs`. Memory
held by graphs is not available for anything else. A replay overwrites what the one before it returned: clone outputs
that are used later, and gradients that several micro-batches add up, and mark the start of each pass
(`torch.compiler.cudagraph_mark_step_begin()`); otherwise torch fails with "accessing tensor output of CUDAGraphs that
has been overwritten". `gpuprof try` does all of this; if it still fails, the run remembers why, and the fix is listed
as failed.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes CUDA graphs: with torch.compile, on top of it if it is used already, or as a serving engine's
    setting."""
    if case.workload.decodes and case.workload.engine in SERVERS:
        yield from _of_engine(case)
        return
    if differentiates_gradients(case):
        yield from _by_hand(case)
        return
    skips = _skips(case)
    if (in_graphs(case) and not skips) or functions_given_up(case) or never_compiled(case) or _lengthens(case):
        return
    graph, chain = case.graph, first_links(case)
    accumulates = (micro_batches(case) or 1) > 1
    compile_model = call("model.compile", mode="reduce-overhead") + "  # keep shapes fixed"
    begins = call("torch.compiler.cudagraph_mark_step_begin") + "  # before each pass"
    torch = joined((compile_model, begins)) + (CLONED if accumulates else "")
    condition = "; fails where gradients of micro-batches are not cloned in between" if accumulates else ""
    fix = case.stack.fix(
        torch,
        case.stack.setting(
            {"torch_compile": True, "torch_compile_mode": "reduce-overhead"}, note=f"  # keep shapes fixed{condition}"
        ),
        inference=_for_inference(case),
        lightning=assigned("model", call("torch.compile", Code("model"), mode="reduce-overhead"))
        + f"  # before Trainer.fit; keep shapes fixed{condition}",
    ).by("cuda_graphs")
    found = passes(case) if chain is None else whole_passes(case)
    if found is not None:
        calls = further_calls(case)

        def ways(change: Callable[[Passes, int], Change]) -> list[Change]:
            """The changes at best, as expected and at worst."""
            return [once_gone(chain, with_further_calls(change(found, way), found, calls, way)) for way in range(3)]

        best, usual, worst = ways(graphed)
        if case.step_of(ways(compiled)[1](graph)) < LEAST_GAIN_OVER_COMPILE * case.step_of(usual(graph)):
            return
        launched = float(model_phases(graph)[graph.on_gpu].sum()) / graph.steps
        yield Proposal(
            title=_title(case, chain),
            evidence=spans(case, f"{passes_launch(case)} {launched:,.0f} kernels {case.unit.a} one by one", found.host),
            fix=fix,
            change=usual,
            best=best,
            worst=worst,
            once_ns=compile_ns(launched / max(micro_batches(case) or 1, 1), shapes_vary(case)),
            claims=("small_kernels", "reference_ops", "graph_capture"),
            launches=not shapes_vary(case),
            last=True,
            needs="" if chain is None else chain.condition,
            odds=1.0 if chain is None else chain.odds,
            parts=() if chain is None else (*chain.parts, TITLE),
        )
        return
    if shapes_vary(case):
        return
    host = _compiled_host(case)
    if host is None:
        return

    work = graph.on_gpu & case.nodes_within(_one_by_one(case))
    compiled_ns = case.per_step(float(graph.duration_ns[host].sum()))
    text = f"compiled code takes the CPU {duration(compiled_ns)} {case.unit.a} to launch its kernels one by one"
    yield Proposal(
        title="CUDA graphs for the compiled model",
        evidence=(*spans(case, text, host), *map(Evidence, skips)),
        fix=as_fix(_way_into_graphs(case)) if skips else fix,
        change=captured(graph, host, work, 2, 1),
        best=captured(graph, host, work, 2, 0),
        worst=partly_captured(host),
        launches=True,
        last=True,
    )


def _lengthens(case: Analysis) -> bool:
    """Whether a training generates text whose shapes differ from token to token, by much of its work."""
    return not case.workload.is_inference and lengthening_share(case) >= LEAST_LENGTHENING


def _by_hand(case: Analysis) -> Iterator[Proposal]:
    """A graph that the program captures itself: torch.compile cannot."""
    found = None if in_graphs(case) or is_before_2(case) else captured_step(case)
    if found is None:
        return
    chain, (best, usual, worst) = found.chain, found.changes
    text = f"{passes_launch(case)} {found.kernels:,.0f} kernels {case.unit.a} one by one"
    yield Proposal(
        title=_title(case, chain, BY_HAND),
        evidence=(*spans(case, text, found.host), Evidence(TWICE)),
        fix=CAPTURED,
        change=usual,
        best=best,
        worst=worst,
        claims=("small_kernels", "graph_capture"),
        launches=True,
        last=True,
        odds=compile_calibrated.BY_HAND.value * (1.0 if chain is None else chain.odds),
        needs="; ".join(filter(None, ("" if chain is None else chain.condition, "nothing in the passes waits"))),
        parts=() if chain is None else (*chain.parts, BY_HAND),
    )


def _title(case: Analysis, chain: Breaks | None, title: str = TITLE) -> str:
    """What is done, after what this chain begins with, if there is one."""
    if chain is None:
        return title
    shapes = shapes_vary(case)
    before = ["giving batches one shape"] * shapes + ["removing waits"] * (len(chain.parts) > shapes)
    return f"{title}, after {listed(before)}"


def _skips(case: Analysis) -> list[str]:
    """Why torch did not use CUDA graphs that were requested."""
    compiler = case.run.compiler if case.run else None
    if compiler is None or not (compiler.skips or compiler.skipped):
        return []
    said = [f"torch skipped CUDA graphs: {reason} ({times} times)" for reason, times in compiler.skips[:MOST_SKIPS]]
    return said or [f"torch skipped CUDA graphs {compiler.skipped} times; TORCH_LOGS=cudagraphs says why"]


def _way_into_graphs(case: Analysis) -> str:
    """How to remove torch's reasons for skipping CUDA graphs."""
    compiler = case.run.compiler if case.run else None
    reasons = [] if compiler is None else [reason for reason, _ in compiler.skips]
    said = dict.fromkeys(way for reason in reasons if (way := way_into_graphs(reason)))
    return "; ".join(said or ["remove what keeps torch from CUDA graphs (see above)"])


def _of_engine(case: Analysis) -> Iterator[Proposal]:
    """An engine that decodes without graphs: it can capture the model's whole pass."""
    graph = case.graph
    if in_graphs(case):
        return
    model = graph.on_gpu & model_phases(graph)
    source = launcher_of(graph)[model]
    steps = graph.step[source[source >= 0]]
    if not len(steps):
        return
    host = np.zeros(len(graph), bool)
    for step in np.unique(steps).tolist():
        launching = source[source >= 0][steps == step]
        between = (graph.step == step) & (graph.lane >= 0) & ~graph.waits
        between &= (np.arange(len(graph)) >= launching.min()) & (np.arange(len(graph)) <= launching.max())
        host |= between
    launched = float(model.sum()) / graph.steps
    yield Proposal(
        title="CUDA graphs for decoding",
        evidence=spans(case, f"the forward pass launches {launched:,.0f} kernels {case.unit.a} one by one", host),
        fix=_for_inference(case),
        change=captured(graph, host, model, 1, 1),
        best=captured(graph, host, model, 1, 0),
        worst=partly_captured(host),
        launches=True,
        last=True,
    )


def _for_inference(case: Analysis) -> Fix:
    """The option with which the serving engine uses graphs."""

    def forward_of(model: str) -> Fix:
        return assigned(model, call("torch.compile", Code(model), mode="reduce-overhead"))

    ways = {
        "vllm": option("vllm serve ... without --enforce-eager", "--enforce-eager", None, "vllm serve")
        + "; --compilation-config for the batch sizes that are captured",
        "sglang": option("sglang without --disable-cuda-graph", "--disable-cuda-graph", None, "sglang")
        + "; --cuda-graph-max-bs as large as the batches are",
        "tensorrt_llm": in_file(
            "cuda_graph_config: {enable_padding: true, max_batch_size: ...}",
            "cuda_graph_config",
            {"enable_padding": True},
            "LLM",
        )
        + "  # in the LLM API's options",
        "diffusers": forward_of("pipe.transformer") + "  # or pipe.unet",
        "transformers_pipeline": forward_of("pipe.model.forward") + "  # keep shapes fixed",
    }
    if case.workload.decodes:
        static = assigned("model.generation_config.cache_implementation", "static") + "  # the cache keeps its shape"
        otherwise = joined((static, forward_of("model.forward")))
    else:
        otherwise = forward_of("model.forward") + "  # keep shapes fixed"
    return ways.get(case.workload.engine or "", otherwise).by("cuda_graphs")


def _absent(case: Analysis) -> str | None:
    if differentiates_gradients(case) and captured_step(case) is None:
        return f"{TWICE}; the passes wait for the GPU, so the program cannot capture them itself"
    if skips := _skips(case):
        return skips[0]
    if in_graphs(case):
        return "CUDA graphs launch most kernels already"
    if is_before_2(case):
        return TOO_OLD
    if find_loops(case) is not None:
        return "a loop over experts waits for the GPU, and a graph cannot wait"
    if _lengthens(case):
        return "text is generated that has another shape with each token, and a graph is captured for each shape"
    if shapes_vary(case) and whole_passes(case) is None:
        return "the shapes of batches vary, and a graph is captured for each shape"
    host = case.sensitivities.host
    if host is not None and host < LEAST_SENSITIVITY:
        return "the GPU is the limit: launching faster gains nothing"
    return None


ABSENT = Absent("CUDA graphs", _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """CUDA graphs on one side while the other has few or none, together with compiled code."""
    if not other_graphs(a, b):
        return
    shares, with_compile = graph_shares(a, b), not alike_compiled(a, b)
    more, less = ("B", "A") if shares.b > shares.a else ("A", "B")
    also = f" of {code_of(b)} (A runs {code_of(a)})" if with_compile else ""
    in_graphs = quantity(a, b, lambda side: side.counts.graph_kernels).largest
    launches = quantity(a, b, lambda side: side.counts.launches)
    yield Candidate(
        PAGE.id,
        "torch.compile with CUDA graphs" if with_compile else "CUDA graphs",
        f"{more} launches {count(in_graphs)} kernels {a.unit.a} from CUDA graphs{also}, {less} "
        f"{'none' if min(shares.a, shares.b) == 0 else 'few'}; launch calls: {launches} {a.unit.a}",
        claim_model(REWRITTEN if with_compile else (), fewer_launches(a, b)),
        -shares.more,
    )


def in_graphs(case: Analysis) -> bool:
    """Whether CUDA graphs launch most of the passes' kernels, or most of their time: a graph may be recorded as one
    event."""
    timeline, graph, gpu = case.timeline, case.graph, case.trace.gpu
    rows = graph.gpu_row[graph.on_gpu & model_phases(graph)]
    launching = np.append(case.trace.rows_named(case.trace.calls.name, GRAPH_LAUNCH.search), False)
    by_graph, ns = launching[timeline.links.call[rows]], (gpu.end_ns - gpu.start_ns)[rows].clip(0)
    whole = max(int(ns.sum()), 1)
    return bool(len(rows)) and max(float(by_graph.mean()), float(ns[by_graph].sum()) / whole) >= GRAPHED_SHARE


def _one_by_one(case: Analysis) -> Mask:
    """Ops that run compiled code and launch no CUDA graph."""
    ops = case.ops_named(GENERATED.search)
    launching = case.nodes_in_calls(case.trace.rows_named(case.trace.calls.name, GRAPH_LAUNCH.search))
    scopes = case.graph.scope[launching]
    parent = case.timeline.nesting.parent
    for row in np.unique(scopes[scopes < len(parent)]):
        while row >= 0:
            ops[row], row = False, parent[row]
    return ops


def _compiled_host(case: Analysis) -> Mask | None:
    """CPU work of compiled regions that launch their kernels one by one; None if there are none, or if little of the
    model's other work is in them."""
    graph = case.graph
    regions = _one_by_one(case)
    if not regions.any():
        return None
    if len(case.outermost(regions)) > 2 * MOST_REGIONS * max(len(case.timeline.host.backward), 1):
        return None
    inside = case.nodes_within(regions)
    work = graph.on_gpu & model_phases(graph) & ~_by_graph(case)
    if not work.any() or (work & ~inside).sum() > MOST_OUTSIDE * work.sum():
        return None
    return inside & (graph.lane >= 0) & ~graph.waits


def _by_graph(case: Analysis) -> Mask:
    """Nodes of kernels that a CUDA graph launched."""
    launching = np.append(case.trace.rows_named(case.trace.calls.name, GRAPH_LAUNCH.search), False)
    return case.nodes_of_gpu(launching[case.timeline.links.call])


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    lowers=("launching",),
    synonyms=("cuda_graph", "cudagraphs", "reduce_overhead", "graphs"),
    titles=(
        "torch_compile_with_cuda_graphs",
        "torch_compile_with_cuda_graphs_after_giving_batches_one_shape",
        "torch_compile_with_cuda_graphs_after_giving_batches_one_shape_and_removing_waits",
        "torch_compile_with_cuda_graphs_after_removing_waits",
        "torch_compile_with_cuda_graphs_once_batches_are_alike_and_nothing_waits",
        "cuda_graphs_for_the_compiled_model",
        "cuda_graphs_for_decoding",
        "the_passes_in_a_cuda_graph_of_one_s_own",
        "the_passes_in_a_cuda_graph_of_one_s_own_after_giving_batches_one_shape",
        "the_passes_in_a_cuda_graph_of_one_s_own_after_giving_batches_one_shape_and_removing_waits",
        "the_passes_in_a_cuda_graph_of_one_s_own_after_removing_waits",
    ),
)
