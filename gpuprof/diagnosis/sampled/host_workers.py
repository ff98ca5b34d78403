"""What the DataLoader's workers do, from samples of their stacks (`gpuprof trace --sample-workers`)."""

from __future__ import annotations

import math
from collections import Counter

from gpuprof.diagnosis.result.host_model import LoaderWorkers, WorkerFunction
from gpuprof.diagnosis.sampled.host_calls import SampledFrame, StackColumns
from gpuprof.record.base.quantiles import Z80
from gpuprof.tracefile.run_folder.samples import Function, HostSamples
from gpuprof.units import Assumed, Convention, Functions, Share
from gpuprof.value_range import Range

LEAST_SAMPLED_SHARE: Assumed[Share] = 0.02
MOST_FUNCTIONS: Convention[Functions] = 10
_TORCH_DATA = "torch/utils/data/"


def loader_workers(samples: HostSamples, stacks: StackColumns) -> LoaderWorkers | None:
    """What the workers do; None if none was sampled. A worker is busy from the moment torch's fetcher asks the data set
    until the batch is collated."""
    n = len(samples.worker_node)
    if not n:
        return None
    counts = Counter(stacks.of_worker_sample)
    busy = 0
    times: Counter[int] = Counter()
    lines: Counter[SampledFrame] = Counter()
    for path, count in counts.items():
        if not path:
            continue
        busy += count
        for frame in _listed(path[1:], stacks.functions):
            times[frame.function] += count
            lines[frame] += count
    listed = [
        (function, count) for function, count in times.most_common(MOST_FUNCTIONS) if count >= LEAST_SAMPLED_SHARE * n
    ]
    return LoaderWorkers(
        workers=samples.workers,
        samples=n,
        busy=busy / n,
        functions=tuple(worker_function(stacks.functions[i], _line(i, lines), count, n) for i, count in listed),
    )


def _listed(path: tuple[SampledFrame, ...], functions: tuple[Function, ...]) -> list[SampledFrame]:
    """The innermost call of each of the user's functions; if there is none, the first function of a library other than
    torch's loader."""
    own = {frame.function: frame for frame in path if functions[frame.function].kind == "own"}
    if own:
        return list(own.values())
    return [frame for frame in path if not functions[frame.function].file.startswith(_TORCH_DATA)][:1]


def _line(function: int, lines: Counter[SampledFrame]) -> int:
    """The line of a function that most samples were at."""
    return max((frame for frame in lines if frame.function == function), key=lambda frame: lines[frame]).line


def worker_function(found: Function, line: int, count: int, n: int) -> WorkerFunction:
    """A function or line with `count` of the workers' `n` samples."""
    share = count / n
    half = Z80 * math.sqrt(max(share * (1 - share), 1 / n) / n)
    return WorkerFunction(
        found.name, found.file, line, found.kind, Range(max(share - half, 0.0), share, min(share + half, 1.0))
    )
