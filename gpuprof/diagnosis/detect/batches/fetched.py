"""What the training process does while it makes a batch itself, from sampled stacks: it takes rows of tensors one by
one, or it joins samples that are ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.diagnosis.sampled.host_calls import FETCH, SampledFrame, StackColumns
from gpuprof.projection.changes.sample_preparation import READS_OR_TOKENISES
from gpuprof.tracefile.run_folder.samples import Function, read_samples
from gpuprof.units import Assumed, Samples, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_FETCHING: Assumed[Samples] = 30
"""Fewest samples in which a batch is made."""
ALL_BUT_FEW: Assumed[Share] = 0.9
"""Share of them that must be explained."""
_DATASETS, _COLLATE = "torch/utils/data/dataset.py", "torch/utils/data/_utils/collate.py"
_ROWS = "TensorDataset.__getitem__"
_GETS = ("__getitem__", "__getitems__", "__next__")
"""Methods with which a data set gives samples."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """Shares of the time in which torch's fetcher makes a batch."""

    rows: float
    """Rows of a TensorDataset are read, one at a time."""
    stacked: float
    """Torch's own collate function stacks them."""
    joined: float
    """A library's collate function joins samples, and reads or tokenises nothing."""


def fetching(case: Analysis) -> Fetching | None:
    """What making a batch consists of; None if too few samples say so."""
    samples = None if case.folder is None else read_samples(Path(case.folder.path), case.folder.rank)
    return None if samples is None else shares(StackColumns(samples))


def shares(stacks: StackColumns) -> Fetching | None:
    """The same of sampled stacks."""
    known = [_what(stacks.functions, path) for path in map(stacks.below_fetcher, stacks.of_sample) if path]
    if len(known) < FEWEST_FETCHING:
        return None
    rows, stacked, joined = (known.count(what) / len(known) for what in ("rows", "stacked", "joined"))
    return Fetching(rows, stacked, joined + stacked)


def _what(functions: Sequence[Function], path: Sequence[SampledFrame]) -> str:
    """What a stack from torch's fetcher on does: rows, stacked, joined, or empty for anything else."""
    below = [functions[frame.function] for frame in path]
    below = [one for one in below if one.file != FETCH]
    of_subsets = [one for one in below if not (one.file == _DATASETS and one.name.startswith("Subset."))]
    if not of_subsets:
        return ""
    first = of_subsets[0]
    if first.file == _DATASETS and first.name == _ROWS:
        return "rows"
    if first.name.rpartition(".")[2] in _GETS or any(_prepares(one) for one in below):
        return ""
    return "stacked" if first.file == _COLLATE else "joined"


def _prepares(one: Function) -> bool:
    return one.kind == "own" or READS_OR_TOKENISES.search(f"{one.file} {one.name}") is not None
