"""Fixes and what-ifs on the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.make_diagnosis import HOSTILE, MS, host_bound
from helpers.present import present
from jsonschema import Draft202012Validator

from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.result.diagnosis import Replay
from gpuprof.diagnosis.result.finding_model import Combined, Evidence, Finding, Remaining
from gpuprof.diagnosis.written.diagnosis_json import schema, to_json
from gpuprof.ranks.summary import RankSummary
from gpuprof.replay.sensitivity import Sensitivities
from gpuprof.report import markdown
from gpuprof.report.page.fix_cards import uncertain_mean
from gpuprof.report.page.html import render
from gpuprof.report.terminal.terminal import plain
from gpuprof.value_range import Range

HOUR = 3600 * 10**9


def finding(**changes) -> Finding:
    made = Finding(
        id="compile",
        title="torch.compile",
        severity="high",
        evidence=(Evidence("5,276 launches a step"), Evidence("aten::mul", 3, 40_000, "thread 1")),
        fix="TrainingArguments(torch_compile=True)",
        step_ns=Range(13 * MS, 20 * MS, 30 * MS),
        speedup=Range(2.5, 3.7, 5.7),
        remaining_ns=Remaining(3 * HOUR + HOUR // 6, HOUR // 2, 3 * HOUR // 4, HOUR),
    )
    return replace(made, **changes)


def diagnosis(*findings: Finding, **changes):
    base = host_bound()
    steps = replace(present(base.steps), estimated_ns=74 * MS, inflation=168 / 74)
    changes = {
        "sensitivities": Sensitivities(0.9, 0.0, 0.0, 0.0, 0.03, 0.02, 0.01, 0.0),
        "replay": Replay(0.001, True, steps=4),
        "verdict": replace(base.verdict, confidence=0.97),
        **changes,
    }
    return replace(base, steps=steps, findings=findings, **changes)


def lines_of(*findings: Finding, width: int = 100, **changes) -> list[str]:
    return plain(diagnosis(*findings, **changes), width).splitlines()


def test_a_fix_shows_what_it_gains_and_what_to_write():
    lines = lines_of(finding())
    at = next(i for i, line in enumerate(lines) if "torch.compile" in line)
    assert lines[at].split("fixes")[1].split() == ["1", "torch.compile", "74", "ms", "→", "13–30", "ms", "2.5–5.7×"]
    assert lines[at + 1].strip() == "TrainingArguments(torch_compile=True)"
    assert any(line.split() == ["next", "gpuprof", "explain", "compile"] for line in lines)
    assert any("replay error 0.1 % · confidence 0.97 · remaining run 3 h 10 → 45 min with fix 1" in x for x in lines)


def test_fixes_that_gain_little_on_top_of_each_other_name_each_other_by_number():
    lines = lines_of(finding(), finding(id="larger_batch", title="batch × 8", overlaps="torch.compile"))
    assert [line.strip() for line in lines if "together they" in line] == [
        "or 2 instead: together they gain little more",
        "instead of 1: together they gain little more",
    ]


def test_an_entry_that_adds_a_fix_to_another_says_so():
    """It contains that one, and so is no alternative to it."""
    title = "torch.compile, and pinned memory"
    both = finding(title=title, overlaps="torch.compile", parts=("torch.compile", "pinned memory"))
    lines = [line.strip() for line in lines_of(finding(), both)]
    assert "2 adds a fix to it" in lines and "1, and a fix that gains once it is made" in lines
    assert not any("instead" in line for line in lines)


def test_the_short_answer_says_which_fix_acts_on_the_cause_that_the_verdict_names():
    cause = replace(host_bound().verdict, confidence=0.97, cause="planning")
    found = diagnosis(finding(acts_on=("host",)), finding(id="planning", title="plan once", acts_on=("host",)))
    said = "2 acts on what the verdict names, 1 is expected to gain more"
    assert said in plain(replace(found, verdict=cause), 80, verbose=False)
    assert "verdict names" not in plain(found, 80, verbose=False)
    assert "The verdict names planning kernels" in " ".join(plain(replace(found, verdict=cause), 100).split())


def test_the_report_begins_with_the_fix_that_the_terminal_begins_with():
    """Even if the next one gains more certainly: the order of the findings is the only rule."""
    found = diagnosis(
        finding(id="compile", title="the likely one", speedup=Range(1.03, 1.18, 1.29), changes="more samples"),
        finding(id="syncs", title="the sure one", speedup=Range(1.09, 1.17, 1.25)),
    )
    page = render(replace(found, window=None))
    start = page.index("Do this first")
    first = page[start : page.index("</aside>", start)]
    assert "the likely one" in first and "Changes the training: more samples." in first
    fixes = plain(found).split("fixes")[1]
    assert fixes.index("the likely one") < fixes.index("the sure one")


@pytest.mark.parametrize(
    ("work", "speedup", "says"),
    [
        (8.0, Range(7.4, 8.0, 8.3), "74 ms → 71–80 ms for 8× the work   7.4–8.3× per sample"),
        (2.11112, Range(1.9, 2.0, 2.2), "74 ms → 71–82 ms for 2.1× the work   1.9–2.2× per sample"),
        (1.0, Range(407, 550, 792), "74 ms → 93–182 µs   410–790×"),
    ],
)
def test_time_and_gain_agree(work, speedup, says):
    """Even if the step itself is less certain than the gain: what is shown follows from the gain."""
    wide = Range(20 * MS, 74 * MS, 400 * MS)
    assert any(says in line for line in lines_of(finding(work=work, step_ns=wide, speedup=speedup)))


def test_of_many_fixes_all_are_written_out_where_all_is_wanted():
    many = [finding(id=f"id{i}", title=f"fix number {i}") for i in range(8)]
    text = " ".join(" ".join(line.split()) for line in lines_of(*many))
    assert "5 fix number 4" in text and "8 fix number 7" in text and "with -v" not in text


def test_what_several_gain_together():
    both = Combined(("a", "b"), ("first", "second"), Range(10 * MS, 12 * MS, 15 * MS), Range(4.9, 6.2, 7.4))
    lines = lines_of(finding(id="b", title="second"), finding(id="a", title="first"), combined=both)
    assert any("1 + 2 together   74 ms → 10–15 ms   4.9–7.4×" in line for line in lines)


def test_what_twice_as_fast_would_do():
    (line,) = [line for line in lines_of() if "2× as fast" in line]
    assert "CPU (host) −45 %" in line and "GPU arithmetic −1 %" in line and " GPU −" not in line
    assert "batches" not in line and "nothing else helps" in line
    unsplit = Sensitivities(0.9, 0.0, 0.0, 0.0, 0.03, None, None, None)
    (line,) = [line for line in lines_of(sensitivities=unsplit) if "2× as fast" in line]
    assert "GPU −2 %" in line and "compute" not in line


def test_why_nothing_is_predicted():
    lines = lines_of(sensitivities=None, replay=Replay(0.2, False, "the replay misses the recorded steps by 20 %"))
    assert any("not predicted: the replay misses the recorded steps by 20 %" in line for line in lines)


def test_the_ranks():
    ranks = tuple(
        RankSummary(i, f"r{i}.json", 117 * MS, pace * MS, (117 - pace) * MS, MS, float(i), "host", "python", 0, 0)
        for i, pace in enumerate((75, 117))
    )
    lines = lines_of(ranks=ranks)
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("ranks"))
    assert lines[at].split()[1:7] == ["rank", "1", "117", "ms", "by", "itself"]
    assert "last to arrive 100 %" in lines[at] and "waits 42 ms" in lines[at + 1]


@pytest.mark.parametrize("width", [40, 61, 80, 200])
def test_hostile_names_are_text_and_fit(width):
    evil = finding(title=HOSTILE, fix=f"{HOSTILE}\n{HOSTILE}")
    text = plain(diagnosis(evil), width)
    assert "\x1b[31m" not in text and "\u202e" not in text
    assert max(map(len, text.splitlines())) <= width


def test_the_json_is_valid():
    both = Combined(("a", "b"), ("first", "second"), Range(10 * MS, 12 * MS, 15 * MS), Range(4.9, 6.2, 7.4))
    document = to_json(diagnosis(finding(), finding(remaining_ns=None, work=8.0), combined=both))
    assert not list(Draft202012Validator(schema()).iter_errors(document))
    assert document["findings"][0]["evidence"][1]["start_ns"] == 3
    assert document["sensitivities"]["host"] == 0.9


def test_an_uncertain_mean_step_makes_predicted_steps_uncertain_and_gains_less_so():
    """Applies where half its interval is a tenth of the mean step or more."""
    mean = 80 * MS
    for half, said in ((4 * MS, False), (20 * MS, True)):
        budget = Budget(mean, mean - half, mean + half, 74 * MS, (), (), 6 * MS, 20, "free")
        found = diagnosis(finding(), budget=budget)
        for text in (plain(found, 160), uncertain_mean(found), markdown.diagnosis(found)):
            known = "he mean of 20 timed steps is uncertain (60–100 ms), and so are predicted times; the gains"
            assert (known in " ".join(text.replace("\\", "").split())) is said
    assert "so are predicted times" not in plain(diagnosis(budget=budget), 160)
