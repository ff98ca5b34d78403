"""Ways in which a program can change a file, to test which of them a trial keeps away from the user's files.

Each is a few lines of Python with these names: F, a file that is there; D, its folder (with `sub/inner.txt`, `empty/`,
`data.db` and `old.tar`); N, a path in it that is not there; T, a folder for temporary files. LEVEL says what prevents
it: `hooks` (Python's hooks do), `kernel` (it takes Landlock or a namespace), `namespace` (it takes one: rights, times
and attributes, changed by native code or another program).
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

HOOKS, KERNEL, NAMESPACE = "hooks", "kernel", "namespace"
LEVELS = (HOOKS, KERNEL, NAMESPACE)

_PYTHON = r"""
open(F, "w").write("x")
open(F, "a").write("x")
open(F, "r+").write("x")
open(F.encode(), "w").write("x")
open(N, "x").write("x")
os.write(os.open(F, os.O_WRONLY | os.O_TRUNC), b"x")
os.write(os.open(F, os.O_RDWR), b"x")
os.open(F, os.O_RDONLY | os.O_TRUNC)
os.write(os.open(F, os.O_WRONLY | os.O_APPEND), b"x")
os.open(N, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
os.write(os.open("kept.txt", os.O_WRONLY | os.O_TRUNC, dir_fd=os.open(D, os.O_RDONLY)), b"x")
os.chdir(T); os.write(posix.open("kept.txt", os.O_WRONLY, dir_fd=posix.open(D, os.O_RDONLY)), b"x")
fd = os.open(D, os.O_RDONLY); open("kept.txt", "w", opener=lambda p, f: os.open(p, f, dir_fd=fd)).write("x")
os.write(posix.open(F, os.O_WRONLY), b"x")
os.open(N, os.O_CREAT | os.O_WRONLY, dir_fd=os.open(D, os.O_RDONLY))
io.FileIO(F, "w").write(b"x")
io.open(F, "w").write("x")
import _io; _io.open(F, "w").write("x")
import _pyio; _pyio.open(F, "w").write("x")
import codecs; codecs.open(F, "w").write("x")
Path(F).write_text("x")
Path(F).open("r+").write("x")
Path(N).touch()
import gzip; gzip.open(F, "w").write(b"x")
import bz2; bz2.open(F, "w").write(b"x")
import lzma; lzma.open(F, "w").write(b"x")
import zipfile; zipfile.ZipFile(F, "w").writestr("a", "x")
import tarfile; tarfile.open(F, "w").close()
import tarfile; tarfile.open(D + "/old.tar").extractall(D)
import shutil; shutil.copyfile(D + "/sub/inner.txt", F)
import shutil; shutil.copy2(D + "/sub/inner.txt", F)
import shutil; shutil.copy(D + "/sub/inner.txt", N)
import shutil; shutil.move(F, N)
import shutil; shutil.move(D + "/sub/inner.txt", F)
import shutil; shutil.copytree(D + "/sub", N)
import shutil; shutil.rmtree(D + "/sub")
import shutil; shutil.make_archive(N, "tar", D + "/sub")
os.remove(F)
os.unlink(F)
os.remove("kept.txt", dir_fd=os.open(D, os.O_RDONLY))
posix.unlink("kept.txt", dir_fd=posix.open(D, os.O_RDONLY))
Path(F).unlink()
os.rmdir(D + "/empty")
os.rmdir("empty", dir_fd=os.open(D, os.O_RDONLY))
os.removedirs(D + "/empty")
os.rename(F, N)
os.rename(D + "/sub/inner.txt", F)
os.rename(F, "moved.txt", dst_dir_fd=os.open(D, os.O_RDONLY))
os.rename("kept.txt", "new.txt", src_dir_fd=os.open(D, os.O_RDONLY), dst_dir_fd=os.open(D, os.O_RDONLY))
open(T + "/a", "w").write("x"); os.rename("a", "kept.txt", src_dir_fd=os.open(T, os.O_RDONLY), dst_dir_fd=os.open(D, os.O_RDONLY))
os.rename("kept.txt", "b", src_dir_fd=os.open(D, os.O_RDONLY), dst_dir_fd=os.open(T, os.O_RDONLY))
open(T + "/a", "w").write("x"); os.replace(T + "/a", F)
os.replace(F, T + "/b")
os.renames(D + "/sub/inner.txt", D + "/other/inner.txt")
os.rename(D + "/sub", N)
os.mkdir(N)
os.makedirs(N + "/a/b")
os.mkdir("new", dir_fd=os.open(D, os.O_RDONLY))
Path(N).mkdir()
os.symlink(F, N)
os.symlink(F, "new", dir_fd=os.open(D, os.O_RDONLY))
os.link(F, T + "/hard"); open(T + "/hard", "w").write("x")
os.link(F, "hard", dst_dir_fd=os.open(T, os.O_RDONLY)); open(T + "/hard", "w").write("x")
os.link("kept.txt", T + "/hard", src_dir_fd=os.open(D, os.O_RDONLY)); open(T + "/hard", "a").write("x")
posix.link(F, T + "/hard"); open(T + "/hard", "w").write("x")
os.link(F, N)
os.symlink(F, T + "/soft"); open(T + "/soft", "w").write("x")
os.symlink(D, T + "/soft"); open(T + "/soft/kept.txt", "w").write("x")
os.symlink(D, T + "/soft"); os.remove(T + "/soft/kept.txt")
os.symlink(F, T + "/soft"); os.truncate(T + "/soft", 0)
os.truncate(F, 0)
os.ftruncate(os.open(F, os.O_RDWR), 0)
os.chmod(F, 0)
os.chmod(D + "/sub", 0o500)
os.fchmod(os.open(F, os.O_RDONLY), 0)
os.chmod(os.open(F, os.O_RDONLY), 0)
os.chmod("kept.txt", 0, dir_fd=os.open(D, os.O_RDONLY))
os.utime(F, (1, 1))
os.utime(os.open(F, os.O_RDONLY), (1, 1))
os.utime("kept.txt", (1, 1), dir_fd=os.open(D, os.O_RDONLY))
posix.utime(F, (1, 1))
os.setxattr(F, "user.a", b"x")
os.setxattr(os.open(F, os.O_RDONLY), "user.a", b"x")
os.removexattr(F, "user.kept")
os.chown(F, 1, 1)
os.fchown(os.open(F, os.O_RDONLY), 1, 1)
os.lchown(F, 1, 1)
os.mkfifo(N)
os.mknod(N)
posix.mkfifo(N)
posix.mknod(N)
os.mkfifo("new", dir_fd=os.open(D, os.O_RDONLY))
import socket; os.chdir(D); socket.socket(socket.AF_UNIX).bind("new")
import mmap; f = open(F, "r+b"); m = mmap.mmap(f.fileno(), 0); m[:1] = b"x"; m.flush()
import numpy; numpy.memmap(F, mode="r+", dtype="u1")[:1] = 120
import numpy; numpy.zeros(3).tofile(F)
import numpy; numpy.save(N, numpy.zeros(3))
import sqlite3; c = sqlite3.connect(D + "/data.db"); c.execute("INSERT INTO t VALUES (2)"); c.commit()
import sqlite3; c = sqlite3.connect(f"file:{D}/data.db", uri=True); c.execute("INSERT INTO t VALUES (2)"); c.commit()
import sqlite3; c = sqlite3.connect(f"file:{D}/data.db?mode=rw", uri=True); c.execute("DELETE FROM t"); c.commit()
import sqlite3; c = sqlite3.connect(f"file:{N}?mode=rwc", uri=True); c.execute("CREATE TABLE a (b)"); c.commit()
import sqlite3; c = sqlite3.connect(f"file://localhost{D}/data.db", uri=True); c.execute("DROP TABLE t"); c.commit()
import sqlite3; c = sqlite3.connect(f"file:{D}/%64ata.db", uri=True); c.execute("DROP TABLE t"); c.commit()
import sqlite3; c = sqlite3.connect(":memory:"); c.execute(f"ATTACH '{D}/data.db' AS d"); c.execute("DELETE FROM d.t"); c.commit()
import sqlite3; c = sqlite3.connect(T + "/a.db"); c.execute("CREATE TABLE a (b)"); c.commit(); c.execute(f"VACUUM INTO '{N}'")
import sqlite3; c = sqlite3.connect("file::memory:", uri=True); c.execute(f"ATTACH 'file:{D}/data.db' AS d"); c.execute("DELETE FROM d.t"); c.commit()
import sqlite3; c = sqlite3.Connection(D + "/data.db"); c.execute("DELETE FROM t"); c.commit()
import sqlite3; c = sqlite3.connect(":memory:"); c.execute("CREATE TABLE a (b)"); c.backup(sqlite3.connect(N))
import dbm.dumb; dbm.dumb.open(N, "c")["a"] = "x"
import logging; logging.FileHandler(F).emit(logging.makeLogRecord({"msg": "x"}))
from logging.handlers import RotatingFileHandler as R; R(F, maxBytes=1, backupCount=1).doRollover()
import tempfile; tempfile.NamedTemporaryFile(dir=D, delete=False)
import tempfile; tempfile.mkstemp(dir=D)
import tempfile; tempfile.mkdtemp(dir=D)
import fileinput; [print("x") for _ in fileinput.input(F, inplace=True)]
fd = os.open(D, os.O_TMPFILE | os.O_RDWR); os.link(f"/proc/self/fd/{fd}", N, src_dir_fd=fd)
os.chdir(D); open("/proc/self/cwd/kept.txt", "w").write("x")
open("/proc/self/root" + F, "w").write("x")
fd = os.open(F, os.O_RDONLY); open(f"/proc/self/fd/{fd}", "w").write("x")
fd = os.open(F, os.O_RDONLY); os.truncate(f"/dev/fd/{fd}", 0)
fd = os.open(D, os.O_RDONLY); open(f"/proc/self/fd/{fd}/kept.txt", "w").write("x")
os.chdir(D); open("kept.txt", "w").write("x")
os.chdir(D + "/sub"); open("../kept.txt", "w").write("x")
os.fchdir(os.open(D, os.O_RDONLY)); os.remove("kept.txt")
import threading; t = threading.Thread(target=lambda: open(F, "w").write("x")); t.start(); t.join()
import multiprocessing as m; p = m.get_context("fork").Process(target=os.remove, args=(F,)); p.start(); p.join()
if os.fork() == 0: open(F, "w").write("x"); os._exit(0)
subprocess.run([sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write('x')", F])
subprocess.run([sys.executable, "-m", "gzip", F])
subprocess.run(["env", "A=1", sys.executable, "-c", "import os, sys; os.remove(sys.argv[1])", F])
subprocess.run(["true"], stdout=open(F, "w"))
os.pwrite(os.open(F, os.O_RDWR), b"x", 0)
os.copy_file_range(os.open(D + "/old.tar", os.O_RDONLY), os.open(F, os.O_WRONLY), 9)
os.sendfile(os.open(F, os.O_WRONLY), os.open(D + "/old.tar", os.O_RDONLY), 0, 9)
os.posix_fallocate(os.open(F, os.O_RDWR), 0, 9999)
import py_compile; open(T + "/a.py", "w").write("1"); py_compile.compile(T + "/a.py", cfile=N)
import cProfile; cProfile.run("1", N)
import tracemalloc; tracemalloc.start(); tracemalloc.take_snapshot().dump(N)
import http.cookiejar; http.cookiejar.MozillaCookieJar(N).save()
import plistlib; plistlib.dump({}, open(F, "wb"))
import urllib.request; urllib.request.urlretrieve("file://" + D + "/old.tar", F)
exec(compile("open(F, 'w').write('x')", "a", "exec"))
getattr(__import__("builtins"), "op" + "en")(F, "w").write("x")
importlib.reload(io); io.open(F, "w").write("x")
importlib.reload(os); os.remove(F)
sys.modules["posix"].remove(F)
sys.setrecursionlimit(200); open(F, "w").write("x")
"""

_NATIVE = r"""
os.system(f"echo x > '{F}'")
os.system(f"echo x >> '{F}'")
os.system(f"rm '{F}'")
os.system(f"mv '{F}' '{N}'")
os.system(f"cp '{D}/old.tar' '{F}'")
os.system(f"cp '{F}' '{N}'")
os.system(f"touch '{N}'")
os.system(f"sed -i s/k/x/ '{F}'")
os.system(f"echo x | tee '{F}'")
os.system(f"dd if=/dev/zero of='{F}' bs=1 count=1 status=none")
os.system(f"truncate -s 0 '{F}'")
os.system(f"ln '{F}' '{N}'")
os.system(f"ln -s '{F}' '{N}'")
os.system(f"ln '{F}' '{T}/hard' && echo x > '{T}/hard'")
os.system(f"mkdir '{N}'")
os.system(f"rmdir '{D}/empty'")
os.system(f"mkfifo '{N}'")
os.system(f"install '{F}' '{N}'")
os.system(f"tar xf '{D}/old.tar' -C '{D}'")
os.system(f"find '{D}' -name kept.txt -delete")
os.system(f"perl -i -pe s/k/x/ '{F}'")
os.system(f"unlink '{F}'")
os.system(f"gzip '{F}'")
os.system(f"split -b 1 '{F}' '{N}'")
os.system(f"mktemp -p '{D}'")
os.system(f"cd '{D}' && git init -q new")
os.system(f"rm -rf '{D}/sub'")
os.system(f"bash -c 'exec 3<> \"{F}\"; echo x >&3'")
os.system(f"{sys.executable} -I -c \"open('{F}', 'w').write('x')\"")
os.system(f"{sys.executable} -S -c \"open('{F}', 'w').write('x')\"")
os.system(f"{sys.executable} -E -c \"open('{F}', 'w').write('x')\"")
os.system(f"env -i {sys.executable} -c \"open('{F}', 'w').write('x')\"")
os.system(f"env -u PYTHONPATH {sys.executable} -c \"open('{F}', 'w').write('x')\"")
os.system(f"setsid env -i sh -c 'sleep 0.2; echo x > \"{F}\"' & sleep 0.4")
os.system(f"(setsid sh -c 'echo x > \"{F}\"' &) ; sleep 0.2")
os.system(f"cd / && echo x > '/proc/self/cwd{F}'")
subprocess.run(["rm", F])
subprocess.run(f"echo x > '{F}'", shell=True)
subprocess.Popen(["env", "-i", "sh", "-c", f"echo x > '{F}'"], start_new_session=True).wait()
subprocess.run(["sh"], input=f"echo x > '{F}'", text=True)
os.popen(f"rm '{F}'").read()
os.posix_spawn("/bin/rm", ["rm", F], {}); os.wait()
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 1, F, os.O_WRONLY | os.O_TRUNC, 0)]); os.wait()
os.spawnv(os.P_WAIT, "/bin/rm", ["rm", F])
os.execv("/bin/rm", ["rm", F])
os.execve("/bin/sh", ["sh", "-c", f"echo x > '{F}'"], {})
import pty; pty.spawn(["rm", "-f", F])
import ctypes; C = ctypes.CDLL(None); C.write(C.open(F.encode(), 1), b"x", 1)
import ctypes; C = ctypes.CDLL(None); C.open(F.encode(), 513)
import ctypes; C = ctypes.CDLL(None); C.creat(F.encode(), 384)
import ctypes; C = ctypes.CDLL(None); C.unlink(F.encode())
import ctypes; C = ctypes.CDLL(None); C.remove(F.encode())
import ctypes; C = ctypes.CDLL(None); C.rename(F.encode(), N.encode())
import ctypes; C = ctypes.CDLL(None); C.renameat2(-100, F.encode(), -100, (D + "/old.tar").encode(), 2)
import ctypes; C = ctypes.CDLL(None); C.truncate(F.encode(), ctypes.c_long(0))
import ctypes; C = ctypes.CDLL(None); C.mkdir(N.encode(), 448)
import ctypes; C = ctypes.CDLL(None); C.rmdir((D + "/empty").encode())
import ctypes; C = ctypes.CDLL(None); C.symlink(F.encode(), N.encode())
import ctypes; C = ctypes.CDLL(None); C.link(F.encode(), N.encode())
import ctypes; C = ctypes.CDLL(None); C.mkfifo(N.encode(), 384)
import ctypes; C = ctypes.CDLL(None); C.mknod(N.encode(), 0o100600, 0)
import ctypes; C = ctypes.CDLL(None); C.fopen.restype = ctypes.c_void_p; C.fopen(F.encode(), b"w")
import ctypes; C = ctypes.CDLL(None); C.system(f"echo x > '{F}'".encode())
import ctypes; C = ctypes.CDLL(None); C.syscall(257 if os.uname().machine == "x86_64" else 56, -100, F.encode(), 513, 0)
import ctypes; C = ctypes.PyDLL(None); C.unlink(F.encode())
import ctypes; C = ctypes.CDLL(None); C.ftruncate(C.open(F.encode(), 2), ctypes.c_long(0))
import dbm.gnu; dbm.gnu.open(N, "c")["a"] = "x"
import dbm.ndbm; dbm.ndbm.open(N, "c")["a"] = "x"
import readline; readline.write_history_file(N)
import ssl; ssl.create_default_context().keylog_filename = N
import torch; torch.UntypedStorage.from_file(F, True, 4)[0] = 120
import pyarrow as p; p.OSFile(F, "wb").write(b"x")
import isal.igzip as z; subprocess.run([sys.executable, "-I", "-m", "zipfile", "-c", N, F])
"""

_RIGHTS = r"""
os.system(f"chmod 000 '{F}'")
os.system(f"chmod -R 700 '{D}/sub'")
os.system(f"touch -d @1 '{F}'")
os.system(f"chown 1:1 '{F}'")
os.system(f"setfattr -n user.a -v x '{F}'")
subprocess.run(["touch", F])
import ctypes; C = ctypes.CDLL(None); C.chmod(F.encode(), 0)
import ctypes; C = ctypes.CDLL(None); C.fchmod(C.open(F.encode(), 0), 0)
import ctypes; C = ctypes.CDLL(None); C.utimes(F.encode(), None)
import ctypes; C = ctypes.CDLL(None); C.setxattr(F.encode(), b"user.a", b"x", 1, 0)
import ctypes; C = ctypes.CDLL(None); C.removexattr(F.encode(), b"user.kept")
import ctypes; C = ctypes.CDLL(None); C.chown(F.encode(), 1, 1)
"""

_RUNNER = r"""
import importlib, io, json, os, posix, signal, subprocess, sys, tempfile
from pathlib import Path
for number, (code, folder) in enumerate(json.load(open(sys.argv[1]))):
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(20)
            null = os.open(os.devnull, os.O_RDWR)
            for one in range(3):
                os.dup2(null, one)
            os.chdir(folder if number % 2 else "/")
            names = {"F": folder + "/kept.txt", "D": folder, "N": folder + "/new", "T": tempfile.mkdtemp()}
            exec(code, {**globals(), **names})
            sys.stdout.flush()
        except BaseException:
            pass
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
"""


@dataclass(frozen=True, slots=True)
class Escape:
    """One way, in a folder of its own."""

    number: int
    code: str
    level: str


def escapes() -> list[Escape]:
    """All of them, without repetition."""
    texts = [(line, level) for text, level in zip((_PYTHON, _NATIVE, _RIGHTS), LEVELS, strict=True)
             for line in text.strip().splitlines()]  # fmt: skip
    return [Escape(number, code, level) for number, (code, level) in enumerate(texts)]


def prepare(root: Path, chosen: list[Escape]) -> Path:
    """Makes the user's files for each, and the program that tries them all; the program's path."""
    for one in chosen:
        folder = root / str(one.number)
        for name in ("sub", "empty"):
            (folder / name).mkdir(parents=True)
        (folder / "kept.txt").write_text("kept")
        (folder / "sub" / "inner.txt").write_text("inner")
        os.setxattr(folder / "kept.txt", "user.kept", b"x")
        with sqlite3.connect(folder / "data.db") as database:
            database.execute("CREATE TABLE t (a)")
            database.execute("INSERT INTO t VALUES (1)")
        database.close()
        with tarfile.open(folder / "old.tar", "w") as archive:
            archive.add(__file__, "from_archive.py")
    program = root / "try_them.py"
    program.write_text(_RUNNER)
    (root / "list.json").write_text(json.dumps([[one.code, str(root / str(one.number))] for one in chosen]))
    return program


def state(folder: Path) -> list[tuple]:
    """Names, kinds, contents, rights, owners, times, attributes and number of names of all that a folder holds."""
    found = []
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        is_file = path.is_file() and not path.is_symlink()
        found.append((
            str(path), status.st_mode, status.st_uid, status.st_gid, status.st_nlink,
            status.st_mtime_ns if is_file else 0, path.read_bytes() if is_file and status.st_mode & 0o400 else b"",
            [] if path.is_symlink() else sorted(os.listxattr(path)),
        ))  # fmt: skip
    return found


def changed(root: Path, chosen: list[Escape], before: dict[int, list[tuple]]) -> list[Escape]:
    """The escapes whose folder has changed."""
    return [one for one in chosen if state(root / str(one.number)) != before[one.number]]


def run_freely(root: Path, program: Path) -> None:
    """Runs them without protection."""
    words = [sys.executable, str(program), str(root / "list.json")]
    subprocess.run(words, cwd=root, check=True, timeout=300)
