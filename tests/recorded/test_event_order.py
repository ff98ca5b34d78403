"""The order of a recording's events changes nothing."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import msgspec
import pytest
from helpers.diagnosis_invariants import adds_up, numbers
from helpers.traces import WHOLE, resolve

import gpuprof


@pytest.mark.slow
@pytest.mark.parametrize("trace", WHOLE)
def test_the_order_of_a_whole_recording_changes_nothing(trace: Path | str, tmp_path: Path):
    with gzip.open(resolve(trace)) as file:
        text = file.read()
    members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    events = msgspec.json.decode(members.pop("traceEvents"), type=list[msgspec.Raw])
    random.Random(1).shuffle(events)
    shuffled = {**members, "traceEvents": msgspec.Raw(b"[" + b",\n".join(map(bytes, events)) + b"]")}
    plain_path, shuffled_path = tmp_path / "trace.json", tmp_path / "shuffled.json"
    plain_path.write_bytes(text)
    shuffled_path.write_bytes(msgspec.json.encode(shuffled))
    found = gpuprof.diagnose(shuffled_path)
    adds_up(found)
    assert numbers(found) == numbers(gpuprof.diagnose(plain_path))
