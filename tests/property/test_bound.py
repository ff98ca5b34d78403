"""What limits a step: one rule for all resources."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.case import case_of
from helpers.program import MS, US, Program
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.diagnosis.idle.gaps import find_gaps
from gpuprof.diagnosis.idle.hidden_work import hidden_ns
from gpuprof.diagnosis.recorded.shares import average_step, devices
from gpuprof.diagnosis.verdict.share_verdict import bound_of_shares, gains_of_shares
from gpuprof.replay.bound import EQUAL_SENSITIVITY, LEAST_SENSITIVITY, PARTS, RESOURCES, bound_of, capped
from gpuprof.replay.sensitivity import Sensitivities

SHARES = st.floats(0, 1.2, allow_nan=False)


@st.composite
def gains(draw: st.DrawFn) -> Sensitivities:
    """Gains of any resources, with a device whose parts make up some of its gain."""
    device = draw(SHARES)
    cuts = sorted(draw(st.tuples(*[st.floats(0, 1)] * 3)))
    parts = dict(zip(PARTS, (device * (b - a) for a, b in itertools.pairwise([0.0, *cuts])), strict=True))
    return Sensitivities(**{name: draw(SHARES) for name in RESOURCES if name != "device"}, device=device, **parts)


absences = st.none() | st.fixed_dictionaries(dict.fromkeys(RESOURCES, SHARES))
unknowns = st.just(0.0) | st.floats(0, 1)


def asked(found: Sensitivities, absent: dict[str, float] | None, unknown: float = 0.0) -> str | None:
    return bound_of(found, None if absent is None else absent.__getitem__, unknown)


def resource(found: Sensitivities, absent: dict[str, float] | None, unknown: float = 0.0) -> str | None:
    """The verdict with the device as a whole: only the device can be the limit through one of its parts."""
    bound = asked(replace(found, compute=found.device, memory=0.0, latency=0.0), absent, unknown)
    return "device" if bound == "compute" else bound


@given(gains(), absences, unknowns, st.floats(0, 1))
def test_gaining_more_never_loses_the_verdict(found, absent, unknown, more):
    bound = asked(found, absent, unknown)
    if bound is None or bound == "balanced":
        return
    raised = ["device", bound] if bound in PARTS else [bound]
    found = replace(found, **{name: getattr(found, name) + more for name in raised})
    if absent is not None and bound in RESOURCES:
        absent = {**absent, bound: absent[bound] + more}
    assert asked(found, absent, unknown) == bound


@given(gains(), absences, unknowns, st.permutations(RESOURCES))
def test_no_resource_is_preferred(found, absent, unknown, names):
    other = dict(zip(RESOURCES, names, strict=True))
    moved = replace(found, **{other[name]: getattr(found, name) for name in RESOURCES})
    absent_there = absent and {other[name]: absent[name] for name in RESOURCES}
    bound = resource(found, absent, unknown)
    assert resource(moved, absent_there, unknown) == other.get(bound, bound)  # type: ignore[call-overload]


@given(gains(), st.permutations(PARTS))
def test_no_part_of_the_device_is_preferred(found, names):
    other = dict(zip(PARTS, names, strict=True))
    found = replace(found, device=2.0, host=0.0, input=0.0, transfer=0.0, communication=0.0, compute=found.compute + 1)
    moved = replace(found, **{other[name]: getattr(found, name) for name in PARTS})
    bound = asked(found, None)
    assert asked(moved, None) == other.get(bound, bound)  # type: ignore[call-overload]


@given(gains(), absences)
def test_the_verdict_is_among_the_largest_and_worth_naming(found, absent):
    counted = found if absent is None else capped(found, absent.__getitem__)
    values = {name: getattr(counted, name) for name in RESOURCES}
    bound = resource(found, absent)
    assert bound is not None
    assert (bound == "balanced") or values[bound] > max(values.values()) - EQUAL_SENSITIVITY
    if max(values.values()) < LEAST_SENSITIVITY:
        assert bound == "balanced"


@given(gains(), absences, st.floats(EQUAL_SENSITIVITY, 0.4), st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_a_verdict_holds_whatever_the_unknown_time_turns_out_to_be(found, absent, unknown, parts):
    bound = resource(found, absent, unknown)
    if bound is None:
        return
    shares = [unknown * part / max(sum(parts), 1.0) for part in parts]
    turned_out = {name: getattr(found, name) + ns for name, ns in zip(RESOURCES, shares, strict=True)}
    assert resource(replace(found, **turned_out), absent) == bound


@st.composite
def serial_programs(draw: st.DrawFn) -> tuple[Program, dict[str, int]]:
    """Steps in which everything happens in sequence, and the ns of each resource per step."""
    took = {name: draw(st.integers(0, 20)) * MS for name in ("host", "input", "transfer", "device")}
    took["device"] += MS
    program = Program()
    for _ in range(4):
        program.step(lambda: _one_after_the_other(program, took))
    return program, took


def _one_after_the_other(program: Program, took: dict[str, int]) -> None:
    start = program.now
    program.python(took["input"])
    program.trace.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, program.now)
    if took["transfer"]:
        start = program.now
        done = program.launch(
            "Memcpy HtoD (Pageable -> Device)", (start, start + 2 * US), took["transfer"], cat="gpu_memcpy"
        )
        program.now = done + took["transfer"] + 2 * US
        program.trace.events[-2]["dur"] = program.now - start  # the call returns when the copy is done
        program.trace.op("aten::copy_", start, program.now)
    program.python(took["host"])
    program.mm(4096, 4096, 4096, gpu=took["device"])
    program.synchronize()


@given(serial_programs())
def test_shares_and_sensitivities_agree_where_nothing_overlaps(tmp_path_factory: pytest.TempPathFactory, made):
    program, took = made
    folder: Path = tmp_path_factory.mktemp("serial")
    case = case_of(program.trace.write(folder / "trace.json"), as_recorded=True)
    timeline = case.timeline
    gaps = find_gaps(timeline)
    (device,) = devices(timeline, gaps)
    shares = average_step(device, len(timeline.steps.start_ns))
    assert hidden_ns(timeline, gaps, 0) < 0.01 * shares.step_ns, "each waits for the other"
    by_shares, unknown = gains_of_shares(shares, {"compute": 1.0})
    assert unknown == 0
    total = sum(took.values())
    for name in RESOURCES:
        exact = took.get(name, 0) / total
        assert getattr(case.sensitivities, name) == pytest.approx(exact, abs=0.03), name
        assert getattr(by_shares, name) == pytest.approx(exact, abs=0.03), name
    first, second = sorted(took.values())[:-3:-1]
    if first - second > 2 * EQUAL_SENSITIVITY * total:
        one_part = replace(case.sensitivities, compute=case.sensitivities.device, memory=0.0, latency=0.0)
        assert bound_of_shares(shares, {"compute": 1.0}) == bound_of(one_part)
