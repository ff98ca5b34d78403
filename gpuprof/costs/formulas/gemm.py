"""Matmuls: FLOPs from the shapes, memory traffic from how the tiles of the output share their inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from gpuprof.calibration import roofs as roofs_calibrated
from gpuprof.costs.arguments import Arguments, Tensor
from gpuprof.costs.cost import Cost, Kernel, Machine
from gpuprof.costs.dtypes import CODE, UNKNOWN, dtype_code
from gpuprof.units import Assumed, Convention, Elements, Names

_ACCUMULATORS: Assumed[Elements] = 256 * 128
"""Output elements that one SM works on at a time: in fp32 half of its 64 K registers."""
_TILE = re.compile(r"(?<!\d)(\d{1,3})x(\d{1,3})(?!\d)")
_USUAL_TILE: Assumed[tuple[Elements, Elements]] = (128, 128)
_HELPER = re.compile(
    r"splitk_?reduce|split_k_kernel|scal_kernel|memset|transpose|copy|elementwise|fill|convert|reduce_kernel|to_?nchw"
    r"|to_?nhwc|tensorTransform|im2col|quant",
    re.IGNORECASE,
)
_PREPARES = re.compile(r"prepare_\w*gemm")
_MANGLED = re.compile(r"(\d+)(?=[A-Za-z_])")
_TENSOR_CORE = re.compile(r"tf32|tensorop|s1688|s16816|nvjet|wgmma|hmma|Cijk.*_XF", re.IGNORECASE)
MOST_KERNELS: Convention[Names] = 1024
"""Kernel names whose parsed facts are cached: the same few kernels multiply all shapes."""


@dataclass(frozen=True, slots=True)
class Matmul:
    """`batch` multiplications of [m, k] by [k, n]."""

    batch: float
    m: float
    n: float
    k: float
    left: Tensor
    right: Tensor
    read_bytes: float = 0.0
    """Bytes read in addition to both operands: a bias, or the output that is added to."""
    out_bytes: float | None = None
    """Bytes per output element; None: those of the left operand."""

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k


def is_matmul(name: str) -> bool:
    """Whether an op of this name is a matmul whose cost follows from shapes."""
    return name in _MATMULS


def gemm(arguments: Arguments, kernel: Kernel, machine: Machine) -> Cost | None:
    """Cost of one kernel of an op that is a matmul; None if the shapes do not show it."""
    make = _MATMULS.get(arguments.name)
    matmul = make(arguments) if make else None
    return None if matmul is None else matmul_cost(matmul, kernel, machine)


def matmul_cost(matmul: Matmul, kernel: Kernel, machine: Machine) -> Cost:
    """Cost of a matmul done by this kernel."""
    size = matmul.out_bytes or matmul.left.element_bytes
    out = matmul.batch * matmul.m * matmul.n
    role = _role(kernel.name)
    if role == "prepares":
        # Writes the pointers and sizes of the groups.
        return Cost(whole=False)
    if role == "helps":
        # Adds up the partial sums of a matmul whose k was split; only the main kernel knows how many there are.
        return Cost(read_bytes=2 * out * 4, write_bytes=out * size, whole=False)
    tall, wide = tile(kernel.name)
    concurrent = machine.multiprocessors * max(1.0, _ACCUMULATORS / (tall * wide))
    rows, columns = math.ceil(matmul.m / tall), math.ceil(matmul.n / wide)
    waves = max(1.0, matmul.batch * rows * columns / concurrent)
    left, right = matmul.left.bytes / matmul.batch, matmul.right.bytes / matmul.batch
    written = out * size
    return Cost(
        flops=matmul.flops,
        read_bytes=matmul.batch * traffic(left, right, rows, columns, concurrent, machine.l2_bytes) + matmul.read_bytes,
        write_bytes=written,
        dtype=_arithmetic(matmul.left.type, kernel.name),
        kept_bytes=min(written / waves, roofs_calibrated.DIRTY_SHARE.value * machine.l2_bytes),
    )


def traffic(left: float, right: float, rows: int, columns: int, concurrent: float, l2_bytes: float) -> float:
    """Bytes read by a matmul whose output is `rows` × `columns` tiles, of which `concurrent` are computed at once.

    If both operands fit in the L2 they are read once. Else tiles are assigned along the shorter side of the output:
    each wave reads all of that side's operand and its own part of the other one, which is thus read once. If a wave is
    shorter than the short side, waves are assumed to be squares.
    """
    if left + right <= l2_bytes:
        return left + right
    (short, short_bytes), (long, long_bytes) = sorted([(rows, left), (columns, right)])
    if concurrent >= short:
        return short_bytes * max(1.0, short * long / concurrent) + long_bytes
    side = math.sqrt(concurrent)
    return short_bytes * max(1.0, long / side) + long_bytes * max(1.0, short / side)


@lru_cache(MOST_KERNELS)
def _role(kernel: str) -> str:
    """A kernel's role in a matmul: multiplies, prepares or helps."""
    function = function_name(kernel)
    return "prepares" if _PREPARES.search(function) else "helps" if _HELPER.search(function) else "multiplies"


def function_name(kernel: str) -> str:
    """A kernel's function with its namespaces and without template arguments, which for a matmul may name the copies
    and conversions that it consists of. Also takes mangled names (Itanium C++ ABI, 5.1.2: identifiers after their
    lengths)."""
    if not kernel.startswith("_ZN"):
        return kernel.split("<", 1)[0]
    parts, at = [], len("_ZN")
    while found := _MANGLED.match(kernel, at):
        at = found.end() + int(found[1])
        parts.append(kernel[found.end() : at])
    return "::".join(parts)


@lru_cache(MOST_KERNELS)
def tile(kernel: str) -> tuple[int, int]:
    """(rows, columns) of an output tile, from the kernel's name (cuBLAS counts columns first), else the usual ones."""
    found = _TILE.search(kernel)
    if not found:
        return _USUAL_TILE
    wide, tall = int(found[1]), int(found[2])
    return (tall, wide) if min(tall, wide) >= 8 else _USUAL_TILE


@lru_cache(MOST_KERNELS)
def _on_tensor_cores(kernel: str) -> bool:
    return "simt" not in kernel and _TENSOR_CORE.search(kernel) is not None


def _arithmetic(type_name: str, kernel: str) -> int:
    """Format of the arithmetic: fp32 operands use tensor cores as tf32 only if that was allowed, which the kernel's
    name shows."""
    code = dtype_code(type_name)
    if code == CODE["fp32"] and _on_tensor_cores(kernel):
        return CODE["tf32"]
    return code if code != UNKNOWN else CODE["fp32"]


def _two(left: Tensor | None, right: Tensor | None, read: float = 0.0, out: float | None = None) -> Matmul | None:
    """The matmul of two matrices, stacks of matrices or vectors, as torch.matmul takes them."""
    if left is None or right is None or not left.shape or not right.shape:
        return None
    a = left.shape if len(left.shape) > 1 else (1, *left.shape)
    b = right.shape if len(right.shape) > 1 else (*right.shape, 1)
    if a[-1] != b[-2] or not left.elements or not right.elements:
        return None
    if len(b) == 2:  # all rows of a stack are multiplied by the same matrix
        return Matmul(1, math.prod(a[:-1]), b[-1], a[-1], left, right, read, out)
    batch = max(math.prod(a[:-2]), math.prod(b[:-2]))
    return Matmul(batch, a[-2], b[-1], a[-1], left, right, read, out)


def _mm(arguments: Arguments) -> Matmul | None:
    return _two(arguments.tensor(0), arguments.tensor(1))


def _addmm(arguments: Arguments) -> Matmul | None:
    added = arguments.tensor(0)
    read = added.bytes if added is not None and arguments.text(3) not in ("0", "0.") else 0.0
    return _two(arguments.tensor(1), arguments.tensor(2), read)


def _linear(arguments: Arguments) -> Matmul | None:
    x, weight, bias = (arguments.tensor(i) for i in range(3))
    if x is None or weight is None or len(weight.shape) != 2:
        return None
    turned = Tensor(weight.shape[::-1], weight.type)
    return _two(Tensor((math.prod(x.shape[:-1]), x.shape[-1]), x.type), turned, bias.bytes if bias else 0.0)


def _scaled_mm(arguments: Arguments) -> Matmul | None:
    return _two(arguments.tensor(0), arguments.tensor(1), out=2.0)


def _int_mm(arguments: Arguments) -> Matmul | None:
    return _two(arguments.tensor(0), arguments.tensor(1), out=4.0)


def _grouped_mm(arguments: Arguments) -> Matmul | None:
    """Grouped matmul: rows (or columns, or k) of a 2-D operand belong to groups, each with its own matrix in the other
    operand."""
    left, right = arguments.tensor(0), arguments.tensor(1)
    if left is None or right is None:
        return None
    groups = next((t.elements for t in arguments.tensors[2:] if len(t.shape) == 1), 1)
    out = 2.0 if "scaled" in arguments.name else None
    a, b = left.shape, right.shape
    if (len(a), len(b)) == (2, 3):
        return Matmul(b[0], a[0] / b[0], b[2], a[1], left, right, out_bytes=out)
    if (len(a), len(b)) == (3, 2):
        return Matmul(a[0], a[1], b[1] / a[0], a[2], left, right, out_bytes=out)
    if (len(a), len(b)) == (2, 2) and groups:
        return Matmul(groups, a[0], b[1], a[1] / groups, left, right, out_bytes=out)
    return _two(left, right, out=out)


def _gemv_4bit(arguments: Arguments) -> Matmul | None:
    """`bitsandbytes::gemv_4bit(A, B, …)`: B holds two weights per byte."""
    x, packed = arguments.tensor(0), arguments.tensor(1)
    if x is None or packed is None or not x.shape or not x.shape[-1]:
        return None
    k = x.shape[-1]
    return Matmul(1, x.elements / k, packed.elements * packed.element_bytes * 2 / k, k, x, packed)


def _template(arguments: Arguments) -> Matmul | None:
    """A matmul generated by the compiler: its tensors are the operands and, last, the output."""
    matrices = [t for t in arguments.tensors if len(t.shape) in (2, 3)]
    if len(matrices) < 3:
        return None
    left, right, out = matrices[0], matrices[1], matrices[-1]
    found = _two(left, right)
    if found is None or out.elements != found.batch * found.m * found.n:
        return None
    return found


def template_gemm(arguments: Arguments, kernel: Kernel, machine: Machine) -> Cost | None:
    """A compiler-generated kernel whose arguments are those of a matmul; None if they are not."""
    matmul = _template(arguments)
    return None if matmul is None else matmul_cost(matmul, kernel, machine)


_MATMULS: dict[str, Callable[[Arguments], Matmul | None]] = {
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::matmul": _mm,
    "aten::mv": _mm,
    "aten::dot": _mm,
    "aten::vdot": _mm,
    "aten::addmm": _addmm,
    "aten::addmm_": _addmm,
    "aten::_addmm_activation": _addmm,
    "aten::baddbmm": _addmm,
    "aten::baddbmm_": _addmm,
    "aten::addbmm": _addmm,
    "aten::addmv": _addmm,
    "aten::addmv_": _addmm,
    "aten::linear": _linear,
    "aten::_scaled_mm": _scaled_mm,
    "aten::_int_mm": _int_mm,
    "aten::_weight_int8pack_mm": _linear,
    "aten::_grouped_mm": _grouped_mm,
    "aten::_scaled_grouped_mm": _grouped_mm,
    "bitsandbytes::gemv_4bit": _gemv_4bit,
    "bitsandbytes::gemv_4bit.out": _gemv_4bit,
    "bitsandbytes::int8_linear_matmul": _linear,
}


def matmul_of(arguments: Arguments) -> Matmul | None:
    """The matrix multiplication of an op, from its shapes; None if it is not one, or if the shapes do not show it."""
    make = _MATMULS.get(arguments.name)
    return make(arguments) if make else None
