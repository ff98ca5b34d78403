"""What the byte scanner does with the text of many events (see `scan`): what Python calls, compiled by numba.

Cached machine code belongs to one state of this file, of the kernels that it calls (`scan_bytes`, `scan_values`,
`scan_events`) and of `scan`. So nothing of `layout` is compiled in: keys, tables and row offsets are data (`plan`).
"""

# What numba passes to an intrinsic, and the attributes of a compiled function, are unknown to a type checker.
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportFunctionMemberAccess=false

from __future__ import annotations

import numpy as np

from gpuprof.tracefile.kineto.scan import (
    DROPPED,
    ENDED,
    FOR_PYTHON,
    KEY_BYTES,
    MORE,
    NO_ODD,
    ODD,
    PADDING_BYTES,
    PAUSED,
    TOP,
)
from gpuprof.tracefile.kineto.scan_bytes import entry, kernel
from gpuprof.tracefile.kineto.scan_events import classify, find_place, read_event, write_row
from gpuprof.tracefile.kineto.scan_values import (
    CLOSE,
    CLOSE_LIST,
    COLON,
    COMMA,
    OPEN,
    OPEN_LIST,
    QUOTE,
    SPACE,
    same,
    skip_space,
    string_end,
    value_end,
    well_formed,
)


@kernel
def separator_at(text, at, begin, end, plan):
    """Whether the `{` at `at` begins an event after another: `}`, perhaps a comma, `{ "key":` with an event's key."""
    key = skip_space(text, at + 1, end) + 1
    if text[key - 1] != QUOTE:
        return False
    after, escaped = string_end(text, key, min(key + KEY_BYTES, end))
    if after < 0 or escaped or plan.places[find_place(text, key, after - key, TOP, plan)] < 0:
        return False
    after = skip_space(text, after + 1, end)
    if text[after] != COLON:
        return False
    at -= 1
    while at >= begin and (text[at] <= SPACE or text[at] == COMMA):
        at -= 1
    return at >= begin and text[at] == CLOSE


@kernel
def skip_between(text, at, end):
    """Where the text between two events ends."""
    while at < end and (text[at] <= SPACE or text[at] == COMMA):
        at += 1
    return at


@kernel
def closes_list(text, at, end):
    """Whether a `]` comes next."""
    return text[skip_between(text, at, end)] == CLOSE_LIST


@kernel
def ends_text(text, at, end):
    """Whether nothing comes next."""
    return skip_between(text, at, end) >= end


@entry
def find_separator(text, at, begin, end, step, plan):
    """The `{` of the event after a separator within `begin` … `end`: the first from `at` on, by steps of 1 or -1.

    MORE if there is none.
    """
    while at >= begin and at < end:
        if text[at] == OPEN and separator_at(text, at, begin, end, plan):
            return at
        at += step
    return np.int64(MORE)


@entry
def scan(text, at, end, cut, final, distrust, plan, sheet, rows, strings, string_places, odd):
    """Reads events from `at` (between two events) to `end` into `rows`, `strings` and `odd` (begin and end of each).

    `cut`: the text was cut before an event, so that damage need not wait for more text; `final`: no more text follows;
    `distrust`: leave all events to Python. Returns PAUSED (`sheet.position`: where an unfinished event begins, or
    `end`), ENDED (just after the `]` of the list), or what there is no room for.
    """
    sheet.count[:] = 0
    sheet.strings = 0
    sheet.odd = 0
    sheet.rounded = 0
    sheet.repaired = 0
    sheet.dropped = 0
    string_places[:] = -1
    while True:
        at = skip_between(text, at, end)
        sheet.position = at
        if at >= end:
            return PAUSED
        if text[at] == CLOSE_LIST:
            sheet.position = at + 1
            return ENDED
        event = text[at] == OPEN
        after = np.int64(ODD)
        if event:
            after = read_event(text, at + 1, end, plan, sheet)
        elif text[at] != OPEN_LIST:
            after = value_end(text, at, end, sheet)
            if after >= 0 and closes_list(text, after, end):
                # After something that is not an event, the bracket may be that of a list in an event: it ends this list
                # if no event follows.
                following = find_separator(text, at, at, end, 1, plan)
                if following >= 0 or cut:
                    after = following if following >= 0 else end
                elif not final:
                    return PAUSED
        table = np.int64(FOR_PYTHON if event else DROPPED)
        if after < 0:
            table = np.int64(FOR_PYTHON)
            if after == MORE and not final:
                return PAUSED
            after = find_separator(text, at, at, end, 1, plan)
            if after < 0:
                if not cut:
                    return PAUSED
                after = end
        elif event:
            if not distrust:
                table = classify(text, plan, sheet)
            if table < 0:
                # Damage ends where the next event seems to begin, or it would include the events that follow.
                inside = find_separator(text, at + 1, at + 1, after, 1, plan)
                if inside >= 0:
                    whole_event = well_formed(text, at, after)
                    if whole_event and not cut and ends_text(text, after, end):
                        # The list has no end: damage has opened one in this event, which includes the rest of the file.
                        if not final:
                            return PAUSED
                        whole_event = False
                    if not whole_event:
                        table = np.int64(FOR_PYTHON)
                        after = inside
        if table >= 0:
            status = write_row(text, table, plan, sheet, rows, strings, string_places)
            if status != PAUSED:
                return status
            sheet.rounded += sheet.roundings
            sheet.repaired += sheet.mended
        elif table == DROPPED:
            if sheet.dropped == 0:
                sheet.sample = at
            sheet.dropped += 1
        elif sheet.odd < len(odd):
            odd[sheet.odd, 0] = at
            odd[sheet.odd, 1] = after
            sheet.odd += 1
        else:
            return NO_ODD
        at = after


@entry
def merge(text, strings, first, count, arena, table, places, used, numbers):
    """Adds the strings of a block, from `first` to `count`, to those of the file; their numbers go to `numbers`.

    `used`: strings of the file, bytes of its `arena`, and strings that `places` knows. Returns `count`, or the number
    of the first one for which there was no room.
    """
    last = len(places) - 1
    for number in range(used[2], used[0]):
        place = np.int64(table[number].hash) & last
        while places[place] >= 0:
            place = (place + 1) & last
        places[place] = number
    used[2] = used[0]
    for local in range(first, count):
        begin, length, digest = strings[local].begin, strings[local].length, strings[local].hash
        size = length >> 1
        place = np.int64(digest) & last
        number = np.int64(places[place])
        while number >= 0 and not (
            table[number].hash == digest
            and table[number].length == length
            and same(arena, table[number].begin, text, begin, size)
        ):
            place = (place + 1) & last
            number = np.int64(places[place])
        if number < 0:
            number = used[0]
            if number >= len(table) or used[1] + size + PADDING_BYTES > len(arena):
                return local
            for i in range(size):
                arena[used[1] + i] = text[begin + i]
            table[number].begin = used[1]
            table[number].length = length
            table[number].hash = digest
            places[place] = number
            used[0] = number + 1
            used[1] += size
            used[2] = number + 1
        numbers[local] = number
    return count
