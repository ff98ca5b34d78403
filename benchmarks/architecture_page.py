"""Writes docs/architecture.md: the rooms of the package, what each may import, and the way of one recording.

    python -m benchmarks.architecture_page

The rooms and their order are those that tests/unit/test_house.py checks; they are read there, not repeated. What a room
or a function is for is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE, HOUSE, PAGE = ROOT / "gpuprof", ROOT / "tests" / "unit" / "test_house.py", ROOT / "docs" / "architecture.md"

WAY = (
    "gpuprof.cli.main",
    "gpuprof.cli.report.command",
    "gpuprof.tracefile.recording.resolve",
    "gpuprof.diagnosis.diagnose_recording.diagnose_recording",
    "gpuprof.tracefile.read.read_trace",
    "gpuprof.tracefile.kineto.reader.read_kineto",
    "gpuprof.tracefile.kineto.build.build",
    "gpuprof.diagnosis.diagnose.diagnose",
    "gpuprof.timeline.timeline.build_timeline",
    "gpuprof.timeline.nesting.nest",
    "gpuprof.timeline.links.link",
    "gpuprof.timeline.steps.find_steps",
    "gpuprof.timeline.categories.categories",
    "gpuprof.timeline.phases.host_phases",
    "gpuprof.timeline.devices.device_timelines",
    "gpuprof.diagnosis.idle.gaps.find_gaps",
    "gpuprof.timeline.quality.check",
    "gpuprof.replay.build.build.build",
    "gpuprof.diagnosis.recorded.replayed.replayed",
    "gpuprof.replay.simulate.simulate",
    "gpuprof.replay.unprofiled.profiler_fit.remove_profiler",
    "gpuprof.diagnosis.conclusion.by_replay",
    "gpuprof.costs.roofline.roofline",
    "gpuprof.diagnosis.mean_step.budget.budget_of_recorded",
    "gpuprof.replay.sensitivity.sensitivities",
    "gpuprof.diagnosis.verdict.verdict.judge",
    "gpuprof.diagnosis.fixes.predict.fixes",
    "gpuprof.diagnosis.reach.ledger.above_reach",
    "gpuprof.diagnosis.plain_diagnosis.plain_diagnosis",
    "gpuprof.report.page.file.write_report",
    "gpuprof.report.page.html.render",
    "gpuprof.runfile.whole_file",
)
"""Functions that `gpuprof report trace.json.gz` calls, in the order of their first calls; a test follows one."""


def house(name: str) -> Any:
    """The value of a literal in tests/unit/test_house.py."""
    for node in ast.parse(HOUSE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return ast.literal_eval("set()" if ast.unparse(node.value) == "set()" else node.value)
    raise LookupError(f"{HOUSE.name} has no {name}")


def source_of(module: str) -> Path:
    """The file of a module or package, from its dotted name."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def said(module: str, function: str | None = None) -> str:
    """The first sentence of the docstring of a module, or of its function. Raises LookupError without."""
    tree: Any = ast.parse(source_of(module).read_text(encoding="utf-8"))
    if function is not None:
        found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function)
        tree = next(found, None)
    text = tree and ast.get_docstring(tree)
    if not text:
        raise LookupError(f"{module}.{function or ''} has no docstring")
    sentence = " ".join(text.split("\n\n")[0].split()).partition(". ")[0].removesuffix(".")
    return sentence.replace("|", "\\|").replace("[", "\\[")


def rooms() -> Iterator[str]:
    """A line for each room, from the roof down."""
    floors, alone, plain = house("FLOORS"), house("ALONE"), house("STANDARD_LIBRARY_ONLY")
    for height, floor in enumerate(floors):
        for room in sorted(floor):
            path = source_of(f"gpuprof.{room}")
            link = path.parent if path.name == "__init__.py" else path
            if room in alone:
                may = ", ".join(f"`{one}`" for one in sorted(alone[room])) or "no other room"
            else:
                may = "all floors below" if height + 1 < len(floors) else "no other room"
            if room in plain:
                may += "; standard library only"
            named = f"[`{room}`](../{link.relative_to(ROOT)})"
            yield f"| {len(floors) - height} | {named} | {said(f'gpuprof.{room}')} | {may} |"


def way() -> Iterator[str]:
    """A line for each function on the way of a recording."""
    for number, name in enumerate(WAY, 1):
        module, _, function = name.rpartition(".")
        path = source_of(module).relative_to(ROOT)
        shown = f"{'.'.join(module.split('.')[1:])}.{function}"
        yield f"| {number} | [`{shown}`](../{path}) | {said(module, function)} |"


INTRODUCTION = """
gpuprof is one package of rooms. Each room stands on a floor, and code imports only from its own room and from the
floors below: what reads files knows nothing of verdicts, and what computes verdicts knows nothing of pages.
`tests/unit/test_house.py` checks this, and that no two modules or folders import each other. To add something, see
[extending](extending.md).
"""
ROOMS = """
From the top floor down; rooms on one floor import nothing from each other. `gpuprof/__init__.py` is the Python API; it
imports nothing until something is used.
"""
RECORD = """
`record` and what it imports run inside the process that is profiled. That is why they use only the standard library
and the torch that the program brings: gpuprof's own dependencies are never put on its path.
"""
FOLLOWED = """
What `gpuprof report trace.json.gz` calls, in the order of the first calls. A trace becomes columns (`Trace`), the
columns become steps, links and phases (`Timeline`), the timeline becomes a graph of work and waits (`Graph`), and
replays of that graph give the verdict and every prediction (`Diagnosis`). The page draws the diagnosis and computes
nothing.
"""
OTHERS = """
Other recordings join this way: Nsight Systems in `read_trace` (`gpuprof/tracefile/nsys`), run folders in `resolve`
(`gpuprof/tracefile/run_folder`), several ranks in `diagnose_recording` (`gpuprof/ranks`), training logs before it
(`gpuprof/tracefile/training_logs`), as do roles of a job (`gpuprof/diagnosis/roles`). `gpuprof diagnose` leaves it
after `plain_diagnosis`, for the terminal
(`gpuprof/report/terminal/terminal.py`) or JSON (`gpuprof/diagnosis/written/diagnosis_json.py`).
"""


def page() -> str:
    """The Markdown of docs/architecture.md."""
    parts = (
        "<!-- Written by python -m benchmarks.architecture_page: change that, or the docstrings. -->\n# Architecture",
        filled(INTRODUCTION),
        "## Rooms",
        filled(ROOMS),
        "\n".join(("| floor | room | what it holds | may import |", "|---:|---|---|---|", *rooms())),
        filled(RECORD),
        "## One recording, from file to page",
        filled(FOLLOWED),
        "\n".join(("| | function | what it does |", "|---:|---|---|", *way())),
        filled(OTHERS),
    )
    return "\n\n".join(parts) + "\n"


def filled(text: str) -> str:
    """A paragraph in lines of 120 characters."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
