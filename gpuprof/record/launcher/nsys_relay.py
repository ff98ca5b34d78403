"""Runs between nsys and the target: the other end of `target_under_nsys`. Run by its path; imports nothing of gpuprof.

Arguments: the name of the socket, and the target's words.
"""

import os
import signal
import socket
import sys


def main(name, argv):
    """Starts the target, reports its pid and its exit status, and exits likewise. Does not return."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect("\0" + name)
    which, given, _, _ = socket.recv_fds(line, 3, 3)
    given = iter(given)
    for number, is_open in enumerate(which.decode()):
        if is_open == "+":
            os.dup2(next(given), number)
        else:
            os.close(number)
    restored = [signal.SIGPIPE, signal.SIGXFSZ]  # ignored by Python on its own account
    try:
        # A process group of its own: a signal to the group does not reach us and nsys.
        pid = os.posix_spawnp(argv[0], argv, os.environ, setsigdef=restored, setpgroup=0)
    except OSError as error:
        os.write(2, f"gpuprof: {argv[0]}: cannot be started ({error.strerror})\n".encode())
        tell(line, 0)
        tell(line, 127)
        os._exit(127)
    # nsys passes on the signals it gets; this process blocks them, as it must report how the target ended.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    tell(line, pid)
    for number in (0, 1, 2):  # a reader of the target's output waits until every holder has closed it
        try:
            os.close(number)
        except OSError:
            pass
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    tell(line, status)
    os._exit(status if status >= 0 else 128 - status)


def tell(line, number):
    """Sends a number to the process that started us, if it still lives."""
    try:
        line.sendall(b"%d\n" % number)
    except OSError:
        pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
