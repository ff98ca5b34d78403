"""Where the entries of a pickled dump begin and end, and their facts: the code of `recent.find_entries`, compiled by
numba. Instructions are those of Python's pickletools."""

# ruff: noqa: SIM109 (numba makes poor code of `in`)

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof.hang.recent import DEFINES, LONG, NAME, TEXT
from gpuprof.tracefile.compiled import jitted

MARK, TUPLE, SET_ITEMS, APPENDS, DICT = b"(tue}"
PUT, LONG_PUT, GET, LONG_GET = b"qrhj"
BYTE, TWO_BYTES, INTEGER, UNICODE = b"KMJX"
TUPLE_1, TUPLE_3, TRUE, FALSE = b"\x85\x87\x88\x89"
LETTER_C, LETTER_O, LETTER_A, LETTER_L = b"coal"  # with which `recent.COALESCED` begins


def kernel(function: Any) -> Any:
    """Decorator: the function is compiled and inlined into its callers."""
    return jitted(function, forceinline=True)


@kernel
def little_endian(data, at, count):
    """The unsigned number in the `count` bytes from `at` on."""
    value = np.int64(0)
    for i in range(count):
        value |= np.int64(data[at + i]) << (8 * i)
    return value


@kernel
def width_of(data, at, widths):
    """Bytes after the instruction at `at`; -1 if torch does not write such an instruction, or if the data ends in
    it."""
    width = np.int64(widths[data[at]])
    if width >= 0:
        return width if at + 1 + width <= len(data) else np.int64(-1)
    if width == TEXT:
        if at + 4 >= len(data) or data[at + 4] != 0:
            return np.int64(-1)
        width = 4 + little_endian(data, at + 1, 3)
    elif width == LONG:
        if at + 1 >= len(data):
            return np.int64(-1)
        width = 1 + np.int64(data[at + 1])
    return width if at + 1 + width <= len(data) else np.int64(-1)


@kernel
def ends_operation(data, begin, end):
    """1 if a text names a coalesced operation, else 0."""
    for i in range(begin, end - 8):
        if data[i] == LETTER_C and data[i + 1] == LETTER_O and data[i + 2] == LETTER_A and data[i + 3] == LETTER_L:
            return 1
    return 0


@kernel
def value_of(data, at):
    """The number that an instruction pushes, or the memo's place that it reads; -1 for anything else."""
    code = data[at]
    if code == GET or code == BYTE:
        return np.int64(data[at + 1])
    if code == TWO_BYTES:
        return little_endian(data, at + 1, 2)
    if code == INTEGER or code == LONG_GET:
        value = little_endian(data, at + 1, 4)
        return value if value < 1 << 31 else np.int64(-1)
    if code == TRUE:
        return np.int64(1)
    return np.int64(0) if code == FALSE else np.int64(-1)


@kernel
def keep_fact(code, value, slot, row, facts, ending):
    """Writes the value of a key, if the key at `slot` is one of the facts."""
    if slot == NAME:
        facts[row, NAME] = -1
        if (code == GET or code == LONG_GET) and 0 <= value < len(ending):
            facts[row, NAME] = ending[value]
    elif slot > 0 and code != GET and code != LONG_GET:
        facts[row, slot] = value


@kernel
def entry_end(data, at, row, slots, widths, facts, ending, ends_one):
    """Reads the entry whose keys begin at `at`. Returns where it ends (-1 if torch would not have written it so) and
    whether the last text that was defined ends a coalesced operation."""
    depth, height, slot = 1, 0, 0  # height: of the dict's keys and values on the stack
    code = np.int64(0)
    while depth > 0:
        if at >= len(data):
            return np.int64(-1), ends_one
        code = np.int64(data[at])
        if code == GET and (depth > 1 or slot == 0) and at + 1 < len(data):  # half of all instructions
            if depth == 1:
                height += 1
                if height & 1:
                    slot = slots[data[at + 1]]
            at += 2
            continue
        if code == MARK:
            depth += 1
            at += 1
            continue
        width = width_of(data, at, widths)
        if width < 0:
            return np.int64(-1), ends_one
        if code == UNICODE:
            ends_one = ends_operation(data, at + 5, at + 1 + width)
        if code == SET_ITEMS or code == APPENDS or code == TUPLE:  # all since the mark is one value
            depth -= 1
            slot = 0
            if depth == 1 and code == TUPLE:
                height += 1
        elif code == PUT or code == LONG_PUT:
            place = np.int64(data[at + 1]) if code == PUT else little_endian(data, at + 1, 4)
            if place >= len(ending):
                return np.int64(-1), ends_one
            facts[row, DEFINES] = 1
            ending[place] = ends_one
            ends_one = 0
        elif depth == 1 and TUPLE_1 <= code <= TUPLE_3:
            height -= code - TUPLE_1
            slot = 0
        elif depth == 1:
            value = value_of(data, at)
            keep_fact(code, value, slot, row, facts, ending)
            slot = 0
            height += 1
            if height % 2 == 1 and (code == GET or code == LONG_GET) and 0 <= value < len(slots):
                slot = slots[value]
        at += 1 + width
    return (at if code == SET_ITEMS else np.int64(-1)), ends_one


@jitted
def find_entries(data, at, slots, widths, starts, ends, facts, ending):
    """Fills in where the entries of the list begin and end, and their facts. Returns their number, -1 where the pickle
    is not as torch writes it. ending: for each place of the memo whether its text ends coalesced operations (set here
    for texts that the entries define)."""
    count, ends_one = 0, 0
    while at < len(data):
        if data[at] == APPENDS:  # the list's end
            return count
        if data[at] != DICT or at + 1 >= len(data) or data[at + 1] != MARK or count >= len(starts):
            return -1
        starts[count] = at
        for column in range(facts.shape[1]):
            facts[count, column] = -1
        at, ends_one = entry_end(data, at + 2, count, slots, widths, facts, ending, ends_one)
        if at < 0:
            return -1
        ends[count] = at
        count += 1
    return -1
