"""Paths of single processes in an export: `report.sqlite#pid=4711`."""

from __future__ import annotations

import re
from pathlib import Path

_PROCESS = re.compile(r"(?P<path>.+)#pid=(?P<pid>\d{1,8})", re.DOTALL)


def split_process(path: Path) -> tuple[Path, int | None]:
    """(path of the export, pid or None). An existing file with such a name is that file."""
    match = _PROCESS.fullmatch(str(path))
    if not match or path.exists():
        return path, None
    return Path(match["path"]), int(match["pid"])


def with_process(path: Path | str, pid: int) -> str:
    """The path of one process of an export."""
    return f"{path}#pid={pid}"
