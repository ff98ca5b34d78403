"""What the tests share: recorded traces, HTA's interpreter, and what CI thinks of a skipped test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.paths import SHARED

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

ALLOWED_SKIPS: tuple[str, ...] = ()
"""Parts of skip reasons that CI accepts, each with a comment that says why. Empty is best."""


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded traces; a test that asks for it is skipped where there is none."""
    if not SHARED.is_dir():
        pytest.skip(f"no recorded traces at {SHARED} (set GPUPROF_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def hta_python() -> str:
    """An interpreter that has HolisticTraceAnalysis, which lives in a venv of its own (`make hta`)."""
    python = os.environ.get("GPUPROF_HTA_PYTHON")
    if not python:
        pytest.skip("no interpreter with HTA (make hta, then set GPUPROF_HTA_PYTHON)")
    return python


# A test that silently stopped running looks like one that passes, so in CI a skip is a failure.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Fail a test that was skipped in CI."""
    report = yield
    return _refuse_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """Fail a module that was skipped in CI."""
    report = yield
    return _refuse_skip(report)


def _refuse_skip(report):
    if not (IN_CI and report.skipped) or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(allowed in reason for allowed in ALLOWED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not accept: {reason}"
    return report
