"""Everything that takes a recording takes every kind of recording, or says in one line why not."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from helpers.command import in_process, one_line, working_in
from helpers.diagnosed import each_diagnosed_once
from helpers.make_nsys import training
from helpers.make_run import three_steps, usual_run
from helpers.paths import ROOT
from helpers.phase_marks import write_marks
from helpers.quick import few
from helpers.rank_program import MS, RankProgram, write
from helpers.training_logs import verl

import gpuprof
from gpuprof.cli import mcp
from gpuprof.cli.entry import COMMANDS
from gpuprof.cli.shared.recordings import RECORDING
from gpuprof.errors import GpuprofError
from gpuprof.memory.load_memory import load_memory
from gpuprof.runfile import LATEST, RUNS
from gpuprof.tracefile.recording import resolve

TO = "H100 SXM"
SEVERAL = r"recordings: name that of one rank|is a folder: name one trace file in it|of several ranks: name one of them"
NO_MEMORY = r"holds no memory (events|snapshot)|not a memory snapshot"
NO_STEPS_BUT_A_JOB = r"not a recording of steps: gpuprof diagnose reads it"
NO_STEPS = r"a memory snapshot, not a trace: gpuprof memory reads it"

KINDS = (
    "file", "gzip", "run", "file of a run", "folder of runs", "latest", "nothing", "folder of ranks", "run of ranks",
    "url", "url of ranks", "export", "report", "run of Nsight", "snapshot", "url of a snapshot", "log",
)  # fmt: skip
SEVERAL_PATHS = ("ranks", "pair", "export and url", "roles", "log and trace")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """A working directory with one recording of each kind, and an object store."""
    fsspec = pytest.importorskip("fsspec")
    folder = tmp_path_factory.mktemp("recordings")
    three_steps(folder / "steps.json")
    ranks = folder / "ranks"
    ranks.mkdir()
    files = write(ranks, [RankProgram(), RankProgram(extra_ns=40 * MS)])
    shutil.copy(files[0], folder / "one.json.gz")
    training(steps=3, layers=3).write(folder / "export.sqlite")
    (folder / "report.nsys-rep").write_bytes(b"exported already")
    shutil.copy(folder / "export.sqlite", folder / "report.sqlite")
    for name in ("2026-01-01_01_old", "2026-01-02_02_new"):
        usual_run().write(folder / RUNS / name, folder / "steps.json")
    (folder / RUNS / LATEST).symlink_to("2026-01-02_02_new")
    several = shutil.copytree(folder / RUNS / "2026-01-01_01_old", folder / "several")
    (several / "trace.rank0.json").unlink()
    for rank, file in enumerate(files):
        shutil.copy(file, several / f"trace.rank{rank}.json.gz")
    usual_run().write(folder / "nsight", None)
    shutil.copy(folder / "export.sqlite", folder / "nsight" / "nsys.sqlite")
    packed = ROOT / "tests" / "data" / "snapshots" / "optimizer.pickle.gz"
    (folder / "memory.pickle").write_bytes(gzip.decompress(packed.read_bytes()))
    (folder / "verl.log").write_text(verl())
    for pid, phase in enumerate(("generation", "training")):
        write_marks(folder / phase, [(phase, 100.0 * i, 100.0 * i + 50) for i in range(9)], pid)
    store = fsspec.filesystem("memory")
    for file in (*files, folder / "memory.pickle"):
        store.pipe_file(f"/recordings/{file.name}", file.read_bytes())
    for file in files:
        store.pipe_file(f"/ranks/{file.name}", file.read_bytes())
    before = os.environ.get("GPUPROF_CACHE")
    os.environ["GPUPROF_CACHE"] = str(folder / "cache")
    yield folder
    os.environ.pop("GPUPROF_CACHE")
    if before is not None:
        os.environ["GPUPROF_CACHE"] = before
    for name in ("/recordings", "/ranks"):
        store.rm(name, recursive=True)


GIVEN = {
    "file": ("steps.json",),
    "gzip": ("one.json.gz",),
    "run": (f"{RUNS}/2026-01-01_01_old",),
    "file of a run": (f"{RUNS}/2026-01-01_01_old/trace.rank0.json",),
    "folder of runs": (RUNS,),
    "latest": ("latest",),
    "nothing": (),
    "folder of ranks": ("ranks",),
    "run of ranks": ("several",),
    "url": ("memory://recordings/rank0.json.gz",),
    "url of ranks": ("memory://ranks",),
    "export": ("export.sqlite",),
    "report": ("report.nsys-rep",),
    "run of Nsight": ("nsight",),
    "snapshot": ("memory.pickle",),
    "url of a snapshot": ("memory://recordings/memory.pickle",),
    "log": ("verl.log",),
    "ranks": ("ranks/rank0.json.gz", "ranks/rank1.json.gz"),
    "pair": ("export.sqlite", "steps.json"),
    "export and url": ("memory://recordings/rank0.json.gz", "ranks/rank1.json.gz"),
    "roles": ("generation", "training"),
    "log and trace": ("verl.log", "steps.json"),
}


# -- what takes them


def command(*words: str) -> Callable[..., None]:
    """Runs a command with the paths after its words; raises what it says on stderr."""

    def call(*paths: str) -> None:
        done = in_process(*words, *paths, cwd=Path.cwd(), GPUPROF_CACHE=os.environ["GPUPROF_CACHE"])
        if done.returncode:
            # `history` continues with the next one, and says at the end that there was none; for a report it says what
            # its content is.
            lines = [line for line in done.stderr.splitlines(True) if "whole environment" not in line]
            raise GpuprofError(one_line("".join(lines[: 1 if words == ("history",) else None])))

    return call


def view(*paths: str) -> None:
    """Runs `gpuprof view` until it serves, then ends it as a user would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def end() -> None:
        for _ in range(400):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20)
            except urllib.error.HTTPError:  # it serves another file
                os.kill(os.getpid(), signal.SIGTERM)
                return
            except OSError:
                if ended.wait(0.05):
                    return

    ended, before = threading.Event(), signal.getsignal(signal.SIGTERM)
    ender = threading.Thread(target=end)
    ender.start()
    try:
        command("view", "--no-open", "--port", str(port))(*paths)
    finally:
        ended.set()
        ender.join()
        signal.signal(signal.SIGTERM, before)


def tool(name: str) -> Callable[..., None]:
    """Runs a tool for agents, which takes one path, empty for the latest run."""
    function = getattr(mcp, name)

    def call(path: str = "") -> None:
        function(path, path) if name == "compare" else function(path, [TO]) if name == "project" else function(path)

    return call


def api(function: Callable[[Any], object]) -> Callable[..., None]:
    def call(*paths: str) -> None:
        function(None if not paths else paths[0] if len(paths) == 1 else paths)

    return call


ONE_PATH = {
    "export": command("export", "--perfetto", "--speedscope", "-o", "out", "--force"),
    "view": view,
    "compare": lambda *paths: command("compare")(*(paths or ("latest",)), *(paths or ("latest",))),
    "project": command("project", "--to", TO),
    "memory": command("memory"),
    "explain": command("explain", "train.py:1"),
    **{f"mcp {name}": tool(name) for name in ("diagnose", "findings", "gaps", "kernels", "compare", "project")},
}
SEVERAL_TAKEN = {
    "diagnose": command("diagnose", "--json"),
    "report": command("report", "-o", "page.html"),
    "history": command("history"),
    "gpuprof.load": api(gpuprof.load),
    "gpuprof.diagnose": api(gpuprof.diagnose),
    "gpuprof.compare": api(lambda given: gpuprof.compare(given, given)),
    "gpuprof.project": api(lambda given: gpuprof.project(given, [TO])),
    "load_memory": api(load_memory),
}
OF_MEMORY = ("memory", "load_memory")
OF_STEPS = [name for name in (*ONE_PATH, *SEVERAL_TAKEN) if name not in OF_MEMORY]

OF_RANKS = ("folder of ranks", "url of ranks", "ranks", "export and url")
SNAPSHOTS = ("snapshot", "url of a snapshot")
WITHOUT_MEMORY = ("file", "gzip", "file of a run", "url", "export", "report")
RUNS_OF = ("run", "folder of runs", "latest", "nothing", "run of ranks", "run of Nsight")

REFUSED = {
    **{(taker, kind): SEVERAL for taker in ("gpuprof.load", *OF_MEMORY) for kind in OF_RANKS},
    **{(taker, "pair"): SEVERAL for taker in OF_MEMORY},
    **{(taker, kind): NO_MEMORY for taker in OF_MEMORY for kind in WITHOUT_MEMORY},
    **{("load_memory", kind): NO_MEMORY for kind in RUNS_OF},  # what the command adds is a prediction
    ("memory", "run of ranks"): NO_MEMORY,
    **{("explain", kind): "no Python functions were sampled there" for kind in KINDS},
    **{(taker, kind): NO_STEPS for taker in OF_STEPS for kind in SNAPSHOTS},
    **{(taker, "log"): NO_STEPS_BUT_A_JOB for taker in OF_STEPS if taker != "diagnose"},
    **{(taker, "roles"): NO_STEPS_BUT_A_JOB for taker in OF_STEPS if taker not in ("diagnose", "history", "report")},
    **{(taker, "log and trace"): r"verl\.log is a log, steps\.json is not" for taker in OF_STEPS if taker != "history"},
    ("history", "roles"): "generation is a folder that holds no .json",
    **{(taker, "log"): NO_MEMORY for taker in OF_MEMORY},
    **{(taker, kind): SEVERAL for taker in OF_MEMORY for kind in ("roles", "log and trace")},
}
"""(taker, kind) → what the line says. A Trace, and memory, are those of one process."""

CASES = [
    *((taker, kind) for taker in (*ONE_PATH, *SEVERAL_TAKEN) for kind in KINDS),
    *((taker, kind) for taker in SEVERAL_TAKEN for kind in SEVERAL_PATHS),
]


QUICK_TAKERS = ("diagnose", "mcp diagnose", "gpuprof.load")
QUICK_KINDS = ("nothing", "url of ranks", "run of Nsight", "snapshot")
QUICK = [f"{taker}-{kind}" for taker, kind in CASES if taker in QUICK_TAKERS or kind in QUICK_KINDS]
"""Each kind occurs with some takers, and each taker with some kinds."""


@pytest.mark.parametrize(
    ("taker", "kind"), few([pytest.param(taker, kind, id=f"{taker}-{kind}") for taker, kind in CASES], QUICK)
)
def test_every_command_takes_every_kind(taker: str, kind: str, place: Path):
    take = {**ONE_PATH, **SEVERAL_TAKEN}[taker]
    with working_in(place), each_diagnosed_once(place):
        said = REFUSED.get((taker, kind))
        if said is None:
            take(*GIVEN[kind])
            return
        with pytest.raises(GpuprofError) as refused:
            take(*GIVEN[kind])
    assert re.search(said, str(refused.value))
    assert "\n" not in str(refused.value)


def test_no_command_is_left_out():
    modules = {name: import_module(module) for name, module in COMMANDS.items()}
    takers = {name for name, module in modules.items() if any(one.type is RECORDING for one in module.command.params)}
    assert takers == {name for name in (*ONE_PATH, *SEVERAL_TAKEN) if name in COMMANDS}
    arguments = [(name, one) for name, module in modules.items() for one in module.command.params
                 if isinstance(one, click.Argument) and isinstance(one.type, click.Path)]  # fmt: skip
    paths = {(name, one.name) for name, one in arguments if one.type is not RECORDING}
    assert paths == {("clean", "folder")}, "what takes a recording says so by its type"


def test_latest_is_a_name_like_any_other_where_there_is_one(place: Path, tmp_path: Path):
    shutil.copy(place / "steps.json", tmp_path / "latest")
    with working_in(tmp_path):
        assert resolve("latest").given == ("latest",)
        assert gpuprof.diagnose("latest").source.kind == "kineto"
    with working_in(place):
        assert resolve("latest").given == (f"{RUNS}/2026-01-02_02_new",)


def test_what_files_are_named_after(place: Path):
    with working_in(place):
        names = {kind: resolve(GIVEN[kind] or None).name for kind in KINDS}
        folders = {kind: resolve(GIVEN[kind] or None).folder for kind in KINDS}
    assert (names["gzip"], names["url"], names["url of ranks"], names["export"]) == (
        "one", "rank0", "ranks", "export.sqlite",
    )  # fmt: skip
    assert (names["latest"], names["nothing"]) == ("2026-01-02_02_new",) * 2
    assert folders["url of ranks"] is None and folders["folder of ranks"] == Path("ranks")
    assert folders["folder of runs"] == Path(RUNS) / "2026-01-02_02_new"


def test_an_answer_about_a_url_names_the_url(place: Path):
    assert gpuprof.diagnose("memory://recordings/rank0.json.gz").source.path == "memory://recordings/rank0.json.gz"
    with pytest.raises(GpuprofError, match=r"^memory://recordings/memory\.pickle is "):
        gpuprof.diagnose("memory://recordings/memory.pickle")


def test_a_recording_that_changed_has_another_state(tmp_path: Path):
    path = three_steps(tmp_path / "steps.json")
    before = resolve(path).state
    assert resolve(path).state == before
    path.write_text(path.read_text() + " ")
    assert resolve(path).state != before
    changed = resolve(tmp_path).state
    three_steps(tmp_path / "more.json")
    assert resolve(tmp_path).state != changed
