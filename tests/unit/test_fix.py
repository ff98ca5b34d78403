"""A fix as data: its settings, its text, and the patch that makes it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from helpers.case import case_of
from helpers.make_run import RECORDING
from helpers.paths import ROOT

import gpuprof
from gpuprof.cli.try_ import split
from gpuprof.diagnosis.findings import FINDINGS, eager_attention
from gpuprof.diagnosis.result.fix import (
    Code,
    Fix,
    PatchValue,
    Setting,
    arguments,
    as_fix,
    assigned,
    call,
    code,
    described,
    environment,
    in_file,
    joined,
    option,
    without_call,
)
from gpuprof.record import patches
from gpuprof.record.patches import NAMES, patch_named
from gpuprof.trial.fixes import advised, fix_for


@pytest.mark.parametrize(
    ("fix", "text", "setting"),
    [
        (arguments("A", {"x": 1, "y": None}), "A(x=1, y=None)", Setting("argument", "x", 1, "A")),
        (arguments("", {"x": True}), "in the trainer's arguments:\nx=True", Setting("argument", "x", True)),
        (call("f", ..., n=8), "f(..., n=8)", Setting("call", "f", {"n": 8})),
        (call("f", "high", Code("x")), 'f("high", x)', Setting("call", "f", {"0": "high", "1": {"expression": "x"}})),
        (call("f", ..., n=Code("16")), "f(..., n=16)", Setting("call", "f", {"n": 16})),
        (call("f"), "f()", Setting("call", "f", {})),
        (assigned("m", call("c", Code("m"))), "m = c(m)", Setting("assignment", "m", {"expression": "c(m)"})),
        (environment("A", "b:1"), "A=b:1", Setting("environment", "A", "b:1")),
        (option("serve ... --x 1", "--x", 1, "serve"), "serve ... --x 1", Setting("flag", "--x", 1, "serve")),
        (option("without --x", "--x", None), "without --x", Setting("flag", "--x", None, remove=True)),
        (without_call("remove f()", "f"), "remove f()", Setting("call", "f", remove=True)),
        (in_file("x: {y: 1}", "x", {"y": 1}, "o"), "x: {y: 1}", Setting("file", "x", {"y": 1}, "o")),
        (described("with ", "f", a="b"), 'with a="b"', Setting("call", "f", {"a": "b"})),
    ],
)  # fmt: skip
def test_a_setting_is_data_and_text(fix: Fix, text: str, setting: Setting):
    assert str(fix) == text
    assert fix.settings[0] == setting


def test_prose_sets_nothing_and_stays_in_place():
    fix = "first " + call("f") + "  # why\nor " + call("g").otherwise() + joined(["", "end"])
    assert str(fix) == "first f()  # why\nor g()\nend"
    assert [(one.name, one.instead) for one in fix.settings] == [("f", False), ("g", True)]
    assert not Fix() and not Fix() + "" and fix and Fix() + "x"


def test_a_patch_stays_with_its_fix():
    fix = "a " + call("f").by("tf32") + " b " + call("g").by("compile")
    assert fix.patch is not None and (fix.patch.name, fix.patch.value) == ("tf32", "")
    assert call("f").by("input_workers", 8).patch == call("f").by("input_workers", "8").patch


def test_what_a_recording_is_advised_is_tried_with_the_advised_value():
    found = gpuprof.diagnose(str(ROOT / "scenarios" / "starved_workers" / "recording"))
    workers = next(one for one in found.findings if one.id == "input_workers")
    fix = fix_for(workers)
    assert fix is not None
    numbers = {value for one in workers.settings for value in _values(one.value) if isinstance(value, int)}
    assert int(fix.value) in numbers
    assert next(one.fix for one in advised(found)[0]).name == found.findings[0].id


def _values(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else [value]


def test_every_patch_that_a_finding_names_exists_and_takes_its_value():
    """For a recording with many findings, and for the names in the code of all findings."""
    case = case_of(RECORDING)
    for _, find in FINDINGS:
        for proposal in find(case):
            assert str(proposal.fix).strip()
            if proposal.fix.patch is not None:
                patch = patch_named(proposal.fix.patch.name).PATCH
                assert patch.check(proposal.fix.patch.value or patch.default)
    constants = {"BATCH": patches.BATCH, "WORKERS": patches.WORKERS}
    named = {
        path.stem if name == "PAGE.id" else constants.get(name, name)
        for folder in ("detect", "findings", "iterations")
        for path in (ROOT / "gpuprof" / "diagnosis" / folder).rglob("*.py")
        for name in re.findall(r"\.by\(\s*\"?(PAGE\.id|\w+)", path.read_text(encoding="utf-8"))
    }
    assert named == set(NAMES)


def test_nothing_reads_the_text_of_a_fix():
    """No regular expression reads advice, and no rendered fix is parsed."""
    for name in ("fixes", "own_flags", "run_trial"):
        source = (Path(str(ROOT)) / "gpuprof" / "trial" / f"{name}.py").read_text(encoding="utf-8")
        assert "re.compile" not in source and "finding.fix." not in source and ".split()" not in source, name


@pytest.mark.parametrize(("name", "value"), [("gpt_oss_20b_unsloth", "flex_attention"), ("eager_attention", "")])
def test_a_trial_applies_the_implementation_that_is_advised(name: str, value: str):
    """SDPA does not support attention with sinks: flex_attention is advised, and that is tried."""
    case = case_of(ROOT / "scenarios" / name / "recording")
    assert [one.fix.patch for one in eager_attention.find(case)] == [PatchValue("eager_attention", value)]


def shown(fix: Fix) -> list[str]:
    """Lines of code after `>`, prose unchanged."""
    return [f"> {one.text}" if one.code else one.text for one in fix.lines]


@pytest.mark.parametrize(
    ("fix", "lines"),
    [
        (arguments("TrainingArguments", {"tf32": True}), ["> TrainingArguments(tf32=True)"]),
        (arguments(None, {"tf32": True}), ["in the trainer's arguments:", "> tf32=True"]),
        (option("--workers 8", "--workers", 8), ["on the command line:", "> --workers 8"]),
        (option("without --compile", "--compile", None), ["without --compile"]),
        (environment("A", "1") + "  # early", ["in the environment:", "> A=1  # early"]),
        (
            call("f") + ", then " + call("g") + "\nand the rest: by hand",
            ["> f()", "then:", "> g()", "and the rest: by hand"],
        ),
        (call("f") + ", " + call("g"), ["> f()", "> g()"]),
        (call("f") + "\nor " + option("--a", "--a"), ["> f()", "or, on the command line:", "> --a"]),
        (call("f") + "\nor " + as_fix("do it"), ["> f()", "or do it"]),
        (code("with ") + call("f") + code(":") + "  # around it", ["> with f():  # around it"]),
        (call("f") + "  # or " + call("g"), ["> f()  # or g()"]),
        (call("f") + "\n# 4 GiB more", ["> f()", "4 GiB more"]),
        (
            joined([option("--a 1", "--a", 1), option("--b 2", "--b", 2)], " "),
            ["on the command line:", "> --a 1 --b 2"],
        ),
    ],
)
def test_code_and_prose_have_lines_of_their_own(fix: Fix, lines: list[str]):
    assert shown(fix) == lines


def test_what_settles_a_fix_is_a_line_of_a_shell_with_the_recorded_command_behind_it():
    assert PatchValue("tf32").command() == "gpuprof try --fix tf32"
    assert (
        PatchValue("tf32").command(("python", "t.py", "--name=a b"))
        == "gpuprof try --fix tf32 -- python t.py '--name=a b'"
    )
    run = ROOT / "scenarios" / "nanogpt" / "recording"
    recorded = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["command"]
    one = next(one for one in gpuprof.diagnose(run).worth_trying if one.settle)
    program, command, *arguments = shlex.split(one.settle or "")
    assert (program, command) == ("gpuprof", "try")
    ours, words = split(arguments, ("--fix",))
    assert words == recorded, "gpuprof try finds the run by its command"
    assert ours == ["--fix", one.patch.name if one.patch else ""]
