"""GPUs by the names that people use."""

from __future__ import annotations

import difflib
import re

from gpuprof.costs.hardware import Gpu, find, load_gpus
from gpuprof.errors import GpuprofError
from gpuprof.units import Assumed, Convention, Names, Share

MOST_NAMED: Convention[Names] = 6
NAME_LIKENESS: Assumed[Share] = 0.4
"""Likeness of two names, as difflib has it, from which on one is proposed for the other."""
_VARIANT = re.compile(r"sxm\d*|pcie|nvl|\d+gb|workstation|max|q|server")
"""Words in a name that distinguish variants of one model."""


def gpu_named(text: str) -> Gpu:
    """The GPU with this name, or the only one with all of its words: `h100 sxm`, `rtx pro 6000 max-q`.

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
    variant = _usual_variant(exact or matching)
    if variant is not None:
        return variant
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
    near = [folded[name] for name in difflib.get_close_matches(text.lower(), folded, n=3, cutoff=NAME_LIKENESS)]
    hint = f"; nearest are {', '.join(near)}" if near else ""
    raise GpuprofError(f"no GPU named {text!r} is known{hint} (gpuprof gpus lists all, GPUPROF_GPUS adds more)")


def variant_note(text: str) -> str | None:
    """What to say where `gpu_named` chose one of several variants: `H100 is taken as H100 SXM5 80GB; …`."""
    gpu, known = gpu_named(text), load_gpus()
    if find(text, None, known) is not None:
        return None
    words = _words(text)
    variants = [one.name for one in known if _model(one) == _model(gpu) and _begins(_words(one.name), words)]
    others = [name for name in variants if name != gpu.name]
    if not others:
        return None
    return f"{text} is taken as {gpu.name}; other variants: {', '.join(others)}"


def _usual_variant(gpus: list[Gpu]) -> Gpu | None:
    """Among variants of one model, the SXM module with the most memory, the usual one in machines for training; if none
    is an SXM module, the first in the table."""
    if len({_model(gpu) for gpu in gpus}) != 1:
        return None
    modules = [gpu for gpu in gpus if "SXM" in gpu.name]
    return max(modules or gpus, key=lambda gpu: gpu.memory_bytes)


def _model(gpu: Gpu) -> tuple[str, ...]:
    """`a100` of `A100 SXM4 80GB` and `A100 PCIe 40GB`: the name without form, memory and edition."""
    return tuple(word for word in _words(gpu.name) if not _VARIANT.fullmatch(word))


def _begins(names: list[str], words: list[str]) -> bool:
    """Whether each word begins one of the names."""
    return all(any(name.startswith(word) for name in names) for word in words)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word not in ("", "nvidia", "amd", "geforce")]
