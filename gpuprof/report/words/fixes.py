"""Lines of text on what would make the step faster: each resource twice as fast, and the fixes with their gains."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from gpuprof.diagnosis.detect.declared.ledger_part import Cost
from gpuprof.diagnosis.plug_ins import declarations
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Combined, Evidence, Finding
from gpuprof.diagnosis.result.fix import FixLine
from gpuprof.diagnosis.sentences import listed
from gpuprof.report import labels
from gpuprof.report.code_lines import without_alternatives, without_comments, wrapped
from gpuprof.report.lines import flow, prose
from gpuprof.report.names import escape, file_name, shown, shown_kernel
from gpuprof.report.numbers import amount, duration, duration_range, joules, long_duration
from gpuprof.report.words import words
from gpuprof.report.words.brevity import Brevity
from gpuprof.report.words.settle import commands, fitting, settle
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE
from gpuprof.units import Assumed, Cells, Convention, Share
from gpuprof.value_range import Range

RESOURCES = ("host", "input", "transfer", "communication", "device", "compute", "memory", "latency")
PARTS = ("compute", "memory", "latency")
NUMBER_WIDTH: Convention[Cells] = 3
"""Width of the column with a fix's number."""
UNSURE_MEAN: Assumed[Share] = 0.10
"""If half the mean step's 80 % interval is at least this share of it, a note says that predictions are as uncertain."""
LINE_WIDTH: Convention[Cells] = 80
"""Width of a line of the user's code with its file; longer paths are shortened in the middle."""
EVENT_WIDTH: Convention[Cells] = 60
"""Width of the name of an event, a thread or a part of the program."""


def sensitivities(diagnosis: Diagnosis, width: int) -> list[Text]:
    """`host −45 %  compute −1 %  nothing else helps`: by how much the step shrinks with each resource twice as
    fast, most first."""
    found, replay = diagnosis.sensitivities, diagnosis.replay
    if found is None:
        reason = replay.reason
        return [Text(f"not predicted: {escape(reason)}", "dim")] if reason else []
    names = [name for name in RESOURCES if getattr(found, name) is not None]
    if all(getattr(found, name) is not None for name in PARTS):
        names.remove("device")
    less = {name: round(100 * getattr(found, name) / 2) for name in names}
    seen = sorted(filter(less.__getitem__, names), key=lambda name: -less[name])
    items = [Text.assemble(f"{labels.RESOURCES[name]} ", (f"−{less[name]} %", "bold")) for name in seen]
    if len(seen) < len(names):
        items.append(Text("nothing else helps" if seen else "no resource alone changes anything", "dim"))
    return flow(items, width)


def now_ns(diagnosis: Diagnosis) -> int | None:
    """The step that fixes are compared with, as in the headline; None if nothing could be predicted."""
    steps = diagnosis.steps
    known = steps is not None and (steps.unprofiled_ns is not None or steps.estimated_ns is not None)
    return words.headline_ns(diagnosis) if known else None


def fixes(diagnosis: Diagnosis, width: int, brevity: Brevity) -> list[Text | Table]:
    """Numbered fixes, most gain first, in lines of `width` cells: title, the step before and after, and the code."""
    now = now_ns(diagnosis)
    if not now:
        return []
    lines: list[Text | Table] = []
    for number, finding in enumerate(diagnosis.findings[: brevity.fixes], 1):
        head = _head(finding, gain(finding, now), width - NUMBER_WIDTH)
        how = _written(_shortened(finding, brevity), width - NUMBER_WIDTH)
        same = _alternatives_by_number(finding, diagnosis) if brevity.overlapping else []
        about = [*own_lines(finding), *same, *conditions(finding, diagnosis, overlapping=False)]
        lines.append(_numbered(number, [*head, *(Text(line, "dim") for line in about), *how]))
    for number, finding in enumerate(diagnosis.findings[brevity.fixes : brevity.listed], brevity.fixes + 1):
        lines.append(_numbered(number, _head(finding, gain(finding, now), width - NUMBER_WIDTH)))
    lines += [Text(f"{escape(one.title)}: {escape(one.reason)}", "dim") for one in diagnosis.considered if one.failed]
    both = diagnosis.combined
    if both and brevity.together:
        said, gained = Text(f"{_together(diagnosis, both, brevity)} together", "bold"), Text(f"   {gain(both, now)}")
        lines += [said + gained] if said.cell_len + gained.cell_len <= width else [said, gained]
    if rest := _rest(diagnosis, brevity):
        lines.append(Text(rest, "dim"))
    is_brief = brevity.fixes <= NUMBER_WIDTH
    if why := why_first(diagnosis, brief=is_brief) or why_not_the_cause(diagnosis, brief=is_brief):
        lines.append(Text(why, "dim"))
    if diagnosis.findings and brevity.together and (unsure := uncertain_mean(diagnosis)):
        lines.append(Text(unsure, "dim"))
    return lines


def _rest(diagnosis: Diagnosis, brevity: Brevity) -> str:
    """What -v adds: `-v shows the code of 2 and 3, and 1 more`; empty if nothing."""
    known = len(diagnosis.findings)
    brief = [str(number) for number in range(brevity.fixes + 1, min(brevity.listed, known) + 1)]
    more = known - max(brevity.fixes, brevity.listed)
    if not brief:
        return f"and {more} more, with -v" if more > 0 else ""
    code = f"-v shows the code of {listed(brief)}"
    return f"{code}, and {more} more" if more > 0 else code


def worth_trying(diagnosis: Diagnosis, width: int, most: int | None = None) -> list[Text | Table]:
    """What is likely but not sure to gain: for each of the first `most` a line with its probability and the command
    that settles it; if `most` is None, all of them with the step before and after, the conditions and the code."""
    now = now_ns(diagnosis)
    found = diagnosis.worth_trying
    if not now or not found:
        return []
    if most is None:
        first = len(diagnosis.findings) + 1
        return [_written_out(number, one, diagnosis, now, width) for number, one in enumerate(found, first)]
    lines: list[Text | Table] = []
    for one in found[:most]:
        lines += _in_brief(one, width)
    rest = f"   and {len(found) - most} more, with -v"
    if lines and len(found) > most:
        last = lines[-1]
        command = found[most - 1].settle  # which is pasted up to the end of its line
        if isinstance(last, Text) and not command and last.cell_len + len(rest) <= width:
            last.append(rest)
        else:
            lines.append(Text(rest.strip(), "dim"))
    return lines


def _in_brief(one: Finding, width: int) -> list[Text]:
    """Title, probability, and the command that settles it: in one line if that fits. Nothing is cut, so that the
    command can be pasted."""
    *above, last = wrap(escape(one.title), width)
    lines = [Text(part, "bold") for part in above]
    title, odds = Text(last, "bold"), f"{times_range(one.speedup)}, {chance(one)}"
    whole = commands(one)[:2]  # with the training's command, or without it if gpuprof knows that
    line = Text.assemble(title, f"   {odds}")
    for command in whole:
        if line.cell_len + 3 + cell_len(command) <= width:
            return [*lines, line.append(f"   {command}")]
    command = next((text for text in whole if cell_len(text) + 3 <= width), whole[-1])
    if line.cell_len <= width:
        return [*lines, line, Text(f"   {command}")]
    below = f"   {odds}   {command}"
    lines.append(title)
    return [*lines, Text(below)] if cell_len(below) <= width else [*lines, Text(f"   {odds}"), Text(f"   {command}")]


RESOURCE_OF = {"compute": "device", "memory": "device", "latency": "device"}
NAMES = {"host": "the CPU (host)", "input": "input", "transfer": "copies", "communication": "communication",
         "device": "the GPU's own work"}  # fmt: skip
COSTS_OF_CAUSE: dict[str, tuple[Cost, str]] = {
    "planning": ("planning", "planning kernels"),
    "loading": ("loading_code", "loading code"),
    "compile": ("compiling", "compiling"),
    "allocator": ("allocating", "allocating memory"),
    "cpu_compute": ("computing_on_cpu", "computing on the CPU"),
}
"""A verdict's cause → the cost that findings declare to lower, and its words; causes that many fixes lower without
declaring it, such as launches, are left out."""


def why_first(diagnosis: Diagnosis, *, brief: bool = False) -> str:
    """Why the first fix acts on something other than what the verdict names; empty if they agree or are not known. In
    brief: half a line."""
    bound, findings = diagnosis.verdict.bound, (*diagnosis.findings, *diagnosis.worth_trying)
    if bound in (None, "balanced") or not findings:
        return ""
    resource, first = RESOURCE_OF.get(bound, bound), findings[0]
    if resource in first.acts_on:
        return ""
    named = next((i for i, one in enumerate(findings, 1) if resource in one.acts_on), None)
    other = NAMES[first.acts_on[0]] if first.acts_on else "what the replayed steps do not show"
    head = f"The verdict names {NAMES[resource]}, and the first fix acts on {other}"
    if named is None:
        none = f"no fix is known that takes work off {NAMES[resource]} here"
        return none if brief else f"{head}: {none}."
    return _why_later(head, NAMES[resource], named, findings, brief)


def why_not_the_cause(diagnosis: Diagnosis, *, brief: bool = False) -> str:
    """Why the first fix acts on something other than the cause that the verdict names, though a later one lowers that;
    empty if the first one does, or if none is known to."""
    findings = (*diagnosis.findings, *diagnosis.worth_trying)
    named = COSTS_OF_CAUSE.get(diagnosis.verdict.cause or "")
    if named is None or not findings:
        return ""
    cost, what = named
    lowering = {one.id for one in declarations() if cost in one.lowers}
    number = next((i for i, one in enumerate(findings, 1) if one.id in lowering), 1)
    if number == 1:
        return ""
    head = f"The verdict names {what}, and the first fix acts on other work"
    return _why_later(head, what, number, findings, brief)


def _why_later(head: str, what: str, number: int, findings: Sequence[Finding], brief: bool) -> str:
    """Why the fix with this number, which acts on what the verdict names, is not the first."""
    if findings[number - 1].changes and not findings[0].changes:
        short, whole = "but changes the training", "but changes the training"
    else:
        short, whole = "1 is expected to gain more", "and is expected to gain less over the rest of the run"
    if brief:
        return f"{number} acts on what the verdict names, {short}"
    return f"{head}: number {number} acts on {what}, {whole}."


def chance(finding: Finding) -> str:
    """`78 % likely`: that it gains 2 % or more."""
    return f"{100 * finding.probability:.0f} % likely"


def _written_out(number: int, one: Finding, diagnosis: Diagnosis, now: float, width: int) -> Table:
    head = _head(one, f"{gain(one, now)}   {chance(one)}", width - NUMBER_WIDTH)
    notes = [*own_lines(one), *conditions(one, diagnosis)]
    how = _written(one.shown_lines, width - NUMBER_WIDTH)
    settled = _settled(one, width - NUMBER_WIDTH)
    return _numbered(number, [*head, *(Text(line, "dim") for line in notes), *how, *settled])


def _settled(one: Finding, width: int) -> list[Text]:
    """What settles it: the command in one line, with that of the training if it fits; never broken."""
    if not one.settle:
        return [Text(f"settled by: {settle(one)}", "dim")]
    command = fitting(one, width)
    said = Text.assemble(("settled by: ", "dim"), (command, "cyan"))
    return [said] if said.cell_len <= width else [Text("settled by:", "dim"), Text(command, "cyan", overflow="fold")]


def uncertain_mean(diagnosis: Diagnosis) -> str:
    """A note that predicted steps are uncertain because the mean step is; empty if the mean is well known."""
    found = diagnosis.budget
    if found is None or found.source != "free" or found.high - found.mean_ns < UNSURE_MEAN * found.mean_ns:
        return ""
    timed = amount(found.steps, f"timed {diagnosis.unit}")
    return (
        f"the mean of {timed} is uncertain ({duration_range(found.low, found.high)}), and so are predicted times; the"
        " gains (×) are more certain"
    )


def _shortened(finding: Finding, brevity: Brevity) -> tuple[FixLine, ...]:
    lines = finding.shown_lines if brevity.comments else without_comments(finding.shown_lines)
    return lines if brevity.alternatives else without_alternatives(lines)


def _written(lines: Sequence[FixLine], width: int) -> list[Text]:
    """Prose as text; code in lines broken only where code may be, never cut."""
    found: list[Text] = []
    for one in lines:
        if one.code:
            parts = wrapped(escape(one.text), width)
            found += [Text(part, "cyan", overflow="fold" if cell_len(part) > width else "ignore") for part in parts]
        else:
            found.append(Text(escape(one.text)))
    return found


def _head(finding: Finding, gained: str, width: int) -> list[Text]:
    """Title and gain in one line, or the gain in a second one; no time is broken between number and unit."""
    numbers = Text(gained)
    if outcome := measured(finding):
        numbers.append(f"   {outcome}", "green" if finding.measured and finding.measured.status == "confirmed" else "")
    title = Text(escape(finding.title), "bold")
    if title.cell_len + 3 + numbers.cell_len <= width:
        return [Text.assemble(title, "   ", numbers)]
    return [title, numbers]


def known_lines(finding: Finding) -> tuple[str, ...]:
    """The lines of the user's code that a fix is about, `train.py:42 step`, if known."""
    return next((one.lines for one in finding.evidence if one.lines), ())


def event_name(evidence: Evidence) -> str:
    """The name of the event that evidence points to. Kernels have long names, and a part of them is enough; ops keep
    theirs, without the prefix of autograd's engine, which says too little for its length."""
    name = evidence.begins_with or evidence.text
    return (
        shown_kernel(name, EVENT_WIDTH) if evidence.on_gpu else shown(name.removeprefix(AUTOGRAD_ENGINE), EVENT_WIDTH)
    )


def own_lines(finding: Finding) -> list[str]:
    """`in train.py:42 and 43 step`, without folders; empty if they are not known."""
    found = dict[tuple[str, str], list[str]]()
    for place in map(file_name, known_lines(finding)):
        at, blank, function = place.partition(" ")
        file, _, line = at.rpartition(":")
        found.setdefault((file, blank + function), []).append(line)
    known = [shown(f"{file}:{listed(lines)}{function}", LINE_WIDTH) for (file, function), lines in found.items()]
    return [f"in {listed(known)}"] if known else []


def conditions(finding: Finding, diagnosis: Diagnosis, overlapping: bool = True) -> list[str]:
    """What a fix changes about the training or its results, and what it costs before it gains; with `overlapping`,
    which others save mostly the same time."""
    what = "results" if diagnosis.workload and diagnosis.workload.is_inference else "training"
    found = _alternatives(finding, diagnosis) if overlapping else []
    found += [f"needs: {escape(finding.needs)}"] if finding.needs else []
    found += [f"changes the {what}: {escape(finding.changes)}"] if finding.changes else []
    if finding.once_ns:
        found.append(f"costs {duration_range(finding.once_ns.low, finding.once_ns.high)} once, before it pays off")
    return found


def energy_after(finding: Finding, diagnosis: Diagnosis) -> list[str]:
    """`energy: 2.8 → 1.9 J a step (1.6 J to 2.4 J)`, for equal work; empty if the run measured no power."""
    now, then = diagnosis.run.energy if diagnosis.run else None, finding.step_j
    if now is None or then is None:
        return []
    low, usual, high = (joules(value / finding.work) for value in (then.low, then.expected, then.high))
    alike = f"for the work of {diagnosis.unit.a}" if finding.work != 1 else diagnosis.unit.a
    return [f"energy: {joules(now.step_j)} → {usual} {alike} ({low} to {high})"]


def _alternatives(finding: Finding, diagnosis: Diagnosis) -> list[str]:
    """Which fixes gain little on top of each other: `or torch.compile (1.4–2.2×) instead: …`."""
    if finding.overlaps is not None:
        return _in_place_of(finding, escape(finding.overlaps))
    listing = diagnosis.findings if finding in diagnosis.findings else diagnosis.worth_trying
    return _others(finding, [(f"{escape(one.title)} ({times_range(one.speedup)})", one) for one in listing])


def _alternatives_by_number(finding: Finding, diagnosis: Diagnosis) -> list[str]:
    """The same for a numbered list: `or 3 instead: together they gain little more`."""
    numbered = [(str(number), one) for number, one in enumerate(diagnosis.findings, 1)]
    if finding.overlaps is not None:
        return [text for n, one in numbered if one.title == finding.overlaps for text in _in_place_of(finding, n)]
    return _others(finding, numbered)


def _in_place_of(finding: Finding, first: str) -> list[str]:
    """What an entry is to the fix that it is shown with: an alternative, or that fix and one that follows it."""
    if finding.overlaps in finding.parts:
        return [f"{first}, and a fix that gains once it is made"]
    return [f"instead of {first}: together they gain little more"]


def _others(finding: Finding, named: list[tuple[str, Finding]]) -> list[str]:
    """The entries that are shown with a fix, by their names."""
    mine = [(name, one) for name, one in named if one.overlaps == finding.title]
    longer = [f"{name} adds a fix to it" for name, one in mine if finding.title in one.parts]
    return [*_instead([name for name, one in mine if finding.title not in one.parts]), *longer]


def _instead(others: list[str]) -> list[str]:
    if not others:
        return []
    return [f"or {' or '.join(others)} instead: together they gain little more"]


def considered(diagnosis: Diagnosis) -> list[Text | Table]:
    """Usual fixes that are ruled out, each with its reason; fixes that failed when tried are listed with the fixes."""
    return [
        Text.assemble((escape(one.title), "bold"), f": {escape(one.reason)}")
        for one in diagnosis.considered
        if not one.failed
    ]


def numbers(diagnosis: Diagnosis, both: Combined) -> str:
    """`1 + 3 + 4`: which of the findings are combined."""
    titles = [f.title for f in diagnosis.findings]
    known = sorted(titles.index(title) + 1 for title in both.titles if title in titles)
    return " + ".join([*map(str, known), *(escape(title) for title in both.titles if title not in titles)])


def _together(diagnosis: Diagnosis, both: Combined, brevity: Brevity) -> str:
    """`1 + 2`; `all 3` or `3 of these 4` if not all of them are shown."""
    titles = [f.title for f in diagnosis.findings[: max(brevity.fixes, brevity.listed)]]
    if set(both.titles) <= set(titles):
        return numbers(diagnosis, both)
    all_of, some = len(diagnosis.findings), len(both.titles)
    if some < all_of:
        return f"{some} of these {all_of}"
    return "both" if some == 2 else f"all {some}"


def _numbered(number: int, lines: list[Text]) -> Table:
    """Lines to the right of a number; wrapped text stays to the right of it."""
    grid = Table.grid(padding=0)
    grid.add_column(width=NUMBER_WIDTH)
    grid.add_column(overflow="fold")
    for i, line in enumerate(lines):
        grid.add_row(Text(str(number) if i == 0 else "", "bold"), prose(line))
    return grid


def step_after(found: Finding | Combined, now_ns: float) -> Range:
    """The step with a fix, ns: the headline's step divided by the gain, so that the two numbers shown agree.
    `found.step_ns` is wider: it includes the uncertainty of the mean step.
    """
    low, expected, high = (
        now_ns * found.work / max(times, 1e-9)
        for times in (found.speedup.high, found.speedup.expected, found.speedup.low)
    )
    return Range(round(low), round(expected), round(high))


def gain(found: Finding | Combined, now_ns: float) -> str:
    """`74 ms → 13–30 ms   2.5–5.7×`; for more work in a step `74 ms → 71–82 ms for 8× the work   7–8× per sample`."""
    step = _steps(now_ns, step_after(found, now_ns))
    if found.work != 1.0:
        return f"{step} for {_factor(found.work)} the work   {times_range(found.speedup)} per sample"
    return f"{step}   {times_range(found.speedup)}"


def measured(finding: Finding) -> str:
    """`measured: 31 ms, 2.2–2.6×, confirmed`: the result of `gpuprof try`; empty if it was not tried."""
    found = finding.measured
    if found is None:
        return ""
    parts = [duration(found.step_ns)] if found.step_ns else []
    if found.speedup_low is not None and found.speedup_high is not None:
        parts.append(f"{found.speedup_low:.2f}–{found.speedup_high:.2f}×")
    elif found.speedup is not None:
        parts.append(f"{found.speedup:.2f}×")
    return f"measured: {', '.join([*parts, found.status.replace('_', ' ')])}"


def _steps(now_ns: float, then: Range) -> str:
    return f"{duration(now_ns)} → {duration_range(then.low, then.high)}"


def times_range(speedup: Range) -> str:
    """`1.4–2.2×`, `8.7–10×`, `410–790×`: two digits, and one below 10."""
    low, high = (_two_digits(value) for value in (speedup.low, speedup.high))
    return f"{low}×" if low == high else f"{low}–{high}×"


def _two_digits(value: float) -> str:
    if value < 9.95:
        return f"{value:.1f}"
    return f"{value:.0f}" if value < 99.5 else f"{float(f'{value:.2g}'):,.0f}"


def _factor(value: float) -> str:
    """`8×`, `2.1×`."""
    return f"{value:.0f}×" if value >= 9.95 or abs(value - round(value)) < 0.05 else f"{value:.1f}×"


def footer(diagnosis: Diagnosis) -> str:
    """`replay error 0.1 % · confidence 0.97 · remaining run 3 h 10 → 0 h 45 with fix 1`."""
    confidence = diagnosis.verdict.confidence
    trust = f"confidence {confidence:.2f}" if confidence is not None else ""
    return " · ".join(filter(None, (replay_error(diagnosis), trust, remaining(diagnosis))))


def replay_error(diagnosis: Diagnosis) -> str:
    """`replay error 0.1 % (5 of 20 steps)`; empty without a replay."""
    if diagnosis.replay.error is None:
        return ""
    steps, replayed = diagnosis.steps, diagnosis.replay.steps
    some = f" ({replayed} of {steps.count} steps)" if steps and replayed and replayed < steps.count else ""
    return f"replay error {100 * diagnosis.replay.error:.1f} %{some}"


def remaining(diagnosis: Diagnosis) -> str:
    """`remaining run 3 h 10 → 0 h 45 with fix 1`; empty if the run's length is not known."""
    left = diagnosis.findings[0].remaining_ns if diagnosis.findings else None
    return f"remaining run {long_duration(left.now)} → {long_duration(left.expected)} with fix 1" if left else ""
