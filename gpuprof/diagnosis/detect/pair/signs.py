"""Signs of a change between two recordings that more than one finding looks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.compiled_code import COMPILED_SHARE
from gpuprof.diagnosis.detect.pair.candidates import MODEL, Candidate, claim_model
from gpuprof.diagnosis.detect.pair.quantities import MOST_WORK_LEFT, Quantity, kernel_counts, kernel_ns, quantity
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.detect.pair.facts import Facts

IN_GRAPHS: Assumed[Share] = 0.3
"""A step counts as using CUDA graphs if they launch this share more of its kernels than on the other side."""
LONG_IDLE: Assumed[Share] = 0.02
"""Smallest share of a step of waiting that is named."""


def fewer_kernels(a: Facts, b: Facts, categories: tuple[str, ...] = ()) -> float:
    """Difference in kernels of these categories (empty means all) in the model's passes; at least 1."""
    return max(kernel_counts(a, b, categories, MODEL).difference, 1.0)


def fewer_launches(a: Facts, b: Facts) -> float:
    """Difference in launching calls; at least 1."""
    return max(quantity(a, b, lambda side: side.counts.launches).difference, 1.0)


def advised(a: Facts, b: Facts, name: str, amount: Quantity) -> bool:
    """Whether the side with more of something has the finding, and the other side does not."""
    more, fewer = (a, b) if amount.a > amount.b else (b, a)
    return more.finding(name) is not None and fewer.finding(name) is None


def alike_compiled(a: Facts, b: Facts) -> bool:
    """Whether both run compiled code, or both eager code."""
    return (a.counts.compiled >= COMPILED_SHARE) == (b.counts.compiled >= COMPILED_SHARE)


LOSS = ("loss", "softmax")
"""Categories of the kernels of a loss."""


def less_loss(a: Facts, b: Facts, name: str, title: str) -> Iterator[Candidate]:
    """Less time in the loss, if only the side with more has the finding."""
    took = kernel_ns(a, b, LOSS)
    if advised(a, b, name, took) and took.fell(to=MOST_WORK_LEFT, least=0.0) and alike_compiled(a, b):
        yield Candidate(
            name,
            title,
            f"kernels of the loss take {took.ms} ms of GPU time a step",
            claim_model((*LOSS, "cast/copy", "elementwise", "gemm"), 1.0),
            took.more,
        )


def graph_shares(a: Facts, b: Facts) -> Quantity:
    """Share of kernels launched by CUDA graphs, 0 to 1."""
    return quantity(a, b, lambda side: side.counts.graph_kernels / side.counts.total if side.counts.total else 0.0)


def other_graphs(a: Facts, b: Facts) -> bool:
    """Whether one side launches many more of its kernels with CUDA graphs."""
    return graph_shares(a, b).difference >= IN_GRAPHS


def long_wait_ns(a: Facts, b: Facts) -> float:
    """Smallest waiting time that is named, ns."""
    return LONG_IDLE * max(a.side.step_ns, b.side.step_ns)
