"""A run in a few short lines: what is trained, how fast, and the step without the profiler."""

from __future__ import annotations

import re
from typing import Any

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.run_model import Run
from gpuprof.diagnosis.sentences import capital
from gpuprof.record.launcher.goodput import RecordedGoodput as Whole
from gpuprof.record.launcher.goodput import sentence
from gpuprof.report.names import shown
from gpuprof.report.numbers import amount, duration, duration_range, gib, joules, long_duration, rate, scaled, share
from gpuprof.units import Cells, Convention, Share

_NAME_WIDTH: Convention[Cells] = 40
"""Cells for any one name."""
WORTH_SAYING: Convention[Share] = 0.02
"""Share of padding below which it is not mentioned."""
_ENERGY_UNSURE: Convention[Share] = 0.1
"""Energy that is known to within this share is given without an interval."""

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "float8_e4m3fn": "fp8"}
_WRAPPERS = {"DistributedDataParallel": "DDP", "FullyShardedDataParallel": "FSDP"}


def lines(diagnosis: Diagnosis) -> list[str]:
    """At most five lines."""
    return [line for _, line in named_lines(diagnosis)]


def named_lines(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """The same, each with what it is about."""
    run = diagnosis.run
    if run is None:
        return []
    memory = next((gpu.memory_bytes for gpu in diagnosis.environment.gpus if gpu.memory_bytes), None)
    found = (
        ("model", model(run)),
        ("throughput", _speed(run, memory)),
        (f"unprofiled {diagnosis.unit}", _baseline(diagnosis, run)),
        ("energy", energy(run)),
        ("wall time", _whole_run(run)),
    )
    return [(name, line) for name, line in found if line]


def model(run: Run) -> str:
    """`Llama 1.1 B, LoRA r 16 on 7 modules, 12.6 M of 1.1 B trainable, bf16, sdpa, AdamW fused`."""
    found = run.model or {}
    parameters, trainable = _number(found.get("parameters")), _number(found.get("trainable"))
    name = _model_name(found)
    size = scaled(parameters) if parameters else ""
    parts = [" ".join(part for part in (name, size) if part), _lora(found.get("lora"))]
    if trainable is not None and parameters and trainable < parameters:
        parts.append(f"{scaled(trainable)} of {size} trainable")
    parts += [
        _precision(_dtype(found.get("dtypes")), run),
        _quantization(found.get("quantization")),
        _experts(found.get("experts")),
        _name(found.get("attention")),
        "checkpointing" if found.get("checkpointing") is True else "",
        "compiled" if found.get("compiled") is True else "",
        _wrapper(found.get("wrapper")),
        _optimizer(run.optimizer or {}),
    ]
    return ", ".join(part for part in parts if part)


def _wrapper(found: Any) -> str:
    """`DDP` and the like; not PEFT, as LoRA already implies it."""
    name = _name(found)
    return "" if name.startswith("Peft") else _WRAPPERS.get(name, name)


def _model_name(found: dict[str, Any]) -> str:
    """`Llama` for LlamaForCausalLM; a PEFT class names only the wrapper, so then the model's type."""
    name = _name(found.get("class"))
    if name and not name.startswith("Peft"):
        return re.sub(r"(For|LMHead)[A-Z]\w*$", "", name) or name
    kind = _name(found.get("type"))
    return capital(kind) or name


def _lora(lora: Any) -> str:
    if not isinstance(lora, dict):
        return ""
    rank, adapted = _number(lora.get("r")), lora.get("adapted")
    text = "LoRA" if rank is None else f"LoRA r {rank:,.0f}"
    return f"{text} on {amount(len(adapted), 'module')}" if isinstance(adapted, dict) and adapted else text


def _dtype(dtypes: Any) -> str:
    """The dtype of most parameters."""
    counts = {k: n for k, v in dtypes.items() if (n := _number(v)) is not None} if isinstance(dtypes, dict) else {}
    if not counts:
        return ""
    name = max(counts, key=lambda k: counts[k]).removeprefix("torch.")
    return _DTYPES.get(name, _name(name))


def _precision(weights: str, run: Run) -> str:
    """`fp32 weights, bf16 autocast` where the two differ; else the weights' type."""
    autocast = run.program.autocast if run.program else None
    if not autocast or autocast == "off":
        return weights
    computed = _DTYPES.get(autocast, _name(autocast))
    if not weights or computed == weights:
        return weights
    return f"{weights} weights, {computed} autocast"


def _quantization(found: Any) -> str:
    if not isinstance(found, dict):
        return ""
    bits = _number(found.get("bits"))
    return " ".join(part for part in ("" if bits is None else f"{bits:.0f}-bit", _name(found.get("method"))) if part)


def _experts(found: Any) -> str:
    if not isinstance(found, dict) or not (count := _number(found.get("count"))):
        return ""
    active = _number(found.get("active"))
    return f"{count:,.0f} experts" if active is None else f"{active:,.0f} of {count:,.0f} experts"


def _optimizer(found: dict[str, Any]) -> str:
    name = _name(found.get("class"))
    how = next((way for way in ("fused", "foreach") if found.get(way) is True), "")
    return f"{name} {how}".strip() if name else ""


def _speed(run: Run, memory_bytes: int | None) -> str:
    """`1,730 tokens/s, 3.4 samples/s (12 % padding), peak 41.2 of 139.8 GiB`."""
    found, parts = run.throughput, []
    if found.tokens_per_s:
        parts.append(f"{rate(found.tokens_per_s)} tokens/s")
    if found.samples_per_s:
        parts.append(f"{rate(found.samples_per_s)} samples/s")
    padding = _padding(run)
    if parts and padding >= WORTH_SAYING:
        parts[-1] += f" ({share(padding, 1)} padding)"
    if run.memory.peak_bytes:
        of = f" of {gib(memory_bytes)}" if memory_bytes else ""
        parts.append(f"peak {gib(run.memory.peak_bytes)}{of} GiB")
    return ", ".join(parts)


def _padding(run: Run) -> float:
    """Share of the run's tokens that is padding, as for the fixes; 0 if it is not known."""
    found = run.throughput
    if not found.tokens_per_s or not found.padded_tokens_per_s:
        return 0.0
    real = run.work.real_share
    return 1 - (found.tokens_per_s / found.padded_tokens_per_s if real is None else real)


def energy(run: Run) -> str:
    """`48 J a step, 24 mJ a token: 590 W by the energy counter over 40 steps, 127 W of it when idle; 610 W
    estimated`."""
    found = run.energy
    if found is None:
        return ""
    each = f"{joules(found.step_j)} a step"
    if found.step_high_j > (1 + _ENERGY_UNSURE) * found.step_j:
        each += f" ({joules(found.step_low_j)} to {joules(found.step_high_j)})"
    each += f", {joules(found.token_j)} a token" if found.token_j else ""
    if found.boards > 1:
        each += f", of {found.boards} GPUs together"
    elif found.gpus > 1:
        each += " and GPU"
    how = "by the energy counter" if found.source == "counter" else "by samples of its power"
    text = f"{each}: {found.power_w:,.0f} W {how} over {amount(found.steps, 'step')}"
    if found.idle_w is not None:
        text += f", {min(found.idle_w, found.power_w):,.0f} W of it when idle"
    return text + (f"; {found.estimated_w:,.0f} W by the model" if found.estimated_w is not None else "")


def _baseline(diagnosis: Diagnosis, run: Run) -> str:
    """`10 steps timed without the profiler: mostly 79–84 ms, remaining 3 h 10`: a range, since the headline states the
    mean step."""
    baseline, parts = run.baseline, []
    if baseline.free_ns is not None:
        low, high = baseline.free_low_ns, baseline.free_high_ns
        took = duration(baseline.free_ns)
        if low is not None and high is not None and low < high:
            took = f"mostly {duration_range(low, high)}"
        parts.append(f"{amount(baseline.free_steps, 'step')} timed without the profiler: {took}")
    if baseline.synchronised_ns is not None:
        text = f"{duration(baseline.synchronised_ns)} synchronised"
        steps = diagnosis.steps
        if baseline.free_ns is None:
            text += f" over {amount(baseline.synchronised_steps, 'step')}"
        if baseline.free_ns is None or (steps is not None and steps.unprofiled_ns == baseline.synchronised_ns):
            parts.append(text)
    if run.remaining_ns and run.status in ("running", None):
        parts.append(f"remaining {long_duration(run.remaining_ns)}")
    return ", ".join(parts)


def _whole_run(run: Run) -> str:
    """`usual steps take 61 % of the run's 12 min; the rest: loading model and data 21 %, evaluation 9 %`."""
    found = run.goodput
    if found is None:
        return ""
    return sentence(Whole(found.wall_ns, found.steps, found.usual_ns, found.productive_ns, found.lost_ns))


def tokens(diagnosis: Diagnosis) -> str:
    """`128 tokens a step`, padding left out where it is known."""
    if diagnosis.run is None:
        return ""
    work = diagnosis.run.work
    found = work.tokens if work.real_tokens is None else work.real_tokens
    each = " and rank" if (diagnosis.environment.world_size or 1) > 1 else ""
    return f"{amount(round(found), 'token')} {diagnosis.unit.a}{each}" if found else ""


def _name(value: Any) -> str:
    return shown(value, _NAME_WIDTH) if isinstance(value, str) and value else ""


def _number(value: Any) -> float | None:
    """A number that makes sense as an amount; the run's facts about its model are not validated elsewhere."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None
