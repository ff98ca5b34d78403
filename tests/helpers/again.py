"""Tests that compare durations run again where they fail: other programs may have used the CPUs at that moment."""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol

MARKER = "measures_time"
TIMES = 3
"""A test that fails this many times in a row fails."""
PROPERTY = "run again"


def run_again(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Runs a marked test until it passes, TIMES times at most; only the last run is reported. None: it is not marked,
    and pytest runs it."""
    if item.get_closest_marker(MARKER) is None:
        return None
    place = {"nodeid": item.nodeid, "location": item.location}
    item.ihook.pytest_runtest_logstart(**place)
    reports, times = runtestprotocol(item, nextitem=nextitem, log=False), 1
    while times < TIMES and any(one.failed for one in reports):
        reports, times = runtestprotocol(item, nextitem=nextitem, log=False), times + 1
    for one in reports:
        if times > 1 and one.when == "call":
            one.user_properties.append((PROPERTY, times))
        item.ihook.pytest_runtest_logreport(report=one)
    item.ihook.pytest_runtest_logfinish(**place)
    return True


def lines(reports: list[pytest.TestReport]) -> list[str]:
    """Which tests passed only when they ran again."""
    return [f"passed when run again: {one.nodeid}" for one in reports if PROPERTY in dict(one.user_properties)]
