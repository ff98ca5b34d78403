"""What a trial concludes from its processes' measurements: gains, sameness, plans, and its texts."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.present import present
from jsonschema import Draft202012Validator

from gpuprof.diagnosis.fixes.trial_results import failures, with_measured
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.errors import GpuprofError
from gpuprof.record.entry.trainer import callback_class
from gpuprof.record.patches import NAMES, PROBE, patch_named
from gpuprof.record.patches.context import Hub
from gpuprof.record.patches.pageable_copies import goes_to_gpu
from gpuprof.record.trials.trial_meter import TrialMeter
from gpuprof.report.words.fixes import measured
from gpuprof.trial import folder_state, judge, plan, same_training
from gpuprof.trial.fixes import FixToTry, combination, parse
from gpuprof.trial.trial import (
    MeasuredGain,
    Next,
    Row,
    Sameness,
    TimedProcess,
    Trial,
    TrialBaseline,
    TrialStop,
    TriedFix,
)
from gpuprof.trial.trial_json import dumps, keep, schema
from gpuprof.value_range import Range

MS = 1_000_000
R = Range(1.0, 2.0, 3.0)
PATCHES = ROOT / "gpuprof" / "record" / "patches"


def process(name: str, ms: float, width: float = 0.0) -> TimedProcess:
    return TimedProcess(name, round(ms * MS), round(width * MS), 20, None, MS, MS, None)


# -- gains


def decision(steps: Sequence[tuple[str, float]], width: float = 0.0) -> str | None:
    return present(judge.judged("a", [process(*one, width) for one in steps])).decision


def test_a_gain_is_measured_against_the_neighbours_not_against_the_first():
    # The machine gets slower by 2 ms per process; the fix still halves the step.
    steps = [("", 10), ("a", 6), ("", 14), ("a", 8), ("", 18)]
    found = judge.speedup("a", [process(*one) for one in steps])
    assert found and found.low and found.high
    assert found.expected == pytest.approx(math.sqrt((math.sqrt(140) / 6) * (math.sqrt(14 * 18) / 8)))
    assert 1 < found.low < found.expected < found.high
    assert decision(steps) is None, "the unchanged processes differ by more than the fix gains"
    assert decision([*steps, ("a", 8), ("", 18), ("a", 8), ("", 18)]) == "confirmed"


def test_a_gain_that_differs_from_round_to_round_is_not_confirmed():
    assert decision([("", 10), ("a", 9), ("", 10), ("a", 11), ("", 10)]) is None


def test_the_scatter_of_the_steps_themselves_widens_the_interval():
    steps = [("", 10.0), ("a", 8.0), ("", 10.0), ("a", 8.0), ("", 10.0)]
    assert decision(steps, 0.01) == "confirmed"
    assert decision(steps, 4.0) is None


def test_one_measurement_confirms_nothing():
    found = present(judge.judged("a", [process("", 10), process("a", 5), process("", 10)]))
    assert found.gain == MeasuredGain(None, pytest.approx(2.0), None)  # type: ignore[comparison-overlap]
    assert (found.decision, found.why) == (None, "measured once")


def test_a_slower_fix_is_said_to_be_slower():
    assert decision([("", 10), ("a", 20), ("", 10), ("a", 20), ("", 10)]) == "slower"


def test_a_fix_that_gains_too_little_to_be_advised_has_no_gain():
    assert decision([("", 10), ("a", 10.01)] * 3 + [("", 10)]) == "no_difference"


@pytest.mark.parametrize(
    ("predicted", "measured", "verdict"),
    [((1.2, 1.4), (1.3, 1.6), "right"), ((1.2, 1.4), (1.5, 1.6), "gained_more"),
     ((1.2, 1.4), (1.0, 1.1), "gained_less"), (None, (1.0, 1.1), None), ((1.2, 1.4), None, None)],
)  # fmt: skip
def test_a_prediction_is_right_where_its_interval_and_the_measured_one_overlap(predicted, measured, verdict):
    expected = predicted and Range(predicted[0], sum(predicted) / 2, predicted[1])
    found = measured and MeasuredGain(measured[0], sum(measured) / 2, measured[1])
    assert judge.prediction_of(expected, found, True) == verdict
    assert judge.prediction_of(expected, found, False) is None


# -- sameness


def computed(losses=(1.0, 0.9, 0.8), batches=("a", "b"), rows=None, kinds=("x float32 2",), norms=(2.0, 2.0, 2.0)):
    rows = rows or [[f"{one}0", f"{one}1"] for one in batches]
    found = [{"whole": one, "kinds": list(kinds), "rows": row} for one, row in zip(batches, rows, strict=True)]
    return ({"batches": found, "losses": list(losses), "gradient_norms": list(norms)},)


def test_the_same_bits_are_bitwise_the_same():
    found = same_training.compare(computed(), computed(), computed())
    assert (found.verdict, found.loss_difference, found.scatter) == ("bitwise", 0.0, 0.0)


def test_rounding_is_within_scatter_and_a_format_is_not():
    assert same_training.compare(computed((1.0, 0.9, 0.800001)), computed(), computed()).verdict == "within_scatter"
    found = same_training.compare(computed((1.001, 0.901, 0.81)), computed(), computed())
    assert found.verdict == "different" and "same samples" in found.text


def test_what_two_runs_without_a_fix_differ_by_is_no_difference():
    found = same_training.compare(computed((1.002, 0.9, 0.8)), computed(), computed((1.001, 0.9, 0.8)))
    assert found.verdict == "within_scatter"


def test_equal_losses_without_batches_prove_nothing():
    nothing = ({"batches": [], "losses": [1.0], "gradient_norms": [1.0]},)
    assert same_training.compare(nothing, nothing, nothing).verdict is None


def test_samples_in_larger_batches_are_the_same_samples():
    larger = computed(batches=("c",), rows=[["a0", "a1", "b0", "b1"]])
    assert same_training.compare(larger, computed(), computed()).verdict == "within_scatter"


def test_samples_that_workers_repeat_are_another_training():
    repeated = computed(batches=("a", "c"), rows=[["a0", "a1"], ["a0", "a1"]])
    found = same_training.compare(repeated, computed(), None)
    assert found.verdict == "different" and "repeated" in found.text


def test_other_samples_of_the_same_kind_are_other_random_numbers():
    other = computed(losses=(0.95, 0.85, 0.9), batches=("c", "d"))
    assert same_training.compare(other, computed(), computed()).verdict == "other_random_numbers"
    far = computed(losses=(9.0, 9.1, 9.2), batches=("c", "d"))
    assert same_training.compare(far, computed(), computed()).verdict == "different"


# -- plans and fixes


def test_what_saves_most_per_minute_comes_first():
    large = FixToTry(TriedFix("large"), saves=0.5)
    small = FixToTry(TriedFix("small"), saves=0.1)
    slow = FixToTry(TriedFix("slow"), saves=0.5, once_s=1000.0)
    asked, worse = FixToTry(TriedFix("asked")), FixToTry(TriedFix("worse"), saves=-0.1)
    found = plan.in_order([worse, asked, slow, small, large], process_s=10.0)
    assert [one.fix.name for one in found] == ["large", "small", "slow", "asked", "worse"]


def test_small_gains_are_expected_to_take_more_rounds():
    assert [plan.rounds_to_decide(gain) for gain in (2.0, 1.1, 1.05, 1.02, 1.001, 0.9, None)] == [2, 2, 3, 5, 8, 8, 3]


def test_as_many_fixes_as_can_be_decided_fit_into_the_time_left():
    assert plan.fitting([10.0] * 5, 10.0, 39.0) == 0
    assert plan.fitting([10.0] * 5, 10.0, 40.0) == 1, "two rounds, each with a process as it is"
    assert plan.fitting([10.0] * 5, 10.0, 99.0) == 1, "two have to be tried together, too"
    assert plan.fitting([10.0] * 5, 10.0, 100.0) == 2
    assert plan.fitting([10.0] * 5, 10.0, 1e9) == 5


def test_fixes_are_read_with_their_values():
    assert parse("input_workers=8, tf32,optimizer") == [
        TriedFix("input_workers", "8"), TriedFix("tf32"), TriedFix("optimizer", "fused")
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "nothing", "tf32=1", "input_workers=many", "input_workers=0", "tf32,tf32"])
def test_fixes_that_do_not_exist_are_refused_in_one_line(text: str):
    with pytest.raises(GpuprofError) as error:
        parse(text)
    assert str(error.value).startswith("--fix") and "\n" not in str(error.value)


def test_of_alternatives_the_better_one_is_combined():
    assert combination(["cuda_graphs", "optimizer", "compile"]) == ["cuda_graphs", "optimizer"]


# -- patches


@pytest.mark.parametrize("name", NAMES)
def test_each_patch_says_what_it_does_and_takes_its_default(name: str):
    patch = patch_named(name).PATCH
    assert patch.name == name
    assert patch.does and patch.line and patch.cannot
    assert patch.values or not patch.default
    # A patch that takes a value and has no default must be given one.
    assert patch.check(patch.default) == bool(patch.default or not patch.values)
    assert ("{value}" in patch.line) <= bool(patch.values)


def test_the_timing_of_a_trial_has_all_that_a_trainers_callback_uses_of_a_session(tmp_path: Path):
    source = (ROOT / "gpuprof" / "record" / "entry" / "trainer.py").read_text()
    used = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in used if getattr(node.value, "id", "") == "session"}
    assert {"step_ended", "bare"} <= names
    assert not {name for name in names if not hasattr(TrialMeter(tmp_path, {}, Hub(), {}), name)}


def test_a_trainers_callback_counts_the_steps_of_a_trial(tmp_path: Path):
    meter = TrialMeter(tmp_path, {}, Hub(), {})
    meter.on_training("trainer", 5)
    callback = callback_class(object, lambda _: meter)()
    for _ in range(3):
        callback.on_step_end(None, None, None)
    assert meter._clock.counted_steps == 3


def test_every_patch_file_is_listed():
    files = {path.stem for path in PATCHES.glob("*.py")} - {"__init__", "context", "graph_replays", "implementation"}
    assert files == {*NAMES, PROBE}


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_patches_use_the_standard_library_and_the_programs_torch_only():
    for path in PATCHES.glob("*.py"):
        module = ast.parse(path.read_text())
        for_types = {id(node) for one in module.body if is_for_type_checkers(one) for node in ast.walk(one)}
        for node in ast.walk(module):
            if id(node) in for_types:
                continue
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            outside = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"torch"}
            assert not outside, f"{path.name} imports {outside}"


def test_each_patch_imports_and_applies_where_gpuprof_is_not_installed():
    """With what the target's Python has: only the package's folder, under a private name, and no site-packages."""
    code = f"""
import sys
package = type(sys)("_gpuprof")
package.__path__ = [{str(ROOT / "gpuprof")!r}]
sys.modules["_gpuprof"] = package
import _gpuprof.record.trials.trial_setup as arm
from _gpuprof.record.patches import NAMES, patch_named
from _gpuprof.record.patches.context import Context, Hub
for name in NAMES:
    hub = Hub()
    proof = patch_named(name).apply(Context(hub, name, patch_named(name).PATCH.default))()
    assert not proof.applied and proof.text, name
assert not any(name.split(".")[0] in ("gpuprof", "torch", "numpy", "click") for name in sys.modules)
print("fine")
"""
    done = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        (("cuda",), {}, True),
        (("cuda:1",), {}, True),
        ((0,), {}, True),
        ((), {"device": "cuda"}, True),
        (("cpu",), {}, False),
        (("cuda", None, True), {}, False),
        (("cuda",), {"non_blocking": False}, False),
        ((), {}, False),
        ((object(),), {}, False),
    ],
)
def test_only_copies_to_a_gpu_that_leave_it_open_become_asynchronous(args: tuple, kwargs: dict, expected: bool):
    assert goes_to_gpu(args, kwargs) is expected


# -- the tree, JSON and text


def test_changes_of_a_tree_are_named(tmp_path):
    for name in ("kept", "changed", "deleted"):
        (tmp_path / name).write_text(name)
    before = folder_state.state_of(tmp_path)
    (tmp_path / "changed").write_text("something longer")
    (tmp_path / "deleted").unlink()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "made").write_text("")
    found = folder_state.changes(before, folder_state.state_of(tmp_path))
    assert [line.replace(f"{tmp_path}/", "") for line in found] == [
        "changed changed", "deleted deleted", "made folder", "made folder/made"
    ]  # fmt: skip


def trial() -> Trial:
    good = Row(
        (TriedFix("input_workers", "8"),), "input_workers", "confirmed", "8 workers alive, before: 0",
        Range(5e6, 6e6, 7e6), Range(2.0, 2.5, 3.0), 6 * MS, MeasuredGain(2.1, 2.4, 2.7), 1 << 31, 5 * 10**9,
        Sameness("bitwise", "the same batches, losses and gradients to the last bit", 0.0, 0.0), 2,
        "DataLoader(..., num_workers=8)", None, "fixes", 0.97, "right",
    )  # fmt: skip
    bad = replace(
        good, fixes=(TriedFix("compile", "default"),), finding=None, status="failed", reason="out of memory: \x1b[31m",
        step_ns=None, speedup=None, sameness=None, predicted_step_ns=None, predicted_speedup=None, prediction=None,
    )  # fmt: skip
    return Trial(
        ("python", "train.py"), "gpuprof-runs/x", "NVIDIA H200", "2.11", 1, 2, 11, 20,
        TrialBaseline(15 * MS, 1 << 31, "gpu", 5 * 10**9, 0.01), (good, bad), good.fixes, ("a note",),
        (process("", 15), process("input_workers=8", 6)), TrialStop("budget", "the budget of 300 s is used"),
        (Next((TriedFix("tf32"), TriedFix("optimizer", "foreach")), "together", 1.2, 0.7, 70.0),
         Next((TriedFix("syncs"),), "not tried", None, None, 100.0)), 1.3, 300 * 10**9, 299 * 10**9,
    )  # fmt: skip


def test_the_json_of_a_trial_is_valid():
    validator = Draft202012Validator(schema())
    found = json.loads(dumps(trial()), parse_constant=pytest.fail)
    assert not [error.message for error in validator.iter_errors(found)]
    assert found["rows"][0]["predicted_step_ns"] == {"low": 5 * MS, "expected": 6 * MS, "high": 7 * MS}
    del found["rows"][0]["status"]
    assert list(validator.iter_errors(found)), "the schema must be able to refuse"


@pytest.mark.parametrize(("probability", "said"), [(0.7, "70 % likely"), (1.0, "more than 99 % likely")])
def test_what_was_not_decided_is_never_certain(probability: float, said: str):
    from rich.console import Console

    from gpuprof.report.terminal.trial_terminal import render

    console = Console(width=140, color_system=None, force_terminal=False)
    following = replace(trial().next[0], probability=probability)
    with console.capture() as captured:
        console.print(render(replace(trial(), next=(following,)), 140))
    assert said in captured.get()


def test_a_diagnosis_of_the_run_shows_what_was_measured(tmp_path):
    finding = Finding("input_workers", "8 input workers", "high", (), "DataLoader(...)", R, R)
    other = replace(finding, id="tf32")
    assert with_measured((finding,), str(tmp_path)) == (finding,)
    keep(trial(), tmp_path)
    found = with_measured((finding, other), str(tmp_path))
    assert found[1].measured is None
    assert found[0].measured and found[0].measured.status == "confirmed"
    assert found[0].measured.sameness == "bitwise"
    assert measured(found[0]) == "measured: 6.0 ms, 2.10–2.70×, confirmed"


def test_a_failure_is_remembered_until_the_fix_is_tried_again(tmp_path):
    keep(trial(), tmp_path)
    assert failures(str(tmp_path)) == {"compile": "out of memory: \x1b[31m"}
    only_good = replace(trial(), rows=trial().rows[:1])
    keep(only_good, tmp_path)
    assert failures(str(tmp_path)) == {"compile": "out of memory: \x1b[31m"}
    again = replace(trial().rows[1], status="no_difference", reason="compiled")
    keep(replace(trial(), rows=(again,)), tmp_path)
    assert failures(str(tmp_path)) == {} == failures(None)
    document = json.loads((tmp_path / "trial.json").read_text())
    assert not list(Draft202012Validator(schema()).iter_errors(document))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"rows": 1}', '{"rows": [1, {"finding": "tf32", "fixes": [1]}]}',
             '{"rows": [{"finding": "tf32", "fixes": [1], "status": "confirmed", "speedup": 3, "sameness": []}]}']
)  # fmt: skip
def test_a_damaged_trial_is_passed_over(tmp_path, text: str):
    (tmp_path / "trial.json").write_text(text)
    finding = Finding("tf32", "TF32", "high", (), "", R, R)
    (found,) = with_measured((finding,), str(tmp_path))
    assert failures(str(tmp_path)) == {}
    keep(trial(), tmp_path)
    (tmp_path / "trial.json").write_text(text)
    assert found.measured is None or measured(found) == "measured: confirmed"


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_text_of_a_trial_fits_and_shows_names_as_text(width: int):
    from rich.console import Console

    from gpuprof.report.terminal.trial_terminal import render

    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(render(trial(), width))
    text = captured.get()
    assert all(len(line) <= width for line in text.splitlines())
    said = " ".join(text.split())
    for word in ("15 ms → 6.0 ms a step", "2.00–3.00×", "2.10–2.70×", "confirmed", "failed", "out of memory",
                 "1.3× is not reached", "predictions: 1 of 1 right: input_workers=8 as predicted (2.00–3.00×, measured",
                 "next: gpuprof try --fix tf32,optimizer=foreach --budget 2m together: 1.20× expected, 70 % likely",
                 "then syncs: all in about 3 min", "the budget of 300 s is used"):  # fmt: skip
        assert word in said, word
    first, second, *_ = text.splitlines()
    assert first.startswith("CONFIRMED   input_workers=8")
    assert "paste   DataLoader(..., num_workers=8)" in (second, *text.splitlines()[1:4])
    assert "\x1b" not in text and "\\x1b" in text
