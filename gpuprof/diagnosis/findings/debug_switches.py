"""Switches for finding errors that are still on: anomaly detection, blocking launches, deterministic algorithms."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import latency
from gpuprof.calibration import slow as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import call, environment, without_call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import HOST
from gpuprof.replay.transform import removed, scaled, without_waits
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import FORWARD
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, F64, KERNEL, Mask
from gpuprof.units import Assumed, Ops, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.replay.graph import Graph

LEAST_SWITCH_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step for which a switch is reported."""
FEWEST_OPS: Assumed[Ops] = 8
"""Fewest checks per backward pass, or launches, that show a switch; a single one is the program's own."""
WRAPPED_SHARE: Assumed[Share] = 0.9
"""Smallest share of launches that end after their kernel, if launches block; a few do by chance on a slow GPU."""
NAN = "aten::isnan"
CHECKED = frozenset({NAN, "aten::_is_any_true", "aten::item"})
"""Ops that anomaly detection runs on each gradient."""
_SAME = "a switch for debugging; the training computes the same without it"

PAGE = Page(
    id="debug_switches",
    title="A switch for finding errors is still on",
    means="""
`torch.autograd.set_detect_anomaly(True)` records the Python stack of every forward op and checks every gradient for
NaN, waiting for the GPU each time. `CUDA_LAUNCH_BLOCKING=1` makes each launch wait until its kernel has ended.
`torch.use_deterministic_algorithms(True)` fills every uninitialised tensor and chooses slower kernels. All of them
help to find an error, and still cost time in every step once it is found.
""",
    detected=f"""
Anomaly detection: `aten::isnan` and `aten::_is_any_true` in the autograd engine's own ranges, {FEWEST_OPS} times a step
or more. Blocking launches: {percent(WRAPPED_SHARE)} % of the calls that launch kernels end after their kernel has
ended. Filled tensors: `aten::fill_` within `aten::empty` and similar ops. Each is reported from
{percent(LEAST_SWITCH_SHARE)} % of the step on.
""",
    gain=f"""
The gradient checks disappear, and so do their kernels and waits; {calibrated.TRACEBACK_LEFT.value:g} of the CPU's time
in forward ops is left ({calibrated.TRACEBACK_LEFT.low:g} to {calibrated.TRACEBACK_LEFT.high:g}, assumed). Launches take
what they take elsewhere (6 µs, 3 to 20), and the CPU runs ahead. Of kernels that fill new tensors
{calibrated.FILLED_AGAIN.value:g} of the time is removed ({calibrated.FILLED_AGAIN.low:g} to
{calibrated.FILLED_AGAIN.high:g}, assumed); the slower kernels of deterministic mode stay in the prediction.
""",
    wrong="""
Bitwise reproducible runs need deterministic algorithms; the filling alone can be left out:
`torch.utils.deterministic.fill_uninitialized_memory = False`.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to turn off each switch that is on."""
    yield from _anomaly(case)
    yield from _blocking(case)
    yield from _filled(case)


def _anomaly(case: Analysis) -> Iterator[Proposal]:
    checks = checks_of_gradients(case)
    count = int((checks & case.ops_named(NAN.__eq__)).sum())
    if count < FEWEST_OPS * case.steps:
        return
    graph = case.graph
    mine = case.nodes_within(checks)
    ahead = (
        (graph.phase == FORWARD) & (graph.resource == HOST) & ~graph.waits & (graph.lane == case.timeline.main_thread)
    )
    took = case.per_step(float(graph.duration_ns[mine & graph.on_gpu].sum()))

    def change(left: float):
        def changed(graph: Graph) -> Graph:
            free = removed(without_waits(graph, mine & graph.waits), mine & ~graph.waits)
            return scaled(free, ahead & ~mine, left)

        return changed

    best, usual, worst = (change(left) for left in calibrated.TRACEBACK_LEFT.rising)
    text = (
        f"{case.per_step(count):,.0f} gradients {case.unit.a} are checked for NaN: {duration(took)} of GPU"
        " time and as many waits; the Python stack of each forward op is recorded"
    )
    yield Proposal(
        title="no anomaly detection",
        evidence=spans(case, text, mine & ~graph.waits),
        fix=call("torch.autograd.set_detect_anomaly", False) + "  # on only while looking for a NaN",
        change=usual,
        best=best,
        worst=worst,
        claims=("values_read",),
        item=("anomaly detection", _SAME),
        key="anomaly",
    )


def checks_of_gradients(case: Analysis) -> Mask:
    """Ops with which anomaly detection checks a gradient, directly inside the engine's ranges."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    engine = np.append(case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE)), False)
    found = engine[parent] & case.ops_named(CHECKED.__contains__)
    nan = engine[parent] & case.ops_named(NAN.__eq__)
    # Reads in the engine's ranges without such a check are those of custom functions.
    with_nan = np.zeros(len(ops) + 1, bool)
    with_nan[parent[nan]] = True
    return found & with_nan[parent]


def _blocking(case: Analysis) -> Iterator[Proposal]:
    nodes = blocking_launches(case)
    if not nodes.any():
        return
    graph = case.graph
    now = np.maximum(graph.duration_ns, 1.0)
    took = case.per_step(float(graph.duration_ns[nodes].sum()))
    if took < LEAST_SWITCH_SHARE * case.step_ns:
        return
    each: list[F64] = [np.where(nodes, np.minimum(ns, now) / now, 1.0) for ns in latency.HOST_LAUNCH_NS.rising]
    text = (
        f"{case.per_step(nodes.sum()):,.0f} calls {case.unit.a} launch a kernel and return only when it has ended:"
        f" {duration(took)} of CPU time"
    )
    best, usual, worst = (partial(scaled, nodes=nodes, factor=left) for left in each)
    yield Proposal(
        title="launches that do not wait",
        evidence=spans(case, text, nodes),
        fix=without_call("without ", "os.environ") + environment("CUDA_LAUNCH_BLOCKING", "1"),
        change=usual,
        best=best,
        worst=worst,
        item=("launches that wait for their kernel", _SAME),
        key="blocking",
    )


def blocking_launches(case: Analysis) -> Mask:
    """Nodes of calls that launch a kernel and end after it has; none where most launches do not."""
    trace, links, graph = case.trace, case.timeline.links, case.graph
    rows = np.flatnonzero((trace.gpu.kind == KERNEL) & (links.call >= 0))
    call = links.call[rows]
    ended = trace.calls.end_ns[call] >= trace.gpu.end_ns[rows]
    if len(rows) < FEWEST_OPS * case.steps or ended.mean() < WRAPPED_SHARE:
        return np.zeros(len(graph), bool)
    calls = np.zeros(len(trace.calls), bool)
    calls[call] = True
    return case.nodes_in_calls(calls)


def _filled(case: Analysis) -> Iterator[Proposal]:
    parent = case.timeline.nesting.parent
    new = np.append(case.ops_named(lambda name: name.startswith("aten::empty")), False)
    rows = np.flatnonzero(case.ops_named("aten::fill_".__eq__))
    fills = np.zeros(len(case.trace.ops), bool)
    fills[rows[climb(parent[rows], parent, new) >= 0]] = True
    nodes = case.nodes_within(fills) & ~case.graph.waits
    graph = case.graph
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (nodes & graph.on_gpu, graph.on_gpu))
    if took < LEAST_SWITCH_SHARE * whole:
        return
    text = (
        f"{case.per_step(fills.sum()):,.0f} new tensors {case.unit.a} are filled before anything is written to them:"
        f" {duration(case.per_step(took))} of GPU time"
    )
    best, usual, worst = (partial(scaled, nodes=nodes, factor=1 - gone) for gone in calibrated.FILLED_AGAIN.falling)
    yield Proposal(
        title="no filling of new tensors",
        evidence=spans(case, text, nodes & graph.on_gpu),
        fix=call("torch.use_deterministic_algorithms", False)
        + "\nor, still deterministic: "
        + "torch.utils.deterministic.fill_uninitialized_memory = False",
        change=usual,
        best=best,
        worst=worst,
        item=("new tensors that are filled", _SAME),
        key="filled",
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    lowers=("waiting_for_gpu",),
    ledger=LedgerItem("a switch for debugging", _SAME, stage="stalled"),
    synonyms=(
        "anomaly", "detect_anomaly", "cuda_launch_blocking", "deterministic", "use_deterministic_algorithms", "debug",
    ),
    titles=("no_anomaly_detection", "launches_that_do_not_wait", "no_filling_of_new_tensors"),
)  # fmt: skip
