"""What changed between two recordings, told from quantities that moved, and the part of the difference that is there.

A candidate is a change that shows in both recordings whatever anybody calls them: compiled code that only one runs,
synchronisations that are gone, an optimizer of four kernels in place of three hundred. It claims the cells of the
waterfall in which such a change acts. A cell's difference goes to those who claim it, in proportion to their weights,
so what the mechanisms account for and what none of them does sum to the difference exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log

from gpuprof.diagnosis.comparison.cells import Cell
from gpuprof.diagnosis.comparison.facts import Facts
from gpuprof.diagnosis.comparison.model import Work
from gpuprof.diagnosis.comparison.parts import allot
from gpuprof.diagnosis.findings.compile import FUSABLE

MODEL = ("forward", "backward", "recompute")
HOST_CAUSES = ("launch", "python", "sync", "device", "profiler", "unknown")
"""Idle time that fewer launches shorten: the host's, and the pauses between kernels."""
POINTWISE = (*FUSABLE, "triton_fused", "gather/scatter/index", "embedding", "memset", "memcpy")
ATTENTION = ("attention", "softmax", "gemm", "elementwise", "cast/copy", "dropout", "memset")
EXPERTS = ("gemm", "grouped_gemm", "gather/scatter/index", "elementwise", "cast/copy", "memcpy", "reduction")

HALF = 0.5
"""What falls to less than this of what it was is as good as gone."""
FEWER = 0.75
"""A fix that leaves part of its work behind (casts that a model needs anyway) leaves at most this much."""
FEW = 8.0
"""Kernels or calls a step that are too few to be a habit."""
PACE = 0.05
"""Launches, kernels and clocks that differ by less are the same; work likewise."""
OWN = 1e6
"""Weight of a claim to cells that nothing else explains: more than any number of launches."""
WEAK, WEAKER = 1e-3, 1e-6
"""Weights of claims that hold only where nothing better is known."""
IN_GRAPHS = 0.3
"""Share of the kernels in CUDA graphs that makes a step one of graphs."""
LONG_IDLE = 0.02
"""Share of a step from which on waiting is worth a name."""
MUCH_BYTES = 1e6
"""Copies of fewer bytes a step cost a launch and nothing more."""
WORK = ("larger_batch", "work")
"""Candidates that mean another batch."""
LONG_COMPILE_NS = 3e6
"""Compiling or loading that takes longer than this in a step is no accident of the clock."""

Claim = Callable[[Cell], float]
"""Weight with which a candidate claims a cell; 0: not at all."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change that was seen."""

    id: str
    title: str
    text: str
    claim: Claim
    more: int = 0
    """1 where B does more of what costs time, −1 where it does less; 0 where the change says nothing of that."""


@dataclass(frozen=True, slots=True)
class Explained:
    """Candidates with their part of the difference, and what is left."""

    parts: tuple[tuple[Candidate, dict[str, int]], ...]
    """Phase → ns that are a candidate's; most of the difference first."""
    rest_ns: int


def explain(a: Facts, b: Facts, work: Work | None) -> Explained:
    """The changes between two recordings, and what of B's step less A's each accounts for.

    Less of what costs time cannot have made a step longer: a change whose part of the difference is contrary to it is
    not what happened there, and its cells go to the others.
    """
    strong = list(changes(a, b))
    while True:
        found = [*strong, *(otherwise(a, b, work, bool(strong)))]
        shares, rest = _claimed(a, b, found)
        own = [sum(share.values()) for share in shares]
        contrary = [i for i, one in enumerate(strong) if one.more * own[i] < 0]
        if not contrary:
            break
        strong.pop(max(contrary, key=lambda i: abs(own[i])))
    whole = b.side.step_ns - a.side.step_ns
    sign = -1 if whole < 0 else 1
    # Of a batch of eight times the size it says little that a kernel or a wait takes longer.
    batch = work is not None and not work.equal and abs(log(work.ratio)) > abs(log(b.side.step_ns / a.side.step_ns))
    order = sorted(range(len(found)), key=lambda i: (not (batch and found[i].id in WORK), -sign * own[i], i))
    return Explained(tuple((found[i], shares[i]) for i in order if own[i]), rest)


def _claimed(a: Facts, b: Facts, found: list[Candidate]) -> tuple[list[dict[str, int]], int]:
    """The part of the difference that each candidate has, by phase, and what nobody claims."""
    own: list[dict[str, int]] = [{} for _ in found]
    rest = 0
    for cell in dict.fromkeys([*a.cells, *b.cells]):
        difference = b.cells.get(cell, 0) - a.cells.get(cell, 0)
        claims = [(i, weight) for i, one in enumerate(found) if (weight := one.claim(cell)) > 0]
        if not claims:
            rest += difference
        for (i, _), ns in zip(claims, allot(difference, [weight for _, weight in claims]), strict=True):
            own[i][cell[2]] = own[i].get(cell[2], 0) + ns
    return own, rest


def changes(a: Facts, b: Facts) -> Iterator[Candidate]:
    """What the one program does and the other does not."""
    yield from (
        one
        for find in (
            _graphs_or_compiled, _recompute, _optimizer, _dequantize, _eager_attention, _expert_loop, _tf32,
            _adapter_casts, _fused_elementwise, _syncs, _input, _transfer, _allocator, _compiling,
        )
        for one in find(a, b)
    )  # fmt: skip


def otherwise(a: Facts, b: Facts, work: Work | None, changed: bool) -> Iterator[Candidate]:
    """What accounts for the cells that no change claims; `changed`: whether there is one."""
    yield from _work(a, b, work)
    yield from _communication(a, b)
    yield from _device(a, b)
    yield from _pace(a, b, changed)


# -- how a quantity moved, in words


def moved(before: float, after: float) -> str:
    """`3,200 → 90`."""
    return f"{_number(before)} → {_number(after)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or float(value).is_integer() else f"{value:,.1f}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.1f}"


def _fell(a: float, b: float, to: float = HALF, least: float = FEW) -> bool:
    """Whether the smaller of two is at most the share `to` of the larger, and that is worth mention."""
    return max(a, b) >= least and min(a, b) <= to * max(a, b)


def _more(before: float, after: float) -> int:
    """1 where there is more of something that costs time, −1 where there is less."""
    return (after > before) - (after < before)


def _is_model_wait(cell: Cell) -> bool:
    return cell[0] == "idle" and cell[1] in HOST_CAUSES and cell[2] in MODEL


def _model(categories: tuple[str, ...], weight: float, waits: float) -> Claim:
    """Work of some categories in the model's passes with a weight, and the waits there with another."""

    def claim(cell: Cell) -> float:
        if _is_model_wait(cell):
            return waits
        return weight if cell[0] == "busy" and cell[2] in MODEL and cell[1] in categories else 0.0

    return claim


def _fewer(a: Facts, b: Facts, categories: tuple[str, ...] = ()) -> float:
    """Kernels of the model's passes that one side does without."""
    return max(abs(b.counts.count(categories, MODEL) - a.counts.count(categories, MODEL)), 1.0)


# -- what the program does otherwise


def _graphs_or_compiled(a: Facts, b: Facts) -> Iterator[Candidate]:
    graphs = [side.counts.graph_kernels / side.counts.total if side.counts.total else 0.0 for side in (a, b)]
    compiled = [side.counts.compiled for side in (a, b)]
    generated = ("compiled code", "eager code") if compiled[1] else ("eager code", "compiled code")
    flips = bool(compiled[0]) != bool(compiled[1])
    if abs(graphs[1] - graphs[0]) >= IN_GRAPHS:
        more, less = ("B", "A") if graphs[1] > graphs[0] else ("A", "B")
        also = f", of {generated[0]} where A runs {generated[1]}" if flips else ""
        in_graphs = max(a.counts.graph_kernels, b.counts.graph_kernels)
        yield Candidate(
            "cuda_graphs",
            "CUDA graphs" if not flips else "torch.compile with CUDA graphs",
            f"{more} launches {_number(in_graphs)} kernels a step by CUDA graphs{also}; calls that launch work: "
            f"{moved(a.counts.launches, b.counts.launches)} a step ({less} has "
            f"{'none' if min(graphs) == 0 else 'few'} in graphs)",
            _model(POINTWISE if flips else (), 1.0, _fewer_launches(a, b)),
            -_more(*graphs),
        )
        return
    if flips:
        yield Candidate(
            "compile",
            "torch.compile",
            f"B runs {generated[0]}, A {generated[1]}; kernels of the forward and backward pass: "
            f"{moved(a.counts.count((), MODEL), b.counts.count((), MODEL))} a step",
            _model(POINTWISE, 1.0, _fewer_launches(a, b)),
            -_more(*compiled),
        )


def _fewer_launches(a: Facts, b: Facts) -> float:
    return max(abs(a.counts.launches - b.counts.launches), 1.0)


def _recompute(a: Facts, b: Facts) -> Iterator[Candidate]:
    phases = ("recompute",)
    before, after = a.counts.count((), phases), b.counts.count((), phases)
    if not _fell(before, after):
        return
    more = a if before > after else b
    # Checkpointing without an autograd function of its own hands each saved tensor to a Python function, both ways.
    hooked = not more.counts.checkpoint_functions
    launches = abs(before - after)

    def claim(cell: Cell) -> float:
        if cell[2] == "recompute":
            return OWN
        return launches if hooked and _is_model_wait(cell) and cell[1] in ("launch", "python") else 0.0

    yield Candidate(
        "recompute",
        "recomputation of the forward pass",
        f"kernels that recompute: {moved(before, after)} a step, "
        f"{_ms(a.counts.ns((), phases))} → {_ms(b.counts.ns((), phases))} ms of GPU time"
        + (", with hooks around every tensor that is saved" if hooked else ""),
        claim,
        _more(before, after),
    )


def _optimizer(a: Facts, b: Facts) -> Iterator[Candidate]:
    phases = ("optimizer",)
    before, after = a.counts.count((), phases), b.counts.count((), phases)
    if _fell(before, after):
        yield Candidate(
            "optimizer",
            "the optimizer's kernels",
            f"kernels of the optimizer: {moved(before, after)} a step, "
            f"{_ms(a.counts.ns((), phases))} → {_ms(b.counts.ns((), phases))} ms of GPU time",
            lambda cell: 1.0 if cell[2] == "optimizer" and cell[1] not in ("input", "transfer") else 0.0,
            _more(before, after),
        )


def _dequantize(a: Facts, b: Facts) -> Iterator[Candidate]:
    kind = ("dequantize",)
    before, after = a.counts.count(kind), b.counts.count(kind)
    if _fell(before, after):
        yield Candidate(
            "dequantize",
            "unpacking of quantised weights",
            f"kernels that unpack weights: {moved(before, after)} a step, "
            f"{_ms(a.counts.ns(kind))} → {_ms(b.counts.ns(kind))} ms of GPU time; kernels in all: "
            f"{moved(a.counts.total, b.counts.total)}",
            _model((*kind, "elementwise", "cast/copy", "memcpy"), 1.0, _fewer(a, b)),
            _more(before, after),
        )


def _eager_attention(a: Facts, b: Facts) -> Iterator[Candidate]:
    before, after = a.counts.count(("attention",)), b.counts.count(("attention",))
    scores = a.counts.count(("softmax",), MODEL), b.counts.count(("softmax",), MODEL)
    # Fused attention has no softmax of its own: the one comes as the other goes.
    swapped = _fell(before, after) and scores[0] != scores[1] and (after > before) == (scores[1] < scores[0])
    if swapped:
        yield Candidate(
            "eager_attention",
            "fused attention",
            f"kernels of fused attention: {moved(before, after)} a step, softmax kernels: {moved(*scores)}",
            _model(ATTENTION, 1.0, _fewer(a, b)),
            _more(*scores),
        )


def _expert_loop(a: Facts, b: Facts) -> Iterator[Candidate]:
    before, after = a.counts.count(("grouped_gemm",)), b.counts.count(("grouped_gemm",))
    products = a.counts.count(("gemm",), MODEL), b.counts.count(("gemm",), MODEL)
    grouped = min(before, after) <= HALF * max(before, after) and max(before, after) > 0
    # Where they go through other kernels than those of grouped products, the loop is told by its finding.
    more = a if products[0] > products[1] else b
    if (grouped and _fell(*products, to=FEWER)) or (more.finding("expert_loop") and _fell(*products)):
        yield Candidate(
            "expert_loop",
            "experts computed together",
            f"grouped products: {moved(before, after)} a step, single products: {moved(*products)}, kernels in all: "
            f"{moved(a.counts.total, b.counts.total)}, waits for the GPU: {moved(a.counts.syncs, b.counts.syncs)}",
            _model(EXPERTS, 1.0, _fewer(a, b)),
            _more(*products),
        )


def _advised(a: Facts, b: Facts, name: str, before: float, after: float) -> bool:
    """Whether the side with more of something has the finding against it, and the other side has not."""
    more, fewer = (a, b) if before > after else (b, a)
    return more.finding(name) is not None and fewer.finding(name) is None


def _tf32(a: Facts, b: Facts) -> Iterator[Candidate]:
    kind = ("gemm",)
    before, after = a.counts.ns(kind), b.counts.ns(kind)
    pieces = a.counts.count(kind), b.counts.count(kind)
    flops = a.side.product_flops or 0, b.side.product_flops or 0
    alike = not _fell(*pieces, to=FEWER) and not _fell(*flops, to=FEWER)
    if _advised(a, b, "tf32", before, after) and alike and _fell(before, after, to=FEWER):
        yield Candidate(
            "tf32",
            "matrix products on tensor cores",
            f"{_number(pieces[0])} matrix products take {_ms(before)} → {_ms(after)} ms of GPU time a step",
            lambda cell: 1.0 if cell[:2] == ("busy", "gemm") else 0.0,
            _more(before, after),
        )


def _adapter_casts(a: Facts, b: Facts) -> Iterator[Candidate]:
    kind = ("cast/copy",)
    before, after = a.counts.count(kind, MODEL), b.counts.count(kind, MODEL)
    if _advised(a, b, "adapter_casts", before, after) and _fell(before, after, to=FEWER) and _both_eager(a, b):
        yield Candidate(
            "adapter_casts",
            "casts around the adapters",
            f"kernels that cast or copy: {moved(before, after)} a step, "
            f"{_ms(a.counts.ns(kind))} → {_ms(b.counts.ns(kind))} ms of GPU time",
            _model((*kind, "gemm", "elementwise"), 1.0, _fewer(a, b, kind)),
            _more(before, after),
        )


def _fused_elementwise(a: Facts, b: Facts) -> Iterator[Candidate]:
    kind = ("elementwise", "norm", "rope", "reduction", "loss", "softmax")
    before, after = a.counts.count(kind, MODEL), b.counts.count(kind, MODEL)
    if _advised(a, b, "fused_elementwise", before, after) and _fell(before, after, to=FEWER) and _both_eager(a, b):
        yield Candidate(
            "fused_elementwise",
            "fused elementwise kernels",
            f"elementwise kernels, norms and reductions: {moved(before, after)} a step, "
            f"{_ms(a.counts.ns(kind))} → {_ms(b.counts.ns(kind))} ms of GPU time",
            _model((*kind, "other", "triton_fused"), 1.0, _fewer(a, b, kind)),
            _more(before, after),
        )


def _both_eager(a: Facts, b: Facts) -> bool:
    return bool(a.counts.compiled) == bool(b.counts.compiled)


def _syncs(a: Facts, b: Facts) -> Iterator[Candidate]:
    before, after = a.counts.syncs, b.counts.syncs
    if _fell(before, after, to=FEWER, least=FEW / 2):
        # A host that no longer waits also launches ahead: what it then saves is the launches' and Python's.
        weight = max(abs(before - after), 1.0)

        def claim(cell: Cell) -> float:
            if cell[:2] == ("idle", "sync"):
                return weight * FEW
            return weight if _is_model_wait(cell) else 0.0

        yield Candidate(
            "syncs",
            "waits of the host for the GPU",
            f"calls that wait for the GPU: {moved(before, after)} a step",
            claim,
            _more(before, after),
        )


def _idle(facts: Facts, cause: str) -> int:
    """Idle time of a cause in the step."""
    return sum(ns for (kind, name, _), ns in facts.cells.items() if kind == "idle" and name == cause)


def _waited(a: Facts, b: Facts, cause: str) -> bool:
    """Whether idle time of a cause fell, and by enough of the step."""
    least = LONG_IDLE * max(a.side.step_ns, b.side.step_ns)
    return _fell(_idle(a, cause), _idle(b, cause), to=FEWER, least=least)


def _input(a: Facts, b: Facts) -> Iterator[Candidate]:
    before, after = _idle(a, "input"), _idle(b, "input")
    if _waited(a, b, "input"):
        yield Candidate(
            "input_workers",
            "waiting for data",
            f"the GPU waits {_ms(before)} → {_ms(after)} ms a step for its next batch",
            lambda cell: 1.0 if cell[0] == "idle" and (cell[1] == "input" or cell[2] == "data") else 0.0,
            _more(before, after),
        )


def _transfer(a: Facts, b: Facts) -> Iterator[Candidate]:
    def own(cell: Cell) -> bool:
        return cell[:2] in (("idle", "transfer"), ("busy", "memcpy"))

    before, after = (sum(ns for cell, ns in side.cells.items() if own(cell)) for side in (a, b))
    pageable = a.counts.pageable_bytes, b.counts.pageable_bytes
    least = LONG_IDLE * max(a.side.step_ns, b.side.step_ns)
    waited = _waited(a, b, "transfer") or _advised(a, b, "pageable_copies", before, after)
    if _fell(*pageable, least=MUCH_BYTES) or (waited and _fell(before, after, to=FEWER, least=least)):
        yield Candidate(
            "pageable_copies",
            "copies that block the host",
            f"copies that block the host: {moved(a.counts.blocking_copies, b.counts.blocking_copies)} a step, of "
            f"{pageable[0] / 1e6:,.1f} → {pageable[1] / 1e6:,.1f} MB in pageable memory; copies and waits for them "
            f"take {_ms(before)} → {_ms(after)} ms of the GPU's step",
            lambda cell: 1.0 if own(cell) else 0.0,
            _more(before, after),
        )


def _allocator(a: Facts, b: Facts) -> Iterator[Candidate]:
    before, after = a.counts.allocator_calls, b.counts.allocator_calls
    waits = _idle(a, "allocator"), _idle(b, "allocator")
    if _fell(before, after, least=2.0) and waits[0] != waits[1]:
        yield Candidate(
            "allocator",
            "memory asked of the driver",
            f"calls that allocate or free: {moved(before, after)} a step",
            lambda cell: 1.0 if cell[:2] == ("idle", "allocator") else 0.0,
            _more(before, after),
        )


def _compiling(a: Facts, b: Facts) -> Iterator[Candidate]:
    before, after = a.counts.compiling_ns, b.counts.compiling_ns
    if _fell(before, after, least=LONG_COMPILE_NS):
        yield Candidate(
            "recompiles",
            "compiling during the step",
            f"the host compiles or loads code for {_ms(before)} → {_ms(after)} ms a step",
            lambda cell: 1.0 if cell[0] == "idle" and cell[1] in ("launch", "python") else 0.0,
            _more(before, after),
        )


# -- what holds only where nothing better is known


def _work(a: Facts, b: Facts, work: Work | None) -> Iterator[Candidate]:
    if work is None or work.equal:
        return
    padded = a.side.tokens, b.side.tokens
    if work.measure == "product FLOPs":
        name, title, amount = "work", "other work in a step", "the products' FLOPs"
    else:
        name, title, amount = "larger_batch", "other work in a step", work.measure
    text = f"B's step does {work.ratio:.2g}× the work of A's: {moved(work.a, work.b)} {amount}"
    if work.measure == "product FLOPs":
        text = f"B's step does {work.ratio:.2g}× the work of A's by the FLOPs of its matrix products"
    elif all(padded) and work.measure == "tokens" and padded != (work.a, work.b):
        text += f" ({moved(padded[0] or 0, padded[1] or 0)} with padding)"
    yield Candidate(name, title, text, lambda cell: WEAK)


def _communication(a: Facts, b: Facts) -> Iterator[Candidate]:
    def own(cell: Cell) -> bool:
        return cell[1] == "communication" or cell[2] == "communication"

    before, after = (sum(ns for cell, ns in side.cells.items() if own(cell)) for side in (a, b))
    if before != after:
        yield Candidate(
            "exposed_communication",
            "communication that nothing hides",
            f"collectives that no computation overlaps take {_ms(before)} → {_ms(after)} ms a step",
            lambda cell: 1.0 if own(cell) else 0.0,
        )


def _device(a: Facts, b: Facts) -> Iterator[Candidate]:
    """The kernels' own speed and choice."""
    weak = WEAK / 2
    if a.side.gpu and b.side.gpu and a.side.gpu != b.side.gpu:
        yield Candidate("gpu", "another GPU", f"{a.side.gpu} → {b.side.gpu}", lambda c: weak if c[0] == "busy" else 0)
    elif a.clock_mhz and b.clock_mhz and abs(b.clock_mhz / a.clock_mhz - 1) > PACE:
        yield Candidate(
            "throttling",
            "the GPU's clock",
            f"the SM clock is at {moved(a.clock_mhz, b.clock_mhz)} MHz",
            lambda cell: weak if cell[0] == "busy" else 0.0,
        )
    before, after = a.counts.total, b.counts.total
    same = abs(after - before) <= PACE * before
    counted = (
        f"about the same number of kernels ({moved(before, after)})" if same else f"{moved(before, after)} kernels"
    )
    times = f"{_ms(a.counts.ns())} → {_ms(b.counts.ns())} ms of GPU time a step"
    yield Candidate(
        "kernels",
        "the kernels themselves",
        f"{counted}, {times}",
        lambda cell: WEAKER if cell[0] == "busy" else 0.0,
    )


def _pace(a: Facts, b: Facts, changed: bool) -> Iterator[Candidate]:
    """The host: more or fewer launches, or another pace."""
    before, after = a.counts.launches, b.counts.launches

    def claim(cell: Cell) -> float:
        return WEAKER if cell[0] == "idle" and cell[1] in (*HOST_CAUSES, "allocator") else 0.0

    waits = [
        sum(ns for cell, ns in side.cells.items() if cell[0] == "idle" and cell[1] in (*HOST_CAUSES, "allocator"))
        for side in (a, b)
    ]
    if changed:
        text = (
            "what else the GPU waits for its host, in work that both do; hosts differ by some per cent from one process"
            f" to the next ({_ms(waits[0])} → {_ms(waits[1])} ms a step in all)"
        )
        yield Candidate("host", "the host elsewhere", text, claim)
    elif abs(after - before) > PACE * before and _more(before, after) == _more(*waits):
        many = "fewer" if after < before else "more"
        text = f"B launches {_number(abs(after - before))} kernels {many} a step: {moved(before, after)}"
        yield Candidate("launches", f"{many} launches", text, claim)
    else:
        about = "about the same" if abs(after - before) <= PACE * before else "its"
        text = (
            f"the GPU waits {_ms(waits[0])} → {_ms(waits[1])} ms a step for its host, with {about} launches "
            f"({moved(before, after)})"
        )
        yield Candidate("host", "the host's pace", text, claim)
