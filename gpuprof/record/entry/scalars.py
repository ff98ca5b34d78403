"""The numbers of a diagnosis that are worth plotting over time, under flat names; computed from its JSON."""

from __future__ import annotations

from typing import Any

PREFIX = "gpuprof/"


def scalars(diagnosis: dict[str, Any]) -> dict[str, float]:
    """`gpuprof/<name>` → value, of a document `gpuprof.diagnosis/1`; what is not known is left out.

    mean_step_ms, usual_step_ms: the step that a run pays for, and the median one. gpu_busy, exposed_communication,
    input_wait: shares of the step (0 to 1), mean over the devices, the profiler removed. mfu: 0 to 1. tokens_per_s,
    samples_per_s: of all ranks. peak_memory_gib: of one rank. step_j, token_j: measured energy of one GPU's board.
    function_gain_ms: how much shorter the step would be without the Python function that costs it most.
    """
    run, roofline = diagnosis.get("run") or {}, diagnosis.get("roofline") or {}
    throughput, memory, energy = (run.get(name) or {} for name in ("throughput", "memory", "energy"))
    found = {
        **_step(diagnosis),
        **_shares(diagnosis.get("devices_estimated") or [], diagnosis.get("budget")),
        "mfu": roofline.get("mfu"),
        "tokens_per_s": _first(throughput.get("tokens_per_s"), throughput.get("padded_tokens_per_s")),
        "samples_per_s": throughput.get("samples_per_s"),
        "step_j": energy.get("step_j"),
        "token_j": energy.get("token_j"),
        "function_gain_ms": _function_gain(diagnosis),
        "peak_memory_gib": _scaled(memory.get("peak_bytes"), 2**30),
    }
    return {PREFIX + name: float(value) for name, value in found.items() if value is not None}


def in_words(diagnosis: dict[str, Any]) -> str:
    """The headline and verdict of a document `gpuprof.diagnosis/1`, and one sentence each on the first fix, the first
    thing worth trying and the Python function without which the step would be shortest."""
    verdict = diagnosis["verdict"]
    said = [f"{verdict['headline']}."] if verdict.get("headline") else []
    said.append(str(verdict["summary"]))
    for name, key in (("Fix", "findings"), ("Worth trying", "worth_trying")):
        for one in (diagnosis.get(key) or [])[:1]:
            gain = one["speedup"]
            said.append(f"{name}: {one['title']} ({gain['low']:.2f} to {gain['high']:.2f}×).")
    costly, gain_ms = _costliest(diagnosis), _function_gain(diagnosis)
    if costly is not None and gain_ms:
        place = costly["called_from"] or f"{costly['file']}:{costly['line']}"
        said.append(f"Python: {place} {costly['function']} (without it {gain_ms:.3g} ms less).")
    return " ".join(said)


def _step(diagnosis: dict[str, Any]) -> dict[str, float | None]:
    budget, steps = diagnosis.get("budget"), diagnosis.get("steps") or {}
    if budget is not None:
        return {
            "mean_step_ms": _scaled(budget["mean_ns"], 1e6),
            "usual_step_ms": _scaled(budget["usual_ns"], 1e6),
        }
    known = _first(steps.get("unprofiled_ns"), steps.get("estimated_ns"), steps.get("recorded_ns"))
    return {"mean_step_ms": _scaled(known, 1e6)}


def _function_gain(diagnosis: dict[str, Any]) -> float | None:
    costly, budget = _costliest(diagnosis), diagnosis.get("budget")
    return None if costly is None or not budget else max(budget["mean_ns"] - costly["step_ns"]["expected"], 0) / 1e6


def _costliest(diagnosis: dict[str, Any]) -> dict[str, Any] | None:
    """The function without which the step would be shortest; lines that only run a pass have no cost of their own."""
    functions = (diagnosis.get("host") or {}).get("functions") or []
    priced = [one for one in functions if one["step_ns"] is not None and one.get("runs") is None]
    return min(priced, key=lambda one: one["step_ns"]["expected"], default=None)


def _shares(devices: list[dict[str, Any]], budget: dict[str, Any] | None) -> dict[str, float]:
    """Shares of the mean step if it was timed: the devices' step scaled to the usual step, which causes, pauses and
    variation lengthen to the mean."""
    devices = [device for device in devices if device["step_ns"]]
    if not devices:
        return {}
    waited, part = 0.0, 1.0
    if budget is not None and budget["source"] == "free" and budget["mean_ns"]:
        shorter = min(budget.get("residual_ns", 0) - budget.get("paused_ns", 0), 0)
        part = (budget["usual_ns"] + shorter) / budget["mean_ns"]
        excess = {one["cause"]: max(one["mean_ns"] or 0, 0) for one in budget["excess"]}
        waited = excess.get("input", 0) / budget["mean_ns"]

    def mean(ns: Any) -> float:
        return part * sum(ns(device) / device["step_ns"] for device in devices) / len(devices)

    return {
        "gpu_busy": mean(lambda d: d["step_ns"] - d["idle_ns"]),
        "exposed_communication": mean(lambda d: d["communication_ns"]),
        "input_wait": mean(_input) + waited,
    }


def _input(device: dict[str, Any]) -> int:
    return sum(cause["ns"] for cause in device["idle_by_cause"] if cause["cause"] == "input")


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
