"""Functions over arrays as machine code: numba compiles them once, and later runs load the code without numba.

Loading kept machine code takes 0.04 s, with llvmlite alone. With `numba.njit(cache=True)` the second diagnosis of a
small trace takes 2.7 s of CPU time instead of 2.1 (`python -m benchmarks.start_up`; 0.5 to 0.7 s more in eight of ten
pairs): numba is imported, and reads its cache. The code is called as numba's calling convention has it
(https://numba.readthedocs.io/en/stable/developer/architecture.html): pointers to the result and to an exception, then
the arguments, of which an array is (owner, parent, size, itemsize, data, shape…, strides…). Before code is kept, its
LLVM code is checked to follow this convention and to need nothing of numba; otherwise, or with a numba version that was
not tried, numba itself runs the function.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.units import Bytes, Convention, Measured, Version

TRIED_VERSIONS: Measured[tuple[tuple[Version, Version], tuple[Version, Version]]] = (0, 60), (0, 68)
"""The oldest and the newest numba with which the tests passed; with others numba runs the functions itself."""
SYMBOL = "gpuprof_kernel"
OK, OK_NONE = 0, -2
"""Return codes of successful machine code; the result is written to its first argument."""
CHECKSUM_BYTES: Convention[Bytes] = 32
MATHEMATICS = {"pow", "powi", "exp", "exp2", "log", "log2", "log10", "sin", "cos", "tan"}
"""Functions that LLVM takes from the C library."""

Types = tuple[Hashable, ...]
"""For each argument the type that selects the machine code."""

_lock = threading.RLock()


class NumbaFunction:
    """A function over arrays, records and numbers that makes no array, raises nothing and returns an integer or
    nothing. Like numba it is compiled for the types of its arguments at the first call with them. It runs without the
    GIL."""

    def __init__(self, name: str, source: Callable[[], bytes], folder: Path, find: Callable[[], Any]) -> None:
        self._name = name
        self._source = source
        """Returns everything that the machine code depends on."""
        self._folders = _folders(folder)
        self._find = find
        """Returns the Python function, or numba's version of it."""
        self._ready: dict[Types, Callable[..., int | None]] = {}

    def __call__(self, *arguments: Any) -> Any:
        types = tuple(map(_type_of, arguments))
        return (self._ready.get(types) or self._make_ready(types, arguments))(*arguments)

    @property
    def is_kept(self) -> bool:
        """Whether a later run can load it: its machine code for some types of arguments is on disk."""
        return any(next(folder.glob(f"{self._stem()}-*"), None) for folder in self._folders)

    @property
    def noted(self) -> int:
        """The number that was noted for it on this machine; 0 if none was since its source or the CPU changed."""
        for folder in self._folders:
            with suppress(OSError, ValueError):
                return int((folder / f"{self._stem()}.note").read_text())
        return 0

    def note(self, number: int) -> None:
        """Notes a number where machine code may be kept; nothing where that is not possible."""
        for folder in self._folders:
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{self._stem()}.note").write_text(str(number))
                return

    def _make_ready(self, types: Types, arguments: Sequence[Any]) -> Callable[..., int | None]:
        with _lock:
            if types not in self._ready:
                kept = f"{self._stem()}-{_digest(repr(types).encode())}"
                code = _kept(self._folders, kept)
                if code is None:
                    code, dispatcher = _compile(self._find(), arguments, types)
                    if code is None:
                        self._ready[types] = dispatcher
                        return dispatcher
                    _keep(self._folders, kept, code)
                self._ready[types] = _loaded(code, types)
            return self._ready[types]

    def _stem(self) -> str:
        """Name of the file of its machine code; it depends on the source, on LLVM and on the CPU."""
        return f"{self._name}-{_digest(self._source(), _file(Path(__file__)), _machine().encode())}"


def compiled(function: Callable) -> Any:
    """Decorator: the function as a `NumbaFunction`. Of the names in its module it may use only numbers."""
    path = Path(function.__code__.co_filename)

    def source() -> bytes:
        names = {name: function.__globals__.get(name) for name in function.__code__.co_names}
        return _file(path) + repr({name: value for name, value in names.items() if np.isscalar(value)}).encode()

    return NumbaFunction(f"{function.__module__}.{function.__name__}", source, path.parent, lambda: function)


def read_only(values: np.ndarray) -> np.ndarray:
    """A contiguous view that cannot be written to. A kernel is compiled for each type of its arguments, and whether one
    can be written to is part of its type."""
    found = np.ascontiguousarray(values).view()
    found.flags.writeable = False
    return found


def compiled_in(module: str, name: str, *paths: Path) -> Any:
    """The function `name` of a module made of the files `paths` as a `NumbaFunction`. The module is imported where it
    has to be compiled; it may import numba."""

    def source() -> bytes:
        return b"".join(map(_file, paths))

    def find() -> Any:
        return getattr(import_module(module), name)

    return NumbaFunction(f"{module}.{name}", source, paths[0].parent, find)


# --- types ----------------------------------------------------------------------------------------------------------


def _type_of(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        return value.dtype, value.ndim, value.flags.c_contiguous, value.flags.writeable
    if isinstance(value, np.void):
        return value.dtype
    if isinstance(value, (bool, np.bool_)):
        return bool
    if isinstance(value, (int, np.integer)):
        return int
    if isinstance(value, float):
        return float
    raise TypeError(f"no kernel takes a {type(value).__name__}")


def _layout(kind: Hashable) -> list[Any]:
    """The ctypes with which an argument is passed."""
    if isinstance(kind, tuple):
        return [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_void_p] + [ctypes.c_int64] * (2 * kind[1])
    return [{bool: ctypes.c_uint8, int: ctypes.c_int64, float: ctypes.c_double}.get(kind, ctypes.c_void_p)]  # type: ignore[call-overload]


def _flat(value: Any) -> Iterator[Any]:
    """The numbers with which an argument is passed."""
    if isinstance(value, np.ndarray):
        yield from (None, None, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
    elif isinstance(value, np.void):
        yield np.frombuffer(value.data, np.uint8).ctypes.data
    else:
        yield _plain(value)


def _plain(value: Any) -> Any:
    """A numpy number as Python's."""
    return value.item() if isinstance(value, (np.number, np.bool_)) else value


# --- compiling ------------------------------------------------------------------------------------------------------


def _compile(function: Any, arguments: Sequence[Any], types: Types) -> tuple[bytes | None, Any]:
    """(machine code of a function for such arguments, or None if numba has to run it; numba's compiled function)."""
    import numba

    if not TRIED_VERSIONS[0] <= tuple(map(int, numba.__version__.split(".")[:2])) <= TRIED_VERSIONS[1]:
        return None, _run_by_numba(function)
    bare = jitted(function)
    bare.compile(tuple(numba.typeof(_plain(value)) for value in arguments))
    code = _machine_code(bare.inspect_llvm(bare.signatures[0]), types)
    return code, None if code is not None else _run_by_numba(function)


def jitted(function: Any, **options: Any) -> Any:
    """A function compiled by numba that makes no array and raises nothing, to be called only from machine code."""
    import numba
    from numba.core.cpu import CPUTargetOptions

    # No kernel makes or keeps an array: without numba's reference counting (`_nrt`) they are fifteen times as fast.
    # Numba does not document these options, so it may drop them.
    options |= {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    known = {name: value for name, value in options.items() if hasattr(CPUTargetOptions, name)}
    return numba.njit(nogil=True, error_model="numpy", **known)(getattr(function, "py_func", function))


def _run_by_numba(function: Any) -> Any:
    import numba

    function = getattr(function, "py_func", function)
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # there is no folder to keep it in
        return numba.njit(nogil=True, error_model="numpy")(function)


def _machine_code(llvm: str, types: Types) -> bytes | None:
    """The object file of a module's only exported function; None if its signature is not the expected one, or if it
    calls functions outside the module."""
    import llvmlite.binding as binding

    _prepare()
    module = binding.parse_assembly(llvm)
    if any(_is_outside(f.name) for f in module.functions if f.is_declaration):
        return None
    outer = [f for f in module.functions if not f.is_declaration and f.linkage == binding.Linkage.external]
    if len(outer) != 1 or [_passed_as(str(one.type)) for one in outer[0].arguments] != _expected(types):
        return None
    outer[0].name = SYMBOL
    return _target_machine(module.triple).emit_object(module)


def _is_outside(function: str) -> bool:
    """Whether a declared function is a real external one, not an LLVM intrinsic or one like `memcpy`."""
    llvm, _, name = function.partition(".")
    return llvm != "llvm" or name.partition(".")[0] in MATHEMATICS


def _passed_as(llvm_type: str) -> str:
    return "pointer" if llvm_type == "ptr" or llvm_type.endswith("*") else llvm_type


def _expected(types: Types) -> list[str]:
    """The arguments' expected LLVM types."""
    names = {ctypes.c_uint8: "i8", ctypes.c_int64: "i64", ctypes.c_double: "double", ctypes.c_void_p: "pointer"}
    return ["pointer"] * 2 + [names[one] for kind in types for one in _layout(kind)]


# --- loading --------------------------------------------------------------------------------------------------------


def _loaded(code: bytes, types: Types) -> Callable[..., int | None]:
    import llvmlite.binding as binding

    _prepare()
    empty = binding.parse_assembly("")
    engine = binding.create_mcjit_compiler(empty, _target_machine(binding.get_process_triple()))
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(SYMBOL)
    layout = [ctypes.c_void_p] * 2 + [one for kind in types for one in _layout(kind)]
    run = ctypes.CFUNCTYPE(ctypes.c_int32, *layout)(address)

    def call(*arguments: Any, engine: Any = engine) -> int | None:  # the engine owns the code
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        flat = [one for value in arguments for one in _flat(value)]
        status = run(ctypes.addressof(result), ctypes.addressof(error), *flat)
        if status not in (OK, OK_NONE):
            raise RuntimeError("a kernel failed")
        return result.value

    return call


@cache
def _prepare() -> None:
    import llvmlite.binding as binding

    with suppress(RuntimeError):  # done by the library itself, in later versions
        binding.initialize()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


def _target_machine(triple: str) -> Any:
    """A target machine for this CPU; each engine owns one."""
    import llvmlite.binding as binding

    return binding.Target.from_triple(triple).create_target_machine(
        cpu=binding.get_host_cpu_name(), features=_features(), opt=3, codemodel="jitdefault", jit=True
    )


def _features() -> str:
    import llvmlite.binding as binding

    try:
        return binding.get_host_cpu_features().flatten()
    except RuntimeError:  # not known for this CPU
        return ""


# --- keeping --------------------------------------------------------------------------------------------------------


@cache
def _machine() -> str:
    import llvmlite
    import llvmlite.binding as binding

    return f"{llvmlite.__version__} {binding.get_process_triple()} {binding.get_host_cpu_name()} {_features()}"


@cache
def _file(path: Path) -> bytes:
    """The contents of a Python file; empty if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _digest(*parts: bytes) -> str:
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()


def _folders(folder: Path) -> list[Path]:
    """Where machine code may be kept: next to Python's own, else in the user's cache."""
    users = Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"))  # noqa: PTH111 (says "~" if unknown)
    return [folder / "__pycache__", *([users / "gpuprof"] if users.is_absolute() else [])]


def _kept(folders: Sequence[Path], name: str) -> bytes | None:
    """Kept machine code whose checksum is right; None if there is none."""
    for folder in folders:
        with suppress(OSError):
            data = (folder / name).read_bytes()
            if data[:CHECKSUM_BYTES] == _checksum(data[CHECKSUM_BYTES:]):
                return data[CHECKSUM_BYTES:]
    return None


def _keep(folders: Sequence[Path], name: str, code: bytes) -> None:
    """Keeps machine code where that is possible."""
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"{name}.{os.getpid()}.{threading.get_ident()}"
            part.write_bytes(_checksum(code) + code)
            part.replace(folder / name)
            return


def _checksum(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=CHECKSUM_BYTES).digest()
