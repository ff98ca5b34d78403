"""What TRL's SFTTrainer needs, without a model hub: a tokenizer, a data set of random tokens, its arguments."""

from __future__ import annotations

import tempfile
from typing import Any

from scenarios.support import lengths
from scenarios.support.data import Samples
from scenarios.support.run import Run

PADS, STARTS, ENDS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
"""Tokens 0, 1, 2 and 3, the first three as the models' configurations say."""


def tokenizer():
    """The simplest tokenizer that a trainer accepts: it only pads and collates, since the samples are already
    tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({PADS: 0, STARTS: 1, ENDS: 2, UNKNOWN: 3}, unk_token=UNKNOWN))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=PADS,
        bos_token=STARTS,
        eos_token=ENDS,
        unk_token=UNKNOWN,
        padding_side="right",
    )


def dataset(run: Run, data: str, batch: int, vocabulary: int):
    """Twice the samples that the run uses, because packed rows need more; short ones on a CPU."""
    from datasets import Dataset

    drawn = [run.pick(length, max(4, length // 8)) for length in lengths.draw(data, 2 * (run.count + 1) * batch)]
    samples = Samples(drawn, vocabulary)
    return Dataset.from_dict({"input_ids": [samples[index]["input_ids"].tolist() for index in range(len(samples))]})


def arguments(run: Run, batch: int, **options: Any):
    """SFTConfig for a run whose steps are counted and that saves nothing; `options` override these settings."""
    from trl import SFTConfig

    settings: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(prefix="scenario_"),
        "max_steps": run.count,
        "per_device_train_batch_size": batch,
        # unsloth's own default is 2.
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-4,
        "logging_steps": 1,
        "max_length": lengths.LONGEST,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": not run.tiny,
        "use_cpu": run.tiny,
        "seed": 0,
    }
    return SFTConfig(**(settings | options))


class Counted:
    """The trainer's collator, which gives the run the number of tokens of a batch that are not padding."""

    def __init__(self, run: Run, collator: Any) -> None:
        self._run, self._collator = run, collator

    def __call__(self, samples: list[dict[str, Any]], **options: Any):
        # Counted from the samples, not the batch: batches in one row without padding have no mask.
        self._run.tokens(sum(len(sample["input_ids"]) for sample in samples))
        return self._collator(samples, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collator, name)
