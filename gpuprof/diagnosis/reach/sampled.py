"""The Python function that runs in given nodes of the replayed steps, from samples of unprofiled steps."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.ledger_part import Sampled
from gpuprof.diagnosis.sampled.host_calls import StackColumns
from gpuprof.diagnosis.sampled.sampled_places import FEWEST_SAMPLES, placed, weights
from gpuprof.timeline.phases import BACKWARD
from gpuprof.tracefile.run_folder.samples import Function
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Share

NAMING_SHARE: Assumed[Share] = 0.5
"""Smallest share of a place's samples that must have a function in their stack to name the place after it."""
LOOP_SHARE: Assumed[Share] = 0.9
"""A function in at least this share of all samples is the loop around the steps, whose name says little."""
LAYERS = "torch/nn/modules/"
"""Folder of torch's own layers."""
TENSOR = "torch/_tensor.py"
"""File of `Tensor.backward`."""
LEAST_FUNCTION_SHARE: Assumed[Share] = 0.2
"""Smallest share of a place's samples of a function that is named as one of several."""


def sampled_in(case: Analysis, nodes: Mask) -> Sampled | None:
    """The function that runs or waits in some nodes of the training thread; where that waits for a backward pass in all
    of them, in nodes of the engine's thread. None without samples there, or if none has half of them."""
    found = placed(case)
    if found is None:
        return None
    stacks, where = found
    own = case.graph.lane == case.timeline.main_thread
    weight = weights(case, where, nodes & own)
    if weight.sum() < FEWEST_SAMPLES:
        weight = weights(case, where, nodes & (case.graph.phase == BACKWARD) & (case.graph.lane >= 0))
    if weight.sum() < FEWEST_SAMPLES:
        return None
    inside: dict[int, float] = defaultdict(float)
    depth: dict[int, float] = defaultdict(float)
    lines: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for sample in np.flatnonzero(weight).tolist():
        mine, seen = float(weight[sample]), set[int]()
        for level, frame in enumerate(stacks.of_sample[sample]):
            if frame.function in stacks.boundary:  # frames that call modules or autograd do not say what runs
                continue
            lines[frame.function][frame.line] += mine
            if frame.function not in seen:
                seen.add(frame.function)
                inside[frame.function] += mine
                depth[frame.function] += mine * level
    most = [one for one, ns in inside.items() if ns >= NAMING_SHARE * weight.sum()]
    # That torch's own layers or backward pass run says less than who calls them.
    most = [one for one in most if not _is_of_torch(stacks.functions[one])] or most
    if not most:
        return None
    best = max(most, key=lambda one: (depth[one] / inside[one], inside[one]))
    function = stacks.functions[best]
    line = max(lines[best], key=lambda one: lines[best][one])
    always = sum(any(frame.function == best for frame in path) for path in stacks.of_sample) >= LOOP_SHARE * len(weight)
    parts = _parts(stacks, weight, best) if always else ()
    return Sampled(function.name, function.file, line, inside[best] / float(weight.sum()), parts)


def _is_of_torch(function: Function) -> bool:
    """Whether a function is the forward pass of one of torch's own layers, or the backward pass of a tensor."""
    layer = function.file.startswith(LAYERS) and function.name.endswith("forward")
    return layer or (function.file == TENSOR and function.name.endswith("backward"))


def _parts(stacks: StackColumns, weight: F64, around: int) -> tuple[tuple[str, float], ...]:
    """The functions called directly by `around` at this place, with their shares of its samples, largest first."""
    below: dict[int, float] = defaultdict(float)
    for sample in np.flatnonzero(weight).tolist():
        names = [frame.function for frame in stacks.of_sample[sample]]
        if around in names:
            following = names[len(names) - names[::-1].index(around) :]
            if following and following[0] not in stacks.boundary:
                below[following[0]] += float(weight[sample])
    total = float(weight.sum())
    large = sorted(((ns / total, one) for one, ns in below.items() if ns >= LEAST_FUNCTION_SHARE * total), reverse=True)
    return tuple((stacks.functions[one].name, share) for share, one in large)
