"""Nsight Systems as a program: finding it, the wording of its versions, and exports without environment variables."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from helpers import stand_in_nsys
from helpers.nsys_programs import SECRET, make_importer, make_nsys, make_stand_in

from gpuprof.nsight import convert, find, profile, strip
from gpuprof.nsight.call import NsysError, call


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in, named by the variable, and a token in the environment."""
    path = make_stand_in(tmp_path / "bin")
    monkeypatch.setenv(find.VARIABLE, str(path))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    return path


# -- finding it


def test_everywhere_it_may_lie(tmp_path: Path):
    places = [
        "usr/local/cuda-13.0/bin", "opt/nvidia/nsight-systems/2025.1.1/bin",
        "opt/nvidia/nsight-systems/2024.2.1/target-linux-x64", "opt/nvidia/nsight-systems-cli/2025.2/bin",
        "opt/nvidia/hpc_sdk/Linux_x86_64/25.1/profilers/Nsight_Systems/bin",
        "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64",
    ]  # fmt: skip
    made = {str(make_nsys(tmp_path / place)) for place in places}
    assert set(find.candidates("", tmp_path)) == made
    on_path = make_nsys(tmp_path / "bin")
    assert next(find.candidates(str(tmp_path / "bin"), tmp_path)) == str(on_path)


def test_inside_the_nsight_compute_that_is_on_path(tmp_path: Path):
    ncu = make_nsys(tmp_path / "ncu-2025").rename(tmp_path / "ncu-2025" / "ncu")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ncu").symlink_to(ncu)
    made = make_nsys(tmp_path / "ncu-2025" / "host" / "target-linux-x64")
    assert list(find.candidates(str(tmp_path / "bin"), tmp_path)) == [str(made)]


def test_one_installation_counts_once(tmp_path: Path):
    made = make_nsys(tmp_path / "opt/nvidia/nsight-systems/2025.1.1/bin")
    (tmp_path / "usr/local/cuda/bin").mkdir(parents=True)
    (tmp_path / "usr/local/cuda/bin/nsys").symlink_to(made)
    assert len(list(find.candidates("", tmp_path))) == 1


def test_the_newest_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folders = {name: tmp_path / name for name in ("old", "new", "broken")}
    made = [make_nsys(folders["old"], "2024.9.1.2"), make_nsys(folders["new"], "2024.10.1.1")]
    made.append(make_nsys(folders["broken"], body="echo cannot run >&2; exit 1"))
    monkeypatch.setattr(find, "candidates", lambda path: map(str, made))
    monkeypatch.delenv(find.VARIABLE, raising=False)
    assert find.find() == find.Nsys(str(made[1]), (2024, 10, 1, 1))
    del made[:2]
    with pytest.raises(NsysError, match=r"does not work.*cannot run"):
        find.find()
    made.clear()
    with pytest.raises(NsysError, match="not installed"):
        find.find()


def test_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(find, "ANSWER_S", 0.5)
    monkeypatch.setenv(find.VARIABLE, str(make_nsys(tmp_path, body="sleep 60")))
    with pytest.raises(NsysError, match=r"^GPUPROF_NSYS: .*no answer within 0.5 s$"):
        find.find()


def test_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(find.VARIABLE, "/nowhere/nsys")
    with pytest.raises(NsysError, match="GPUPROF_NSYS: /nowhere/nsys: cannot be started"):
        find.find()


def test_what_a_program_says_of_its_failure():
    said = "Processing [==50%]\rProcessing 5 events: [=1%]\rError: bad\r\nGenerated:\n\n"
    assert call(["printf", said.replace("%", "%%")], 5).words() == "Error: bad"
    assert call(["true"], 5).words() == ""


# -- the wording of its versions

HELP = "\t-c, --capture-range=\n\n\t--capture-range-end=\n\t   See --kill and --trace.\n\t(Experimental) --new=\n"


def test_options_that_a_version_does_not_know_are_left_out():
    nsys = find.Nsys("nsys", (2021, 1))
    assert profile.known_options(HELP) == {"--capture-range", "--capture-range-end", "--new"}
    command = profile.profile_command(nsys, HELP, Path("/runs/50%/nsys"), metrics=True)
    flags = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    assert command == ["nsys", "profile", *flags, "--output=/runs/50%%/nsys"]
    with pytest.raises(NsysError, match="newer"):
        profile.profile_command(nsys, "nothing", Path("x"), metrics=False)


@pytest.mark.parametrize("name", ["--gpu-metrics-device", "--gpu-metrics-devices"])
def test_the_option_of_the_counters_has_two_names(name: str):
    command = profile.profile_command(find.Nsys("nsys", ()), f"{HELP}\n\t{name}=\n", Path("x"), metrics=True)
    assert f"{name}=all" in command


def test_counters_that_the_driver_keeps_to_itself(nsys: Path):
    found = find.find()
    why = profile.why_no_metrics(found, profile.profile_help(found))
    assert why is not None and "administrators" in why
    listing = make_nsys(nsys.parent.parent / "two", body="echo '  0: Hopper GH100 | NVIDIA H200 PCI[0]'")
    assert profile.why_no_metrics(find.Nsys(str(listing), ()), "  --gpu-metrics-device=") is None


# -- exports


def test_an_export_holds_no_environment(nsys: Path, tmp_path: Path):
    report = tmp_path / "x.nsys-rep"
    report.write_bytes(stand_in_nsys.environment())
    assert SECRET.encode() in report.read_bytes()
    made = convert.to_sqlite(report, tmp_path / "x.sqlite")
    assert SECRET.encode() not in made.read_bytes()
    assert b"PATH=" not in made.read_bytes()
    assert str(tmp_path).encode() not in made.read_bytes()
    with sqlite3.connect(made) as file:
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
        assert tables == {"StringIds", "META_DATA_EXPORT", "CUPTI_ACTIVITY_KIND_KERNEL"}
        assert file.execute("SELECT value FROM StringIds ORDER BY id").fetchall() == [
            ("kernel",), ("",), ("",), ("step_1",)
        ]  # fmt: skip
        assert file.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone() == (100,)
        assert file.execute("SELECT * FROM META_DATA_EXPORT").fetchall() == [("EXPORT_SCHEMA_VERSION", "3.20.3")]
    assert made.stat().st_mode & 0o777 == 0o600
    assert report.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "x.nsys-rep", "x.sqlite"]


def test_an_export_of_a_version_without_such_tables(tmp_path: Path):
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE NVTX_EVENTS (text TEXT)")
        file.execute("INSERT INTO NVTX_EVENTS VALUES ('lr=1e-4')")
    strip.strip_environment(path)
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT text FROM NVTX_EVENTS").fetchall() == [("lr=1e-4",)]


def test_no_database(tmp_path: Path):
    (tmp_path / "x.sqlite").write_text("no database, and long enough to be seen as none" * 99)
    with pytest.raises(NsysError, match="cannot be removed"):
        strip.strip_environment(tmp_path / "x.sqlite")


def test_a_report_of_a_newer_version(nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN", "newer")
    report = tmp_path / "x.nsys-rep"
    report.write_bytes(b"\0\1NVIDIA 2099.1.1\0")
    with pytest.raises(NsysError) as error:
        convert.to_sqlite(report, tmp_path / "x.sqlite")
    assert "2099.1.1" in str(error.value) and "2025.3.1.90" in str(error.value) and "\n" not in str(error.value)
    assert report.exists() and not (tmp_path / "x.sqlite").exists()


def test_no_nsys_and_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(find.VARIABLE, "/nowhere/nsys")
    (tmp_path / "x.nsys-rep").write_bytes(b"NVIDIA 2024.5.1\0")
    with pytest.raises(NsysError, match=r"needs nsys 2024\.5\.1 or newer"):
        convert.to_sqlite(tmp_path / "x.nsys-rep", tmp_path / "x.sqlite")


def test_a_raw_stream(nsys: Path, tmp_path: Path):
    # The importer finds its own libraries first, then those of LD_LIBRARY_PATH.
    make_importer(nsys, 'case "$LD_LIBRARY_PATH" in *linux-desktop*) cp "$2" "$4";; *) exit 9;; esac')
    (tmp_path / "nsys.qdstrm").write_bytes(b"A=1\0B=2")
    made = convert.export_in(tmp_path, "nsys")
    assert made == tmp_path / "nsys.sqlite" and made.stat().st_size
    assert (tmp_path / "nsys.qdstrm").exists()
    (tmp_path / "nsys.qdstrm").unlink()
    assert convert.export_in(tmp_path, "nsys") == made


def test_a_library_that_the_importer_lacks(nsys: Path, tmp_path: Path):
    make_importer(nsys, "echo x: error while loading shared libraries: libdw.so.1: cannot open >&2; exit 127")
    (tmp_path / "nsys.qdstrm").write_bytes(b"")
    with pytest.raises(NsysError) as error:
        convert.export_in(tmp_path, "nsys")
    assert all(word in str(error.value) for word in ("libdw.so.1", "libdw1", "libelf1", "nsys.qdstrm"))


def test_nothing_to_convert(tmp_path: Path):
    for path, why in ((tmp_path / "x.json", "is not a report"), (tmp_path / "x.nsys-rep", "no such file")):
        with pytest.raises(NsysError, match=why):
            convert.to_sqlite(path, tmp_path / "x.sqlite")
    with pytest.raises(NsysError, match="left no report"):
        convert.export_in(tmp_path, "nsys")
