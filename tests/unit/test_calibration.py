"""The calibration table: every number says where it comes from, code and prose take it from there, and no recording
that only tests was used."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest
from helpers.paths import ROOT

from benchmarks import calibrate, fit_or_test
from gpuprof.calibration import (
    allocator,
    batch,
    collectives,
    compile,
    experts,
    kernels,
    latency,
    loader,
    memory,
    noise,
    padding,
    profiler,
    projection,
    recompute,
    roofs,
    saving,
    shapes,
    thresholds,
)
from gpuprof.calibration.table import numbers, subjects
from gpuprof.diagnosis.findings import PAGES

NUMBERS = numbers()

BOUNDED = {"allocator.PINNED_RATE": "a share that cannot exceed 1, and at worst 0.7"}
"""Assumed numbers whose interval is narrower than 1.5 times, with the reason."""


def test_a_number_lies_in_its_interval_and_says_what_it_is():
    for name, one in NUMBERS.items():
        assert one.low <= one.value <= one.high and one.low < one.high, name
        assert len(one.what) > 30 and one.what.endswith("."), name
        assert re.fullmatch(r"[a-z]+\.[A-Z][A-Z0-9_]*", name)


def test_a_number_has_what_its_source_asks_for():
    for name, one in NUMBERS.items():
        if one.source == "fitted":
            assert one.recordings and one.command, f"{name}: what is fitted names its recordings and the command"
        if one.source == "assumed" and name not in BOUNDED:
            assert one.low == 0 or one.high / one.low >= 1.5, f"{name} is a guess: it has a wide interval"


@pytest.mark.parametrize("command", sorted({one.command for one in NUMBERS.values() if one.command}))
def test_a_command_of_the_table_exists(command):
    python, option, module, *subject = command.split()
    assert (python, option) == ("python", "-m") and module.startswith("benchmarks.")
    assert importlib.util.find_spec(module) is not None
    if module == "benchmarks.calibrate":
        assert len(subject) == 1 and subject[0] in calibrate.SUBJECTS
        assert any(name.startswith(f"{subject[0]}.") for name, one in NUMBERS.items() if one.command == command)
    else:
        assert not subject


def test_a_recording_of_the_table_exists_and_may_be_fitted_to():
    for place in sorted({place for one in NUMBERS.values() for place in one.recordings}):
        if not place.startswith("shared/"):
            assert (ROOT / place).exists(), place
        assert place in fit_or_test.WHOLE or fit_or_test.role_of(place) == "fit", place


def test_every_recording_has_a_role():
    found = list(fit_or_test.recordings())
    assert len(found) > 60
    assert {fit_or_test.role_of(place) for place in found} <= {"fit", "test"}
    assert fit_or_test.role_of("shared/traces/wild/any/trace.json.gz") == "test"
    with pytest.raises(KeyError, match=r"tests/data/new\.json\.gz has no role"):
        fit_or_test.role_of("tests/data/new.json.gz")


def test_every_scenario_says_its_role_itself():
    for path in ROOT.glob("scenarios/*/scenario.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["role"] in ("fit", "test"), path


def test_a_fitting_command_cannot_read_a_test_recording(tmp_path, monkeypatch):
    """Whoever opens it, in whatever way; and only while numbers are fitted."""
    place = tmp_path / "shared" / "traces" / "wild" / "one.json.gz"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"")
    with fit_or_test.only_fit():
        (tmp_path / "other.json").write_text("{}")
        with pytest.raises(fit_or_test.TestRecordingRead, match=r"shared/traces/wild/one\.json\.gz"):
            place.read_bytes()
        with pytest.raises(fit_or_test.TestRecordingRead):
            open(bytes(place), "rb")  # noqa: PTH123, SIM115
    assert place.read_bytes() == b""


def test_a_scenario_that_only_tests_is_not_fitted_to(monkeypatch):
    monkeypatch.setitem(fit_or_test.PLACES, "scenarios/padding", "test")
    fit_or_test.roles.cache_clear()
    try:
        truth = ROOT / "scenarios" / "padding" / "truth.json"
        with fit_or_test.only_fit(), pytest.raises(fit_or_test.TestRecordingRead):
            truth.read_text()
        with fit_or_test.only_fit():
            (ROOT / "scenarios" / "padding" / "scenario.json").read_text()
    finally:
        monkeypatch.undo()
        fit_or_test.roles.cache_clear()


def test_fitting_is_guarded(monkeypatch, capsys):
    """The command itself refuses, whichever subject would read such a recording."""
    truth = ROOT / "scenarios" / "padding" / "truth.json"
    monkeypatch.setitem(fit_or_test.PLACES, "scenarios/padding", "test")
    monkeypatch.setitem(calibrate.SUBJECTS, "noise", lambda: iter([truth.read_text()]))
    monkeypatch.setattr("sys.argv", ["calibrate", "noise"])
    fit_or_test.roles.cache_clear()
    try:
        with pytest.raises(fit_or_test.TestRecordingRead):
            calibrate.main()
    finally:
        monkeypatch.undo()
        fit_or_test.roles.cache_clear()


def test_every_number_is_used():
    """Somewhere outside of the table, under the name that it has there."""
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "gpuprof").rglob("*.py")
        if path.parent.name != "calibration"
    )
    used = set(re.findall(r"calibrated\.(\w+)", code))
    assert [name for name in NUMBERS if name.partition(".")[2] not in used] == []


def test_the_page_is_that_of_the_table():
    """`python -m benchmarks.calibrate --page` writes it again."""
    assert calibrate.PAGE.read_text(encoding="utf-8") == calibrate.page()


def test_the_table_has_all_subjects():
    assert {name.partition(".")[0] for name in NUMBERS} == set(subjects())


def percent(share: float) -> str:
    return f"{100 * share:.0f}"


QUOTED = {
    "input_workers": (
        f"({loader.FETCH_NS.low / 1e6:g} to {loader.FETCH_NS.high / 1e6:g} ms)",
        f"each {loader.SLOWER_BESIDE_OTHERS.value:g} times slower",
        f"grows by a {({1.2: 'fifth'})[loader.CROWDED.value]}",
    ),
    "compile": (
        f"of {compile.FUSED.low:g} to {compile.FUSED.high:g} times the longest",
        f"Matrix multiplications take {percent(compile.REST.low - 1)} to {percent(compile.REST.high - 1)} % longer",
        f"up to {compile.ATTENTION.high:g} times as long where it had no mask",
        f"({compile.HOST.low:g} to {compile.HOST.high:g} times what was recorded)",
        f"each pass costs {compile.PASS_NS.low / 1e6:g} to {compile.PASS_NS.high / 1e6:g} ms",
    ),
    "cuda_graphs": (
        f"({({0.15: 'at worst a seventh of that work stays'})[compile.LAUNCHED.high]})",
        f"{compile.PASS_NS.low / 1e6:g} to {compile.PASS_NS.high / 1e6:g} ms for each pass",
        f"({compile.GRAPH_NS.low / 1e6:g} to {compile.GRAPH_NS.value / 1e6:g} ms more if the pass is compiled already)",
        f"after {compile.NEXT_NS.value / 1e3:.1f} µs",
    ),
    "larger_batch": (f"{batch.ROUND.low:g} to {batch.ROUND.high:g} times a recorded call",),
    "padding": (
        f"{percent(padding.FILLED.value)} % are assumed to fit ({percent(padding.FILLED.low)} to "
        f"{percent(padding.FILLED.high)} %)",
        f"{percent(padding.GROUPED_LEFT.value)} % of the padding is left ({percent(padding.GROUPED_LEFT.low)} to "
        f"{percent(padding.GROUPED_LEFT.high)} %)",
    ),
    "expert_loop": (
        f"about {experts.FORWARD_LAUNCHES.value} launches forward and {experts.BACKWARD_LAUNCHES.value} backward",
        f"{percent(experts.TENSOR_SHARE.value)} % of the tensor ceiling",
        f"{percent(experts.MEMORY_SHARE.value)} % of the memory ceiling",
    ),
    "eager_attention": (
        f"{percent(kernels.ATTENTION_FORWARD.value)} % of the tensor ceiling forward and "
        f"{percent(kernels.ATTENTION_BACKWARD.value)} % backward",
    ),
    "fused_elementwise": (f"at {percent(kernels.FUSED_MEMORY.value)} % of the memory ceiling",),
    "recompute": (
        f"about an {({0.125: 'eighth'})[recompute.SAVED_SHARE.value]} of that, "
        f"{percent(recompute.SAVED_SHARE.high)} % at most",
        f"{percent(recompute.HOOKED_SHARE.value)} % of the forward's and "
        f"{percent(recompute.UNPACKED_SHARE.value)} % of the backward's CPU time is left",
    ),
    "optimizer": (
        f"{kernels.OPTIMIZER_GPU.low:g} to {kernels.OPTIMIZER_GPU.high:g} of their time",
        f"becomes {kernels.OPTIMIZER_FOREACH_HOST.value:g} (from foreach) or "
        f"{kernels.OPTIMIZER_LOOP_HOST.value:g} (from a loop)",
    ),
    "tf32": (
        f"at {percent(kernels.TF32_TENSOR.value)} % of the TF32 ceiling",
        f"at {percent(kernels.TF32_MEMORY.value)} % of the memory ceiling",
        f"takes {kernels.MATMUL_ADDED_NS.value / 1e3:g} µs and",
    ),
    "adapter_casts": (
        f"Matrix multiplications keep {percent(kernels.ADAPTER_PRODUCT_LEFT.value)} % of their time, scalings "
        f"{percent(kernels.ADAPTER_SCALE_LEFT.value)} %, additions of two formats "
        f"{percent(kernels.ADAPTER_SUM_LEFT.value)} %",
        f"shorter than {latency.ELEMENTWISE_NS.value / 1e3:g} µs (matrix multiplications "
        f"{latency.THIN_MATMUL_NS.value / 1e3:g} µs)",
    ),
    "pageable_copies": (
        f"takes {allocator.COPY_CALL_NS.low / 1e3:g} to {allocator.COPY_CALL_NS.high / 1e3:g} µs",
        f"down to {allocator.PINNED_RATE.low:g} of it",
    ),
    "allocator": (
        f"{percent(1 - allocator.LEFT.value)} % of their own time is removed ({percent(1 - allocator.LEFT.high)} to "
        f"{percent(1 - allocator.LEFT.low)} %)",
    ),
    "recompiles": (
        f"over {thresholds.FIRST_CALL_NS.value / 1e6:g} ms; at worst "
        f"{({0.5: 'half'})[shapes.STAYS.value]} of that stays",
    ),
    "planning": (
        f"silent for over {thresholds.PLANNING_NS.value / 1e6:g} ms",
        f"at worst {shapes.OTHER_KERNEL.value:g} times as long",
        f"a {({0.05: 'twentieth'})[shapes.LEFT.value]} of what new lengths cost is left",
        f"up to {percent(shapes.PADDED.value - 1)} % longer (assumed)",
    ),
    "rare_steps": (f"a {({0.1: 'tenth'})[saving.RARER.value]} of what these add",),
    "exposed_communication": (
        f"{percent(collectives.HIDDEN.value)} % of the exposed transfers are hidden behind computation "
        f"({percent(collectives.HIDDEN.low)} to {percent(collectives.HIDDEN.high)} %)",
        f"{percent(collectives.GIVEN_BACK.value)} % of the hidden time comes back as longer kernels "
        f"({percent(collectives.GIVEN_BACK.low)} % to all of it)",
    ),
    "naive_pipeline": (f"widens the interval by {percent(batch.SHARDED.value - 1)} %",),
    "throttling": (f"by {percent(thresholds.THROTTLED_SLOWER.value - 1)} %",),
}  # fmt: skip
"""Finding → what its page says of numbers of the table."""


IN_DOCUMENTS = {
    "diagnosis.md": (
        f"launch to start, {latency.LAUNCH_NS.value / 1e3:g} µs on an H200; kernel to kernel, "
        f"{latency.GAP_NS.value / 1e3:g} µs",
        f"else {thresholds.QUEUE_ITEMS.value:,}",
        f"op and call costs {profiler.EVENT_NS.value / 1e3:g} µs (shapes recorded), a Python frame "
        f"{profiler.FRAME_NS.value / 1e3:g} µs",
        f"Inductor launch) {profiler.KERNEL_RANGE_NS.value / 1e3:g} µs more, a node of a CUDA graph "
        f"{profiler.GRAPH_NODE_NS.value / 1e3:g} µs",
        f"`aten::as_strided`, {profiler.STRIDED_NS.value / 1e3:g} µs there), or from a launch "
        f"({profiler.LAUNCH_NS.value / 1e3:g} µs)",
        f"{({0.3: 'Seven tenths'})[profiler.DIFFUSE.value]} of it are removed from the CPU work",
        f"most {profiler.REFILL_NS.value / 1e3:g} µs of each interval count",
        f"counts for {1 + profiler.LEFT_OUT.value:g}",
        f"the cost ÷ {profiler.SPREAD.value:g} to × {profiler.SPREAD.value:g} (÷ {profiler.LAUNCH_SPREAD.value:g} to "
        f"× {profiler.LAUNCH_SPREAD.value:g} by launches), and {percent(noise.GPU_PROCESS.value)} %",
        f"that {percent(noise.RUN.value)} % of the GPU's time explains",
    ),
    "nsight.md": (
        f"{profiler.EVENT_NS.value / 1e3:g} µs times the relative launch time of the CPU",
        f"interval of {profiler.NSYS_SPREAD.value:g} times either way",
        f"Up to {thresholds.DISPATCH_NS.value / 1e3:g} µs between two calls",
    ),
    "costs.md": (
        f"{roofs.TENSOR_EFFICIENCY.value:.2f} for matrix multiplications",
        f"{roofs.VECTOR_EFFICIENCY.value:g} for fp32 without tensor cores, {roofs.MEMORY_EFFICIENCY.value:g} for "
        f"memory, {roofs.LINK_EFFICIENCY.value:g} for PCIe",
        f"up to {latency.FLOOR_NS.value / 1e3:g} µs, the launch floor; up to {latency.CHAIN_NS.value / 1e3:g} µs",
    ),
    "projection.md": (
        f"below {projection.USUAL_REACH.value:g} of what the kernel's time allows",
        f"{roofs.MEMORY_EFFICIENCY.value:g} of the stated one",
        f"takes the CPU {batch.ROUND.value:g} ({batch.ROUND.low:g} to {batch.ROUND.high:g}) of what a",
        f"{memory.CONTEXT_BYTES.value / 1e9:g} GB are set aside for the driver, CUDA's context and libraries, "
        f"{percent(memory.FRAGMENTS.value - 1)} % for fragmentation",
        f"{projection.POWER_STREAMING.value:g} of it while memory is, {projection.POWER_STALLED.value:g} while "
        f"latency is, and {projection.POWER_WAITING.value:g} while it waits",
        f"the rates ({percent(roofs.MEASURED_HERE.value - 1)} % measured here, "
        f"{percent(roofs.MEASURED_SUCH.value - 1)} % measured elsewhere, {percent(roofs.BY_POWER.value - 1)} % by the "
        "power limit",
        f"efficiency kept ({percent(projection.KEPT_NEAR.value - 1)} % within an architecture, "
        f"{percent(projection.KEPT.value - 1)} % between), another machine's CPU "
        f"({percent(projection.HOSTS.value - 1)} %)",
        f"layers that were not recorded ({percent(projection.REPEATS.value - 1)} %), noise between processes "
        f"({percent(noise.GPU_PROCESS.value)} %)",
    ),
    "other_gpus.md": (f"they are taken to reach {projection.USUAL_REACH.value:g}",),
    "comparison.md": (
        f"differ by less than {percent(noise.PROCESS.value)} % are called",
        f"differ by some {percent(noise.PROCESS.value)} % even on one machine",
    ),
}  # fmt: skip
"""Document → what it says of numbers of the table."""


@pytest.mark.parametrize("document", IN_DOCUMENTS)
def test_documents_quote_the_table(document):
    text = " ".join((ROOT / "docs" / document).read_text(encoding="utf-8").split())
    for phrase in IN_DOCUMENTS[document]:
        assert phrase in text


@pytest.mark.parametrize("finding", QUOTED)
def test_pages_quote_the_table(finding):
    page = next(page for page in PAGES if page.id == finding)
    text = " ".join(f"{page.means} {page.detected} {page.gain} {page.wrong}".split())
    for phrase in QUOTED[finding]:
        assert phrase in text
