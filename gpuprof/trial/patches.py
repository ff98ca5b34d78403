"""The patches that a trial can apply: gpuprof's own, and those of plug-ins."""

from __future__ import annotations

from gpuprof.diagnosis.plug_ins import patches
from gpuprof.errors import GpuprofError
from gpuprof.record.patches import FORMERLY, NAMES, patch_at, patch_named
from gpuprof.record.patches.context import Patch


def names() -> tuple[str, ...]:
    """Names of all fixes: gpuprof's own in the order of application, then those of plug-ins."""
    return (*NAMES, *patches())


def current(name: str) -> str:
    """A patch's current name, given one that an older version wrote."""
    return FORMERLY.get(name, name)


def patch_for(name: str) -> Patch:
    """A patch's description. Raises GpuprofError, one line, if a plug-in's patch cannot be loaded."""
    path = patches().get(name)
    if path is None:
        return patch_named(name).PATCH
    try:
        return patch_at(str(path)).PATCH
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise GpuprofError(f"the patch of the plug-in {name} cannot be loaded: {why}") from error
