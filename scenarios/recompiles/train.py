"""Full fine-tuning of TinyLlama-1.1B cut to 1 of its 22 layers, with torch.compile(dynamic=False); 16 sequences a step,
padded to the longest of them. Two batches of three are of a length between 129 and 256 that none had before.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator

import torch

from scenarios.support import data, models
from scenarios.support.loop import finetune
from scenarios.support.run import Run, main

MULTIPLE = 64


def train(run: Run) -> None:
    # Compiling is slow, and more steps would say nothing new: whole rounds of three steps.
    run.settle, run.free, run.synchronised = 3, 3, 3
    torch._dynamo.config.recompile_limit = 256  # beyond it torch would give up, and run the model uncompiled
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    vocabulary = model.config.vocab_size
    # A CPU takes a minute for what a GPU's code generator does in seconds: there no code is generated.
    model = torch.compile(model, dynamic=False, backend=run.pick("inductor", "aot_eager"))
    with tempfile.TemporaryDirectory() as folder:
        # What an earlier run has compiled would shorten this one: a cache of its own.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        multiple = MULTIPLE if run.fix == "multiple_of_64" else 1
        finetune(run, model, batches(run.pick(16, 2), vocabulary, multiple), optimizer)


def batches(size: int, vocabulary: int, multiple: int) -> Iterator[data.Batch]:
    """Batches in which one sample is the longest and the others have half as many tokens. The first two lengths are
    such that both multiples of 64 which they can be padded to have occurred by then."""
    lengths = random.Random(1).sample(range(2 * MULTIPLE + 1, 4 * MULTIPLE + 1), 2 * MULTIPLE)
    for first, second in zip(lengths[::2], lengths[1::2], strict=True):
        for longest in (first, second, first):
            samples = data.Samples([longest] + [longest // 2] * (size - 1), vocabulary)
            yield data.padded([samples[i] for i in range(size)], multiple)


if __name__ == "__main__":
    main(train)
