"""What a run says about its program, read without trust, and the resulting note about slow paths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.case import run_of
from helpers.make_run import MODEL, usual_run
from helpers.program import MS, US, Program

import gpuprof
from gpuprof.diagnosis.findings import missing_kernels
from gpuprof.diagnosis.reach.ledger import above_reach
from gpuprof.diagnosis.result.run_model import Run
from gpuprof.report.terminal.terminal import plain
from gpuprof.report.words.run_words import model as model_line
from gpuprof.tracefile.run_folder.program import Program as Known
from gpuprof.tracefile.run_folder.program import Reference, Warned
from gpuprof.tracefile.run_folder.untrusted import read

SAID = (
    "`chunk_gated_delta_rule` is falling back to its reference PyTorch implementation because"
    " `flash-linear-attention` is not installed. This is correct but much slower; install it for the optimized kernel."
)
SLOW = Known(warnings=(Warned("transformers", SAID, 3),), reference=(Reference("Net", "chunk_gated_delta_rule", 2),))
DOCUMENT = {
    "trainer": {"class": "DPOTrainer", "module": "trl.trainer.dpo_trainer", "bases": ["transformers.trainer.Trainer"]},
    "arguments": {"class": "DPOConfig", "module": "trl.trainer.dpo_config", "bases": [],
                  "fields": ["tf32", "bf16", "torch_compile", "per_device_train_batch_size"],
                  "set": {"bf16": True, "optim": "adamw_torch", "max_length": 512}},
    "autocast": "bfloat16",
    "flags": [{"names": ["--lr", "-l"], "kind": "value"}, {"names": ["--compile"], "kind": "assigned"}],
    "warnings": [{"source": "transformers", "text": SAID, "count": 3}],
    "reference": [{"class": "Net", "function": "chunk_gated_delta_rule", "modules": 2}],
}  # fmt: skip


def test_what_is_recorded_is_read():
    found = read(Known, DOCUMENT)
    assert found is not None and found.trainer is not None and found.arguments is not None
    assert found.trainer.packages == {"trl", "transformers"}
    assert (found.arguments.name, found.fields[:2], found.autocast) == ("DPOConfig", ("tf32", "bf16"), "bfloat16")
    assert found.settings == {"bf16": True, "optim": "adamw_torch", "max_length": 512}
    assert [(flag.names, flag.kind) for flag in found.flags] == [
        (("--lr", "-l"), "value"),
        (("--compile",), "assigned"),
    ]
    assert (found.warnings, found.reference) == (SLOW.warnings, SLOW.reference)


@pytest.mark.parametrize("junk", [None, 3, "x", [], {}, [{}], {"class": 3}, ["a b", "--x; rm", 1e400], {"a": [1]}])
def test_what_cannot_be_a_name_is_left_out(junk):
    assert read(Known, junk) is None or read(Known, junk) == Known()
    for key in DOCUMENT:
        found = read(Known, {key: junk})
        assert found is not None and not found.fields and not found.flags and not found.warnings
    bad = {"arguments": {"class": "os.system('x')#", "fields": ["a=b", "good", "x" * 500]}, "autocast": "a\nb"}
    found = read(Known, bad)
    assert found == Known(fields=("good",))
    assert read(Known, {"flags": [{"names": ["--ok", "--no\x1b[2J"], "kind": "value"}] * 5000})


def slow_program(tmp_path: Path, run: Run | None = None):
    """Each step has two modules with 1 ms of CPU time that compute slowly and hold a linear layer, and 3 ms of other
    work."""
    program = Program()

    def body() -> None:
        for _ in range(2):
            start = program.now
            program.linear(128, 512, 512, gpu=3 * US)
            for _ in range(50):
                program.elementwise()
            program.trace.annotation("nn.Module: Net_3", start, program.now)
        for _ in range(150):
            program.elementwise()

    for _ in range(3):
        program.step(body)
    return program.case(tmp_path, run)


def test_the_share_of_a_slow_path_is_that_of_its_modules_without_their_linear_layers(tmp_path: Path):
    case = slow_program(tmp_path)
    nodes = missing_kernels.modules_nodes(case, ["Net"])
    assert nodes is not None
    assert (nodes & case.graph.on_gpu).sum() == 3 * 2 * 50
    issue = missing_kernels.note(replace(run_of(), program=SLOW), case)
    assert issue is not None and issue.severity == "info"
    # 100 of 252 ops of 20 µs: the step is bound by the host.
    assert "take 40 % of the GPU's and 40 % of the CPU's time" in issue.message, issue.message
    assert "a kernel gains up to 40 %" in issue.message and SAID.rstrip(".") in issue.message
    assert case.step_ns == pytest.approx(252 * 20 * US, rel=0.02) and case.step_ns > 5 * MS


def test_a_reference_implementation_lies_above_reach_with_a_price(tmp_path: Path):
    """100 of the 252 ops that determine the step keep a quarter of their time."""
    case = slow_program(tmp_path, replace(run_of(), program=SLOW))
    found = above_reach(case, None, ())
    assert found is not None
    item = next(one for one in found.items if "reference implementation in Net" in one.what)
    assert item.ns == pytest.approx(0.75 * 100 / 252 * case.step_ns, rel=0.05)
    issue = missing_kernels.note(case.run, case)
    assert issue is not None and "of their time (8 to 50 %, assumed)" in issue.message
    (proposal,) = missing_kernels.find(case)
    assert proposal.odds < 1 and "installs" in proposal.needs
    assert case.step_ns - case.step_of(proposal.change(case.graph)) == pytest.approx(item.ns, rel=0.05)
    assert not list(missing_kernels.find(slow_program(tmp_path / "without")))


def test_without_ranges_the_share_is_not_known(tmp_path: Path):
    case = slow_program(tmp_path)
    run = replace(run_of(), program=replace(SLOW, reference=(Reference("Other", "f", 1),)))
    for one in (case, None):
        issue = missing_kernels.note(run, one)
        assert issue is not None and "is not known from this recording" in issue.message


@pytest.mark.parametrize(
    "text",
    ["mtime may not be reliable on this filesystem, falling back to numerical ordering", "use_cache=True is not used"],
)
def test_other_warnings_are_no_slow_path(text: str):
    program = Known(warnings=(Warned("x", text, 1),))
    assert missing_kernels.note(replace(run_of(), program=program), None) is None
    assert missing_kernels.note(run_of(), None) is None


def test_a_run_with_it_is_diagnosed(tmp_path: Path):
    builder = usual_run()
    builder.rank["program"] = DOCUMENT
    diagnosis = gpuprof.diagnose(builder.write(tmp_path / "run"))
    assert [issue.id for issue in diagnosis.quality.issues if issue.id == "missing_kernels"] == ["missing_kernels"]
    assert diagnosis.quality.status == "ok"
    assert "gpuprof explain" in plain(diagnosis, 100) and "A slow path was used" in plain(diagnosis, 100)
    larger = "DPOConfig(per_device_train_batch_size="
    assert any(finding.fix.startswith(larger) for finding in diagnosis.findings)
    assert "SFTConfig" not in "".join(f.fix for f in diagnosis.findings)


def test_autocast_is_said_where_the_weights_have_another_type():
    model = {**MODEL, "dtypes": {"float32": 10}}
    run = replace(run_of(), model=model)
    assert "fp32 weights, bf16 autocast" in model_line(replace(run, program=Known(autocast="bfloat16")))
    for autocast in ("off", "float32", None):
        assert "autocast" not in model_line(replace(run, program=Known(autocast=autocast)))
