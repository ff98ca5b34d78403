"""Many bytes at a time, for the byte scanner: LLVM vectors, so that one source serves every processor."""

# What numba passes to an intrinsic, and the attributes of a compiled function, are unknown to a type checker.
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportFunctionMemberAccess=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending
from numba.core import types

from gpuprof.tracefile.compiled import jitted

intrinsic: Any = extending.intrinsic
"""Makes a function from one that writes its LLVM code."""


entry: Any = jitted
"""Called from outside, too."""


def kernel(function: Callable) -> Any:
    """Compiled into those that call it."""
    return jitted(function, forceinline=True)


def _pointer(context, builder, array_type, array, index):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def _lanes(context, builder, signature, args, count):
    vector = ir.VectorType(ir.IntType(8), count)
    pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
    return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)


def _splat(value: int, count: int):
    return ir.Constant(ir.VectorType(ir.IntType(8), count), [value] * count)


def _is(builder, lanes, value: int):
    return builder.icmp_unsigned("==", lanes, _splat(value, lanes.type.count))


def _bits(builder, flags):
    """One bit per lane, as int64."""
    count = flags.type.count
    mask = builder.bitcast(flags, ir.IntType(count))
    return mask if count == 64 else builder.zext(mask, ir.IntType(64))


@intrinsic
def load8(typingctx, text, at):
    """Eight bytes as a little-endian number."""

    def build(context, builder, signature, args):
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        return builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(text, types.intp), build


def _store(bits: int, convert=None):
    def typed(typingctx, rows, at, value):
        def build(context, builder, signature, args):
            number = ir.IntType(bits)
            value = args[2]
            if convert:
                value = builder.bitcast(
                    builder.fptrunc(builder.bitcast(value, ir.DoubleType()), ir.FloatType()), number
                )
            elif bits < 64:
                value = builder.trunc(value, number)
            pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
            builder.store(value, builder.bitcast(pointer, number.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(rows, types.intp, types.int64), build

    return intrinsic(typed)


store_i64, store_i32, store_u8 = _store(64), _store(32), _store(8)
store_f32 = _store(32, convert=True)
"""Stores the float32 nearest to the float64 of these bits."""


@intrinsic
def copy64(typingctx, to, at, source, begin):
    """Copies 64 bytes."""

    def build(context, builder, signature, args):
        vector = ir.VectorType(ir.IntType(8), 64).as_pointer()
        read = _pointer(context, builder, signature.args[2], args[2], args[3])
        write = _pointer(context, builder, signature.args[0], args[0], args[1])
        value = builder.load(builder.bitcast(read, vector), align=1)
        builder.store(value, builder.bitcast(write, vector), align=1)
        return context.get_dummy_value()

    return types.void(to, types.intp, source, types.intp), build


@intrinsic
def quotes32(typingctx, text, at):
    """Bits of `"` and backslash among 32 bytes."""

    def build(context, builder, signature, args):
        lanes = _lanes(context, builder, signature, args, 32)
        return _bits(builder, builder.or_(_is(builder, lanes, 0x22), _is(builder, lanes, 0x5C)))

    return types.int64(text, types.intp), build


@intrinsic
def spaces32(typingctx, text, at):
    """Bits of what is not JSON white space among 32 bytes."""

    def build(context, builder, signature, args):
        lanes = _lanes(context, builder, signature, args, 32)
        flags = builder.or_(_is(builder, lanes, 0x20), _is(builder, lanes, 0x0A))
        flags = builder.or_(flags, builder.or_(_is(builder, lanes, 0x0D), _is(builder, lanes, 0x09)))
        return _bits(builder, builder.not_(flags))

    return types.int64(text, types.intp), build


@intrinsic
def delimiters32(typingctx, text, at):
    """Bits of what ends a number among 32 bytes: comma, quote, bracket, white space, control character."""

    def build(context, builder, signature, args):
        lanes = _lanes(context, builder, signature, args, 32)
        flags = builder.icmp_unsigned("<=", lanes, _splat(0x22, 32))
        for value in b",:]}":
            flags = builder.or_(flags, _is(builder, lanes, value))
        return _bits(builder, flags)

    return types.int64(text, types.intp), build


@intrinsic
def brackets64(typingctx, text, at):
    """Among 64 bytes, the bits of `"`, of opening brackets, of closing ones, of the backslash."""

    def build(context, builder, signature, args):
        lanes = _lanes(context, builder, signature, args, 64)
        # One bit tells `[` from `{`, `]` from `}`.
        folded = builder.or_(lanes, _splat(0x20, 64))
        masks = [
            _bits(builder, _is(builder, lanes, 0x22)),
            _bits(builder, _is(builder, folded, 0x7B)),
            _bits(builder, _is(builder, folded, 0x7D)),
            _bits(builder, _is(builder, lanes, 0x5C)),
        ]
        return context.make_tuple(builder, signature.return_type, masks)

    return types.UniTuple(types.int64, 4)(text, types.intp), build


@intrinsic
def differ64(typingctx, a, i, b, j):
    """Bits of the places where 64 bytes differ."""

    def build(context, builder, signature, args):
        vector = ir.VectorType(ir.IntType(8), 64)
        one, other = (
            builder.load(
                builder.bitcast(
                    _pointer(context, builder, signature.args[k], args[k], args[k + 1]), vector.as_pointer()
                ),
                align=1,
            )
            for k in (0, 2)
        )
        return _bits(builder, builder.icmp_unsigned("!=", one, other))

    return types.int64(a, types.intp, b, types.intp), build


@intrinsic
def mixed(typingctx, a, b):
    """Low and high half of a 128-bit product, combined by xor."""

    def build(context, builder, signature, args):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))
        return builder.xor(high, builder.trunc(product, ir.IntType(64)))

    return types.uint64(types.uint64, types.uint64), build


@intrinsic
def first_bit(typingctx, mask):
    """Number of the lowest bit that is set; 64 if none is."""

    def build(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), build


@intrinsic
def bit_count(typingctx, mask):
    """How many bits are set."""

    def build(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(types.int64), build


@intrinsic
def as_bits(typingctx, number):
    """The bits of a float64."""

    def build(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), build
