"""docs/architecture.md is up to date, and the path it describes is the one that a recording takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

from benchmarks import architecture_page

RECORDING = ROOT / "tests" / "data" / "pairs" / "tiny.json.gz"
_FOLLOW = """
import sys
from gpuprof.cli import main

wanted, seen = dict.fromkeys(sys.argv[3:]), []

def note(frame, event, argument):
    if event == "call":
        name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        if name in wanted and name not in seen:
            seen.append(name)

sys.setprofile(note)
code = main(["report", sys.argv[1], "-o", sys.argv[2]])
sys.setprofile(None)
print(*seen, sep="\\n")
sys.exit(code)
"""


def test_the_page_is_the_one_that_is_written():
    assert architecture_page.PAGE.read_text(encoding="utf-8") == architecture_page.page(), (
        "run python -m benchmarks.architecture_page"
    )


@pytest.mark.slow
def test_a_report_passes_these_functions_in_this_order(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", _FOLLOW, RECORDING, tmp_path / "report.html", *architecture_page.WAY],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(architecture_page.WAY)


def test_every_room_has_a_line():
    rooms = {path.stem for path in architecture_page.PACKAGE.iterdir() if path.suffix in ("", ".py")}
    shown = {line.split("`")[1] for line in architecture_page.rooms()}
    assert shown == rooms - {"__init__", "__main__", "__pycache__", "data", "schema"}
