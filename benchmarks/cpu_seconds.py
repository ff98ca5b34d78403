"""CPU time of a command with everything that it started: `python -m benchmarks.cpu_seconds make test`. Linux only.

`time` leaves out processes that outlive the one that started them, as those of the tests' torch server do. Here they
are handed to this process (PR_SET_CHILD_SUBREAPER), which waits for them all.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import time

from gpuprof.units import Code, Convention

PR_SET_CHILD_SUBREAPER: Convention[Code] = 36
"""Option of prctl(2): this process inherits descendants whose parent has ended."""


def main() -> int:
    """Runs the command, prints its times to stderr, and returns its exit code (128 + the signal that ended it)."""
    if len(sys.argv) < 2:
        print("usage: python -m benchmarks.cpu_seconds COMMAND …", file=sys.stderr)
        return 2
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun, code = time.monotonic(), 0
    try:
        command = subprocess.Popen(sys.argv[1:])
    except OSError as error:
        print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
        return 2
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:  # all have ended
            break
        if pid == command.pid:
            code = command.returncode = os.waitstatus_to_exitcode(status)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{used.ru_utime + used.ru_stime:.0f} s of CPU time ({used.ru_utime:.0f} user, {used.ru_stime:.0f} system) in"
        f" {time.monotonic() - begun:.0f} s",
        file=sys.stderr,
    )
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
