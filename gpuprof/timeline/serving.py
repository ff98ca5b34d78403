"""How code that serves models shows in a recording: its paths, and the ranges around one of its iterations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

Activity = Literal["decode", "prefill", "mixed", "diffusion", "pipeline"]

_ENGINES = (
    ("vllm", re.compile(r"(^|/)vllm/|^vllm::")),
    ("sglang", re.compile(r"(^|/)sglang/|^sglang")),
    ("tgi", re.compile(r"(^|/)text_generation_server/")),
    ("tensorrt_llm", re.compile(r"(^|/)tensorrt_llm/|^trtllm::")),
    ("diffusers", re.compile(r"(^|/)diffusers/pipelines/")),
    ("transformers_pipeline", re.compile(r"(^|/)transformers/pipelines/")),
    ("transformers_generate", re.compile(r"(^|/)transformers/generation/utils")),
)
"""What serves the model, by paths of its Python frames and names of its ops, the more specific first."""

_EXECUTE = re.compile(r"^execute_(?:(\d+)_)?context_(\d+)\((.*)\)_generation_(\d+)\(")
"""vLLM: `execute_context_1(888_788544)_generation_0(0)`: requests in their prompt, and requests that generate."""
_SGLANG = re.compile(r"^step\[([A-Z_]+) bs=(\d+)(?: toks=(\d+))?")
_TRTLLM = re.compile(r"_forward_step \d+: (\d+) ctx reqs.*?(\d+) gen reqs")
_DIFFUSION = re.compile(r"^execute_diffusion_(\d+)")
_ITERATIONS = (_EXECUTE, _SGLANG, _TRTLLM, _DIFFUSION)


def is_iteration(name: str) -> bool:
    """Whether a range of this name is what a serving engine puts around one iteration."""
    return any(pattern.search(name) for pattern in _ITERATIONS)


def engine_of(texts: Iterable[str]) -> str | None:
    """What serves the model, by the names of frames, ranges and ops; None if unknown."""
    texts = list(texts)
    return next((name for name, pattern in _ENGINES if any(pattern.search(text) for text in texts)), None)


def activity_of(names: list[str]) -> tuple[Activity | None, int | None]:
    """What the ranges of a serving engine say: the activity that most of them have, and its largest batch."""
    read = [one for one in map(_mark, names) if one is not None]
    if not read:
        return None, None
    kinds: list[Activity] = [kind for kind, _ in read]
    kind: Activity = max(dict.fromkeys(kinds), key=kinds.count)
    return kind, max(batch for one, batch in read if one == kind)


def _mark(name: str) -> tuple[Activity, int] | None:
    if found := _EXECUTE.search(name):
        return _of_requests(int(found[2]), int(found[4]))
    if found := _TRTLLM.search(name):
        return _of_requests(int(found[1]), int(found[2]))
    if found := _SGLANG.search(name):
        kinds: dict[str, Activity] = {"EXTEND": "prefill", "MIXED": "mixed"}
        return kinds.get(found[1], "decode"), int(found[2])
    if found := _DIFFUSION.search(name):
        return "diffusion", int(found[1])
    return None


def _of_requests(prompts: int, generating: int) -> tuple[Activity, int]:
    if not prompts:
        return "decode", generating
    kind: Activity = "mixed" if generating else "prefill"
    return kind, prompts + generating
