"""Closing a window costs the training the time to write the trace file, which is measured and reported."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, cast

import pytest

from gpuprof.record.recording.session_windows import Windows
from gpuprof.record.steps.step_clock import StepClock
from gpuprof.record.windows.window import Window

torch = pytest.importorskip("torch")

OPS, STEPS = 40, 3
EXPORT_S = 0.2


class NoRanges:
    """Ranges that do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Journal:
    """Keeps the messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tell = self.lines.append


def recorded(folder: Path, name: str) -> tuple[Window, Any, float]:
    """A closed window, torch's profiler of it, and the seconds for which its last call blocked."""
    window = Window(folder, 0, name, 1, 1, STEPS, NoRanges(), shapes=name == "trace")  # pyright: ignore[reportArgumentType]
    window.start({})
    profiler = window._profiler
    tensor, step, closed, took = torch.ones(4), 0, False, 0.0
    while not closed:
        step += 1
        for _ in range(OPS):
            tensor = tensor * 1.5
        begun = time.perf_counter()
        closed = window.step(step)
        took = time.perf_counter() - begun
    return window, profiler, took


@pytest.mark.parametrize("name", ["trace", "stacks", "memory"])
def test_no_event_becomes_a_python_object(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    parsed: list[int] = []
    monkeypatch.setattr(torch.autograd.profiler.profile, "_parse_kineto_results", lambda *_: parsed.append(1) or [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        window, profiler, _ = recorded(tmp_path, name)
    assert not parsed
    assert profiler.profiler._function_events is None
    text = (tmp_path / window.result["file"]).read_text() if window.result else ""
    assert text.count('"aten::mul"') == OPS * STEPS


def test_the_stop_and_the_export_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stop, export = torch.profiler.profile.stop_trace, torch.profiler.profile.export_chrome_trace

    def slow_stop(profiler: Any) -> None:
        time.sleep(EXPORT_S)
        stop(profiler)

    def slow_export(profiler: Any, path: str) -> None:
        time.sleep(EXPORT_S)
        export(profiler, path)

    monkeypatch.setattr(torch.profiler.profile, "stop_trace", slow_stop)
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", slow_export)
    window, _, took = recorded(tmp_path, "trace")
    assert window.result is not None
    assert 2 * EXPORT_S <= window.result["stop_ns"] / 1e9 <= took


def test_a_window_that_is_closed_early_is_measured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    export = torch.profiler.profile.export_chrome_trace

    def slow(profiler: Any, path: str) -> None:
        time.sleep(EXPORT_S)
        export(profiler, path)

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", slow)
    window = Window(tmp_path, 0, "trace", 1, 0, STEPS, NoRanges(), shapes=True)  # pyright: ignore[reportArgumentType]
    window.start({})
    window.step(1)
    window.stop(1)
    assert window.result is not None and window.result["steps"] == 1
    assert window.result["stop_ns"] >= EXPORT_S * 1e9


def test_the_line_says_how_long_the_training_stalled():
    clock, journal = StepClock("optimizer", lambda: None), Journal()
    clock.counted_steps = 30
    windows = Windows(Path(), 0, clock, journal, cast(Any, None), shapes=True)  # pyright: ignore[reportArgumentType]
    windows.tell_recorded({"steps": 3, "bytes": 125_000_000, "stop_ns": 2_340_000_000}, is_last=False)
    assert journal.lines == [
        "step 30: 3 steps recorded (125 MB); the training stalled 2.3 s while the profiler stopped"
    ]
