"""C++ names as torch.profiler prints them, by the same function of the C++ library.

Nsight Systems prints them in its own style (`<unnamed>`, `T1 *`, `(bool)1`), so that kernels of two recordings would
not match. It also keeps the mangled names; if the library is missing, its own style is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from gpuprof.units import Assumed, Characters

LONGEST_NAME: Assumed[Characters] = 1 << 16
"""Longest mangled name."""
_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", None)
"""The last one means any library that the process has loaded."""


def demangled(name: str) -> str | None:
    """`gemm()` for `_Z4gemmv`; None if it is not a mangled name, or without the library."""
    if not name.startswith("_Z") or len(name) > LONGEST_NAME:
        return None
    function = _library()
    return function(name) if function else None


@cache
def _library() -> Callable[[str], str | None] | None:
    for path in _LIBRARIES:
        try:
            library = ctypes.CDLL(path)
            demangle, free = library.__cxa_demangle, library.free
        except (OSError, AttributeError, TypeError):  # TypeError: Windows takes no None
            continue
        demangle.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        demangle.restype = ctypes.c_void_p
        free.argtypes, free.restype = [ctypes.c_void_p], None

        def call(name: str, demangle=demangle, free=free) -> str | None:
            status = ctypes.c_int()
            found = demangle(name.encode("utf-8", "replace"), None, None, ctypes.byref(status))
            if not found:
                return None
            try:
                return ctypes.string_at(found).decode("utf-8", "replace") if status.value == 0 else None
            finally:
                free(found)

        return call
    return None
