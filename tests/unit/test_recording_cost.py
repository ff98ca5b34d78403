"""What a recording took, part by part."""

from __future__ import annotations

from gpuprof.record.launcher.recording_cost import in_words, parts, recorded_until, verdict_parts

S = 1_000_000_000
STAGES = (("settle", 0), ("baseline_free", 2), ("baseline_sync", 4), ("sampling", 5), ("warmup", 9), ("trace", 10))


def rank(*more: tuple[str, int], stop_s: float = 1.5) -> dict[str, object]:
    return {
        "stages": [{"stage": name, "unix_ns": (100 + at) * S} for name, at in (*STAGES, *more)],
        "windows": [{"window": "trace", "stop_ns": round(stop_s * S)}] if more else [],
    }


def test_every_second_is_in_one_part():
    found = parts(rank(("after", 14)))
    assert found == {
        "settling": 2 * S, "baseline": 3 * S, "sampling": 4 * S, "recorded steps": 3.5 * S, "stall": 1.5 * S,
    }  # fmt: skip
    assert sum(found.values()) == 14 * S


def test_the_verdict_counts_from_the_last_recorded_step():
    document = rank(("after", 14))
    assert recorded_until(document) == 112.5 * S
    laps = [("until it was read", 113 * S), ("reading", 115 * S), ("diagnosing", 117 * S)]
    assert in_words(document, laps) == (
        "the recording took 14.0 s: settling 2.0 s, baseline 3.0 s, sampling 4.0 s, recorded steps 3.5 s, stall 1.5 s;"
        " the verdict came 4.5 s after the last recorded step: stall 1.5 s, reading 1.0 s, diagnosing 2.0 s"
    )
    assert sum(verdict_parts(document, laps).values()) == 4.5 * S


def test_samples_that_follow_the_recording_are_no_part_of_it():
    late = [("settle", 0), ("baseline_free", 2), ("warmup", 4), ("trace", 5), ("sampling", 9), ("after", 13)]
    document = {
        "stages": [{"stage": name, "unix_ns": at * S} for name, at in late],
        "windows": [{"window": "trace", "stop_ns": S}],
    }
    assert recorded_until(document) == 8 * S
    assert parts(document)["sampling"] == 4 * S


def test_what_is_not_known_is_left_out():
    assert recorded_until(rank()) is None
    assert "verdict" not in (in_words(rank(), [("reading", 117 * S)]) or "verdict")
    for odd in ({}, {"stages": None}, {"stages": [1, {"stage": "settle"}], "windows": [None, {"stop_ns": "x"}]}):
        assert in_words(odd, [("reading", 1)]) is None
