"""Proposals for a model that was passed to torch.compile but runs eagerly: what it takes once it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.batches.micro_batches import micro_batches
from gpuprof.diagnosis.detect.compiled.captured_graphs import graphed
from gpuprof.diagnosis.detect.compiled.compile_time import compile_ns
from gpuprof.diagnosis.detect.compiled.compiled_passes import compiled, shapes_vary, whole_passes
from gpuprof.diagnosis.detect.compiled.foreseen_breaks import with_calls
from gpuprof.diagnosis.detect.declared.proposal import LEAST_GAIN, Proposal
from gpuprof.diagnosis.detect.passes import siblings
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import Fix, call
from gpuprof.projection.changes.batch import model_phases
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.run_folder.compiler import CompiledFunction
from gpuprof.tracefile.trace import ANNOTATION

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change


def compiled_after_all(
    case: Analysis,
    title: str,
    evidence: Sequence[Evidence],
    fix: Fix,
    key: str,
    calls: float = 1.0,
    needs: str = "",
    odds: float = 1.0,
) -> Iterator[Proposal]:
    """The passes compiled, and then with CUDA graphs. calls: of the function per step; each is a separate graph."""
    found = whole_passes(case)
    if found is None:
        return
    kernels = float(model_phases(case.graph)[case.graph.on_gpu].sum()) / case.graph.steps

    def compile_to(way: int) -> Change:
        return with_calls(compiled(found, way), found, max(calls - 1.0, 0.0), way)

    def capture_to(way: int) -> Change:
        return graphed(found, way)

    whole = compile_to(1)
    both: list[tuple[str, Fix, Callable[[int], Change], str, tuple[str, ...]]] = [(title, fix, compile_to, key, ())]
    if not shapes_vary(case) and LEAST_GAIN * case.step_of(capture_to(1)(case.graph)) < case.step_of(whole(case.graph)):
        with_graphs = fix + "\nand then " + call("torch.compile", ..., mode="reduce-overhead")
        parts = (title, "CUDA graphs")
        both.append((f"{title}, and CUDA graphs", with_graphs, capture_to, f"{key}_graphs", parts))
    for name, how, change, each, parts in both:
        yield Proposal(
            title=name,
            evidence=tuple(evidence),
            fix=how,
            change=change(1),
            best=change(0),
            worst=change(2),
            once_ns=compile_ns(kernels / max(micro_batches(case) or 1, 1), shapes_vary(case)),
            claims=("small_kernels", "compiled_code"),
            launches=True,
            last=True,
            needs=needs,
            odds=odds,
            parts=parts,
            key=each,
        )


def calls_of(case: Analysis, function: CompiledFunction) -> float:
    """Calls per step of a function that runs eagerly: outermost ops of the forward passes / ops of the function's
    graph; 1 if it is most of a pass, or if its graph is unknown."""
    if not function.ops:
        return 1.0
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    rows, _ = siblings(case)
    above = climb(parent[rows], parent, ops.kind != ANNOTATION)
    return max(case.per_step(float(np.count_nonzero(above < 0))) / function.ops, 1.0)
