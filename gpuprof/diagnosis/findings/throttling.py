"""The GPU lowers its clock because of heat or its power supply, or gets slower while it works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.calibration.quoted import more, percent
from gpuprof.costs.split import COMPUTE, LATENCY
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import as_fix
from gpuprof.replay.graph import DEVICE
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import F64, KERNEL
from gpuprof.units import Assumed, Kernels, Share, Steps, WholeNs

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

HELD_BACK = re.compile(r"thermal|hw_slowdown|power_brake|board_limit|reliability")
"""Reasons for a lower clock that can be remedied. A power limit (`sw_power_cap`) is not one: a GPU at its limit works
as it should."""
LEAST_THROTTLED: Assumed[Share] = 0.2
"""Smallest share of samples with a limited clock; less may be a few seconds of a warm-up."""
FEWEST_DRIFTING_STEPS: Assumed[Steps] = 6
FEWEST_KERNELS: Assumed[Kernels] = 50
"""Fewest recorded steps, and fewest kinds of kernels, in which a drift must appear."""
CLOCK_LIMITED_NS: Assumed[WholeNs] = 5_000
"""Shorter kernels, ns, depend on their launch and not on the clock."""

PAGE = Page(
    id="throttling",
    title="Heat or the power supply slows the GPU down",
    means="""
A GPU that gets too hot, or whose power supply requests it, lowers its clock. The same kernels then take longer, and
so does the whole step if the GPU limits it. Causes are neighbouring GPUs in a badly cooled machine, dust, a failing
fan or an undersized power supply.
""",
    detected=f"""
The driver's clock-limiting reasons in at least {percent(LEAST_THROTTLED)} % of a run's samples: thermal, hardware
slowdown, power brake, board limit. Or, in recordings of at least six steps, kernels that become slower from the first
steps to the last: the median over at least {FEWEST_KERNELS} kinds of kernels, by
{more(calibrated.THROTTLED_SLOWER.value)} %. A GPU at its own power limit does not count.
""",
    gain="""
Kernels limited by arithmetic or by latency scale with the clock: they become as fast as at the highest clock seen in
the run, or as in the first steps. Kernels limited by memory keep their time.
""",
    wrong="""
The highest clock was seen at a lower load and may not be sustainable: at its power limit a GPU lowers its clock under
heavy matrix multiplications, hot or not. Kernels may also slow down because another process uses the GPU.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes better cooling or power supply if the clock was limited."""
    held = _held_back(case)
    drift = _drift(case) if held is None else None
    if held is None and drift is None:
        return
    graph = case.graph
    factor, text = held or drift or (1.0, "")
    left = np.where(_by_clock(case), factor, 1.0) if held else np.full(len(graph), factor)
    nodes = graph.resource == DEVICE
    half = 1 - (1 - left) / 2
    yield Proposal(
        title="cooling and power for the full GPU clock",
        evidence=spans(case, text, nodes & (left < 1)),
        fix=as_fix(
            "look at `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER` under load; "
            "clean or space the GPUs, raise the fans, check the supply"
        ),
        change=partial(scaled, nodes=nodes, factor=left),
        worst=partial(scaled, nodes=nodes, factor=half),
    )


def _held_back(case: Analysis) -> tuple[float, str] | None:
    """(clock now / highest clock seen, statement) of the GPU whose clock was limited most; None if none was."""
    telemetry = case.run.telemetry if case.run else None
    found = None
    for gpu in telemetry.gpus if telemetry else ():
        share = max((share for reason, share in gpu.throttled.items() if HELD_BACK.search(reason)), default=0.0)
        if share < LEAST_THROTTLED or not gpu.sm_mhz or not gpu.sm_mhz_max_seen or gpu.sm_mhz >= gpu.sm_mhz_max_seen:
            continue
        factor = gpu.sm_mhz / gpu.sm_mhz_max_seen
        if found is None or factor < found[0]:
            name = f"GPU {gpu.index}" if telemetry and len(telemetry.gpus) > 1 else "the GPU"
            heat = f" at up to {gpu.temperature_c:,.0f} °C" if gpu.temperature_c is not None else ""
            found = (
                factor,
                f"{name} ran at {gpu.sm_mhz:,.0f} of {gpu.sm_mhz_max_seen:,.0f} MHz{heat}, "
                f"limited in {100 * share:,.0f} % of the samples",
            )
    return found


def _by_clock(case: Analysis) -> np.ndarray:
    """Nodes of kernels whose time scales with the clock; all if it is not known what limits them."""
    if case.roofline is None:
        return case.graph.resource == DEVICE
    return case.nodes_of_gpu(np.isin(case.roofline.split.bound, (COMPUTE, LATENCY)))


def _drift(case: Analysis) -> tuple[float, str] | None:
    """(time of kernels in the first steps over the last, statement); None where they do not get slower."""
    graph, gpu = case.graph, case.trace.gpu
    if graph.steps < FEWEST_DRIFTING_STEPS:
        return None
    rows = np.flatnonzero(graph.on_gpu & (graph.resource == DEVICE) & (graph.call >= 0))
    event = graph.gpu_row[rows]
    took = (gpu.end_ns - gpu.start_ns)[event].astype(np.float64)
    long = (took >= CLOCK_LIMITED_NS) & (gpu.kind[event] == KERNEL)
    rows, event, took = rows[long], event[long], took[long]
    key = np.unique(
        np.stack([gpu.name[event], gpu.grid_x[event], gpu.grid_y[event], gpu.grid_z[event]]),
        axis=1,
        return_inverse=True,
    )[1]
    key, third = key.reshape(-1), graph.steps // 3
    first, last = graph.step[rows] < third, graph.step[rows] >= graph.steps - third
    both = _ratio(key, took, first, last)
    if len(both) < FEWEST_KERNELS or np.median(both) < calibrated.THROTTLED_SLOWER.value:
        return None
    slower = float(np.median(both))
    percent = 100 * (slower - 1)
    return (
        1 / slower,
        f"the same kernels take {percent:,.0f} % longer in the last {third} recorded {case.unit}s than in the first",
    )


def _ratio(key: np.ndarray, took: F64, first: np.ndarray, last: np.ndarray) -> F64:
    """Ratio of mean times, last / first, per kind of kernel that is in both."""
    kinds = int(key.max(initial=-1)) + 1
    sums = [np.bincount(key[part], weights=took[part], minlength=kinds) for part in (first, last)]
    counts = [np.bincount(key[part], minlength=kinds) for part in (first, last)]
    both = (counts[0] > 0) & (counts[1] > 0)
    early, late = (s[both] / c[both] for s, c in zip(sums, counts, strict=True))
    return late / early


FINDING = Declaration(
    page=PAGE,
    find=find,
    role="gpu_clock",
    synonyms=("thermal", "clocks", "power_limit", "temperature", "power"),
    titles=("cooling_and_power_for_the_full_gpu_clock",),
)
