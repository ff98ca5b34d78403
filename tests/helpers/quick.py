"""Which cases of a matrix belong to the quick run (`make test`); the others are marked `slow` (`make slow`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

OF_EACH_KIND = {
    "accelerate_bert": "accelerate's loop, waiting for launches, with no fix",
    "eager_attention": "bound by memory",
    "fsdp_exposed": "two ranks, bound by compute, with exposed communication",
    "input_starved": "waits for its input, which it reads itself",
    "nanogpt": "compiled, bound by nothing alone",
    "padding": "most of its tokens are padding",
    "pageable_copies": "bound by copies",
    "small_batch": "bound by launches",
    "tf32_off": "bound by compute, in fp32",
    "timm_resnet50": "images, from workers",
    "two_gpus_one_process": "two GPUs of one process",
}
"""Scenarios that stand for all in the quick run, and what each adds: all bounds that the recorded scenarios have."""


def few(cases: Iterable[Any], kept: Collection[str]) -> list:
    """Parameters of a test: those whose id is in `kept` as they are, the others marked slow.

    cases: texts and numbers, which are their own ids, or what `pytest.param` returns with an id. An id in `kept` that
    no case has is an AssertionError, unless the shared recordings are missing, of which one case stands for all.
    """
    params = [pytest.param(case, id=str(case)) if isinstance(case, (str, int)) else case for case in cases]
    ids = {str(one.id) for one in params}
    assert "shared" in ids or set(kept) <= ids, f"no such cases: {sorted(set(kept) - ids)}"
    return [
        one if one.id in kept else pytest.param(*one.values, id=one.id, marks=(*one.marks, pytest.mark.slow))
        for one in params
    ]


def seeds(count: int) -> list:
    """Seeds below `count`, every fifth of them in the quick run."""
    return few(range(count), [str(seed) for seed in range(0, count, 5)])
