"""Text for what lies above a step's reach: the largest items, with or without a known fix."""

from __future__ import annotations

from gpuprof.diagnosis.plug_ins import declarations
from gpuprof.diagnosis.result.above_reach import AboveReach, Item
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.names import escape, file_name, shown, shown_place
from gpuprof.report.numbers import duration, duration_range
from gpuprof.report.words.fixes import times_range
from gpuprof.report.words.rare_words import Rare, rare
from gpuprof.units import Cells, Convention, Rows, Share

MOST_SHOWN: Convention[Rows] = 3
LEAST_NAMED_SHARE: Convention[Share] = 0.02
"""Share of the step below which an item is not named."""
NAME_WIDTH: Convention[Cells] = 60
READS = ".item()"
"""What people write for the op that reads a value from the GPU."""


def title(diagnosis: Diagnosis) -> str:
    """`the step could take 109 ms on this machine`: a range if no target is known for a part of it. Adds whether a fix
    gets below: the reach assumes the recorded ops."""
    found, budget = diagnosis.above_reach, diagnosis.budget
    assert found is not None
    which = f"usual {diagnosis.unit}" if budget is not None and budget.has_usual_step else diagnosis.unit
    taken, notes = duration(found.reach_ns), list[str]()
    if found.unknown_ns >= LEAST_NAMED_SHARE * found.usual_ns:
        taken = duration_range(found.reach_ns, found.reach_ns + found.unknown_ns)
        notes.append(f"how fast {duration(found.unknown_ns)} of it could be is not known")
    if goes_below(diagnosis):
        notes.append("fixes that replace its ops go lower")
    elif goes_below(diagnosis, same_ops=True):
        notes.append("fixes that run its ops less often go lower")
    said = f"the {which} could take {taken} on this machine"
    return f"{said} ({'; '.join(notes)})" if notes else said


def goes_below(diagnosis: Diagnosis, *, same_ops: bool = False) -> bool:
    """Whether a fix that replaces ops, alone or combined with others, is expected to make the step shorter than its
    reach; with `same_ops`, any fix, also one that only runs the same ops less often. Steps with more work are left out:
    they have another reach."""
    found, both = diagnosis.above_reach, diagnosis.combined
    if found is None:
        return False
    same = set[str]() if same_ops else {one.id for one in declarations() if one.same_ops}
    steps = [one.step_ns for one in diagnosis.findings if one.work == 1 and one.id not in same]
    if both is not None and both.work == 1 and not same.issuperset(both.ids):
        steps.append(both.step_ns)
    return any(step.expected < found.reach_ns for step in steps)


def named(found: AboveReach, most: int = MOST_SHOWN, least: float = LEAST_NAMED_SHARE) -> tuple[Item, ...]:
    """The largest items, down to a share `least` of the step."""
    return tuple(item for item in found.largest[:most] if item.ns >= least * found.usual_ns)


def own_line(item: Item) -> str:
    """`train.py:42 step`, of the user's own code; `train.py: step` without a line; empty where it was not recorded."""
    where = item.where
    if not where.function:
        return ""
    file, colon, function = where.function.partition(": ")
    known = colon and where.line is not None
    return shown_place(f"{file}:{where.line} {function}" if known else where.function, NAME_WIDTH)


def place(item: Item) -> str:
    """`LlamaMLP, aten::mm`, or `before aten::mm`; empty where it was not recorded."""
    where = item.where
    op = where.op if where.op and where.op not in item.what else None
    before = f"before {where.before}" if where.before else None
    return ", ".join(shown(one, NAME_WIDTH) for one in (where.module, op, before) if one)


def gain(item: Item | Rare) -> str:
    """`1.2–1.4×`: how many times as fast the step is with the item at its reach; empty where it is not known."""
    return "" if item.gain is None else times_range(item.gain)


def line(item: Item | Rare) -> str:
    """`31.5 ms  1.2–1.4×  train.py:42 step · the forward pass computed again (LlamaMLP): checkpointing keeps less
    memory`."""
    return "  ".join(filter(None, (duration(item.ns), gain(item), text(item))))


def place_and_cause(item: Item, *, brief: bool = False, why: bool = True) -> str:
    """Where, what and why, without the time. In brief: module and op only if the line of the user's code is not known,
    and that without its folders. why: whether a known reason is given; an unknown one is always called so."""
    own, at = own_line(item), place(item)
    unknown = "how fast it could be is not known" if item.reach_ns is None else "cause not known"
    if brief and own:
        own, at = file_name(own), ""
    first = f"{own} · " if own else ""
    what = escape(item.what).replace("aten::_local_scalar_dense", READS)
    named = f"{first}{what}{f' ({at})' if at else ''}"
    return f"{named}: {escape(item.why or unknown)}" if why or item.why is None else named


def costs(
    diagnosis: Diagnosis, most: int = MOST_SHOWN, least: float = LEAST_NAMED_SHARE
) -> tuple[Rare | Item, ...]:  # fmt: skip
    """What makes the step longer: first what only some steps do, if that costs the mean step more than any item, then
    the largest items."""
    found = diagnosis.above_reach
    return () if found is None else (*rare(diagnosis), *named(found, most, least))[:most]


def text(one: Rare | Item, *, brief: bool = False, why: bool = True) -> str:
    """A cost in words, without its time."""
    if isinstance(one, Rare):
        return one.text if why else one.what
    return place_and_cause(one, brief=brief, why=why)


def lines(diagnosis: Diagnosis, most: int = MOST_SHOWN, least: float = LEAST_NAMED_SHARE) -> list[str]:
    """The reach of the step and the largest costs above it; none where there is nothing to say."""
    found = costs(diagnosis, most, least)
    return [heading(diagnosis), *map(line, found)] if found else []


def heading(diagnosis: Diagnosis) -> str:
    """The title, as the beginning of a list."""
    return f"{title(diagnosis)}; what makes it longer, and the gain without:"
