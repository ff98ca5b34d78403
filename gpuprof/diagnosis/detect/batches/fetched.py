"""What a process does while it makes a batch, from sampled stacks: it takes rows of tensors or tables one by one, or it
joins samples that are ready."""

from __future__ import annotations

import re
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
_ONE = "__getitem__"
_COMPREHENSION = re.compile(r"\.<locals>\.<(genexpr|\w+comp)>")
_TABLES = "pandas/core/"
"""Folder of the code that reads from a table."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """Shares of the time in which torch's fetcher makes a batch."""

    rows: float
    """Rows of a TensorDataset are read, one at a time."""
    stacked: float
    """Torch's own collate function stacks them."""
    joined: float
    """A library's collate function joins samples, and reads or tokenises nothing."""
    of_tables: float = 0.0
    """A data set of the program's own reads them from a table (pandas), one at a time."""
    of_own: float = 0.0
    """A data set of the program's own gives them without a call of any Python function: it indexes or converts, or
    calls a library's C code."""


def fetching(case: Analysis, workers: bool = False) -> Fetching | None:
    """What making a batch consists of, in the training process or in workers; None if too few samples say so."""
    samples = None if case.folder is None else read_samples(Path(case.folder.path), case.folder.rank)
    return None if samples is None else shares(StackColumns(samples), workers)


def shares(stacks: StackColumns, workers: bool = False) -> Fetching | None:
    """The same of sampled stacks."""
    paths = stacks.of_worker_sample if workers else map(stacks.below_fetcher, stacks.of_sample)
    known = [_what(stacks.functions, path) for path in paths if path]
    if len(known) < FEWEST_FETCHING:
        return None
    rows, stacked, joined, tables, own = (
        known.count(what) / len(known) for what in ("rows", "stacked", "joined", "tables", "own")
    )
    return Fetching(rows, stacked, joined + stacked, tables, own)


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
    if first.kind == "own" and first.name.rpartition(".")[2] == _ONE:
        deeper = [one for one in of_subsets[1:] if not _COMPREHENSION.fullmatch(one.name.removeprefix(first.name))]
        return "own" if not deeper else "tables" if all(one.file.startswith(_TABLES) for one in deeper) else ""
    if first.name.rpartition(".")[2] in _GETS or any(_prepares(one) for one in below):
        return ""
    return "stacked" if first.file == _COLLATE else "joined"


def _prepares(one: Function) -> bool:
    return one.kind == "own" or READS_OR_TOKENISES.search(f"{one.file} {one.name}") is not None
