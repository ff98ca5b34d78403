"""One event for the byte scanner (see `scan`): its keys and values are read, and it is written as a row; compiled by
numba into the functions of `scan_kernels`.
"""

# ruff: noqa: SIM109 (numba makes poor code of `in`)

# What numba passes to an intrinsic, and the attributes of a compiled function, are unknown to a type checker.
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportFunctionMemberAccess=false

from __future__ import annotations

import numpy as np

from gpuprof.tracefile.kineto.scan import (
    ARGS,
    ARGS_START,
    CATEGORY,
    DROPPED,
    ENDS_ARGS,
    ENDS_EVENT,
    EXTRA,
    FLOAT,
    FOR_PYTHON,
    INNER,
    KEY_BITS,
    KEY_BYTES,
    KEY_PLACES,
    MIX_A,
    MORE,
    NO_ROWS,
    NO_STRINGS,
    ODD,
    PAUSED,
    PHASE,
    RAW,
    ROW_BYTES,
    S_BEGINS,
    S_CATEGORY,
    S_END,
    S_EXTRA,
    S_KIND,
    S_NAME,
    S_PID,
    S_START,
    S_TID,
    SKIP,
    START,
    STORE_F32,
    STORE_I32,
    STORE_I64,
    STORE_TEXT,
    T_FLOWS,
    T_MEMORY,
    T_OTHER,
    TEXT,
    TIME,
    TOP,
    VECTOR,
    WHOLE,
)
from gpuprof.tracefile.kineto.scan_bytes import (
    copy64,
    differ64,
    first_bit,
    kernel,
    load8,
    mixed,
    store_f32,
    store_i32,
    store_i64,
    store_u8,
)
from gpuprof.tracefile.kineto.scan_values import (
    ABSENT,
    ABSENT32,
    CLOSE,
    COLON,
    COMMA,
    FOUR_BYTES,
    MEMORY,
    MINUS,
    NINE,
    NULL,
    OPEN,
    OPEN_LIST,
    QUOTE,
    U0,
    U1,
    ZERO,
    decimal,
    integer,
    nanoseconds,
    same,
    skip_space,
    string_end,
    value_end,
    vector,
)

PH_SPAN, PH_META, PH_INSTANT = ord("X"), ord("M"), ord("i")
PH_START, PH_FINISH, PH_STEP = ord("s"), ord("f"), ord("t")
MIX_B = np.uint64(0xD6E8FEB86659FD93)


# --- keys and strings -----------------------------------------------------------------------------------------------


@kernel
def head_bytes(text, at, length):
    """The first eight bytes of a text, zero beyond its length."""
    word = load8(text, at)
    if length < 8:
        word &= (U1 << np.uint64(8 * length)) - U1
    return word


@kernel
def find_place(text, at, length, context, plan):
    """Place of a key (or category) in `plan.places`; an empty one if the plan has no such key."""
    # Keys of args have their own half of the table: a place also says what may follow, see `learn_joint`.
    half = np.int64(KEY_PLACES // 2) if context == INNER else np.int64(0)
    head = head_bytes(text, at, length) ^ np.uint64(length * 8 + context)
    place = half + np.int64((head * MIX_A) >> np.uint64(65 - KEY_BITS))
    while True:
        number = plan.places[place]
        if number < 0 or (
            plan.length[number] == length
            and plan.context[number] == context
            and same(text, at, plan.keys, number * KEY_BYTES, length)
        ):
            return place
        place = half + ((place + 1) & (KEY_PLACES // 2 - 1))


@kernel
def hash_text(text, at, length, seed):
    """A hash of all bytes of a text."""
    state = seed ^ (np.uint64(length) * MIX_A)
    while length > 16:
        state = mixed(load8(text, at) ^ MIX_B, load8(text, at + 8) ^ state)
        at += 16
        length -= 16
    first = head_bytes(text, at, length)
    second = head_bytes(text, at + 8, length - 8) if length > 8 else U0
    return mixed(first ^ MIX_B, second ^ state)


@kernel
def intern(text, begin, length, seed, sheet, strings, string_places):
    """Number of a text among those of this block; -1 when there is no room for a new one."""
    size = length >> 1
    digest = hash_text(text, begin, size, seed)
    last = len(string_places) - 1
    place = np.int64(digest) & last
    while True:
        number = np.int64(string_places[place])
        if number < 0:
            break
        if (
            strings[number].hash == digest
            and strings[number].length == length
            and same(text, strings[number].begin, text, begin, size)
        ):
            return number
        place = (place + 1) & last
    number = sheet.strings
    if number >= len(strings):
        return np.int64(-1)
    sheet.strings = number + 1
    string_places[place] = number
    strings[number].begin = begin
    strings[number].length = length
    strings[number].hash = digest
    return number


# --- events ---------------------------------------------------------------------------------------------------------


@kernel
def known_joint(text, at, place, sheet):
    """Number of the remembered joint that follows the value of the key at `place` here, -1 if none does."""
    joint = place * 2
    if (differ64(text, at, sheet.joint, joint * 64) & sheet.joint_bits[joint]) == 0:
        return joint
    joint += 1
    if (differ64(text, at, sheet.joint, joint * 64) & sheet.joint_bits[joint]) == 0:
        return joint
    return np.int64(-1)


@kernel
def learn_joint(text, begin, end, place, leads, sheet):
    """Remembers a joint and where it leads: its length, whether it ends args or event, the place of the next key."""
    if end - begin < 64:
        joint = place * 2 + sheet.joint_turn
        sheet.joint_turn ^= 1
        copy64(sheet.joint, joint * 64, text, begin)
        sheet.joint_bits[joint] = (1 << (end - begin)) - 1
        sheet.joint_leads[joint] = leads | (end - begin)


@kernel
def take_args(begin, end, sheet):
    """Keeps the text of all args."""
    sheet.bits |= 1 << S_EXTRA
    sheet.value[S_EXTRA] = begin
    sheet.length[S_EXTRA] = (end - begin) << 1


@kernel
def read_text(text, at, end, slot, sheet):
    """Where a value ends that is kept as text: a string without its quotes, anything else as written."""
    sheet.bits |= 1 << slot
    if text[at] == QUOTE:
        begin = at + 1
        at, escaped = string_end(text, begin, end)
        if at < 0:
            return at
        sheet.value[slot] = begin
        sheet.length[slot] = ((at - begin) << 1) | escaped
        return at + 1
    begin, mended = at, sheet.mended
    sheet.mended = 0
    at = value_end(text, at, end, sheet)
    sheet.hand |= sheet.mended
    sheet.mended |= mended
    sheet.value[slot] = begin
    sheet.length[slot] = (at - begin) << 1
    return at


@kernel
def read_phase(text, at, end, sheet):
    """Where the value of `ph` ends. Its letter is kept; longer ones are not phases that we know."""
    if text[at] != QUOTE:
        sheet.hand = 1
        return value_end(text, at, end, sheet)
    begin = at + 1
    at, escaped = string_end(text, begin, end)
    sheet.hand |= escaped
    sheet.phase = np.int64(text[begin]) if at - begin == 1 else 0
    return at + 1 if at >= 0 else at


@kernel
def read_number(text, at, end, kind, slot, sheet):
    """Where a value ends that is kept only if it is a number of that kind."""
    c = text[at]
    if kind == VECTOR:
        after = vector(text, at, end, sheet.value, slot) if c == OPEN_LIST else np.int64(ODD)
        if after >= 0:
            sheet.bits |= 7 << slot
            return after
        sheet.bits &= ~(7 << slot)
    elif (c >= ZERO and c <= NINE) or (c == MINUS and text[at + 1] >= ZERO and text[at + 1] <= NINE):
        sheet.bits |= 1 << slot
        if kind == WHOLE:
            at, sheet.value[slot] = integer(text, at, end)
            return at
        after, sheet.value[slot] = decimal(text, at)
        if after >= 0:
            return after
        sheet.hand = 1
    else:
        sheet.bits &= ~(1 << slot)
    return value_end(text, at, end, sheet)


@kernel
def read_time(text, at, end, slot, sheet):
    """Where the value of `ts` or `dur` ends."""
    after, sheet.value[slot], rounded = nanoseconds(text, at)
    if after < 0:
        sheet.hand = 1
        return value_end(text, at, end, sheet)
    sheet.roundings += rounded
    return after


@kernel
def begin_event(at, sheet):
    """Clears the sheet: name, category and track are empty texts, and there is no time."""
    sheet.bits = (1 << S_NAME) | (1 << S_CATEGORY) | (1 << S_PID) | (1 << S_TID)
    for slot in (S_NAME, S_CATEGORY, S_PID, S_TID):
        sheet.value[slot] = at
        sheet.length[slot] = 0
    sheet.value[S_START] = ABSENT
    sheet.value[S_END] = 0
    sheet.phase = 0
    sheet.hand = 0
    sheet.mended = 0
    sheet.roundings = 0


@kernel
def read_key(text, at, end, context, first, plan, sheet):
    """Reads the comma, unless the key is the first, the key and the colon before a value: where the value begins (or
    what is wrong), the key's place, and whether it has escapes."""
    place, escaped = np.int64(-1), np.int64(0)
    if not first:
        if text[at] != COMMA:
            return (MORE if at >= end else ODD), place, escaped
        at = skip_space(text, at + 1, end)
    if text[at] != QUOTE:
        return (MORE if at >= end else ODD), place, escaped
    key = at + 1
    at, escaped = string_end(text, key, end)
    if at < 0:
        return MORE, place, escaped
    place = find_place(text, key, at - key, context, plan)
    at = skip_space(text, at + 1, end)
    if text[at] != COLON:
        return (MORE if at >= end else ODD), place, escaped
    return skip_space(text, at + 1, end), place, escaped


@kernel
def read_joint(text, at, end, place, context, plan, sheet):
    """Reads a joint that is not remembered, and remembers it: where it ends (or what is wrong), and where it leads."""
    begin, leads, first = at, np.int64(0), place >= KEY_PLACES
    at = skip_space(text, at, end)
    while text[at] == CLOSE:
        at += 1
        if context == TOP:
            leads |= ENDS_EVENT
            learn_joint(text, begin, at, place, leads, sheet)
            return at, leads
        context = TOP
        leads |= ENDS_ARGS
        first = False
        at = skip_space(text, at, end)
    at, next_place, escaped = read_key(text, at, end, context, first, plan, sheet)
    sheet.hand |= escaped
    leads |= next_place << 16
    if at >= 0 and not escaped:
        learn_joint(text, begin, at, place, leads, sheet)
    return at, leads


@kernel
def read_value(text, at, end, kind, slot, sheet):
    """Where a value ends that is not the object of args; it is kept if its kind says so."""
    if kind == WHOLE or kind == VECTOR or kind == FLOAT:
        return read_number(text, at, end, kind, slot, sheet)
    if kind == RAW:
        return read_text(text, at, end, slot, sheet)
    if kind == TEXT:
        sheet.hand |= text[at] != QUOTE
        return read_text(text, at, end, slot, sheet)
    if kind == TIME:
        return read_time(text, at, end, slot, sheet)
    if kind == PHASE:
        return read_phase(text, at, end, sheet)
    return value_end(text, at, end, sheet)


@kernel
def args_end(text, at):
    """Where args end, if their last value ends at `at`."""
    while text[at] != CLOSE:
        at += 1
    return at + 1


@kernel
def read_event(text, at, end, plan, sheet):
    """Reads an event from just after its `{` into `sheet`; returns where it ends."""
    begin_event(at, sheet)
    context, place = TOP, np.int64(START)
    args_begin = np.int64(-1)
    has_extra = False
    while True:
        # A joint: from one value to the next, or to the end of the event.
        begin = at
        joint = known_joint(text, at, place, sheet)
        if joint >= 0:
            leads = sheet.joint_leads[joint]
            at += leads & 255
        else:
            at, leads = read_joint(text, at, end, place, context, plan, sheet)
            if at < 0:
                return at
        if leads & ENDS_ARGS:
            context = TOP
            if has_extra:
                take_args(args_begin, args_end(text, begin), sheet)
                has_extra = False
        if leads & ENDS_EVENT:
            return at
        place = leads >> 16
        # A value.
        number = plan.places[place]
        kind = plan.kind[number] if number >= 0 else SKIP
        if context == TOP and (text[at] == OPEN_LIST or (text[at] == OPEN and kind != ARGS)):
            sheet.hand = 1  # only args are nested: after damage here they may include the events that follow
        if kind == ARGS:
            sheet.bits &= ~plan.inner
            has_extra = False
        elif kind == EXTRA:
            has_extra = (load8(text, at) & FOUR_BYTES) != NULL
        if kind == ARGS and text[at] == OPEN:
            args_begin = at
            at += 1
            context = INNER
            place = np.int64(ARGS_START)
        else:
            at = read_value(text, at, end, kind, plan.slot[number], sheet)
        if at < 0:
            return at


@kernel
def classify(text, plan, sheet):
    """Table of the event that was read (its row's `kind` goes to a slot), or FOR_PYTHON or DROPPED; as in
    `msgspec_reader`."""
    if sheet.phase == PH_META or sheet.hand or sheet.length[S_CATEGORY] & 1:
        return np.int64(FOR_PYTHON)
    if sheet.value[S_START] == ABSENT:
        return np.int64(DROPPED)
    number = np.int64(-1)
    size = sheet.length[S_CATEGORY] >> 1
    if size <= KEY_BYTES:
        number = np.int64(plan.places[find_place(text, sheet.value[S_CATEGORY], size, CATEGORY, plan)])
    table, kind = np.int64(T_OTHER), np.int64(0)
    if sheet.phase == PH_SPAN:
        if number >= 0 and plan.kind[number] != T_FLOWS:
            table, kind = plan.kind[number], plan.slot[number]
    elif sheet.phase == PH_START or sheet.phase == PH_FINISH or sheet.phase == PH_STEP:
        table, kind = np.int64(T_FLOWS), np.int64(2)
        if number >= 0 and plan.kind[number] == T_FLOWS:
            kind = plan.slot[number]
        sheet.value[S_BEGINS] = 1 if sheet.phase == PH_START else 0
    elif sheet.length[S_NAME] == 2 * 8 and load8(text, sheet.value[S_NAME]) == MEMORY and sheet.phase == PH_INSTANT:
        table = np.int64(T_MEMORY)
    sheet.value[S_KIND] = kind
    return table


@kernel
def write_row(text, table, plan, sheet, rows, strings, string_places):
    """Writes the event that was read as a row. Returns PAUSED, or what there is no room for."""
    row = sheet.count[table]
    if row >= sheet.capacity[table]:
        return NO_ROWS
    at = sheet.base[table] + row * plan.size[table]
    for part in range(0, plan.size[table], 64):
        copy64(rows, at + part, plan.defaults, table * ROW_BYTES + part)
    sheet.value[S_END] += sheet.value[S_START]
    bits = sheet.bits | (1 << S_START) | (1 << S_END) | (1 << S_KIND) | (1 << S_BEGINS)
    bits &= plan.fields[table]
    while bits != 0:
        slot = first_bit(bits)
        bits &= bits - 1
        place = at + plan.offset[table, slot]
        store = plan.store[table, slot]
        value = sheet.value[slot]
        if store == STORE_TEXT:
            value = intern(text, value, sheet.length[slot], plan.seed, sheet, strings, string_places)
            if value < 0:
                return NO_STRINGS
            store_i32(rows, place, value)
        elif store == STORE_I64:
            store_i64(rows, place, value)
        elif store == STORE_I32:
            if value < -(2**31) or value >= 2**31:
                value = ABSENT32
            store_i32(rows, place, value)
        elif store == STORE_F32:
            store_f32(rows, place, value)
        else:
            store_u8(rows, place, value)
    sheet.count[table] = row + 1
    return PAUSED
