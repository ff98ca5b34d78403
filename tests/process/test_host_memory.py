"""The peak host memory of a process."""

from __future__ import annotations

import subprocess
import sys

from helpers.paths import ROOT

MIB = 1 << 20
CHILD = """
import sys
from gpuprof.record.windows.memory import most_resident_bytes
begun = most_resident_bytes()
held = bytearray(b"x") * (100 << 20)
del held
print(begun, most_resident_bytes())
"""


def test_memory_of_the_parent_is_not_counted():
    """A process started by one with 600 MiB begins small, and its own 100 MiB still count after they are freed."""
    starts = "import subprocess as s, sys; held = bytearray(b'x') * (600 << 20); s.run([sys.executable, '-c', {!r}])"
    done = subprocess.run(
        [sys.executable, "-c", starts.format(CHILD)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    begun, ended = map(int, done.stdout.split())
    assert begun < 100 * MIB
    assert 90 * MIB <= ended - begun < 150 * MIB
