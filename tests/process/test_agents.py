"""What agents use: `diagnose --json --brief`, `gpuprof skill`, and `gpuprof mcp` with a real client."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.command import gpuprof_command, in_process, one_line, variables
from helpers.make_run import usual_run
from helpers.paths import ROOT
from jsonschema import Draft202012Validator

from gpuprof.cli.entry import COMMANDS
from gpuprof.diagnosis import brief
from gpuprof.diagnosis.findings import PAGES

TRACE = ROOT / "tests" / "data" / "tiny_lora_dataloader.json.gz"
PAIRS = ROOT / "tests" / "data" / "pairs"


def test_a_brief_diagnosis_is_small_and_agrees_with_the_whole():
    done = gpuprof_command("diagnose", TRACE, "--json", "--brief")
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
    assert done.returncode == 2 and "--brief goes with --json" in one_line(done.stderr)


# -- the skill


def test_the_skill_is_installed_and_installed_again(tmp_path: Path):
    for _ in range(2):
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


def asked(cwd: Path, *calls: tuple[str, dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """The server's tools, and its results of the calls: a client that starts `gpuprof mcp` and speaks to it."""
    pytest.importorskip("mcp.server.mcpserver", reason="the extra [mcp] is not installed")
    from mcp import Client, StdioServerParameters

    async def ask() -> tuple[list[Any], list[Any]]:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "gpuprof", "mcp"], cwd=str(cwd),
            env=variables(PYTHONPATH=str(ROOT)),
        )  # fmt: skip
        async with Client(server, read_timeout_seconds=200) as client:
            tools = (await client.list_tools()).tools
            return tools, [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(ask())


def answer(result: Any) -> Any:
    assert not result.is_error, result.content
    (content,) = result.content
    assert len(content.text) <= 100_000
    return json.loads(content.text)


def test_a_client_asks_about_a_recording(tmp_path: Path):
    path = str(TRACE)
    tools, results = asked(
        tmp_path,
        ("diagnose", {"path": path}),
        ("findings", {"path": path, "limit": 1}),
        ("gaps", {"path": path, "offset": 3, "limit": 500}),
        ("kernels", {"path": path, "limit": 5}),
        ("explain", {"finding": "cuda_graphs"}),
        ("project", {"path": path, "to": ["B200"]}),
        ("compare", {"a": str(PAIRS / "tiny.json.gz"), "b": str(PAIRS / "tiny.compile.json.gz")}),
    )
    assert {tool.name for tool in tools} == {
        "runs", "diagnose", "findings", "gaps", "kernels", "compare", "project", "explain",
    }  # fmt: skip
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    diagnosis, findings, gaps, kernels, _, projection, comparison = (
        None if i == 4 else answer(result) for i, result in enumerate(results)
    )
    Draft202012Validator(brief.schema()).validate(diagnosis)
    assert findings["rows"][0]["id"] == diagnosis["findings"][0]["id"] and findings["next_offset"] == 1
    assert len(gaps["rows"]) == 50 and gaps["next_offset"] == 53 and gaps["total"] > 53
    assert [row["ns"] for row in gaps["rows"]] == sorted((row["ns"] for row in gaps["rows"]), reverse=True)
    assert len(kernels["rows"]) == 5 and kernels["by_category"]
    assert results[4].content[0].text.startswith(f"# {next(p.title for p in PAGES if p.id == 'cuda_graphs')}")
    assert projection["schema"] == "gpuprof.projection/1" and comparison["schema"] == "gpuprof.comparison/1"


def test_runs_and_errors_are_reported(tmp_path: Path):
    usual_run().write(tmp_path / "gpuprof-runs" / "2026-01-01_000000_train")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    _, results = asked(
        tmp_path,
        ("runs", {}),
        ("diagnose", {}),
        ("diagnose", {"path": "no/such/file.json"}),
        ("diagnose", {"path": str(broken)}),
        ("explain", {"finding": "magic"}),
        ("gaps", {"path": str(TRACE), "offset": -1}),
    )
    (run,) = answer(results[0])["rows"]
    assert run["path"].endswith("2026-01-01_000000_train") and run["status"]
    assert answer(results[1])["kind"] == "run"
    for result in results[2:]:
        assert result.is_error
        text = result.content[0].text
        assert "\n" not in text and "Traceback" not in text and "unexpected" not in text
    assert "no/such/file.json" in results[2].content[0].text


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
