"""Converts decimal microseconds to whole nanoseconds without going through floats."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal

from gpuprof.units import Characters, Convention

_PLAIN = re.compile(rb"(-?)(\d{1,18})(?:\.(\d+))?\Z")
_ANY = re.compile(rb'"?\s*([+-]?\d{1,40}(?:\.\d{0,400})?(?:[eE][+-]?\d{1,3})?)\s*"?\Z')
INT64 = range(-(2**63) + 1, 2**63)
LONGEST_DIGITS: Convention[Characters] = 18
"""Longest number that is read without a check: 17 digits fit INT64."""


def nanoseconds(text: bytes) -> tuple[int, bool] | None:
    """Nanoseconds of a time in µs given as JSON text, and whether digits below 1 ns were rounded away.

    A number in quotes is read, too. None if it is not a number or is outside int64 (292 years).
    """
    if text[-4:-3] == b"." and 4 < len(text) <= LONGEST_DIGITS:  # the usual form: 1234.567
        digits = text[:-4] + text[-3:]
        if digits.isdigit():
            return int(digits), False
    elif text.isdigit() and len(text) < LONGEST_DIGITS - 3:
        return int(text) * 1000, False
    plain = _PLAIN.match(text)
    if plain:
        sign, whole, fraction = plain.groups()
        fraction = fraction or b""
        value = int(whole) * 1000 + int((fraction[:3] + b"000")[:3])
        rounded = len(fraction) > 3 and fraction[3:].strip(b"0") != b""
        if rounded and fraction[3:4] >= b"5":
            value += 1
        value = -value if sign else value
        return (value, rounded) if value in INT64 else None
    odd = _ANY.match(text)
    if not odd:
        return None
    exact = Decimal(odd[1].decode()) * 1000
    if abs(exact) >= 2**63:
        return None
    value = int(exact.to_integral_value(rounding=ROUND_HALF_UP))
    return (value, value != exact) if value in INT64 else None
