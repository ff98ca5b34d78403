"""Starts one process of a trial in a sandbox, and ends all its descendants, including daemons and new sessions.

A script, standard library only, with the arguments PLAN CONTROL -- COMMAND…. PLAN is a JSON file: `folder` (of the
overlay layers), `result` (file for the outcome), `real` (folders that may be written), `network`, and whether
`namespace` and `landlock` are wanted. CONTROL is a descriptor: once its other end is closed, everything ends. The
script exits as the command does.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from . import kernel, view
from .kinds import HOOKS, LANDLOCK, NAMESPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Code, Convention


_NOT_STARTED: Convention[Code] = 127
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> NoReturn:
    """Entry point of the script."""
    plan, control = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), int(sys.argv[2])
    command = sys.argv[4:]
    os.set_inheritable(control, False)
    wakes = _woken_by_children()
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    pid = _started(plan, command)
    code = _await(pid, control, wakes)
    _end_all()
    _leave(-signal.SIGKILL if code is None else code)


# -- starting


def _started(plan: dict[str, Any], command: list[str]) -> int:
    """Pid of the command, or of the process that represents it."""
    why = None
    if plan["namespace"] and kernel.is_supported():
        for kinds in view.attempts(os.geteuid() == 0, not plan["network"]):
            pid, failed = _attempt(plan, command, kinds)
            if failed is None:
                return pid
            why = why or failed  # keep the first reason: later attempts only use fewer features
    pid, _ = _attempt(plan, command, None, why)
    return pid


def _attempt(
    plan: dict[str, Any], command: list[str], kinds: view.Kinds | None, why: str | None = None
) -> tuple[int, str | None]:
    """(pid of a process that becomes the command, why it failed or None); kinds: None: without a namespace."""
    reads, tells = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        _restore_signals()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        try:
            if kinds is None:
                _restrict(plan, why)
            else:
                _enter_namespace(plan, kinds, tells)
        except OSError as error:
            os.write(tells, str(error.strerror or error).encode("utf-8", "replace")[:500])
            os._exit(1)
        if kinds is not None:
            kernel.drop_capabilities(view.KEPT_CAPABILITIES)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 0)
        os.close(tells)
        _become(command)
    os.close(tells)
    with os.fdopen(reads, "rb") as pipe:
        failed = pipe.read().decode("utf-8", "replace")
    if failed:
        os.waitpid(pid, 0)
        return pid, failed
    return pid, None


def _restrict(plan: dict[str, Any], why: str | None) -> None:
    """Without a namespace: applies Landlock if available; else only the hooks of the program's Python protect files."""
    found: dict[str, Any] = {"kind": HOOKS, "why": why or "not wanted", "read_only": []}
    if plan["landlock"] and kernel.is_supported() and kernel.landlock_version() > 0:
        found["kind"] = LANDLOCK
    _write_result(plan, found)
    if found["kind"] == LANDLOCK:
        kernel.allow_writes_only_below([*plan["real"], "/dev", "/proc/self"])


def _enter_namespace(plan: dict[str, Any], kinds: view.Kinds, tells: int) -> None:
    """Returns in the process that becomes the command. With a pid namespace, two more processes wait for that one."""
    here = os.getcwd()
    view.enter(kinds)
    if kinds.processes:
        _become_first_process(tells)
    found = view.build(kinds, plan["folder"], plan["real"], os.fsdecode(Path("/proc/self/mountinfo").read_bytes()))
    _write_result(plan, {"kind": NAMESPACE, "why": None, "read_only": list(found.read_only)})
    os.chdir(here)
    if kinds.processes:
        _fork_from_first_process(tells)


def _become_first_process(tells: int) -> None:
    """Forks the first process of the new namespace, in which this returns; the old process waits and exits like it."""
    status_reads, status_writes = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tells)
        os.close(status_writes)
        with os.fdopen(status_reads, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(pid, 0)
        code = int(said) if said else os.waitstatus_to_exitcode(status)
        _leave(code)
    os.close(status_reads)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    global _status
    _status = status_writes


_status = -1
"""Exit status of the command, set by the first process of a namespace."""


def _fork_from_first_process(tells: int) -> None:
    """Forks the command's process, in which this returns; the first process reaps children until the command ends."""
    pid = os.fork()
    if pid == 0:
        os.close(_status)
        return
    os.close(tells)
    while True:
        ended, status = os.wait()
        if ended == pid:
            os.write(_status, str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)  # the kernel then kills the rest of the namespace


def _become(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: cannot be started ({error.strerror})\n".encode("utf-8", "backslashreplace"))
    os._exit(_NOT_STARTED)


def _write_result(plan: dict[str, Any], found: dict[str, Any]) -> None:
    Path(plan["result"]).write_text(json.dumps(found), encoding="utf-8")


# -- waiting and ending


def _woken_by_children() -> int:
    """A descriptor that becomes readable when a child has ended."""
    reads, writes = os.pipe()
    for one in (reads, writes):
        os.set_blocking(one, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)  # gpuprof decides when it ends
    return reads


def _restore_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, *_ENDING, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _await(pid: int, control: int, wakes: int) -> int | None:
    """Status of the command; None if gpuprof ends it."""
    while True:
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 0
            if ended == pid:
                return os.waitstatus_to_exitcode(status)
            if ended == 0:
                break
        ready, _, _ = select.select([control, wakes], [], [])
        if control in ready:
            return None
        os.read(wakes, 4096)


def _end_all() -> None:
    """Kills children until none is left: orphans become our children, since this process is a subreaper."""
    while True:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    own, found = str(os.getpid()).encode(), []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            after = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(after) > 1 and after[1] == own:
            found.append(int(name))
    return found


def _leave(code: int) -> NoReturn:
    """Ends this process in the way that another one has ended."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(0, code))
