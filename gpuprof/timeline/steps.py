"""Where one step ends and the next begins.

First that applies: the range the user names, a serving engine's iterations, ProfilerStep#N, a repeated user range that
is called a step, the ends of the optimizer's steps, the period of the kernel sequence. Otherwise the whole recording is
one window.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.errors import GpuprofError
from gpuprof.timeline.intervals import Cover, join
from gpuprof.timeline.links import Links
from gpuprof.timeline.nesting import busiest_thread
from gpuprof.timeline.range_names import unnumbered
from gpuprof.timeline.serving import is_iteration
from gpuprof.timeline.startup import start_up_spans
from gpuprof.tracefile.distinct import ordered
from gpuprof.tracefile.trace import ABSENT, ANNOTATION, I64, LATEST_NS, Trace
from gpuprof.units import Assumed, Convention, Entries, Kernels, Ratio, Share, Steps, WholeNs

CUT_SHARE: Assumed[Share] = 0.7
"""A step with less than this share of the usual launches was cut by the recording: steps of one training differ by
sequence lengths and logging, which move kernel sizes but hardly their number."""

MOST_NAMED: Convention[Entries] = 6
"""Ranges that a message suggests as steps."""
_OF_INDUCTOR = "## Call "
"""How the compiler's ranges around generated code begin; they end in a hash."""

START_UP_SHARE: Assumed[tuple[Share, Share]] = (0.05, 0.25)
"""(largest share that the program's start takes of a steady step, smallest share that it takes of a step that is left
out)."""

LONGEST_WINDOW_NS: Assumed[WholeNs] = 86_400 * 10**9
"""A window longer than a day, ns, has wrong times: profilers write some MB a second."""

FEWEST_PERIODIC: Assumed[Kernels] = 64
"""Fewest kernels in which a period is looked for."""
MOST_PERIODS: Assumed[Steps] = 64
"""Most steps that are inferred from a period: a kernel that ran more often belongs to a layer."""
EVEN_SPACING: Assumed[Ratio] = 1.02
"""Largest over smallest distance of a kernel that runs once a step."""
PERIODS_COVER: Assumed[Share] = 0.8
"""Smallest share of all kernels that the periods hold."""
PERIODS_REPEAT: Assumed[Share] = 0.9
"""Smallest share of the kernels that are those of one period before."""

_STEP_WORD = re.compile(r"(^|[^a-z])(train(ing)?[ _-]?)?(step|iter(ation)?|batch)([^a-z]|$)", re.IGNORECASE)
_NOT_A_STEP = re.compile(r"optimizer|scheduler|zero_grad|dataloader|profilerstep|lr_step", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
_ONCE_A_PASS = frozenset({"aten::embedding", "aten::argmax", "aten::multinomial"})
"""Ops that a model runs once per pass, before its first or after its last layer: tokens are embedded, and a token is
chosen."""


@dataclass(frozen=True, slots=True)
class AnalysedSteps:
    """The steps that are analysed, in order, and the window they span."""

    source: str
    name: str | None
    start_ns: I64
    end_ns: I64
    cut: int
    merged: int = 1
    """Micro-steps per step, where ProfilerStep counted those of an accumulation."""
    starting: int = 0
    """Steps left out in which the program started: it loaded libraries, or compiled."""

    @property
    def window(self) -> tuple[int, int]:
        return int(self.start_ns[0]), int(self.end_ns[-1])

    def are(self, name: str) -> bool:
        """Whether a range of this name is a step: `step_3` is, of `step_#`."""
        return name.startswith("ProfilerStep") or (self.name is not None and _same_but_numbers(name, self.name))

    @property
    def covered_ns(self) -> int:
        return int((self.end_ns - self.start_ns).sum())


def _same_but_numbers(one: str, other: str) -> bool:
    return _DIGITS.sub("#", one) == _DIGITS.sub("#", other)


def find_steps(trace: Trace, links: Links, pattern: str | None = None, skip: int = 0) -> AnalysedSteps | None:
    """The steps of a trace, without the first `skip`; None if it holds nothing that takes time.

    `pattern`: regular expression on range or op names whose occurrences are the steps.
    """
    if pattern is not None:
        steps: AnalysedSteps | None = _named(trace, pattern)
    else:
        steps = _marked_steps(trace, links) or _optimizer_steps(trace) or _periodic(trace, links)
        steps = steps and _without_cut(steps, links)
        steps = steps and _without_start_up(trace, links, steps)
    steps = steps or _whole(trace)
    if steps is None:
        return None
    if skip >= len(steps.start_ns):
        count = len(steps.start_ns)
        raise GpuprofError(f"--skip {skip} leaves no step: this trace has {count} ({steps.source})")
    return replace(steps, start_ns=steps.start_ns[skip:], end_ns=steps.end_ns[skip:])


def possible(trace: Trace, steps: AnalysedSteps) -> bool:
    """Whether the window can have been recorded, and sums of times stay exact in 64 bits."""
    low, high = steps.window
    for table in (trace.ops, trace.calls, trace.gpu):
        for times in (table.start_ns, table.end_ns):
            if len(times) and (times.min() <= -LATEST_NS or times.max() >= LATEST_NS):
                return False
    work = np.sum((trace.gpu.end_ns - trace.gpu.start_ns).clip(0), dtype=np.float64)
    return high - low <= LONGEST_WINDOW_NS and float(work) < LATEST_NS


def whole_ns(trace: Trace) -> int:
    """Time from the first to the last moment of the recording, ns."""
    whole = _whole(trace)
    return 0 if whole is None else whole.window[1] - whole.window[0]


def _named(trace: Trace, pattern: str) -> AnalysedSteps:
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise GpuprofError(f"--step {pattern!r} is not a regular expression: {error}") from None
    names = [i for i, text in enumerate(trace.strings) if wanted.search(text)]
    rows = np.flatnonzero(np.isin(trace.ops.name, names))
    if not np.any(trace.ops.end_ns[rows] > trace.ops.start_ns[rows]):
        ranges = {trace.strings[i] for i in np.unique(trace.ops.name[trace.ops.kind == ANNOTATION])}
        shown = sorted(name for name in ranges if not name.startswith(_OF_INDUCTOR))[:MOST_NAMED]
        hint = f"; its ranges are {', '.join(shown)}" if shown else ""
        raise GpuprofError(f"--step {pattern!r} matches no range or op of this trace{hint}")
    return _spans(trace, rows, "user_range", pattern)


def _profiler_steps(trace: Trace) -> AnalysedSteps | None:
    names = [i for i, text in enumerate(trace.strings) if text.startswith("ProfilerStep")]
    rows = np.flatnonzero(np.isin(trace.ops.name, names))
    return _merge_micro_steps(trace, _spans(trace, rows, "profiler_step", "ProfilerStep#*")) if len(rows) else None


def _marked_steps(trace: Trace, links: Links) -> AnalysedSteps | None:
    """The steps that ranges mark. A ProfilerStep around many iterations of a serving engine is not one of them."""
    profiler, engine = _profiler_steps(trace), _engine_iterations(trace, links)
    if profiler is not None and (engine is None or len(engine.start_ns) <= len(profiler.start_ns)):
        return profiler
    return engine or profiler or _user_ranges(trace)


def _engine_iterations(trace: Trace, links: Links) -> AnalysedSteps | None:
    """Steps from the beginning of one iteration of a serving engine to that of the next, because an iteration is
    launched in a fraction of its time. The last one lasts until the GPU is done with it, and is left out if there are
    others."""
    ops = trace.ops
    names = {name for name in np.unique(ops.name[ops.kind == ANNOTATION]).tolist() if is_iteration(trace.strings[name])}
    if not names:
        return None
    found = _spans(trace, np.flatnonzero((ops.kind == ANNOTATION) & np.isin(ops.name, list(names))), "user_range", "")
    if not len(found.start_ns):
        return None
    row = np.flatnonzero((ops.start_ns == found.start_ns[0]) & np.isin(ops.name, list(names)))[0]
    found = replace(found, name=_DIGITS.sub("#", trace.strings[ops.name[row]]).partition("(")[0])
    if len(found.start_ns) > 1:
        return replace(found, start_ns=found.start_ns[:-1], end_ns=found.start_ns[1:], cut=1)
    begun = (links.begun_ns >= found.start_ns[0]) & (links.begun_ns < found.end_ns[0])
    last = trace.gpu.end_ns[begun].max(initial=found.end_ns[0])
    return replace(found, end_ns=np.array([last]))


def _user_ranges(trace: Trace) -> AnalysedSteps | None:
    """The repeated range with "step", "iteration" or "batch" in its name that covers most of the recording."""
    ops = trace.ops
    annotations = np.flatnonzero(ops.kind == ANNOTATION)
    groups: dict[str, list[int]] = {}
    for name in np.unique(ops.name[annotations]).tolist():
        text = trace.strings[name]
        if _STEP_WORD.search(text) and not _NOT_A_STEP.search(text):
            groups.setdefault(_DIGITS.sub("#", text), []).append(name)
    best: AnalysedSteps | None = None
    for name, ids in groups.items():
        rows = annotations[np.isin(ops.name[annotations], ids)]
        names = {unnumbered(trace.strings[i]) for i in ids}
        steps = _spans(trace, rows, "user_range", names.pop() if len(names) == 1 else name)
        most = len(steps.start_ns) >= 2 and 2 * steps.covered_ns >= int(ops.end_ns.max() - ops.start_ns.min())
        if most and (best is None or steps.covered_ns > best.covered_ns):
            best = steps
    return best


def _optimizer_steps(trace: Trace) -> AnalysedSteps | None:
    """From the end of one optimizer step to the end of the next."""
    ends = _optimizer_ends(trace)
    if len(ends) < 2:
        return None
    return AnalysedSteps("optimizer", "Optimizer.step", ends[:-1], ends[1:], 0)


def _optimizer_ends(trace: Trace) -> I64:
    """Ends of the steps of one optimizer: of several, the one that steps least often."""
    ops = trace.ops
    counts = {}
    for i, text in enumerate(trace.strings):
        if text.startswith("Optimizer.step#"):
            rows = np.flatnonzero(ops.name == i)
            if len(rows):
                counts[i] = ordered(ops.end_ns[rows])
    return min(counts.values(), key=len) if counts else np.empty(0, np.int64)


def _merge_micro_steps(trace: Trace, steps: AnalysedSteps) -> AnalysedSteps:
    """Joins ProfilerSteps to one per optimizer step, if the optimizer steps in every k-th of them."""
    ends = _optimizer_ends(trace)
    at = np.searchsorted(steps.start_ns, ends, side="right") - 1
    at = np.unique(at[at >= 0])
    every = np.unique(np.diff(at))
    if len(every) != 1 or every[0] < 2:
        return steps
    k = int(every[0])
    last = at[at >= k - 1]
    first = last - k + 1
    cut = len(steps.start_ns) - k * len(last)
    return AnalysedSteps(steps.source, steps.name, steps.start_ns[first], steps.end_ns[last], cut, merged=k)


def _periodic(trace: Trace, links: Links) -> AnalysedSteps | None:
    """The period of the kernel sequence, inferred from kernels that run once a step.

    Layers also repeat: a period counts only if it contains a backward pass or, if there is none, an op that a model
    runs once per pass, provided that the trace has ops.
    """
    known = np.flatnonzero(links.begun_ns != ABSENT)
    if len(known) < FEWEST_PERIODIC:
        return None
    order = known[np.argsort(links.begun_ns[known], kind="stable")]
    names = trace.gpu.name[order]
    ids, counts = np.unique(names, return_counts=True)
    for count in np.unique(counts[(counts >= 2) & (counts <= MOST_PERIODS)]).tolist():
        regular = []
        for name in ids[counts == count].tolist():
            spacing = np.diff(np.flatnonzero(names == name))
            if spacing.max() <= EVEN_SPACING * spacing.min() + 2:
                regular.append((name, float(spacing.mean())))
        if not regular:
            continue
        # Of the kernels that run once a step, the one with the longest wait before it marks the boundary.
        begun = links.begun_ns[order]
        before = np.diff(begun, prepend=begun[0])
        name = max((n for n, _ in regular), key=lambda n: float(np.mean(before[names == n][1:])))
        marks = np.flatnonzero(names == name)
        period = round(float(np.diff(marks).mean()))
        same = float(np.mean(names[:-period] == names[period:])) if 0 < period < len(names) else 0.0
        starts = begun[marks]
        covers = (marks[-1] - marks[0] + period) >= PERIODS_COVER * len(names)
        if same >= PERIODS_REPEAT and covers and _is_whole_pass(trace, starts):
            return AnalysedSteps("periodicity", trace.strings[name], starts[:-1], starts[1:], 0)
    return None


def _is_whole_pass(trace: Trace, starts: I64) -> bool:
    """Whether each period contains a backward pass or, if there is none, an op that no layer has."""
    ops = trace.ops
    if not len(ops):
        return True
    once = np.flatnonzero((ops.forward_thread != ABSENT) & (ops.forward_thread > 0))
    if not len(once):
        once = np.flatnonzero(trace.rows_named(ops.name, _ONCE_A_PASS.__contains__))
    hits = np.searchsorted(ordered(ops.start_ns[once]), starts)
    return bool(np.all(np.diff(hits) > 0))


def _spans(trace: Trace, rows: np.ndarray, source: str, name: str) -> AnalysedSteps:
    """Outermost, non-overlapping occurrences on the thread that has most of them."""
    ops = trace.ops
    rows = rows[ops.end_ns[rows] > ops.start_ns[rows]]
    if not len(rows):
        return AnalysedSteps(source, name, ops.start_ns[rows], ops.end_ns[rows], 0)
    rows = rows[ops.thread[rows] == busiest_thread(ops.thread[rows], ops.start_ns[rows])]
    rows = rows[np.lexsort((-ops.end_ns[rows], ops.start_ns[rows]))]
    start, end = ops.start_ns[rows], ops.end_ns[rows]
    reach = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], end[:-1]]))
    keep = start >= reach
    return AnalysedSteps(source, name, start[keep], end[keep], 0)


def _without_cut(steps: AnalysedSteps, links: Links) -> AnalysedSteps | None:
    """Leaves out steps that the recording cut: no time, or far fewer launches than the others."""
    takes_time = steps.end_ns > steps.start_ns
    if not takes_time.any():
        return None
    steps = replace(steps, start_ns=steps.start_ns[takes_time], end_ns=steps.end_ns[takes_time])
    begun = ordered(links.begun_ns[links.begun_ns != ABSENT])
    launches = np.searchsorted(begun, steps.end_ns) - np.searchsorted(begun, steps.start_ns)
    usual = np.median(launches) if len(launches) > 2 else launches.max()
    whole = launches >= CUT_SHARE * usual
    # Only the ends can be cut; a light step in the middle is a step.
    keep = np.flatnonzero(whole)
    first, last = (int(keep[0]), int(keep[-1]) + 1) if len(keep) else (0, len(whole))
    cut = steps.cut + len(whole) - (last - first)
    return AnalysedSteps(
        steps.source, steps.name, steps.start_ns[first:last], steps.end_ns[first:last], cut, steps.merged
    )


def _without_start_up(trace: Trace, links: Links, steps: AnalysedSteps) -> AnalysedSteps:
    """Leaves out the first steps if the program's start takes much of them and hardly any of later ones."""
    if len(steps.start_ns) < 2:
        return steps
    spent = Cover(join(*(spans for _, spans in start_up_spans(trace, links, allocations=False))))
    share = spent.between(steps.start_ns, steps.end_ns) / np.maximum(steps.end_ns - steps.start_ns, 1)
    steady = np.flatnonzero(share < START_UP_SHARE[0])
    first = int(steady[0]) if len(steady) else 0
    if not first or share[:first].min() < START_UP_SHARE[1] or share[first:].max() >= START_UP_SHARE[0]:
        return steps
    return replace(steps, start_ns=steps.start_ns[first:], end_ns=steps.end_ns[first:], starting=steps.starting + first)


def _whole(trace: Trace) -> AnalysedSteps | None:
    """The whole recording as one span: everything that ran on the CPU or a device."""
    tables = [t for t in (trace.ops, trace.calls, trace.gpu) if len(t)]
    if not tables:
        return None
    low = min(int(t.start_ns.min()) for t in tables)
    high = max(int(t.end_ns.max()) for t in tables)
    if high <= low:
        return None
    return AnalysedSteps("none", None, np.array([low]), np.array([high]), 0)
