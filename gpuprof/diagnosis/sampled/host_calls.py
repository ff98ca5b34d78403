"""Attributes sampled stacks to functions, to find each function's share of the step.

A function's samples are those with the function anywhere in the stack. Which functions are listed is decided sample by
sample: each sample is charged to one function. Functions that call the model, run the backward pass or contain the
training loop are not costs as a whole. Below the innermost of them in a stack, the first function of the user's is
charged, or else the first function. If several places call it, or if there is none, the calling line is charged; but
what the user's decorator returns is passed over in favour of what it calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuprof.tracefile.run_folder.samples import Function, HostSamples
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Share

FROM_ONE_LINE: Assumed[Share] = 0.8
"""A function that gets at least this share of its samples from one calling line is listed itself, not by that line."""
CALLS_THE_MODEL: Assumed[Share] = 0.02
"""A function with at least this share of its samples in a module or backward pass that it calls is part of the loop,
not a cost."""

PASS_SHARE: Assumed[Share] = 0.5
"""A line with more than this share of its samples in torch's own code of a pass is listed as that pass."""
WRAPPER_SHARE: Assumed[Share] = 0.6
"""A wrapper that shares at least this part of its samples with one function that it wraps is not listed."""

_BOUNDARIES = {
    "torch/nn/modules/module.py": ("_call_impl", "_wrapped_call_impl"),
    "torch/autograd/graph.py": ("_engine_run_backward",),
    "torch/autograd/__init__.py": ("backward",),
    "torch/_dynamo/eval_frame.py": ("_fn", "__call__"),
}
_ENGINE = {"torch/autograd/graph.py": ("_engine_run_backward",), "torch/autograd/__init__.py": ("backward",)}
_TORCH = "torch/"
_LOCAL = "<locals>"
"""In the qualified name of a function that is defined inside another."""
_LOADER = ("_get_data", "_try_get_data")
"""Where the DataLoader waits for its workers (torch/utils/data/dataloader.py)."""
FETCH = "torch/utils/data/_utils/fetch.py"
"""The file of torch's fetcher, which asks the data set for samples and collates them."""
_WRAPPERS = frozenset(
    ("wrapper", "wrapped", "inner", "_fn", "_use_grad", "decorate_context", "maybe_fallback", "wrapped_fn",
     "_no_grad_wrapper", "<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "decorator", "wrapped_func",
     "new_forward")
)  # fmt: skip
"""Names that do not say what a function does."""


@dataclass(frozen=True, slots=True)
class SampledFrame:
    """A call in a stack: the function's index, and the line that it was at."""

    function: int
    line: int


@dataclass(frozen=True, slots=True)
class SampledCost:
    """A function, or one line of a function that calls the model, and its samples."""

    function: int
    line: int
    """The line with most of its samples."""
    one_line: bool
    samples: I64
    """Indices of samples."""
    own: int
    """Number of samples in its own lines, or in native code that it calls."""
    called_from: str | None
    waits_for_workers: float
    """Share of its samples in which the DataLoader waits for its workers."""
    runs: str | None
    """forward | backward: most of its samples are torch's own code that runs the model's modules or the backward pass,
    with no function below that has a name of its own."""
    in_passes: bool
    """Whether most of its samples are inside a module's call or a backward pass, whose functions are harder to
    remove."""


class StackColumns:
    """The stacks of samples, outermost call first, without gpuprof's own frames. If the training thread waits for a
    backward pass, the stack of autograd's thread is appended."""

    def __init__(self, samples: HostSamples) -> None:
        self.samples = samples
        self.functions = samples.functions
        self._paths: dict[int, tuple[SampledFrame, ...]] = {}
        self.engine = {i for i, one in enumerate(self.functions) if _is_among(one, _ENGINE)}
        self.loader = {
            i
            for i, one in enumerate(self.functions)
            if one.file == "torch/utils/data/dataloader.py" and one.name.rpartition(".")[2] in _LOADER
        }
        self.boundary = {i for i, one in enumerate(self.functions) if _is_among(one, _BOUNDARIES)}
        self.of_sample = [
            self._of(node, other) for node, other in zip(samples.node.tolist(), samples.autograd.tolist(), strict=True)
        ]
        self.of_worker_sample = [self.below_fetcher(self.path(node)) for node in samples.worker_node.tolist()]
        """From torch's fetcher on, which asks the data set for samples; empty where the worker makes no batch."""

    def _of(self, node: int, other: int) -> tuple[SampledFrame, ...]:
        main = self.path(node)
        if other >= 0 and (not main or main[-1].function in self.engine):
            return (*main, *self.path(other))
        return main

    def below_fetcher(self, path: tuple[SampledFrame, ...]) -> tuple[SampledFrame, ...]:
        """The part of a stack from torch's fetcher on; empty if that is not in it."""
        files = [self.functions[frame.function].file for frame in path]
        return path[len(path) - 1 - files[::-1].index(FETCH) :] if FETCH in files else ()

    def path(self, node: int) -> tuple[SampledFrame, ...]:
        """The stack of a node of the tree of calls; empty for -1."""
        if node < 0:
            return ()
        if node not in self._paths:
            found: list[SampledFrame] = []
            at = node
            while at >= 0:
                function = int(self.samples.function[at])
                if self.functions[function].kind != "gpuprof":
                    found.append(SampledFrame(function, int(self.samples.line[at])))
                at = int(self.samples.caller[at])
            self._paths[node] = tuple(reversed(found))
        return self._paths[node]


def costs(stacks: StackColumns) -> list[SampledCost]:
    """The functions and lines that samples are charged to, most samples first."""
    counts = Counter[tuple[SampledFrame, ...]](stacks.of_sample)
    loops = _loops(stacks, counts)
    charge = _charges(stacks, counts, loops)
    charged: dict[tuple[int, int], list[tuple[SampledFrame, ...]]] = defaultdict(list)
    for path, key in charge.items():
        charged[key].append(path)
    rows: dict[tuple[SampledFrame, ...], list[int]] = defaultdict(list)
    for i, path in enumerate(stacks.of_sample):
        rows[path].append(i)
    having: dict[int, list[tuple[SampledFrame, ...]]] = defaultdict(list)
    kinds = [one.kind for one in stacks.functions]
    for path, (other, _) in charge.items():
        for function in {frame.function for frame in path}:
            # A library function is not charged for the user's function that it calls.
            if function == other or kinds[function] == "own" or kinds[other] != "own":
                having[function].append(path)
    found = [
        _cost(stacks, function, line, paths if line >= 0 else having[function], rows, counts)
        for (function, line), paths in charged.items()
    ]
    found.sort(key=lambda cost: -len(cost.samples))
    return [cost for cost in found if not _is_shell(cost, found, stacks)]


def _is_shell(cost: SampledCost, others: list[SampledCost], stacks: StackColumns) -> bool:
    """Whether a wrapper has hardly more samples than one of the functions that it wraps."""
    if cost.one_line or not _is_wrapper(stacks.functions[cost.function]):
        return False
    return any(
        other is not cost and len(np.intersect1d(cost.samples, other.samples)) >= WRAPPER_SHARE * len(cost.samples)
        for other in others
    )


def cost_at(
    stacks: StackColumns, of_sample: Sequence[tuple[SampledFrame, ...]], file: str, line: int
) -> SampledCost | None:
    """The samples with a line of a file in their stack, or else those of the last function that begins before it. None
    after the last known line of the file, since the end of its last function is unknown. of_sample: each sample's
    stack."""
    rows: dict[tuple[SampledFrame, ...], list[int]] = defaultdict(list)
    for i, path in enumerate(of_sample):
        rows[path].append(i)
    counts = Counter({path: len(mine) for path, mine in rows.items()})
    here = {
        i: one
        for i, one in enumerate(stacks.functions)
        if one.file == file or one.file.endswith(f"/{file}") or file.endswith(f"/{one.file}")
    }
    at: Counter[int] = Counter()
    for path, count in counts.items():
        at.update(
            dict.fromkeys({frame.function for frame in path if frame.function in here and frame.line == line}, count)
        )
    if at:
        function = at.most_common(1)[0][0]
        paths = [path for path in counts if SampledFrame(function, line) in path]
        return _cost(stacks, function, line, paths, rows, counts)
    known = [frame.line for path in counts for frame in path if frame.function in here]
    if line > max([*known, *(one.first_line for one in here.values())], default=0):
        return None
    before = [
        i
        for i, one in here.items()
        # A module begins before all of its functions, also those that were never sampled.
        if one.first_line <= line and one.name != "<module>" and any(i == f.function for p in counts for f in p)
    ]
    if not before:
        return None
    function = max(before, key=lambda i: here[i].first_line)
    paths = [path for path in counts if any(frame.function == function for frame in path)]
    return _cost(stacks, function, -1, paths, rows, counts)


def _cost(
    stacks: StackColumns, function: int, line: int, paths: Iterable[tuple[SampledFrame, ...]],
    rows: dict[tuple[SampledFrame, ...], list[int]], counts: Counter[tuple[SampledFrame, ...]],
) -> SampledCost:  # fmt: skip
    lines: Counter[int] = Counter()
    callers: Counter[str] = Counter()
    own, waiting, within, samples = 0, 0, 0, []
    runs: Counter[str] = Counter()
    for path in paths:
        if any(frame.function in stacks.loader for frame in path):
            waiting += counts[path]
        k = max(i for i, frame in enumerate(path) if frame.function == function)
        lines[path[k].line] += counts[path]
        if any(frame.function in stacks.engine for frame in path[k if line < 0 else k + 1 :]):
            runs["backward"] += counts[path]
        elif path[-1].function in stacks.boundary:
            runs["forward"] += counts[path]
        if k == len(path) - 1:
            own += counts[path]
        if any(frame.function in stacks.boundary for frame in path[:k]):
            within += counts[path]
        samples += rows[path]
        above = next((one for one in reversed(path[: k + 1]) if stacks.functions[one.function].kind == "own"), None)
        if above is not None:
            callers[f"{stacks.functions[above.function].file}:{above.line}"] += counts[path]
    is_own = stacks.functions[function].kind == "own"
    shell = runs.most_common(1)[0] if runs and (line >= 0 or function in stacks.boundary) else ("", 0)
    return SampledCost(
        function=function,
        line=line if line >= 0 else lines.most_common(1)[0][0],
        one_line=line >= 0,
        samples=np.array(sorted(samples), np.int64),
        own=own,
        called_from=callers.most_common(1)[0][0] if callers and not is_own else None,
        waits_for_workers=waiting / max(len(samples), 1),
        runs=shell[0] if shell[1] > PASS_SHARE * len(samples) else None,
        in_passes=2 * within > len(samples),
    )


def _is_among(function: Function, places: dict[str, tuple[str, ...]]) -> bool:
    return function.name.rpartition(".")[2] in places.get(function.file, ())


def _loops(stacks: StackColumns, counts: Counter[tuple[SampledFrame, ...]]) -> set[int]:
    """Functions that call the model or run the backward pass."""
    total: Counter[int] = Counter()
    above: Counter[int] = Counter()
    for path, count in counts.items():
        inner = max((i for i, frame in enumerate(path) if frame.function in stacks.boundary), default=-1)
        for function in {frame.function for frame in path}:
            total[function] += count
        for function in {frame.function for frame in path[: max(inner, 0)]}:
            above[function] += count
    found = {function for function, count in above.items() if count >= CALLS_THE_MODEL * total[function]}
    # The outermost function of every stack is the program.
    return found | {path[0].function for path in counts if path} | stacks.boundary


def _charges(
    stacks: StackColumns, counts: Counter[tuple[SampledFrame, ...]], loops: set[int]
) -> dict[tuple[SampledFrame, ...], tuple[int, int]]:
    """Stack → (function, line) that it is charged to; line -1: the whole function."""
    places: dict[tuple[SampledFrame, ...], tuple[SampledFrame, list[int]]] = {}
    total: Counter[int] = Counter()
    from_line: Counter[tuple[SampledFrame, int]] = Counter()
    calls: Counter[tuple[int, int]] = Counter()
    for path, count in counts.items():
        if not path:
            continue
        k = max((i for i, frame in enumerate(path) if frame.function in loops), default=-1)
        below = [frame.function for frame in path[k + 1 :]]
        own = [function for function in below if stacks.functions[function].kind == "own"]
        plain = [function for function in below if not _is_wrapper(stacks.functions[function])]
        called = own or (plain or below)[:1]
        while k > 0 and _is_wrapper(stacks.functions[path[k].function]) and path[k].function not in stacks.boundary:
            k -= 1  # lines of a wrapper say nothing; those of its caller do
        if k >= 0 and not called and path[k].function in stacks.engine:
            # Native code of a backward pass: charge the line that called it, outside torch's own files.
            k = max((i for i in range(k) if not stacks.functions[path[i].function].file.startswith(_TORCH)), default=k)
        place = path[max(k, 0)]
        places[path] = place, called
        for function in {frame.function for frame in path}:
            total[function] += count
        for function in set(called):
            from_line[place, function] += count
        for pair in set(pairwise(called)):
            calls[pair] += count
    found = {}
    for path, (loop, called) in places.items():
        named = {one for one in called if from_line[loop, one] >= FROM_ONE_LINE * total[one]}
        passed = {
            one
            for one, inner in zip(called, [*called[1:], -1], strict=False)
            if _is_closure(stacks.functions[one])
            and (one not in named or calls[one, inner] >= WRAPPER_SHARE * total[one])
        }
        first = next((one for one in called if one not in passed), -1)
        found[path] = (first, -1) if first in named else (loop.function, loop.line)
    return found


def _is_closure(function: Function) -> bool:
    """Whether it is defined inside another function, as what a decorator returns is (not known in Python 3.10)."""
    return _LOCAL in function.name


def _is_wrapper(function: Function) -> bool:
    return function.kind != "own" and function.name.rpartition(".")[2] in _WRAPPERS
