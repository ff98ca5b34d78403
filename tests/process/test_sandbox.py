"""A trial's processes see private files, reach no other machine, and end together with everything they have started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command import working_in
from helpers.installed import need
from helpers.quick import few
from helpers.started import wait_for
from helpers.trials import tried

from gpuprof.record.launcher.command import Target
from gpuprof.trial import folder_state
from gpuprof.trial.sandbox.kinds import HOOKS, LANDLOCK, NAMESPACE, VARIABLE, sandbox
from gpuprof.trial.sandbox.mounts import VisibleMount, visible
from gpuprof.trial.starter import Starter

KINDS = [NAMESPACE, LANDLOCK, HOOKS]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of sandbox that the trials of a test get."""
    if sandbox(False, False, request.param).kind != request.param:
        pytest.skip(f"this kernel gives a process no {request.param}")
    monkeypatch.setenv(VARIABLE, request.param)
    return request.param


def run(folder: Path, code: str, *, network: bool = False) -> str:
    """The output of a program, which need not be a training, in a trial."""
    (folder / "train.py").write_text(code)
    target = Target((sys.executable, "train.py"), "train", sys.executable, True, ())
    with working_in(folder), Starter(target, network, folder / "not compared") as starter:
        outcome = starter.run((), None, None, 0.1, 60)
        assert outcome.process.error is not None
        return (starter.scratch / "1" / "output.log").read_text() + "\n".join(outcome.blocked)


SEES = """
import os
fd = os.open("kept.txt", os.O_WRONLY | os.O_TRUNC)
os.write(fd, b"new")
os.close(fd)
assert open("kept.txt").read() == "new" and os.stat("kept.txt").st_size == 3
folder = os.open(".", os.O_RDONLY)
fd = os.open("kept.txt", os.O_WRONLY | os.O_APPEND, dir_fd=folder)
os.write(fd, b"er")
os.rename("kept.txt", "moved.txt", src_dir_fd=folder, dst_dir_fd=folder)
assert open("moved.txt").read() == "newer", open("moved.txt").read()
assert not os.path.exists("kept.txt")
os.mkfifo("pipe")
os.link("moved.txt", "linked.txt")
assert sorted(os.listdir(".")) == ["linked.txt", "moved.txt", "pipe", "train.py"], os.listdir(".")
os.open("absent.txt", os.O_WRONLY | os.O_TRUNC)
"""


def test_the_program_sees_what_it_has_changed(tmp_path: Path, kind: str):
    (tmp_path / "kept.txt").write_text("kept")
    said = run(tmp_path, SEES)
    assert "No such file or directory" in said and "absent.txt" in said.splitlines()[-1], said
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"kept.txt": "kept", "train.py": SEES}


SENDS = """
import socket
def ways():
    yield lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("198.51.100.7", 9))
    yield lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendmsg([b"x"], [], 0, ("198.51.100.7", 9))
    yield lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("198.51.100.7", 9))
    yield lambda: socket.create_connection(("198.51.100.7", 443), timeout=3)
    yield lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"x", ("2001:db8::7", 9))
for way in ways():
    try:
        way()
        print("SENT")
    except OSError as error:
        print("refused", error)
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).sendall(b"x")
assert server.accept()[0].recv(1) == b"x"
print("and here it can")
"""


def test_nothing_is_sent_beyond_this_machine(tmp_path: Path, kind: str):
    said = run(tmp_path, SENDS)
    assert "SENT" not in said and said.count("refused") == 5 and "and here it can" in said
    assert "connects to 198.51.100.7:443" in said


def test_another_program_sends_nothing_from_a_namespace(tmp_path: Path):
    if sandbox(False, False, NAMESPACE).kind != NAMESPACE:
        pytest.skip("this kernel gives a process no namespace")
    code = f"import subprocess\nsubprocess.run([{sys.executable!r}, '-I', '-c', {SENDS!r}])"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, NAMESPACE)
        said = run(tmp_path, code)
    assert "SENT" not in said and "and here it can" in said


DAEMON = """
import os, subprocess, sys, time
subprocess.Popen(["env", "-i", "sh", "-c", "exec sleep 987.NUMBER"], start_new_session=True)
subprocess.run(["sh", "-c", "(setsid env -i sleep 986.NUMBER &)"])
time.sleep(0.3)
os._exit(0)
"""


def sleeping(number: int) -> list[str]:
    """Command lines of processes that sleep for this time."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"sleep" and words[1].endswith(f".{number}".encode()):
            found.append(words[1].decode())
    return found


def test_a_daemon_with_an_empty_environment_ends_with_its_trial(tmp_path: Path, kind: str):
    number = os.getpid() * 10 + KINDS.index(kind)
    run(tmp_path, DAEMON.replace("NUMBER", str(number)))
    assert sleeping(number) == []


WAITS = "import subprocess, time\n" + DAEMON.split("time\n", 1)[1].replace("os._exit(0)", "time.sleep(600)")
DRIVER = """
import sys
from pathlib import Path
from gpuprof.record.launcher.command import Target
from gpuprof.trial.starter import Starter
with Starter(Target((sys.executable, "train.py"), "train", sys.executable, True, ()), False, Path("none")) as starter:
    starter.run((), None, None, 0.1, 600)
"""


@pytest.mark.parametrize("kind", few(KINDS, [NAMESPACE]), indirect=True)
def test_daemons_end_when_gpuprof_is_killed(tmp_path: Path, kind: str):
    number = os.getpid() * 10 + 5 + KINDS.index(kind)
    (tmp_path / "train.py").write_text(WAITS.replace("NUMBER", str(number)))
    with subprocess.Popen([sys.executable, "-c", DRIVER], cwd=tmp_path, start_new_session=True) as process:
        assert wait_for(lambda: len(sleeping(number)) == 2, 30)
        process.kill()
    assert wait_for(lambda: sleeping(number) == [], 20), "a daemon still runs"


def test_a_training_is_timed_in_a_namespace(tmp_path: Path):
    need("torch")
    if sandbox(False, False, NAMESPACE).kind != NAMESPACE:
        pytest.skip("this kernel gives a process no namespace")
    code = """
    open("made.txt", "w").write("x")
    os.system("echo x > by_another.txt")
    assert os.path.exists("made.txt") and os.path.exists("by_another.txt")
    train(net(), torch.utils.data.DataLoader(Data(wait=0.001), batch_size=8))
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, NAMESPACE)
        outcome = tried(tmp_path, code, "input_workers=2", fresh=True)
    assert outcome.process.error is None and outcome.process.step_ns and "2 workers alive" in outcome.proof
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_tree_that_is_too_large_to_compare_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folder_state, "MOST_FILES", 3)
    monkeypatch.setenv(VARIABLE, HOOKS)
    for number in range(5):
        (tmp_path / str(number)).touch()
    (tmp_path / "train.py").write_text("")
    said: list[str] = []
    target = Target((sys.executable, "train.py"), "train", sys.executable, True, ())
    with working_in(tmp_path), Starter(target, False, tmp_path, said.append) as starter:
        for _ in range(2):
            starter.run((), None, None, 0.1, 60)
    assert [line for line in said if "holds more than 3 files: they are not compared" in line] == said[1:]
    assert said[0].startswith("sandbox: no private mount namespace here (not wanted): ")


def test_a_large_file_is_not_copied_to_be_changed(tmp_path: Path):
    if sandbox(False, False, NAMESPACE).kind != NAMESPACE:
        pytest.skip("this kernel gives a process no namespace")
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(1 << 29)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, NAMESPACE)
        said = run(tmp_path, "open('large.bin', 'rb').read(9)\nopen('large.bin', 'r+b')")
    assert "large.bin, which is large" in said


MOUNTINFO = r"""
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw - proc proc rw
24 22 0:6 / /dev rw - devtmpfs udev rw
25 24 0:7 / /dev/shm rw - tmpfs tmpfs rw
26 22 8:2 / /home rw - ext4 /dev/sda2 rw
27 26 8:3 / /home/a\040b rw - xfs /dev/sda3 rw
28 22 8:4 / /data rw - nfs server:/data rw
29 28 8:5 / /data/in rw - ext4 /dev/sdb rw
30 22 8:6 / /data rw shared:1 - ext4 /dev/sdc rw
broken line
"""


def test_mounts_that_a_later_one_hides_are_left_out():
    assert visible(MOUNTINFO) == [
        VisibleMount("/", "ext4"), VisibleMount("/home", "ext4"), VisibleMount("/data", "ext4"),
        VisibleMount("/home/a b", "xfs"),
    ]  # fmt: skip
