"""What most of the time for a batch goes into, by the functions in the stacks that were sampled while it is made: work
that can be done once, on the GPU, or not at all."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.batches.fetched import FEWEST_FETCHING
from gpuprof.diagnosis.detect.cpu.own_lines import innermost, largest
from gpuprof.diagnosis.sampled.host_calls import SampledFrame, StackColumns
from gpuprof.tracefile.run_folder.samples import Function, read_samples
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_WORK_SHARE: Assumed[Share] = 0.2
"""Smallest share of the time for a batch of a kind of work that is named."""
KINDS = {
    "compressed": r"(^|/)(gzip|zipfile|bz2|lzma)\.py |NpzFile|decompress",
    "opened": r" (File|Group|Database)\.__init__$",
    "parsed": r"(^|/)(json|csv|yaml|xml|configparser)[./]|ElementTree|read_(csv|json|excel)",
    "copied": r"(^|/)copy\.py .*deepcopy",
    "tables": r"(^|/)pandas/",
    "resampled": r"resampl",
    "spectra": r"spectrogram|spectrum|\bmel\b|log_?mel|\bi?stft\b|fbank|mfcc|filter_?bank",
    "maps": r"distance_transform|morpholog|connected_components|find_contours|\blabel$",
    "warped": r"ndimage/|map_coordinates|affine|elastic|\bwarp|\bzoom|rotat",
}
"""Kind of work → what the file and the name of one of its functions match. Opened: a file of many samples, not one of
each sample, as pictures are."""
_PATTERNS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in KINDS.items()}


@dataclass(frozen=True, slots=True)
class SampleWork:
    """The largest kind of work on samples."""

    kind: str
    share: float
    """Of the time for a batch."""
    function: str
    """The function that most of its samples have, and that shows the kind."""
    lines: tuple[str, ...]
    """Lines of the user's code that do it."""


def sample_work(case: Analysis) -> SampleWork | None:
    """What a batch is made of, in the loader's workers if they were sampled, or else in the training process."""
    samples = None if case.folder is None else read_samples(Path(case.folder.path), case.folder.rank)
    return None if samples is None else largest_work(StackColumns(samples))


def largest_work(stacks: StackColumns) -> SampleWork | None:
    """The same of sampled stacks; None if there are few, or if no kind has a good part of them."""
    paths = [path for path in stacks.of_worker_sample if path]
    paths = paths or [path for path in map(stacks.below_fetcher, stacks.of_sample) if path]
    if len(paths) < FEWEST_FETCHING:
        return None
    found: dict[str, Counter[str]] = defaultdict(Counter)
    lines: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for path in paths:
        kind, name = _kind(stacks.functions, path)
        if kind:
            found[kind][name] += 1
            line = innermost(stacks, path)
            if line is not None:
                lines[kind][line] += 1
    if not found:
        return None
    kind = max(found, key=lambda one: found[one].total())
    share = found[kind].total() / len(paths)
    if share < LEAST_WORK_SHARE:
        return None
    return SampleWork(kind, share, found[kind].most_common(1)[0][0], largest(lines[kind]))


def _kind(functions: Sequence[Function], path: Sequence[SampledFrame]) -> tuple[str, str]:
    """(kind, name of the function that shows it) of a stack from torch's fetcher on, by the innermost function that
    shows any; empty texts for none."""
    for frame in reversed(path[1:]):
        one = functions[frame.function]
        text = f"{one.file} {one.name}"
        kind = next((kind for kind, pattern in _PATTERNS.items() if pattern.search(text)), "")
        if kind:
            return kind, one.name
    return "", ""
