"""The GitHub Action, its steps run in order by bash on real recordings; and the files that name each other."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers.command import variables
from helpers.paths import ROOT

yaml = pytest.importorskip("yaml")
PAIRS = ROOT / "tests" / "data" / "pairs"
EAGER, COMPILED = PAIRS / "tiny.json.gz", PAIRS / "tiny.compile.json.gz"
PUSH = {"github.event_name": "push", "github.ref_name": "main"}
PULL = {"github.event_name": "pull_request", "github.ref_name": "7/merge"}

needs_bash = pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")


def action() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "action.yml").read_text())


# -- a runner of composite actions


def value(expression: str, known: dict[str, str]) -> Any:
    """The value of an expression of a workflow; empty if unknown, as in GitHub's runner."""
    python = re.sub(r"\b[a-z]+(\.[\w-]+)+", lambda name: repr(known.get(name[0], "")), expression)
    return eval(python.replace("&&", " and ").replace("||", " or ").strip(), {"format": str.format})


def text(template: str, known: dict[str, str]) -> str:
    return re.sub(r"\$\{\{(.*?)\}\}", lambda found: str(value(found[1], known)), template)


@dataclass
class Job:
    """The result of a run of the action."""

    code: int = 0
    """Exit code of the last step that ran."""
    names: list[str] = field(default_factory=list)
    """Names of the steps that ran, in order."""
    used: dict[str, dict[str, str]] = field(default_factory=dict)
    """Step that is another action → what it is given. Those are not run."""
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    log: str = ""


def run_action(workspace: Path, github: dict[str, str], **inputs: str) -> Job:
    """Runs the action's steps in a workspace, up to the first that fails; inputs by name, `_` for `-`."""
    of = action()
    given = {name: str(of["inputs"][name].get("default", "")) for name in of["inputs"]}
    given |= {name.replace("_", "-"): one for name, one in inputs.items()}
    temp = workspace / "temp"
    known = {
        **{f"inputs.{name}": one for name, one in given.items()}, "runner.temp": str(temp),
        "github.job": "performance", "github.run_id": "12", "github.run_attempt": "1",
        "github.event.repository.default_branch": "main", **github,
    }  # fmt: skip
    (workspace / "bin").mkdir(parents=True, exist_ok=True)
    script = workspace / "bin" / "gpuprof"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuprof "$@"\n')
    script.chmod(0o755)
    files = {name: workspace / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    job = Job()
    for step in of["runs"]["steps"]:
        if not value(step.get("if", "'always'"), known):
            continue
        job.names.append(step["name"])
        if "uses" in step:
            job.used[step["name"]] = {name: text(str(one), known) for name, one in step["with"].items()}
            if step["name"] == "Restore the baseline" and (workspace / "cache").is_dir():
                shutil.copytree(workspace / "cache", workspace / ".gpuprof-baseline")  # as actions/cache would
            continue
        for path in files.values():
            path.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=workspace, capture_output=True, text=True, timeout=240, check=False,
            env=variables(
                RUNNER_TEMP=str(temp), PATH=f"{script.parent}{os.pathsep}{os.environ['PATH']}", PYTHONPATH=str(ROOT),
                **{name: str(path) for name, path in files.items()},
                **{name: text(one, known) for name, one in step.get("env", {}).items()},
            ),
        )  # fmt: skip
        outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
        known |= {f"steps.{step.get('id')}.outputs.{name}": one for name, one in outputs.items()}
        job.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        job.log += done.stdout + done.stderr
        job.code = done.returncode
        if job.code:
            break
    job.outputs = {name: text(one["value"], known) for name, one in of["outputs"].items()}
    return job


# -- the action


@pytest.mark.slow
@needs_bash
def test_the_first_recording_of_a_name_passes_and_becomes_the_baseline(tmp_path: Path):
    job = run_action(tmp_path, PUSH, recording=str(COMPILED), fail_on="kernels:5%", baseline_name="train")
    assert job.code == 0 and "no baseline train yet" in job.log, job.log
    assert "Comment" not in job.names
    assert job.names[-3:] == ["Keep as baseline", "Store the baseline", "Gate"]
    assert [path.name for path in (tmp_path / ".gpuprof-baseline").iterdir()] == [COMPILED.name]
    assert job.used["Upload JSON and report"]["name"] == "gpuprof-performance"
    uploaded = {path.name for path in Path(job.used["Upload JSON and report"]["path"]).iterdir()}
    assert uploaded == {"comment.md", "diagnosis.json", "report.html"}


@pytest.mark.slow
@needs_bash
def test_a_recording_within_its_limits_passes(tmp_path: Path):
    job = run_action(tmp_path, PUSH, recording=str(COMPILED), fail_on="idle:99% python:98%")
    assert (job.code, job.names[-1]) == (0, "Gate"), job.log
    assert "gate" not in job.summary


@pytest.mark.slow
@needs_bash
def test_a_limit_that_is_exceeded_fails_the_last_step(tmp_path: Path):
    job = run_action(tmp_path, PUSH, recording=str(EAGER), fail_on="idle:10%")
    assert (job.code, job.names[-1]) == (1, "Gate")
    assert json.loads(Path(job.outputs["json"]).read_text())["schema"] == "gpuprof.diagnosis/1"
    assert Path(job.outputs["report"]).stat().st_size > 100_000
    assert job.summary.startswith("### WAITING FOR THE CPU")
    assert re.search(r"^    gpuprof: gate failed: .*idle", job.summary, re.MULTILINE), "and the comment says so"


@needs_bash
def test_a_pull_request_is_compared_with_the_stored_baseline(tmp_path: Path):
    (tmp_path / ".gpuprof-baseline").mkdir()
    (tmp_path / ".gpuprof-baseline" / "a.json").write_text("left by an earlier job")
    (tmp_path / "cache").mkdir()
    shutil.copy(COMPILED, tmp_path / "cache")
    inputs = {"recording": str(EAGER), "baseline_name": "train", "comment": "false"}
    job = run_action(tmp_path, PULL, **inputs, fail_on="kernels:5% syncs:1000%")
    assert (job.code, job.names[-1]) == (1, "Gate")
    assert "Keep as baseline" not in job.names
    assert "B TAKES" in job.summary.splitlines()[0]
    compared = json.loads((tmp_path / "temp" / "gpuprof" / "comparison.json").read_text())
    assert compared["schema"] == "gpuprof.comparison/1"


@needs_bash
@pytest.mark.parametrize("name", ["recording", "baseline"])
def test_a_path_that_looks_like_an_option_is_refused(tmp_path: Path, name: str):
    job = run_action(tmp_path, PUSH, **{"recording": str(EAGER), name: "--html=/etc/passwd"})
    assert (job.code, job.names[-1]) == (2, "Check the inputs")
    assert "::error::--html=/etc/passwd begins with -" in job.log


@needs_bash
def test_a_recording_that_cannot_be_read_is_said_and_never_becomes_the_baseline(tmp_path: Path):
    broken = tmp_path / "broken.json"
    broken.write_text("no JSON")
    job = run_action(tmp_path, PUSH, recording=str(broken), baseline_name="train")
    assert (job.code, job.names[-1]) == (2, "Gate")
    assert "Keep as baseline" not in job.names and not (tmp_path / ".gpuprof-baseline").exists()
    assert job.summary.startswith("### gpuprof cannot judge this recording\n\n    gpuprof: ")
    assert "broken.json" in job.summary and "Traceback" not in job.log


def test_a_baseline_is_not_restored_by_a_name_that_begins_alike():
    """The cache takes the newest entry whose key begins with the given one."""
    steps = {step["name"]: step for step in action()["runs"]["steps"]}
    restored, stored = (steps[name]["with"] for name in ("Restore the baseline", "Store the baseline"))
    known = {"inputs.baseline-name": "train", "github.run_id": "13"}
    begin = text(restored["restore-keys"], known)
    assert text(stored["key"], known).startswith(begin)
    assert not text(stored["key"], known | {"inputs.baseline-name": "train-large"}).startswith(begin)
    assert restored["path"] == stored["path"] and restored["key"] == stored["key"]


def test_inputs_are_used_only_through_the_environment():
    """What a pull request can set must never be part of a script's text."""
    used = set()
    for step in action()["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), step["name"]
        used |= set(re.findall(r"inputs\.([\w-]+)", json.dumps(step)))
    assert used == set(action()["inputs"])


def test_what_the_workflows_call_is_there():
    targets = set(re.findall(r"^([\w.][\w./-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert set(re.findall(r"make ([\w./-]+)", workflow)) <= targets
    for folder in re.findall(r"tests/\w+", workflow):
        assert (ROOT / folder).is_dir()
