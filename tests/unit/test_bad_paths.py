"""Paths without a readable recording are refused in one line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from helpers.bad_input import Result, good, is_refused
from helpers.command import run

import gpuprof


@pytest.mark.parametrize("mode", ["text", "json"])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing.json", "no such file"),
        ("missing/trace.json", "no such file"),
        ("trace.json/inside.json", "cannot be read"),
        ("n" * 300, "cannot be read"),
        ("loop", "cannot be read"),
        (".", "is a folder"),
        ("folder", r"is a folder.*such as trace\.json"),
        ("others", "a manifest.json that is not one of gpuprof's, and no trace: name a recording"),
        ("/dev/null", "pipe or a device"),
        ("/dev/zero", "pipe or a device"),
        ("pipe", "pipe or a device"),
        ("/proc/self/mem", "cannot be read"),
        ("-", "standard input is not read"),
        ("broken.json", "broken.json: no such file: the link leads to gone.json"),
    ],
)
def test_paths_that_are_no_file(tmp_path: Path, path: str, says: str, mode: str, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    good().write(tmp_path / "trace.json")
    (tmp_path / "folder").mkdir()
    good().write(tmp_path / "folder" / "trace.json")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "manifest.json").write_text("{}")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken.json").symlink_to("gone.json")
    os.mkfifo(tmp_path / "pipe")
    code, out, err = run(capsys, "diagnose", path, *(["--json"] if mode == "json" else []))
    is_refused(Result(code, out, err, 0))
    assert re.search(says, err)


@pytest.mark.parametrize("path", ["", "missing.json", "a\0b.json", "n" * 5000, "\udcff.json"])
def test_the_library_raises_its_own_error(path: str):
    with pytest.raises(gpuprof.GpuprofError) as error:
        gpuprof.load(path)
    assert "\n" not in str(error.value)
