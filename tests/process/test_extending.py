"""docs/extending.md: the files that it names exist, and what it says to do works in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.paths import ROOT
from helpers.program import US, Program

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (?:An? )?(.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
KINDS = (
    "finding", "trainer's arguments", "tracker", "patch", "GPU", "Kineto category", "MCP tool", "view of ranks"
)  # fmt: skip
EXAMPLE = ROOT / "examples" / "plug_in" / "zeroed_gradients"
NAME = "zeroed_gradients"


def named_files(text: str) -> list[str]:
    """Paths that a text names in code marks."""
    found = re.findall(r"`([\w./]+)`", text)
    return [name for name in found if "/" in name or name.endswith((".md", ".py"))]


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_named_exist(kind: str):
    names = named_files(SECTIONS[kind])
    assert len(names) >= 3
    for name in names:
        if "NAME" in name:
            assert any(ROOT.glob(name.replace("NAME", "*"))), f"nothing is like {name}"
        else:
            assert (ROOT / name).exists(), f"{name} does not exist"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_names_its_tests(kind: str):
    assert any(name.startswith("tests/") for name in named_files(SECTIONS[kind]))


def test_names_that_the_page_quotes_are_in_the_files():
    for name, path in (
        ("_MODULES", "gpuprof/diagnosis/findings/__init__.py"),
        ("_BUILDS_ON", "gpuprof/diagnosis/run/stack.py"),
        ("_SAME", "gpuprof/diagnosis/run/stack.py"),
        ("def _wandb", "gpuprof/record/entry/trackers.py"),
        ("NAMES", "gpuprof/record/patches/__init__.py"),
        ("NUMBER_KEYS", "gpuprof/tracefile/kineto/layout.py"),
        ("TEXT_KEYS", "gpuprof/tracefile/kineto/layout.py"),
        ("def make_server", "gpuprof/cli/mcp.py"),
        ("PLACES", "gpuprof/cli/shared/mcp_guard.py"),
        ("READING", "tests/process/test_agents.py"),
    ):
        assert f"`{name.removeprefix('def ')}" in PAGE and name in (ROOT / path).read_text(encoding="utf-8"), name


TRACKER = """

def _notebook() -> dict[tuple[str, str], Sink]:
    pages = getattr(sys.modules.get("my_tracker"), "pages", None)
    if pages is None:
        return {}
    return {("my_tracker", ""): lambda scalars, summary, step, report: pages.append((step, summary))}
"""
CHART = """
from gpuprof.report.charts.style import figure, names_axis, painted
from gpuprof.report.palette import SERIES_PAINTS


def paces(diagnosis):
    if not diagnosis.ranks:
        return None
    names, paces_ns = zip(*((f"rank {one.rank}", one.pace_ns) for one in diagnosis.ranks))
    bar = {"type": "bar", "x": names, "y": paces_ns}
    traces = [painted(bar, {"marker.color": SERIES_PAINTS[0]})]
    return figure(traces, {"xaxis": names_axis()}, title="Paces of all ranks", note="A test.")
"""
CATEGORY = "my_kernel"
GPU = "Example GPU"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, to be extended as the page says; it comes first on Python's path."""
    folder = tmp_path_factory.mktemp("extended")
    package = folder / "gpuprof"
    shutil.copytree(ROOT / "gpuprof", package)
    finding = (EXAMPLE / "finding.py").read_text(encoding="utf-8")
    (package / "diagnosis" / "findings" / f"{NAME}.py").write_text(
        finding.replace('    patch=Path(__file__).with_name("patch.py"),\n', "").replace(
            "from pathlib import Path\n", ""
        )
    )
    added(package / "diagnosis" / "findings" / "__init__.py", "    tf32,\n", f"    tf32,\n    {NAME},\n", times=2)
    shutil.copy(EXAMPLE / "patch.py", package / "record" / "patches" / f"{NAME}.py")
    added(package / "record" / "patches" / "__init__.py", '    "tf32",\n', f'    "tf32",\n    "{NAME}",\n')
    trackers = package / "record" / "entry" / "trackers.py"
    added(trackers, "(_wandb, _mlflow, _tensorboard)", "(_wandb, _mlflow, _tensorboard, _notebook)")
    trackers.write_text(trackers.read_text() + TRACKER)
    gpus = package / "data" / "gpus.csv"
    line = next(one for one in gpus.read_text().splitlines() if one.startswith("H100 SXM"))
    cells = line.split(",")
    gpus.write_text(gpus.read_text() + ",".join([GPU, "NVIDIA Example 9000", *cells[2:]]) + "\n")
    layout = package / "tracefile" / "kineto" / "layout.py"
    added(layout, '    "kernel": (GPU, 0),\n', f'    "kernel": (GPU, 0),\n    "{CATEGORY}": (GPU, 0),\n')
    tools = package / "cli" / "mcp.py"
    added(tools, "project, explain):", "project, explain, hello):")
    tools.write_text(tools.read_text() + '\n\ndef hello() -> str:\n    """Says hello."""\n    return "{}"\n')
    same = package / "diagnosis" / "run" / "stack.py"
    added(same, '("allow_tf32",)', '("allow_tf32", "quick_matmul")')
    charts = package / "report" / "charts"
    (charts / "paces.py").write_text(CHART)
    added(charts / "__init__.py", "import phases\n", "import phases\nfrom gpuprof.report.charts.paces import paces\n")
    added(charts / "__init__.py", '    "phases",\n', '    "paces",\n    "phases",\n')
    added(package / "report" / "page" / "html.py", '("plan", ("ranks",', '("plan", ("paces", "ranks",')
    return folder


def added(path: Path, old: str, new: str, times: int = 1) -> None:
    """Replaces a text that must occur `times` times."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == times, f"{path.name}: {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def python(folder: Path, *words: str) -> str:
    """The output of a Python that imports this folder's gpuprof."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUPROF_")}
    environment["PYTHONPATH"] = os.pathsep.join((str(folder), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def zeroing(path: Path) -> Path:
    """A trace whose GPU fills gradients for half of each step."""
    program = Program()

    def body() -> None:
        for _ in range(20):
            program.mm(4096, 4096, 4096, gpu=100 * US)
        start = program.now
        for _ in range(20):
            program.op("aten::zero_", kernel="vectorized_elementwise_kernel<FillFunctor>", gpu=100 * US)
        program.trace.annotation("Optimizer.zero_grad#AdamW.zero_grad", start - 1 * US, program.now + 1 * US)
        program.python(10 * US)

    for _ in range(4):
        program.step(body)
    return program.trace.write(path)


def test_a_finding_and_a_category_are_added(copy: Path, tmp_path: Path):
    """The trace's kernels are of a category that only the copy knows, and the finding needs them."""
    trace = zeroing(tmp_path / "trace.json")
    text = trace.read_text(encoding="utf-8")
    renamed, count = re.subn(r'("cat": ?)"kernel"', rf'\1"{CATEGORY}"', text)
    assert count > 100
    trace.write_text(renamed, encoding="utf-8")
    found = json.loads(python(copy, "-m", "gpuprof", "diagnose", str(trace), "--json"))
    (finding,) = (one for one in found["findings"] if one["id"] == NAME)
    assert finding["speedup"]["expected"] == pytest.approx(2, rel=0.1)
    assert finding["patch"] == {"name": NAME, "value": ""}
    assert "Gradients are filled with zeros" in python(copy, "-m", "gpuprof", "explain", "zero_grad")


def test_a_gpu_is_added(copy: Path):
    assert GPU in python(copy, "-m", "gpuprof", "gpus")
    found = python(copy, "-c", "from gpuprof.costs.hardware import find; print(find('NVIDIA Example 9000').name)")
    assert found.strip() == GPU


@pytest.mark.slow
def test_a_patch_is_added(copy: Path, tmp_path: Path):
    need("torch")
    (tmp_path / "train.py").touch()
    listed = python(copy, "-m", "gpuprof", "try", "--list", str(tmp_path / "train.py"))
    assert "Optimizer.zero_grad drops the gradients" in listed


def test_a_tracker_is_added(copy: Path):
    said = python(copy, "-c", (
        "import sys, types; from gpuprof.record.entry.trackers import Trackers; one = types.ModuleType('my_tracker');"
        " one.pages = []; sys.modules['my_tracker'] = one; trackers = Trackers(); trackers.look();"
        " print(trackers.log({'a': 1.0}, 'HOST-BOUND', 7, None), one.pages)"
    ))  # fmt: skip
    assert said.strip() == "(['my_tracker'], []) [(7, 'HOST-BOUND')]"


@pytest.mark.slow
def test_a_tool_is_added(copy: Path):
    pytest.importorskip("mcp.server.mcpserver", reason="the extra [mcp] is not installed")
    said = python(copy, "-c", (
        "import asyncio; from gpuprof.cli.mcp import make_server;"
        " print(*(tool.name for tool in asyncio.run(make_server().list_tools())))"
    ))  # fmt: skip
    assert {"hello", "diagnose"} <= set(said.split())


@pytest.mark.slow
def test_the_name_of_a_flag_is_added(copy: Path):
    said = python(copy, "-c", (
        "from gpuprof.tracefile.run_folder.program import Flag, Program; from gpuprof.trial.fixes import parse;"
        " from gpuprof.trial.own_flags import own_flags;"
        " program = Program(flags=(Flag(('--quick-matmul',), 'switch'),));"
        " print(own_flags(parse('tf32')[0], program, ['python', 'train.py']))"
    ))  # fmt: skip
    assert said.strip() == "--quick-matmul"


@pytest.mark.slow
def test_a_view_of_ranks_is_added(copy: Path):
    """The report has it if several ranks were diagnosed together, and not for a single rank."""
    said = python(copy, "-c", (
        "from helpers.make_diagnosis import host_bound; from gpuprof.ranks.summary import RankSummary;"
        " from gpuprof.report.page.html import CHARTS, _chart; ms = 10**6;"
        " rank = lambda n, pace: RankSummary(n, '', 117 * ms, pace * ms, 0, 0, 0.0, 'host', None, None, None);"
        " several, one = host_bound(ranks=(rank(0, 75), rank(1, 117))), host_bound();"
        " print('paces' in dict(CHARTS)['plan'], _chart('paces', several)['title'], _chart('paces', one), sep=chr(10))"
    ))  # fmt: skip
    assert said.splitlines() == ["True", "Paces of all ranks", "None"]
