"""GPUs as people call them."""

from __future__ import annotations

import difflib
import re

from gpuprof.costs.hardware import Gpu, find, load_gpus
from gpuprof.errors import GpuprofError

MOST_NAMED = 6


def gpu_named(text: str) -> Gpu:
    """The GPU that bears the name, or the only one with all its words: `h100 sxm`, `rtx pro 6000 max-q`.

    Raises GpuprofError, one line with the nearest names, for none or several.
    """
    known = load_gpus()
    found = find(text, None, known)
    if found is not None:
        return found
    words = _words(text)
    matching = [
        gpu for gpu in known if words and all(any(w.startswith(word) for w in _words(gpu.name)) for word in words)
    ]
    exact = [gpu for gpu in matching if set(words) <= set(_words(gpu.name))]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if matching:
        names = [gpu.name for gpu in exact or matching]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        raise GpuprofError(f"{text!r} may be {', '.join(names[:MOST_NAMED])}{more}: say which")
    # Written together, such as h100sxm.
    joined = ["".join(_words(gpu.name)) for gpu in known]
    held = [gpu for gpu, name in zip(known, joined, strict=True) if words and "".join(words) in name]
    if len(held) == 1:
        return held[0]
    folded = {gpu.name.lower(): gpu.name for gpu in known}
    near = [folded[name] for name in difflib.get_close_matches(text.lower(), folded, n=3, cutoff=0.4)]
    hint = f"; nearest are {', '.join(near)}" if near else ""
    raise GpuprofError(f"no GPU named {text!r} is known{hint} (gpuprof gpus lists all, GPUPROF_GPUS adds more)")


def _begins(names: list[str], words: list[str]) -> bool:
    return all(any(name.startswith(word) for name in names) for word in words)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word not in ("", "nvidia", "amd", "geforce")]
