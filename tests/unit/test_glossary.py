"""The glossary: every label of terminal and report has an entry, and every entry can be asked for."""

from __future__ import annotations

import re

import pytest
from helpers.command import in_process
from helpers.diagnosed import diagnosed
from helpers.make_diagnosis import host_bound, timed, two_devices
from helpers.paths import ROOT

from gpuprof.diagnosis.result.diagnosis import Verdict
from gpuprof.diagnosis.verdict.headline import ROLLOUT
from gpuprof.replay.bound import PARTS, RESOURCES
from gpuprof.report import labels, palette
from gpuprof.report.page import content, reach_bar
from gpuprof.report.page.html import render
from gpuprof.report.terminal.terminal import plain
from gpuprof.report.words import glossary
from gpuprof.timeline.categories import CATEGORIES

PAINTS = (
    palette.WORK_PAINTS, palette.CAUSE_PAINTS, palette.BUDGET_PAINTS, palette.PHASE_PAINTS, palette.OWNER_PAINTS,
    palette.CATEGORY_PAINTS, palette.BOUND_PAINTS, palette.HOST_PAINTS, palette.MARK_PAINTS,
)  # fmt: skip
LABELS = {
    *labels.PARTS.values(), labels.STREAMS, labels.cause("communication"), *labels.RESOURCES.values(),
    *map(labels.category, CATEGORIES), *(label for _, label in reach_bar._KINDS.values()),
    *(paint.label for paints in PAINTS for paint in paints.values()),
}  # fmt: skip
TERMS = [term for section in glossary.sections() for term in section.terms]


def test_every_label_is_explained():
    for label in sorted(LABELS):
        assert glossary.find(label) is not None, label


def test_tiles_and_sections_of_the_screens_are_explained():
    for diagnosis in (host_bound(), timed(), two_devices()):
        for tile in content.tiles(diagnosis):
            assert glossary.find(tile.label) is not None, tile.label
        for name in re.findall(r"^  ([a-z2×][\w ×]+?) {2,}\S", plain(diagnosis, 120), re.M):
            if name not in ("next", "more", "source", "run", "note", "notes", "longest", "before", "phases", "quality"):
                assert glossary.find(name) is not None, name


@pytest.mark.parametrize("bound", [*PARTS, *RESOURCES[:-1], "balanced"])
def test_every_verdict_can_be_asked_for_in_any_case(bound: str):
    key = "BALANCED" if bound == "balanced" else f"{bound.upper()}-BOUND"
    for asked in (key, key.lower(), f"{key.title()} · launch"):
        done = in_process("explain", asked)
        assert (done.returncode, done.stdout.split("\n")[0]) == (0, key)
    assert bound in Verdict.__annotations__["bound"] or glossary.find(key) is not None


def test_causes_of_verdicts_and_phases_of_iterations_are_explained():
    causes = ("launch", "sync", "python", "allocator", "compile", "planning", "loading", "locking", "slow_call",
              "cpu_compute", "straggler", "transfer", "peer_wait", "save", "logging", "garbage_collection")  # fmt: skip
    for name in (*causes, *(one for one in ROLLOUT if one not in ("environment", "advantage"))):
        assert glossary.find(name) is not None, name


def test_names_are_those_of_one_term():
    names = [glossary.key(name) for term in TERMS for name in {glossary.key(one) for one in (term.name, *term.also)}]
    assert len(names) == len(set(names)), {name for name in names if names.count(name) > 1}


def test_pages_exist_and_the_page_of_words_is_up_to_date():
    assert all((ROOT / "docs" / term.page).is_file() for term in TERMS if term.page)
    assert (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8") == glossary.markdown()


def test_a_finding_goes_before_a_word_and_neither_is_guessed():
    assert "is padding" in in_process("explain", "padding").stdout.split("\n")[0]
    assert in_process("explain", "gemm").stdout.startswith("matrix multiplications\n")
    done = in_process("explain", "hostbound")
    assert done.returncode == 2 and "HOST-BOUND" in done.stderr
    assert "reach" in in_process("explain").stdout


def test_labels_of_the_report_lead_to_their_words():
    page = render(diagnosed(ROOT / "scenarios" / "small_batch" / "recording"))
    targets = set(re.findall(r'<a class="term" href="#(word-[\w-]+)"', page))
    assert {"word-launch", "word-host-bound", "word-confidence"} <= targets
    assert targets <= set(re.findall(r'<div id="(word-[\w-]+)"', page))
