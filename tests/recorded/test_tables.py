"""The tables of a diagnosis, and how a finding is displayed."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from html import escape

import pytest
from helpers.diagnosed import diagnosed, each_diagnosed_once
from helpers.make_run import RECORDING
from helpers.paths import ROOT
from helpers.present import present
from rich.console import Console

import gpuprof
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import FixLine
from gpuprof.errors import GpuprofError
from gpuprof.report.notebook import diagnosis_html
from gpuprof.report.page import content

GPUS = ["H100 SXM", "RTX 4090"]


@pytest.fixture(scope="module")
def demo():
    with each_diagnosed_once():
        return gpuprof.diagnose(RECORDING)


def test_findings_are_those_of_the_diagnosis(demo):
    table = demo.tables.findings()
    assert len(demo.findings) > 1
    assert table["id"].tolist() == [one.id for one in demo.findings]
    assert table["step_expected_ns"].tolist() == [round(one.step_ns.expected) for one in demo.findings]
    assert table["speedup_low"].tolist() == [one.speedup.low for one in demo.findings]
    assert [len(rows) for rows in table["evidence"]] == [len(one.evidence) for one in demo.findings]


def test_a_changed_diagnosis_has_its_own_findings(demo):
    changed = replace(demo, findings=demo.findings[:1])
    assert changed.tables.findings()["id"].tolist() == [demo.findings[0].id]
    empty = replace(demo, findings=()).tables.findings()
    assert len(empty) == 0 and list(empty.columns) == list(demo.tables.findings().columns)


def test_functions_are_those_of_the_diagnosis(demo):
    found = diagnosed(ROOT / "scenarios" / "programs" / "clip_and_log" / "recording")
    table, host = found.tables.functions(), present(found.host)
    functions = host.functions
    assert table["function"].tolist() == [one.function for one in functions]
    assert table["expected_ns"].tolist() == [round(one.ns.expected) for one in functions]
    assert table["step_low_ns"].tolist() == [present(one.step_ns).low for one in functions]
    unknown = replace(functions[0], step_ns=None, gpu_waits=None, why_unknown="a reason")
    (row,) = replace(found, host=replace(host, functions=(unknown,))).tables.functions().to_dict("records")
    assert math.isnan(row["step_expected_ns"]) and math.isnan(row["gpu_waits"]) and row["why_unknown"] == "a reason"
    empty = demo.tables.functions()
    assert len(empty) == 0 and empty["line"].dtype == "int64" and list(empty) == list(table)


def test_projections_are_those_of_project(demo):
    table, projection = demo.tables.projections(GPUS), gpuprof.project(demo, GPUS)
    assert table["gpu"].tolist() == [one.gpu for one in projection.gpus]
    assert table["step_expected_ns"].tolist() == [round(one.step_ns.expected) for one in projection.gpus]
    assert table["fits"].tolist() == [one.memory.fits if one.memory else None for one in projection.gpus]
    with pytest.raises(GpuprofError, match="no such GPU"):
        demo.tables.projections(["no such GPU"])


def test_a_finding_prints_without_its_evidence(demo):
    finding = demo.findings[0]
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(finding)
    text = out.getvalue()
    assert finding.title in text and repr(finding.severity) in text and "speedup=" in text
    assert "evidence" not in text


def test_a_finding_shows_itself_in_a_notebook(demo):
    finding = replace(demo.findings[0], fix_lines=(FixLine("<script>alert(1)</script>", code=True),))
    html = finding._repr_html_()
    assert finding.title in html and "&lt;script&gt;" in html and "<script" not in html
    assert finding.evidence[0].text.split()[0] in html


def test_a_prompt_shows_one_line_of_each(demo):
    for one, says in ((demo, "WAITING FOR THE CPU"), (demo.findings[0], demo.findings[0].title)):
        assert says in repr(one) and len(repr(one)) < 200 and "\n" not in repr(one)


def test_evidence_is_named_as_the_report_names_it(demo):
    kernel = Evidence("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, " * 3,
                      start_ns=1_000_000, ns=2_000_000, on_gpu=True)  # fmt: skip
    fact = Evidence("a fact")
    text = str(replace(demo.findings[0], evidence=(kernel, fact)))
    *_, before, last = text.splitlines()
    assert before == "  a fact"
    assert last.endswith(": 2.0 ms at 1.0 ms") and len(last) < 90 and "void at" not in last


def test_a_notebook_shows_what_is_worth_trying_and_the_users_line_first():
    found = diagnosed(ROOT / "scenarios" / "programs" / "clip_and_log" / "recording")
    html = diagnosis_html(found)
    assert found.worth_trying and f"<b>{escape(found.worth_trying[0].title)}</b>" in html.partition("Worth trying")[2]
    assert re.search(r"<b><code>[\w./]*train\.py:\d+</code></b></td><td><code>\w", html)


def test_functions_of_the_cpu_begin_with_the_line_of_the_users_code():
    found = content.functions(diagnosed(ROOT / "scenarios" / "programs" / "clip_and_log" / "recording"))
    assert found and all(re.fullmatch(r"[\w.]+\.py:\d+", row[0]) for row in found)
    assert ("train.py:18", "clip") in [row[:2] for row in found]
