"""Files of models with random weights and of generated data, for programs that load theirs by name.

    python -m scenarios.support.material [texts] [pictures]        # makes them, in $SCENARIO_MATERIAL

Models have the shapes of those that they are named after. Each word of the generated texts is one token. The names are
those that the programs load: a folder of that name in the working directory takes precedence over a download.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scenarios.support.lengths import Lengths, spread

FOLDER = "SCENARIO_MATERIAL"
WORDS = 8000
"""Different words of the generated texts."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PROMPTS, ANSWERS, TEXTS, SENTENCES = (
    Lengths(160.0, 0.7),
    Lengths(260.0, 0.6),
    Lengths(640.0, 0.7),
    Lengths(26.0, 0.4, 5),
)
"""Numbers of words of a prompt and of an answer, as in preference data sets, of a conversation and of a sentence."""
ROWS, PICTURES, CLASSES, SIDE = 2000, 1600, 10, 400
MODELS = {
    "qwen2-0.5b": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
    "bert-base": {"model_type": "bert", "vocab_size": 30_522},
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 4 * WORDS,
}


def folder() -> Path:
    """The folder with these files: $SCENARIO_MATERIAL, or one in the user's cache."""
    return Path(os.environ.get(FOLDER) or Path.home() / ".cache" / "gpuprof-scenarios").resolve()


def make(*parts: str) -> Path:
    """Makes those of the given `PARTS` that do not exist, only once even if several processes call it. Returns the
    folder."""
    import torch

    target = folder()
    target.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for part in parts:
            made = target / f".{part}"
            if not made.exists():
                PARTS[part](target, not torch.cuda.is_available())
                made.touch()
    return target


def save_texts(target: Path, tiny: bool) -> None:
    """Saves language models and texts, smaller ones with `tiny`."""
    rows = 64 if tiny else ROWS
    for name, shape in MODELS.items():
        save_model(target / name, shape | (TINY if tiny else {}), tiny)
    rng = random.Random(0)
    write(target / "preference" / "train.jsonl", preferences(rng, rows))
    write(target / "conversations" / "train.jsonl", ({"text": text} for text in texts(rng, TEXTS, rows)))
    pairs = zip(texts(rng, SENTENCES, 2 * rows), texts(rng, SENTENCES, 2 * rows), strict=True)
    both = [{"sentence1": a, "sentence2": b, "label": i % 2, "idx": i} for i, (a, b) in enumerate(pairs)]
    configured(target / "nyu-mll" / "glue", "mrpc", {"train": both, "validation": both[:100]})
    inferences = [
        {"premise": row["sentence1"], "hypothesis": row["sentence2"], "label": row["idx"] % 3} for row in both
    ]
    inferences *= -(-10_000 // len(inferences))
    configured(
        target / "sentence-transformers" / "all-nli", "pair-class", {"train": inferences, "dev": inferences[:1000]}
    )
    scored = [{"sentence1": row["sentence1"], "sentence2": row["sentence2"], "score": row["label"] / 2} for row in both]
    configured(target / "sentence-transformers" / "stsb", "default", {"validation": scored[:100], "test": scored[:100]})
    save_tokens(target / "data" / "openwebtext", 40_000 if tiny else 4_000_000)
    lines = (" ".join(sentence(rng, 25)) for _ in range(6000 if tiny else 40_000))
    (target / "data" / "wikitext-2.txt").write_text("\n".join(lines), encoding="utf-8")


def save_model(target: Path, shape: dict, tiny: bool) -> None:
    """Saves a model and a tokenizer for it, as `from_pretrained` reads them."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    shape = dict(shape)
    config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    torch.manual_seed(0)
    kind = AutoModel if config.model_type == "bert" else AutoModelForCausalLM
    device = "cpu" if tiny else "cuda"
    with torch.device(device):
        model = kind.from_config(config)
    model.to(torch.bfloat16 if config.model_type == "qwen2" else torch.float32).cpu().save_pretrained(target)
    tokenizer(config.model_type).save_pretrained(target)


def tokenizer(model_type: str):
    """A tokenizer that the model's own class can load, for which each word of the generated texts is one token."""
    return word_pieces() if model_type == "bert" else byte_pairs()


def word_pieces():
    """A tokenizer with one token per word, and BERT's special tokens around sentences."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *map(word_of, range(WORDS))))}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, mask_token="[MASK]", model_max_length=512, **marks)


def byte_pairs():
    """Byte pairs merged until every word with the space before it is one token, in the class that Qwen2 needs."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4 * WORDS, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator([" " + word_of(i) for i in range(WORDS)], trainer)
    model = json.loads(raw.to_str())["model"]
    merges: Any = [tuple(pair) for pair in model["merges"]]
    made = Qwen2Tokenizer(vocab=model["vocab"], merges=merges, model_max_length=32_768)
    made.chat_template = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + eos_token }}{% endfor %}"
    return made


def word_of(number: int) -> str:
    """A word of letters only: digits would be separate tokens."""
    letters = "abcdefghijklmnoprstuvwz"
    word = ""
    for _ in range(4):
        number, rest = divmod(number, len(letters))
        word += letters[rest]
    return word


def sentence(rng: random.Random, length: int) -> list[str]:
    return [word_of(int(WORDS * rng.random() ** 2)) for _ in range(length)]


def texts(rng: random.Random, lengths: Lengths, count: int) -> Iterator[str]:
    for length in spread(lengths, count, seed=rng.randrange(1 << 30)):
        yield " ".join(sentence(rng, length))


def preferences(rng: random.Random, count: int) -> Iterator[dict[str, str]]:
    """Prompts with a chosen and a rejected answer."""
    columns = (texts(rng, PROMPTS, count), texts(rng, ANSWERS, count), texts(rng, ANSWERS, count))
    for prompt, chosen, rejected in zip(*columns, strict=True):
        yield {"prompt": prompt, "chosen": " " + chosen, "rejected": " " + rejected}


def write(path: Path, rows: Iterator[dict] | list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def configured(target: Path, name: str, splits: dict[str, list[dict]]) -> None:
    """Saves a data set with one configuration of that name, as a folder that `load_dataset` reads."""
    files = []
    for split, rows in splits.items():
        write(target / name / f"{split}.jsonl", rows)
        files.append(f"  - split: {split}\n    path: {name}/{split}.jsonl\n")
    head = f"---\nconfigs:\n- config_name: {name}\n  data_files:\n{''.join(files)}---\n"
    (target / "README.md").write_text(head, encoding="utf-8")


def save_tokens(target: Path, count: int) -> None:
    """Saves tokens of GPT-2's vocabulary, two bytes each, as nanoGPT reads them."""
    import numpy as np

    target.mkdir(parents=True)
    tokens = np.random.default_rng(0).integers(0, 50_257, count, dtype=np.uint16)
    for split in ("train", "val"):
        (target / f"{split}.bin").write_bytes(tokens.tobytes())


def save_pictures(target: Path, tiny: bool) -> None:
    """Saves JPEGs in one folder per class, smooth with noise, like photographs."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, many in (("train", 40 if tiny else PICTURES), ("validation", CLASSES)):
        for i in range(many):
            coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
            smooth = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.int16)
            noisy = np.clip(smooth + rng.integers(-6, 7, smooth.shape), 0, 255).astype(np.uint8)
            path = target / "pictures" / split / f"class{i % CLASSES}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noisy).save(path, quality=90)


PARTS = {"texts": save_texts, "pictures": save_pictures}

if __name__ == "__main__":
    print(make(*(sys.argv[1:] or PARTS)))
