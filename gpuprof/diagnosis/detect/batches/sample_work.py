"""What most of the time for a batch goes into, by the functions in the stacks that were sampled while it is made: work
that can be done once, on the GPU, or not at all."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuprof.calibration import loader as calibrated
from gpuprof.diagnosis.detect.batches.fetched import FEWEST_FETCHING
from gpuprof.diagnosis.detect.cpu.own_lines import innermost, largest
from gpuprof.diagnosis.sampled.host_calls import SampledFrame, StackColumns
from gpuprof.tracefile.run_folder.samples import Function, read_samples
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_WORK_SHARE: Assumed[Share] = 0.2
"""Smallest share of the time for a batch of a kind of work that is named."""


class WorkKind(NamedTuple):
    """A kind of work on samples."""

    shows: str
    """What the file and the name of one of its functions match."""
    work: str
    title: str
    """Of the fix."""
    fix: str


KINDS = {
    "compressed": WorkKind(
        r"(^|/)(gzip|zipfile|bz2|lzma)\.py |NpzFile|decompress",
        "decompressing samples",
        "samples stored without compression",
        'volume = np.load(path, mmap_mode="r")  # np.save once; a memory-mapped file reads what is used',
    ),
    # A file of many samples, not one for each sample, as pictures are.
    "opened": WorkKind(
        r" (File|Group|Database)\.__init__$",
        "opening a file for each sample",
        "files kept open",
        "if self.file is None: self.file = open_file(self.path)  # in __getitem__: once in each worker",
    ),
    "parsed": WorkKind(
        r"(^|/)(json|csv|yaml|xml|configparser)[./]|ElementTree|read_(csv|json|excel)",
        "parsing text for each sample",
        "annotations parsed once",
        "self.annotations = parse(path)  # in __init__, as arrays of numbers",
    ),
    "copied": WorkKind(
        r"(^|/)copy\.py .*deepcopy",
        "copying samples deeply",
        "samples without deep copies",
        "sample = dict(self.samples[index])  # copy only what is changed",
    ),
    "resampled": WorkKind(
        r"resampl",
        "resampling audio",
        "audio stored at its final rate",
        "resample(waveform, rate, 16_000)  # every file once, before the training",
    ),
    "spectra": WorkKind(
        r"spectrogram|spectrum|\bmel\b|log_?mel|\bi?stft\b|fbank|mfcc|filter_?bank",
        "computing spectra",
        "spectra of a batch on the GPU",
        'spectra = MelSpectrogram(...).to("cuda")(waveforms)  # in the step; or once, before the training',
    ),
    "maps": WorkKind(
        r"distance_transform|morpholog|connected_components|find_contours|\blabel$",
        "computing maps from labels",
        "maps of labels computed once",
        "distances = np.load(path)  # distance_transform_edt once for each label, before the training",
    ),
    "warped": WorkKind(
        r"ndimage/|map_coordinates|affine|elastic|(?<![a-z])warp|\bzoom|rotat",
        "warping samples",
        "samples warped on the GPU",
        'grid = affine_grid(theta, batch.shape).to("cuda")  # and a coarse, upsampled field of offsets\n'
        "batch = grid_sample(batch, grid)  # the whole batch at once, in the step",
    ),
}
"""By name; the first that a function shows counts."""
_PATTERNS = {name: re.compile(kind.shows, re.IGNORECASE) for name, kind in KINDS.items()}


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

    def left(self, level: int) -> float:
        """What is left of the time for a batch without most of it; level: 0 at best."""
        return 1.0 - self.share * (1.0 - calibrated.SAMPLE_WORK_LEFT.rising[level])


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
