"""`gpuprof report`, and other commands that draw a report: where it is written, what they print and what they leave
behind."""

from __future__ import annotations

import gzip
import html
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command import in_process, run
from helpers.installed import need
from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT
from helpers.traces import RUNS
from helpers.warm_torch import warm_python

import gpuprof
from gpuprof.cli.report import default_place
from gpuprof.report.page.file import is_report
from gpuprof.tracefile.recording import resolve

MS = 1_000_000
START = "from gpuprof.cli import main; raise SystemExit(main())"
DEMO = ROOT / "gpuprof" / "data" / "demo.json.gz"


def command(*arguments: object, cwd: Path, python: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `gpuprof` as a user does; `python`: statements that run before it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUPROF_") and k not in ("COLUMNS", "CI")}
    how = ["-c", f"{python}\n{START}"] if python else ["-m", "gpuprof"]
    return subprocess.run(
        [sys.executable, *how, *map(str, arguments)], cwd=cwd, env={**clean, "PYTHONPATH": str(ROOT), **variables},
        stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=240,
    )  # fmt: skip


def one_line(stderr: str) -> str:
    assert re.fullmatch(r"gpuprof: [^\n]{10,2000}\n", stderr), stderr
    assert "please report it" not in stderr, "a mistake of the user's is reported as a bug"
    return stderr[:-1]


def is_page(path: Path) -> bool:
    """Whether the file is a whole report."""
    text = path.read_text(encoding="utf-8")
    return text.startswith("<!doctype html>") and text.rstrip().endswith("</html>") and is_report(path)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def builder() -> TraceBuilder:
    """Three steps of 1 ms."""
    builder = TraceBuilder()
    for i in range(3):
        builder.step(i, i * MS, (i + 1) * MS).op("aten::mm", i * MS + 10, i * MS + 900)
        builder.launch("gemm", (i * MS + 20, i * MS + 40), (i * MS + 50, i * MS + 600_000))
    return builder


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording, alone in the working directory."""
    monkeypatch.chdir(tmp_path)
    return builder().write(tmp_path / "small.json")


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory) -> gpuprof.Diagnosis:
    return gpuprof.diagnose(builder().write(tmp_path_factory.mktemp("trace") / "small.json"))


# -- where it is written


def test_of_a_trace_it_is_written_here(small: Path, tmp_path: Path):
    away = tmp_path / "away"
    away.mkdir()
    done = in_process("report", small, cwd=away)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "gpuprof: report: small.report.html\n")
    assert names(away) == {"small.report.html"} and is_page(away / "small.report.html")
    before = (away / "small.report.html").read_bytes()
    (away / "small.report.html").write_bytes(before[:5000])
    assert in_process("report", small, cwd=away).returncode == 0, "an earlier report is written over"
    assert (away / "small.report.html").read_bytes() == before
    assert names(tmp_path) == {"away", "small.json"}


@pytest.mark.parametrize(
    ("recording", "page"),
    [
        ("a.json", "a.report.html"),
        ("sub/a.json.gz", "a.report.html"),
        ("host_1.1694128201545.pt.trace.json.gz", "host_1.1694128201545.report.html"),
        ("a.b", "a.b.report.html"),
    ],
)
def test_its_name_is_that_of_the_trace(recording: str, page: str):
    assert default_place(resolve(recording)) == Path(page)


def test_of_a_run_it_is_written_into_its_folder(tmp_path: Path, capsys, monkeypatch):
    runs = tmp_path / "gpuprof-runs"
    old, new = (shutil.copytree(RUNS[0].parent, runs / name) for name in ("2026-01-01_01_old", "2026-01-02_02_new"))
    (runs / "latest").symlink_to(new.name)
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "report", "gpuprof-runs/2026-01-01_01_old") == (
        0, "", "gpuprof: report: gpuprof-runs/2026-01-01_01_old/report.html\n",
    )  # fmt: skip
    assert not (new / "report.html").exists()
    code, out, err = run(capsys, "report")
    assert (code, out) == (0, "") and written_path(err).samefile(new / "report.html")
    for folder in (old, new):
        assert is_page(folder / "report.html")
        assert names(folder) - names(RUNS[0].parent) == {"report.html"}
        title = re.search("<title>(.*?)</title>", (folder / "report.html").read_text(encoding="utf-8"))
        assert title and folder.name in title[1], "latest is another run tomorrow"


def written_path(stderr: str) -> Path:
    """The path of the only report, as printed."""
    (place,) = re.findall(r"^gpuprof: report: (.+)$", stderr, re.MULTILINE)
    return Path(place)


def test_without_a_run_one_line_says_what_to_name(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "report")
    assert (code, out) == (2, "") and "no recording given" in one_line(err)
    assert names(tmp_path) == set()


def test_of_a_folder_of_ranks_it_is_written_there(tmp_path: Path):
    builder().write(tmp_path / "rank0.json")
    assert default_place(resolve(tmp_path)) == tmp_path / "report.html"
    assert default_place(resolve(tmp_path / "rank0.json")) == Path("rank0.report.html")


def test_it_is_written_where_o_says(small: Path, tmp_path: Path, capsys):
    assert run(capsys, "report", small, "-o", "my page.htm") == (0, "", "gpuprof: report: my page.htm\n")
    assert names(tmp_path) == {"small.json", "my page.htm"} and is_page(tmp_path / "my page.htm")


def test_stdout_gets_the_page_and_nothing_else(small: Path, tmp_path: Path):
    done = command("report", small, "-o", "-", cwd=tmp_path)
    assert names(tmp_path) == {"small.json"}, "as for gpuprof export, - is stdout and no file's name"
    assert done.returncode == 0 and done.stdout.startswith("<!doctype html>")
    one_line(done.stderr)


# -- where it is not


@pytest.mark.parametrize("ours", [b"", b" \n"])
def test_an_empty_file_is_nothing_to_lose(small: Path, tmp_path: Path, capsys, ours: bytes):
    (tmp_path / "page.html").write_bytes(ours)
    assert run(capsys, "report", small, "-o", "page.html")[0] == 0
    assert is_page(tmp_path / "page.html")


@pytest.mark.parametrize(
    ("arguments", "page"), [(("report", "small.json", "-o"), "notes.html"), (("diagnose", "small.json", "--html"), "x")]
)
def test_what_is_no_report_is_never_overwritten(small: Path, tmp_path: Path, capsys, arguments, page):
    (tmp_path / page).write_text("<!doctype html><p>my notes")
    code, out, err = run(capsys, *arguments, page)
    assert (code, out) == (2, "") and "is not a report" in one_line(err)
    assert (tmp_path / page).read_text() == "<!doctype html><p>my notes"
    (tmp_path / "link").symlink_to(small)
    before = small.read_bytes()
    for name in ("small.json", "link"):
        code, out, err = run(capsys, *arguments, name)
        assert (code, out) == (2, "") and "is the recording itself" in one_line(err)
    assert small.read_bytes() == before and names(tmp_path) == {page, "small.json", "link"}


def test_a_default_place_that_is_taken(small: Path, tmp_path: Path, capsys):
    (tmp_path / "small.report.html").write_text("mine")
    (tmp_path / "gpuprof-demo.html").write_text("mine")
    for arguments in (("report", small), ("demo",)):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "") and "name another file with -o" in one_line(err)
    assert (tmp_path / "small.report.html").read_text() == (tmp_path / "gpuprof-demo.html").read_text() == "mine"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", ["pipe", "socket"])
def test_what_is_no_file_is_left_alone(small: Path, tmp_path: Path, place: str):
    """Opened to see whether it is a report, a pipe would be waited for; renamed over, it would be gone."""
    target = tmp_path / place
    if place == "pipe":
        os.mkfifo(target)
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(target))
    kind = target.stat().st_mode
    done = in_process("report", small, "-o", target, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    one_line(done.stderr)
    assert target.stat().st_mode == kind and names(tmp_path) == {"small.json", place}


def test_a_device_is_no_empty_report():
    """Or root would put a file in the place of /dev/null."""
    assert not is_report(Path(os.devnull))


UNWRITABLE = {
    "gone/page.html": "create the folder first",
    "folder": "is a",
    ".": "is a",
    "small.json/page.html": "small.json",
    "n" * 300 + ".html": "name",
}


@pytest.mark.parametrize("place", UNWRITABLE, ids=lambda place: place[:20])
@pytest.mark.parametrize("how", ["report", "diagnose", "demo"])
def test_where_nothing_can_be_written(small: Path, tmp_path: Path, capsys, how: str, place: str):
    (tmp_path / "folder").mkdir()
    arguments = {"report": ("small.json", "-o"), "diagnose": ("small.json", "--html"), "demo": ("-o",)}[how]
    code, out, err = run(capsys, how, *arguments, place)
    assert code == 2 and UNWRITABLE[place] in one_line(err)
    assert not out, "said before the work"
    assert names(tmp_path) == {"small.json", "folder"} and names(tmp_path / "folder") == set()


def test_a_folder_that_takes_no_file(small: Path, capsys):
    """/proc: where no one, root included, may make one."""
    code, out, err = run(capsys, "report", small, "-o", "/proc/gpuprof.html")
    assert (code, out) == (2, "")
    assert one_line(err).startswith("gpuprof: /proc/gpuprof.html cannot be written: ")


@pytest.mark.slow
def test_a_full_disk_leaves_the_earlier_report(small: Path, tmp_path: Path):
    """The page is neither cut short nor lost."""
    (tmp_path / "small.report.html").write_bytes(b"")
    full = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))"
    )
    done = command("report", small, cwd=tmp_path, python=full)
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr) == "gpuprof: small.report.html cannot be written: File too large"
    assert names(tmp_path) == {"small.json", "small.report.html"}
    assert (tmp_path / "small.report.html").read_bytes() == b""


# -- of what


def cut_early() -> bytes:
    return gzip.compress(builder().text().encode())[:40]


UNREADABLE = {
    "empty": (b"", "empty"),
    "not JSON": (b"step 1 took 3 ms\n", "JSON"),
    "other JSON": (b'{"steps": [1, 2, 3]}', "traceEvents"),
    "gzip cut early": (cut_early(), "small"),
    "SQLite": (b"SQLite format 3\0" + bytes(4000), "a damaged SQLite file"),
    "PNG": (b"\x89PNG\r\n\x1a\n" + bytes(100), "PNG"),
    "a report": (b"<!doctype html>\n<html>", "web page"),
}


@pytest.mark.parametrize("what", UNREADABLE)
@pytest.mark.parametrize("arguments", [("report",), ("diagnose", "--html", "page.html")], ids=" ".join)
def test_of_what_is_no_trace_there_is_no_page(tmp_path: Path, monkeypatch, capsys, what: str, arguments):
    monkeypatch.chdir(tmp_path)
    data, says = UNREADABLE[what]
    (tmp_path / "small.json").write_bytes(data)
    code, out, err = run(capsys, *arguments, "small.json")
    assert (code, out) == (2, "") and says in one_line(err)
    assert names(tmp_path) == {"small.json"}


@pytest.mark.parametrize(
    ("path", "says"), [("gone.json", "no such file"), ("empty", "holds no .json"), ("n" * 300, "too long")]
)
def test_of_nothing_there_is_no_page(tmp_path: Path, monkeypatch, capsys, path: str, says: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    code, out, err = run(capsys, "report", path)
    assert (code, out) == (2, "") and says in one_line(err)
    assert names(tmp_path) == {"empty"} and names(tmp_path / "empty") == set()


@pytest.mark.parametrize("options", [("--skip", "9"), ("--step", "nowhere"), ("--step", "("), ("--step-ms", "nan")])
def test_options_that_do_not_fit_leave_no_page(small: Path, tmp_path: Path, capsys, options: tuple[str, str]):
    code, out, err = run(capsys, "report", small, *options)
    assert (code, out) == (2, "") and options[0] in one_line(err)
    assert names(tmp_path) == {"small.json"}


def test_a_damaged_recording_has_a_page_that_says_so(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = builder().text().encode()
    (tmp_path / "cut.json").write_bytes(data[: len(data) * 9 // 10])
    code, _, err = run(capsys, "report", "cut.json")
    assert (code, err) == (0, "gpuprof: report: cut.report.html\n")
    (issue,) = [i for i in gpuprof.diagnose("cut.json").quality.issues if i.id == "truncated"]
    assert text_of(tmp_path / "cut.report.html").count(issue.message) == 1


def test_without_gpu_work_the_page_says_why_there_is_no_verdict(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    TraceBuilder().step(0, 0, MS).op("aten::mm", 0, 1000).write(tmp_path / "cpu.json")
    code, out, err = run(capsys, "report", "cpu.json")
    assert (code, out) == (2, "")
    assert written_path(err) == Path("cpu.report.html")
    assert "CPU only" in err, "exit code 2 is not left unexplained"
    assert is_page(tmp_path / "cpu.report.html")
    assert "CPU only" in text_of(tmp_path / "cpu.report.html")


def text_of(page: Path) -> str:
    """Roughly the text of a page."""
    body = page.read_text(encoding="utf-8").partition("<body")[2]
    return html.unescape(re.sub(r"<script.*?</script>|<[^>]+>", " ", body, flags=re.DOTALL))


# -- other commands that draw a report


def test_diagnose_prints_the_verdict_and_writes_the_page(small: Path, tmp_path: Path, capsys):
    plain = run(capsys, "diagnose", small)
    code, out, err = run(capsys, "diagnose", small, "--html", "page.html")
    assert (code, out) == plain[:2]
    assert err == "gpuprof: report: page.html\n"
    as_json = run(capsys, "diagnose", small, "--json")
    code, out, err = run(capsys, "diagnose", small, "--json", "--html", "same.html", "--fail-on", "idle:1%")
    assert (code, out) == (1, as_json[1]), "a gate that fails does not cost the page"
    assert err.splitlines()[0] == "gpuprof: report: same.html" and "gate failed" in err
    assert run(capsys, "report", small)[0] == 0
    pages = [(tmp_path / name).read_bytes() for name in ("page.html", "same.html", "small.report.html")]
    assert is_page(tmp_path / "page.html") and pages[0] == pages[1] == pages[2]


@pytest.mark.slow
def test_the_demo_writes_its_page_the_same_everywhere(tmp_path: Path):
    """In other processes, time zones, languages and orders of hashing the page is the same to the byte."""
    done = command("demo", cwd=tmp_path, PYTHONHASHSEED="1", TZ="Asia/Tokyo", LC_ALL="C")
    assert done.returncode == 0 and done.stdout
    assert done.stderr.splitlines()[0] == "gpuprof: report: gpuprof-demo.html"
    assert names(tmp_path) == {"gpuprof-demo.html"} and is_page(tmp_path / "gpuprof-demo.html")
    again = tmp_path / "again.html"
    done = in_process("report", DEMO, "--step-ms", 81, "-o", again)
    assert (done.returncode, done.stderr) == (0, f"gpuprof: report: {again}\n")
    assert again.read_bytes() == (tmp_path / "gpuprof-demo.html").read_bytes()


TRAINING = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):  # 6 are needed; 4 of the others are sampled
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""


@pytest.mark.parametrize("wanted", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["report", "no report"])
def test_trace_writes_it_into_the_run(tmp_path: Path, wanted: bool):
    need("torch")
    (tmp_path / "train.py").write_text(TRAINING)
    options = [f"--{name}=1" for name in ("settle", "baseline", "steps")] + ["--no-report"] * (not wanted)
    done = command("trace", *options, warm_python(), "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    folder = (tmp_path / "gpuprof-runs" / "latest").resolve()
    assert (folder / "verdict.txt").is_file(), done.stderr
    assert not list(folder.glob("*.partial"))
    if not wanted:
        assert not (folder / "report.html").exists() and "report" not in done.stderr
        return
    assert is_page(folder / "report.html")
    assert (tmp_path / written_path(done.stderr)).samefile(folder / "report.html")


# -- from Python


def test_write_report_takes_any_path_and_replaces_what_is_there(diagnosis: gpuprof.Diagnosis, tmp_path: Path):
    (tmp_path / "page.html").write_text("anything")
    gpuprof.write_report(diagnosis, str(tmp_path / "page.html"))
    gpuprof.write_report(diagnosis, tmp_path / "again.html")
    assert names(tmp_path) == {"page.html", "again.html"}
    assert is_page(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "again.html").read_bytes()


NO_PLACES = ["", ".", "/", "a\0b.html", "gone/page.html", "folder", "file/page.html", "n" * 300]


@pytest.mark.parametrize("place", NO_PLACES, ids=lambda place: repr(place[:20]))
def test_write_report_raises_its_own_error(diagnosis: gpuprof.Diagnosis, tmp_path: Path, monkeypatch, place: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(gpuprof.GpuprofError, match=r"\A[^\n]+\Z"):
        gpuprof.write_report(diagnosis, place)
    assert names(tmp_path) == {"folder", "file"} and names(tmp_path / "folder") == set()


def test_write_report_takes_names_as_long_as_the_disk_does(diagnosis: gpuprof.Diagnosis, tmp_path: Path):
    """The temporary file that it is written to first has a longer name."""
    place = tmp_path / f"{'n' * 245}.html"
    place.touch()
    gpuprof.write_report(diagnosis, place)
    assert names(tmp_path) == {place.name} and is_page(place)


def test_write_report_leaves_a_pipe_alone(diagnosis: gpuprof.Diagnosis, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(gpuprof.GpuprofError):
        gpuprof.write_report(diagnosis, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo() and names(tmp_path) == {"pipe"}
