"""What is made only once per session, for all its workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.once import once


def test_made_by_the_first_caller_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "data").write_text("made")

    first = once(tmp_path_factory, "test_once/first_caller", make)
    second = once(tmp_path_factory, "test_once/first_caller", make)
    assert first == second
    assert (first / "data").read_text() == "made"
    assert len(calls) == 1


def test_tried_again_after_a_failure_in_an_empty_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        once(tmp_path_factory, "test_once/failure", fail)
    folder = once(tmp_path_factory, "test_once/failure", lambda folder: (folder / "data").touch())
    assert {path.name for path in folder.iterdir()} == {"data", ".made"}
