"""The values of JSON, for the byte scanner: where they end, and the numbers that they are."""

# ruff: noqa: SIM109 (numba makes poor code of `in`)

# What numba passes to an intrinsic, and the attributes of a compiled function, are unknown to a type checker.
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportFunctionMemberAccess=false

from __future__ import annotations

import numpy as np

from gpuprof.tracefile.kineto.scan import (
    LIGHTLY_BYTES,
    MAX_DEPTH,
    MORE,
    ODD,
)
from gpuprof.tracefile.kineto.scan_bytes import (
    as_bits,
    bit_count,
    brackets64,
    delimiters32,
    differ64,
    first_bit,
    kernel,
    load8,
    quotes32,
    spaces32,
)

ABSENT = np.int64(-(2**63))
ABSENT32 = np.int64(-(2**31))
LARGEST = np.uint64(2**63 - 1)
LATEST = np.uint64(2**62)
"""Times from here on (Unix time after 2116) are left to Python; below, start plus duration is an int64."""
QUOTE, COMMA, COLON, MINUS, DOT = (np.uint8(ord(c)) for c in '",:-.')
OPEN, CLOSE, OPEN_LIST, CLOSE_LIST = (np.uint8(ord(c)) for c in "{}[]")
ZERO, NINE = np.uint8(ord("0")), np.uint8(ord("9"))
SPACE = np.uint8(32)
BIG_E, SMALL_E = np.uint8(ord("E")), np.uint8(ord("e"))
NULL, TRUE, FALS, MEMORY = (np.uint64(int.from_bytes(w, "little")) for w in (b"null", b"true", b"fals", b"[memory]"))
NAN, INF, LOWER_CASE = (np.uint64(int.from_bytes(w, "little")) for w in (b"nan", b"inf", b"   "))
THREE_BYTES, FOUR_BYTES = np.uint64(0xFFFFFF), np.uint64(0xFFFFFFFF)
U0, U1, U8 = np.uint64(0), np.uint64(1), np.uint64(8)
DIGITS = np.uint64(0x3030303030303030)
ABOVE_NINE = np.uint64(0x7676767676767676)
HIGH_BITS = np.uint64(0x8080808080808080)
TEN = np.array([10**i for i in range(20)], np.uint64)
# What a byte is in a nested value, outside of strings.
R_WRONG, R_PLAIN, R_QUOTE, R_OPEN, R_CLOSE, R_OPEN_LIST, R_CLOSE_LIST = range(7)
ROLES = np.zeros(256, np.uint8)
ROLES[list(b" \t\r\n,:+-.0123456789eEtrufalsn")] = R_PLAIN
ROLES[list(b'"{}[]')] = R_QUOTE, R_OPEN, R_CLOSE, R_OPEN_LIST, R_CLOSE_LIST
# What may come next in a nested value.
VALUE, KEY, THE_COLON, COMMA_OR_END = range(4)


@kernel
def same(a, i, b, j, length):
    """Whether `length` bytes are equal. Both arrays are padded."""
    while length > 64:
        if differ64(a, i, b, j) != 0:
            return False
        i += 64
        j += 64
        length -= 64
    if length <= 0:
        return True
    return first_bit(differ64(a, i, b, j)) >= length


@kernel
def skip_space(text, at, end):
    """Where the white space from `at` ends."""
    if text[at] > SPACE:
        return at
    if text[at + 1] > SPACE and text[at] == SPACE:
        return at + 1
    while at < end:
        other = spaces32(text, at)
        if other != 0:
            return at + first_bit(other)
        at += 32
    return end


@kernel
def string_end(text, at, end):
    """Position of the `"` that ends the string from `at`, and 1 if the string has escapes."""
    escaped = 0
    while at < end:
        found = quotes32(text, at)
        if found == 0:
            at += 32
            continue
        at += first_bit(found)
        if text[at] == QUOTE:
            return at, escaped
        escaped = 1
        at += 2
    return MORE, escaped


@kernel
def nested_end(text, at, end):
    """Where the list or object that begins at `at` ends. Short ones, which nearly all are, are checked only roughly."""
    begin = at
    depth = np.int64(0)
    inside = np.int64(0)  # all ones where a string continues from the chunk before
    while at < end and at < begin + LIGHTLY_BYTES:
        quotes, opens, closes, slashes = brackets64(text, at)
        if slashes != 0:
            break
        strings = quotes ^ (quotes << 1)
        strings ^= strings << 2
        strings ^= strings << 4
        strings ^= strings << 8
        strings ^= strings << 16
        strings ^= strings << 32
        strings ^= inside
        opens &= ~strings
        closes &= ~strings
        rest = closes
        closed = np.int64(0)
        while rest != 0:
            bit = rest & -rest
            closed += 1
            if depth + bit_count(opens & (bit - 1)) - closed == 0:
                return at + first_bit(bit) + 1
            rest ^= bit
        depth += bit_count(opens) - closed
        if bit_count(quotes) & 1:
            inside = ~inside
        at += 64
    return nested_end_strictly(text, begin, end)


@kernel
def nested_end_strictly(text, at, end):
    """The same, byte for byte: for text with escapes, and so that a superfluous quote does not include the rest of the
    text."""
    depth = np.int64(0)
    lists = U0  # a bit for each list that is open, as opposed to an object
    while at < end:
        role = ROLES[text[at]]
        if role == R_QUOTE:
            at, _ = string_end(text, at + 1, end)
            if at < 0:
                return MORE
        elif role == R_OPEN or role == R_OPEN_LIST:
            if depth == MAX_DEPTH:
                return ODD
            depth += 1
            lists = (lists << U1) | np.uint64(role == R_OPEN_LIST)
        elif role == R_CLOSE or role == R_CLOSE_LIST:
            if ((lists & U1) == U1) != (role == R_CLOSE_LIST):
                return ODD
            lists >>= U1
            depth -= 1
            if depth == 0:
                return at + 1
        elif role == R_WRONG:
            return ODD
        at += 1
    return MORE


@kernel
def well_formed(text, at, end):
    """Whether the object from `at` to `end` has the structure of JSON: keys, colons, values and commas in their places.

    Numbers and words are not checked, and a comma before a bracket is accepted: Python mends these.
    """
    depth = np.int64(0)
    lists = U0  # a bit for each list that is open, as opposed to an object
    wants = VALUE
    while at < end:
        c = text[at]
        if c <= SPACE:
            at += 1
            continue
        if c == CLOSE or c == CLOSE_LIST:
            in_list = (lists & U1) == U1
            if in_list != (c == CLOSE_LIST) or not (wants == COMMA_OR_END or wants == (VALUE if in_list else KEY)):
                return False
            lists >>= U1
            depth -= 1
            at += 1
            if depth == 0:
                return at == end
            wants = COMMA_OR_END
        elif wants == COMMA_OR_END:
            if c != COMMA:
                return False
            wants = VALUE if (lists & U1) == U1 else KEY
            at += 1
        elif wants == THE_COLON:
            if c != COLON:
                return False
            wants = VALUE
            at += 1
        elif c == QUOTE:
            at, _ = string_end(text, at + 1, end)
            if at < 0:
                return False
            at += 1
            wants = COMMA_OR_END if wants == VALUE else THE_COLON
        elif wants == KEY:
            return False
        elif c == OPEN or c == OPEN_LIST:
            if depth == MAX_DEPTH:
                return False
            depth += 1
            lists = (lists << U1) | np.uint64(c == OPEN_LIST)
            wants = VALUE if c == OPEN_LIST else KEY
            at += 1
        else:
            after = token_end(text, at, end)
            if after == at:
                return False
            at = after
            wants = COMMA_OR_END
    return False


@kernel
def token_end(text, at, end):
    """Where a number or word ends."""
    while at < end:
        found = delimiters32(text, at)
        if found != 0:
            return min(at + first_bit(found), end)
        at += 32
    return end


@kernel
def value_end(text, at, end, sheet):
    """Where a value of any kind ends. Bare `nan` and `inf`, which JSON does not have, are noted."""
    c = text[at]
    if c >= ZERO and c <= NINE:
        return token_end(text, at, end)
    if c == QUOTE:
        at, _ = string_end(text, at + 1, end)
        return at + 1 if at >= 0 else MORE
    if c == OPEN_LIST or c == OPEN:
        return nested_end(text, at, end)
    word = load8(text, at) & FOUR_BYTES
    if word == NULL or word == TRUE:
        return at + 4
    if word == FALS and text[at + 4] == SMALL_E:
        return at + 5
    first = at + 1 if c == MINUS else at
    if first > at and text[first] >= ZERO and text[first] <= NINE:
        return token_end(text, first, end)
    word = (load8(text, first) & THREE_BYTES) | LOWER_CASE
    if word == NAN or word == INF:
        sheet.mended = 1
        return token_end(text, first, end)
    return MORE if first + 5 >= end else ODD


@kernel
def digits(text, at):
    """How many of the next eight bytes are digits before the first other one, and their value."""
    word = load8(text, at) ^ DIGITS
    other = ((word + ABOVE_NINE) | word) & HIGH_BITS
    count = np.int64(8)
    if other != U0:
        count = first_bit(np.int64(other)) >> 3
        if count == 0:
            return count, U0
        word <<= np.uint64(64 - 8 * count)
    word = word * np.uint64(10) + (word >> U8)
    low = (word & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    high = ((word >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    return count, (low + high) >> np.uint64(32)


@kernel
def whole(text, at):
    """Where the digits from `at` end, and their value (wrong beyond 19 digits)."""
    count, value = digits(text, at)
    at += count
    while count == 8:
        count, more = digits(text, at)
        value = value * TEN[count] + more
        at += count
    return at, value


@kernel
def integer(text, at, end):
    """Where a number ends, and its value: ABSENT unless it is a whole number within int64."""
    negative = text[at] == MINUS
    begin = at + 1 if negative else at
    at, value = whole(text, begin)
    count = at - begin
    if count == 0:
        return (MORE if at >= end else ODD), ABSENT
    c = text[at]
    if c == DOT or c == SMALL_E or c == BIG_E:
        return token_end(text, at, end), ABSENT
    if count > 19 or value > LARGEST:
        return at, ABSENT
    return at, (-np.int64(value) if negative else np.int64(value))


@kernel
def decimal(text, at):
    """Where a decimal number ends, and its bits as float64; ODD where Python must read it."""
    negative = text[at] == MINUS
    begin = at + 1 if negative else at
    at, value = whole(text, begin)
    count = at - begin
    places = 0
    if text[at] == DOT:
        begin = at + 1
        at, below = whole(text, begin)
        places = at - begin
        if places == 0 or places + count > 18:
            return ODD, ABSENT
        value = value * TEN[places] + below
    if count == 0 or count > 18 or text[at] == SMALL_E or text[at] == BIG_E:
        return ODD, ABSENT
    number = np.float64(value) / np.float64(TEN[places])
    return at, as_bits(-number if negative else number)


@kernel
def nanoseconds(text, at):
    """Where a time in µs ends, its nanoseconds, and 1 if digits below were rounded away; like
    `microseconds.nanoseconds`. ODD instead of a place if it is not in plain digits: Python reads the other forms.
    """
    negative = text[at] == MINUS
    begin = at + 1 if negative else at
    at, value = whole(text, begin)
    count = at - begin
    rounded = 0
    if count == 0 or count > 16:
        return ODD, ABSENT, rounded
    value *= np.uint64(1000)
    if text[at] == DOT:
        at += 1
        count, below = digits(text, at)
        if count == 0:
            return ODD, ABSENT, rounded
        if count <= 3:
            value += below * TEN[3 - count]
            at += count
        else:
            kept = below // TEN[count - 3]
            rounded = 1 if below != kept * TEN[count - 3] else 0
            value += kept
            if text[at + 3] >= ZERO + 5:
                value += U1
            at += count
            while text[at] >= ZERO and text[at] <= NINE:
                rounded |= text[at] != ZERO
                at += 1
    if text[at] == SMALL_E or text[at] == BIG_E or value >= LATEST:
        return ODD, ABSENT, rounded
    return at, (-np.int64(value) if negative else np.int64(value)), rounded


@kernel
def vector(text, at, end, values, slot):
    """Where a list of three whole numbers ends (their values go to three slots); ODD if it is anything else."""
    for i in range(3):
        at = skip_space(text, at + 1, end)
        at, values[slot + i] = integer(text, at, end)
        if at < 0 or values[slot + i] <= ABSENT32 or values[slot + i] >= 2**31:
            return ODD
        at = skip_space(text, at, end)
        if text[at] != (CLOSE_LIST if i == 2 else COMMA):
            return ODD
    return at + 1
