"""Findings from other packages: the example is found, explained and applied; a package that cannot be loaded is
named."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.command import in_process
from helpers.cpu_time import times_as_long
from helpers.installed import need
from helpers.paths import ROOT
from helpers.program import US, Program
from helpers.quick import few
from helpers.trials import tried
from jsonschema import Draft202012Validator

from gpuprof.diagnosis import plug_ins
from gpuprof.diagnosis.findings import BUILT_IN
from gpuprof.diagnosis.written.diagnosis_json import schema

EXAMPLE = ROOT / "examples" / "plug_in"
ENTRY = 'zeroed_gradients = "zeroed_gradients.finding:FINDING"'


def installed(folder: Path, **entries: str) -> Path:
    """A folder for Python's path with the example, as pip would install it, and packages with further entries."""
    assert ENTRY in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "zeroed_gradients").symlink_to(EXAMPLE / "zeroed_gradients")
    lines = {"example": ENTRY.replace('"', ""), **entries}
    for name, line in lines.items():
        info = folder / f"{name}-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n\n[gpuprof.findings]\n{line}\n")
    return folder


def gpuprof(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with another folder on Python's path."""
    environment = {key: value for key, value in os.environ.items() if key != "GPUPROF_DEBUG"}
    environment["PYTHONPATH"] = os.pathsep.join((str(path), str(ROOT)))
    return subprocess.run(
        [sys.executable, "-m", "gpuprof", *words], env=environment, capture_output=True, text=True, check=False
    )


def zeroing(path: Path, fills: bool = True) -> Path:
    """A trace whose GPU fills gradients for half of each step."""
    program = Program()

    def body() -> None:
        for _ in range(20):
            program.mm(4096, 4096, 4096, gpu=100 * US)
        start = program.now
        for _ in range(20 if fills else 0):
            program.op("aten::zero_", kernel="vectorized_elementwise_kernel<FillFunctor>", gpu=100 * US)
        program.trace.annotation("Optimizer.zero_grad#AdamW.zero_grad", start - 1 * US, program.now + 1 * US)
        program.python(10 * US)

    for _ in range(4):
        program.step(body)
    return program.trace.write(path)


@contextlib.contextmanager
def loaded_from(path: Path) -> Iterator[None]:
    """While the block runs, this process has the plug-ins of a folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(path))
        plug_ins.plug_ins.cache_clear()
        try:
            yield
        finally:
            plug_ins.plug_ins.cache_clear()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("site"))


def test_the_example_is_found_explained_and_recognised(path: Path, tmp_path: Path):
    trace, without = zeroing(tmp_path / "a.json"), zeroing(tmp_path / "b.json", fills=False)
    made = gpuprof(path, "diagnose", str(trace), "--json")
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    Draft202012Validator(schema()).validate(found)
    first = next(one for one in found["findings"] if one["id"] == "zeroed_gradients")
    assert first["speedup"]["expected"] == pytest.approx(2, rel=0.1)
    assert first["patch"] == {"name": "zeroed_gradients", "value": ""}
    assert first["settings"][0]["value"] == {"set_to_none": True}
    assert "zeroed_gradients" not in in_process("diagnose", trace, "--json").stdout
    with loaded_from(path):
        assert "optimizer.zero_grad(set_to_none=True)" in in_process("diagnose", trace, "-v").stdout
        page = in_process("explain", "zero_grad")
        assert "Gradients are filled with zeros" in page.stdout and not page.stderr
        compared = json.loads(in_process("compare", trace, without, "--json").stdout)
    assert "zeroed_gradients" in {one["id"] for one in compared["mechanisms"]}


@pytest.mark.slow
def test_its_patch_is_listed(path: Path, tmp_path: Path):
    need("torch")
    script = tmp_path / "train.py"
    script.write_text("")
    listed = gpuprof(path, "try", "--list", str(script))
    assert listed.returncode == 0, listed.stderr
    assert "Optimizer.zero_grad drops the gradients" in listed.stdout


ZEROES = """
loader = torch.utils.data.DataLoader(Data(), batch_size=8)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in loader:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
"""


@pytest.mark.parametrize(("code", "status"), [(ZEROES, True), (ZEROES.replace("set_to_none=False", ""), False)])
def test_its_patch_is_copied_into_the_run_and_applied(path: Path, tmp_path: Path, code: str, status: bool):
    need("torch")
    with loaded_from(path):
        outcome = tried(tmp_path, code, "zeroed_gradients")
    (patch,) = outcome.ranks[0]["patches"]
    assert patch["applied"] is status, patch
    assert ("dropped the gradients" in patch["text"]) == status


BROKEN = {
    "raises": ("broken_one = broken:FINDING", "raise RuntimeError('no such\\nthing')", "RuntimeError: no such thing"),
    "absent": ("broken_one = not_there:FINDING", "", "No module named 'not_there'"),
    "other": ("broken_one = broken:FINDING", "FINDING = 3", "broken:FINDING is a int, not a Declaration"),
    "twice": (
        "broken_one = broken:FINDING",
        "from gpuprof.diagnosis.findings.tf32 import FINDING",
        "there is a finding tf32 already",
    ),
}


@pytest.mark.parametrize(
    ("entry", "code", "says"), few([pytest.param(*each, id=name) for name, each in BROKEN.items()], ["raises"])
)
def test_one_that_cannot_be_loaded_is_named_in_one_line_and_left_out(tmp_path: Path, entry: str, code: str, says: str):
    site = tmp_path / "site"
    site.mkdir()
    installed(site, broken=entry)
    (site / "broken.py").write_text(code)
    explained = gpuprof(site, "explain", "zeroed_gradients")
    assert explained.returncode == 0
    (line,) = explained.stderr.splitlines()
    assert "The plug-in broken_one" in line and says in line
    found = json.loads(gpuprof(site, "diagnose", str(zeroing(tmp_path / "trace.json")), "--json").stdout)
    assert [one["message"] for one in found["quality"]["issues"] if one["id"] == "plug_in_failed"] == [
        line.removeprefix("gpuprof: ")
    ]
    assert "zeroed_gradients" in {one["id"] for one in found["findings"]}


@pytest.mark.slow
def test_a_finding_that_raises_takes_no_other_with_it(tmp_path: Path):
    site = tmp_path / "site"
    site.mkdir()
    installed(site, raising="raising = raising:FINDING")
    code = """
        from gpuprof.diagnosis.detect.declared.declaration import Declaration
        from gpuprof.diagnosis.detect.declared.proposal import Page

        def find(case):
            raise ZeroDivisionError

        FINDING = Declaration(Page("raising", "Raises", "", "", "", ""), find=find)
        """
    (site / "raising.py").write_text(textwrap.dedent(code))
    found = json.loads(gpuprof(site, "diagnose", str(zeroing(tmp_path / "trace.json")), "--json").stdout)
    (said,) = [one["message"] for one in found["quality"]["issues"] if one["id"] == "finding_failed"]
    assert "raising" in said and "ZeroDivisionError" in said
    assert "zeroed_gradients" in {one["id"] for one in found["findings"]}


def test_looking_for_plug_ins_costs_hardly_more_than_reading_their_files(tmp_path: Path):
    for i in range(200):
        info = tmp_path / f"package_{i}-0.1.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text("[console_scripts]\na = b:c\n" if i % 2 else f"[x]\na{i} = b:c\n")
    installed(tmp_path)
    path = [str(tmp_path), str(tmp_path), str(tmp_path / "absent"), str(ROOT / "README.md")]
    assert list(plug_ins.entries(path)) == [("zeroed_gradients", "zeroed_gradients.finding:FINDING")]

    def read() -> list[str]:
        return [one.read_text() for one in tmp_path.glob("*/entry_points.txt")]

    assert times_as_long(lambda: list(plug_ins.entries(path)), read, tries=5) < 4


def test_what_gpuprof_has_itself_needs_no_plug_in():
    assert plug_ins.declarations()[: len(BUILT_IN)] == BUILT_IN
    assert not plug_ins.plug_ins().failures
