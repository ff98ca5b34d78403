"""Python code of packages that compute metrics, or check their arguments, according to samples of unprofiled steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.sampled.sampled_places import FEWEST_SAMPLES, placed, weights
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

PACKAGES = (
    "torchmetrics/", "ignite/metrics/", "torcheval/", "evaluate/", "sklearn/metrics/", "seqeval/", "sacrebleu/",
    "rouge_score/", "jiwer/", "nltk/translate/", "nltk/metrics/", "bert_score/", "pycocotools/", "mir_eval/", "pesq/",
    "pystoi/",
)  # fmt: skip
"""Folders of packages whose functions compute metrics."""
LEAST_METRICS_SHARE: Assumed[Share] = 0.5
"""Smallest share of the samples of some CPU time in a package of metrics for which that time computes metrics."""
CHECKS = "torch/distributions/distribution.py"
"""File of torch's distributions whose methods read from the GPU whether parameters and samples are valid."""
CHECKING = ("__init__", "_validate_sample")
"""Names of these methods."""
LEAST_CHECKING_SHARE: Assumed[Share] = 0.02
"""Smallest share of all samples in these methods for which the switch of the checks is named."""


def checks_arguments(case: Analysis) -> bool:
    """Whether distributions that check their arguments take time in each step."""
    known = placed(case)
    if known is None or not known[0].of_sample:
        return False
    stacks = known[0]
    methods = enumerate(stacks.functions)
    mine = {at for at, one in methods if one.file == CHECKS and one.name.rpartition(".")[2] in CHECKING}
    checking = sum(any(frame.function in mine for frame in path) for path in stacks.of_sample)
    return checking >= LEAST_CHECKING_SHARE * len(stacks.of_sample)


def metrics_share(case: Analysis, stretches: Stretches) -> F64 | None:
    """Per node of the graph the share of its time in a package of metrics, 0 outside the stretches; None if the run was
    not sampled, or if less than half of the stretches is in such packages."""
    known = placed(case)
    if known is None:
        return None
    graph, (stacks, where) = case.graph, known
    inside = (nodes_in(graph, stretches) >= 0) & ~graph.on_gpu & ~graph.waits
    weight = weights(case, where, inside)
    mine = {at for at, one in enumerate(stacks.functions) if one.file.startswith(PACKAGES)}
    if not mine or weight.sum() < FEWEST_SAMPLES:
        return None
    rows = np.flatnonzero(weight)
    of_metrics = [any(frame.function in mine for frame in stacks.of_sample[row]) for row in rows.tolist()]
    share = float(weight[rows][of_metrics].sum() / weight.sum())
    return np.where(inside, share, 0.0) if share >= LEAST_METRICS_SHARE else None
