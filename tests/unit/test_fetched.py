"""What making a batch consists of, from the stacks below torch's fetcher."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof.diagnosis.detect.batches.fetched import FEWEST_FETCHING, Fetching, shares
from gpuprof.diagnosis.sampled.host_calls import FETCH, StackColumns
from gpuprof.tracefile.run_folder.samples import Function, HostSamples

DATASETS, COLLATE = "torch/utils/data/dataset.py", "torch/utils/data/_utils/collate.py"
TAKES = ("library", FETCH, "_MapDatasetFetcher.fetch")
ROWS = (TAKES, ("library", DATASETS, "TensorDataset.__getitem__"))
OF_SUBSET = (TAKES, ("library", DATASETS, "Subset.__getitems__"), ROWS[1])
STACKS = (TAKES, ("library", COLLATE, "default_collate"))
JOINS = (TAKES, ("library", "graphs/loader.py", "Collater.__call__"), ("library", "graphs/batch.py", "from_data_list"))
TOKENISES = (*JOINS, ("library", "transformers/tokenization_utils.py", "PreTrainedTokenizer.__call__"))
BY_HAND = (TAKES, ("own", "train.py", "collate"))
OWN_ROWS = (TAKES, ("own", "train.py", "Table.__getitem__"), ROWS[1])
OWN = (TAKES, ("own", "train.py", "Table.__getitem__"))
PANDAS = (*OWN, ("library", "pandas/core/indexing.py", "_LocIndexer.__getitem__"))
READS = (*OWN, ("library", "PIL/Image.py", "open"))
NO_BATCH = (("own", "train.py", "train"),)


def of(*stacks: tuple[tuple[str, str, str], ...], each: int = FEWEST_FETCHING) -> Fetching | None:
    functions, caller, function, node = [], [], [], []
    for stack in stacks:
        for depth, one in enumerate(stack):
            caller.append(len(caller) - 1 if depth else -1)
            function.append(len(functions))
            functions.append(Function(*one, 1))
        node += [len(caller) - 1] * each
    count = len(node)
    samples = HostSamples(
        tuple(functions), np.array(caller), np.array(function), np.ones(len(caller), np.int64), np.arange(count),
        np.array(node), np.full(count, -1), np.array([0, count]), (), 0, 1,
    )  # fmt: skip
    return shares(StackColumns(samples))


@pytest.mark.parametrize(
    ("stacks", "found"),
    [
        ((ROWS, STACKS), Fetching(0.5, 0.5, 0.5)),
        ((OF_SUBSET,), Fetching(1, 0, 0)),
        ((JOINS, NO_BATCH), Fetching(0, 0, 1)),
        ((JOINS, TOKENISES), Fetching(0, 0, 0.5)),
        ((BY_HAND, OWN_ROWS), Fetching(0, 0, 0)),
        ((NO_BATCH,), None),
        ((OWN, STACKS), Fetching(0, 0.5, 0.5, 0, 0.5)),
        ((PANDAS, READS), Fetching(0, 0, 0, 0.5, 0)),
    ],
)
def test_what_a_batch_consists_of(stacks, found):
    """A data set or a collate function of the user's own may do anything: they count for neither, but where a data set
    calls nothing, or reads from a table."""
    assert of(*stacks) == found


def test_few_samples_say_nothing():
    assert of(ROWS, each=FEWEST_FETCHING - 1) is None
