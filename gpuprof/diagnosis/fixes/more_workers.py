"""The mean step with more input workers without a replay: the loader alone is simulated as a queue."""

from __future__ import annotations

import math

import numpy as np

from gpuprof.calibration import loader as calibrated
from gpuprof.calibration import noise as noise_calibrated
from gpuprof.replay.loader_queue import Loader, fed_step_ns
from gpuprof.replay.mean_step import least_on_cores, slowed_by_sharing
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.units import Assumed, Workers
from gpuprof.value_range import Range

USUAL_WORKERS: Assumed[Workers] = 4
"""Number of input workers to propose if no finding says how many; limited by the number of cores."""


def usual_workers(run: RunFolder) -> int:
    """USUAL_WORKERS, limited by the run's cores; at least one."""
    return max(min(USUAL_WORKERS, int(run.cpus or USUAL_WORKERS)), 1)


def with_more_workers(run: RunFolder, wanted: int, has_gpu: bool) -> tuple[Range, Range] | None:
    """(mean step with `wanted` input workers in ns, speedup), from what the run measured in its loader; None if it
    already has that many workers, or did not measure its loader.

    All workers share the machine's cores: a step takes at least the CPU time of its batches and of the training's own
    part, divided by the cores. `has_gpu`: whether that part used one core, as it does with a GPU.
    """
    made = (run.own.loader or {}).get("made")
    workers = int((run.own.loader or {}).get("num_workers") or 0)
    if not isinstance(made, dict):
        return None
    rows = run.steps.rows("baseline_free", run.rank)
    batch_ns = float(made.get("batch_ns") or 0)
    if not len(rows) or wanted <= workers or not batch_ns:
        return None
    took = run.steps.ns[rows].astype(np.float64)
    waited = np.maximum(run.steps.data_ns[rows], 0).astype(np.float64)
    now_ns, consumer_ns = float(took.mean()), float((took - waited).mean())
    micro = run.steps.micro_steps[rows]
    batches = max(float(micro[micro > 0].mean()) if (micro > 0).any() else 1.0, 1.0)
    loader = Loader(batch_ns, workers, spread=float(made.get("spread") or 0.0))
    cpu_ns = float(made.get("batch_cpu_ns") or batch_ns)
    then = slowed_by_sharing(loader, wanted, cpu_ns, run.cpus)
    fed_ns = fed_step_ns(then, consumer_ns, batches, calibrated.FETCH_NS.value)
    # The training's own part may use one core, as with a GPU, or all of them, as torch's CPU kernels do.
    threads = max(run.cpus, 1.0) if run.cpus and not has_gpu else 1.0
    least = [least_on_cores(cpu_ns * batches, consumer_ns * cores, run.cpus) for cores in (1.0, threads)]
    ends = [max(fed_ns, ns) for ns in least]
    step_ns, factor = math.sqrt(ends[0] * ends[1]), calibrated.SPREAD.value * (1 + noise_calibrated.PROCESS.value)
    step = Range(ends[0] / factor, step_ns, ends[1] * factor)
    return step, Range(now_ns / step.high, now_ns / step_ns, now_ns / step.low)
