"""The assumptions of a projection, as sentences."""

from __future__ import annotations

from gpuprof.calibration import memory as memory_calibrated
from gpuprof.projection.projected_step import ProjectedStep
from gpuprof.projection.projection import MemoryFit
from gpuprof.projection.sustained_rates import Reach, reach_of
from gpuprof.units import Assumed, Share

MOST_UNMODELLED: Assumed[Share] = 0.15
"""A share of unmodelled GPU time above this is mentioned."""
MEAN_LONGER: Assumed[Share] = 0.03
"""If the mean step is longer than the usual one by more than this share, the difference is mentioned."""


def of_all(projected: ProjectedStep) -> tuple[str, ...]:
    """Assumptions for every GPU of the projection, the most important first."""
    unit = projected.subject.unit
    s, q = projected.subject, projected.question
    return tuple(filter(None, (
        _host(projected),
        _layers(projected),
        _batch(projected),
        _usual(projected),
        "Kernels keep their efficiency relative to the roofline; the latency part of memory-bound kernels scales with "
        "the SMs. The roofline is what the GPU sustains: measured, else from a model of its power limit. "
        "Launch latency stays the same. Libraries may choose better kernels for another GPU.",
        f"{100 * s.roofline.unmodelled_share:.0f} % of the GPU's time is in kernels whose work is not known; they "
        "are scaled like others of their name or category, and widen the interval."
        if s.roofline.unmodelled_share > MOST_UNMODELLED else "",
        "" if s.memory else "Memory use, or the tokens of a batch, were not recorded (gpuprof trace records what it "
        "can): what fits is not known.",
        _memory(projected),
        f"Energy is that of the GPU board alone, estimated from what limits it{_measured_power(s.power_ratio)}; prices"
        " are the lowest listed at their date.",
        "Ranks: gradients are exchanged in DDP buckets during the backward pass, every GPU has its own batch, and CPU "
        "work per rank stays the same." if q.ranks and s.trained_bytes else "",
        f"The recording is of {s.world_size} GPUs: its communication is part of the {unit} and takes as long as"
        f" recorded; that "
        "of the requested ranks is added." if s.world_size > 1 else "",
        *s.notes,
    )))  # fmt: skip


def of_gpu(projected: ProjectedStep, there: Reach, memory: MemoryFit | None, share: float) -> tuple[str, ...]:
    """Assumptions for one GPU."""
    unit = projected.subject.unit
    gpu, found = there.gpu, []
    if there.half_source == "power":
        stated = gpu.half_flops or 0.0
        found.append(
            f"{gpu.name}: no measured matmul rate is known; {there.half_flops / 1e12:,.0f} of {stated / 1e12:,.0f} "
            f"TFLOP/s is what {gpu.tdp_w or 0:,.0f} W are estimated to sustain (within {there.half_spread:.2f}×)."
        )
    if there.half_source == "stated" and gpu.half_flops:
        found.append(
            f"{gpu.name}: neither a measured matmul rate nor its power limit is known; {there.half_flops / 1e12:,.0f} "
            f"of {gpu.half_flops / 1e12:,.0f} TFLOP/s is what GPUs usually sustain (within {there.half_spread:.2f}×)."
        )
    half = {"bf16", "fp16"} & set(gpu.dense_flops)
    if "bf16" not in half:
        found.append(f"{gpu.name} has no bf16 tensor cores: bf16 is assumed to run at its fp32 rate.")
    if memory is not None and not memory.fits:
        if share < 1:
            found.append(f"{gpu.name}: the batch does not fit; shown is the {unit} of {part(share)} of it.")
        else:
            found.append(f"{gpu.name}: not even one sample fits; shown is the {unit} as if it did.")
    if gpu.confidence == "C":
        found.append(f"{gpu.name}: sources disagree about its figures.")
    return tuple(found)


def part(share: float) -> str:
    """A half, a quarter, an eighth … of something."""
    named = {0.5: "half", 0.25: "a quarter", 0.125: "an eighth"}
    return named.get(share, f"1/{round(1 / share)}")


def _memory(projected: ProjectedStep) -> str:
    use = projected.usage()
    if use is None:
        return ""
    how = {
        "measured": "activations follow a line fitted to the peaks of the run's own passes",
        "grows": "everything above it grows in proportion to the tokens of a pass",
        "shape": "activations are estimated from the model's shape, because the loss is computed in chunks; the"
        " rest of "
        "the peak stays",
        "optimizer": "the peak is the optimizer's step, activations are estimated from the model's shape",
    }[use.activations.basis]
    return (
        f"Memory: what the allocator held between the recorded {projected.subject.unit}s stays; {how}. "
        f"{memory_calibrated.CONTEXT_BYTES.whole / 1e9:g} GB for the driver and libraries,"
        f" {100 * (memory_calibrated.FRAGMENTS.value - 1):.0f} % for fragments."
    )


def _host(projected: ProjectedStep) -> str:
    source = projected.question.host_source
    if source == "assumed":
        return (
            "The CPU (host) is assumed to be as fast as the recorded one. Measure both (gpuprof gpus --measure"
            " --json) and "
            "pass --hosts HERE.json THERE.json, or --host-factor; the table shows 0.5, 1 and 2."
        )
    how = "as given" if source == "given" else "as measured on both"
    return f"The CPU (host) takes {projected.host_factor:.2f} times as long as the recorded one, {how}, for every GPU."


def _layers(projected: ProjectedStep) -> str:
    s, q = projected.subject, projected.question
    parts = []
    if q.layers and s.layers and projected.deeper != 1:
        parts.append(f"{s.layers.count} recorded layers stand for {q.layers}")
    if q.experts and s.experts and projected.wider != 1:
        parts.append(f"{s.experts} recorded experts for {q.experts}, each with proportionally fewer tokens")
    return (
        f"{', '.join(parts)}: the work of a layer is repeated for each; embeddings, head and loss run once."
        if parts
        else ""
    )


def usual_ns(projected: ProjectedStep) -> float | None:
    """The usual step, if usual steps are compared because some steps of the recorded training are much longer; else
    None."""
    mean = projected.subject.step_ns.expected
    usual = min((projected.recorded_ns(reach_of(gpu)) for gpu in projected.question.gpus), default=mean)
    return usual if mean >= (1 + MEAN_LONGER) * usual else None


def _usual(projected: ProjectedStep) -> str:
    unit = projected.subject.unit
    return (
        f"Usual {unit}s are compared: how long what makes others longer takes on another GPU is not known."
        if usual_ns(projected) is not None
        else ""
    )


def _batch(projected: ProjectedStep) -> str:
    if projected.batch_factor == 1 and projected.longer == 1:
        return ""
    text = "Another batch: arithmetic and traffic grow with the tokens; reading weights and CPU work do not."
    if projected.longer != 1:
        text += " Attention also scales with the sample length."
    return text


def _measured_power(ratio: float) -> str:
    return "" if ratio == 1 else f", times {ratio:.2f}: the recorded GPU's measured power over its estimate"
