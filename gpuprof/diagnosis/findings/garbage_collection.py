"""Python collects garbage in every step, or again and again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.collecting import (
    LEAST_COLLECTING_SHARE,
    PART_OF_COLLECTION,
    collecting,
    usual_collection_ns,
)
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import call, without_call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Share, Steps

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

STEPS_BETWEEN: Assumed[Steps] = 1_000
"""Proposed number of steps between collections, at which they cost next to nothing."""
LEFT_WHEN_FROZEN: Assumed[Share] = 0.15
"""Share of the time of collections that is left where the objects of the first steps are no longer looked at: those of
the modules, of the data and of the libraries are most of a process's."""

PAGE = Page(
    id="garbage_collection",
    title="Python collects garbage while the GPU waits",
    means="""
`gc.collect()` looks at every object of the process: with the modules, parameters and caches of a training these are
millions, which takes 50 to 300 ms. Nothing is launched meanwhile. Tensors are freed without it as soon as no variable
holds them: only reference cycles wait for a collection.
""",
    detected="""
The recorder measures each collection through Python's own callbacks. Collections must take at least 2 % of the step
in half of the timed steps or more, and the recorded steps must have a stretch of Python without ops that is at least
half as long. Collections in only some steps, as Python makes them by itself when many objects have been created (lists
of tokens, samples, strings), count if they add 2 % to the mean step.
""",
    gain=f"""
That stretch gets shorter by what collections take in the usual timed step. Where it was shorter than that in the
recorded steps, the rest is subtracted from the CPU's other time in the step. Of collections in some steps,
{percent(LEFT_WHEN_FROZEN)} % of what they add to the mean step is left (assumed).
""",
    wrong="""
Where reference cycles hold tensors, memory grows from one collection to the next: collect every few hundred steps,
and find what holds them (`gpuprof memory`).
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to collect rarely."""
    yield from _in_some_steps(case)
    found = collecting(case)
    if found is None:
        return
    at, usual_ns = found.nodes, found.usual_ns
    mask = np.zeros(len(case.graph), bool)
    mask[at] = True
    text = f"Python collects garbage for {duration(usual_ns)} in the usual {case.unit}, and launches nothing meanwhile"
    yield Proposal(
        title=f"no garbage collection in the {case.unit}",
        evidence=spans(case, text, mask),
        fix=without_call(f"gc.collect() only every {STEPS_BETWEEN} steps", "gc.collect")
        + "\nor, if Python collects by itself: "
        + call("gc.freeze").otherwise()
        + "  # after the first steps: objects that exist by then are not examined again",
        change=lambda graph: _without(graph, at, usual_ns),
        worst=lambda graph: _without(graph, at, 0.0, stretch_only=True),
        key="every_step",
    )


def _in_some_steps(case: Analysis) -> Iterator[Proposal]:
    """Proposes to keep Python from looking at all objects of the process again and again."""
    budget = case.budget if case.budget is not None and case.budget.source == "free" else None
    for one in budget.excess if budget is not None else ():
        adds = one.mean_ns or 0
        if budget is None or one.cause != "garbage_collection" or adds < LEAST_COLLECTING_SHARE * budget.mean_ns:
            continue
        often = f"{one.steps} of {budget.steps} timed {case.unit}s"
        often = f"one of {one.every} {case.unit}s" if one.every else often
        text = (
            f"Python collects garbage in {often}, which adds {duration(adds)} to the mean {case.unit}; nothing is"
            f" launched meanwhile"
        )
        yield Proposal(
            title="garbage collection of new objects alone",
            evidence=(Evidence(text),),
            fix=call("gc.collect")
            + ", then "
            + call("gc.freeze")
            + "  # once, after the start\nand tokens in arrays or tensors: Python looks at each object of a list",
            change=lambda graph: graph,
            lumps={one.cause: LEFT_WHEN_FROZEN},
            key="some_steps",
        )


def _without(graph: Graph, at: I64, usual_ns: float, *, stretch_only: bool = False) -> Graph:
    """The graph without collections of this length in these stretches; if a stretch is shorter, the rest is taken from
    other CPU time. `stretch_only`: only shortens the stretches."""
    duration = graph.duration_ns.copy()
    taken = duration[at] if stretch_only else np.minimum(duration[at], usual_ns)
    duration[at] -= taken
    lacking = np.maximum(usual_ns - taken, 0.0)
    host = ~graph.on_gpu & ~graph.waits & (graph.lane == graph.lane[at[0]])
    whole = np.bincount(graph.step[host], weights=duration[host], minlength=graph.steps)
    short = np.zeros(graph.steps)
    short[graph.step[at]] = lacking
    factor = 1 - np.divide(short, whole, out=np.zeros_like(whole), where=whole > 0).clip(0, PART_OF_COLLECTION)
    duration[host] *= factor[graph.step[host]]
    return graph.with_durations(duration)


def _absent(case: Analysis) -> str | None:
    usual_ns = usual_collection_ns(case)
    if usual_ns < LEAST_COLLECTING_SHARE * case.mean_ns:
        return None
    return (
        f"collections take {duration(usual_ns)} in the usual {case.unit}, and no stretch of Python in the recorded"
        f" {case.unit}s is as long"
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=Absent("no garbage collection in the step", _absent),
    ledger=LedgerItem(
        "Python's garbage collection in every step",
        "gc.collect() goes over all objects of the process, and the GPU gets no work meanwhile",
        stage="stalled",
        unadvised=True,
    ),
    synonyms=("gc", "gc_collect", "gc_freeze", "collect_garbage"),
    titles=("no_garbage_collection_in_the_step", "garbage_collection_of_new_objects_alone"),
)
