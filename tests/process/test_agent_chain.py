"""A client without a model follows the next steps of the answers of `gpuprof mcp`, and ends at the fix."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from helpers.agent_client import texts
from helpers.command import in_process
from helpers.installed import need
from helpers.make_run import usual_run
from helpers.paths import ROOT
from helpers.quick import few
from helpers.trials import make_run, write_training
from jsonschema import Draft202012Validator

from benchmarks.agent_chain import BEGIN, CASES, END, PAGE, Case, Step, User, next_of, run_case
from gpuprof.cli.shared.mcp_guard import in_tools
from gpuprof.diagnosis.written import brief
from gpuprof.interop.next_steps import after_trial
from gpuprof.trial.trial_json import schema as trial_schema

TRACE = str(ROOT / "tests" / "data" / "tiny_lora_dataloader.json.gz")
BY_NAME = {case.name: case for case in CASES}
TRIED = [case for case in CASES if case.program is not None]
COMPARED = [case for case in CASES if case.program is None]


@pytest.fixture(autouse=True)
def _the_sdk_is_there() -> None:
    pytest.importorskip("mcp.server.mcpserver", reason="the extra [mcp] is not installed")


def tools_of(steps: list[Step]) -> list[str]:
    return [step.tool for step in steps if step.tool is not None]


def checked(steps: list[Step]) -> list[Step]:
    """No call was refused, and what a diagnosis says comes next is as its schema says."""
    assert [step.answer for step in steps if step.is_error] == []
    Draft202012Validator(brief.schema()).validate(steps[0].document)
    assert len(steps[0].answer) <= 4000
    return steps


def explained(steps: list[Step]) -> str:
    """The finding whose page was read last."""
    return [step.arguments["finding"] for step in steps if step.tool == "explain"][-1]


def ends_at_the_fix(case: Case, steps: list[Step]) -> None:
    """The last comparison names the fix first, and the changed program is faster."""
    compared = steps[-1].document
    assert compared["mechanisms"][0]["id"] == case.fix == explained(steps)
    assert compared["step"]["outcome"] == "faster"


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPARED, ids=lambda case: case.name)
def test_the_next_steps_end_at_the_fix_where_it_is_made_by_hand(case: Case, tmp_path: Path):
    steps = checked(run_case(case, tmp_path))
    assert tools_of(steps) == ["diagnose", "explain", "compare"]
    ends_at_the_fix(case, steps)
    by_hand = [step.do for step in steps if step.tool is None]
    assert by_hand[-1].startswith("record the changed training")
    assert case.reads_only == any(text.startswith(f"run in a shell: gpuprof try --fix {case.fix}") for text in by_hand)


@pytest.mark.parametrize("case", few([pytest.param(case, id=case.name) for case in TRIED], ["optimizer"]))
def test_the_next_steps_lead_to_a_trial_of_the_right_fix(case: Case, tmp_path: Path):
    user = User(case, tmp_path)
    if case.scenario is None:
        write_training(tmp_path, "")
        make_run(tmp_path, made_ms=16.0, python=sys.executable)
    else:
        user.prepare()
    steps = checked(run_case(case, tmp_path, user, stop_before="try"))
    assert tools_of(steps) == ["diagnose", "explain", "try"]
    asked = steps[-1].arguments
    assert [fix.partition("=")[0] for fix in asked["fixes"]] == [case.fix] == [explained(steps)]
    assert asked["command"] == [sys.executable, "train.py"] and asked["folder"] == str(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", TRIED, ids=lambda case: case.name)
def test_the_next_steps_end_at_the_fix_that_was_tried(case: Case, tmp_path: Path):
    """What it gains is not asserted: other programs may use the machine."""
    need("torch")
    steps = checked(run_case(case, tmp_path))
    tried = next(step.document for step in steps if step.tool == "try")
    Draft202012Validator(trial_schema()).validate({key: value for key, value in tried.items() if key != "next_steps"})
    (row,) = tried["rows"]
    assert row["fixes"][0]["name"] == case.fix and row["status"] not in ("not_applied", "failed", "not_tried")
    if row["status"] in ("confirmed", "unconfirmed"):
        assert steps[-1].tool == "compare"
        if case.scenario is not None:
            ends_at_the_fix(case, steps)


def test_a_client_asks_nothing_twice_and_goes_on_with_what_stands_behind_it():
    assert next_of("# A page\n\nnext_steps: [1]\n") == [1] and next_of('{"next_steps": [2]}') == [2]
    assert next_of("# A page\n") == [] and next_of("{}") == []


TRIAL = {
    "command": ["python", "train.py"], "run": "gpuprof-runs/a", "best": [{"name": "tf32", "value": ""}],
    "rows": [{"fixes": [{"name": "tf32", "value": ""}], "lines": "a = 1\nb = 2", "status": "confirmed"}],
    "next": [{"fixes": [{"name": "input_workers", "value": "2"}], "why": "not tried", "seconds": 100.0}],
}  # fmt: skip


def test_after_a_trial_comes_what_is_confirmed_else_what_was_left():
    write, record, compare, left = after_trial(TRIAL, "/p", comparable=True)
    assert write["do"] == "write: a = 1 b = 2" and record["do"].startswith("record")
    assert compare["arguments"] == {"a": "/p/gpuprof-runs/a", "b": "/p/gpuprof-runs/latest"}
    assert left["arguments"] == {
        "command": ["python", "train.py"], "folder": "/p", "fixes": ["input_workers=2"], "budget": "2m"
    }  # fmt: skip
    assert after_trial(TRIAL, "/p", comparable=False) == [write, left]
    undecided = {**TRIAL, "best": [], "rows": [{**TRIAL["rows"][0], "status": "unconfirmed"}]}
    again, settle, *compared = after_trial(undecided, "/p", comparable=True)
    assert again == left and compared == [record, compare]
    assert settle["do"] == write["do"] and "not decided" in settle["why"]
    nothing = {**TRIAL, "best": [], "next": [], "rows": [{**TRIAL["rows"][0], "status": "not_applied"}]}
    (others,) = after_trial(nothing, "/p", comparable=True)
    assert (others["tool"], others["arguments"]) == ("findings", {"path": "/p/gpuprof-runs/a"})


# -- the tools that take what the command line takes


NAMES = ("liger", "gradient checkpointing", "HOST-BOUND", "between kernels", "syncs", "host", "generation", "1")


@pytest.mark.slow
def test_explain_takes_what_the_command_takes(tmp_path: Path):
    runs = tmp_path / "gpuprof-runs" / "2026-01-01_000000_train"
    usual_run().write(runs)
    names = [*NAMES, "magic", "train.py:3"]
    answers = texts(tmp_path, [("explain", {"finding": name}) for name in names])
    for name, (is_error, text) in zip(names, answers, strict=True):
        done = in_process("explain", name, cwd=tmp_path)
        assert is_error == (done.returncode != 0), (name, text, done.stderr)
        if is_error:
            line = in_tools(done.stderr.splitlines()[-1].removeprefix("gpuprof: "))
            assert text.endswith(f": {line}"), name
        else:
            heading = (done.stderr.removeprefix("gpuprof: ") or done.stdout).splitlines()[0]
            assert text.splitlines()[0].removeprefix("# ") == heading, name


def test_hang_reads_what_is_there_and_asks_no_process(tmp_path: Path):
    usual_run().write(tmp_path / "gpuprof-runs" / "2026-01-01_000000_train")
    (is_error, text), (refused, line) = texts(tmp_path, [("hang", {}), ("hang", {"places": ["1"]})])
    assert not is_error and json.loads(text)["schema"] == "gpuprof.hang/1"
    assert refused and "not asked" in line and "\n" not in line


@pytest.mark.slow
def test_the_other_tools_say_what_comes_next(tmp_path: Path):
    calls = [(name, {"path": TRACE, "limit": 1}) for name in ("findings", "gaps", "kernels")]
    for is_error, text in texts(tmp_path, calls):
        first = json.loads(text)["next_steps"][0]
        assert not is_error and (first["tool"], first["arguments"]["path"]) == ("explain", TRACE)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("gpuprof explain lists them all", "the tool explain lists them all"),
        ("--fix magic: no such fix", "fixes: magic: no such fix"),
        ("Invalid value for '--budget': 'soon' is not a time (gpuprof try --help shows the usage)",
         "Invalid value for budget: 'soon' is not a time"),
        ("name a recording: gpuprof diagnose PATH", "name a recording: the tool diagnose with a path"),
        ("; --yes allows connections", "; `gpuprof try --yes`, which a user types in a shell, allows connections"),
        ("no GPU named 'x' is known (gpuprof gpus lists all)",
         "no GPU named 'x' is known (`gpuprof gpus` in a shell lists all)"),
        ("say which: --from GPU (gpuprof gpus lists them)",
         "say which: `gpuprof project --from GPU` in a shell (`gpuprof gpus` in a shell lists them)"),
        ("make one with gpuprof trace train.py", "make one with gpuprof trace train.py"),
        ("allow them with gpuprof mcp --allow-urls", "allow them with gpuprof mcp --allow-urls"),
    ],
)  # fmt: skip
def test_errors_speak_of_tools(said: str, meant: str):
    assert in_tools(said) == meant


# -- the page


def test_the_transcript_on_the_page_shows_five_chains_that_end_at_their_fixes():
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    parts = re.findall(r"\*\*(\w+)\*\*: .*?\n\n```text\n(.*?)```", shown, re.DOTALL)
    assert [name for name, _ in parts] == [case.name for case in CASES]
    for name, text in parts:
        case = BY_NAME[name]
        called = re.findall(r"^(diagnose|explain|try|compare|findings) +\{", text, re.MULTILINE)
        assert called[:2] == ["diagnose", "explain"], name
        assert f'"finding": "{case.fix}"' in text, name
        assert ("try" in called) == (case.program is not None), name
        assert case.program is None or re.search(rf"^ +{case.fix} (confirmed|unconfirmed)", text, re.MULTILINE), name
        assert called[-1] == "compare" and f": {case.fix}" in text.splitlines()[-1], name
        assert str(Path.home()) not in text.replace("/home/user", "")
