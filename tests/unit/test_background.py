"""Work in another thread ends as it would have in this one."""

from __future__ import annotations

import os
import threading

import pytest

from gpuprof.tracefile import background
from gpuprof.tracefile.background import Background


@pytest.mark.parametrize("count", [1, 2])
def test_results_and_errors_come_when_asked_for(count: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background, "processors", lambda: count)
    one = Background()
    begun = [one.begin(divmod, 7, k) for k in (2, 3)]
    assert [found() for found in begun] == [(3, 1), (2, 1)]
    where = one.begin(threading.get_ident)()
    assert (where == threading.get_ident()) == (count == 1)


def test_an_error_is_raised_to_who_asks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background, "processors", lambda: 2)
    found = Background().begin(divmod, 1, 0)
    with pytest.raises(ZeroDivisionError):
        found()


def test_small_work_stays_here():
    assert Background(worth_it=False).begin(threading.get_ident)() == threading.get_ident()


def test_processors_are_those_that_may_be_used():
    assert background.processors() == len(os.sched_getaffinity(0))


def test_its_thread_ends_with_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background, "processors", lambda: 2)
    one = Background()
    thread = one.begin(threading.current_thread)()
    del one
    thread.join(10)
    assert not thread.is_alive()
