"""Notes that a reader of a comparison needs in addition to its figures."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.comparison.comparison import ComparedWork, KernelDifferences, Mechanism, Note, Significance, Step
from gpuprof.diagnosis.comparison.kernel_differences import SAME_KERNELS, exchanged
from gpuprof.diagnosis.comparison.significance import CORRELATED
from gpuprof.diagnosis.detect.pair.facts import Facts
from gpuprof.diagnosis.detect.pair.quantities import times
from gpuprof.diagnosis.detect.pair.side import Side
from gpuprof.diagnosis.result.run_model import Energy
from gpuprof.diagnosis.sentences import count
from gpuprof.timeline.unit import Unit


def notes(a: Facts, b: Facts, step: Step, work: ComparedWork | None, tested: Significance | None) -> Iterator[Note]:
    if a.stepless:
        yield Note(
            "no_steps",
            "warning",
            f"No {a.unit}s were found: the whole of each recording is compared as if it were one {a.unit}. Name the"
            f" range or op that is {a.unit.a}: --step REGEX.",
        )
    yield from _step_notes(a.side, b.side, a.unit)
    yield from _work_notes(a.side, b.side, work, a.unit)
    yield from _test_notes(step, tested, a.unit)
    yield from _place_notes(a.side, b.side)
    yield from energy_notes(a.energy, b.energy, a.unit)
    yield from _flaws(a, b)


def other_program(differ: str | None, unit: Unit) -> Iterator[Note]:
    """The note if the models differ; `differ` says how."""
    if differ is not None:
        yield Note(
            "other_program",
            "warning",
            f"The programs are different ({differ}): what follows is how their {unit}s differ, and not what a change"
            " gained. Predictions are left out.",
        )


def energy_notes(a: Energy | None, b: Energy | None, unit: Unit) -> Iterator[Note]:
    """The note on the GPU's energy, if both measured it in the same way."""
    if a is None or b is None or a.source != b.source or not (a.step_j and b.step_j):
        return
    how = "the GPU's energy counter" if a.source == "counter" else "samples of the GPU's power"
    unsure = a.step_high_j / a.step_j - 1, b.step_high_j / b.step_j - 1
    text = (
        f"By {how}, {unit.a} takes {a.step_j:,.3g} J in A and {b.step_j:,.3g} J in B"
        f" ({_differ(a.step_j, b.step_j, *unsure)})"
    )
    if a.token_j and b.token_j:
        each = 1e3 * a.token_j, 1e3 * b.token_j
        text += f", a token {each[0]:,.3g} and {each[1]:,.3g} mJ ({_differ(*each, *unsure)})"
    yield Note("energy", "info", text + ".")


def _differ(a: float, b: float, unsure_a: float, unsure_b: float) -> str:
    """`-12%`; if the intervals overlap, that there is no clear difference, with their widths. unsure: half an interval,
    as a share of its middle."""
    if a * (1 - unsure_a) > b * (1 + unsure_b) or b * (1 - unsure_b) > a * (1 + unsure_a):
        return f"{b / a - 1:+.0%}"
    return f"no clear difference: ±{100 * unsure_a:.0f} % and ±{100 * unsure_b:.0f} %"


def _step_notes(a: Side, b: Side, unit: Unit) -> Iterator[Note]:
    if a.known != b.known:
        timed, other = ("A", "B") if a.known == "unprofiled" else ("B", "A")
        yield Note(
            "unlike_steps",
            "warning",
            f"The {unit} of {timed} was timed without a profiler, that of {other} is the recorded one with the"
            " profiler's"
            f" cost removed by replay, which is less certain. Record {other} with gpuprof trace, or time {unit.a} and"
            " give it: --step-ms.",
        )
    elif a.known == "recorded":
        yield Note(
            "recorded_steps",
            "warning",
            f"Both {unit}s are as recorded, under the profiler, because its cost is not known for both; a profiler"
            f" slows down {unit}s of many small kernels most.",
        )
    elif a.known == "estimated":
        yield Note(
            "estimated_steps",
            "info",
            f"Neither {unit} was timed without a profiler: both are the recorded ones with the profiler's cost"
            " removed by replay.",
        )


def _work_notes(a: Side, b: Side, work: ComparedWork | None, unit: Unit) -> Iterator[Note]:
    if work is None:
        yield Note(
            "work_unknown",
            "info",
            f"The work of {unit.a} (tokens, samples) is not recorded for both; the comparison assumes that it is"
            " the same.",
        )
    elif work.measure == "product FLOPs":
        if not work.equal:
            yield Note(
                "other_flops",
                "warning",
                f"B's matrix multiplications do {times(work.ratio)}× the FLOPs of A's: the batches seem to differ in"
                f" size, and then the {unit} times cannot be compared directly.",
            )
    elif not work.equal:
        yield Note(
            "other_work",
            "warning",
            f"The {unit}s do different work: {work.a:,.0f} {work.measure} in A, {work.b:,.0f} in B. Compare the time"
            f" for each: {(work.a_ns_per or 0) / 1e3:,.4g} µs in A, {(work.b_ns_per or 0) / 1e3:,.4g} µs in B"
            f"{_timed_over(a, b, work, unit)}.",
        )
    if work is not None and work.measure == "tokens":
        yield from _padding_notes(a, b)


def _timed_over(a: Side, b: Side, work: ComparedWork, unit: Unit) -> str:
    means = (a.token_ns, b.token_ns) if work.measure == "tokens" else (a.sample_ns, b.sample_ns)
    return f", over all {unit}s timed without a profiler" if means == (work.a_ns_per, work.b_ns_per) else ""


def _padding_notes(a: Side, b: Side) -> Iterator[Note]:
    """The note if one side does not report its padding."""
    if bool(a.real_tokens) == bool(b.real_tokens):
        return
    tells, silent, known = ("A", "B", a) if a.real_tokens else ("B", "A", b)
    if known.real_tokens == known.tokens:
        return
    yield Note(
        "padding_unknown",
        "warning",
        f"{silent} does not report which of its tokens are padding ({tells} does): all of them are counted as real,"
        " as in packed rows, which have no mask.",
    )


def _test_notes(step: Step, tested: Significance | None, unit: Unit) -> Iterator[Note]:
    if tested is None or tested.significant is None or not step.difference_ns:
        return
    if tested.correlation is not None and tested.correlation > CORRELATED:
        yield Note(
            "correlated_steps",
            "info",
            f"Neighbouring {unit}s resemble each other (correlation {tested.correlation:.2f}), so the true p is larger"
            " than this.",
        )
    if tested.significant and abs(step.ratio - 1) < noise_calibrated.PROCESS.value:
        yield Note(
            "within_noise",
            "info",
            f"The {unit}s differ by {100 * abs(step.ratio - 1):.1f} %. That is more than the noise between {unit}s,"
            f" but processes of the same program also differ by some {100 * noise_calibrated.PROCESS.value:.0f} %:"
            " run both again to confirm it.",
        )


def _place_notes(a: Side, b: Side) -> Iterator[Note]:
    if a.gpu and b.gpu and a.gpu != b.gpu:
        yield Note("other_gpu", "warning", f"The GPUs differ: A ran on {a.gpu}, B on {b.gpu}.")
    if (a.world_size or 1) != (b.world_size or 1):
        yield Note("other_ranks", "warning", f"A ran on {a.world_size or 1} ranks, B on {b.world_size or 1}.")
    elif (a.rank or 0) != (b.rank or 0):
        yield Note(
            "other_rank",
            "info",
            f"Shown are rank {a.rank or 0} of A and rank {b.rank or 0} of B, of {a.world_size or 1} ranks each.",
        )
    elif (a.world_size or 1) > 1:
        yield Note("one_rank", "info", f"Shown is rank {a.rank or 0} of both, of {a.world_size} ranks each.")
    if a.kind != b.kind and "nsys" in (a.kind, b.kind):
        yield Note(
            "other_tool",
            "info",
            "One was recorded by Nsight Systems, the other by torch.profiler: without ops, kernels are"
            " classified by name only, and categories and phases may differ.",
        )


def _flaws(a: Facts, b: Facts) -> Iterator[Note]:
    """The warnings of both recordings' diagnoses, verbatim; a warning about both appears once."""
    of_a, of_b = _warnings(a), _warnings(b)
    for message in of_a:
        yield Note("degraded", "info", f"{'A and B' if message in of_b else 'A'}: {message}")
    for message in of_b:
        if message not in of_a:
            yield Note("degraded", "info", f"B: {message}")


def _warnings(one: Facts) -> list[str]:
    # If the step was timed without the profiler, it does not matter when the recorded work ran.
    return [i.message for i in one.warnings if not (i.id == "host_ahead" and one.side.known == "unprofiled")]


def same_program(
    step: Step, mechanisms: tuple[Mechanism, ...], kernels: KernelDifferences, a: Facts, b: Facts
) -> Iterator[Note]:
    """The note if no change of the program was named: whether the kernels differ. If they are the same, a
    change of the program is not the reason."""
    if not (mechanisms and step.difference_ns and {m.id for m in mechanisms} <= {"host", "kernels"}):
        return
    one_only = kernels.new or kernels.gone
    counted = f"{kernels.new:,} new, {kernels.gone:,} gone, {count(a.side.kernels)} → {count(b.side.kernels)}"
    if exchanged(a.kernels, b.kernels) > SAME_KERNELS:
        yield Note(
            "other_kernels",
            "info",
            f"The programs differ: they launch other kernels ({counted} {a.unit.a}). It is unknown how much of the"
            f" difference between the {a.unit}s that explains.",
        )
        return
    most = f"nearly the same kernels ({counted} {a.unit.a})" if one_only else "the same kernels"
    yield Note(
        "same_program",
        "info",
        f"Both launch {most}: no difference between the programs was found. What differs is the speed"
        " of the machine: for a host-bound program it varies by 10 to 50 % between machines and processes, for a"
        " GPU-bound one by little.",
    )
