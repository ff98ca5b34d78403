"""The byte scanner, which turns the events of a block of text into rows, without the GIL. `scan_kernels` holds its
code, this file what both sides share.

The text must be followed by PADDING_BYTES zero bytes, since wide loads reach past its end. Positions are offsets into
the text; instead of one, MORE says that the text ends first, and ODD that no profiler writes this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.tracefile.compiled import compiled_in
from gpuprof.units import Assumed, Bits, Bytes, Convention, Entries, Levels

PADDING_BYTES: Convention[Bytes] = 64
MORE, ODD = -1, -2

# What `scan` returns.
PAUSED, ENDED, NO_ROWS, NO_STRINGS, NO_ODD = range(5)

# Kinds of keys.
SKIP, PHASE, TEXT, RAW, TIME, ARGS, WHOLE, VECTOR, FLOAT, EXTRA = range(10)
# Contexts of keys; the names of categories are looked up like keys.
TOP, INNER, CATEGORY = range(3)
# Slots with a special meaning; the plan numbers the others.
S_NAME, S_CATEGORY, S_PID, S_TID, S_START, S_END, S_EXTRA, S_KIND, S_BEGINS, FIRST_FREE_SLOT = range(10)
# Instead of a table.
FOR_PYTHON, DROPPED = -1, -2
# How a slot is stored in a row.
STORE_I64, STORE_I32, STORE_F32, STORE_U8, STORE_TEXT = range(5)

TABLES, SLOTS, MAX_KEYS = 8, 64, 128
T_MEMORY, T_FLOWS, T_OTHER = 5, 6, 7
LIGHTLY_BYTES: Assumed[Bytes] = 256
MAX_DEPTH: Assumed[Levels] = 64
"""Depth of nested values: deeper ones are not from a profiler, and may be made to be read again and again."""
KEY_BYTES: Convention[Bytes] = 64
KEY_BITS: Convention[Bits] = 10
KEY_PLACES: Convention[Entries] = 1 << KEY_BITS
START, ARGS_START = KEY_PLACES, KEY_PLACES + 1
ENDS_ARGS, ENDS_EVENT = 1 << 8, 1 << 9
ROW_BYTES: Convention[Bytes] = 128

PLAN = np.dtype(
    [
        ("places", "i2", (KEY_PLACES,)),  # hash table: the number of a key, -1 where empty
        ("keys", "u1", (MAX_KEYS * KEY_BYTES + PADDING_BYTES,)),
        ("length", "i8", (MAX_KEYS,)),
        ("context", "i8", (MAX_KEYS,)),
        ("kind", "i8", (MAX_KEYS,)),  # of a category: its table
        ("slot", "i8", (MAX_KEYS,)),  # that the key fills; of a category: the row's `kind`
        ("inner", "i8"),  # bits of the slots that args fill
        ("fields", "i8", (TABLES,)),  # bits of the slots that a table has
        ("offset", "i8", (TABLES, SLOTS)),  # of a slot in the row
        ("store", "i8", (TABLES, SLOTS)),
        ("size", "i8", (TABLES,)),  # bytes of a row
        ("defaults", "u1", (TABLES * ROW_BYTES,)),  # a row of each table in which nothing is given
        ("seed", "u8"),  # of the hash of texts
    ],
    align=True,
)
"""What the scanner must know of `layout`."""

SHEET = np.dtype(
    [
        ("base", "i8", (TABLES,)),  # where the rows of a table begin in `rows`
        ("capacity", "i8", (TABLES,)),
        ("count", "i8", (TABLES,)),
        ("strings", "i8"),
        ("odd", "i8"),
        ("rounded", "i8"),
        ("repaired", "i8"),
        ("dropped", "i8"),  # without a time, or not an object
        ("sample", "i8"),  # where the first dropped one begins
        ("position", "i8"),
        # The current event: which slots it fills, with what; texts as begin and length.
        ("bits", "i8"),
        ("phase", "i8"),
        ("hand", "i8"),  # 1: Python must read something in it
        ("mended", "i8"),  # 1: something in it is not JSON, which does not matter
        ("roundings", "i8"),
        ("value", "i8", (SLOTS,)),
        ("length", "i8", (SLOTS,)),
        # Joints: texts between two values. Events of one kind have the same ones, so the last two after each key are
        # remembered, with what followed; comparing them is much faster than reading white space, key and colon.
        ("joint", "u1", (2 * (KEY_PLACES + 2) * 64,)),
        ("joint_bits", "i8", (2 * (KEY_PLACES + 2),)),
        ("joint_turn", "i8"),
        ("joint_leads", "i8", (2 * (KEY_PLACES + 2),)),
    ],
    align=True,
)
"""What a scan counts, and what it remembers."""

STRING = np.dtype([("begin", "i8"), ("length", "i8"), ("hash", "u8")])
"""A text; the length is doubled, plus 1 where it has escapes."""

MIX_A = np.uint64(0x9E3779B97F4A7C15)
"""Factor in the hash of keys."""


def _kernel(name: str) -> Any:
    here = Path(__file__)
    sources = [here.with_name(f"{part}.py") for part in ("scan_kernels", "scan_events", "scan_values", "scan_bytes")]
    return compiled_in("gpuprof.tracefile.kineto.scan_kernels", name, *sources, here)


find_separator, scan, merge = map(_kernel, ("find_separator", "scan", "merge"))


def is_compiled() -> bool:
    """Whether the kernels' machine code is on disk, so that they need not be compiled."""
    return all(kernel.is_kept for kernel in (find_separator, scan, merge))


def uncompiled_bytes() -> int:
    """Text that was read without the kernels on this machine, as they were not compiled."""
    return scan.noted


def note_uncompiled(text_bytes: int) -> None:
    """Notes that text as a whole, for the next reading."""
    scan.note(text_bytes)
