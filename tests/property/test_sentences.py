"""Sentences over any shares and any nodes: the subject is the largest part, places are those of the largest parts."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from helpers.program import MS, US, Program
from helpers.sentences import BY_CPU, COMPILES, REST, SUBJECTS, value
from hypothesis import example, given
from hypothesis import strategies as st

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.cpu.evidence import MOST_PARTS, spans
from gpuprof.diagnosis.result.diagnosis import Kernels
from gpuprof.diagnosis.verdict.rest_of_step import MOST_OF_REST, rest_of_step

KERNELS = Kernels(300, 100.0, 0, 3_000, 0, (), (), (), ())
idle = st.dictionaries(st.sampled_from(sorted(SUBJECTS)), st.integers(1_000, 10**9), min_size=1)


@given(idle, st.integers(0, 10**9), st.booleans())
@example({"allocator": 1_000, "communication": 1_000, "device": 1_000}, 0, True)
@example({"input": 33_200, "transfer": 33_200, "device": 33_200}, 0, True)
def test_the_subject_is_the_largest_part_and_most_is_half_at_least(idle_ns, compiling_ns, alone):
    said = rest_of_step(idle_ns, KERNELS, compiling_ns, alone)
    match = REST.search(said)
    assert match is not None, said
    whole = sum(idle_ns.values())
    if match["what"].startswith(COMPILES):
        assert compiling_ns > whole / 2
        part = sum(idle_ns.get(cause, 0) for cause in (*BY_CPU, "slow_call"))
    else:
        named = [cause for cause, begin in SUBJECTS.items() if match["what"].startswith(begin)]
        assert len(named) == 1
        mine = {cause: BY_CPU if cause in BY_CPU else (cause,) for cause in idle_ns}
        parts = {cause: sum(idle_ns.get(one, 0) for one in mine[cause]) for cause in idle_ns}
        part = parts[named[0]]
        assert part == max(parts.values())
        assert idle_ns[named[0]] == max(idle_ns.get(one, 0) for one in mine[named[0]])
    assert (match[2] is None) == (part >= MOST_OF_REST * whole)
    if match[2] is not None:
        units = {"s": 1e9, "ms": 1e6, "µs": 1e3}
        assert value(match[2]) == pytest.approx(part / units[match["own"] or match["unit"]], rel=0.05)
        assert value(match[4]) == pytest.approx(whole / units[match["unit"]], rel=0.05)
    assert not (alone and re.search(r"\branks?\b", said))


@cache
def program() -> Analysis:
    """Kernels and host segments of many lengths, some far apart, on the host and on the GPU."""
    made = Program()

    def body() -> None:
        for i in range(30):
            made.op("aten::mul", "void elementwise", gpu=(i % 7 + 1) * 10 * US, host=20 * US)
            if i % 5 == 4:
                made.python(1 * MS)
                made.item()
        made.backward(made.small_mm, 10)

    for _ in range(3):
        made.step(body)
    return made.case(Path(mkdtemp()))


@given(st.data(), st.booleans())
def test_places_are_the_longest_of_the_parts_that_hold_most(data, waits):
    case = program()
    graph = case.graph
    chosen = data.draw(st.lists(st.integers(0, len(graph) - 1), max_size=40, unique=True))
    nodes = np.zeros(len(graph), bool)
    nodes[chosen] = True
    statement, *places = spans(case, "something", nodes, waits=waits)
    assert statement.text == "something" and len(places) <= MOST_PARTS
    mine = nodes & (graph.waits == waits)
    assert bool(places) == bool(mine.any())
    if not places:
        return
    recorded = (graph.recorded_end_ns - graph.recorded_start_ns).clip(0)
    ns = recorded if waits else graph.duration_ns
    on_gpu = (places[0].where or "").startswith("GPU")
    kind = mine & (graph.on_gpu == on_gpu)
    whole = case.per_step(float(ns[kind].sum()))
    assert whole >= case.per_step(float(ns[mine & ~kind].sum())), "of GPU and CPU time the larger"
    parts = [place.part_ns or 0 for place in places]
    assert parts == sorted(parts, reverse=True) and len({place.part for place in places}) == len(places)
    assert sum(parts) <= whole + len(parts), "parts do not overlap"
    assert parts[0] * len(chosen) >= whole - len(chosen), "the first is the largest"
    low = case.timeline.window[0] - case.origin_ns
    for place in places:
        assert place.start_ns is not None and place.ns is not None
        begun = graph.recorded_start_ns + low - place.start_ns
        inside = kind & (begun >= -1) & (begun + recorded <= place.ns + 1)
        assert inside.any(), "a place holds what it is about"
