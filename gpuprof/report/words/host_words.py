"""Texts on the CPU's Python functions, for the terminal and `gpuprof explain FILE:LINE`."""

from __future__ import annotations

from rich.text import Text

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.host_model import HostFunction, LoaderWorkers, WorkerFunction
from gpuprof.record.base.code_paths import is_compiled
from gpuprof.report.lines import Column, table
from gpuprof.report.names import shown
from gpuprof.report.numbers import amount, duration, share
from gpuprof.units import Assumed, Cells, Convention, Rows, Share

TOP_ROWS: Convention[Rows] = 3
WORTH_SAYING: Convention[Share] = 0.02
"""Smallest gain, as a share of the step, for which a function gets a line in the answer; if its gain is not known, its
time must be at least WORTH_LONG of the step."""
WORTH_LONG: Convention[Share] = 0.1
GAIN_FROM_WIDTH: Convention[Cells] = 46
"""From this width on a row has room for the function's gain."""
SAME_STEP: Assumed[Share] = 0.1
"""Times of the sampled steps are shown next to the stated step if the two differ by at most this share."""
PASSES = {"forward": "forward pass", "backward": "backward pass"}


def worth_saying(diagnosis: Diagnosis) -> list[HostFunction]:
    """The functions that the answer names, most gain first; functions that only run a pass come last."""
    host, now = diagnosis.host, diagnosis.step_ns
    if host is None or not now:
        return []
    return [
        one
        for one in host.functions
        if (
            now - one.step_ns.expected >= WORTH_SAYING * now
            if one.step_ns is not None
            else one.ns.expected >= WORTH_LONG * host.step_ns
        )
    ]


def lines(diagnosis: Diagnosis, width: int, functions: list[HostFunction]) -> list[Text]:
    """A row per function: its place, its name, its time, and the step if it were free."""
    now = diagnosis.step_ns
    rows = [
        (
            shown(line_of(one, functions), 60),
            shown(name(one), 60),
            time(one, diagnosis),
            gain(one, now),
        )
        for one in functions
    ]
    columns = (Column("bold", elastic=True), Column(elastic=True), Column(right=True), Column("dim"))
    # Without a GPU no gain is known, which needs no column; a narrow screen has no room for one.
    if width < GAIN_FROM_WIDTH or all(one.step_ns is None for one in functions):
        rows, columns = [row[:3] for row in rows], columns[:3]
    return table(rows, columns, width)


def time(one: HostFunction, diagnosis: Diagnosis) -> str:
    """`15 ms` a step; if the sampled steps' time differs from the stated step, the share of theirs."""
    host, now = diagnosis.host, diagnosis.step_ns
    if host is None or not now or abs(host.step_ns - now) <= SAME_STEP * now:
        return duration(one.ns.expected)
    return share(one.ns.expected, host.step_ns)


def line_of(one: HostFunction, among: list[HostFunction]) -> str:
    """The user's line that leads to a function, `train.py:120`; the function's own line if that is the same for all."""
    same = len({other.called_from for other in among}) == 1
    return _short(one.place if same else one.called_from or one.place)


def workers(diagnosis: Diagnosis) -> str:
    """What the DataLoader's workers do, in a sentence; empty if they were not sampled."""
    found = None if diagnosis.host is None else diagnosis.host.workers
    if found is None:
        return ""
    each = ", ".join(
        f"{shown(one.function, 60)} {_percent(one.share.expected)} ({shown(_short(one.place), 60)})"
        for one in found.functions[:TOP_ROWS]
    )
    busy = (
        f"{amount(found.workers, 'worker')} make{'s' * (found.workers == 1)} batches {_percent(found.busy)} of the time"
    )
    return f"{busy}: {each}" if each else busy


def _percent(value: float) -> str:
    return share(value, 1.0)


def name(one: HostFunction) -> str:
    """The function's name; that of the pass if it only runs a pass."""
    return one.function if one.runs is None else PASSES[one.runs]


def _short(place: str) -> str:
    """`trainer.py:120` of a longer path; `gpuprof explain` and the report show the whole path."""
    if is_compiled(place.rpartition(":")[0]):
        return "compiled code"
    return place.rpartition("/")[2]


def gain(one: HostFunction, now_ns: float | None) -> str:
    """`→ 63 ms without it`, or that nothing is predicted."""
    if one.step_ns is None or not now_ns:
        return "no prediction"
    if now_ns - one.step_ns.expected < 0.005 * now_ns:
        return "hidden: gains nothing"
    return f"→ {duration(one.step_ns.expected)} without it"


def explained(one: HostFunction, diagnosis: Diagnosis, which: str) -> list[str]:
    """What is known of a function or a line, in sentences. which: `this line` or `the function`, whose time it is: the
    list of functions gives a function's whole time at the line with most of its samples."""
    host = diagnosis.host
    assert host is not None
    unit = f"of the sampled step ({duration(host.step_ns)})"
    said = [
        f"{one.place}  {one.function}",
        f"{which}: {duration(one.ns.expected)} a step ({duration(one.ns.low)} to {duration(one.ns.high)}), "
        f"{share(one.ns.expected, host.step_ns)} {unit}, what it calls included; "
        f"{duration(one.self_ns)} in its own lines and native code.",
    ]
    if one.called_from is not None:
        said.append(f"It is called from {one.called_from}, mostly.")
    if one.gpu_waits is not None:
        said.append(f"In {100 * one.gpu_waits:.0f} % of that time the GPU waits for the CPU.")
    now = diagnosis.step_ns
    if one.step_ns is not None and now:
        said.append(
            f"If it were free, the step would take {duration(one.step_ns.expected)} instead of {duration(now)} "
            f"({duration(one.step_ns.low)} to {duration(one.step_ns.high)})."
        )
    else:
        said.append(f"What the step would be without it is not known: {one.why_unknown}.")
    said.append(
        f"From {amount(one.samples, 'sample')} of {host.samples:,} in {amount(host.steps, 'unprofiled step')}; "
        "intervals are 80 %."
    )
    return said


def worker_explained(one: WorkerFunction, workers: LoaderWorkers | None, which: str) -> str:
    """What is known of a function or a line in the DataLoader's workers, in a sentence; which: as in `explained`."""
    if workers is None:
        return ""
    time, low, high = (_percent(share) for share in (one.share.expected, one.share.low, one.share.high))
    make = f"{amount(workers.workers, 'worker')} make{'s' * (workers.workers == 1)} batches"
    return (
        f"In the DataLoader's workers {which} takes {time} of the time ({low} to {high}), what it calls included; "
        f"{make} {_percent(workers.busy)} of the time. From {amount(workers.samples, 'sample')}."
    )
