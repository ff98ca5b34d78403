"""torch's own attention without its fused kernels: advised where a fused kernel would take the inputs, only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.case import case_of, only, run_of
from helpers.program import MS
from helpers.program import Program as Made

from gpuprof.costs.arguments import parse
from gpuprof.diagnosis.detect.attention import kernels_off
from gpuprof.diagnosis.findings import autocast, eager_attention
from gpuprof.diagnosis.reach.ledger import above_reach
from gpuprof.record.model.program import switches_on
from gpuprof.tracefile.run_folder.program import Program

RECORDINGS = Path(__file__).parents[2] / "scenarios/programs"
BF16, FLOAT = "c10::BFloat16", "float"
FEW, MANY = "[8, 4, 512, 64]", "[8, 16, 512, 64]"
ROWS, TURNED = "[524288, 32768, 64, 1]", "[524288, 32768, 1, 512]"


def taken(
    shapes: tuple[str, ...],
    type: str,
    stride: str | None,
    mask: str = "[]",
    causal: str = "True",
    dense: bool = True,
    laid: str = "null",
    bf16: bool = True,
) -> bool:
    """Whether a fused kernel takes these queries, keys and values."""
    one = f'"{type}", "{type}", "{type}", "{type if mask != "[]" else ""}", "Scalar", "Scalar"'
    strides = None if stride is None else f"[{stride}, {stride}, {stride}, {laid}, [], []]"
    arguments = parse(
        "math", f"[{', '.join(shapes)}, {mask}, [], []]", f"[{one}]", strides, f'["", "", "", "", "0.", "{causal}"]'
    )
    return kernels_off._taken(arguments, dense=dense, bf16=bf16)[0] is not None


def test_which_inputs_a_fused_kernel_takes() -> None:
    assert taken((MANY,) * 3, BF16, ROWS) and taken((MANY, FEW, FEW), BF16, ROWS) and taken((MANY,) * 3, FLOAT, ROWS)
    assert taken((MANY,) * 3, BF16, None) and not taken((MANY,) * 3, BF16, None, dense=False)
    assert not taken((MANY, FEW, FEW), FLOAT, ROWS), "memory-efficient kernels take no grouped heads"
    assert not taken((MANY,) * 3, BF16, TURNED), "the width must be innermost"
    mask = "[1, 16, 512, 512]"
    assert not taken((MANY,) * 3, BF16, ROWS, mask=mask), "a mask may lie in memory in another order"
    assert not taken((MANY,) * 3, BF16, ROWS, mask=mask, laid="[0, 1, 8192, 16]"), "as T5's position bias does"
    assert taken((MANY,) * 3, FLOAT, ROWS, mask=mask, laid="[0, 262144, 512, 1]")
    assert not taken((MANY, FEW, FEW), BF16, ROWS, mask=mask, laid="[0, 262144, 512, 1]")
    cut = parse("math", f"[{', '.join((MANY,) * 3)}]", None, None, None)
    assert kernels_off._taken(cut, dense=True, bf16=True) == (None, 0), "a damaged record"
    half = "c10::Half"
    assert not taken((MANY,) * 3, BF16, ROWS, bf16=False) and taken((MANY,) * 3, half, ROWS, bf16=False)
    assert not taken((MANY, FEW, FEW), half, ROWS, bf16=False), "flash kernels need a newer GPU"
    wide, odd, fewer = "[8, 16, 512, 320]", "[8, 16, 512, 60]", "[8, 16, 256, 64]"
    assert not taken((wide,) * 3, BF16, None) and not taken((odd,) * 3, BF16, None)
    assert not taken((fewer, MANY, MANY), BF16, None) and taken((fewer, MANY, MANY), BF16, None, causal="False")
    assert not taken(("[]",) * 3, BF16, None), "a nested tensor has no recorded shape"


def test_it_is_switched_on_again_and_the_ledger_says_so() -> None:
    case = case_of(RECORDINGS / "attention_by_math/recording", ms=181)
    proposal = only(eager_attention, case)
    assert proposal.title == "fused attention switched on" and proposal.best is not None and proposal.worst is not None
    best, likely, worst = (
        case.step_ns / case.step_of(change(case.graph)) for change in (proposal.best, proposal.change, proposal.worst)
    )
    assert best > likely - 1e-9 and likely > worst > 1.3
    assert {setting.name for setting in proposal.fix.settings if setting.remove} == set(kernels_off.CALLS.values())
    assert not list(autocast.find(case)), "its multiplications in fp32 are torch's own: autocast is on already"
    ledger = above_reach(case, None, ["eager_attention"])
    assert ledger is not None and max(ledger.items, key=lambda item: item.ns).finding == "eager_attention"


@pytest.mark.parametrize("name", ["t5_adafactor", "trainer_defaults"])
def test_what_every_fused_kernel_refuses_is_left_alone(name: str) -> None:
    case = case_of(RECORDINGS / name / "recording", as_recorded=True)
    assert case.ops_named(kernels_off.MATH.__eq__).any()
    assert not kernels_off.switched_off(case, case.ops_named(kernels_off.MATH.__eq__))


@pytest.mark.parametrize("known", [("no_flash_sdp", "no_cudnn_sdp"), ("anomaly",), None])
def test_the_calls_that_were_recorded_are_the_ones_to_remove(tmp_path: Path, known: tuple[str, ...] | None) -> None:
    program = Made()
    program.step(lambda: program.mm(512, 512, 512, gpu=MS))
    run = replace(run_of(), program=Program(switches=known))
    case = case_of(program.trace.write(tmp_path / "trace.json"), run=run)
    every = tuple(kernels_off.CALLS.values())
    assert kernels_off.calls_to_remove(case) == ((every[0], every[2]) if known and len(known) == 2 else every)


def test_the_recorder_notes_which_kernels_are_switched_off() -> None:
    torch = pytest.importorskip("torch")
    off = set(kernels_off.CALLS)
    assert not off & set(switches_on())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        assert off & set(switches_on()) == {"no_mem_efficient_sdp", "no_cudnn_sdp"}
