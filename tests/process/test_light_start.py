"""What a command loads, and how often a diagnosis simulates: both determine how long users wait."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.paths import ROOT

import gpuprof
from gpuprof.replay import simulate
from gpuprof.replay.graph import Graph

RECORDING = ROOT / "tests" / "data" / "tiny_lora_dataloader.json.gz"
LOADED = """
import json, sys
from gpuprof.cli import main
sys.argv = ["gpuprof", *json.loads(sys.argv[1])]
main()
print(json.dumps(sorted(name for name, module in sys.modules.items() if module is not None)), file=sys.stderr)
"""


def loaded_once_compiled(*arguments: str) -> set[str]:
    """The modules that a command loads where it has nothing to compile, as in its second run at the latest."""
    loaded = loaded_by(*arguments)
    return loaded_by(*arguments) if "numba" in loaded else loaded


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command has loaded by its end."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(arguments)], capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_loads_nothing_that_computes():
    loaded = loaded_by("--help")
    assert "gpuprof.cli.entry" in loaded
    assert not loaded & {"numpy", "numba", "pandas", "plotly", "rich", "jinja2", "msgspec", "scipy"}


def test_a_diagnosis_loads_what_it_uses():
    loaded = loaded_once_compiled("diagnose", str(RECORDING))
    assert "gpuprof.replay.simulate" in loaded
    assert not loaded & {"numba", "pandas", "plotly", "jinja2", "scipy", "torch", "multiprocessing"}
    of_ranks = {name for name in loaded if name.startswith(("gpuprof.ranks", "gpuprof.diagnosis.rank"))}
    assert not of_ranks, "of one recording"


@pytest.mark.slow
def test_the_demo_loads_no_compiler(tmp_path):
    arguments = ("demo", "-o", str(tmp_path / "demo.html"))
    assert not loaded_once_compiled(*arguments) & {"numba", "pandas", "scipy"}


def test_no_graph_is_simulated_twice(monkeypatch: pytest.MonkeyPatch):
    """Every what-if of a diagnosis is another graph; simulating takes most of a diagnosis's time."""
    seen: list[tuple[bytes, bytes]] = []
    real = simulate.simulate

    def counted(graph: Graph, rounds: int = 1, times: bool = True) -> simulate.Schedule:
        if rounds == simulate.ROUNDS:
            seen.append((graph.duration_ns.tobytes(), graph.edges.lag_ns.tobytes()))
        return real(graph, rounds, times)

    monkeypatch.setattr(simulate, "simulate", counted)
    gpuprof.diagnose(RECORDING)
    assert len(seen) > 20, "a diagnosis with fixes"
    # The waits for the CPU need the schedule of a graph whose step has been simulated already; so does the ledger.
    assert len(seen) - len(set(seen)) <= 16, "findings that look at their own fix first"
