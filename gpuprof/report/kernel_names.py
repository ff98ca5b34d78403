"""The readable part of a kernel's name, out of four hundred characters of C++.

`vectorized_elementwise_kernel<MulFunctor, bf16>`: the kernel's own name, the functors among its template
arguments that say what it does, and the first number format among them. Names that are not C++ are
returned unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from gpuprof.units import Characters, Convention, Levels, Names

_SHOWN_FUNCTORS: Convention[Names] = 2
_LONGEST_PARSED: Convention[Characters] = 1 << 16
_DEEPEST: Convention[Levels] = 8

_LOOKS_LIKE_CPP = re.compile(r"^[\w:~]+[<(]|^\w[\w:<>, ]* [\w:]+[<(]|::")
_NOT_A_KERNEL = re.compile(r"^(Memcpy|Memset|CopyDevice|CopyHost|FillBuffer)")

_SAYS_NOTHING = frozenset({"Kernel", "Kernel2", "kernel", "device_kernel", "kernel_entry", "kentry", "run_kernel"})
"""Entry points of CUTLASS, CK and similar libraries: only their argument says what runs."""
_ENTRY = "kentry"
"""CK's entry point, whose argument is the kernel itself, under any name."""

_WRAPPERS = frozenset(
    {"gpu_kernel_impl", "gpu_kernel_impl_nocast", "ReduceOp", "func_wrapper_t"}
    | {"AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "enable_3x_kernel_for_sm9x", "enable_3x_kernel_for_sm10"}
)
"""Wrappers around the functor that matters."""

_FUNCTOR = re.compile(
    r"functor|(op|ops|_kernel|kernel_impl|kernel_cuda|_impl)$|^Reduce(Add|Mul|Max|Min)$|^cutlass_\w+|gemm",
    re.IGNORECASE,
)
_PLUMBING = re.compile(r"(_kernel|_cuda|_impl)+$")
"""Suffixes that PyTorch adds to the name of the computation: `direct_copy_kernel_cuda`."""
_ARITHMETIC = re.compile(
    r"^(std|at::native|thrust)::(plus|minus|multiplies|divides|modulus|negate|maximum|minimum|less|greater"
    r"|equal_to|logical_\w+|bit_\w+|Sqrt|Rsqrt|Abs|Exp|Log|Power|Reciprocal)$"
)
_FORMATS = {
    "bf16": r"BFloat16|__nv_bfloat16|bfloat16_t",
    "fp16": r"Half|__half|half_t|_Float16",
    "fp8": r"Float8_\w+|__nv_fp8_\w+|float_e[45]m[23]_t",
    "fp64": r"double",
    "fp32": r"float",
}
_FORMAT = re.compile("|".join(rf"\b(?P<{name}>{words})\b" for name, words in _FORMATS.items()))


@lru_cache(maxsize=1024)
def readable_kernel(name: str) -> str:
    """The kernel's own name and its informative template arguments, without namespaces, tiles and parameters."""
    if name.startswith("_Z"):
        return _from_mangled(name)
    text = _plain(name)
    if len(text) > _LONGEST_PARSED or _NOT_A_KERNEL.match(text) or not _LOOKS_LIKE_CPP.search(text):
        return name
    path, arguments = _split(_without_return_type(text))
    base = path.rsplit("::", 1)[-1]
    if not base:
        return name
    functors = list(dict.fromkeys(_functors(arguments)))[:_SHOWN_FUNCTORS]
    if base == _ENTRY:
        functors = [inner.rsplit("::", 1)[-1] for inner, _ in map(_split, _arguments(arguments)) if "::" in inner]
    if base in _SAYS_NOTHING:
        return functors[0] if functors else "::".join(path.split("::")[-2:])
    number = _FORMAT.search(arguments)
    tells = functors + ([number.lastgroup or ""] if number else [])
    return f"{base}<{', '.join(tells)}>" if tells else base


def _plain(name: str) -> str:
    """The name without compiler spellings that would confuse the bracket parser."""
    text = name.replace("(anonymous namespace)::", "").replace("{anonymous}::", "")
    return text.replace("operator()", "operator").replace("->", "  ")


def _nesting(text: str, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """Every character from `start` on with its index and how many brackets are open before it.

    A comparison (`((8)>(0))`) is not a bracket: `>` closes only `<`, and a closing round bracket also closes everything
    opened inside it.
    """
    opened: list[str] = []
    for i in range(start, len(text)):
        char = text[i]
        if char == ">" and opened and opened[-1] == "<":
            opened.pop()
        elif char in ")}":
            while opened and opened.pop() != _OPENS[char]:
                pass
        yield i, char, len(opened)
        if char in "<({":
            opened.append(char)


_OPENS = {")": "(", "}": "{"}


def _without_return_type(text: str) -> str:
    """The first word that has parameters; brackets and their contents belong to the word."""
    start = 0
    for i, char, depth in _nesting(text):
        if depth == 0 and char == "(":
            return text[start:]
        if depth == 0 and char == " ":
            start = i + 1
    return text[start:]


def _split(text: str) -> tuple[str, str]:
    """(qualified name, template arguments) of a function or type."""
    found = re.search(r"[<(]", text)
    words = text[: found.start() if found else None].split()
    path = words[-1] if words else ""
    if found is None or found[0] == "(":
        return path, ""
    return path, text[found.end() : _closing(text, found.start())]


def _closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`; the end of the text where it is missing."""
    return next((i for i, _, depth in _nesting(text, start) if depth == 0 and i > start), len(text))


def _arguments(text: str) -> Iterator[str]:
    """Template arguments, split at the commas outside of all brackets."""
    start = 0
    for i, char, depth in _nesting(text):
        if char == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    yield text[start:].strip()


def _functors(arguments: str, depth: int = 0) -> Iterator[str]:
    """Names among template arguments that say what the kernel does."""
    for argument in _arguments(arguments):
        path, inner = _split(argument)
        base = path.rsplit("::", 1)[-1]
        if base in _WRAPPERS and depth < _DEEPEST:
            yield from list(_functors(inner, depth + 1)) or [base]
        elif "{lambda" in argument or _FUNCTOR.search(base):
            # A lambda is named by the function that holds it.
            if base.isidentifier():
                yield _PLUMBING.sub("", base) or base
        elif _ARITHMETIC.match(path):
            yield base


# What the Itanium ABI spells out (`3foo`), after its markers of nesting and of names said before.
_PART = re.compile(r"(?:N|K|St|S[0-9A-Z]*_)*(\d+)")
_LITERALS = re.compile(r"(?:L[a-z]n?\d+E)*")
"""Numbers among template arguments."""


def _from_mangled(name: str) -> str:
    """The function's own name from a mangled one; that of its first argument if its own name is uninformative."""
    parts, at = _identifiers(name, 2)
    if not parts:
        return name
    for _ in range(_DEEPEST):
        if (parts[-1] not in _SAYS_NOTHING and parts[-1] not in _WRAPPERS) or name[at : at + 1] != "I":
            break
        inner, at = _identifiers(name, _LITERALS.match(name, at + 1).end())  # type: ignore[union-attr]
        if not inner:
            break
        parts = inner
    return parts[-1]


def _identifiers(name: str, at: int) -> tuple[list[str], int]:
    """Identifiers of a nested name that begins at `at`, and where they end."""
    parts: list[str] = []
    while (found := _PART.match(name, at)) and len(found[1]) <= 4:
        end = found.end() + int(found[1])
        if end > len(name):
            break
        parts.append(name[found.end() : end])
        at = end
    return parts, at
