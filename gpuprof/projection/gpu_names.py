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
    module = _module_variant(exact or matching)
    if module is not None:
        return module
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


def variant_note(text: str) -> str | None:
    """What to say where `gpu_named` chose one of several variants: the SXM module instead of the PCIe card."""
    gpu, words = gpu_named(text), _words(text)
    if find(text, None, load_gpus()) is not None or "SXM" not in gpu.name or any(w.startswith("sxm") for w in words):
        return None
    others = [
        one.name
        for one in load_gpus()
        if one.name != gpu.name and _begins(_words(one.name), words) and _without_form(one) == _without_form(gpu)
    ]
    return f"{text} is taken as {gpu.name}; the other variant is {', '.join(others)}" if others else None


def _module_variant(gpus: list[Gpu]) -> Gpu | None:
    """The one SXM module among variants that otherwise have the same name: it is what most machines for training
    hold."""
    if len({_without_form(gpu) for gpu in gpus}) != 1:
        return None
    modules = [gpu for gpu in gpus if "SXM" in gpu.name]
    return modules[0] if len(modules) == 1 else None


def _without_form(gpu: Gpu) -> str:
    """`a100 80gb` of `A100 SXM4 80GB` and `A100 PCIe 80GB`."""
    return " ".join(word for word in _words(gpu.name) if not re.match(r"sxm\d*$|pcie$", word))


def _begins(names: list[str], words: list[str]) -> bool:
    """Whether each word begins one of the names."""
    return all(any(name.startswith(word) for name in names) for word in words)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word not in ("", "nvidia", "amd", "geforce")]
