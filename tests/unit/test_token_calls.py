"""Calls of a model without gradients: texts that are generated without a cache, or one after another; scores and
pictures of one sample after another. Not texts with a cache, turns of a conversation, two models, or tokens that are
chosen again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.case import case_of
from helpers.cpu_recording import recorded
from helpers.quick import few

from gpuprof.diagnosis.detect.batches.token_call_groups import lengthening_share
from gpuprof.diagnosis.findings import adapter_extras, separate_passes, uncached_text

WORDS, WIDTH, NEW = 40, 24, 6
LONG_US = 2000.0
"""Of a kernel: most of the step, however busy the CPU is that records it."""


def decoder(rank: int = 0):
    """A model that returns logits, and what its attention read for a cache. rank: of an adapter on its values."""
    import torch
    from torch import nn

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.low, self.high = nn.Linear(WIDTH, rank or 1), nn.Linear(rank or 1, WIDTH)

        def forward(self, tokens, cache=None):
            x = self.table(tokens)
            key, value = self.key(x), self.value(x)
            if rank:
                value = value + 2.0 * self.high(self.low(x))
            if cache is not None:
                key, value = torch.cat((cache[0], key), 1), torch.cat((cache[1], value), 1)
            scores = self.query(x) @ key.transpose(1, 2)
            return self.head(scores.softmax(-1) @ value), (key, value)

    return Decoder()


def whole(model, tokens, new: int = NEW):
    """Generates with the whole text for each token."""
    import torch

    with torch.no_grad():
        for _ in range(new):
            choice = model(tokens)[0][:, -1:].argmax(-1)
            tokens = torch.cat((tokens, choice), 1)
    return tokens


def filled(model, tokens):
    """The same in a tensor of the final length."""
    import torch

    text = torch.cat((tokens, tokens.new_zeros(len(tokens), NEW)), 1)
    with torch.no_grad():
        for at in range(tokens.shape[1], text.shape[1]):
            text[:, at] = model(text[:, :at])[0][:, -1].softmax(-1).multinomial(1)[:, 0]
    return text


def cached(model, tokens, new: int = NEW):
    """Generates with a cache."""
    import torch

    with torch.no_grad():
        logits, cache = model(tokens)
        for at in range(new):
            choice = logits[:, -1:].argmax(-1)
            tokens = torch.cat((tokens, choice), 1)
            if at < new - 1:
                logits, grown = model(choice, cache)
                cache = grown
    return tokens


def scores(models, batch):
    """One sample after another, of one model after another."""
    import torch

    with torch.no_grad():
        return torch.cat([model(one)[0].mean((1, 2)) for model in models for one in batch.split(1 + (len(models) > 1))])


def refined(model, tokens):
    """All tokens are chosen again in each round."""
    import torch

    with torch.no_grad():
        for _ in range(NEW):
            tokens = model(tokens)[0].argmax(-1)
    return tokens


def conversation(model, tokens):
    """Each prompt is what was said before."""
    for _ in range(3):
        tokens = cached(model, tokens)
    return tokens


def tower(channels: int = 8):
    """A frozen encoder of pictures; with 3 channels it returns pictures."""
    from torch import nn

    between = [nn.Flatten(2), *(nn.Linear(64, 64) for _ in range(6)), nn.Unflatten(2, (8, 8))]
    return nn.Sequential(nn.Conv2d(3, 8, 1), *between, nn.Conv2d(8, channels, 1)).requires_grad_(False)


def seen(encoder, gradients: bool = False):
    """One picture after another."""
    import torch

    pictures = torch.randn(4, 3, 8, 8)
    with torch.set_grad_enabled(gradients):
        return torch.cat([encoder(one[None]) for one in pictures])


def denoised(encoder):
    """Each picture is made from the one before."""
    import torch

    picture = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        for _ in range(4):
            picture = encoder(picture)
    return picture


def step_of(texts: Callable[..., object]) -> Callable[[int], object]:
    """A step that trains on what a model made before, as far as a loss can tell."""
    import torch

    model, other, batch = decoder(), decoder(), torch.randint(0, WORDS, (2, 5))

    def step(_: int) -> None:
        texts(model, other, batch)
        model(batch)[0].square().mean().backward()

    return step


CASES = [
    pytest.param(lambda a, _, batch: whole(a, batch), {"uncached_text"}, id="the whole text"),
    pytest.param(lambda a, _, batch: filled(a, batch), {"uncached_text"}, id="the whole text in place"),
    pytest.param(lambda a, _, batch: whole(a, batch, 3), set(), id="too few tokens"),
    pytest.param(lambda a, _, batch: cached(a, batch), set(), id="a cache"),
    pytest.param(lambda a, _, batch: [cached(a, one) for one in batch.split(1)], {"texts"}, id="one after another"),
    pytest.param(lambda a, _, batch: [whole(a, one) for one in batch.split(1)], {"texts", "uncached_text"}, id="both"),
    pytest.param(lambda a, _, batch: conversation(a, batch), set(), id="a conversation"),
    pytest.param(lambda a, b, batch: scores([b], batch.repeat(2, 1)), {"calls"}, id="scores"),
    pytest.param(lambda a, b, batch: scores([a, b], batch), set(), id="two models"),
    pytest.param(lambda a, _, batch: refined(a, batch), set(), id="chosen again"),
    pytest.param(lambda *_: seen(tower()), {"calls"}, id="pictures"),
    pytest.param(lambda *_: seen(tower(), gradients=True), {"calls"}, id="frozen"),
    pytest.param(lambda *_: denoised(tower(3)), set(), id="denoised"),
]
"""(what is called before a step, keys of what is proposed)."""


@pytest.mark.parametrize(("texts", "found"), few(CASES, ["the whole text", "a cache", "one after another", "scores"]))
def test_calls_without_gradients(tmp_path: Path, texts, found: set[str]):
    case = case_of(recorded(tmp_path / "trace.json", step_of(texts), kernel_us=LONG_US), as_recorded=True)
    proposals = [*separate_passes.find(case), *uncached_text.find(case)]
    assert {one.key or "uncached_text" for one in proposals} == found
    for one in proposals:
        left = one.change(case.graph).duration_ns[case.graph.on_gpu].sum()
        assert left < case.graph.duration_ns[case.graph.on_gpu].sum()


@pytest.mark.parametrize(("generate", "share"), [(cached, 0.66), (whole, 0.66), (None, 0.0)])
def test_texts_have_another_shape_with_each_token(tmp_path: Path, generate, share: float):
    """A CUDA graph would be captured for each."""
    import torch

    model, batch = decoder(), torch.randint(0, WORDS, (2, 5))

    def step(_: int) -> None:
        if generate is not None:
            generate(model, batch)
        model(batch)[0].square().mean().backward()

    case = case_of(recorded(tmp_path / "trace.json", step), as_recorded=True)
    assert lengthening_share(case) == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize(("names", "found"), [(("Decoder_0", "Decoder_0"), 1), (("Decoder_0", "Decoder_1"), 0)])
def test_modules_distinguish_two_models(tmp_path: Path, names: tuple[str, str], found: int):
    import torch

    model, batch = decoder(), torch.randint(0, WORDS, (2, 5))

    def step(_: int) -> None:
        for name in names:
            with torch.no_grad(), torch.profiler.record_function(f"nn.Module: {name}"):
                model(batch)
        model(batch)[0].square().mean().backward()

    case = case_of(recorded(tmp_path / "trace.json", step, kernel_us=LONG_US), as_recorded=True)
    assert len(list(separate_passes.find(case))) == found


@pytest.mark.parametrize(("generate", "found"), [(cached, 1), (None, 0)])
def test_adapters_can_be_merged_while_text_is_generated(tmp_path: Path, generate, found: int):
    """The adapters of all tokens go; those of the prompt stand for merging them once a step."""
    import torch

    model, batch = decoder(rank=4), torch.randint(0, WORDS, (2, 5))

    def step(_: int) -> None:
        if generate is not None:
            generate(model, batch)
        model(batch)[0].square().mean().backward()

    case = case_of(recorded(tmp_path / "trace.json", step, kernel_us=LONG_US), as_recorded=True)
    proposals = [one for one in adapter_extras.find(case) if one.key == "merged"]
    assert len(proposals) == found
    for one in proposals:
        after, on_gpu = one.change(case.graph), case.graph.on_gpu
        gone = on_gpu & (case.graph.duration_ns > 0) & (after.duration_ns == 0)
        assert gone.sum() == case.steps * 2 * (NEW - 1)
        assert "6 adapters a step" in one.evidence[0].text
