"""Independent computations at the same time."""

from __future__ import annotations

import threading

import pytest
from helpers.paths import ROOT

import gpuprof
from gpuprof.diagnosis.json import to_json
from gpuprof.tracefile import threads
from gpuprof.tracefile.threads import LARGE, both, each, processors

RECORDING = ROOT / "tests" / "data" / "tiny_lora_dataloader.json.gz"


def test_results_stand_in_the_order_of_the_items():
    for rows in (0, LARGE):
        assert each(lambda n: n * n, range(40), rows) == [n * n for n in range(40)]


def test_only_long_columns_get_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "processors", lambda: 3)
    here = threading.current_thread()
    assert all(each(lambda _: threading.current_thread() is here, range(9), LARGE - 1))
    assert not any(each(lambda _: threading.current_thread() is here, range(9), LARGE))


def test_one_of_several_threads_starts_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "processors", lambda: 3)

    def stays(_: int) -> bool:
        own = threading.current_thread()
        return all(each(lambda _: threading.current_thread() is own, range(5), LARGE))

    assert all(each(stays, range(9), LARGE))
    assert not stays(0), "the thread that is asked first"


def test_two_functions_at_the_same_time_return_both_results():
    assert both(lambda: 1, lambda: "two", LARGE) == (1, "two")


def test_the_first_failure_is_raised():
    def fails(n: int) -> int:
        if n > 3:
            raise ValueError(n)
        return n

    for rows in (0, LARGE):
        with pytest.raises(ValueError, match="4"):
            each(fails, range(9), rows)


@pytest.mark.parametrize(("wanted", "most"), [("1", 1), ("2", 2), ("none", threads.MOST)])
def test_fewer_threads_can_be_asked_for(wanted: str, most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", wanted)
    assert 1 <= processors() <= most


def test_a_diagnosis_by_several_threads_says_the_same(monkeypatch: pytest.MonkeyPatch):
    alone = to_json(gpuprof.diagnose(RECORDING))
    monkeypatch.setattr(threads, "LARGE", 0)
    monkeypatch.setattr(threads, "processors", lambda: 4)
    assert alone["findings"]
    assert to_json(gpuprof.diagnose(RECORDING)) == alone
