"""What `gpuprof trace` notes about torch.compile: graph breaks, recompilations and the lines that cause them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.installed import need
from helpers.run_schema import errors_in
from helpers.trainings import Run, bare, trace

need("torch")

SECRET = "hf_abcdefghijklmnopqrstuv"
BROKEN = """
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(16, 16)
        def forward(self, x):
            x = self.inner(x)
            if x.detach().abs().max().item() > 1e9:
                x = x * 2
            return x.tanh()
    class Planted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
            self.strength, self.token = 0, "{0}"
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return scaled(x, self)
    def scaled(x, model):
        return x * (1 + model.strength * 1e-6) * len(model.token)
    def steps(model, n=45, advance=12):
        run = torch.compile(model, backend="eager")
        opt = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(n):
            run(torch.randn(4, 16)).sum().backward()
            opt.step()
            opt.zero_grad()
            if i < advance:
                model.strength += 1
""".replace("{0}", SECRET)


def compiler_of(run: Run) -> dict[str, Any] | None:
    assert run.code == 0, run.stderr
    assert errors_in(run.folder) == []
    assert SECRET not in (run.folder / "rank0.json").read_text(), "a secret"
    return run.rank()["compiler"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    run = trace(tmp_path_factory.mktemp("broken"), BROKEN + "    steps(Planted())\n")
    found = compiler_of(run)
    assert found is not None
    return run, found


def test_a_graph_break_has_its_reason_and_its_line(broken: tuple[Run, dict[str, Any]]):
    run, found = broken
    (item,) = [one for one in found["breaks"] if "item" in one["reason"].lower()]
    call = item["calls"][-1]
    assert (call["file"], call["function"]) == ("train.py", "forward")
    source = (run.folder.parent / "train.py").read_text().splitlines()
    assert ".item()" in source[call["line"] - 1]
    assert item["count"] >= 1 and found["read_ns"] > 0
    assert "capture_scalar_outputs" in item["hint"]
    (looped,) = [one["failed_at"] for one in found["functions"] if one["failed"]]
    assert looped["file"] == "train.py"
    assert ".item()" in source[looped["line"] - 1]


def test_a_guard_that_fails_has_its_line_and_the_limit_is_noticed(broken: tuple[Run, dict[str, Any]]):
    _, found = broken
    (scaled,) = [one for one in found["functions"] if one["function"] == "scaled"]
    (guard,) = [one for one in scaled["recompiles"] if "strength" in one["guard"]]
    assert guard["count"] >= 3 and guard["function"] == "scaled" and guard["line"]
    assert scaled["limit"] and scaled["versions"] == found["recompile_limit"]
    assert len(scaled["ops_of_versions"]) >= scaled["versions"] and max(scaled["ops_of_versions"]) == scaled["ops"] > 0
    assert "* 1e-6" not in str(found), "a line of the source"


def test_ranges_of_the_trace_name_the_functions(broken: tuple[Run, dict[str, Any]]):
    run, found = broken
    regions = {e["name"] for e in run.trace()["traceEvents"] if e.get("name", "").startswith("Torch-Compiled Region")}
    numbers = {int(name.rpartition(": ")[2].split("/")[0]) for name in regions}
    assert numbers and numbers <= {one["id"] for one in found["functions"]}


def test_nothing_is_said_where_nothing_is_compiled(tmp_path: Path):
    run = trace(
        tmp_path,
        """
        model = Model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches(40):
            loss_of(model, batch).backward()
            opt.step()
            opt.zero_grad()
        """,
    )
    assert compiler_of(run) is None


@pytest.mark.slow
def test_more_compilations_are_kept_than_dynamo_keeps_by_itself(tmp_path: Path):
    run = trace(
        tmp_path,
        """
        fs = [torch.compile(eval(f"lambda x: x * {i} + {i}"), backend="eager") for i in range(1, 81)]
        model = Model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches(3):
            loss = loss_of(model, batch)
            for f in fs:
                loss = f(loss)
            loss.backward()
            opt.step()
            opt.zero_grad()
        """,
        command=(sys.executable,),
    )
    found = compiler_of(run)
    assert found is not None
    assert len(found["functions"]) >= 80, found["counters"]


def test_the_program_prints_what_it_prints_without_us(tmp_path: Path):
    code = BROKEN + "    steps(Planted(), 12)\n    print(torch._dynamo.utils.counters['stats']['unique_graphs'])\n"
    assert trace(tmp_path, code).stdout == bare(tmp_path).stdout
