"""What the terminal shows for hand-made diagnoses of every kind, at every width."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from helpers.make_diagnosis import ALL, MS, STEPS, host_bound, hostile, no_steps, timed, two_devices, unusable
from helpers.present import present
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gpuprof.cli.shared.output import encodable
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.result.above_reach import AboveReach, Item, Where
from gpuprof.diagnosis.result.diagnosis import Issue, Profiler, Quality
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.diagnosis.result.host_model import Host, HostFunction
from gpuprof.diagnosis.verdict.step_parts import Bar, BarPart, bars
from gpuprof.replay.sensitivity import Sensitivities
from gpuprof.report.stepbar import PAINTS, WAITING_FOR_A_PEER, cells
from gpuprof.report.terminal.drawn import drawn
from gpuprof.report.terminal.sections import section
from gpuprof.report.terminal.step_lines import legend
from gpuprof.report.terminal.terminal import ANSWER_LINES, MOST_LINES, plain, render
from gpuprof.report.words.brevity import Brevity
from gpuprof.report.words.iteration_words import PAINTS as ITERATION_PAINTS
from gpuprof.value_range import Range

WIDTHS = (40, 80, 100, 132, 200)


def coloured(diagnosis, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(render(diagnosis, width, verbose=True))
    return captured.get()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_no_line_is_wider_than_the_terminal(make, width):
    lines = plain(make(), width).splitlines()
    assert max(cell_len(line) for line in lines) <= width


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_everything_shows_and_nothing_acts(make):
    text = plain(make(), 100)
    assert all(char.isprintable() for line in text.splitlines() for char in line)
    # Colour codes are the only controls where colour is wanted.
    assert "\x1b" not in re.sub(r"\x1b\[[\d;]*m", "", coloured(make()))


def test_fixes_begin_with_the_step_of_the_headline():
    """Replayed steps scatter, and their mean is not the usual step, from which fixes are predicted."""
    steps = replace(present(host_bound().steps), estimated_ns=299 * MS, recorded_ns=346 * MS)
    mean = Budget(301 * MS, 299 * MS, 303 * MS, 299 * MS, (), (), 2 * MS, STEPS, "recorded")
    fix = Finding("compile", "torch.compile", "high", (), "model.compile()", Range(MS, MS, MS), Range(2.0, 2.0, 2.0))
    text = plain(host_bound(steps=steps, budget=mean, findings=(fix,)), 100)
    assert text.startswith("WAITING FOR THE CPU to launch kernels 91 %   about 299 ms a step\nHOST-BOUND · launch · ")
    assert "torch.compile   299 ms → " in text


def test_a_cut_file_without_verdict_has_to_be_recorded_again():
    cut = Quality("degraded", (Issue("truncated", "warning", "The file is cut. Record again."),))
    unknown = replace(host_bound().verdict, bound=None, family=None, cause=None)
    assert "next       record again" in plain(host_bound(quality=cut, verdict=unknown), 100)
    assert "next       time a step without the profiler" in plain(host_bound(quality=cut), 100)


def test_markup_in_names_is_text():
    text = plain(hostile(), 160)
    assert r"\x1b[31m[bold red]\x07\u202ekernel\u200b<script>" in text
    assert text.count("evil") >= 6


def test_a_normal_diagnosis_fits_a_screen():
    assert len(plain(host_bound(), 100).splitlines()) <= 30


def test_the_verdict_comes_first():
    first, second, third = plain(host_bound(), 100).splitlines()[:3]
    assert first == "WAITING FOR THE CPU to launch kernels 91 %   168 ms a step, as recorded"
    assert second == "HOST-BOUND · launch · NVIDIA H200 · CUDA 13.0"
    assert third.startswith("The GPU works 15 of 168 ms.")


def test_the_step_moves_down_where_there_is_no_room():
    lines = plain(two_devices(), 48).splitlines()
    assert lines[:3] == [
        "WAITING FOR OTHER RANKS 15 %",
        "168 ms a step, as recorded",
        "COMMUNICATION-BOUND · peer wait",
    ], "times are whole; the versions and the GPU give way"


def test_a_measured_step_is_named_and_drawn():
    text = plain(timed(), 100)
    assert text.startswith("WAITING FOR THE CPU to launch kernels   74 ms a step\n"), "no share without causes"
    assert "compute 20 %" in text
    assert "153 ms of a step as recorded" in text, "waits are known as recorded only"
    assert "Recording made the step 2.3× as long (168 ms as recorded)" in text
    assert "--json" in text.splitlines()[-1]


def test_without_an_estimate_the_bar_is_as_recorded():
    text = plain(timed(devices_estimated=None), 100)
    assert "as recorded, under the profiler" in text
    assert "launch 73 %" in text


def test_idle_time_is_split_by_cause():
    text = plain(host_bound(), 120)
    assert "█ compute 9 %  idle 91 %: ░ launch 73 %  ∙ Python 13 %  ╱ sync 4 %" in text


def test_each_device_has_its_bar():
    text = plain(two_devices(), 100)
    assert "GPU 0  █" in text and "GPU 1  █" in text
    assert text.count("░ idle 10 %") == 2, "whose causes they are is not known"
    assert "rank 0 of 2" in text


def test_many_devices_are_counted():
    device = two_devices().devices[0]
    devices = tuple(replace(device, device=i) for i in range(10))
    text = plain(two_devices(devices=devices), 100)
    assert "GPU 7  █" in text and "GPU 8  █" not in text and "and 2 more devices" in text


def test_an_unusable_recording_says_so_before_anything_else():
    lines = plain(unusable(), 100).splitlines()
    assert lines[0].startswith("UNUSABLE RECORDING")
    assert "✗ The recording holds 1,203 launches and no kernel." in "\n".join(lines[:4])
    assert "record again as described above" in lines[-1]
    assert "profiler" not in "\n".join(lines), "nothing is believed, so nothing is qualified"


def test_one_sentence_is_not_said_twice():
    message = unusable().quality.issues[0].message
    text = plain(unusable(verdict=replace(unusable().verdict, sentences=(message,))), 200)
    assert text.count("no kernel") == 1


def test_warnings_stand_above_the_numbers_and_notes_below():
    issues = (
        Issue("a", "info", "A note."),
        Issue("b", "warning", "A warning."),
        Issue("c", "error", "An error."),
    )
    text = plain(host_bound(quality=Quality("degraded", issues)), 100)
    assert text.index("✗ An error.") < text.index("! A warning.") < text.index("█") < text.index("· A note.")


def test_a_recording_without_steps_asks_for_them():
    text = plain(no_steps(), 80)
    assert "672 ms recorded, no steps" in text
    assert "a step" not in text.split("quality")[1].split("next")[0], "nothing below is per step"
    assert "--step REGEX" in text.splitlines()[-1]


def test_the_profilers_cost_has_a_range():
    text = plain(host_bound(profiler=Profiler(100_000, 50 * MS, 90 * MS, 153 * MS)), 120)
    assert "100,000 recorded events a step, which may have added 50–153 ms to it, likely about 90 ms." in text
    assert "time a step without the profiler, then add --step-ms MS" in text
    text = plain(host_bound(profiler=Profiler(1_000_000, 153 * MS, 153 * MS, 153 * MS)), 100)
    assert "may have added up to 153 ms to it." in text


def test_a_cheap_profiler_is_believed():
    text = plain(host_bound(profiler=Profiler(1_000, 500_000, 2 * MS, 5 * MS)), 100)
    assert "Recording cost at most 5.0 ms per step" in text
    assert "--step-ms" not in text


def test_numbers_are_per_step():
    text = plain(host_bound(), 120)
    assert f"{336 // STEPS} ms  2,750 gaps  MulBackward0 ← lora_A.default" in text
    assert "15 ms a step in 5,276 kernels and copies, half under 1.9 µs" in text
    assert "vectorized_elementwise_kernel<MulFunctor, bf16>" in text


def test_the_number_of_kernels_asked_for():
    kernels = present(host_bound().kernels)
    many = host_bound(kernels=replace(kernels, top=kernels.top[:1] * 12))
    assert plain(many, 100).count("nvjet") == 5
    assert plain(many, 100, rows=10).count("nvjet") == 10


def test_the_functions_of_the_answer_are_among_those_of_everything():
    """A pass comes last among the functions, however long it takes."""

    def function(name: str, ms: float, runs: str | None = None) -> HostFunction:
        took = Range(ms * MS, ms * MS, ms * MS)
        return HostFunction(name, "train.py", 1, "own", None, None, took, 0.0, 9, None, None, "no GPU", runs)

    made = timed()
    small = [function(f"small_{i}", 0.01) for i in range(9)]
    host = Host(
        99, 9, present(made.step_ns), 0, (*small, function("long_pass", 0.5 * present(made.step_ns) / MS, "forward"))
    )
    text = plain(replace(made, host=host), 100, verbose=True)
    assert "forward pass" in plain(replace(made, host=host), 100)
    assert "forward pass" in text and "small_0" in text
    assert text.index("forward pass") < text.index("small_0")


def test_the_last_line_is_what_to_do():
    for width in WIDTHS:
        last = plain(host_bound(), max(width, 80)).splitlines()[-1]
        assert last == "  next       time a step without the profiler, then add --step-ms MS"


def test_colour_is_only_an_addition():
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured(host_bound(), 80)).split() == plain(host_bound(), 80).split()
    assert "\x1b[33m" in coloured(host_bound())


def test_a_bar_is_of_one_step_also_where_several_were_recorded():
    (bar,) = bars(host_bound())
    assert bar.total_ns == 168 * MS == sum(part.ns for part in bar.parts)
    assert {part.key: part.ns for part in bar.parts}["compute"] == 15 * MS


def test_a_bar_draws_what_its_legend_names():
    parts = tuple(BarPart(key, ns, False) for key, ns in (("compute", 9900), ("copy", 60), ("communication", 40)))
    assert cells(Bar(0, 10_000, parts), 60) == [59, 1, 0], "0.6 % is seen, 0.4 % is not"


def test_small_parts_share_an_entry_of_thelegend():
    shares = (("compute", 6000, False), ("launch", 3500, True), ("python", 300, True), ("sync", 200, True))
    (line,) = legend(Bar(0, 10_000, tuple(BarPart(*one) for one in shares)), 80, 0.05)
    assert line.plain == "█ compute 60 %  idle 40 %: ░ launch 35 %  ∙╱ other 5 %"
    (line,) = legend(Bar(0, 10_000, tuple(BarPart(*one) for one in shares[:3])), 80, 0.05)
    assert line.plain.endswith("∙ Python 3 %"), "one alone has its name"


def test_fills_stay_different_where_the_terminal_has_ascii_only():
    class Ascii(io.StringIO):
        encoding = "ascii"

    fills = {paint.fill for paint in (*PAINTS.values(), *ITERATION_PAINTS.values(), WAITING_FOR_A_PEER)}
    plain_fills = [encodable(fill, Ascii()) for fill in sorted(fills)]
    assert all(len(fill) == 1 for fill in plain_fills), plain_fills
    assert len(set(plain_fills)) == len(fills)


def test_a_bar_fills_its_width():
    for width in range(1, 200):
        for bar in (*bars(host_bound()), *bars(two_devices()), Bar(0, 3, (BarPart("idle", 1, True),) * 3)):
            assert sum(cells(bar, width)) == width
    assert cells(Bar(0, 0, ()), 10) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"device": 0.9, "compute": 0.41, "memory": 0.4, "latency": 0.1}, "GPU-BOUND: compute and memory"),
        ({"device": 0.9, "compute": 0.3, "memory": 0.3, "latency": 0.3}, "GPU-BOUND: compute, memory and latency"),
        ({"device": 0.5, "host": 0.48}, "BALANCED: host and GPU"),
        ({"device": 0.05}, "BALANCED"),
        (None, "BALANCED"),
    ],
)
def test_a_balanced_step_says_between_what(found, said):
    none = {"host": 0.0, "input": 0.0, "transfer": 0.0, "communication": 0.0, "device": 0.0}
    verdict = replace(host_bound().verdict, bound="balanced", cause=None)
    text = plain(host_bound(verdict=verdict, sensitivities=Sensitivities(**none | found) if found else None), 100)
    assert text.splitlines()[1].startswith(f"{said} · NVIDIA")


# -- the answer: what is shown without -v


def many_fixes(n: int, lines: int = 1):
    code = "\n".join(f"argument_{i}=True" for i in range(lines))
    one = Finding("compile", "torch.compile", "high", (), code, Range(13 * MS, 20 * MS, 30 * MS), Range(2.5, 3.7, 5.7))
    found = tuple(replace(one, title=f"fix of number {i}") for i in range(1, n + 1))
    base = host_bound()
    return replace(base, steps=replace(present(base.steps), estimated_ns=74 * MS), findings=found)


@pytest.mark.parametrize("width", (60, 80, 100, 132))
@pytest.mark.parametrize(("count", "lines"), [(1, 1), (3, 1), (3, 3), (7, 2)])
def test_the_first_lines_answer(count, lines, width):
    """They are the verdict, the bar with its legend, one to three fixes with gain and code, and the next ones with
    their gain; nothing else comes before."""
    text = plain(many_fixes(count, lines), width, verbose=False)
    first = "\n".join(text.splitlines()[:ANSWER_LINES])
    assert first.startswith("WAITING FOR THE CPU to launch kernels 91 %")
    assert "compute 9 %" in first and "launch 73 %" in first
    numbered = re.findall(r"^.{12,14}(\d)  fix of number", text, re.M)
    assert min(count, 2) <= len(numbered) <= min(count, Brevity().listed)
    assert first.count("2.5–5.7×") == len(numbered), "each whole within the first lines"
    written = text.count(f"argument_{lines - 1}=True")
    assert 1 <= written <= Brevity().fixes
    assert ("-v shows the code of" in text) == (written < len(numbered)) and (" more" in text.split("more  ")[0]) == (
        len(numbered) < count
    )
    assert "kernels and copies, half" not in text.split("fixes")[1], "details need -v"


def test_many_short_fixes_are_three_and_long_ones_fewer():
    for lines, written, below in (
        (1, 3, "-v shows the code of 4, and 1 more"),
        (6, 1, "-v shows the code of 2, 3 and 4, and 1 more"),
    ):
        text = plain(many_fixes(5, lines), 100, verbose=False)
        assert text.count("argument_0=True") == written
        assert below in text


def ledger_of(why: str) -> AboveReach:
    items = tuple(
        Item("gpu", f"waste of number {n}", Where(None, None, None, None), (9 - n) * 4 * MS, 9 * MS, 0, why, None)
        for n in range(4)
    )
    return AboveReach(168 * MS, 168 * MS - sum(item.ns for item in items), 0, 0, items)


@pytest.mark.parametrize("width", (80, 100))
def test_the_three_largest_items_are_named_and_their_reasons_where_there_is_room(width):
    short = plain(replace(many_fixes(1, 1), above_reach=ledger_of("it is waste")), width, verbose=False)
    assert all(short.count(f"waste of number {n}: it is waste") == 1 for n in range(3)) and "number 3" not in short
    lengthy = "it is waste of a kind that takes some words, " * 12
    long = plain(replace(many_fixes(5, 6), above_reach=ledger_of(lengthy)), width, verbose=False)
    assert all(long.count(f"waste of number {n}") == 1 for n in range(3)), "whatever else there is"
    assert long.count("it is waste of a kind") < 3 * lengthy.count("it is waste of a kind")
    assert len(long.splitlines()) <= MOST_LINES


def test_the_answer_says_how_to_see_the_rest():
    assert "-v shows waits, kernels and phases" in plain(host_bound(), 100, verbose=False).splitlines()[-1]
    assert "-v shows" not in plain(host_bound(), 100), "where all is shown"
    assert "-v shows" not in plain(unusable(), 100, verbose=False)


def test_warnings_stand_in_the_answer_and_notes_do_not():
    issues = (Issue("a", "info", "A note."), Issue("b", "warning", "A warning."))
    text = plain(host_bound(quality=Quality("degraded", issues)), 100, verbose=False)
    assert "! A warning." in text and "A note." not in text


@pytest.mark.parametrize("width", (40, 60, 80))
def test_times_of_the_headline_are_whole(width):
    first, second = plain(timed(), width, verbose=False).splitlines()[:2]
    assert "74 ms a step" in f"{first}{second}" and "…" not in first


@pytest.mark.parametrize("width", range(20, 60))
def test_a_number_stays_with_its_unit(width: int):
    """Holds at every width; other words break as usual, and colours stay in place."""
    text = "half of them under 3.9 µs long, 12 % of 81 ms, 8× the work, 4.6 GiB and 17 of 57 timed steps"
    (grid,) = section("name", [Text(text, "bold")])
    lines = [line.strip() for line in drawn(grid, width).removeprefix("  name").splitlines()]
    assert " ".join(lines) == text
    assert not any(re.match(r"(?:µs|ms|%|GiB)\b", line) or line.startswith("%") for line in lines), lines
