"""Serves one file, on this machine only, to the page that shows it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfileobj
from socketserver import TCPServer

from gpuprof.errors import GpuprofError
from gpuprof.units import Assumed, WholeSeconds

HOST = "127.0.0.1"
METHODS = "GET, HEAD, OPTIONS"
SILENCE_S: Assumed[WholeSeconds] = 30
"""Seconds after which a silent client is disconnected."""


def server(file: Path, name: str, port: int, origin: str) -> ThreadingHTTPServer:
    """A server of `/name` with the file's contents, for programs on this machine and pages of one origin.

    It is bound and not yet running. Port 0: a free one. Raises GpuprofError if the port is taken.
    """
    try:
        return _Server((HOST, port), _handler(file, f"/{name}", origin))
    except OSError as error:
        busy = error.errno == errno.EADDRINUSE
        why = "another program uses it (another gpuprof view?)" if busy else error.strerror
        raise GpuprofError(
            f"port {port} is not available: {why}; stop that program, or choose another port with --port"
        ) from None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True  # a port that was just released can be bound; one in use is still refused

    def server_bind(self) -> None:
        """Like TCPServer's: HTTPServer's would look this machine's name up in the network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]  # type: ignore[assignment]

    def handle_error(self, request: object, client_address: object) -> None:
        """Prints nothing: a browser that closes a connection is not an error."""


def _handler(file: Path, path: str, origin: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Serves one path; everything else gets an error."""

        timeout = SILENCE_S
        server_version = "gpuprof"
        sys_version = ""

        def do_GET(self) -> None:
            self._send(with_body=True)

        def do_HEAD(self) -> None:
            self._send(with_body=False)

        def do_OPTIONS(self) -> None:
            """The browser's preflight request: may this page reach a server on the user's machine?"""
            if not self._allowed():
                return
            self.send_response(204)
            self._head()
            if self.headers.get("Origin") == origin:
                self.send_header("Access-Control-Allow-Methods", METHODS)
                self.send_header("Access-Control-Allow-Private-Network", "true")
                self.send_header("Access-Control-Max-Age", "600")
            self.end_headers()

        def _send(self, with_body: bool) -> None:
            if not self._allowed():
                return
            try:
                content = file.open("rb")
            except OSError:
                self._refuse(404)
                return
            with content:
                self.send_response(200)
                self._head()
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Content-Length", str(file.stat().st_size))
                self.end_headers()
                if with_body:
                    copyfileobj(content, self.wfile, 1 << 20)

        def _allowed(self) -> bool:
            """Whether host and path are right; refuses other host names that resolve here (DNS rebinding)."""
            port = int(self.server.server_address[1])  # pyright: ignore[reportIndexIssue]
            if self.headers.get_all("Host") not in ([f"{HOST}:{port}"], [f"localhost:{port}"]):
                self._refuse(403)
                return False
            if self.path != path:
                self._refuse(404)
                return False
            return True

        def _head(self) -> None:
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Vary", "Origin")
            if self.headers.get("Origin") == origin:
                self.send_header("Access-Control-Allow-Origin", origin)

        def _refuse(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Length", "0")
            if status == 405:
                self.send_header("Allow", METHODS)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal is the user's."""

    def refuse_method(self: Handler) -> None:
        self._refuse(405)

    refuse: Callable[[Handler], None] = refuse_method
    for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT"):
        setattr(Handler, f"do_{method}", refuse)
    return Handler
