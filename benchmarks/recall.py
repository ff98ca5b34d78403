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

Mended, and named, after modules_saved and attention_by_math were measured: whole embeddings next to adapters in
adapter_extras, torch's attention whose fused kernels are switched off in eager_attention.

Mended, and named, once it was known what was missed in dense_adjacency (sparse_matrix), graph_scatter (scattered_sums),
mel_rebuilt (separate_passes: both sides of a comparison), muon_float32 (optimizer_matmuls) and input_grads_left
(discarded_gradients: numbers of gradients where shapes are unknown). An entry that makes a shown fix with one that
gains only after it counts for those that were measured together.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import gpuprof
from benchmarks.accuracy import ROOT, of_timed_steps, other_batch, pairs, shared
from benchmarks.accuracy import Case as TimedCase
from benchmarks.fit_or_test import role_of
from benchmarks.out_of_sample import TRUTH
from benchmarks.recall_page import report, section, with_section
from benchmarks.recall_pairs import (
    FIRST_CONTACT,
    KEPT,
    Gain,
    Pair,
    Program,
    Timed,
    Where,
    gain_of,
    keep,
    met_before,
    not_met,
)
from gpuprof.diagnosis.findings import fused_elementwise
from gpuprof.diagnosis.findings.fused_elementwise import IN_TITLE, PIECES
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Considered, Finding
from scenarios.catalogue import Scenario, campaign_names, scenario, scenarios

MORE_TRUTH = Path(__file__).with_name("recall_truth.json")
PAGE = ROOT / "docs" / "accuracy.md"
SAME_WORK = 0.2
WITH_HEAD = "loss with the output layer"
"""A piece that a change may contain and that the fix in pieces leaves out if it takes longer than a separate loss."""


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
    just_these = (one for one in mine if ids_of(one, found) == {change.finding, *change.also})
    if (entry := next(just_these, None)) is not None:
        gain = entry.speedup
    predicted = None if gain is None else (gain.low, gain.expected, gain.high)
    likely = math.prod({one.title: one.probability for one in all_of_them}.values())
    return Pair(*head, "fixes" if sure else "worth_trying", last, predicted, likely)


def ids_of(one: Finding, found: Diagnosis) -> set[str]:
    """The findings whose fixes an entry makes: two, of which one at least is ruled out alone, or just its own."""
    others = (*found.considered, *found.findings, *found.worth_trying)
    alone = {other.id for other in others if other.title in one.parts}
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
        keep([*met_before(), *found], FIRST_CONTACT)
    if options.page:
        options.out = KEPT
        PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), section(found)), encoding="utf-8")
    if options.out:
        keep(found, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
