"""`gpuprof project` as a shell sees it."""

from __future__ import annotations

import json

import pytest
from helpers.command import in_process
from jsonschema import Draft202012Validator

from gpuprof.projection.projection import DOCUMENT as PROJECTION

RUN = "tests/data/runs/dense8b_lora"


def test_the_table_answers_and_says_what_it_assumes(tmp_path):
    done = in_process(
        "project", RUN, "--to", "H100 SXM,RTX 4090", "--explain", "H100 SXM", "RTX 4090", "--ranks", "2",
        COLUMNS="110", XDG_CONFIG_HOME=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 110
    h100 = next(line for line in lines if line.startswith("H100 SXM5 80GB"))
    assert "memory" in h100
    assert any(line.startswith("RTX 4090") and "1 of 2" in line for line in lines), "24 GB hold half of the batch"
    for words in ("host factor 1, assumed", "with another host", "several of them", "against RTX 4090", "assuming",
                  "host floor", "memory holds", "bandwidth"):  # fmt: skip
        assert words in done.stdout


def test_json_is_valid_and_a_measured_host_is_taken(tmp_path):
    measurement = {
        "device_name": "NVIDIA H200", "memory_bytes": 150109880320, "flops": {"bf16": 7.9e14},
        "memory_bytes_per_s": 4.2e12, "link_bytes_per_s": 5.4e10, "launch_ns": 5000.0, "host_loop_ns": 40.0,
        "taken": "2026-01-01", "torch": "2.11",
    }  # fmt: skip
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    here.write_text(json.dumps({"schema": "gpuprof.gpus/1", "measurement": measurement}))
    slower = {**measurement, "launch_ns": 10_000.0, "host_loop_ns": 80.0}
    there.write_text(json.dumps({"schema": "gpuprof.gpus/1", "measurement": slower}))
    done = in_process("project", RUN, "--to", "l4", "--hosts", here, there, "--json", XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert not list(Draft202012Validator(PROJECTION.schema()).iter_errors(document))
    assert (document["asked"]["host_factor"], document["asked"]["host_source"]) == (2.0, "measured")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([RUN], "name a GPU: --to GPU"),
        ([RUN, "--to", "RTX 4091"], "nearest are RTX 4090"),
        ([RUN, "--to", "4080"], "say which"),
        ([RUN, "--to", "L4", "--batch", "0"], "batch: 0 is less than 1"),
        ([RUN, "--to", "L4", "--price", "L4=cheap"], "give dollars per hour"),
        ([RUN, "--to", "L4", "--host-factor", "-1"], "a host factor is"),
        ([RUN, "--to", "L4", "--ranks", "two"], "give counts of GPUs"),
        ([RUN, "--to", "L4", "--hosts", "no.json", "no.json"], "no.json: the measurement cannot be read"),
        (["nowhere.json", "--to", "L4"], "nowhere.json: no such file"),
        (["README.md", "--to", "L4"], "README.md"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, says):
    done = in_process("project", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--batch", "4"], "batch: how many samples a forward pass has is not known"),
        (["--sample-tokens", "512"], "tokens of a sample: how many tokens its samples have is not known"),
        (["--layers", "44"], "layers: which of its work is a layer's is not known"),
        (["--experts", "64"], "experts: no loop over experts was found"),
        (["--price", "3", "--to", "T4"], "--price 3: give dollars per hour as GPU=USD"),
        (["--epoch", "0"], "samples of an epoch: 0 is less than 1"),
    ],
)
def test_what_the_recording_cannot_answer_is_not_passed_over(asked, says):
    """A trace alone, with one row per pass and without module ranges."""
    done = in_process("project", "tests/data/pairs/tiny.json.gz", "--to", "L4", *asked)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
