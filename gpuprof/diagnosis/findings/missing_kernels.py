"""A library warns that it computes by a slow reference implementation, because a package with the kernel is missing.

A note says how much of the step such modules take, which is the most that the kernel could gain. It is listed under
*Worth trying* with the gain of a usual fused kernel: what this one gains is not known before it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import reference as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerParts
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.fused_kernels import Fused
from gpuprof.diagnosis.detect.gpu.fused_sequences import FILTER_WIDTHS, causal_convolutions
from gpuprof.diagnosis.detect.passes import backward_of
from gpuprof.diagnosis.result.diagnosis import Issue
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import as_fix, code
from gpuprof.diagnosis.result.run_model import Run
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.replay.transform import removed, scaled
from gpuprof.timeline.unit import STEP
from gpuprof.tracefile.trace import ANNOTATION, Mask
from gpuprof.units import Convention, Entries

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.tracefile.run_folder.program import Program, Warned

MOST_SHOWN: Convention[Entries] = 3
"""Warnings that the note quotes."""
SLOWLY = re.compile(r"fall(s|ing)? back|fallback|reference|fast.?path|slow(er|ly)?\b|not installed", re.IGNORECASE)
OF_KERNELS = re.compile(
    r"implementation|kernel|fast.?path|attention|flash|triton|apex|xformers|mamba|causal.conv1d|much slower|sdpa",
    re.IGNORECASE,
)
"""A warning of a slow path says both: that it is slow, and that it is about how something is computed."""
PROJECTION = re.compile(r"^aten::linear$|(Addmm|Mm|T|Linear)Backward0$")
"""Linear layers of such a module, forward and backward: they are fast as they are."""

PAGE = Page(
    id="missing_kernels",
    title="A slow reference implementation runs instead of a fast kernel",
    means="""
Some layers (gated delta rules, state-space scans, causal convolutions, some attentions) have fast kernels in separate
packages. If such a package is missing, the library computes the same with a sequence of ordinary torch ops, often a
Python loop over chunks, and reports it once in a warning that scrolls by.
""",
    detected="""
While it records, `gpuprof trace` reads the log messages and warnings of libraries. It keeps warnings that mention a
slow path and an implementation or kernel (at most 20, of 300 characters, secrets masked). Modules whose code calls
the function named in a warning get their own ranges in the recording.
""",
    gain=f"""
The note gives the share of GPU and CPU time that these modules take, without their linear layers, and the step time
without that work (by replay): a kernel cannot gain more. The predicted gain is that of a kernel that takes
{percent(calibrated.REFERENCE_LEFT.value)} % of their time ({percent(calibrated.REFERENCE_LEFT.low)} to
{percent(calibrated.REFERENCE_LEFT.high)} %, assumed), because a kernel that does not run cannot be timed; it is listed
under *Worth trying*, with a probability of {calibrated.KERNEL_ODDS.value:g} (assumed) that the package installs and
supports what runs here. Depthwise convolutions over two to four tokens (Mamba, gated delta rules) are predicted from
their shapes, even without a warning: one kernel of causal-conv1d per pass, with the SiLU after it, which reads and
writes the activation once forward, and reads two and writes one backward, at 65 % of the memory ceiling.
""",
    wrong="""
A kernel still takes some time, so the gain is less than the note's figure. Some kernels do not support every GPU,
type or head size, and then the library falls back although the package is installed. A warning may also refer to a
part of the program outside the training step.
""",
)


def note(run: Run | None, case: Analysis | None) -> Issue | None:
    """The warnings of slow paths, and how much of the step these may take; None without such warnings."""
    program = run.program if run else None
    warned = slow_paths(program) if program else []
    if program is None or not warned:
        return None
    quoted = "; ".join(f"“{each.text.rstrip('.')}” ({each.source or 'a warning'})" for each in warned[:MOST_SHOWN])
    more = f"; and {len(warned) - MOST_SHOWN} more" if len(warned) > MOST_SHOWN else ""
    unit = STEP if case is None else case.unit
    share = _share(program, case) or f" How much of the {unit} that takes is not known from this recording."
    return Issue(PAGE.id, "info", f"A slow path was used: {quoted}{more}.{share} See: gpuprof explain {PAGE.id}.")


def slow_paths(program: Program) -> list[Warned]:
    """Warnings that something is computed slowly."""
    return [each for each in program.warnings if SLOWLY.search(each.text) and OF_KERNELS.search(each.text)]


def _share(program: Program, case: Analysis | None) -> str:
    """How much of the step is in the modules that compute so; empty where the recording does not show them."""
    names = sorted({each.name for each in program.reference})
    nodes = None if case is None else modules_nodes(case, names)
    if case is None or nodes is None:
        return ""
    graph = case.graph
    host = (graph.lane >= 0) & ~graph.waits
    parts = [
        100 * float(graph.duration_ns[nodes & of].sum()) / max(float(graph.duration_ns[of].sum()), 1.0)
        for of in (graph.on_gpu, host)
    ]
    then = min(case.step_of(removed(graph, nodes)), case.step_ns)
    likely = [
        case.stated(min(case.step_of(scaled(graph, nodes, left)), case.step_ns))
        for left in calibrated.REFERENCE_LEFT.rising
    ]
    less = 100 * (1 - then / case.step_ns) if case.step_ns else 0.0
    count = sum(max(each.modules for each in program.reference if each.name == name) for name in names)
    return (
        f" The {count:,} modules of {', '.join(names[:MOST_SHOWN])} that compute so take {parts[0]:,.0f} % of the GPU's"
        f" and {parts[1]:,.0f} % of the CPU's time, linear layers excluded; without that work it would take"
        f" {duration(case.stated(then))} of {case.usual_step}. So a kernel gains up to {less:,.0f} %; if it takes"
        f" {percent(calibrated.REFERENCE_LEFT.value)} % of their time ({percent(calibrated.REFERENCE_LEFT.low)} to"
        f" {percent(calibrated.REFERENCE_LEFT.high)} %, assumed), the {case.unit} takes {duration(likely[1])}"
        f" ({duration(likely[0])} to {duration(likely[2])})."
    )


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes the kernel, with the gain of a usual fused one; for causal convolutions also without a warning."""
    program, names = case.run.program if case.run else None, _reference_modules(case)
    nodes = modules_nodes(case, names)
    if program is None or nodes is None or not nodes.any():
        yield from _convolutions(case)
        return
    gpu_ns = case.per_step(float(case.graph.duration_ns[nodes & case.graph.on_gpu].sum()))
    said = next((each.text for each in slow_paths(program)), "")
    text = (
        f"{', '.join(names[:MOST_SHOWN])} run a reference implementation, as a library warns: {duration(gpu_ns)} of GPU"
        f" time {case.unit.a}, linear layers excluded"
    )

    def to(left: float) -> Change:
        return lambda graph: scaled(graph, nodes, left)

    best, likely, worst = calibrated.REFERENCE_LEFT.rising
    yield Proposal(
        title="the package with the missing kernel",
        evidence=(Evidence(text), *([Evidence(f"“{said}”")] if said else [])),
        fix=as_fix("install the package that the warning names"),
        change=to(likely),
        best=to(best),
        worst=to(worst),
        needs="the package installs, and its kernel takes this GPU, these types and sizes",
        odds=calibrated.KERNEL_ODDS.value,
    )


def _convolutions(case: Analysis) -> Iterator[Proposal]:
    """causal-conv1d in place of depthwise convolutions over a few tokens, by their shapes."""
    found = causal_convolutions(case) if case.roofline is not None and not case.workload.is_inference else None
    if found is None:
        return
    fused = Fused(case, found)
    gpu_ns = case.per_step(float(case.graph.duration_ns[fused.gpu].sum()))
    count = case.per_step(float(len(found.stretches)))
    yield Proposal(
        title="causal convolutions (causal-conv1d)",
        evidence=(
            Evidence(
                f"{count:,.0f} depthwise convolutions over at most {max(FILTER_WIDTHS)} tokens, as"
                f" {case.per_step(float(fused.gpu.sum())):,.0f} kernels: {duration(gpu_ns)} of GPU time {case.unit.a}"
            ),
        ),
        fix=code("from causal_conv1d import causal_conv1d_fn")
        + "  # pip install causal-conv1d\n"
        + code('x = causal_conv1d_fn(x, conv.weight.squeeze(1), conv.bias, activation="silu")'),
        change=fused.change(1),
        best=fused.change(0),
        worst=fused.change(2),
        needs="the convolution is causal, and the package installs",
        odds=calibrated.KERNEL_ODDS.value,
        claims=("reference_ops",),
        key="convolutions",
    )


def _reference_modules(case: Analysis) -> list[str]:
    """Classes of modules for which a library warned of a reference implementation."""
    program = case.run.program if case.run else None
    return sorted({each.name for each in program.reference}) if program else []


def modules_nodes(case: Analysis, names: list[str]) -> Mask | None:
    """Nodes of the modules of these classes, forward and backward, without their linear layers; None if no range shows
    them."""
    if not names:
        return None
    ops, (low, high) = case.trace.ops, case.timeline.window
    named = re.compile(rf"nn\.Module: ({'|'.join(map(re.escape, names))})(_\d+)?$")
    ranges = case.ops_named(named.match) & (ops.kind == ANNOTATION) & (ops.start_ns >= low) & (ops.start_ns < high)
    rows = case.outermost(ranges)
    if not len(rows):
        return None
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    forward = Stretches.of(ops, rows)
    inside = (nodes_in(case.graph, forward) >= 0) | (nodes_in(case.graph, backward_of(case, forward)) >= 0)
    return inside & ~case.nodes_within(case.ops_named(PROJECTION.search)) & ~case.graph.waits


def ledger_parts(case: Analysis) -> Iterator[LedgerPart]:
    """Modules for which a library warned that it uses a slow reference implementation."""
    names = _reference_modules(case)
    nodes = modules_nodes(case, names)
    if nodes is None or not nodes.any():
        return
    left = calibrated.REFERENCE_LEFT.value
    yield LedgerPart(
        kind="gpu",
        what=f"a reference implementation in {', '.join(names[:MOST_SHOWN])}",
        nodes=nodes,
        change=partial(scaled, nodes=nodes, factor=left),
        reach=left,
        why="the package with its kernel is missing, as the library warns; a kernel is assumed to need"
        f" {percent(left)} % of the time",
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    note=note,
    ledger=LedgerParts(ledger_parts, stage="replaced"),
    synonyms=("fast_path", "flash_linear_attention", "causal_conv1d", "mamba", "fallback"),
    titles=("the_package_with_the_missing_kernel", "causal_convolutions_causal_conv1d"),
)
