"""Digests: what is kept of a rank and where; many are read in parallel, from anywhere."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.rank_program import MS, RankProgram, recording, run, write
from helpers.started import finished

import gpuprof
from gpuprof.cli.shared import after_recording
from gpuprof.cli.trace import closing_command
from gpuprof.diagnosis.ranks.rank_digest import digest_of_trace
from gpuprof.diagnosis.ranks.rank_digests import FEWEST_IN_PARALLEL, cache_folder, digest_path, digests_of, make
from gpuprof.diagnosis.ranks.ranks import survey
from gpuprof.errors import GpuprofError, UnreadableTrace
from gpuprof.ranks import storage
from gpuprof.ranks.digest_data import Digest
from gpuprof.record.launcher.recording_reader import ENDED
from gpuprof.runfile import SCHEMA
from gpuprof.tracefile.read import read_trace
from gpuprof.tracefile.remote import traces_at, url_of
from gpuprof.tracefile.trace import Trace


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPROF_CACHE", str(tmp_path / "cache"))


def digest_at(path: Path) -> Digest:
    found = digest_of_trace(path, read_trace)
    assert isinstance(found, Digest)
    return found


def same(a: object, b: object) -> bool:
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_a_digest_replays_as_its_graph(tmp_path: Path):
    for path in write(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS)]):
        digest = digest_at(path)
        assert digest.fit < 1e-6
        assert (digest.rows.group >= 0).sum() == 8
        assert (digest.rows.step >= 0).all()


def test_a_digest_is_kept_whole(tmp_path: Path):
    digest = digest_at(write(tmp_path, [RankProgram(), RankProgram()])[0])
    data = storage.to_bytes(digest, "key")
    read = storage.from_bytes(data, "x", "key")
    assert same(digest, read)
    assert len(data) < 1 << 20


def test_a_digest_of_another_state_or_version_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    digest = digest_at(write(tmp_path, [RankProgram(), RankProgram()])[0])
    data = storage.to_bytes(digest, "size 1")
    assert storage.from_bytes(data, "x", "size 2") is None
    monkeypatch.setattr(storage, "FORMAT_VERSION", 0)
    assert storage.from_bytes(data, "x", "size 1") is None


@pytest.mark.parametrize("damage", [lambda d: d[: len(d) // 2], lambda d: b"", lambda d: b"PK" + d[2:40]])
def test_a_damaged_digest_is_one_line(tmp_path: Path, damage):
    digest = digest_at(write(tmp_path, [RankProgram(), RankProgram()])[0])
    with pytest.raises(UnreadableTrace, match="not a digest of a rank"):
        storage.from_bytes(damage(storage.to_bytes(digest)), "rank.npz")


def test_a_recording_that_changed_is_read_again(tmp_path: Path):
    first, other = write(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS)])
    before = make(str(first), None, 0)
    (kept,) = cache_folder().iterdir()
    os.utime(kept, ns=(1, 1))
    assert make(str(first), None, 0) == before
    assert kept.stat().st_mtime_ns == 1, "not written again"
    first.write_bytes(other.read_bytes())
    os.utime(first, ns=(5, 5))
    assert make(str(first), None, 0) != before
    assert kept.stat().st_mtime_ns != 1


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (path, _) = write(tmp_path, [RankProgram(), RankProgram()])
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("GPUPROF_CACHE", str(tmp_path / "file" / "cache"))
    assert isinstance(make(str(path), None, 0), bytes)


def test_a_file_whose_name_is_not_utf8_has_a_digest_that_is_found_again(tmp_path: Path):
    (path, _) = write(tmp_path, [RankProgram(), RankProgram()])
    odd = path.rename(os.fsdecode(os.fsencode(path).replace(b"rank", b"r\xffnk")))
    assert "\udcff" in odd.name
    before = make(str(odd), None, 0)
    assert isinstance(before, bytes) and make(str(odd), None, 0) == before
    assert len(list(cache_folder().iterdir())) == 1


@pytest.mark.slow
def test_many_ranks_in_parallel_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One of them unreadable, which is a note."""
    programs = [RankProgram(extra_ns=(r == 5) * 30 * MS) for r in range(FEWEST_IN_PARALLEL + 1)]
    paths = write(tmp_path, programs)
    paths[2].write_text('{"a": 1}')
    alone = [digest_of_trace(path, read_trace) for path in paths]
    together = list(digests_of(paths, read_trace))
    assert len(together) == FEWEST_IN_PARALLEL + 1
    assert all(same(a, b) for a, b in zip(alone, together, strict=True))
    monkeypatch.chdir(tmp_path)
    gang = survey([path.name for path in paths], read_trace)
    ((id_, text),) = gang.notes
    assert id_ == "rank_unreadable" and paths[2].name in text and str(tmp_path) not in text, "named as it was given"
    assert gang.missing == (2,)
    assert gang.slow is not None
    assert gang.ranks[gang.slow].rank == 5


def run_folder(folder: Path, programs: list[RankProgram]) -> list[Path]:
    """A run folder of several ranks whose traces are not compressed yet; returns the names that they will have."""
    for r, path in enumerate(write(folder, programs)):
        (folder / f"trace.rank{r}.json").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
        (folder / f"rank{r}.json").write_text(json.dumps({"schema": SCHEMA, "rank": r, "world_size": len(programs)}))
    (folder / "manifest.json").write_text(json.dumps({"schema": SCHEMA, "status": "finished"}))
    return [folder / f"trace.rank{r}.json.gz" for r in range(len(programs))]


def close(folder: Path) -> None:
    """Runs what `gpuprof trace` starts when the window has closed."""
    words, variables = closing_command(folder, ENDED, diagnose=False)
    done = finished(words, cwd=folder, env=variables, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def close_here(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[[Path], None]]:
    """The same in this process, as starting another would take longer than its work."""

    def close(folder: Path) -> None:
        after_recording.main(str(folder), "", "")
        assert capfd.readouterr().err == ""

    umask = os.umask(0o077)
    yield close
    os.umask(umask)


def no_reading(path: Path) -> Trace:
    raise AssertionError(f"{path} is read, although its digest is there")


def test_a_run_leaves_the_digests_of_its_ranks(tmp_path: Path, close_here):
    traces = run_folder(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS)])
    close(tmp_path)
    assert all(path.is_file() and digest_path(path).is_file() for path in traces)
    made = list(digests_of(traces, no_reading))
    assert all(same(a, digest_at(path)) for a, path in zip(made, traces, strict=True))
    assert gpuprof.diagnose(tmp_path).verdict.cause == "straggler"
    stamps = [digest_path(path).stat().st_mtime_ns for path in traces]
    close_here(tmp_path)
    assert [digest_path(path).stat().st_mtime_ns for path in traces] == stamps, "made once"
    elsewhere = tmp_path / "copy"
    elsewhere.mkdir()
    for path in traces:
        (elsewhere / path.name).write_bytes(path.read_bytes())
        digest_path(elsewhere / path.name).write_bytes(digest_path(path).read_bytes())
    gang = survey([elsewhere / path.name for path in traces], no_reading)
    assert [Path(one.path).parent for one in gang.ranks] == [elsewhere] * 2


def test_a_digest_is_not_used_for_another_recording_or_other_steps(tmp_path: Path, close_here):
    first, other = run_folder(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS)])
    close_here(tmp_path)
    (skipped,) = digests_of([first], read_trace, skip=1)
    assert isinstance(skipped, Digest)
    assert len(skipped.step_begin_ns) == len(digest_at(first).step_begin_ns) - 1
    first.write_bytes(other.read_bytes())
    with pytest.raises(AssertionError, match="is read"):
        list(digests_of([first], no_reading))
    read = []
    list(digests_of([first], lambda path: read.append(path) or read_trace(path)))
    assert read == [first]


def test_a_run_of_one_rank_has_no_digest_and_a_damaged_one_says_why(tmp_path: Path, close_here):
    run_folder(tmp_path, [RankProgram()])
    close_here(tmp_path)
    assert not list(tmp_path.glob("*.npz"))
    (tmp_path / "rank0.json").write_text(json.dumps({"schema": SCHEMA, "rank": 0, "world_size": 2}))
    (tmp_path / "trace.rank0.json").write_text('{"a": 1}')
    close_here(tmp_path)
    assert not list(tmp_path.glob("*.npz"))
    assert "no digest: " in (tmp_path / "gpuprof.log").read_text()


def test_a_kept_digest_leads_to_where_the_recording_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, [RankProgram(extra_ns=(r == 3) * 40 * MS) for r in range(FEWEST_IN_PARALLEL)])
    monkeypatch.chdir(tmp_path)
    names = [f"rank{r}.json.gz" for r in range(FEWEST_IN_PARALLEL)]
    assert gpuprof.diagnose(names).verdict.cause == "straggler"
    monkeypatch.chdir(tmp_path.parent)
    assert gpuprof.diagnose(tmp_path).verdict.cause == "straggler", "digests of relative paths, made elsewhere"


def test_a_digest_next_to_a_recording_in_an_object_store(tmp_path: Path, close_here):
    """Only the end of the recording itself is read; its middle is damaged here."""
    fsspec = pytest.importorskip("fsspec")
    traces = run_folder(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS)])
    close_here(tmp_path)
    store = fsspec.filesystem("memory")
    try:
        for path in tmp_path.iterdir():
            store.pipe_file(f"/run/{path.name}", path.read_bytes())
        urls = [f"memory://run/{path.name}" for path in traces]
        names = [url.rsplit("/", 1)[-1] for url in traces_at("memory://run")]
        assert names == [path.name for path in traces], "what else is in a run's folder is no trace"
        data = bytearray(traces[0].read_bytes())
        data[100:-8] = bytes(len(data) - 108)
        store.pipe_file("/run/trace.rank0.json.gz", bytes(data))
        found = make(urls[0], None, 0)
        assert found == digest_path(traces[0]).read_bytes()
        store.pipe_file("/run/trace.rank0.json.gz", bytes(data)[:-1])
        assert make(urls[0], None, 0) != found
    finally:
        store.rm("/run", recursive=True)


def test_ranks_in_an_object_store(tmp_path: Path):
    """In fsspec's in-memory store: as files, as a folder, and without two slashes, as pathlib writes a URL."""
    fsspec = pytest.importorskip("fsspec")
    paths = write(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS), RankProgram()])
    store = fsspec.filesystem("memory")
    for path in paths:
        store.pipe_file(f"/job/{path.name}", path.read_bytes())
    try:
        urls = [f"memory://job/{path.name}" for path in paths]
        for given in (urls, "memory://job", Path("memory://job")):
            found = gpuprof.diagnose(given)
            assert found.verdict.cause == "straggler"
            assert found.environment.rank == 1
        assert gpuprof.diagnose(urls[0]).ranks is None
        with pytest.raises(UnreadableTrace, match="no such file"):
            gpuprof.diagnose("memory://elsewhere")
    finally:
        store.rm("/job", recursive=True)


def test_what_is_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert url_of("s3://bucket/a.json") == url_of(Path("s3://bucket/a.json")) == "s3://bucket/a.json"
    assert url_of("C:/traces/a.json") is None
    assert url_of("traces/a.json") is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "a.json").write_text("{}")
    assert url_of("s3:/a.json") is None
    with pytest.raises(GpuprofError, match="nosuchstore"):
        gpuprof.diagnose("nosuchstore://a/b.json")


def test_steps_are_compared_by_what_they_are_not_by_their_number(tmp_path: Path):
    """Each step has another length, the same on all ranks; one recording begins a step later than the others. Compared
    by number within the recording, either would pass for slow in some steps."""
    programs = [RankProgram(), RankProgram(skipped=1), RankProgram()]
    done = run(programs, 6)
    for steps in done:
        for k, s in enumerate(steps):
            later = sum((37 * j % 5) * 8 * MS for j in range(k + 1))
            for name, value in vars(s).items():
                if isinstance(value, tuple):
                    setattr(s, name, tuple(v + later for v in value))
                elif isinstance(value, list):
                    setattr(s, name, [tuple(v + later for v in one) for one in value])
                else:
                    setattr(s, name, value + later)
    paths = [recording(r, p, done[r], 3).write(tmp_path / f"{r}.json") for r, p in enumerate(programs)]
    gang = survey(paths, read_trace)
    assert gang.job.steps == 5
    assert gang.slow is None
    waited = np.array([one.waited_ns for one in gang.job.members])
    assert waited[:, 1:].max() < 1 * MS, "what came before its first step one recording does not say"
    assert gang.job.replay_error < 0.02
