"""The commands that a diagnosis prints to try a fix, pasted unchanged, for every fix that can appear in one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
import pytest
from helpers.command import in_process
from helpers.trials import make_run, write_training
from helpers.warm_torch import warm_python

from gpuprof.cli import try_
from gpuprof.diagnosis.result.fix import PatchValue
from gpuprof.errors import GpuprofError
from gpuprof.record.patches import NAMES, patch_named
from gpuprof.trial import run_trial as trial
from gpuprof.trial.fixes import fix_for

VALUES = {
    "input_workers": ("1", "2", "16", "64", "128"), "eager_attention": ("sdpa", "flex_attention", "flash_attention_2"),
    "pad_to_multiple": ("64",), "larger_batch": ("2", "3", "64"), "compile": ("default", "reduce-overhead", "blocks"),
    "optimizer": ("fused", "foreach"),
    "trainer_arguments": ("max_completion_length=60", 'generation_kwargs={"cache_implementation":"static"}'),
}  # fmt: skip
"""Values that findings give patches, besides none, which means the patch's default."""
PASTED = [
    PatchValue(name, value)
    for name in NAMES
    for value in ("", *VALUES.get(name, ()))
    if value or patch_named(name).PATCH.check(patch_named(name).PATCH.default)
]


class Chosen(GpuprofError):
    """Stands in for the trial: which fixes it would try, on which command."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The latest run in the folder."""
    write_training(tmp_path, "train(net(), torch.utils.data.DataLoader(Data(), batch_size=8))")
    return make_run(tmp_path)


@pytest.mark.parametrize("patch", PASTED, ids=lambda patch: patch.command(None).split()[-1])
@pytest.mark.parametrize("whole", [False, True], ids=["short", "with its command"])
def test_what_settles_a_fix_can_be_pasted(patch: PatchValue, whole: bool, run: Path, monkeypatch: pytest.MonkeyPatch):
    def instead(target, subject, chosen, *_):
        raise Chosen(json.dumps([list(target.argv), subject.folder.name, [str(one.fix) for one in chosen]]))

    monkeypatch.setattr(try_, "_run", instead)
    words = shlex.split(patch.command([warm_python(), "train.py"] if whole else None))
    assert words[:2] == ["gpuprof", "try"]
    done = in_process(*words[1:], cwd=run.parents[1])
    assert done.returncode == 2 and done.stdout == ""
    target, folder, chosen = json.loads(done.stderr.splitlines()[-1].removeprefix("gpuprof: "))
    assert target == [warm_python(), "train.py"] and folder == run.name
    assert chosen == [f"{patch.name}={patch.value or patch_named(patch.name).PATCH.default}".rstrip("=")]


def test_what_has_to_be_made_by_hand_first_is_not_tried_from_outside():
    from gpuprof.diagnosis.result.finding_model import Finding
    from gpuprof.value_range import Range

    gain = Range(1.0, 1.2, 1.4)
    chain = Finding(
        "compile", "", "low", (), "", gain, gain, parts=("no syncs", "torch.compile"), patch=PatchValue("compile")
    )  # type: ignore[arg-type]
    assert fix_for(chain) is None


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            None,
            "nothing to run: gpuprof try --fix tf32 train.py (no run here has a command that could be run again",
        ),
        (["python", "train.py", "--token", "<redacted>"], "the latest run's command holds a secret, which is not kept"),
    ],
)
def test_without_a_command_to_take_it_says_what_to_type(tmp_path: Path, command: list[str] | None, line: str):
    if command:
        run = make_run(tmp_path)
        manifest = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps(manifest | {"command": command}))
    done = in_process("try", "--fix", "tf32", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith(f"gpuprof: {line}") and done.stderr.count("\n") == 1


def test_a_pasted_command_measures(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trial, "STRETCH_S", 0.1)
    words = shlex.split(PatchValue("input_workers", "2").command(None))
    done = in_process(*words[1:], "--rounds=1", "--json", cwd=run.parents[1], OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert f"gpuprof: the command of the latest run: {warm_python()} train.py" in done.stderr
    assert json.loads(done.stdout)["rows"][0]["rounds"] == 1


@pytest.mark.parametrize("text", ["1.3x", "1.3", "1.3×", "2x"])
def test_a_gain_to_stop_at_is_read(text: str):
    assert try_._gain(None, None, text) == float(text.rstrip("x×"))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "fast", "1x", "0.5", "-2", "1.3xx", "inf"])
def test_a_gain_that_is_none_is_refused(text: str):
    with pytest.raises(click.BadParameter, match=r"is not a gain above 1, such as 1\.3x"):
        try_._gain(None, None, text)  # type: ignore[arg-type]
