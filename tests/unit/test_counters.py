"""Counters of Nsight Compute, compared with gpuprof's figures for the same kernels."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuprof import diagnose
from gpuprof.cli.diagnose import command
from gpuprof.diagnosis.counters.counters import with_counters
from gpuprof.diagnosis.written.diagnosis_json import to_json
from gpuprof.errors import GpuprofError
from gpuprof.report.words.counters_words import lines
from gpuprof.tracefile.nsight_compute import DRAM, DURATION, ISSUE, SM, TENSOR, read_counters

SHARED = Path(__file__).parents[3] / "shared" / "traces" / "h200"
PAIR = pytest.mark.skipif(not SHARED.exists(), reason="recordings that do not come with a checkout")
LONG = f"""==PROF== Connected to process 1
"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"
"0","void k<float>(int)","(128, 1, 1)","(64, 2, 1)","{DURATION}","us","1,017.5"
"0","void k<float>(int)","(128, 1, 1)","(64, 2, 1)","{TENSOR}","%","12.5"
"0","void k<float>(int)","(128, 1, 1)","(64, 2, 1)","{DRAM}","%","n/a"
"""
WIDE = f""""ID","Kernel Name","Block Size","Grid Size","{DURATION}","{TENSOR}"
"","","","","us","%"
"0","void k<float>(int)","(128, 1, 1)","(64, 2, 1)","1,017.5","12.5"
"""


DETAILS = """"ID","Process ID","Kernel Name","Block Size","Grid Size","Section Name","Metric Name",\
"Metric Unit","Metric Value"
"0","7","k","(128, 1, 1)","(64, 2, 1)","GPU Speed Of Light Throughput","DRAM Throughput","%","41.50"
"0","7","k","(128, 1, 1)","(64, 2, 1)","GPU Speed Of Light Throughput","Duration","ms","1.25"
"0","7","k","(128, 1, 1)","(64, 2, 1)","GPU Speed Of Light Throughput","Compute (SM) Throughput","%","73.00"
"0","7","k","(128, 1, 1)","(64, 2, 1)","Compute Workload Analysis","Issue Slots Busy","%","12.00"
"0","7","k","(128, 1, 1)","(64, 2, 1)","","","",""
"0","8","k","(128, 1, 1)","(64, 2, 1)","GPU Speed Of Light Throughput","DRAM Throughput","%","9.00"
"""
FULL = """"ID","Kernel Name","Block Size","Grid Size","gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",\
"sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",\
"sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_active"
"","","","","%","%","%"
"0","k","(128, 1, 1)","(64, 2, 1)","12","3","55"
"""


def test_the_details_page_and_the_sets(tmp_path):
    """Labels in words, and other names for the same counters; processes that each count from 0 are kept apart."""
    path = tmp_path / "ncu.csv"
    path.write_text(DETAILS)
    one, other = read_counters(path)
    assert one.metrics == {DRAM: 41.5, DURATION: 1_250_000.0, SM: 73.0, ISSUE: 12.0}
    assert other.metrics == {DRAM: 9.0}
    path.write_text(FULL)
    (one,) = read_counters(path)
    assert (one.metrics[DRAM], one.metrics[TENSOR]) == (12.0, 55.0)


@pytest.mark.parametrize("text", [LONG, WIDE])
def test_both_forms_of_the_table(tmp_path, text):
    path = tmp_path / "ncu.csv"
    path.write_text(text)
    (one,) = read_counters(path)
    assert (one.grid, one.block) == ((64, 2, 1), (128, 1, 1))
    assert one.metrics == {DURATION: 1_017_500.0, TENSOR: 12.5}


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "no table"), (b"a,b\n1,2\n", "no table"), (b'"ID","Kernel Name"\n"0","k"\n', "no counters")],
)
def test_what_is_no_table_is_one_line(tmp_path, content, said):
    path = tmp_path / "ncu.csv"
    path.write_bytes(content)
    with pytest.raises(GpuprofError, match=said):
        read_counters(path)


def test_a_damaged_archive_is_one_line(tmp_path):
    path = tmp_path / "ncu.csv.gz"
    path.write_bytes(gzip.compress(LONG.encode() * 50)[:-20])
    with pytest.raises(GpuprofError, match="damaged"):
        read_counters(path)
    with pytest.raises(GpuprofError, match="cannot be read"):
        read_counters(tmp_path / "none.csv")


@PAIR
def test_a_step_recorded_and_counted():
    """The same 499 kernels in both: what limits them agrees for nine tenths of their time."""
    diagnosis = with_counters(
        diagnose(SHARED / "roofline_pair.json.gz"), read_counters(SHARED / "roofline_pair.ncu.csv.gz")
    )
    found = diagnosis.counters
    assert found is not None
    assert found.kernels == 499
    assert found.matched_share > 0.99
    assert found.agreeing_share is not None
    assert found.agreeing_share >= 0.9
    assert to_json(diagnosis)["counters"]["largest"][0]["agrees"]
    assert {one.counted for one in found.largest} <= {"tensor", "memory", "latency"}
    assert "the counters agree" in lines(diagnosis)[0]


@PAIR
def test_the_command():
    done = CliRunner().invoke(
        command, [str(SHARED / "roofline_pair.json.gz"), "--ncu", str(SHARED / "roofline_pair.ncu.csv.gz")],
        standalone_mode=False,
    )  # fmt: skip
    assert done.exception is None
    assert "  ncu " in done.output


@PAIR
def test_counters_of_another_program_are_refused(tmp_path):
    path = tmp_path / "ncu.csv"
    path.write_text(LONG.replace("n/a", "50"))
    with pytest.raises(GpuprofError, match="no kernel of the table"):
        with_counters(diagnose(SHARED / "roofline_pair.json.gz"), read_counters(path))
