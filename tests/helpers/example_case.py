"""The example of the mixture of experts, as a module."""

from __future__ import annotations

import functools
import importlib.util
import sys
from types import ModuleType

from helpers.paths import ROOT

EXAMPLE = ROOT / "examples" / "moe_on_h100_and_rtx_pro_6000"


@functools.cache
def example_case() -> ModuleType:
    """`case.py` of the example, which is no package."""
    spec = importlib.util.spec_from_file_location("case_of_the_mixture", EXAMPLE / "case.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
