"""Folders and files of several ranks: which are one training; what cannot be compared gives one line."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from pathlib import Path

import pytest
from helpers.command import in_process, one_line
from helpers.command import run as command
from helpers.make_trace import TraceBuilder
from helpers.rank_program import MS, RankProgram, recording, run, write

import gpuprof
from gpuprof.errors import GpuprofError
from gpuprof.runfile import SCHEMA


def test_a_folder_of_ranks_on_the_command_line(tmp_path: Path, capsys):
    paths = write(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS)])

    def shown(*arguments: Path) -> dict:
        code, out, err = command(capsys, "diagnose", *arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    found = shown(tmp_path)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert found["verdict"]["cause"] == "straggler"
    assert shown(paths[1], paths[0])["ranks"] == found["ranks"], "in any order"
    assert shown(paths[0])["ranks"] is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["same", "same"], "both of rank 0"),
        (["nothing"], "is a folder"),
        (["rank", "lone"], "share no collective"),
        (["rank", "no.json"], "no such file"),
        (["rank", "broken"], "fewer than two.*not a profiler trace"),
        (["rank", "nothing"], "is a folder"),
    ],
)
def test_what_are_no_ranks_of_one_training_is_one_line(tmp_path: Path, given, says, capsys):
    paths = write(tmp_path, [RankProgram(), RankProgram()])
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "notes.txt").write_text("no trace")
    lone = [dataclasses.replace(RankProgram(), groups=("[7, 8]", "[7, 8]"))]
    done = run([RankProgram()], 3)
    files = {"same": paths[0], "rank": paths[1], "nothing": tmp_path / "nothing", "no.json": tmp_path / "no.json"}
    files["lone"] = recording(0, lone[0], done[0], 9).write(tmp_path / "lone.json")
    files["broken"] = tmp_path / "broken.json"
    files["broken"].write_text('{"a": 1}')
    code, out, err = command(capsys, "diagnose", *(files[name] for name in given))
    assert (code, out) == (2, "")
    assert re.search(says, one_line(err))


def test_a_run_of_several_ranks(tmp_path: Path):
    """Its folder means all of its ranks; one of its traces means that one."""
    programs = [RankProgram(), RankProgram(extra_ns=40 * MS)]
    for r, path in enumerate(write(tmp_path, programs)):
        path.rename(tmp_path / f"trace.rank{r}.json.gz")
        (tmp_path / f"rank{r}.json").write_text(json.dumps({"schema": SCHEMA, "rank": r, "world_size": 2}))
    together = gpuprof.diagnose(tmp_path)
    assert (together.verdict.cause, together.source.kind) == ("straggler", "run")
    assert together.ranks is not None
    assert gpuprof.diagnose(tmp_path / "trace.rank0.json.gz").ranks is None


def test_traces_named_as_a_run_names_its_ranks_are_ranks_of_one_training(tmp_path: Path):
    """In a run folder `rank0.json` holds a rank's own facts; the file's content tells the two apart."""
    for path in write(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS)]):
        (tmp_path / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.json", "rank1.json"]
    together = gpuprof.diagnose(tmp_path)
    assert (together.verdict.cause, together.source.kind) == ("straggler", "kineto")
    assert together.ranks is not None
    assert [rank.rank for rank in together.ranks] == [0, 1]
    assert gpuprof.diagnose(tmp_path / "rank0.json").ranks is None
    done = in_process("diagnose", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["source"]["kind"] == "kineto"


def test_a_run_with_a_trace_in_place_of_what_a_rank_says_is_a_run(tmp_path: Path):
    """Someone copied the other rank's trace into the folder of the first."""
    first, other = write(tmp_path, [RankProgram(), RankProgram()])
    first.rename(tmp_path / "trace.rank0.json.gz")
    (tmp_path / "rank0.json").write_text(json.dumps({"schema": SCHEMA, "rank": 0, "world_size": 2}))
    (tmp_path / "rank1.json").write_bytes(gzip.decompress(other.read_bytes()))
    other.unlink()
    alone = gpuprof.diagnose(tmp_path)
    assert (alone.source.kind, alone.ranks, alone.environment.rank) == ("run", None, 0)


@pytest.mark.parametrize("text", ['{"schema": "gpuprof.run/1", "rank": 0, "wor', "", '{"schema": "gpuprof.run/2"}'])
def test_what_a_rank_says_may_be_cut_or_of_another_version(tmp_path: Path, text):
    for r, path in enumerate(write(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS)])):
        path.rename(tmp_path / f"trace.rank{r}.json.gz")
    (tmp_path / "rank0.json").write_text(text)
    assert gpuprof.diagnose(tmp_path).source.kind == "run"


@pytest.mark.parametrize("text", ['{"schema": "other/1"}', "[1, 2]", '{"rank": 3}'])
def test_a_folder_of_neither_is_one_line(tmp_path: Path, text):
    (tmp_path / "rank0.json").write_text(text)
    (tmp_path / "manifest.json").write_text('{"files": []}')
    done = in_process("diagnose", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1
    assert str(tmp_path) in done.stderr and "trace" in done.stderr


def test_a_run_whose_ranks_cannot_be_compared_is_diagnosed_by_its_first(tmp_path: Path):
    for r in range(2):
        made = TraceBuilder(distributedInfo={"rank": r, "world_size": 2}).step(1, 0, 10 * MS)
        made.op("aten::mm", 0, 9 * MS).launch("gemm", (1 * MS, 2 * MS), (3 * MS, 4 * MS))
        made.write(tmp_path / f"trace.rank{r}.json.gz")
        (tmp_path / f"rank{r}.json").write_text(json.dumps({"schema": SCHEMA, "rank": r, "world_size": 2}))
    alone = gpuprof.diagnose(tmp_path)
    assert alone.ranks is None
    assert alone.environment.rank == 0


def test_no_paths_at_all():
    with pytest.raises(GpuprofError, match="no recording"):
        gpuprof.diagnose([])
