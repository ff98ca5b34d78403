"""A comparison as users see it: on a terminal, as a page, as a gate, as a command."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.command import gpuprof_command, in_process, one_line, run
from helpers.compared import MS, PAIRS, RUNS, compared, diagnosed
from helpers.hostile import PAYLOADS
from jsonschema import Draft202012Validator
from rich.console import Console

from gpuprof.cli.shared.comparison_gates import METRICS, GateOutcome, judge, parse
from gpuprof.diagnosis.comparison.comparison import DOCUMENT as COMPARISON
from gpuprof.diagnosis.comparison.comparison import ComparedWork, Comparison, Note, Significance
from gpuprof.errors import GpuprofError
from gpuprof.report import comparison_bars as bars
from gpuprof.report.page.comparison import render as page
from gpuprof.report.page.file import is_report, write_comparison
from gpuprof.report.terminal.comparison_terminal import render
from gpuprof.report.words import comparison_words as words

BIDI = "\u202eevil\u202c"
TINY, COMPILED = PAIRS / "tiny.json.gz", PAIRS / "tiny.compile.json.gz"


def text(c: Comparison, width: int = 80, rows: int = 5) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as captured:
        console.print(render(c, width, rows))
    return captured.get()


def hostile(c: Comparison) -> Comparison:
    """All names from recordings hold characters that must not be printed."""
    names = iter(PAYLOADS * 20)
    return replace(
        c,
        a=replace(c.a, path=f"/x/{next(names)}", gpu=next(names)),
        b=replace(c.b, path=BIDI, gpu=next(names)),
        kernels=replace(c.kernels, rows=tuple(replace(r, name=next(names), op=next(names)) for r in c.kernels.rows)),
        ops=tuple(replace(op, name=next(names)) for op in c.ops),
        mechanisms=tuple(replace(m, text=next(names)) for m in c.mechanisms),
        notes=(Note("x", "warning", PAYLOADS[0]), Note("y", "info", PAYLOADS[1])),
        summary=PAYLOADS[2],
    )


# -- on a terminal


def test_the_outcome_stands_first():
    first, second, *rest = text(compared("tiny", "tiny.compile"), 120).splitlines()
    assert first.startswith("B IS 1.9× AS FAST   50 → 26 ms a step (−23 ms, −47 %)") and first.rstrip().endswith("H200")
    assert "compiled code" in second
    assert any(re.search("A's diagnosis predicted 1.–2. ms for torch.compile; B takes", line) for line in rest)


@pytest.mark.parametrize("width", [40, 50, 60])
def test_a_narrow_screen_cuts_no_number(width):
    found = text(compared("tiny", "tiny.compile"), width)
    assert "…" not in "".join(found.splitlines()[:3])
    fall = found[found.index("  waterfall") : found.index("  phases")]
    amounts = re.findall(r"(?:ns|µs|ms|s)(?:\s|$)", fall)
    assert len(amounts) >= len(fall.strip().splitlines())
    phases = found[found.index("  phases") : found.index("  counts")]
    assert all(re.search(r"[−+][\d.,]+ (?:ns|µs|ms|s)(?:\s|$)", line) for line in phases.strip().splitlines()), phases


@pytest.mark.parametrize("width", [40, 80, 120, 300])
def test_it_fits_the_terminal(width):
    for a, b in (("tiny", "tiny.compile"), ("tiny", "tiny"), ("moe_big", "tf32")):
        for c in (compared(a, b), hostile(compared(a, b))):
            assert all(len(line) <= width for line in text(c, width).splitlines())


def test_what_does_not_differ_is_said_once():
    shown = text(compared("tiny", "tiny"))
    assert shown.startswith("NO DIFFERENCE   50 ms a step, both")
    assert "waterfall" not in shown and "why" not in shown


def test_names_are_text():
    shown = text(hostile(compared("tiny", "tiny.compile")), 160)
    assert "\u202e" not in shown
    assert "\\u202eevil" in shown


def test_the_waterfall_leads_from_one_step_to_the_other():
    for a, b in (("tiny", "tiny.compile"), ("tiny.compile", "tiny"), ("moe_big", "tf32")):
        c = compared(a, b)
        first, *falls, last = bars.waterfall(c)
        at = first.to_ns
        assert at == c.step.a_ns
        for fall in falls:
            assert fall.from_ns == at
            at = fall.to_ns
        assert at == last.to_ns == c.step.b_ns
        one, other = bars.step_bars(c)
        assert sum(p.ns for p in one.parts) == one.total_ns == c.step.a_ns
        assert sum(p.ns for p in other.parts) == c.step.b_ns
        assert [p.key for p in one.parts] == [p.key for p in other.parts]


def test_words():
    c = compared("tiny", "tiny.compile")
    step = c.step

    def outcome(speedup: float, work: ComparedWork | None = None) -> str:
        kind = "same" if speedup == 1 else "faster" if speedup > 1 else "slower"
        other = replace(step, speedup=speedup, outcome=kind, ratio=1 / speedup)
        return words.outcome(replace(c, step=other, work=work))

    assert outcome(1) == "NO DIFFERENCE"
    assert words.outcome(replace(c, step=replace(step, outcome="same", ratio=0.74))) == "NO CLEAR DIFFERENCE"
    assert outcome(1.042) == "B IS 4.2 % FASTER"
    assert outcome(1 / 1.12) == "B IS 12 % SLOWER"
    assert outcome(1 / 3) == "B TAKES 3.0× AS LONG"
    tokens = ComparedWork("tokens", 128, 1024, 8, False, 500_000, 70_000)
    assert outcome(7.1, tokens) == "B IS 7.1× AS FAST PER TOKEN"
    assert words.work(replace(c, work=tokens)) == "128 → 1,024 tokens a step: 500 → 70 µs a token"
    assert words.work(replace(c, work=replace(tokens, b=128, equal=True))) == "128 tokens a step in both"
    assert words.both_times(49.2 * MS, 49.3 * MS) == "49 ms"
    assert words.both_times(49.2 * MS, 49.3 * MS, exact=True) == "49.200 → 49.300 ms"
    assert words.both_times(2 * MS, 3000) == "2.0 ms → 3.0 µs"
    tested = Significance("unprofiled", 10, 12, 1, 2, 0.003, True, True, None)
    assert words.test(replace(c, significance=tested)).startswith("p = 0.003 over 10 and 12 unprofiled steps")
    unsure = replace(tested, p=0.07, significant=False)
    for kind, speedup, said in (
        ("faster", 1.35, "B IS LIKELY 1.4× AS FAST (p = 0.07)"),
        ("faster", 1.1, "B IS LIKELY 10 % FASTER (p = 0.07)"),
        ("slower", 0.5, "B LIKELY TAKES 2.0× AS LONG (p = 0.07)"),
    ):
        likely = replace(c, step=replace(step, speedup=speedup, outcome=kind, sure=False), significance=unsure)
        assert words.outcome(likely) == said
        assert words.test(likely).endswith("(rank-sum test): likely a difference, but it may be scatter")
    means = replace(c, step=replace(step, sure=False), significance=replace(unsure, p=0.5))
    assert words.test(means).endswith("(rank-sum test): only the means differ, by more than 2×")
    assert "p < 0.0001" in words.test(replace(c, significance=replace(tested, p=1e-9)))
    prediction = c.mechanisms[0].predictions[0]
    above = replace(prediction, measured_ns=round(prediction.step_ns.high * 1.5), inside=False)
    assert words.prediction(above).endswith("50 % above the predicted range")
    below = replace(prediction, measured_ns=round(prediction.step_ns.low / 2), inside=False)
    assert words.prediction(below).endswith("50 % below the predicted range")


# -- as a page


def test_the_page_says_it_without_a_script():
    html = page(compared("tiny", "tiny.compile"))
    assert '<h1><span class="bound">B is 1.9× as fast</span></h1>' in html
    assert html.count("<script") == 1 and "default-src &#39;none&#39;; script-src &#39;sha256-" in html
    assert html.index("</main>") < html.index("<script"), "of the button for light and dark only"
    assert not re.search(r"(src|href)=\"(?!#)", html), "it loads nothing"
    assert html.count('class="fall ') == len(bars.waterfall(compared("tiny", "tiny.compile")))
    assert 'data-mechanism="compile"' in html and re.search("predicted 1.–2. ms", html)


def test_names_on_the_page_are_text():
    html = page(hostile(compared("tiny", "tiny.compile")))
    assert html.count("<script") == 1 and "<img" not in html and "<svg" not in html and "\u202e" not in html
    assert "&lt;script&gt;" in html


def test_what_nothing_explains_is_shown():
    c = compared("tiny", "tiny.compile")
    c = replace(c, unexplained_ns=2 * MS)
    assert "+2.0 ms a step unexplained" in text(c)
    assert "+2.0 ms a step unexplained" in page(c)
    assert not words.unexplained(replace(c, unexplained_ns=1000))


def test_recordings_of_one_name_are_distinguished():
    c = compared("scenarios/small_batch/recording", "tests/data/runs/tiny_lora")
    assert words.names(c) == ("recording", "tiny_lora")
    c = replace(c, b=replace(c.b, path="scenarios/other/recording/"))
    assert words.names(c) == ("small_batch/recording", "other/recording")
    assert words.names(replace(c, b=c.a)) == ("recording", "recording")


def test_a_page_without_a_difference():
    html = page(compared("tiny", "tiny"))
    assert "No difference" in html and 'id="waterfall"' not in html and 'id="why"' not in html


def test_the_page_as_a_file(tmp_path: Path):
    target = tmp_path / "c.html"
    write_comparison(compared("tiny", "tiny.compile"), target)
    assert is_report(target)
    with pytest.raises(GpuprofError, match="cannot be written"):
        write_comparison(compared("tiny", "tiny.compile"), tmp_path / "no" / "c.html")


# -- gates


def with_test(c: Comparison, p: float = 0.001, significant: bool | None = True) -> Comparison:
    medians = (10, 20) if c.step.difference_ns > 0 else (20, 10)
    return replace(c, significance=Significance("unprofiled", 9, 9, *medians, p, significant, True, None))


def test_a_slower_step_fails_only_if_it_is_beyond_scatter():
    gate = parse("step_time:5%")
    slower, faster = compared("tiny.compile", "tiny"), compared("tiny", "tiny.compile")
    assert judge(gate, with_test(faster))[0] is GateOutcome.HOLDS
    assert judge(gate, with_test(compared("tiny", "tiny"), significant=None))[0] is GateOutcome.HOLDS
    outcome, said = judge(gate, with_test(slower))
    assert outcome is GateOutcome.FAILS and "88.9 % above A's, the limit is 5% (p = 0.001)" in said
    assert judge(gate, with_test(slower, p=0.3, significant=False))[0] is GateOutcome.HOLDS
    assert judge(gate, with_test(slower, significant=None))[0] is GateOutcome.UNKNOWN
    assert judge(gate, replace(slower, significance=None))[0] is GateOutcome.UNKNOWN
    assert judge(parse("step_time:100%"), with_test(slower))[0] is GateOutcome.HOLDS


def test_what_is_counted_needs_no_test():
    c = compared("tiny.compile", "tiny")
    for metric in ("kernels", "busy_time", "idle_time", "syncs"):
        outcome, said = judge(parse(f"{metric}:5%"), c)
        assert outcome is GateOutcome.FAILS and "gate failed" in said
        assert judge(parse(f"{metric}:500%"), c)[0] is GateOutcome.HOLDS
    for metric in ("peak_memory", "token_time", "sample_time"):
        assert judge(parse(f"{metric}:5%"), c)[0] is GateOutcome.UNKNOWN
    runs = compared("tests/data/runs/tiny_lora", "tests/data/hosts/small_batch")
    assert judge(parse("token_time:5%"), runs)[0] is GateOutcome.FAILS
    assert judge(parse("peak_memory:5%"), runs)[0] is GateOutcome.HOLDS


def test_the_time_of_a_token_is_tested_by_itself():
    """Three times the tokens in about the same step: the steps do not differ, but the time per token does."""
    c = compared("tests/data/runs/tiny_lora", "tests/data/hosts/small_batch")
    work = ComparedWork("tokens", 300, 100, 1 / 3, False, 20.0, 60.0)
    c = replace(with_test(c, p=0.4, significant=False), work=work)
    assert c.significance is not None
    c = replace(c, significance=replace(c.significance, p_each=0.001))
    outcome, said = judge(parse("token_time:5%"), c)
    assert outcome is GateOutcome.FAILS and "200.0 % above A's, the limit is 5% (p = 0.001)" in said
    assert judge(parse("step_time:5%"), c)[0] is GateOutcome.HOLDS
    assert words.test(c).startswith("p = 0.001 over 9 and 9 unprofiled steps, by the time for each token (rank-sum")


@pytest.mark.parametrize("wrong", ["step_time", "step_time:5", "step_time:5ms", "step_time:-5%", "foo:5%", ""])
def test_limits_are_shares(wrong):
    with pytest.raises(ValueError, match=r"choose from step_time|such as step_time:5%"):
        parse(wrong)
    assert set(METRICS) >= {"step_time", "token_time", "kernels", "peak_memory"}


# -- the command


def test_the_command(tmp_path: Path):
    target = tmp_path / "c.html"
    done = gpuprof_command("compare", TINY, COMPILED, "--html", target, env={"COLUMNS": "100"})
    assert (done.returncode, done.stderr) == (0, f"gpuprof: comparison: {target}\n")
    assert done.stdout.startswith("B IS 1.9× AS FAST") and "\x1b" not in done.stdout
    assert is_report(target)
    done = in_process("compare", TINY, TINY, "--json", "--fail-on", "step_time:0%")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert not list(Draft202012Validator(COMPARISON.schema()).iter_errors(document))
    assert document["step"]["difference_ns"] == 0


def test_gates_of_the_command(capsys, monkeypatch):
    diagnoses = "gpuprof.diagnosis.diagnose_recording.diagnose_recording"
    monkeypatch.setattr(diagnoses, lambda recording, *_, **__: diagnosed(str(recording)))
    fast, slow = RUNS / "tiny_lora", RUNS.parent / "hosts" / "small_batch"
    assert run(capsys, "compare", slow, fast, "--fail-on", "step_time:5%")[0] == 0
    code, _, err = run(capsys, "compare", fast, slow, "--fail-on", "step_time:5%", "--fail-on", "kernels:50%")
    assert code == 1 and "gate failed: step_time of B is" in one_line(err)
    code, _, err = run(capsys, "compare", COMPILED, TINY, "--fail-on", "step_time:5%")
    assert code == 2 and "too few steps" in one_line(err)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("compare",), "'A'"),
        (("compare", TINY), "'B'"),
        (("compare", TINY, COMPILED, TINY), "extra argument"),
        (("compare", "absent.json", TINY), "absent.json: no such file"),
        (("compare", TINY, "absent\x1b.json"), r"absent\x1b.json: no such file"),
        (("compare", TINY, "pyproject.toml"), "pyproject.toml"),
        (("compare", TINY, COMPILED, "--fail-on", "idle:40%"), "not a metric of a comparison"),
        (("compare", TINY, COMPILED, "--html", "."), "directory"),
        (("compare", TINY, COMPILED, "--step", "nowhere"), "--step"),
        (("compare", TINY, COMPILED, "--top", "0"), "--top"),
    ],
)
def test_mistakes_are_one_line(capsys, monkeypatch, arguments, says):
    monkeypatch.chdir(PAIRS.parents[2])
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says in one_line(err)
