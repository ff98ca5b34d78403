"""Norms, rotary embeddings, gates and the loss as a dozen kernels each that read and write whole activations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.diagnosis.detect.declaration import Declaration
from gpuprof.diagnosis.detect.evidence import spans
from gpuprof.diagnosis.detect.fused_sequences import GATE, KINDS, LOSS, NORM, PART, ROPE, Sequences, find_sequences
from gpuprof.diagnosis.detect.loss_head import fused_linear_ns, loss_head
from gpuprof.diagnosis.detect.pair.candidates import PASSES, Candidate, claim_model
from gpuprof.diagnosis.detect.pair.quantities import FEWER, kernel_counts, kernel_ns
from gpuprof.diagnosis.detect.pair.signs import advised, alike_compiled, fewer_kernels
from gpuprof.diagnosis.detect.passes import backward_of, host_ns_per_launch, without_recompute
from gpuprof.diagnosis.detect.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.replace_work import Replacement, replacement_of, with_replacement
from gpuprof.diagnosis.diagnosis import Evidence
from gpuprof.diagnosis.fix import Fix, assigned, call, code, joined
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import nodes_in
from gpuprof.tracefile.trace import F64, I64

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts

PIECES = {"norms": (NORM,), "rotary embedding": (ROPE,), "gates": (GATE, PART), "loss": (LOSS,)}
"""Kernels of Liger that a program can use by themselves → the kinds of sequences that each replaces."""
FORWARD_PASSES, BACKWARD_PASSES = (2.0, 2.0, 3.0, 4.0, 0.0), (3.5, 2.0, 5.0, 1.0, 0.0)
"""How often a fused kernel reads or writes the activation, by kind: a norm reads and writes it, and backward reads
it and the gradient and writes one (and sums the weight's); rotary embedding reads and writes, twice; a gate reads
two and writes one, backward reads three and writes two; a loss reads the logits twice, writes their gradient in
place, and reads it back."""
LAUNCHES = ((1, 2), (1, 1), (1, 1), (3, 1), (0, 0))
"""Kernels forward and backward."""
HOST_LAUNCHES = calibrated.FUSED_HOST_LAUNCHES.rising
"""CPU time of a fused call in one pass, in units of a usual launch of the forward pass: an autograd function in Python
around Triton's launcher. Backward it runs in Python as well, unlike the autograd nodes of PyTorch's own ops."""
MEMORY_SHARE = calibrated.FUSED_MEMORY.falling
"""What such kernels reach of the memory ceiling."""
INSTALL = "  # pip install liger-kernel"
APART = {"fused_linear_cross_entropy": False, "cross_entropy": True}
"""Options of Liger: the loss in a kernel of its own, not chunk by chunk with the output layer."""
LIGER_PARTS = (("loss", "LigerCrossEntropyLoss"), ("norm", "LigerRMSNorm"), ("gate", "LigerSwiGLUMLP"))
"""Kind of sequence → the module of Liger that does it in one kernel."""
WORTH_SHARE = 0.03
"""Less of the GPU's time than this in such kernels, and the fix gains nothing on a GPU-bound step; launch-bound ones
want torch.compile or CUDA graphs."""
CATEGORIES = ("elementwise", "norm", "rope", "reduction", "loss", "softmax")
"""Of kernels that are fused."""

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
    detected="""
Sequences of forward ops: a mean and `rsqrt` with the multiplications that follow; `neg` and `cat` between
multiplications of the same shape, a product of complex numbers between `view_as_complex` and `view_as_real`, or two
halves that are multiplied, added and joined; `silu` or `gelu` and the multiplication of its result by a tensor of the
same shape; a cross-entropy with the cast in front of it. They must take at least 3 % of the GPU's time, and a faster
GPU must gain more than a faster CPU.
""",
    gain="""
Each sequence and its backward are replaced by one kernel per pass (two for a norm's backward, three for the loss)
that moves the activation as often as such a kernel must, at 65 % of the memory ceiling. A fused call costs the CPU
as much as six ordinary launches of the forward pass, forward and again backward: it is a Python function in both.
""",
    wrong="""
Liger has kernels for common architectures only. By default it also fuses the loss with the output layer, which saves
memory and may take longer (`gpuprof explain fused_loss`): the fix leaves that out where it would. Casts and additions
of LoRA adapters are not covered. torch.compile fuses more if the model compiles.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Fused kernels for what is not fused."""
    found = _slow_sequences(case)
    if found is None:
        return
    fused = _Fused(case, found)
    graph = case.graph
    took = float(graph.duration_ns[fused.gpu].sum())
    whole = float(graph.duration_ns[graph.on_gpu].sum())
    if took < WORTH_SHARE * whole:
        return
    kinds = [
        f"{np.count_nonzero(found.kind == k) / case.steps:,.0f} × {KINDS[k]}"
        for k in np.unique(found.kind).tolist()
        if k != PART
    ]
    text = (
        f"{', '.join(kinds)} a step as {case.per_step(fused.gpu.sum()):,.0f} kernels that only move memory: "
        f"{case.per_step(took) / 1e6:,.1f} ms, {100 * took / whole:,.0f} % of the GPU's time"
    )
    apart = _fused_head_is_slower(case)
    liger = {"use_liger_kernel": True, **({"liger_kernel_config": APART} if apart else {})}
    yield Proposal(
        title="fused norm, rotary, gate and loss (Liger)",
        evidence=(*spans(case, text, fused.gpu), *_by_piece(case)),
        fix=case.stack.fix(
            _liger(case.stack.is_causal, {KINDS[k] for k in np.unique(found.kind).tolist()}, apart),
            case.stack.setting(liger, note=INSTALL) if case.stack.from_transformers else "",
            unsloth="load the model with FastLanguageModel and its own kernels (no custom modelling code)",
        ),
        change=fused.change(1),
        best=fused.change(0),
        worst=fused.change(2),
        excludes=("compile", "cuda_graphs"),
    )


def pieces(case: Analysis) -> dict[str, Proposal]:
    """Name of a piece (of PIECES) → it alone, as a fused kernel: what it gains or loses by itself."""
    found = _slow_sequences(case)
    result = {}
    for name, kinds in PIECES.items() if found is not None else ():
        assert found is not None
        own = np.isin(found.kind, kinds)
        if own.any():
            fused = _Fused(case, found.only(own))
            result[name] = Proposal(
                title=name,
                evidence=(),
                fix=Fix(),
                change=fused.change(1),
                best=fused.change(0),
                worst=fused.change(2),
                key=name,
            )
    return result


def _by_piece(case: Analysis) -> Iterator[Evidence]:
    """What each piece gains alone."""
    now = case.step_of(case.graph)
    for name, one in pieces(case).items():
        less = (now - case.step_of(one.change(case.graph))) / 1e6
        yield Evidence(f"{name} alone: {abs(less):,.2f} ms {case.unit.a} {'less' if less >= 0 else 'more'}")


def _slow_sequences(case: Analysis) -> Sequences | None:
    """What a fused kernel could do, where less memory traffic may gain: a language model that the GPU limits."""
    found = find_sequences(case) if case.trains_on_tokens else None  # the libraries' kernels are language models'
    if found is None or case.roofline is None or case.sensitivities.host > case.sensitivities.device:
        return None
    return found


class _Fused:
    """Sequences, forward and backward, as fused kernels."""

    def __init__(self, case: Analysis, found: Sequences) -> None:
        self._case, self._found = case, found
        graph, self._count = case.graph, len(found.stretches)
        forward = nodes_in(case.graph, found.stretches)
        backward = without_recompute(case, nodes_in(case.graph, backward_of(case, found.stretches)))
        self._group = np.where(forward >= 0, forward, np.where(backward >= 0, backward + self._count, -1))
        inside = self._group >= 0
        self.gpu = inside & graph.on_gpu
        """Kernels that they replace."""
        self._launches = np.array(LAUNCHES)[found.kind].T.reshape(-1)
        self._usual_ns = host_ns_per_launch(case, inside, forward >= 0)

    def change(self, level: int) -> Change:
        """The graph with them; `level` 0: at best, 1: as expected, 2: at worst."""
        graph, group, gpu, several = self._case.graph, self._group, self.gpu, 2 * self._count
        has = np.bincount(group[gpu], minlength=several) > 0
        gpu_ns = np.where(has, _fused_ns(self._case, self._found, level, self._launches), 0.0)
        now = np.bincount(group[gpu], weights=graph.duration_ns[gpu], minlength=several)
        calls = np.where(self._launches > 0, HOST_LAUNCHES[level] + self._launches - 1.0, 0.0)
        # At worst a fused kernel is slower than what it replaces: short rows, few blocks.
        gpu_ns = gpu_ns if level == 2 else np.minimum(gpu_ns, now)
        replacement = replacement_of(graph, group, calls * self._usual_ns, gpu_ns, self._launches, slower=level > 0)
        return partial(_apply, replacement=replacement)


def _fused_head_is_slower(case: Analysis) -> bool:
    """Whether Liger's default for a causal model, a loss fused with the output layer, takes longer than the two."""
    head = loss_head(case)
    if head is None or case.roofline is None:
        return False
    gpu = (head.products | head.rest) & case.graph.on_gpu
    return head.calls * fused_linear_ns(head, case, 1) > case.per_step(float(case.graph.duration_ns[gpu].sum()))


def _liger(is_causal: bool, kinds: set[str], apart: bool = False) -> Fix:
    """The kernels by hand: for a model of transformers its own loader, else the parts that the program may call.
    apart: without the loss that is fused with the output layer."""
    if is_causal:
        options = APART if apart else {}
        loaded = assigned("model", call("Liger.from_pretrained", ..., **options))
        install = "" if apart else INSTALL  # the longer call leaves no room for it
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
    if case.sensitivities.host > case.sensitivities.device:
        return "the CPU (host) is the limit: less memory traffic gains nothing"
    return None


ABSENT = Absent("Liger kernels", _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Fewer elementwise kernels, where only the side with more of them has the finding."""
    pieces = kernel_counts(a, b, CATEGORIES, PASSES)
    if advised(a, b, PAGE.id, pieces) and pieces.fell(to=FEWER) and alike_compiled(a, b):
        yield Candidate(
            PAGE.id,
            "fused elementwise kernels",
            f"elementwise kernels, norms and reductions: {pieces} a step, "
            f"{kernel_ns(a, b, CATEGORIES).ms} ms of GPU time",
            claim_model((*CATEGORIES, "other", "triton_fused"), fewer_kernels(a, b, CATEGORIES)),
            pieces.more,
        )


def _apply(graph: Graph, replacement: Replacement) -> Graph:
    return with_replacement(graph, replacement)


def _fused_ns(case: Analysis, found: Sequences, level: int, launches: I64) -> F64:
    """GPU time of the fused kernels, forward and then backward; ns."""
    assert case.roofline is not None
    ceilings = case.roofline.ceilings
    passes = np.concatenate([np.array(FORWARD_PASSES)[found.kind], np.array(BACKWARD_PASSES)[found.kind]])
    moved = passes * np.tile(found.bytes, 2)
    return moved / ceilings.memory_bytes_per_s / MEMORY_SHARE[level] * 1e9 + launches * ceilings.launch_floor_ns


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    synonyms=("liger", "liger_kernel", "liger_kernels", "fused_kernels", "rmsnorm", "elementwise"),
    titles=("fused_norm_rotary_gate_and_loss_liger",),
)
