"""The recall benchmark's arithmetic: gains from turns, shares, reliability; on made-up pairs with known figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gpuprof
from benchmarks import recall, recall_pairs
from benchmarks.recall import WITH_HEAD, _is_piece, _made, _proposed
from benchmarks.recall_page import reliability, section, summary, with_section
from benchmarks.recall_pairs import Gain, Pair, Program, Timed, gain_of
from gpuprof.diagnosis.result.finding_model import Considered
from scenarios.catalogue import scenario

SHOWN = Pair("a", "test", "x", "compile", Gain(1.2, 1.25, 1.3), "fixes", 1, (1.1, 1.3, 1.5), 0.95)
TRIED = replace(SHOWN, change="y", where="worth_trying", rank=4, predicted=(1.0, 1.1, 1.15), probability=0.6)
MISSED = replace(SHOWN, program="b", where="absent", rank=None, predicted=None, probability=None)
LOST = replace(SHOWN, program="b", change="z", gain=Gain(0.9, 0.95, 0.99))
SMALL = replace(SHOWN, program="c", where="worth_trying", gain=Gain(1.0, 1.01, 1.02), probability=0.55)
FAILED = replace(SHOWN, program="d", gain=Gain(0.0, 0.0, 0.0))


def test_a_gain_is_that_of_equal_work_turn_by_turn():
    found = gain_of([100.0, 120.0], [50.0, 40.0])
    assert (found.low, found.middle, found.high) == (2.0, pytest.approx(110 / 45), 3.0)
    assert gain_of([100.0], [200.0], 4.0).middle == 2.0
    assert gain_of([100.0], []) == Gain(0.0, 0.0, 0.0), "it did not run"


def test_shares():
    found = {name: (one.hits, one.of) for name, one in summary([SHOWN, TRIED, MISSED, LOST, SMALL, FAILED]).items()}
    assert found["shown"] == (2, 3) and found["in the first three"] == (1, 3)
    assert found["gain in the interval"] == (1, 2), "1.0 to 1.15 does not meet 1.2 to 1.3"
    assert found["Fixes that gained"] == (1, 3) and found["Fixes that failed or lost"] == (2, 3)
    assert found["Worth trying that gained"] == (1, 2)


def test_reliability_is_by_class():
    (low, high, mean, share), *_ = reliability([TRIED, SMALL, SHOWN])
    assert (low, high, share.hits, share.of) == (0.5, 0.7, 1, 2) and mean == pytest.approx(0.575)


def test_the_section_is_replaced_and_not_added_twice():
    page = "# Accuracy\n\nText.\n\n## Next\n\nRest.\n"
    once = with_section(page, section([SHOWN, MISSED]))
    twice = with_section(once, section([SHOWN]))
    assert once.count("## Recall") == twice.count("## Recall") == 1
    assert twice.endswith("\n## Next\n\nRest.\n") and "- b, x: 1.25×" in once and "- b, x" not in twice


def test_a_miss_says_what_makes_the_measurement_doubtful():
    """Two unchanged processes of 100 and 130 ms do not confirm 1.2×; a second run of the program measured nothing."""
    gain = gain_of([100.0, 130.0], [95.0, 96.0])
    assert gain.scatter == pytest.approx(1.3) and not gain.stands_out
    assert gain_of([100.0, 104.0], [80.0, 82.0]).stands_out
    missed, again = replace(MISSED, gain=gain), replace(MISSED, program="b_again", gain=Gain(1.0, 1.01, 1.02))
    text = section([missed, again])
    assert "- b, x: 1.20× (unchanged processes differ by up to 1.30×) (another run of the program: 1.01×);" in text
    assert [str(one) for one in summary([missed, again]).values()][1] == "none"


def test_fixes_that_were_made_together_are_shown_where_all_of_them_are():
    program = recall.of_scenario(scenario("programs/trainer_defaults"))
    assert program is not None
    both = next(one for one in program.changes if one.name == "bf16_workers")
    assert (both.finding, both.also) == ("autocast", ("input_workers",))
    found = gpuprof.diagnose(program.path)
    alone = {one.id: one for one in (*found.findings, *found.worth_trying)}
    pair = recall._pair(program, both, found)
    assert pair.shown == {"autocast", "input_workers"}.issubset(alone)
    less = replace(both, also=("no_such_finding",))
    assert recall._pair(program, less, found).why == "no_such_finding is not shown"
    combined = set(found.combined.ids) if found.combined else set()
    assert (pair.predicted is None) == (combined != {"autocast", "input_workers"})
    first, hidden = found.findings[0], found.considered[0]
    entry = replace(first, title="both", parts=(first.title, hidden.title))
    assert recall.ids_of(entry, found) == {first.id, hidden.id} and recall.ids_of(first, found) == {first.id}


def test_first_contact_is_kept_apart(tmp_path, monkeypatch):
    """What is said about a program before its truth is known is kept separate from what is said after rules were
    mended."""
    path = tmp_path / "first.json"
    outside = replace(SHOWN, change="w", gain=Gain(1.6, 1.7, 1.8))
    recall_pairs.keep([outside, MISSED, replace(SHOWN, role="fit")], path)
    assert recall_pairs.kept(path)[0] == outside
    monkeypatch.setattr(recall_pairs, "FIRST_CONTACT", path)
    _, _, text = section([SHOWN]).partition("first contact")
    assert "| gained 10 %: shown in either list | 1 of 2 " in text
    assert "- a, w: 1.70×; 1.30× (1.10 to 1.50)" in text
    monkeypatch.setattr(recall_pairs, "FIRST_CONTACT", tmp_path / "none")
    assert "first contact" not in section([SHOWN])


def test_a_program_is_met_for_the_first_time_once(tmp_path, monkeypatch, capsys):
    known, new = (Program(name, "test", tmp_path, ()) for name in ("known", "new"))
    kept, first = tmp_path / "recall.json", tmp_path / "first.json"
    recall_pairs.keep([replace(SHOWN, program="known")], kept)
    monkeypatch.setattr(recall_pairs, "KEPT", kept)
    monkeypatch.setattr(recall_pairs, "FIRST_CONTACT", first)
    asked = []
    for _ in range(2):
        chosen = recall_pairs.not_met([known, new])
        asked.append([one.name for one in chosen])
        recall_pairs.keep([replace(SHOWN, program=one.name) for one in chosen], first)
    assert asked == [["new"], []]


def test_a_fix_in_pieces_predicts_only_a_change_of_the_same_pieces():
    """The fix omits gates, which would lose; all pieces at once are another change, of which it shows only a part."""
    fix = Considered("fused_elementwise", "fused norm, rotary and loss (Liger)", "")

    def change(title: str) -> Timed:
        return Timed("x", "fused_elementwise", title, 1.0, SHOWN.gain)

    each = ("norms, rotary embedding, loss", "norms", "norms, rotary embedding, gates, " + WITH_HEAD, "gates")
    assert [_is_piece(change(title), fix) for title in each] == [True, True, True, False]
    assert [_made(change(title)) == _proposed(fix) for title in each] == [True, False, False, False]
