"""Signals reach the target exactly once, and the target never outlives its launcher.

A signal that the terminal, `timeout`, a scheduler or `kill -- -PGID` sends goes to every process of the group: the
target has it already. One that was sent to the launcher's pid alone has to be passed on. The kernel does not say which
it was, so a second process, the guard, runs in the same group with every signal blocked: a signal that is pending there
was sent to all. The launcher asks it a moment after a signal has come, and passes on what the guard did not get.
The guard also knows the target's pid. If the launcher ends without dismissing it, the launcher was killed, and the
guard kills the target, so that no training keeps running unnoticed.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Code, Published, Seconds


OURS = frozenset(
    signal.valid_signals()
    - {signal.SIGKILL, signal.SIGSTOP}
    - {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT}  # job control acts on each process
    - {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}  # our own faults
    - {signal.SIGPIPE, signal.SIGXFSZ}  # what we write went wrong, not what the target does
)
"""Signals that the launcher receives on the target's behalf, and SIGCHLD."""

ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""Signals that ask the whole job to end."""
TICK_S: Assumed[Seconds] = 0.2
"""Seconds after which a wait for signals is interrupted to look after everything else."""
RESTORED = tuple(getattr(signal, name) for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ") if hasattr(signal, name))
"""Signals that Python itself ignores; the target starts with their default."""

MOMENT_S: Assumed[Seconds] = 0.03
"""How far apart a signal reaches the processes of a group, at most: `pkill` and cgroups go from one to the next."""
_EARLY_S: Assumed[Seconds] = 0.2
_ANSWER_S: Assumed[Seconds] = 2.0

_ASK, _WATCH, _GOODBYE = b"?", b"w", b"x"
_KERNEL: Published[Code] = 0x80  # si_code of a signal that the kernel itself sent: a terminal's, so to the whole group


class Guard:
    """The second process, from the launcher's side. Start it with OURS blocked."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self._ask: int | None = None
        self._answers: int | None = None
        self._mute = False
        try:
            requests, self._ask = os.pipe()
            self._answers, answers = os.pipe()
            pid = os.fork()
        except OSError:
            return  # no processes left: whether to pass on a signal is then decided by its si_code
        if pid == 0:
            _stand_guard(requests, answers)
        os.close(requests)
        os.close(answers)
        self.pid = pid

    def watch(self, target: int) -> None:
        """Names the process that must not outlive us."""
        self._send(_WATCH + struct.pack("=q", target))

    def received(self) -> frozenset[int] | None:
        """The signals that came to the guard since the last call; None if it is gone."""
        if self._mute or self._answers is None or not self._send(_ASK):
            return None
        try:
            ready, _, _ = select.select([self._answers], [], [], _ANSWER_S)
            answer = os.read(self._answers, 8) if ready else b""
        except (OSError, ValueError):
            answer = b""
        if len(answer) < 8:
            self._mute = True  # a late answer would be treated as that to a later question
            return None
        (mask,) = struct.unpack("=Q", answer)
        return frozenset(n for n in range(1, 65) if mask >> (n - 1) & 1)

    def dismiss(self) -> None:
        """Ends it, and leaves the target alone."""
        self._send(_GOODBYE)
        for descriptor in (self._ask, self._answers):
            if descriptor is not None:
                os.close(descriptor)
        self._ask = self._answers = None

    def reap(self) -> None:
        """Reaps it if it has ended by now; the process that adopts it after us may be slow."""
        if self.pid is not None:
            try:
                os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pass
            self.pid = None

    def _send(self, message: bytes) -> bool:
        if self._ask is None or self.pid is None:
            return False
        try:
            os.write(self._ask, message)
        except OSError:
            return False
        return True


def _stand_guard(requests: int, answers: int) -> NoReturn:
    """The life of the guard. Never returns."""
    try:
        # A reader of the target's output waits until every holder has closed the pipe.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        for name in os.listdir("/dev/fd"):
            if int(name) > 2 and int(name) not in (requests, answers):
                try:
                    os.close(int(name))
                except OSError:
                    pass
        os.chdir("/")
        _serve(requests, answers)
    finally:
        os._exit(0)


def _serve(requests: int, answers: int) -> None:
    kill = None
    while True:
        request = os.read(requests, 1)
        if request == _ASK:
            mask = 0
            while (info := signal.sigtimedwait(OURS, 0)) is not None:
                mask |= 1 << (info.si_signo - 1)
            os.write(answers, struct.pack("=Q", mask))
        elif request == _WATCH:
            (pid,) = struct.unpack("=q", os.read(requests, 8))
            kill = _killer(pid)
        elif request == _GOODBYE:
            return
        else:
            if kill is not None:
                kill()
            return


def _killer(pid: int) -> Callable[[], None]:
    """Kills that process and no later one of its number, where the system can distinguish them."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return lambda: os.kill(pid, signal.SIGKILL)
    return lambda: signal.pidfd_send_signal(descriptor, signal.SIGKILL)


class Post:
    """Collects signals, and delivers each once it is known whether the target has got it.
    own_group: the target leads its own process group and gets only what is passed on. A signal to our whole group is
    passed on to its whole group, as Ctrl-C must be if the target is a shell script that runs the training.
    """

    def __init__(self, guard: Guard, *, own_group: bool = False) -> None:
        self._guard, self._own_group = guard, own_group
        self._came: dict[int, int] = {}
        self._due: float | None = None
        self._early: dict[int, float] = {}

    def came(self, number: int, code: int) -> None:
        """Notes a signal that we received. The same signal again within MOMENT_S counts once, as in the kernel."""
        self._came[number] = code
        if self._due is None:
            self._due = time.monotonic() + MOMENT_S

    def patience(self, longest: float) -> float:
        """Seconds to wait for something else, at most, before `deliver` has work."""
        return longest if self._due is None else max(0.0, min(longest, self._due - time.monotonic()))

    def deliver(self, target: int) -> list[int]:
        """Passes on the due signals that the target has not got, and returns them."""
        now = time.monotonic()
        if self._due is None or now < self._due:
            return []
        came, self._came, self._due = self._came, {}, None
        seen = self._guard.received()
        to_all = [n for n, code in came.items() if self._came_to_all(n, code, seen, now)]
        passed_on = [n for n in came if n not in to_all]
        for number in (seen or frozenset()) - came.keys():
            self._early[number] = now  # the guard got it first; ours is still to come
        _send(os.kill, target, passed_on)
        if self._own_group:
            _send(os.killpg, target, to_all)
        return passed_on

    def _came_to_all(self, number: int, code: int, seen: frozenset[int] | None, now: float) -> bool:
        if seen is None:
            return code == _KERNEL
        return number in seen or now - self._early.pop(number, -_EARLY_S) < _EARLY_S


def _send(send: Callable[[int, int], None], target: int, numbers: Iterable[int]) -> None:
    for number in numbers:
        try:
            send(target, number)
        except OSError:  # it ended meanwhile, or is no longer ours to signal (sudo)
            pass


def die_of(number: int) -> NoReturn:
    """Ends this process by a signal, as the target ended, without a core dump in addition to the target's."""
    import resource

    try:
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (min(1, hard) if hard >= 0 else 1, hard))  # 1: piped cores too
    except (OSError, ValueError):
        pass
    try:
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    finally:
        os._exit(128 + number)  # the first process of a container cannot be killed by itself
