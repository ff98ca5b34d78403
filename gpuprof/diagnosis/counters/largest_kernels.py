"""Which kernels of a step Nsight Compute should profile: the ten largest items, each at least once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.timeline.categories import COMMUNICATION
from gpuprof.tracefile.trace import KERNEL
from gpuprof.units import Assumed, Convention, Entries, Launches

MOST_ITEMS: Convention[Entries] = 10
"""Kernels of one name with the same launch are one item."""
MOST_LAUNCHES: Assumed[Launches] = 200
"""Most kernels to profile: each is launched again for every group of counters."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The kernels to profile."""

    functions: tuple[str, ...]
    """Names of kernels without return type, namespaces, template arguments and parameters."""
    launches: int
    """Number of these functions' kernels from the start of a step until each item has been launched once."""
    share: float
    """The items' share of all kernels' time, 0 to 1."""


def largest_kernels(case: Analysis) -> Wanted | None:
    """The functions of the ten items that take most time; communication is left out, since it waits for other ranks.

    If they need more than MOST_LAUNCHES launches, the items that take most time within that number. None if there is no
    kernel.
    """
    gpu, rows = case.trace.gpu, case.timeline.members
    rows = rows[gpu.kind[rows] == KERNEL]
    rows = rows[np.argsort(gpu.start_ns[rows], kind="stable")]
    took = (gpu.end_ns - gpu.start_ns)[rows].clip(0)
    own = {name: own_name(case.trace.strings[name]) for name in np.unique(gpu.name[rows]).tolist()}
    launch = [getattr(gpu, f"{what}_{axis}")[rows] for what in ("grid", "block") for axis in "xyz"]
    _, item = np.unique(np.stack([gpu.name[rows], *launch]), axis=1, return_inverse=True)
    item = item.reshape(-1)
    counts = case.timeline.category[rows] != COMMUNICATION
    size = np.bincount(item, took * counts)
    # Steps are alike, so the first recorded step represents the profiled one.
    first = slice(0, max(len(rows) // max(case.steps, 1), 1))
    functions = np.array([own[name] for name in gpu.name[rows[first]].tolist()], dtype=object)
    at = {one: int(np.argmax(item[first] == one)) for one in np.argsort(-size, kind="stable")[:MOST_ITEMS].tolist()}
    items = [
        (at[one], str(functions[at[one]]), float(size[one])) for one in at if item[at[one]] == one and size[one] > 0
    ]
    return _best(items, {name: np.flatnonzero(functions == name) for _, name, _ in items}, max(float(took.sum()), 1.0))


def _best(items: list[tuple[int, str, float]], launched: dict[str, np.ndarray], all_ns: float) -> Wanted | None:
    """The set of functions, profiled up to some item, that covers most time; of equal ones that with fewest launches.

    items: (place of its first launch in the step, function, ns) each; launched: places of each function's kernels.
    """
    best: tuple[float, int, tuple[str, ...]] | None = None
    ends = sorted(place for place, _, _ in items)
    until = {name: np.searchsorted(places, ends, "right").tolist() for name, places in launched.items()}
    for many in range(1, len(launched) + 1):
        for chosen in combinations(sorted(launched), many):
            for at, end in enumerate(ends):
                launches = sum(until[name][at] for name in chosen)
                ns = sum(size for place, name, size in items if place <= end and name in chosen)
                found = (ns, -launches, chosen)
                if 0 < launches <= MOST_LAUNCHES and (best is None or found[:2] > best[:2]):
                    best = found
    return None if best is None else Wanted(best[2], -best[1], best[0] / all_ns)


_MANGLED = re.compile(r"_ZN?K?(?=\d)")


def own_name(name: str) -> str:
    """A kernel's function name: for `void at::native::vectorized_elementwise_kernel<4, …>(…)` the last name before
    `<`."""
    mangled = _MANGLED.match(name)
    if mangled:
        return _last_part(name[mangled.end() :]) or name
    text = name.removeprefix("void ").replace("(anonymous namespace)", "").replace("<unnamed>", "")
    return text.partition("<")[0].partition("(")[0].strip().rpartition("::")[2]


def _last_part(mangled: str) -> str:
    """The function name in `7cutlass13device_kernelI…`: the last of the leading length-prefixed names (the C++ ABI that
    GCC, Clang and nvcc share)."""
    found = ""
    while (length := re.match(r"\d+", mangled)) is not None:
        end = length.end() + int(length[0])
        found, mangled = mangled[length.end() : end], mangled[end:]
    return found
