"""A trace that torch.profiler could not write is reported, instead of what failed because of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprof.record.windows.window import Window


class Silent:
    """Writes nothing and reports no error, as torch.profiler does on a full disk."""

    def export_chrome_trace(self, path: str) -> None:
        pass


def test_a_failed_write_is_named(tmp_path: Path):
    window = Window.__new__(Window)
    window._path = tmp_path / "trace.rank0.json"
    with pytest.raises(OSError, match=r"could not .*written.*ulimit -f|could not write .*ulimit -f"):
        window._export(Silent())
