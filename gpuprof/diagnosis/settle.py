"""How it is settled whether a fix gains: the command that makes it from outside and measures it."""

from __future__ import annotations

import re

from gpuprof.record.patches import NAMES

_WORKERS = re.compile(r"num_workers=(\d+)")
_MULTIPLE = re.compile(r"pad_to_multiple_of=(\d+)")


def patch_of(finding: str, title: str, fix: str) -> tuple[str, str] | None:
    """Name and value (empty: its default) of the patch that does what a finding's fix says; None where it has to be
    made by hand."""
    name, value = finding, ""
    if finding == "autocast" and not title.startswith("bf16"):
        return None  # the patch has no gradient scaler, which fp16 needs
    if finding == "input_workers":
        value = _first(_WORKERS, fix)
    elif finding == "recompiles" and "enable_cudnn_sdp" not in fix.splitlines()[0]:
        name, value = "pad_to_multiple", _first(_MULTIPLE, fix)
    return (name, value) if name in NAMES else None


def settling_command(finding: str, title: str, fix: str) -> str | None:
    """`gpuprof try --fix input_workers=8`, to which the training's own command is added; None where the fix has to be
    made by hand."""
    found = patch_of(finding, title, fix)
    if found is None:
        return None
    name, value = found
    return f"gpuprof try --fix {name}{f'={value}' if value else ''}"


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
