"""What a batch is made of, from the stacks below torch's fetcher."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof.diagnosis.detect.batches.fetched import FEWEST_FETCHING
from gpuprof.diagnosis.detect.batches.sample_work import KINDS, largest_work
from gpuprof.diagnosis.finding_names import named
from gpuprof.diagnosis.findings import BUILT_IN
from gpuprof.diagnosis.sampled.host_calls import FETCH, StackColumns
from gpuprof.tracefile.run_folder.samples import Function, HostSamples

TAKES = (("library", FETCH, "_MapDatasetFetcher.fetch"), ("own", "data.py", "Voices.__getitem__"))
ELSE = (*TAKES, ("library", "PIL/Image.py", "Image.convert"))


def of(stack: tuple[tuple[str, str, str], ...], share: float = 1.0, count: int = 100, in_worker: bool = False):
    """The work of this stack, which has a share of the samples; the others decode pictures."""
    functions, caller, node = [], list[int](), []
    for mine, times in ((stack, round(share * count)), (ELSE, count - round(share * count))):
        for depth, one in enumerate(mine):
            caller.append(len(caller) - 1 if depth else -1)
            functions.append(Function(*one, 1))
        node += [len(caller) - 1] * times
    rows, none = np.array(node), np.zeros(0, np.int64)
    main, worker = (none, rows) if in_worker else (rows, none)
    samples = HostSamples(
        tuple(functions), np.array(caller), np.arange(len(caller)), np.ones(len(caller), np.int64),
        np.arange(len(main)), main, np.full(len(main), -1), np.array([0, count]), (), 0, 1, 1, worker,
    )  # fmt: skip
    return largest_work(StackColumns(samples))


@pytest.mark.parametrize(
    ("file", "name", "kind"),
    [
        ("zipfile.py", "ZipExtFile.read", "compressed"),
        ("gzip.py", "_GzipReader.read", "compressed"),
        ("h5py/_hl/files.py", "File.__init__", "opened"),
        ("json/decoder.py", "JSONDecoder.raw_decode", "parsed"),
        ("copy.py", "deepcopy", "copied"),
        ("librosa/core/audio.py", "resample", "resampled"),
        ("librosa/feature/spectral.py", "melspectrogram", "spectra"),
        ("features.py", "log_mel_spectrogram", "spectra"),
        ("scipy/ndimage/_morphology.py", "distance_transform_edt", "maps"),
        ("scipy/ndimage/_interpolation.py", "map_coordinates", "warped"),
        ("augment.py", "elastic_deform", "warped"),
        ("skimage/transform/_warps.py", "resize", "warped"),
        ("torch/_tensor.py", "Tensor.clone", ""),
        ("PIL/ImageFile.py", "ImageFile.__init__", ""),
    ],
)
def test_the_kind_of_work_is_that_of_its_innermost_function(file: str, name: str, kind: str):
    found = of((*TAKES, ("library", file, name), ("library", "numpy/core.py", "clip")))
    assert (found.kind if found else "") == kind
    if found:
        assert found.function == name and found.lines == ("data.py:1 Voices.__getitem__",)


@pytest.mark.parametrize("in_worker", [False, True])
def test_it_must_be_a_good_part_of_enough_samples(in_worker: bool):
    stack = (*TAKES, ("library", "scipy/signal.py", "stft"))
    found = of(stack, 0.4, in_worker=in_worker)
    assert found is not None and found.share == pytest.approx(0.4)
    assert of(stack, 0.1, in_worker=in_worker) is None
    assert of(stack, count=FEWEST_FETCHING - 1, in_worker=in_worker) is None
    assert of(stack[1:], in_worker=in_worker) is None, "not while a batch is made"


def test_each_fix_has_a_title_of_its_finding():
    found = {name: [one.id for one in named(kind.title, BUILT_IN)] for name, kind in KINDS.items()}
    assert found == {name: ["input_workers"] for name in KINDS}
