"""Number formats of arithmetic, and how torch and kernels name element types."""

from __future__ import annotations

from gpuprof.units import Code, Convention

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")
"""Formats with separate rates. A dtype code is an index into these; UNKNOWN means none."""
UNKNOWN: Convention[Code] = 255
CODE = {name: code for code, name in enumerate(DTYPES)}

_TYPES = {
    "float": (4, "fp32"),
    "double": (8, "fp64"),
    "c10::BFloat16": (2, "bf16"),
    "c10::Half": (2, "fp16"),
    "long int": (8, None),
    "long": (8, None),
    "int": (4, None),
    "short int": (2, None),
    "short": (2, None),
    "unsigned short": (2, None),
    "unsigned int": (4, None),
    "unsigned long": (8, None),
    "signed char": (1, "int8"),
    "char": (1, "int8"),
    "unsigned char": (1, "int8"),
    "bool": (1, None),
    "c10::complex<float>": (8, "fp32"),
    "c10::complex<double>": (16, "fp64"),
    "c10::Float8_e4m3fn": (1, "fp8"),
    "c10::Float8_e5m2": (1, "fp8"),
    "c10::Float8_e4m3fnuz": (1, "fp8"),
    "c10::Float8_e5m2fnuz": (1, "fp8"),
    "c10::Float8_e8m0fnu": (1, None),
    "c10::Float4_e2m1fn_x2": (1, "fp4"),
}
"""Element type as the profiler writes it → (bytes, format of arithmetic on it)."""

_RANK = ("bool", "unsigned char", "signed char", "char", "short int", "short", "int", "long int", "long",
         "c10::Half", "c10::BFloat16", "float", "double", "c10::complex<float>", "c10::complex<double>")  # fmt: skip


def element_bytes(type_name: str) -> int | None:
    """Bytes per element of a tensor of this type; None if it is not a tensor's type (Scalar, "", ScalarList)."""
    known = _TYPES.get(type_name)
    return known[0] if known else None


def dtype_code(type_name: str) -> int:
    """Code of the arithmetic format for this element type, or UNKNOWN."""
    known = _TYPES.get(type_name)
    return CODE[known[1]] if known and known[1] else UNKNOWN


def format_of(type_name: str) -> str:
    """The arithmetic format for this element type (bf16); empty if it has none."""
    known = _TYPES.get(type_name)
    return known[1] or "" if known else ""


def promoted(type_names: list[str]) -> str:
    """The type that an elementwise op on these gives: the widest; half with bfloat16 gives float, as in torch."""
    if not type_names:
        return "float"
    if {"c10::Half", "c10::BFloat16"} <= set(type_names):
        type_names = [*type_names, "float"]
    return max(type_names, key=lambda name: _RANK.index(name) if name in _RANK else -1)


_IN_KERNEL_NAMES = (
    ("BFloat16", "c10::BFloat16"),
    ("bfloat16", "c10::BFloat16"),
    ("bf16", "c10::BFloat16"),
    ("Half", "c10::Half"),
    ("half", "c10::Half"),
    ("double", "double"),
    ("float", "float"),
)


def type_in_kernel_name(kernel: str) -> str | None:
    """The element type that a kernel's name mentions first: its own, accumulators and scalars come later."""
    found = [(at, type_name) for text, type_name in _IN_KERNEL_NAMES if (at := kernel.find(text)) >= 0]
    return min(found)[1] if found else None
