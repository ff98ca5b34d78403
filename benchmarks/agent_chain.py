"""A scripted agent, without a model, that follows the next steps of gpuprof's own answers to a fix.

    python -m benchmarks.agent_chain            the five cases, with what was called and said
    python -m benchmarks.agent_chain --page     writes the transcript into docs/agents.md

The client knows nothing about the cases. It calls `diagnose`, and then does the first thing in each answer's
`next_steps` that it has not done yet; actions by hand are passed on to the user of the case, who edits the program and
records it again, or has a recording with the fix. It ends with the first comparison, or when no answer says how to
continue.

Three cases try their fix on a small program on the CPU, one has a server that only reads, and one fix is made by hand.
The recordings of the last four are those of scenarios on a GPU, with and without the fix. What is tried there is a
program of the same kind that is small enough for a CPU: it shows that the right fix is applied, not what it gains.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from gpuprof import runfile

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "agents.md"
BEGIN, END = "<!-- transcript -->\n", "<!-- end of transcript -->\n"
MOST_CALLS = 12
PATIENCE = "20s"
"""How long the client lets a trial take."""
LIMIT_S = 400.0
"""Time after which a call is given up."""

PROGRAM = """
import sys, time
import torch
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        time.sleep(WAIT)
        return torch.randn(64, generator=torch.Generator().manual_seed(i))


layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(LAYERS))
optimizer = torch.optim.AdamW(layers.parameters(), foreach=False)
while True:
    for x in torch.utils.data.DataLoader(Data(), batch_size=8):
        for layer in layers:
            x = FORWARD
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def program(wait_s: float = 0.0, layers: int = 2, forward: str = "layer(x)") -> str:
    """A training on the CPU."""
    return PROGRAM.replace("WAIT", str(wait_s)).replace("LAYERS", str(layers)).replace("FORWARD", forward)


@dataclass(frozen=True, slots=True)
class Case:
    """A program with a fault, and the finding whose fix ends it."""

    name: str
    about: str
    fix: str
    """The finding at which the chain has to end."""
    scenario: str | None = None
    """The scenario whose recordings, before and after the fix, are read; None: the program itself is recorded."""
    program: str | None = None
    """The program that is tried; None: nothing can be tried."""
    reads_only: bool = False
    """Whether the server offers no `try`."""


CASES = (
    Case("slow_input", "batches that wait for files, recorded on a CPU", "input_workers", None, program(0.002)),
    Case("checkpointing", "activation checkpointing where there is memory left", "recompute", "checkpointing",
         program(layers=24, forward="checkpoint(layer, x, use_reentrant=False)")),
    Case("optimizer", "an optimizer that updates one parameter after the other", "optimizer", "optimizer_memory",
         program(layers=40)),
    Case("experts", "a loop over experts; the server only reads", "expert_loop", "expert_loop", reads_only=True),
    Case("padding", "batches of padded sequences; the fix is made by hand", "padding", "padding"),
)  # fmt: skip


# -- the agent


Call = Callable[[str, dict[str, Any]], Any]
"""Calls a tool: a coroutine that returns (whether it is an error, the text of its answer)."""


@dataclass(slots=True)
class Step:
    """One thing that the client did: a call and its answer, or what it passed on to the user."""

    tool: str | None
    arguments: dict[str, Any] = field(default_factory=dict)
    answer: str = ""
    is_error: bool = False
    do: str = ""

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.answer) if self.answer.startswith("{") else {}


def next_of(answer: str) -> list[dict[str, Any]]:
    """What comes next, according to an answer: the `next_steps` of JSON, the last line of Markdown."""
    if answer.startswith("{"):
        return json.loads(answer).get("next_steps") or []
    last = answer.rstrip().rpartition("\n")[2]
    return json.loads(last.removeprefix("next_steps: ")) if last.startswith("next_steps: ") else []


async def follow(call: Call, user: Callable[[str], None], stop_before: str = "") -> list[Step]:
    """From `diagnose` of the latest run to the first comparison. user: does what no tool does. stop_before: a tool that
    is not called, which ends the chain."""
    done: list[Step] = []
    steps: list[dict[str, Any]] = [{"tool": "diagnose", "arguments": {}}]
    while steps and len(done) < MOST_CALLS:
        one = steps.pop(0)
        if "do" in one:
            user(one["do"])
            done.append(Step(None, do=one["do"]))
            continue
        tool, arguments = one["tool"], dict(one["arguments"])
        if any((past.tool, past.arguments) == (tool, arguments) for past in done):
            continue
        if tool == stop_before:
            return [*done, Step(tool, arguments)]
        sent = {"budget": PATIENCE, **arguments} if tool == "try" else arguments
        is_error, answer = await call(tool, sent)
        done.append(Step(tool, arguments, answer, is_error))
        if tool == "compare":
            break
        steps = steps if is_error else next_of(answer)
    return done


# -- the user


@dataclass(slots=True)
class User:
    """The program's owner: keeps its recordings, and does by hand what the answers ask for and no tool can do."""

    case: Case
    folder: Path
    python: str = sys.executable

    def prepare(self) -> None:
        """The program and its recording."""
        if self.case.program is not None:
            (self.folder / "train.py").write_text(self.case.program)
        if self.case.scenario is None:
            self._record()
        else:
            self._take("recording", "2026-01-01_000000_train")

    def does(self, what: str) -> None:
        """Writes arguments of the DataLoader into the program, and records it again; for a scenario the recording with
        the fix exists already."""
        if self.case.scenario is not None:
            if what.startswith("record"):
                self._take("fixed", "2026-01-01_010000_train")
        elif what.startswith("record"):
            self._record()
        elif added := re.search(r"DataLoader\(\.\.\., (.+)\)", what):
            script = self.folder / "train.py"
            script.write_text(script.read_text().replace("batch_size=8)", f"batch_size=8, {added[1]})"))

    def _record(self) -> None:
        words = [sys.executable, "-m", "gpuprof", "trace", "--stop", self.python, "train.py"]
        subprocess.run(words, cwd=self.folder, env=variables(), check=True, capture_output=True, timeout=LIMIT_S)

    def _take(self, which: str, name: str) -> None:
        runs = self.folder / runfile.RUNS
        run = runs / name
        shutil.copytree(ROOT / "scenarios" / str(self.case.scenario) / which, run)
        if self.case.program is not None:
            manifest = json.loads((run / runfile.MANIFEST).read_text())
            manifest |= {"command": [self.python, "train.py"], "cwd": str(self.folder)}
            (run / runfile.MANIFEST).write_text(json.dumps(manifest))
        latest = runs / runfile.LATEST
        latest.unlink(missing_ok=True)
        latest.symlink_to(name)


def variables() -> dict[str, str]:
    """The environment of the server and of trainings."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def run_case(case: Case, folder: Path, user: User | None = None, stop_before: str = "") -> list[Step]:
    """What the client did, with its own server. user: the user who has already prepared the folder."""
    from mcp import Client, StdioServerParameters  # pyright: ignore[reportMissingImports]

    if user is None:
        user = User(case, folder)
        user.prepare()
    options = [] if case.reads_only else ["--allow-run"]
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "gpuprof", "mcp", *options], cwd=str(folder), env=variables()
    )

    async def chain() -> list[Step]:
        async with Client(server, read_timeout_seconds=LIMIT_S) as client:

            async def call(tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
                found: Any = await client.call_tool(tool, arguments)
                return bool(found.is_error), found.content[0].text

            return await follow(call, user.does, stop_before)

    return asyncio.run(chain())


# -- the transcript


def said(step: Step) -> str:
    """An answer in a line."""
    if step.is_error:
        return f"error: {step.answer}"
    if step.tool == "explain":
        return step.answer.partition("\n")[0].removeprefix("# ")
    d = step.document
    if step.tool == "diagnose":
        return f"{d['verdict']['headline']}; fixes: {', '.join(one['id'] for one in d['findings']) or 'none predicted'}"
    if step.tool == "try":
        rows = [
            f"{'+'.join(fix['name'] for fix in row['fixes'])} {row['status'].replace('_', ' ')}" for row in d["rows"]
        ]
        return "; ".join([*rows, *(note for note in d["notes"] if note.startswith("other programs"))])
    if step.tool == "compare":
        gain = d["step"]["speedup"]
        named = ", ".join(one["id"] for one in d["mechanisms"][:2])
        return f"{d['step']['outcome']}{f', {gain:.2f}× for the same work' if gain else ''}: {named}"
    return f"{d.get('total', 0)} rows"


def lines(case: Case, steps: list[Step], folder: Path) -> list[str]:
    """A case of the transcript."""
    found = [f"**{case.name}**: {case.about}.", "", "```text"]
    for step in steps:
        if step.tool is None:
            found.append(f"by hand   {step.do}")
            continue
        found.append(f"{step.tool:9} {json.dumps(step.arguments, ensure_ascii=False)}")
        found.append(f"          {said(step)}")
    text = "\n".join([*found, "```", ""])
    for shown in (str(folder), sys.executable):
        text = text.replace(shown, {str(folder): "/home/user/project"}.get(shown, "python"))
    return text.split("\n")


@click.command()
@click.option("--page", is_flag=True, help="Write the transcript into docs/agents.md.")
@click.option("--only", metavar="NAME", help="Only this case.")
def main(page: bool, only: str | None) -> None:
    """Follow the next steps of gpuprof's answers in five cases."""
    found: list[str] = []
    for case in CASES:
        if only is None or only == case.name:
            with tempfile.TemporaryDirectory() as place:
                found += lines(case, run_case(case, Path(place)), Path(place))
    text = "\n".join(found)
    if not page:
        click.echo(text)
        return
    whole = PAGE.read_text(encoding="utf-8")
    before, _, rest = whole.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
