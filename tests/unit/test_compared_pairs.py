"""One call of a function on both sides of a comparison; not a teacher, nor layers that need each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import case_of
from helpers.cpu_recording import recorded
from helpers.quick import few

from gpuprof import diagnose
from gpuprof.diagnosis.detect.batches.compared_pairs import find_compared_pairs
from gpuprof.diagnosis.findings import separate_passes

BINS, FRAMES = 32, 64


def statistics(x):
    """Logarithms of the powers of a tensor's columns: nine different ops, and a result of another shape."""
    import torch

    window = torch.linspace(0, 1, x.shape[-1]).cos()
    power = (x * window).reshape(-1, BINS, FRAMES).square().mean(-1).sqrt().clamp(min=1e-5)
    return torch.sigmoid(torch.log(power))


def spectra(made, wanted):
    import torch

    return torch.nn.functional.l1_loss(statistics(made), statistics(wanted))


def other_way(made, wanted):
    """What was wanted comes first, and is subtracted."""
    target = statistics(wanted)
    return (statistics(made) - target).square().mean()


def chained(made, wanted):
    """Each block takes the result of the one before."""
    import torch

    def block(x):
        return x.sin().exp().clamp(max=2).tanh().square().neg().sigmoid().sqrt()

    x = block(block(made))
    return torch.nn.functional.mse_loss(x, wanted)


def few_ops(made, wanted):
    return (made.abs().sqrt() - wanted.abs().sqrt()).square().mean()


def layers(made, wanted):
    """A student and a teacher run the same ops."""
    import torch

    def model(x, weight):
        return statistics(torch.nn.functional.linear(x, weight))

    weights = torch.eye(BINS * FRAMES), torch.eye(BINS * FRAMES)
    return torch.nn.functional.mse_loss(model(made, weights[0]), model(wanted, weights[1]).detach())


CASES = [
    pytest.param(spectra, [0, 1], id="spectra"),
    pytest.param(other_way, [1, 0], id="the target first"),
    pytest.param(chained, None, id="a chain"),
    pytest.param(few_ops, None, id="few ops"),
    pytest.param(layers, None, id="weights"),
]


@pytest.mark.parametrize(("loss", "place"), few(CASES, ["spectra", "the target first", "a chain", "weights"]))
def test_the_call_with_a_backward_pass_stays(tmp_path: Path, loss, place: list[int] | None):
    import torch

    weight = torch.ones(1, BINS * FRAMES, requires_grad=True)
    given, wanted = torch.rand(8, BINS * FRAMES), torch.rand(8, BINS * FRAMES)
    path = recorded(tmp_path / "trace.json", lambda _: loss(given * weight, wanted).backward())
    case = case_of(path, as_recorded=True)
    found = find_compared_pairs(case)
    assert (None if found is None else found.place.tolist()) == (place and place * case.steps)


@pytest.mark.slow
def test_a_vocoder_compares_mels():
    """Three resolutions; the filters of the second calls are computed on the CPU."""
    found = diagnose(Path(__file__).parents[2] / "scenarios" / "programs" / "mel_rebuilt" / "recording")
    mine = [one for one in found.worth_trying if one.id == separate_passes.PAGE.id]
    assert [one.title for one in mine] == ["one call for both sides of a comparison"]
    assert "(3 a step)" in mine[0].evidence[0].text and mine[0].speedup.expected > 1.05
