"""Stands in for the interpreter: `torch_client.py SOCKET SCRIPT ARGUMENTS…` lets a torch server run the script."""

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    umask = os.umask(0o22)
    request = {"argv": sys.argv[2:], "env": dict(os.environ), "cwd": os.getcwd(), "umask": umask}  # noqa: PTH109
    text = json.dumps(request).encode()
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(text)
    os.close(1)  # whoever reads the output must see when the script is done with it
    status = int(connection.recv(16) or b"1")
if status < 0:
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
