"""How much of what was measured to gain gpuprof shows, and how often what it shows gains.

    python -m benchmarks.recall [--role test] [--shared FOLDER] [--only NAME] [--jobs 2] [--out pairs.json] [--page]
    python -m benchmarks.recall --first-contact

A pair is a program and one change of it whose gain was measured, turn by turn in fresh processes without a profiler:
fixes of gpuprof's own catalogue and edits from outside it (`finding` is null in scenario.json), which count as missed.
"Shown" means in *Fixes* or in *Worth trying*, under the finding that proposes the change; a batch or a number of
workers other than the measured one is the same advice. The gain's interval is that of the measured batch. Fixes that
were measured together (`also`) have to be shown all, and are predicted where gpuprof combines just these. Another form
of a finding's fix (`form`: a part of it, or more than it) is shown where the fix is; its gain is not compared.

- Recall: of pairs measured to gain 10 % or more, the share shown in either list, among the first three (fixes that take
  off mostly the same time are one entry), and with the measured gain in the predicted 80 % interval. Those stand out
  that gained more than the processes as they are differ by, of which there have to be two at least: of the others no
  one can say whether it was the change or the machine.
- Precision: of the shown fixes that were measured, the share that gained 2 % or more, by list; and those among *Fixes*
  that failed or lost more than 3 %.
- Reliability: of shown and considered fixes with a probability, the share that gained 2 %, by probability.

Shares come with their 80 % interval (Wilson's), by pair. Role `fit` is for designing, role `test` for quoting. `--page`
keeps the pairs in recall.json and writes their section of docs/accuracy.md again.

No number is fitted to a program of role `test`, but rules are mended once it is known what they miss. So what is said
of a program before anyone has looked at what it measured counts apart: `--first-contact` keeps the pairs of programs
that are not in recall.json yet, once and for all, in recall_first_contact.json.

A change in pieces (`norms, gates`) is shown where one of its pieces is, and predicted where the fix makes just these:
a fix that leaves out what loses (Liger's gates and its loss with the output layer in liger_pieces) is another change
than all pieces at once, and `python -m benchmarks.compile_prices` prices just what was measured. This rule came once
liger_pieces was measured.

Rules that came, or were mended, after the truth of programs here was known: garbage_collection, float64, full_sort,
one_hot, recurrent_loop, ops on the CPU in offload, norms by root and rotary embeddings in fused_elementwise, prices of
graph_breaks (not compiling, too), compile and recompiles; sorting and copying before a cast; frozen_encoder, which asks
for a second epoch; rare_steps, which looks at all unprofiled steps; worker_restarts; step_metrics, losses in one_hot,
masks that hide nothing; kernels of library calls in compile (unet_first). Rules that no measured program has tested,
with assumed numbers: slow_python, debug_switches, odd_sizes, expanded_product, idle_gradients, rebuilt_constants,
cudnn_benchmark, heads in recurrent_loop, fused_elementwise in steps that wait for the CPU.

Named as a finding's once it was known that they gain: evaluation in larger batches (frequent_eval), which rare_steps
proposes where training itself has room; a head on all states at once (spectral_heads), which recurrent_loop proposes
as branches; other forms in metrics_each_step, pairwise_loss and topk_by_sort; less than DoRA on every layer
(dora_speech), which adapter_extras proposes; layers without spectral norms (spectral_heads) in rebuilt_weights.

Mended after dora_speech, t5_adafactor, lightning_debugging and large_vocabulary were measured: adapter_extras is new,
optimizers of libraries in optimizer, statistics of gradients in step_metrics, labels that were not seen in
needless_logits.

Named once eleven programs were measured whose author did not know the list of findings: expanded_product in
codebook_distances, frozen_encoder in dpo_reference and latents_each_step, odd_sizes in gpt2_added_tokens,
separate_passes in triplet_passes. They were shown before they were named so; recall_first_contact.json counts them as
missed.

Mended after pairwise_loss, spectral_heads and grown_by_cat were measured: python_loop (loops in loops, the walk over
autograd's nodes), rebuilt_weights (weights computed again), recurrent_loop (a layer called for each step), and what is
taken for generation.

Mended after rollout_by_env, mel_rebuilt and augment_in_loop were measured: calls for one row after another in
python_loop (no longer in syncs, recurrent_loop and larger_batch), tables that the CPU computes in rebuilt_constants
(mel_rebuilt's filters on the GPU were expected of host_preprocessing), random numbers of augmented samples in
host_preprocessing.

Mended, and named, after averaged_on_cpu, detr_matcher, saved_on_cpu, short_epochs and wav2vec2_unfrozen were measured:
averages of weights that come less often, copies of activations in pinned memory, losses of several outputs in
python_loop, what workers load at their start, feature_encoder.

Mended after muon_float32, rope_complex, dense_adjacency, gpt2_added_tokens and scaler_fp16 were measured: the CPU's
time behind a GPU that limits the step (from timed steps in which the CPU was ahead), rebuilt_constants (what is
computed of tensors without gradients), functions that are written out in fused_elementwise, Liger's pieces one on top
of the other, several small gains as one entry. The stated probability of *Worth trying* was fitted to role fit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import gpuprof
from benchmarks.accuracy import ROOT, of_timed_steps, other_batch, pairs, shared
from benchmarks.accuracy import Case as TimedCase
from benchmarks.fit_or_test import role_of
from benchmarks.out_of_sample import TRUTH, wilson
from gpuprof.diagnosis.findings import fused_elementwise
from gpuprof.diagnosis.findings.fused_elementwise import IN_TITLE, PIECES
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Considered, Finding
from scenarios.catalogue import Scenario, campaign_names, scenario, scenarios

MORE_TRUTH = Path(__file__).with_name("recall_truth.json")
KEPT = Path(__file__).with_name("recall.json")
FIRST_CONTACT = Path(__file__).with_name("recall_first_contact.json")
PAGE = ROOT / "docs" / "accuracy.md"
HEADING = "## Recall: how much of what gains is shown\n"
GAINS = 1.10
"""From which measured gain on a change must be shown."""
GAINED = 1.02
"""From which measured gain on a shown change was worth showing."""
LOST = 0.97
"""A shown fix that measures below this made the training slower."""
FIRST = 3
"""Fixes that a person reads."""
AGAIN = "_again"
"""How the name of a second run of a program ends."""
SAME_WORK = 0.2
WITH_HEAD = "loss with the output layer"
"""A piece that a change may contain and that the fix in pieces leaves out if it takes longer than a separate loss."""
BINS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Ends of the probabilities' classes."""
Where = Literal["fixes", "worth_trying", "considered", "absent"]


@dataclass(frozen=True, slots=True)
class Gain:
    """The measured gain of one change: step as it is / step with the change, for equal work; 0 if it did not run."""

    low: float
    middle: float
    high: float
    scatter: float | None = None
    """The slowest of the processes as they are over the quickest, which nothing was changed between; None of one, and
    of pairs that were kept without."""

    @property
    def stands_out(self) -> bool:
        """Whether it is more than unchanged processes differ by."""
        return self.scatter is not None and self.middle > self.scatter


@dataclass(frozen=True, slots=True)
class Timed:
    """One change whose gain was measured."""

    name: str
    finding: str | None
    """The finding of gpuprof that would propose it; None from outside its catalogue."""
    title: str | None
    work: float
    gain: Gain
    also: tuple[str, ...] = ()
    """Findings whose fixes were made at the same time: all of them have to be shown."""
    form: str = ""
    """`part` or `more` for another form of the finding's fix, whose gain is not compared."""


@dataclass(frozen=True, slots=True)
class Program:
    """One recorded program and the measured changes."""

    name: str
    role: str
    path: Path
    changes: tuple[Timed, ...]
    differs: bool = False
    """Whether its recording holds the steps that were timed, which are not alike."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A measured change and what gpuprof says about it."""

    program: str
    role: str
    change: str
    finding: str | None
    gain: Gain
    where: Where
    rank: int | None
    """Among all that is shown, from 1; fixes that take off mostly the same time share a place."""
    predicted: tuple[float, float, float] | None
    """Low, expected, high gain, where that is of the same work."""
    probability: float | None
    why: str = ""
    """Reason for not showing it."""

    @property
    def shown(self) -> bool:
        return self.where in ("fixes", "worth_trying")

    @property
    def held(self) -> bool | None:
        """Whether the predicted interval meets what the turns measured."""
        if self.predicted is None:
            return None
        return self.predicted[0] <= self.gain.high and self.predicted[2] >= self.gain.low


def gain_of(before: Sequence[float], after: Sequence[float], work: float = 1.0) -> Gain:
    """From step times, ms, of the turns as it is and with a change; turn by turn where there are as many of each."""
    if not before or not after:
        return Gain(0.0, 0.0, 0.0)
    turns = list(zip(before, after, strict=False))
    each = sorted(work * a / b for a, b in turns)
    tenth = len(each) // 10
    middle = work * statistics.median(before) / statistics.median(after)
    scatter = max(before) / min(before) if len(before) > 1 else None
    return Gain(min(each[tenth], middle), middle, max(each[-1 - tenth], middle), scatter)


def of_scenario(one: Scenario) -> Program | None:
    """A scenario's measured changes; None where its recording is not kept or nothing was timed."""
    truth = one.truth
    if one.recording is None or truth is None:
        return None

    def steps(fix: str) -> list[float]:
        return [process["free_ms"] for process in truth["processes"] if process["fix"] == fix]

    timed = [
        Timed(fix.name, fix.finding, fix.title, fix.work, gain_of(steps(""), after, fix.work), fix.also, fix.form)
        for fix in one.fixes
        if (after := steps(fix.name))
    ]
    return Program(one.name, one.role, one.recording, tuple(timed), one.steps_differ) if timed else None


def not_recorded() -> tuple[int, int]:
    """(measured changes, programs) of scenarios whose recording is not kept: gpuprof cannot be asked about them."""
    each = [
        sum(any(process["fix"] == fix.name for process in one.truth["processes"]) for fix in one.fixes)
        for one in (*scenarios(), *map(scenario, campaign_names()))
        if one.truth is not None and one.recording is None
    ]
    return sum(each), sum(count > 0 for count in each)


def of_case(case: TimedCase, role: str) -> Program:
    """A recorded pair of tests/data/pairs or shared/traces/h200, of which only the lowest and highest are kept."""
    base = case.unprofiled_ms or (0.0, 0.0)
    changes = [
        Timed(f"{fix.finding}{f'_{fix.work:g}' if fix.work != 1 else ''}", fix.finding, fix.title, fix.work,
              Gain(fix.work * base[0] / fix.step_ms[1], fix.work * sum(base) / sum(fix.step_ms),
                   fix.work * base[1] / fix.step_ms[0], base[1] / base[0] if base[1] > base[0] > 0 else None))
        for fix in case.fixes
    ]  # fmt: skip
    return Program(case.name, role, case.path, tuple(changes))


def of_other_projects(folder: Path) -> Iterator[Program]:
    """Programs of other projects whose recordings are in FOLDER; none if they do not exist."""
    both = [json.loads(path.read_text(encoding="utf-8"))["runs"].items() for path in (TRUTH, MORE_TRUTH)]
    for name, found in itertools.chain(*both):
        path = folder / Path(found["place"]).relative_to("shared")
        changes = [
            Timed(one["name"], one["finding"], None, one.get("work", 1.0),
                  gain_of([a for a, _ in one["pairs"]], [b for _, b in one["pairs"]], one.get("work", 1.0)))
            for one in found["fixes"]
        ]  # fmt: skip
        if path.exists():
            yield Program(name, role_of(found["place"]), path, tuple(changes))


def programs(folder: Path) -> Iterator[Program]:
    """All programs with a recording and a measured change."""
    yield from filter(None, map(of_scenario, (*scenarios(), *map(scenario, campaign_names()))))
    for case in pairs():
        if case.fixes:
            yield of_case(case, role_of(f"tests/data/pairs/{case.path.name}"))
    if (folder / "traces" / "h200" / "truth.json").exists():
        yield from (of_case(case, "fit") for case in shared(folder / "traces" / "h200") if case.fixes)
    yield from of_other_projects(folder)


def met(program: Program) -> list[Pair]:
    """What gpuprof says about each change of a program."""
    found = gpuprof.diagnose(program.path)
    if program.differs:
        timed = TimedCase(program.name, program.path, None, None, run=True, steps_differ=True)
        found = of_timed_steps(timed) or found
    return [_pair(program, change, found) for change in program.changes]


def _pair(program: Program, change: Timed, found: Diagnosis) -> Pair:
    shown = [*found.findings, *found.worth_trying]
    mine = [one for one in shown if proposes(change, one) and (change.also or len(ids_of(one, found)) == 1)]
    head = (program.name, program.role, change.name, change.finding, change.gain)
    if mine and change.also:
        return _several(head, mine, change, found)
    if mine:
        best = min(mine, key=lambda one: abs(one.work - change.work))
        first = min(_rank(shown, one) for one in mine)
        where: Where = "fixes" if best in found.findings else "worth_trying"
        other = None if change.form else other_batch(found, change)
        timed = best if _gain(best, change) is not None else other or best
        return Pair(*head, where, first, _gain(timed, change), best.probability)
    other = next((one for one in found.considered if proposes(change, one)), None)
    if other is None:
        return Pair(*head, "absent", None, None, None)
    return Pair(*head, "considered", None, None, None, other.reason)


def _several(
    head: tuple[str, str, str, str | None, Gain], mine: list[Finding], change: Timed, found: Diagnosis
) -> Pair:
    """Fixes that were made together: shown where all are, predicted where just these are combined."""
    shown = [*found.findings, *found.worth_trying]
    others = [next((one for one in shown if name in ids_of(one, found)), None) for name in change.also]
    if None in others:
        missing = ", ".join(name for name, one in zip(change.also, others, strict=True) if one is None)
        return Pair(*head, "absent", None, None, None, f"{missing} is not shown")
    all_of_them = [mine[0], *(one for one in others if one is not None)]
    sure = all(one in found.findings for one in all_of_them)
    last = max(_rank(shown, one) for one in all_of_them)
    both = found.combined
    same = both is not None and set(both.ids) == {change.finding, *change.also}
    gain = both.speedup if both is not None and same else None
    if ids_of(mine[0], found) == {change.finding, *change.also}:
        gain = mine[0].speedup
    predicted = None if gain is None else (gain.low, gain.expected, gain.high)
    likely = math.prod({one.title: one.probability for one in all_of_them}.values())
    return Pair(*head, "fixes" if sure else "worth_trying", last, predicted, likely)


def ids_of(one: Finding, found: Diagnosis) -> set[str]:
    """The findings whose fixes an entry makes: two that are ruled out alone, or just its own."""
    alone = {other.id for other in found.considered if other.title in one.parts}
    return alone if len(alone) > 1 else {one.id}


def _rank(shown: Sequence[Finding], one: Finding) -> int:
    """Place of a fix among what is shown, from 1; one that takes off mostly the time of an earlier one is named with
    that, and shares its place."""
    with_it = next((other for other in shown if other.title == one.overlaps), one)
    return 1 + sum(other.overlaps is None for other in shown[: shown.index(with_it)])


def proposes(change: Timed, one: Finding | Considered) -> bool:
    return one.id == change.finding and (change.title in (None, one.title) or _is_piece(change, one))


def _is_piece(change: Timed, one: Finding | Considered) -> bool:
    """Whether the change makes some of the pieces that a fix in pieces names, such as `norms, gates`."""
    return one.id == fused_elementwise.PAGE.id and bool(_made(change) & _proposed(one))


def _made(change: Timed) -> set[str]:
    """The pieces that a measured change makes."""
    return set((change.title or "").split(", ")) & {*PIECES, WITH_HEAD}


def _proposed(one: Finding | Considered) -> set[str]:
    """The pieces that a fix names."""
    return {name for name, word in IN_TITLE.items() if word in one.title}


def _gain(one: Finding, change: Timed) -> tuple[float, float, float] | None:
    if change.form:
        return None
    if _is_piece(change, one) and _made(change) != _proposed(one):
        return None  # the fix leaves out what was measured, or makes more
    same = one.id == "rare_steps" or abs(one.work / change.work - 1) < SAME_WORK
    return (one.speedup.low, one.speedup.expected, one.speedup.high) if same else None


@dataclass(frozen=True, slots=True)
class Share:
    """How many of how many, with the 80 % interval of the share."""

    hits: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.hits, self.of)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.hits} of {self.of} ({100 * low:.0f}–{100 * high:.0f} %)" if self.of else "none"


def share(found: Iterable[Pair], holds: Callable[[Pair], object]) -> Share:
    """Of some pairs, those for which it holds."""
    each = [bool(holds(pair)) for pair in found]
    return Share(sum(each), len(each))


def summary(found: Sequence[Pair]) -> dict[str, Share]:
    """Name of a figure → its share."""
    gaining = [pair for pair in found if pair.gain.middle >= GAINS]
    fixes = [pair for pair in found if pair.where == "fixes"]
    worth = [pair for pair in found if pair.where == "worth_trying"]
    return {
        "shown": share(gaining, lambda pair: pair.shown),
        "shown, of those that stand out": share(
            [pair for pair in gaining if pair.gain.stands_out], lambda pair: pair.shown
        ),
        "shown in Fixes": share(gaining, lambda pair: pair.where == "fixes"),
        "in the first three": share(gaining, lambda pair: pair.rank is not None and pair.rank <= FIRST),
        "gain in the interval": share([pair for pair in gaining if pair.predicted is not None], lambda pair: pair.held),
        "Fixes that gained": share(fixes, lambda pair: pair.gain.middle >= GAINED),
        "Fixes that failed or lost": share(fixes, lambda pair: pair.gain.middle < LOST),
        "Worth trying that gained": share(worth, lambda pair: pair.gain.middle >= GAINED),
    }


def reliability(found: Iterable[Pair]) -> list[tuple[float, float, float, Share]]:
    """By class of probability: its ends, the mean probability, and the share that gained 2 %."""
    known = [(pair.probability, pair) for pair in found if pair.probability is not None]
    rows = []
    for low, high in itertools.pairwise(BINS):
        mine = [(p, pair) for p, pair in known if low <= p < high or (high == 1.0 and p == 1.0)]
        if mine:
            mean = statistics.mean(p for p, _ in mine)
            rows.append((low, high, mean, share((pair for _, pair in mine), lambda pair: pair.gain.middle >= GAINED)))
    return rows


def report(found: Sequence[Pair]) -> Iterator[str]:
    """The pairs and the figures, line by line."""
    for pair in sorted(found, key=lambda pair: (pair.program, pair.change)):
        gain = f"{pair.gain.middle:.2f} ({pair.gain.low:.2f}–{pair.gain.high:.2f})"
        said = "" if pair.predicted is None else "{1:.2f} ({0:.2f}–{2:.2f})".format(*pair.predicted)
        sure = "" if pair.probability is None else f"p {pair.probability:.2f}"
        rank = "" if pair.rank is None else f"#{pair.rank}"
        mark = "" if pair.gain.middle < GAINS or pair.shown else "MISSED "
        mark += "WRONG " if pair.where == "fixes" and pair.gain.middle < LOST else ""
        mark += "OUTSIDE " if pair.held is False else ""
        head = f"{pair.program:28.28} {pair.role:5}{pair.change:18.18} {pair.finding or '–':20}"
        yield f"{head}{gain:20} {pair.where:13}{rank:4}{said:20} {sure:7}{mark}{pair.why}"
    for role in ("fit", "test"):
        mine = [pair for pair in found if pair.role == role]
        if mine:
            yield f"\n{role}: {len(mine)} pairs of {len({pair.program for pair in mine})} programs"
            yield from (f"  {name:30} {value}" for name, value in summary(mine).items())
            for low, high, mean, hits in reliability(mine):
                yield f"  probability {low:.1f}–{high:.1f}: said {mean:.2f}, gained {hits}"


SECTION = """{heading}
A pair is a program and one change of it whose gain was measured in fresh processes, `python -m benchmarks.recall`; the
changes are fixes of gpuprof's catalogue and edits from outside it, which count as missed. Of those that gained 10 % or
more: how many stand in *Fixes* or *Worth trying*, how many among the first three (fixes that take off mostly the same
time are one entry), and how many gains lie in the predicted 80 % interval. Of what is shown and was measured: how much
gained 2 % or more. With 80 % intervals of the shares. Recordings of the role `test` only; next to them, for comparison,
those that numbers may be fitted to. {missing} more measured changes, of {without} programs whose recordings are not
kept, are not counted.

| | role test: {tested} pairs of {programs} programs | role fit: {fitted} pairs |
|---|---|---|
"""
ROWS = {
    "shown": "gained 10 %: shown in either list",
    "shown, of those that stand out": "… of those that gained more than unchanged processes differ by",
    "in the first three": "… among the first three",
    "gain in the interval": "… with the gain in the interval, of those predicted",
    "Fixes that gained": "*Fixes* that gained 2 %",
    "Fixes that failed or lost": "*Fixes* that failed or lost more than 3 %",
    "Worth trying that gained": "*Worth trying* that gained 2 %",
}
RELIABILITY = """
| probability that is stated | role test: mean, and share that gained 2 % | role fit |
|---|---|---|
"""
MISSED = """
Gained 10 % and not shown (role test):

"""
CONTACT = """
Rules are improved once their misses are known, including misses on programs of role test. What gpuprof said of
{programs} of them before anyone had looked at what they measured ({pairs} pairs):

Whoever wrote the last twelve of them did not know the list of findings, and left six changes without one that a
finding proposes (expanded_product twice, frozen_encoder twice, odd_sizes and separate_passes). Here they count as
missed, although all six were shown, five of them with what they measured in the interval; in the table above they count
as shown.

| first contact | role test |
|---|---|
"""
OUTSIDE = """
Predicted, and outside of the interval at first contact:

"""


def section(found: Sequence[Pair]) -> str:
    """The section of docs/accuracy.md."""
    test, fit = ([pair for pair in found if pair.role == role] for role in ("test", "fit"))
    text = SECTION.format(
        heading=HEADING,
        tested=len(test),
        programs=len({pair.program for pair in test}),
        fitted=len(fit),
        missing=not_recorded()[0],
        without=not_recorded()[1],
    )
    sums = summary(test), summary(fit)
    text += "".join(f"| {title} | {sums[0][key]} | {sums[1][key]} |\n" for key, title in ROWS.items())
    text += RELIABILITY
    rows = [{row[0]: row for row in reliability(pairs)} for pairs in (test, fit)]
    for low, high in itertools.pairwise(BINS):
        if any(low in one for one in rows):
            cells = [f"{one[low][2]:.2f}: {one[low][3]}" if low in one else "–" for one in rows]
            text += f"| {low:.1f} to {high:.1f} | {cells[0]} | {cells[1]} |\n"
    return text + _missed(test) + _first_contact()


def _missed(found: Sequence[Pair]) -> str:
    missed = [pair for pair in found if pair.gain.middle >= GAINS and not pair.shown]
    return (MISSED if missed else "") + "".join(
        f"- {pair.program}, {pair.change}: {pair.gain.middle:.2f}×{_scatter(pair.gain)}{_again(pair, found)};"
        f" {pair.why or 'nothing is said of it'}\n"
        for pair in missed
    )


def _again(pair: Pair, found: Sequence[Pair]) -> str:
    """What another run of the same program measured of the same change; empty where there is none."""
    other = pair.program.removesuffix(AGAIN) if pair.program.endswith(AGAIN) else pair.program + AGAIN
    same = next((one for one in found if (one.program, one.change) == (other, pair.change)), None)
    return "" if same is None else f" (another run of the program: {same.gain.middle:.2f}×)"


def _scatter(gain: Gain) -> str:
    return (
        "" if gain.scatter is None or gain.stands_out else f" (unchanged processes differ by up to {gain.scatter:.2f}×)"
    )


def _first_contact() -> str:
    """What was said of programs before what they measured was known; empty where none is kept."""
    found = [pair for pair in _met_before() if pair.role == "test"]
    if not found:
        return ""
    text, of = CONTACT.format(programs=len({pair.program for pair in found}), pairs=len(found)), summary(found)
    text += "".join(f"| {title} | {of[key]} |\n" for key, title in ROWS.items() if of[key].of) + _missed(found)
    outside = [pair for pair in found if pair.held is False and pair.gain.middle >= GAINS]
    return text + (OUTSIDE if outside else "") + "".join(map(_outside, outside))


def _outside(pair: Pair) -> str:
    assert pair.predicted is not None
    low, expected, high = pair.predicted
    return f"- {pair.program}, {pair.change}: {pair.gain.middle:.2f}×; {expected:.2f}× ({low:.2f} to {high:.2f})\n"


def keep(found: Sequence[Pair], path: Path) -> None:
    """Writes pairs, one a line."""
    rows = ",\n".join(json.dumps(asdict(pair)) for pair in found)
    path.write_text(f"[\n{rows}\n]\n", encoding="utf-8")


def not_met(found: Iterable[Program]) -> list[Program]:
    """Of some programs those of which neither recall.json nor recall_first_contact.json has pairs."""
    seen = {pair.program for pair in (*kept(), *_met_before())}
    return [one for one in found if one.name not in seen]


def _met_before() -> list[Pair]:
    return kept(FIRST_CONTACT) if FIRST_CONTACT.exists() else []


def kept(path: Path | None = None) -> list[Pair]:
    """The pairs of a file, by default of recall.json."""
    rows = json.loads((path or KEPT).read_text(encoding="utf-8"))
    return [
        Pair(**{**row, "gain": Gain(**row["gain"]), "predicted": row["predicted"] and tuple(row["predicted"])})
        for row in rows
    ]


def with_section(page: str, text: str) -> str:
    """A page with this section in place of the one of the same heading, or else before its second heading."""
    before, found, rest = page.partition(HEADING)
    if not found:
        before, _, rest = page.partition("\n## ")
        return f"{before}\n{text}\n## {rest}"
    return f"{before}{text}\n## {rest.partition(chr(10) + '## ')[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--role", choices=("fit", "test"))
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--first-contact", action="store_true")
    options = parser.parse_args()
    chosen = [
        one for one in programs(options.shared)
        if options.only in one.name and options.role in (None, one.role)
    ]  # fmt: skip
    if options.first_contact:
        chosen = not_met(chosen)
    with ProcessPoolExecutor(options.jobs) as pool:
        found = [pair for pairs_of_one in pool.map(met, chosen) for pair in pairs_of_one]
    print("\n".join(report(found)))
    if options.first_contact:
        keep([*_met_before(), *found], FIRST_CONTACT)
    if options.page:
        options.out = KEPT
        PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), section(found)), encoding="utf-8")
    if options.out:
        keep(found, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
