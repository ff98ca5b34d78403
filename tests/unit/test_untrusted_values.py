"""How the values of a run's files are read: what is invalid counts as missing, and nothing else does."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from helpers.paths import ROOT
from msgspec import Meta, Struct

from gpuprof import runfile
from gpuprof.record.phases.phase_names import GENERATION
from gpuprof.tracefile.run_folder import untrusted
from gpuprof.tracefile.run_folder.phase_logs import read_phase_logs
from gpuprof.tracefile.run_folder.run import Rank
from gpuprof.tracefile.run_folder.telemetry import Sample
from gpuprof.tracefile.run_folder.untrusted import Counts, Index, Key, Line, Positive, Text, Whole, read, read_all

JUNK: tuple[Any, ...] = (
    None, True, -1, 2.5, 1e300, math.nan, math.inf, 10**30, -(10**30), "", "a b", "\ud800", "x" * 3000, [], [None], {},
    {"\ud800": 1}, [[1]], {"a": {"b": []}},
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    name: Text
    count: Positive = 1


@dataclass(frozen=True)
class Whatever:
    index: Index | None
    deep: Annotated[Whole, Key("a", "b")] = 7
    line: Line | None = None
    same: Annotated[Part | None, Key()] = None
    parts: Annotated[tuple[Part, ...], Meta(max_length=3)] = ()
    two: Annotated[tuple[Whole, ...], Meta(min_length=2)] | None = None
    table: Annotated[dict[Annotated[str, Meta(max_length=3)], Whole], Meta(max_length=2)] | None = None
    words: list[str] | None = None
    facts: Counts | None = None


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, {}),
        ({"index": 3, "line": " a \n b "}, {"index": 3, "line": "a b"}),
        ({"line": "x" * 400}, {"line": "x" * 300}),
        ({"index": 2**31, "line": " ", "a": 3, "parts": {}, "two": 2, "table": [], "words": "a", "facts": [1]}, {}),
        ({"a": {"b": 2.6}}, {"deep": 3}),
        ({"a": {"b": -1}}, {}),
        ({"name": "n", "count": 0}, {"same": Part("n")}),
        ({"name": 3, "count": 5}, {}),
        ({"parts": [{"name": "a"}, 3, {"count": 2}, {"name": "b"}]}, {"parts": (Part("a"),)}),
        ({"two": [1, -1]}, {}),
        ({"two": [1, "x", 2.0]}, {"two": (1, 2)}),
        ({"table": {"abcd": 1, "b": None, "c": 3}}, {"table": {"abc": 1}}),
        ({"words": ["a", "b"]}, {"words": ["a", "b"]}),
        ({"words": ["a", 3]}, {}),
        ({"facts": {"n": -1, "x": [2, -2.0, math.nan]}}, {"facts": {"n": None, "x": [2, None, None]}}),
        ({"facts": {"t" * 3000: "t" * 3000}}, {"facts": {"t" * 2000: "t" * 2000}}),
    ],
)  # fmt: skip
def test_what_is_invalid_is_missing(document: dict[str, Any], expected: dict[str, Any]):
    assert read(Whatever, document) == Whatever(**{"index": None, **expected})


def test_other_values_than_objects_are_none():
    assert [read(Whatever, value) for value in JUNK if not isinstance(value, dict)] == [None] * 16
    assert read_all(Part, [{"name": "a"}, {"name": ""}, [], {"name": "b", "count": 2}]) == [Part("a"), Part("b", 2)]


class Inner(Struct):
    index: Index | None = None
    words: tuple[Text, ...] = ()


class Outer(Struct):
    step: Whole
    share: Annotated[float, Meta(ge=0, le=1)] | None = None
    inner: tuple[Inner, ...] = ()
    anything: Any = None


def test_a_struct_is_read_alike_as_a_whole_and_field_by_field(monkeypatch: pytest.MonkeyPatch):
    sound = {"step": 3, "share": 0.5, "inner": [{"index": 1, "words": ["a", "b"]}, {}], "anything": [1], "later": 2}
    documents = [sound]
    for place in _places(sound):
        documents += [_with(sound, place, junk) for junk in JUNK]
    quick = [read(Outer, one) for one in documents]
    monkeypatch.setattr(untrusted, "convert", _refuses_structs)
    assert repr([read(Outer, one) for one in documents]) == repr(quick) and len(quick) > 100
    assert read(Outer, sound) == Outer(3, 0.5, (Inner(1, ("a", "b")), Inner()), [1])


def _refuses_structs(value: Any, type: Any) -> Any:
    if type in (Inner, Outer):
        raise ValueError
    return _CONVERT(value, type)


_CONVERT = untrusted.convert


def test_one_damaged_value_costs_what_it_says_and_nothing_else():
    """Of a recorded rank: at most the one field that says it, and the version it stands for."""
    sound = json.loads((ROOT / "tests/data/runs/unsloth_qlora/rank0.json").read_text())
    whole = read(Rank, sound)
    assert whole is not None and whole.gpu and whole.model and len(whole.stages) == 6 and len(whole.versions) == 12
    lost = set()
    for place in _places(sound):
        found = read(Rank, _with(sound, place, -1))
        assert found is not None
        changed = [f.name for f in dataclasses.fields(Rank) if getattr(found, f.name) != getattr(whole, f.name)]
        assert len(changed) <= 1, place
        lost.update(changed)
        if place[0] == "stages" and len(place) == 3:
            assert len(found.stages) == (5 if place[2] == "stage" else 6), place
    assert lost == {
        "pid", "world_size", "versions", "gpu", "step_source", "steps_total", "steps_seen", "model",
        "optimizer", "loader", "stages", "windows",
    }  # fmt: skip


def test_a_damaged_sample_keeps_the_others_readings():
    sound = {"unix_ns": 5, "load1": 1.5, "gpus": [{"index": 0, "uuid": "GPU-A", "power_w": 300, "throttle": ["cap"]}]}
    (gpu,) = read(Sample, _with(sound, ("gpus", 0, "power_w"), 1e9)).gpus  # type: ignore[union-attr]
    assert (gpu.index, gpu.key, gpu.power_w, gpu.throttle) == (0, "a", None, ("cap",))
    assert read(Sample, _with(sound, ("unix_ns",), None)) is None


def test_spans_of_odd_phases_are_left_out(tmp_path: Path):
    span = {"phase": GENERATION, "thread": 1, "begin_ns": 10, "ns": 5, "cpu_begin_ns": 3, "cpu_ns": 2}
    head = {"unix_ns": 100, "monotonic_ns": 40, "pid": 7, "boot": "b", "program": "p", "host": "h"}
    lines = [head, span, *({**span, "phase": junk} for junk in JUNK)]
    (tmp_path / runfile.phases_file(7)).write_text("\n".join(map(json.dumps, lines)))
    (log,) = read_phase_logs(tmp_path)
    assert (log.pid, log.unix_offset_ns, log.program) == (7, 60, "p")
    assert [(mark.begin_ns, mark.end_ns, mark.cpu_end_ns) for mark in log.marks] == [(10, 15, 5)]


def _places(value: Any, place: tuple = ()) -> list[tuple]:
    """Every place inside a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in inner for found in ((*place, key), *_places(item, (*place, key)))]


def _with(document: Any, place: tuple, value: Any) -> Any:
    made = here = copy.deepcopy(document)
    for key in place[:-1]:
        here = here[key]
    here[place[-1]] = value
    return made
