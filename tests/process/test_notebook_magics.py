"""Executed notebooks: `%%gpuprof` records what a cell trains, and leaves the kernel as it was."""

from __future__ import annotations

import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers.once import once
from helpers.paths import ROOT
from helpers.trainings import MODEL

pytestmark = [
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("nbclient", "ipykernel", "torch")), reason="needs a notebook and torch"
    ),
]

SET_UP = f"""
{textwrap.dedent(MODEL)}
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

def train(steps):
    for batch in torch.utils.data.DataLoader(list(batches(steps)), batch_size=None):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

def hooks():
    module = sys.modules["torch.optim.optimizer"]
    own = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())
    return (
        len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks), own,
        torch.Tensor.backward.__qualname__, torch.autograd.backward.__module__, len(sys.meta_path),
        torch.utils.data.DataLoader.__iter__.__qualname__,
    )

before = hooks()
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The cells of an executed notebook."""
    import nbformat

    folder = once(tmp_path_factory, "notebook", _execute)
    return nbformat.read(folder / "executed.ipynb", as_version=4).cells


def _execute(folder: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    sources = [
        "%load_ext gpuprof",
        SET_UP,
        "%%gpuprof --no-sampling\ntrain(60)\n'the value of the cell'",
        "found = _; print(type(found).__name__, found.steps.count, hooks() == before)",
        "%%gpuprof\ntrain(12)",
        "%%gpuprof\ntrain(9)\nraise ValueError('mine')",
        "%%gpuprof\ntrain(13)\nraise KeyboardInterrupt",
        "%%gpuprof\nx = 1",
        "%%gpuprof --bad\nx = 2",
        "%%gpuprof --settle 3\ntrain(120)",
        "print(hooks() == before, x)",
        "%gpuprof diagnose gpuprof-runs/nothing",
        "import gpuprof, pathlib\nruns = sorted(pathlib.Path('gpuprof-runs').glob('2*'))\n"
        "found = gpuprof.diagnose(runs[0])\nprint(found)\nfound",
        "%gpuprof something",
        "%%gpuprof\nx = = 3",
        "%%gpuprof\nopen('no such file')",
    ]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    client = NotebookClient(
        made, timeout=120, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    nbformat.write(made, folder / "executed.ipynb")


def printed(cell: Any, name: str) -> str:
    return "".join(one.text for one in cell.outputs if one.output_type == "stream" and one.name == name)


def shown(cell: Any) -> list[dict[str, str]]:
    return [dict(one.data) for one in cell.outputs if one.output_type in ("display_data", "execute_result")]


def test_a_cell_is_recorded_and_runs_as_it_would(notebook: list[Any]):
    value, diagnosis = shown(notebook[2])
    assert value["text/plain"] == "'the value of the cell'"
    assert '<div class="gpuprof">' in diagnosis["text/html"]
    assert "Python between them" in " ".join(diagnosis["text/plain"].split()), "a verdict of timed steps"
    assert printed(notebook[3], "stdout").split() == ["Diagnosis", "3", "True"]


@pytest.mark.parametrize(
    ("cell", "error", "said"),
    [
        (4, None, "the cell took 12 steps; 35 are needed"),
        (5, "ValueError", "the cell ended early (ValueError) after 9 steps; 35 are needed"),
        (6, "KeyboardInterrupt", "the cell ended early (KeyboardInterrupt) after 13 steps; 35 are needed"),
        (7, None, "the cell took no optimizer step: nothing is recorded"),
    ],
)
def test_a_cell_that_ends_early_says_what_it_has(notebook: list[Any], cell: int, error: str | None, said: str):
    assert said in printed(notebook[cell], "stderr")
    errors = [one for one in notebook[cell].outputs if one.output_type == "error"]
    # The second ends the cell, and with it what runs all cells; its traceback is not printed again.
    assert [(one.ename, bool(one.traceback)) for one in errors] == ([(error, True), (error, False)] if error else [])
    assert len(shown(notebook[cell])) == (0 if "nothing" in said else 1)
    if cell == 4:
        text = " ".join(shown(notebook[cell])[0]["text/plain"].split())
        assert "record sooner: %%gpuprof --settle 2 --baseline 3" in text and "gpuprof trace" not in text


def test_a_later_cell_is_recorded_too(notebook: list[Any]):
    assert len(shown(notebook[9])) == 1
    assert "3 steps recorded" in printed(notebook[9], "stderr")
    assert printed(notebook[10], "stdout").split() == ["True", "1"], "no hook is left; a wrong option ran nothing"


def test_what_is_not_understood_is_one_line(notebook: list[Any]):
    assert printed(notebook[8], "stderr").count("\n") == 1
    assert "UsageError" in printed(notebook[11], "stderr") and "nothing" in printed(notebook[11], "stderr")
    assert printed(notebook[13], "stdout").startswith("%%gpuprof")


def test_a_cell_that_cannot_run_or_opens_nothing_fails_as_it_would(notebook: list[Any]):
    assert [one.ename for one in notebook[14].outputs if one.output_type == "error"] == ["SyntaxError"]
    assert printed(notebook[14], "stderr") == "UsageError: the cell did not run (SyntaxError)\n"
    assert [one.ename for one in notebook[15].outputs if one.output_type == "error"] == ["FileNotFoundError"] * 2


def test_print_is_the_answer_of_the_terminal(notebook: list[Any]):
    text = printed(notebook[12], "stdout")
    assert " %   " in text.splitlines()[0] and "-BOUND" in text.splitlines()[1], "a verdict of its timed steps"
    assert "\\x" not in text
    assert [sorted(one) for one in shown(notebook[12])] == [["text/html", "text/plain"]], "and it is shown once"


def test_options_of_a_cell(tmp_path: Path):
    from gpuprof.cli.notebook import _OPTIONS
    from gpuprof.record.base.options import DEFAULTS

    assert set(_OPTIONS) <= set(DEFAULTS)


@pytest.mark.slow
def test_the_example_is_executed(tmp_path: Path):
    import nbformat
    from nbclient import NotebookClient

    made = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    for cell in made.cells:  # the same number of steps of a smaller model
        cell.source = (
            cell.source.replace("256", "32").replace("1024", "64").replace("2048", "800").replace(", 8)", ", 2)")
        )
    client = NotebookClient(made, timeout=120, kernel_name="python3", allow_errors=True)
    client.resources = {"metadata": {"path": str(tmp_path)}}
    client.execute()
    errors = [one.evalue for cell in made.cells for one in cell.get("outputs", ()) if one.output_type == "error"]
    assert [text for text in errors if "on the CPU" not in text] == []
    assert (tmp_path / "before" / "trace.rank0.json").exists() and (tmp_path / "after" / "trace.rank0.json").exists()
