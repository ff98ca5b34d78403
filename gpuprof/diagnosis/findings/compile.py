"""Launches and small kernels that torch.compile would fuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuprof.calibration import breaks as breaks_calibrated
from gpuprof.calibration import compile as compile_calibrated
from gpuprof.calibration.quoted import more, ms, us
from gpuprof.diagnosis.detect.batches.micro_batches import micro_batches
from gpuprof.diagnosis.detect.compiled.compile_time import compile_ns
from gpuprof.diagnosis.detect.compiled.compiled_passes import (
    EAGER,
    REWRITTEN,
    TOO_OLD,
    TWICE,
    code_of,
    compiled,
    looks_at_mask,
    passes,
    passes_launch,
    shapes_vary,
    waits_in_passes,
    waits_too_often,
    whole_passes,
)
from gpuprof.diagnosis.detect.compiled.compiled_regions import functions_given_up, never_compiled
from gpuprof.diagnosis.detect.compiled.foreseen_breaks import (
    ModelBlocks,
    blocks_of,
    foreseen,
    further_calls,
    in_words,
    with_calls,
    with_further_calls,
)
from gpuprof.diagnosis.detect.compiled.graph_breaks import breaks, once_gone
from gpuprof.diagnosis.detect.compiled_code import COMPILED_SHARE, compiled_ranges, compiled_share
from gpuprof.diagnosis.detect.compiler_names import COMPILED
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.pair.candidates import MODEL, Candidate, claim_model
from gpuprof.diagnosis.detect.pair.quantities import kernel_counts, quantity
from gpuprof.diagnosis.detect.pair.signs import alike_compiled, fewer_launches, other_graphs
from gpuprof.diagnosis.detect.passes import differentiates_gradients
from gpuprof.diagnosis.detect.torch_version import is_before_2
from gpuprof.diagnosis.quarantine import COMPILES_ITSELF
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import Code, Fix, assigned, call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.changes.batch import model_phases
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts

WORTH_SAVING: Assumed[Share] = 0.25
"""If compiling takes more than this share of what it gains in the run, compiling per block is proposed, too."""

PAGE = Page(
    id="compile",
    title="Many small kernels, launched one by one from Python",
    means="""
In eager mode every operation goes through Python, the module's hooks, autograd and the dispatcher, and launches its
own kernel. `torch.compile` traces the model once, generates one kernel for each chain of elementwise operations and
reductions, and calls all kernels from a short generated program. The CPU does less per launch, there are fewer
launches, and intermediate results of fused operations never go through GPU memory.
""",
    detected=f"""
Eager forward and backward passes that get shorter in the replay when they are changed as described below. Not shown if
at least a quarter of the kernels that a compiler writes or fuses are compiled already, or if torch is older than 2.0.
If a pass waits for values from the GPU more than four times (`.item()` in a hook), the waits break the graph into parts
that are too small to gain; likewise if the encoder or decoder of `torch.nn.Transformer` waits: it looks at the values
of its mask unless `is_causal` is passed. Then a chain is proposed: remove the waits, then compile. It works with a
probability of {compile_calibrated.REMOVABLE.value:g}, or {compile_calibrated.SIZED.value:g} if a wait is for the size
of a result, times {compile_calibrated.VARYING.value:g} if batch shapes vary (assumed). A loop over experts is a
separate finding (`expert_loop`). Not shown if the program differentiates gradients (`create_graph=True`: forces,
gradient penalties): torch fails with "does not currently support double backward".
""",
    gain=f"""
In forward, backward and recomputation, consecutive kernels of elementwise operations, casts, norms, softmax and
reductions become one kernel of {compile_calibrated.FUSED.low:g} to {compile_calibrated.FUSED.high:g} times the longest
of them. Matrix multiplications take {more(compile_calibrated.REST.low)} to {more(compile_calibrated.REST.high)} %
longer, and attention up to {compile_calibrated.ATTENTION.high:g} times as long where it had no mask (measured); other
kernels that a library call launches, such as layout conversions in a convolution, stay. For each remaining kernel the
CPU still does the op's own work ({compile_calibrated.HOST.low:g} to {compile_calibrated.HOST.high:g} times what was
recorded), and for a generated kernel that of a matrix multiplication or convolution that launches one kernel; the
accumulation of gradients stays, and each pass costs {ms(compile_calibrated.PASS_NS.low)} to
{ms(compile_calibrated.PASS_NS.high)} ms. A reduction across rows (a batch or group norm, gradients of biases and of
norms) takes {compile_calibrated.ACROSS.value:g} further kernels ({compile_calibrated.ACROSS.low:g} to
{compile_calibrated.ACROSS.high:g}, assumed), and what uses the means of a batch or group norm reads its data again
(assumed). Tensors whose size does not divide that of the chain's largest one, such as weights that autocast casts, keep
kernels of their own. All other CPU work of the passes is removed. Single stretches of more than
{ms(compile_calibrated.LASTING_NS.value)} ms are not launches, and stay except in the best case. Predictable graph
breaks stay: values that are read, custom autograd functions that launch an extension's kernels (they stay as they are),
the buckets of DDP and the units of FSDP. Each costs one more graph call in each pass
({us(breaks_calibrated.CALL_NS.low)} to {us(breaks_calibrated.CALL_NS.high)} µs), and so does, forward, each further
call of the model before a backward pass (a policy that acts step by step). Where compiling takes more than a
quarter of what it gains in the run, compiling the repeated block is proposed separately: one compilation serves all
blocks, at the cost of one more graph call per block.
""",
    wrong="""
When a size changes, torch compiles again and makes it dynamic; after eight recompilations (`recompile_limit`) the
function runs eagerly. Pad to a multiple, or pass `dynamic=True`. Compiling takes half a minute to several minutes
(estimated from the kernels that a pass launches, and subtracted from what the rest of the run gains). Code that
Dynamo cannot trace stays eager.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """torch.compile, where nothing is compiled and the passes do not wait for values."""
    if functions_given_up(case) or never_compiled(case):  # see the findings recompiles and graph_breaks
        return
    broken = breaks(case)
    found = passes(case) if broken is None else whole_passes(case)
    if found is None:
        return
    graph = case.graph
    launches = int((found.group >= 0).sum())
    before = float(model_phases(graph)[graph.on_gpu].sum()) / graph.steps
    after = before - (launches - compile_calibrated.CHAINS_LEFT.value * len(found.speaker)) / graph.steps
    host_ns = case.per_step(float(graph.duration_ns[found.host].sum()))
    varies = shapes_vary(case)
    expected = foreseen(case) if broken is None else ()
    calls = sum(number for _, number in expected)
    kernels = before / max(micro_batches(case) or 1, 1)
    once_ns, blocks, more_calls = compile_ns(kernels, varies), blocks_of(case), further_calls(case)

    def ways(calls: float) -> list[Change]:
        """The changes at best, as expected and at worst, with further graph calls per step."""
        each = (with_further_calls(compiled(found, way), found, more_calls, way) for way in range(3))
        return [once_gone(broken, with_calls(one, found, calls, way)) for way, one in enumerate(each)]

    best, usual, worst = ways(calls)
    yield Proposal(
        title="torch.compile" if broken is None else "torch.compile, once nothing breaks the graph",
        evidence=spans(
            case,
            f"{passes_launch(case)} {before:,.0f} kernels {case.unit.a} one by one, which takes the CPU "
            f"{duration(host_ns)}; "
            f"fused they are about {after:,.0f}",
            found.host,
        )
        + tuple(
            Evidence(text)
            for text in (_captured(case), in_words(expected), _of_blocks(kernels, varies, blocks))
            if text
        ),
        fix=case.stack.fix(
            call("model.compile", dynamic=True) + "  # before the first step; the lengths of batches vary"
            if varies
            else call("model.compile") + "  # before the first step",
            case.stack.setting({"torch_compile": True}),
            inference=_for_inference(case, varies),
            lightning=assigned("model", call("torch.compile", Code("model"))) + "  # before Trainer.fit",
        ).by("compile"),
        change=usual,
        best=best,
        worst=worst,
        once_ns=once_ns,
        claims=("small_kernels", "reference_ops"),
        launches=True,
        last=True,
        needs="" if broken is None else broken.condition,
        odds=1.0 if broken is None else broken.odds,
        parts=() if broken is None else (broken.part, "torch.compile"),
    )
    if broken is not None or blocks is None or not _is_short(case, once_ns, usual):
        return
    each = ways(calls + blocks.count * max(micro_batches(case) or 1, 1))
    yield Proposal(
        title="torch.compile for each block",
        evidence=(
            Evidence(f"the {blocks.count} blocks {blocks.name} share one compilation, which a short run earns back"),
        ),
        fix=(
            code(f"for block in model.modules():\n    if type(block).__name__ == {blocks.name!r}:\n        ")
            + call("block.compile")
        ).by("compile", "blocks"),
        change=each[1],
        best=each[0],
        worst=each[2],
        once_ns=compile_ns(kernels, varies, blocks.count),
        claims=("small_kernels", "reference_ops"),
        launches=True,
        last=True,
        key="blocks",
    )


def _captured(case: Analysis) -> str:
    """What is said of a program that captures its graph and runs it op by op."""
    captured = case.ops_named(COMPILED.search) & ~compiled_ranges(case.timeline)
    return (
        "its graph is captured already, but runs op by op: its backend generates no kernels" if captured.any() else ""
    )


def _is_short(case: Analysis, once_ns: tuple[float, float, float], change: Change) -> bool:
    """Whether compiling the whole model takes more than the share WORTH_SAVING of what it gains in this run."""
    run = case.run
    if run is None or run.steps_total is None:
        return False
    gained = max(case.step_ns - case.step_of(change(case.graph)), 0.0) * run.steps_total
    return once_ns[1] > WORTH_SAVING * gained


def _of_blocks(kernels: float, varies: bool, blocks: ModelBlocks | None) -> str:
    """How much less time compiling a single block takes, in words."""
    if blocks is None:
        return ""
    whole, one = compile_ns(kernels, varies)[1] / 1e9, compile_ns(kernels, varies, blocks.count)[1] / 1e9
    return f"compiling takes about {whole:,.0f} s, or {one:,.0f} s block by block ({blocks.count} equal blocks)"


def _absent(case: Analysis) -> str | None:
    if is_before_2(case):
        return TOO_OLD
    if differentiates_gradients(case):
        return TWICE
    if case.stack.kind in COMPILES_ITSELF:
        return f"{case.stack.kind} compiles what it can by itself"
    if (share := compiled_share(case.timeline)) >= COMPILED_SHARE:
        return f"the recorded code is compiled already ({100 * share:.0f} % of what can be fused)"
    if given_up := functions_given_up(case):
        one = given_up[0]
        return f"the program compiles, and torch gave up {one.place} after {one.versions} versions"
    if never := never_compiled(case):
        return f"the program compiles, and torch gave up {never[0].place}: {never[0].failed}"
    if looks_at_mask(case):
        return EAGER
    if waits_too_often(case):
        waits = waits_in_passes(case)
        return (
            f"forward and backward wait {case.per_step(waits):,.0f} times {case.unit.a} for the GPU, which splits the"
            " graph"
        )
    return None


ABSENT = Absent("torch.compile", _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Compiled code on one side only, launched kernel by kernel (with CUDA graphs it counts as that change)."""
    if alike_compiled(a, b) or other_graphs(a, b):
        return
    yield Candidate(
        PAGE.id,
        "torch.compile",
        f"B runs {code_of(b)}, A {code_of(a)}; kernels of the forward and backward pass: "
        f"{kernel_counts(a, b, (), MODEL)} {a.unit.a}",
        claim_model(REWRITTEN, fewer_launches(a, b)),
        -quantity(a, b, lambda side: side.counts.compiled).more,
    )


def _for_inference(case: Analysis, varies: bool) -> Fix:
    """What to compile in the program that serves the model."""
    model = {"diffusers": "pipe.transformer", "transformers_pipeline": "pipe.model"}.get(case.workload.engine or "")
    compiled = call(f"{model or 'model'}.compile", **({"dynamic": True} if varies else {}))
    return compiled + f"  # before the first request{'; the shapes of requests vary' if varies else ''}"


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    lowers=("launching",),
    synonyms=("torch_compile", "inductor", "fusion"),
    titles=("torch_compile_once_nothing_breaks_the_graph", "torch_compile_for_each_block"),
)
