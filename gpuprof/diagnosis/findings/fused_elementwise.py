"""Norms, rotary embeddings, gates and the loss run as a dozen kernels each, which read and write whole activations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration, key
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerParts
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart, part_of
from gpuprof.diagnosis.detect.declared.proposal import SURE_GAIN, Absent, Page, Proposal
from gpuprof.diagnosis.detect.gpu.activations import GELU, GELU_TANH, MISH, OTHER, find_activations
from gpuprof.diagnosis.detect.gpu.fused_kernels import Fused
from gpuprof.diagnosis.detect.gpu.fused_sequences import (
    GATE,
    KEYS,
    KINDS,
    LOSS,
    NORM,
    PART,
    ROPE,
    Sequences,
    find_sequences,
)
from gpuprof.diagnosis.detect.gpu.written_out import DROPOUT, LAYER_NORM, LEAST_CLASSES, SOFTMAX, VOCABULARY
from gpuprof.diagnosis.detect.losses.loss_head import fused_linear_ns, loss_head
from gpuprof.diagnosis.detect.pair.candidates import PASSES, Candidate, claim_model
from gpuprof.diagnosis.detect.pair.quantities import MOST_WORK_LEFT, kernel_counts, kernel_ns
from gpuprof.diagnosis.detect.pair.signs import advised, alike_compiled, fewer_kernels
from gpuprof.diagnosis.detect.passes import differentiates_gradients
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import Code, Fix, assigned, call, code, joined
from gpuprof.diagnosis.sentences import duration, listed
from gpuprof.units import Assumed, Ns, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.detect.pair.facts import Facts

PIECES = {"norms": (NORM,), "rotary embedding": (ROPE, KEYS), "gates": (GATE, PART), "loss": (LOSS,)}
"""Kernels of Liger that a program can use by themselves → the kinds of sequences that each replaces."""
INSTALL = "  # pip install liger-kernel"
IN_TITLE = {"norms": "norm", "rotary embedding": "rotary", "gates": "gate", "loss": "loss"}
"""Each piece in a title."""
IN_ITEM = {"rotary embedding": "rotary embeddings", "loss": "the loss"}
"""Pieces that the ledger calls otherwise."""
OPTIONS = {
    "norms": ("rms_norm",),
    "rotary embedding": ("rope",),
    "gates": ("swiglu",),
    "loss": ("fused_linear_cross_entropy", "cross_entropy"),
}
"""Options of Liger for each piece."""
APART = {"fused_linear_cross_entropy": False, "cross_entropy": True}
"""Options of Liger for a separate loss kernel, not chunk by chunk with the output layer."""
LIGER_PARTS = (
    ("loss", "LigerCrossEntropyLoss"),
    ("norm", "LigerRMSNorm"),
    ("gate", "LigerSwiGLUMLP"),
    ("rope", "liger_rotary_pos_emb"),
)
"""Kind of sequence → Liger's module that computes it in one kernel."""
LEAST_FUSABLE_SHARE: Assumed[Share] = 0.03
"""Smallest share of GPU time in such kernels: with less, the fix gains nothing on a GPU-bound step; launch-bound steps
need torch.compile or CUDA graphs."""
OWN_KERNELS = "activations"
"""Key of the proposal for functions that torch has a kernel for."""
WRITTEN_OUT = "written-out functions in one kernel each"
FUNCTIONS = {
    GELU_TANH: call("torch.nn.functional.gelu", Code("x"), approximate="tanh"),
    GELU: call("torch.nn.functional.gelu", Code("x")),
    MISH: call("torch.nn.functional.mish", Code("x")),
    LAYER_NORM: call("torch.nn.functional.layer_norm", Code("x"), Code("x.shape[-1:]"), Code("weight"), Code("bias")),
    SOFTMAX: call("torch.softmax", Code("x"), -1),
    DROPOUT: call("torch.nn.functional.dropout", Code("x"), Code("p")),
}
"""Function → how torch's kernel for it is called."""
COMPILED = frozenset({OTHER, VOCABULARY})
"""Functions for which torch has no kernel: a compiler makes one."""
NAMES = {
    GELU_TANH: "GELU",
    GELU: "GELU",
    MISH: "Mish",
    LAYER_NORM: "layer norms",
    SOFTMAX: "softmax",
    DROPOUT: "dropout",
    VOCABULARY: "log-probabilities and entropies",
}
"""Function → what a reader calls it."""
FUNCTION_COMPILED_NS: Assumed[tuple[Ns, Ns, Ns]] = (1e9, 4e9, 15e9)
"""Time to compile one small function, forward and backward: at least, usually, and at most."""
CATEGORIES = ("elementwise", "norm", "rope", "reduction", "loss", "softmax")
"""Categories of kernels that are fused."""

PAGE = Page(
    id="fused_elementwise",
    applies=("training",),
    title="Activations go through memory for every elementwise operation",
    means="""
Written in plain torch, an RMSNorm is a cast, a square, a mean, a root, two multiplications and a cast back; rotary
embedding, SwiGLU and the loss over a large vocabulary are similar. Each of these ops is a kernel that reads a whole
activation and writes another. They do hardly any arithmetic, so memory traffic determines their time. Libraries of
fused kernels (Liger, unsloth) use one kernel per pass for each such sequence.
""",
    detected=f"""
Sequences of forward ops: a mean and `rsqrt` with the multiplications that follow, or `sqrt` and a division; `neg` and
`cat` between multiplications of the same shape, a product of complex numbers between `view_as_complex` and
`view_as_real`, or two halves that are multiplied, added and joined; `silu` or `gelu` and the multiplication of its
result by a tensor of the same shape; a cross-entropy with the cast in front of it. They must take at least
{percent(LEAST_FUSABLE_SHARE)} % of the GPU's time. In any model, functions that are written out: GELU by `tanh` or
`erf`, `x · sigmoid(1.702 x)`, Mish, a squared ReLU, `limit · tanh(x / limit)`, a layer norm, a softmax, dropout; the
softmax of at least {LEAST_CLASSES:,} classes of which a few values of each row are picked, or whose entropy is summed
up. Where a faster CPU gains more than a faster GPU, only the removed launches gain time: Liger's kernels are then
listed under *Worth trying*.
""",
    gain=f"""
Each sequence and its backward are replaced by one kernel per pass (two for a norm's backward, three for the loss) that
moves the activation as often as such a kernel must, at {percent(calibrated.FUSED_MEMORY.value)} % of the memory
ceiling; a norm's backward takes as long as {calibrated.NORM_BACKWARD.value:g} passes ({calibrated.NORM_BACKWARD.low:g}
to {calibrated.NORM_BACKWARD.high:g}). A fused call is a Python function in both passes, and in each costs the CPU as
much as six ordinary launches of the forward pass; the rotary embedding of queries and keys is one call. Of norms,
rotary embedding, gates and loss, only those are proposed that shorten the step by {100 * (SURE_GAIN - 1):.0f} % on top
of the ones that gain more. A written-out function is replaced by one op of torch, or is compiled on its own: it
reads and writes the activation once, and its backward pass reads two tensors and writes one (five passes for a layer
norm, assumed).
""",
    wrong="""
Liger has kernels for common architectures only. By default it also fuses the loss with the output layer, which saves
memory and may take longer (`gpuprof explain fused_loss`): the fix leaves that out where it would. Casts and additions
of LoRA adapters are not covered. torch.compile fuses more if the model compiles.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes fused kernels for sequences that are not fused."""
    yield from _liger_kernels(case)
    yield from _own_kernels(case)


def _liger_kernels(case: Analysis) -> Iterator[Proposal]:
    """Kernels of a library for a language model."""
    found = None if differentiates_gradients(case) else _sequences(case)
    if found is None:
        return
    each = pieces(case, found)
    alone = dict(zip(each, case.steps_of([one.change(1)(case.graph) for one in each.values()]), strict=True))
    fused_of = cache(lambda names: Fused(case, _of_pieces(found, names)))
    for names in _chosen(case, fused_of, alone):
        some = _of_pieces(found, names)
        fused, graph = fused_of(frozenset(names)), case.graph
        share = float(graph.duration_ns[fused.gpu].sum()) / float(graph.duration_ns[graph.on_gpu].sum())
        if share >= LEAST_FUSABLE_SHARE:
            yield _proposal(case, some, fused, share, names, alone)
            return


def _own_kernels(case: Analysis) -> Iterator[Proposal]:
    """torch's own kernels for functions that are written out, which any model may have."""
    written = find_activations(case) if case.roofline is not None else None
    if written is None or (differentiates_gradients(case) and not COMPILED.isdisjoint(written.names)):
        return
    fused, graph = Fused(case, written.found), case.graph
    took = float(graph.duration_ns[fused.gpu].sum())
    compiled = not COMPILED.isdisjoint(written.names)
    yield Proposal(
        title=WRITTEN_OUT,
        evidence=spans(
            case,
            f"{np.count_nonzero(written.found.kind != PART) / case.steps:,.0f} written-out functions {case.unit.a} as "
            f"{case.per_step(fused.gpu.sum()):,.0f} elementwise kernels: {duration(case.per_step(took))}",
            fused.gpu,
        ),
        fix=_written_shorter(case, written.names),
        change=fused.change(1),
        best=fused.change(0),
        worst=fused.change(2),
        once_ns=FUNCTION_COMPILED_NS if compiled else (0.0, 0.0, 0.0),
        claims=("reference_ops",),
        item=(
            f"{listed([NAMES.get(name, 'activations') for name in written.names])}, written out in several kernels",
            "torch, or a compiler, has one for each",
        ),
        key=OWN_KERNELS,
    )


def _written_shorter(case: Analysis, names: Sequence[str]) -> Fix:
    """The functions of torch in place of those that are written out."""
    lines = [FUNCTIONS[name] for name in names if name in FUNCTIONS]
    if not COMPILED.isdisjoint(names):
        lines.append(
            code("@torch.compile") + "  # above the function that computes it, where the model is not compiled"
        )
    if GELU_TANH in names and case.stack.from_transformers:
        option = case.stack.loaded(activation_function="gelu_pytorch_tanh")
        lines = [option + "\n# or hidden_act, as the model's configuration names it; in code of your own:", *lines]
    return joined(lines)


def _proposal(
    case: Analysis, found: Sequences, fused: Fused, share: float, names: Sequence[str], alone: Mapping[str, float]
) -> Proposal:
    """The pieces of some names; `share`: of GPU time in what they replace; `alone`: the step with each piece that was
    found, ns."""
    host_bound = _is_host_bound(case)
    present = np.unique(found.kind).tolist()
    kinds = [
        f"{np.count_nonzero(found.kind == k) / case.steps:,.0f} × {KINDS[k]}" for k in present if k not in (PART, KEYS)
    ]
    took = float(case.graph.duration_ns[fused.gpu].sum())
    text = (
        f"{', '.join(kinds)} a step as {case.per_step(fused.gpu.sum()):,.0f} kernels that only move memory: "
        f"{duration(case.per_step(took))}, {100 * share:,.0f} % of the GPU's time"
    )
    options = {option: False for name in alone if name not in names for option in OPTIONS[name]}
    if "loss" in names and _fused_head_is_slower(case):
        options |= APART
    liger = {"use_liger_kernel": True, **({"liger_kernel_config": options} if options else {})}
    return Proposal(
        title=_title(names),
        evidence=(*spans(case, text, fused.gpu), *(() if host_bound else _by_piece(case, alone))),
        fix=case.stack.fix(
            _liger(case.stack.is_causal, {KINDS[k] for k in present}, options),
            case.stack.setting(liger, note=INSTALL) if case.stack.from_transformers else "",
            unsloth="load the model with FastLanguageModel and its own kernels (no custom modelling code)",
        ),
        change=fused.change(1),
        best=fused.change(0),
        worst=fused.change(2),
        claims=("small_kernels", "fused_loss_ops"),
        item=(
            f"{listed([IN_ITEM.get(name, name) for name in names])} in many small kernels",
            "fused kernels do the same in fewer passes over memory",
        ),
        odds=calibrated.FUSED_LAUNCHES_ODDS.value if host_bound else 1.0,
        needs="fused calls cost the CPU less than the launches that they replace" if host_bound else "",
    )


def _title(names: Sequence[str]) -> str:
    return f"fused {listed([IN_TITLE[name] for name in names])} (Liger)"


def _chosen(
    case: Analysis, fused_of: Callable[[frozenset[str]], Fused], alone: Mapping[str, float]
) -> Iterator[list[str]]:
    """Names of the pieces to fuse: those that gain on top of the ones that gain more, and then all. fused_of: what
    fuses some pieces; alone: the step with each, ns.

    Fused calls take the CPU longer than a few launches do, which shows once the others have shortened the GPU's work.
    A piece that gains less than is known of its kernels is left out: it may lose as much.
    """
    now, gaining = case.step_of(case.graph), list[str]()
    step = now
    for name in sorted(alone, key=lambda name: alone[name]):
        some = [*gaining, name]
        then = alone[name] if not gaining else case.step_of(fused_of(frozenset(some)).change(1)(case.graph))
        if then < step - (SURE_GAIN - 1) * now:
            step, gaining = then, some
    if gaining:
        yield [name for name in alone if name in gaining]
    yield list(alone)


def _of_pieces(found: Sequences, names: Collection[str]) -> Sequences:
    """The sequences of some pieces."""
    return found.only(np.isin(found.kind, [kind for name in names for kind in PIECES[name]]))


def pieces(case: Analysis, found: Sequences) -> dict[str, Fused]:
    """Name (of PIECES) → what fuses this piece alone, which may gain or lose."""
    own = {name: np.isin(found.kind, kinds) for name, kinds in PIECES.items()}
    return {name: Fused(case, found.only(some)) for name, some in own.items() if some.any()}


def _by_piece(case: Analysis, alone: Mapping[str, float]) -> Iterator[Evidence]:
    """Evidence of what each piece gains alone."""
    now = case.step_of(case.graph)
    for name, then in alone.items():
        less = now - then
        yield Evidence(f"{name} alone: {duration(abs(less))} {case.unit.a} {'less' if less >= 0 else 'more'}")


def _sequences(case: Analysis) -> Sequences | None:
    """The sequences that fused kernels could replace; None except in language models, for which the libraries' kernels
    are made."""
    return find_sequences(case) if case.trains_on_tokens and case.roofline is not None else None


def _is_host_bound(case: Analysis) -> bool:
    """Whether fewer launches gain more than less memory traffic."""
    return case.sensitivities.host > case.sensitivities.device


def _fused_head_is_slower(case: Analysis) -> bool:
    """Whether Liger's default for a causal model, a loss fused with the output layer, takes longer than the two."""
    head = loss_head(case)
    if head is None or case.roofline is None:
        return False
    gpu = (head.matmuls | head.rest) & case.graph.on_gpu
    return head.calls * fused_linear_ns(head, case, 1) > case.per_step(float(case.graph.duration_ns[gpu].sum()))


def _liger(is_causal: bool, kinds: set[str], options: Mapping[str, bool]) -> Fix:
    """The fix by hand: for a transformers model its own loader, else the parts that the program can call. options: of
    Liger, where not all of its kernels are to be used."""
    if is_causal:
        loaded = assigned("model", call("Liger.from_pretrained", ..., **options))
        install = "" if options else INSTALL  # the longer call leaves no room for it
        imported = code(f"from liger_kernel.transformers import AutoLigerKernelForCausalLM as Liger{install}")
        return joined((imported, loaded))
    parts = [name for kind, name in LIGER_PARTS if kind in kinds] or [LIGER_PARTS[0][1]]
    imported = code(f"from liger_kernel.transformers import {', '.join(parts)}") + "  # for your own"
    return joined(("after pip install liger-kernel:", imported))


def _absent(case: Analysis) -> str | None:
    if not case.trains_on_tokens:
        return None
    if find_sequences(case) is None:
        return "none of the sequences that Liger fuses was recorded"
    if _is_host_bound(case):
        return "the CPU (host) is the limit: less memory traffic gains nothing"
    return None


ABSENT = Absent("Liger kernels", _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Fewer elementwise kernels, if only the side with more of them has the finding."""
    pieces = kernel_counts(a, b, CATEGORIES, PASSES)
    if advised(a, b, PAGE.id, pieces) and pieces.fell(to=MOST_WORK_LEFT) and alike_compiled(a, b):
        yield Candidate(
            PAGE.id,
            "fused elementwise kernels",
            f"elementwise kernels, norms and reductions: {pieces} a step, "
            f"{kernel_ns(a, b, CATEGORIES).ms} ms of GPU time",
            claim_model((*CATEGORIES, "other", "triton_fused"), fewer_kernels(a, b, CATEGORIES)),
            pieces.more,
        )


def ledger_parts(case: Analysis) -> Iterator[LedgerPart]:
    """Functions that torch has kernels for, and what Liger's kernels replace."""
    for one in case.proposals(find):
        if one.item is not None:
            what, why = one.item
            yield part_of(case.graph, one.change, what, why)


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    ledger=LedgerParts(ledger_parts, stage="faster", unadvised=False),
    lowers=("slow_kernels",),
    synonyms=(
        "gelu",
        "activation",
        "liger",
        "liger_kernel",
        "liger_kernels",
        "fused_kernels",
        "rmsnorm",
        "elementwise",
    ),
    titles=(
        key(WRITTEN_OUT),
        *(key(_title(names)) for most in range(1, len(PIECES) + 1) for names in itertools.combinations(PIECES, most)),
    ),
)
