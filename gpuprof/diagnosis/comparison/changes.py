"""What the one program does and the other does not, told from quantities that moved: whatever anybody calls them.

Compiled code that only one runs, synchronisations that are gone, an optimizer of four kernels in place of three
hundred. One small function for each, from the facts of both to a candidate if it shows. Evidence of the model's work is
counted in the forward and backward pass: what is recomputed is another matter.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuprof.diagnosis.comparison.candidates import Candidate
from gpuprof.diagnosis.comparison.cells import Cell
from gpuprof.diagnosis.comparison.claims import (
    MODEL,
    OWN,
    PASSES,
    idle,
    is_copying,
    is_model_wait,
    model,
    where,
)
from gpuprof.diagnosis.comparison.facts import Facts
from gpuprof.diagnosis.comparison.quantities import (
    FEW,
    FEWER,
    Quantity,
    cells_ns,
    gpu_ns,
    kernels,
    number,
    of,
)
from gpuprof.diagnosis.findings.compile import FUSABLE

POINTWISE = (*FUSABLE, "triton_fused", "gather/scatter/index", "embedding", "memset", "memcpy")
ATTENTION = ("attention", "softmax", "gemm", "elementwise", "cast/copy", "dropout", "memset")
EXPERTS = ("gemm", "grouped_gemm", "gather/scatter/index", "elementwise", "cast/copy", "memcpy", "reduction")
FUSED = ("elementwise", "norm", "rope", "reduction", "loss", "softmax")

IN_GRAPHS = 0.3
"""Share of the kernels in CUDA graphs that makes a step one of graphs."""
LONG_IDLE = 0.02
"""Share of a step from which on waiting is worth a name."""
MUCH_BYTES = 1e6
"""Copies of fewer bytes a step cost a launch and nothing more."""
LONG_COMPILE_NS = 3e6
"""Compiling or loading that takes longer than this in a step is no accident of the clock."""

COMPILING_CAUSES = ("launch", "python", "sync")
"""What the GPU waits for while the host compiles."""
MOSTLY = 0.5
"""Of the difference in such waits: where compiling explains more of it than this, all of it is taken for that."""


def changes(a: Facts, b: Facts) -> Iterator[Candidate]:
    """All that show."""
    yield from (
        one
        for find in (
            _graphs_or_compiled, _recompute, _optimizer, _dequantize, _eager_attention, _expert_loop, _tf32,
            _adapter_casts, _fused_elementwise, _syncs, _input, _transfer, _allocator, _compiling,
        )
        for one in find(a, b)
    )  # fmt: skip


# -- what several ask


def _fewer(a: Facts, b: Facts, categories: tuple[str, ...] = ()) -> float:
    """Kernels of the model's passes that one side does without."""
    return max(kernels(a, b, categories, MODEL).apart, 1.0)


def _advised(a: Facts, b: Facts, name: str, amount: Quantity) -> bool:
    """Whether the side with more of something has the finding against it, and the other side has not."""
    more, fewer = (a, b) if amount.a > amount.b else (b, a)
    return more.finding(name) is not None and fewer.finding(name) is None


def _both_eager(a: Facts, b: Facts) -> bool:
    return bool(a.counts.compiled) == bool(b.counts.compiled)


def _long_wait(a: Facts, b: Facts) -> float:
    """Nanoseconds from which on waiting is worth a name."""
    return LONG_IDLE * max(a.side.step_ns, b.side.step_ns)


# -- how the program is run


def _graphs_or_compiled(a: Facts, b: Facts) -> Iterator[Candidate]:
    shares = of(a, b, lambda side: side.counts.graph_kernels / side.counts.total if side.counts.total else 0.0)
    compiled, launches = of(a, b, lambda side: side.counts.compiled), of(a, b, lambda side: side.counts.launches)
    generated = ("compiled code", "eager code") if compiled.b else ("eager code", "compiled code")
    flips = bool(compiled.a) != bool(compiled.b)
    waits = max(launches.apart, 1.0)
    if shares.apart >= IN_GRAPHS:
        more, less = ("B", "A") if shares.b > shares.a else ("A", "B")
        also = f", of {generated[0]} where A runs {generated[1]}" if flips else ""
        in_graphs = of(a, b, lambda side: side.counts.graph_kernels).largest
        yield Candidate(
            "cuda_graphs",
            "CUDA graphs" if not flips else "torch.compile with CUDA graphs",
            f"{more} launches {number(in_graphs)} kernels a step by CUDA graphs{also}; calls that launch work: "
            f"{launches} a step ({less} has {'none' if min(shares.a, shares.b) == 0 else 'few'} in graphs)",
            model(POINTWISE if flips else (), waits),
            -shares.more,
        )
    elif flips:
        yield Candidate(
            "compile",
            "torch.compile",
            f"B runs {generated[0]}, A {generated[1]}; kernels of the forward and backward pass: "
            f"{kernels(a, b, (), MODEL)} a step",
            model(POINTWISE, waits),
            -compiled.more,
        )


def _compiling(a: Facts, b: Facts) -> Iterator[Candidate]:
    took = of(a, b, lambda side: side.counts.compiling_ns)
    if took.fell(least=LONG_COMPILE_NS):
        # Candidates of a kernel are launched and waited for in thousands, which would claim most of what it takes.
        waits = cells_ns(a, b, "idle", *COMPILING_CAUSES)
        weight = OWN if took.apart > MOSTLY * waits.apart else 1.0
        yield Candidate(
            "recompiles",
            "compiling during the step",
            f"the host compiles or loads code for {took.ms} ms a step",
            idle(*COMPILING_CAUSES, weight=weight),
            took.more,
        )


# -- what the GPU is given to do


def _recompute(a: Facts, b: Facts) -> Iterator[Candidate]:
    phases = ("recompute",)
    again = kernels(a, b, (), phases)
    # A model of fewer kernels recomputes fewer: what counts is how much of the forward pass is run again.
    part = of(a, b, lambda side: side.counts.count((), phases) / max(side.counts.count((), ("forward",)), 1.0))
    if not (again.fell() and part.fell(least=0.0) and part.more == again.more):
        return
    # Checkpointing without an autograd function of its own hands each saved tensor to a Python function, both ways.
    hooked = not (a if again.a > again.b else b).counts.checkpoint_functions

    def claim(cell: Cell) -> float:
        if cell[2] == "recompute":
            return OWN
        return again.apart if hooked and is_model_wait(cell) and cell[1] in ("launch", "python") else 0.0

    yield Candidate(
        "recompute",
        "recomputation of the forward pass",
        f"kernels that recompute: {again} a step, {gpu_ns(a, b, (), phases).ms} ms of GPU time"
        + (", with hooks around every tensor that is saved" if hooked else ""),
        claim,
        again.more,
    )


def _optimizer(a: Facts, b: Facts) -> Iterator[Candidate]:
    phases = ("optimizer",)
    pieces = kernels(a, b, (), phases)
    if pieces.fell():
        yield Candidate(
            "optimizer",
            "the optimizer's kernels",
            f"kernels of the optimizer: {pieces} a step, {gpu_ns(a, b, (), phases).ms} ms of GPU time",
            where(lambda cell: cell[2] == "optimizer" and cell[1] not in ("input", "transfer")),
            pieces.more,
        )


def _dequantize(a: Facts, b: Facts) -> Iterator[Candidate]:
    kind = ("dequantize",)
    pieces, took = kernels(a, b, kind), gpu_ns(a, b, kind)
    # The same weights unpacked in fewer pieces take as long: that is another change.
    if pieces.fell() and took.fell(least=0.0):
        yield Candidate(
            "dequantize",
            "unpacking of quantised weights",
            f"kernels that unpack weights: {pieces} a step, {took.ms} ms of GPU time; kernels in all: {kernels(a, b)}",
            model((*kind, "elementwise", "cast/copy", "memcpy"), _fewer(a, b)),
            pieces.more,
        )


def _eager_attention(a: Facts, b: Facts) -> Iterator[Candidate]:
    fused, scores = kernels(a, b, ("attention",)), kernels(a, b, ("softmax",), PASSES)
    # Fused attention has no softmax of its own: the one comes as the other goes.
    if fused.fell() and fused.more == -scores.more:
        yield Candidate(
            "eager_attention",
            "fused attention",
            f"kernels of fused attention: {fused} a step, softmax kernels: {scores}",
            model(ATTENTION, _fewer(a, b)),
            scores.more,
        )


def _expert_loop(a: Facts, b: Facts) -> Iterator[Candidate]:
    grouped, single = kernels(a, b, ("grouped_gemm",)), kernels(a, b, ("gemm",), PASSES)
    # Where they go through other kernels than those of grouped products, the loop is told by its finding.
    told = (a if single.a > single.b else b).finding("expert_loop") is not None
    if (grouped.largest > 0 and grouped.fell(least=0.0) and single.fell(to=FEWER)) or (told and single.fell()):
        yield Candidate(
            "expert_loop",
            "experts computed together",
            f"grouped products: {grouped} a step, single products: {single}, kernels in all: {kernels(a, b)}, "
            f"waits for the GPU: {of(a, b, lambda side: side.counts.syncs)}",
            model(EXPERTS, _fewer(a, b)),
            single.more,
        )


def _tf32(a: Facts, b: Facts) -> Iterator[Candidate]:
    kind = ("gemm",)
    took, pieces = gpu_ns(a, b, kind), kernels(a, b, kind)
    flops = of(a, b, lambda side: side.side.product_flops or 0)
    # Operands of another type are another change, though that too lets tensor cores multiply.
    types = of(a, b, lambda side: side.counts.float32_products)
    alike = not any(one.fell(to=FEWER) for one in (pieces, flops, types))
    if _advised(a, b, "tf32", took) and alike and took.fell(to=FEWER):
        yield Candidate(
            "tf32",
            "matrix products on tensor cores",
            f"{number(pieces.a)} matrix products take {took.ms} ms of GPU time a step",
            where(lambda cell: cell[:2] == ("busy", "gemm")),
            took.more,
        )


def _adapter_casts(a: Facts, b: Facts) -> Iterator[Candidate]:
    kind = ("cast/copy",)
    pieces = kernels(a, b, kind, PASSES)
    if _advised(a, b, "adapter_casts", pieces) and pieces.fell(to=FEWER) and _both_eager(a, b):
        yield Candidate(
            "adapter_casts",
            "casts around the adapters",
            f"kernels that cast or copy: {pieces} a step, {gpu_ns(a, b, kind).ms} ms of GPU time",
            model((*kind, "gemm", "elementwise"), _fewer(a, b, kind)),
            pieces.more,
        )


def _fused_elementwise(a: Facts, b: Facts) -> Iterator[Candidate]:
    pieces = kernels(a, b, FUSED, PASSES)
    if _advised(a, b, "fused_elementwise", pieces) and pieces.fell(to=FEWER) and _both_eager(a, b):
        yield Candidate(
            "fused_elementwise",
            "fused elementwise kernels",
            f"elementwise kernels, norms and reductions: {pieces} a step, {gpu_ns(a, b, FUSED).ms} ms of GPU time",
            model((*FUSED, "other", "triton_fused"), _fewer(a, b, FUSED)),
            pieces.more,
        )


# -- what the GPU waits for


def _syncs(a: Facts, b: Facts) -> Iterator[Candidate]:
    waits = of(a, b, lambda side: side.counts.syncs)
    # A single wait a step may be all that keeps the host from running ahead; whether it did, the findings know.
    told = _advised(a, b, "syncs", waits) and waits.fell(least=1.0)
    if told or waits.fell(to=FEWER, least=FEW / 2):
        # A host that no longer waits also launches ahead: what it then saves is the launches' and Python's.
        weight = max(waits.apart, 1.0)

        def claim(cell: Cell) -> float:
            if cell[:2] == ("idle", "sync"):
                return weight * FEW
            return weight if is_model_wait(cell) else 0.0

        yield Candidate(
            "syncs",
            "waits of the host for the GPU",
            f"calls that wait for the GPU: {waits} a step",
            claim,
            waits.more,
        )


def _input(a: Facts, b: Facts) -> Iterator[Candidate]:
    waits = cells_ns(a, b, "idle", "input")
    if waits.fell(to=FEWER, least=_long_wait(a, b)):
        yield Candidate(
            "input_workers",
            "waiting for data",
            f"the GPU waits {waits.ms} ms a step for its next batch",
            where(lambda cell: cell[0] == "idle" and (cell[1] == "input" or cell[2] == "data")),
            waits.more,
        )


def _transfer(a: Facts, b: Facts) -> Iterator[Candidate]:
    took = of(a, b, lambda side: sum(ns for cell, ns in side.cells.items() if is_copying(cell)))
    pageable = of(a, b, lambda side: side.counts.pageable_bytes)
    waits, least = cells_ns(a, b, "idle", "transfer"), _long_wait(a, b)
    waited = waits.fell(to=FEWER, least=least) or _advised(a, b, "pageable_copies", took)
    if pageable.fell(least=MUCH_BYTES) or (waited and took.fell(to=FEWER, least=least)):
        yield Candidate(
            "pageable_copies",
            "copies that block the host",
            f"copies that block the host: {of(a, b, lambda side: side.counts.blocking_copies)} a step, of "
            f"{pageable.a / 1e6:,.1f} → {pageable.b / 1e6:,.1f} MB in pageable memory; copies and waits for them "
            f"take {took.ms} ms of the GPU's step",
            where(is_copying),
            took.more,
        )


def _allocator(a: Facts, b: Facts) -> Iterator[Candidate]:
    calls, waits = of(a, b, lambda side: side.counts.allocator_calls), cells_ns(a, b, "idle", "allocator")
    if calls.fell(least=2.0) and waits.more:
        yield Candidate(
            "allocator",
            "memory asked of the driver",
            f"calls that allocate or free: {calls} a step",
            idle("allocator"),
            calls.more,
        )
