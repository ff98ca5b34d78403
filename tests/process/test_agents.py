"""What agents use: `diagnose --json --brief`, `gpuprof skill`, and `gpuprof mcp` with a real client."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from helpers.agent_client import client_of
from helpers.command import gpuprof_command, in_process, one_line
from helpers.finding_pages import PAGES
from helpers.installed import need
from helpers.make_run import usual_run
from helpers.paths import ROOT
from helpers.started import wait_for
from helpers.trials import make_run, write_training
from helpers.warm_torch import warm_python
from jsonschema import Draft202012Validator

from gpuprof.cli.entry import COMMANDS
from gpuprof.cli.shared import mcp_try
from gpuprof.diagnosis.comparison import brief as comparison_brief
from gpuprof.diagnosis.comparison.comparison import DOCUMENT as COMPARISON
from gpuprof.diagnosis.written import brief
from gpuprof.trial.guard import processes_of
from gpuprof.trial.trial_json import schema as trial_schema

TRACE = ROOT / "tests" / "data" / "tiny_lora_dataloader.json.gz"
PAIRS = ROOT / "tests" / "data" / "pairs"


def test_a_brief_diagnosis_is_small_and_agrees_with_the_whole():
    done = in_process("diagnose", TRACE, "--json", "--brief")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.encode()) < 4096 and done.stdout.count("\n") == 1
    document = json.loads(done.stdout)
    Draft202012Validator(brief.schema()).validate(document)
    whole = json.loads(in_process("diagnose", TRACE, "--json").stdout)
    assert document["verdict"]["bound"] == whole["verdict"]["bound"]
    assert document["budget"]["mean_ns"] == whole["budget"]["mean_ns"]
    kept = [finding["id"] for finding in document["findings"]]
    assert kept and kept == [finding["id"] for finding in whole["findings"]][: len(kept)]


def test_brief_without_json_is_one_line():
    done = in_process("diagnose", TRACE, "--brief")
    assert done.returncode == 2 and "--brief needs --json" in one_line(done.stderr)


# -- the skill


def test_the_skill_is_installed_and_installed_again(tmp_path: Path):
    gpuprof_command("skill", "--install", tmp_path / "skills", check=True)
    done = gpuprof_command("skill", "--install", tmp_path / "skills")
    assert done.returncode == 0, done.stderr
    target = tmp_path / "skills" / "gpuprof" / "SKILL.md"
    assert one_line(done.stderr) == f"gpuprof: skill: {target}"
    assert target.read_text() == in_process("skill").stdout
    assert len(target.read_text()) < 6000


def test_the_skill_names_commands_that_there_are():
    text = in_process("skill").stdout
    assert text.startswith("---\nname: gpuprof\ndescription: ")
    named = {word.split()[1] for word in text.split("`") if word.startswith("gpuprof ")}
    assert named and named <= set(COMMANDS)


def test_a_skill_of_somebody_else_is_left_alone(tmp_path: Path):
    target = tmp_path / "gpuprof" / "SKILL.md"
    target.parent.mkdir()
    target.write_text("mine")
    done = in_process("skill", "--install", tmp_path)
    assert done.returncode == 2 and "not gpuprof's" in one_line(done.stderr)
    assert target.read_text() == "mine"
    (tmp_path / "file").touch()
    done = in_process("skill", "--install", tmp_path / "file")
    assert done.returncode == 2 and "cannot be written" in one_line(done.stderr)


# -- the MCP server


READING = {"runs", "diagnose", "findings", "gaps", "kernels", "functions", "compare", "project", "explain", "hang"}


def asked(cwd: Path, calls: dict[str, tuple[str, dict[str, Any]]], *options: str) -> tuple[list[Any], dict[str, Any]]:
    """The server's tools, and its results of the calls, by their keys."""

    async def ask() -> tuple[list[Any], dict[str, Any]]:
        async with client_of(cwd, *options) as client:
            tools = (await client.list_tools()).tools
            return tools, {key: await client.call_tool(name, arguments) for key, (name, arguments) in calls.items()}

    return asyncio.run(ask())


def refused(result: Any) -> str:
    """The one line of an error."""
    assert result.is_error
    text = result.content[0].text
    assert "\n" not in text and "Traceback" not in text and "unexpected" not in text
    return text


def answer(result: Any) -> Any:
    assert not result.is_error, result.content
    (content,) = result.content
    assert len(content.text) <= 100_000
    return json.loads(content.text)


WRONG_TRIALS = {
    "is empty": {"command": []},
    "--yes": {"command": ["--yes", "train.py"]},
    "absent.py": {"command": ["absent.py"], "budget": "2m"},
    "magic": {"command": ["train.py"], "fixes": ["magic"], "budget": "2m"},
    "until: 'less'": {"command": ["train.py"], "until": "less"},
    "ValueError: no data": {"command": [sys.executable, "fails.py"]},
    "no/such/folder": {"command": ["train.py"], "folder": "no/such/folder"},
}
"""Arguments of the tool that runs something, by a word of the line that refuses them."""

Answers = tuple[list[Any], dict[str, Any], Path]
"""Tools and results of a server, and its working directory. Starting a server takes longer than its answers."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """A server without options, in a folder with one run and a program."""
    cwd, path = tmp_path_factory.mktemp("reader"), str(TRACE)
    usual_run().write(cwd / "gpuprof-runs" / "2026-01-01_000000_train")
    (cwd / "broken.json").write_text("{")
    (cwd / "train.py").write_text("open('ran', 'w')")
    calls = {
        "diagnose": ("diagnose", {"path": path}),
        "findings": ("findings", {"path": path, "limit": 1}),
        "gaps": ("gaps", {"path": path, "offset": 3, "limit": 500}),
        "kernels": ("kernels", {"path": path, "limit": 5}),
        "explain": ("explain", {"finding": "cuda_graphs"}),
        "project": ("project", {"path": path, "to": ["B200"]}),
        "compare": ("compare", {"a": str(PAIRS / "tiny.json.gz"), "b": str(PAIRS / "tiny.compile.json.gz")}),
        "details": (
            "compare",
            {"a": str(PAIRS / "tiny.json.gz"), "b": str(PAIRS / "tiny.compile.json.gz"), "details": True},
        ),
        "one target": ("project", {"path": path, "to": "B200"}),
        "runs": ("runs", {}),
        "no folder": ("runs", {"folder": "nowhere"}),
        "latest": ("diagnose", {}),
        "no file": ("diagnose", {"path": "no/such/file.json"}),
        "broken": ("diagnose", {"path": str(cwd / "broken.json")}),
        "no finding": ("explain", {"finding": "magic"}),
        "no offset": ("gaps", {"path": path, "offset": -1}),
        "try": ("try", {"command": [sys.executable, "train.py"]}),
    }
    return *asked(cwd, calls), cwd


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """A server that may run commands, in a folder with sixty runs and a program."""
    cwd = tmp_path_factory.mktemp("runner")
    first = usual_run().write(cwd / "gpuprof-runs" / "2026-01-01_000000_train")
    for minute in range(1, 60):
        shutil.copytree(first, first.with_name(f"2026-01-01_00{minute:02}00_train"))
    (cwd / "fails.py").write_text("raise ValueError('no data')")
    (cwd / "train.py").write_text("open('ran', 'w')")
    calls = {
        "newest": ("runs", {"limit": 1000}),
        "oldest": ("runs", {"offset": 50}),
        "explain": ("explain", {}),
        **{word: ("try", arguments) for word, arguments in WRONG_TRIALS.items()},
    }
    return *asked(cwd, calls, "--allow-run"), cwd


def test_a_client_asks_about_a_recording(reader: Answers):
    tools, results, _ = reader
    assert {tool.name for tool in tools} == READING
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    diagnosis, findings, gaps, kernels, projection, comparison = (
        answer(results[key]) for key in ("diagnose", "findings", "gaps", "kernels", "project", "compare")
    )
    Draft202012Validator(brief.schema()).validate(diagnosis)
    assert findings["rows"][0]["id"] == diagnosis["findings"][0]["id"] and findings["next_offset"] == 1
    assert len(gaps["rows"]) == 50 and gaps["next_offset"] == 53 and gaps["total"] > 53
    assert [row["ns"] for row in gaps["rows"]] == sorted((row["ns"] for row in gaps["rows"]), reverse=True)
    assert len(kernels["rows"]) == 5 and kernels["by_category"]
    title = next(page.title for page in PAGES if page.id == "cuda_graphs")
    assert results["explain"].content[0].text.startswith(f"# {title}")
    assert projection["schema"] == "gpuprof.projection/1" and projection == answer(results["one target"])
    details = answer(results["details"])
    assert details["schema"] == "gpuprof.comparison/1" and comparison["schema"] == "gpuprof.comparison_brief/1"
    Draft202012Validator(COMPARISON.schema()).validate(details)
    Draft202012Validator(comparison_brief.schema()).validate(comparison)
    assert len(results["compare"].content[0].text) < 5000 < len(results["details"].content[0].text)
    assert {key: comparison[key] for key in ("step", "summary")} == {key: details[key] for key in ("step", "summary")}
    assert [one["id"] for one in comparison["mechanisms"]] == [one["id"] for one in details["mechanisms"]][:6]


def test_runs_and_errors_are_reported(reader: Answers):
    _, results, _ = reader
    (run,) = answer(results["runs"])["rows"]
    assert run["path"].endswith("2026-01-01_000000_train") and run["status"]
    assert answer(results["latest"])["kind"] == "run"
    lines = [refused(results[key]) for key in ("no file", "broken", "no finding", "no offset", "no folder")]
    assert "no/such/file.json" in lines[0]


def test_many_runs_are_paged_and_every_answer_is_capped(runner: Answers):
    _, results, _ = runner
    newest, oldest = (answer(results[key]) for key in ("newest", "oldest"))
    assert (newest["total"], len(newest["rows"]), newest["next_offset"]) == (60, 50, 50)
    assert (len(oldest["rows"]), oldest["next_offset"]) == (10, None)
    paths = [row["path"] for row in newest["rows"] + oldest["rows"]]
    assert paths == sorted(paths, reverse=True) and len(set(paths)) == 60
    assert len(results["explain"].content[0].text) < 100_000


# -- the tool that runs something


def test_a_command_is_run_only_if_the_server_allows_it(reader: Answers, runner: Answers):
    tools, results, cwd = reader
    assert "try" not in {tool.name for tool in tools} and results["try"].is_error
    assert not (cwd / "ran").exists()
    tools, results, cwd = runner
    assert {tool.name for tool in tools} == READING | {"try"}
    hints = {tool.name: tool.annotations.read_only_hint for tool in tools}
    assert hints.pop("try") is False and all(hints.values())
    for word in WRONG_TRIALS:
        assert word in refused(results[word])
    assert not (cwd / "ran").exists()


def test_what_a_trial_notes_speaks_of_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mcp.server.mcpserver")

    async def nothing(*_: object) -> tuple[int, str, str]:
        return 0, "", "gpuprof: no fix is advised here; gpuprof try --list shows all that exist\n"

    monkeypatch.setattr(mcp_try, "_run", nothing)
    said = json.loads(asyncio.run(mcp_try.try_fixes(["train.py"], folder=str(tmp_path))))
    assert said["notes"] == ["no fix is advised here; `gpuprof try --list` in a shell shows all that exist"]


SLOW_INPUT = """
    loader = torch.utils.data.DataLoader(Data(wait=0.002), batch_size=8)
    open("ran.txt", "w").write("yes")
    train(net(), loader)
"""


@pytest.mark.slow
def test_a_fix_is_tried_on_a_command_and_measured(tmp_path: Path):
    need("torch")
    write_training(tmp_path, SLOW_INPUT)
    make_run(tmp_path, made_ms=16.0)
    command = [warm_python(), "train.py"]
    call = {"command": command, "fixes": ["input_workers=2"], "budget": "25s", "folder": str(tmp_path)}
    found = answer(asked(tmp_path.parent, {"try": ("try", call)}, "--allow-run")[1]["try"])
    steps = found.pop("next_steps")
    Draft202012Validator(trial_schema()).validate(found)
    assert ("do" in steps[0]) == bool(found["best"])
    (row,) = found["rows"]
    assert row["fixes"] == [{"name": "input_workers", "value": "2"}] and row["speedup"]["expected"] > 1.2
    assert not (tmp_path / "ran.txt").exists(), "the program writes to a scratch folder"


@pytest.mark.slow
def test_nothing_runs_on_when_the_client_goes_away(tmp_path: Path):
    need("torch")
    write_training(tmp_path, SLOW_INPUT)
    make_run(tmp_path, python=sys.executable)
    scratch = Path(tempfile.mkdtemp(prefix="try-"))  # a short path, or it would not be used

    call_of = {"command": [sys.executable, "train.py"], "fixes": ["input_workers=2"]}

    async def leave() -> None:
        async with client_of(tmp_path, "--allow-run", TMPDIR=str(scratch)) as client:
            call = asyncio.ensure_future(client.call_tool("try", call_of))
            while not processes_of(str(scratch)):
                assert not call.done(), call
                await asyncio.sleep(0.05)
            call.cancel()

    asyncio.run(leave())
    assert wait_for(lambda: not processes_of(str(scratch)), 20), "a training still runs"
    assert wait_for(lambda: not any(scratch.glob("gpuprof-try-*")), 20), "the scratch folder is still there"
    shutil.rmtree(scratch)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_nothing_runs_on_when_the_server_is_killed(tmp_path: Path, number: int):
    need("torch")
    write_training(tmp_path, SLOW_INPUT)
    make_run(tmp_path, python=sys.executable)
    scratch = Path(tempfile.mkdtemp(prefix="try-"))  # a short path, or it would not be used
    call_of = {"command": [sys.executable, "train.py"], "fixes": ["input_workers=2"], "budget": "10m"}

    async def kill() -> None:
        async with client_of(tmp_path, "--allow-run", TMPDIR=str(scratch)) as client:
            call = asyncio.ensure_future(client.call_tool("try", call_of))
            while not processes_of(str(scratch)):
                assert not call.done(), call
                await asyncio.sleep(0.05)
            (server,) = [
                int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
                if b"mcp" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            ]  # fmt: skip
            (trial,) = Path(f"/proc/{server}/task/{server}/children").read_text().split()
            os.kill(server, number)
            assert await asyncio.to_thread(wait_for, lambda: not Path(f"/proc/{trial}/environ").exists(), 8), (
                "it runs on"
            )
            assert not processes_of(str(scratch)), "a training still runs"
            call.cancel()

    asyncio.run(kill())
    assert wait_for(lambda: not any(scratch.glob("gpuprof-try-*")), 20), "the scratch folder is still there"
    shutil.rmtree(scratch)


def test_without_the_sdk_one_line_says_what_to_install(tmp_path: Path):
    """Our packages without mcp: a path that ends before it."""
    code = (
        "import sys\n"
        "class Refuses:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'mcp':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Refuses())\n"
        "from gpuprof.cli import main\n"
        "sys.exit(main(['mcp']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "[mcp]" in one_line(done.stderr)
