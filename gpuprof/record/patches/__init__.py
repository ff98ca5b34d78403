"""What `gpuprof try` applies to a training from outside: one file per fix, named after its finding.

A file holds `PATCH`, which says what it does, and `apply(context)`, which hooks into the libraries as they are imported
and returns the proof: a function, called when the training has been timed, that says whether the patch took effect.
Everything here runs in the training's own process: standard library and the training's own torch only.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

NAMES = (
    "input_workers",
    "pageable_copies",
    "tf32",
    "autocast",
    "adapter_casts",
    "eager_attention",
    "planning",
    "pad_to_multiple",
    "recompute",
    "optimizer",
    "compile",
    "cuda_graphs",
    "larger_batch",
    "expert_loop",
    "syncs",
    "allocator",
    "channels_last",
    "trainer_arguments",
)
"""Patches, in the order in which they are listed and applied."""
WORKERS, BATCH = "input_workers", "larger_batch"
"""Patches whose values are a number of loader workers, and how many times the batch."""
FORMERLY = {"recompiles": "planning"}
"""Names that patches had in older versions."""
PROBE = "probe"
"""Not a fix, and not listed: what `gpuprof fit` changes."""


def patch_at(path: str) -> Any:
    """The module of a patch in a file of its own, as a plug-in brings it, loaded as if it were one of these: it may
    import from `.context`. Raises ImportError, or whatever it raises itself."""
    name = f"{__name__}._at_{abs(hash(path)):x}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not a Python file")
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def patch_named(name: str) -> Any:
    """The module of a patch. Raises KeyError for an unknown name."""
    name = FORMERLY.get(name, name)
    if name not in (*NAMES, PROBE):
        raise KeyError(name)
    return import_module(f"{__name__}.{name}")
