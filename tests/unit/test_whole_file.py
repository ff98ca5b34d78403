"""A file is either written completely or unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprof.runfile import whole_file, write_json


def test_the_old_text_stays_until_the_new_one_is_whole(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_text_and_nothing_else(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"ne")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_as_long_as_a_file_system_takes_has_room_for_the_partial_one(tmp_path: Path):
    path = tmp_path / ("n" * 255)
    with whole_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_what_a_run_writes_is_for_its_owner(tmp_path: Path):
    path = tmp_path / "manifest.json"
    write_json(path, {"command": "café"})
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text("utf-8").endswith("}\n")
