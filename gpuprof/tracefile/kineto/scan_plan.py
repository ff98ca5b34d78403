"""`layout` as arrays, for the byte scanner."""

from __future__ import annotations

import secrets
from functools import cache

import numpy as np

from gpuprof.tracefile.kineto import layout, scan
from gpuprof.tracefile.kineto.usual_args import defaults

_SLOTS = {
    "name": scan.S_NAME,
    "category": scan.S_CATEGORY,
    "pid": scan.S_PID,
    "tid": scan.S_TID,
    "start_ns": scan.S_START,
    "time_ns": scan.S_START,
    "end_ns": scan.S_END,
    "extra": scan.S_EXTRA,
    "kind": scan.S_KIND,
    "begins": scan.S_BEGINS,
}
_TOP_KEYS = {
    "ph": (scan.PHASE, None),
    "cat": (scan.TEXT, "category"),
    "name": (scan.TEXT, "name"),
    "pid": (scan.RAW, "pid"),
    "tid": (scan.RAW, "tid"),
    "ts": (scan.TIME, "start_ns"),
    "dur": (scan.TIME, "end_ns"),
    "id": (scan.WHOLE, "id"),
    "args": (scan.ARGS, None),
    # Their values are not read, but an event may begin with one: `separator_at`.
    "s": (scan.SKIP, None),
    "bp": (scan.SKIP, None),
}


@cache
def make_plan() -> np.void:
    """The plan of `layout`, made once."""
    slots = _slots()
    keys = _keys(slots)
    plan = np.zeros(1, scan.PLAN)[0]
    plan["places"] = _hash_table(keys)
    plan["seed"] = secrets.randbits(64)  # so that the author of a trace cannot choose colliding texts
    plan["inner"] = 1 << scan.S_EXTRA
    for number, (text, context, kind, slot) in enumerate(keys):
        at = number * scan.KEY_BYTES
        plan["keys"][at : at + len(text)] = np.frombuffer(text, np.uint8)
        for field, value in (("length", len(text)), ("context", context), ("kind", kind), ("slot", slot)):
            plan[field][number] = value
        if context == scan.INNER and kind != scan.EXTRA:
            plan["inner"] |= (7 if kind == scan.VECTOR else 1) << slot
    for table, name in enumerate(layout.TABLES):
        dtype = layout.ROWS[name]
        plan["size"][table] = dtype.itemsize
        for field, (kind, at, *_) in (dtype.fields or {}).items():
            slot = slots[field]
            plan["fields"][table] |= 1 << slot
            plan["offset"][table, slot] = at
            plan["store"][table, slot] = scan.STORE_TEXT if field in layout.TEXT_FIELDS else _STORES[kind.str[1:]]
        row = np.zeros(1, dtype)
        for field, value in defaults(name).items():
            row[field] = value
        at = table * scan.ROW_BYTES
        plan["defaults"][at : at + dtype.itemsize] = row.view(np.uint8)
    return plan


_STORES = {"i8": scan.STORE_I64, "i4": scan.STORE_I32, "f4": scan.STORE_F32, "u1": scan.STORE_U8}


def _slots() -> dict[str, int]:
    """A slot for every field of a row; fields of the same name share one, those of a vector are adjacent."""
    slots = dict(_SLOTS)
    for dtype in layout.ROWS.values():
        for name in dtype.names or ():
            slots.setdefault(name, scan.FIRST_FREE_SLOT + len(set(slots)) - len(_SLOTS))
    assert max(slots.values()) < 63
    return slots


def _keys(slots: dict[str, int]) -> list[tuple[bytes, int, int, int]]:
    """Text, context, kind and slot of every key, and of every category with its table and kind in their place."""
    inner = {
        **{key: (scan.WHOLE, field) for key, field in layout.NUMBER_KEYS.items()},
        **{key: (scan.RAW, field) for key, field in layout.TEXT_KEYS.items()},
        **{key: (scan.VECTOR, f"{field}_x") for key, field in layout.VECTOR_KEYS.items()},
        **{key: (scan.FLOAT, field) for key, field in layout.FLOAT_KEYS.items()},
        layout.EXTRA_KEY: (scan.EXTRA, None),
    }
    keys = [(key.encode(), scan.TOP, kind, slots.get(field or "", 0)) for key, (kind, field) in _TOP_KEYS.items()]
    keys += [(key.encode(), scan.INNER, kind, slots.get(field or "", 0)) for key, (kind, field) in inner.items()]
    keys += [(name.encode(), scan.CATEGORY, table, kind) for name, (table, kind) in layout.CATEGORIES.items()]
    assert len(keys) <= scan.MAX_KEYS and all(len(key[0]) <= scan.KEY_BYTES for key in keys)
    return keys


def _hash_table(keys: list[tuple[bytes, int, int, int]]) -> np.ndarray:
    table = np.full(scan.KEY_PLACES, -1, np.int16)
    for number, (text, context, _, _) in enumerate(keys):
        head = int.from_bytes(text[:8], "little")
        half = scan.KEY_PLACES // 2 if context == scan.INNER else 0
        place = half + ((head ^ (len(text) * 8 + context)) * int(scan.MIX_A) % 2**64 >> (65 - scan.KEY_BITS))
        while table[place] >= 0:
            place = half + (place + 1) % (scan.KEY_PLACES // 2)
        table[place] = number
    return table
