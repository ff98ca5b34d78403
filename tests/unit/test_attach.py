"""The local channel of armed trainings, and which recordings a watch keeps."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.program import Program
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.attach import jobs
from gpuprof.attach.kept import KeptRun, measured, shrink, to_shrink
from gpuprof.attach.watching import StepReader
from gpuprof.cli.shared.watch_recordings import what_changed
from gpuprof.record.base.options import DEFAULTS, why_not
from gpuprof.record.entry import local_channel


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for this test's sockets: a short path, as sockets need one."""
    with tempfile.TemporaryDirectory(prefix="gp-", dir="/tmp") as folder:
        monkeypatch.setattr(local_channel, "folders", lambda: [Path(folder) / "gpuprof"])
        yield Path(folder) / "gpuprof"


@pytest.fixture
def server(place: Path) -> Iterator[Path]:
    """The socket of a server that echoes its requests."""

    def answer(request: dict) -> dict:
        if "fail" in request:
            raise ValueError("no")
        return {"asked": request} if "long" not in request else {"text": "x" * local_channel.LARGEST_REQUEST_BYTES}

    made = local_channel.Server(answer)
    made.start()
    yield next(place.iterdir())
    made.close()
    assert not list(place.iterdir())
    made.join(5)
    assert not made.is_alive()


def test_the_socket_is_the_users_alone(server: Path):
    assert server.stat().st_mode & 0o777 == 0o600
    assert server.parent.stat().st_mode & 0o777 == 0o700
    assert local_channel.ask(server, {"do": "status"}) == {"asked": {"do": "status"}}
    ours = {path.stat().st_ino for path in Path("/proc/self/fd").iterdir() if path.exists()}
    for table in Path("/proc/self/net").glob("tcp*"):  # no tcp6 without IPv6
        rows = [row.split() for row in table.read_text(encoding="utf-8").splitlines()[1:]]
        assert not [row for row in rows if row[3] == "0A" and int(row[9]) in ours]  # 0A: listens


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"no json\n", b"[1]\n", b"{" * 100_000 + b"\n", b"x" * 70_000, b'{"do": "status"'],
    ids=["nothing", "empty line", "no JSON", "no object", "deep", "too long", "cut off"],
)  # fmt: skip
def test_messages_that_are_none_do_not_end_it(server: Path, text: bytes):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server))
        try:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            said = connection.recv(1000)
            assert not said or "error" in json.loads(said)
        except OSError:
            pass
    assert local_channel.ask(server, {"n": 1}) == {"asked": {"n": 1}}


def test_errors_and_long_answers_are_said(server: Path):
    assert local_channel.ask(server, {"fail": 1}) == {"error": "ValueError: no"}
    with pytest.raises(local_channel.Refused):
        local_channel.ask(server, {"long": 1})
    with pytest.raises(local_channel.Refused):
        local_channel.ask(server, {"text": "x" * local_channel.LARGEST_REQUEST_BYTES})


def test_a_silent_client_does_not_hold_it_for_long(server: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_channel, "TIMEOUT_S", 0.5)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(server))
        threading.Event().wait(0.2)
        monkeypatch.setattr(local_channel, "TIMEOUT_S", 10.0)  # of the caller
        assert local_channel.ask(server, {}) == {"asked": {}}


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_that_others_may_enter_is_not_used(place: Path, mode: int):
    place.mkdir(mode=0o700)
    place.chmod(mode)
    with pytest.raises(local_channel.Refused, match="open to other users"):
        local_channel.Server(lambda request: request)


def test_a_link_in_the_folders_place_is_not_followed(place: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    assert "is not a folder" in (local_channel.why_not_private(place) or "")
    with pytest.raises(local_channel.Refused):
        local_channel.Server(lambda request: request)
    assert jobs.armed() == []


def test_answers_that_make_no_sense_are_left_out(place: Path):
    made = local_channel.Server(lambda _: {"pid": "one"})
    made.start()
    assert jobs.armed() == []
    assert len(list(place.iterdir())) == 1  # its process is alive
    made.close()


def test_sockets_of_ended_processes_are_taken_away(place: Path):
    place.mkdir(mode=0o700)
    stale = place / f"{2**22 + 5}-{local_channel.pid_namespace() or 0}.sock"
    other = place / "1-1.sock"
    for path in (stale, other):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    assert jobs.armed() == []
    assert list(place.iterdir()) == [other]  # in another pid namespace, where we cannot tell


def test_a_socket_that_was_taken_away_comes_back(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_channel, "LOOK_S", 0.05)
    made = local_channel.Server(lambda request: request)
    made.start()
    next(place.iterdir()).unlink()
    waited = threading.Event()
    for _ in range(1000):
        if list(place.glob("*.sock")):
            break
        waited.wait(0.005)
    assert local_channel.ask(next(place.glob("*.sock")), {"a": 1}) == {"a": 1}  # who finds it can connect to it
    made.close()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (DEFAULTS, None), (DEFAULTS | {"steps": 5}, None), ({}, None), ([], "without options"),
        ({"steps": -1}, "--steps"), ({"steps": True}, "--steps"), ({"shapes": 1}, "--shapes"),
        ({"ranks": ["a"]}, "--ranks"), ({"run": "rm"}, "no option 'run'"), ({"steps": 10**9}, "--steps"),
    ],
)  # fmt: skip
def test_options_that_another_process_wrote(options: object, expected: str | None):
    found = why_not(options)
    assert (found is None) if expected is None else (found is not None and expected in found)


class Replies:
    """A job that gives prepared answers."""

    def __init__(self, *answers: dict) -> None:
        self.answers, self.asked = list(answers), []

    def ask(self, **request: object) -> dict:
        self.asked.append(request["after"])
        return self.answers.pop(0)


def test_steps_of_recordings_are_left_out():
    job = Replies(
        {"first": 3, "ns": [10, 11, 12, 13], "recorded": [[4, 5]]}, {"first": 7, "ns": [], "recorded": [[4, 5]]},
        {"first": 7, "ns": [14, 15], "recorded": [[4, 5], [8, -1]]}, {"first": 9, "ns": [], "recorded": []},
    )  # fmt: skip
    reader = StepReader(job, 2)  # type: ignore[arg-type]
    assert reader.read() == [10, 13]
    assert reader.read() == [14]
    assert job.asked == [2, 6, 6, 8]
    with pytest.raises(OSError, match="not understood"):
        StepReader(Replies({"error": "x"}), 0).read()  # type: ignore[arg-type]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1000)), max_size=8),
    needed=st.sets(st.integers(0, 7)), most=st.integers(0, 4000),
)  # fmt: skip
def test_a_watch_keeps_within_its_limit(sizes: list[tuple[int, int]], needed: set[int], most: int):
    runs = [KeptRun(Path(str(i)), small + large, large) for i, (small, large) in enumerate(sizes)]
    keep = [Path(str(i)) for i in needed]
    gone = to_shrink(runs, keep, most)
    assert not set(gone) & set(keep)
    left = sum(run.size_bytes - run.large_bytes * (run.folder in gone) for run in runs)
    removable = [run for run in runs if run.folder not in keep and run.folder not in gone and run.large_bytes]
    assert left <= most or not removable
    # The oldest are removed first, and no more than necessary.
    assert not gone or sum(run.size_bytes - run.large_bytes * (run.folder in gone[:-1]) for run in runs) > most
    assert all(run.folder > gone[-1] for run in removable) if gone else True


def test_what_is_large_is_removed(tmp_path: Path):
    (tmp_path / "trace.rank0.json.gz").write_bytes(b"x" * 1000)
    (tmp_path / "steps.jsonl").write_bytes(b"x" * 10)
    assert measured(tmp_path) == KeptRun(tmp_path, 1010, 1000)
    shrink(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["steps.jsonl"]


def test_what_changed_is_written(tmp_path: Path):
    """Two recordings of one program, of which the later launches twice as much."""
    import gpuprof

    traces = []
    for kernels in (20, 40):
        program = Program()
        for _ in range(3):
            program.step(lambda program=program, kernels=kernels: [program.elementwise() for _ in range(kernels)])
        traces.append(program.trace.write(tmp_path / f"{kernels}.json"))
    before, after = traces
    text = what_changed(before, tmp_path, gpuprof.diagnose(after), "step 5: 100.0 → 130.0 ms a step")
    document = json.loads((tmp_path / "changed.json").read_text(encoding="utf-8"))
    assert document["schema"] == "gpuprof.comparison/1"
    assert (tmp_path / "changed.txt").read_text(encoding="utf-8") == text and text.startswith("step 5: ")
    assert len(text.splitlines()) > 5


def test_what_cannot_be_compared_is_said(tmp_path: Path):
    import gpuprof

    program = Program()
    program.step(lambda: [program.elementwise() for _ in range(20)])
    diagnosis = gpuprof.diagnose(program.trace.write(tmp_path / "a.json"))
    text = what_changed(tmp_path / "missing", tmp_path, diagnosis, "step 5: slower")
    assert text.startswith("step 5: slower\n") and "missing" in text and not (tmp_path / "changed.json").exists()
    assert "no recording of the step as it was before" in what_changed(None, tmp_path, diagnosis, "step 5: slower")
