"""`gpuprof view` serves one file to one page, and to nothing else. A real server in a real process."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.command import in_process
from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT

pytest_plugins = ["helpers.browser"]

MS = 1_000_000
PERFETTO = "https://ui.perfetto.dev"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "gpuprof", "view", *map(str, arguments)]


def environment(**variables: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUPROF_")}
    return {**clean, "PYTHONPATH": str(ROOT), **variables}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    """Its name would end the URL and a header line if not escaped."""
    builder = TraceBuilder()
    for i in range(3):
        builder.step(i, i * MS, (i + 1) * MS).op("aten::mm", i * MS + 10, i * MS + 900)
        builder.launch("gemm", (i * MS + 20, i * MS + 40), (i * MS + 50, i * MS + 600_000))
    return builder.write(tmp_path_factory.mktemp("trace") / "my run#1?&\r\nü.json")


class Serving:
    """A running `gpuprof view`, its port and the path of its file."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, path: str, said: str) -> None:
        self.process, self.port, self.path, self.said = process, port, path, said

    def ask(self, method: str = "GET", path: str | None = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.putrequest(method, path or self.path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        return connection.getresponse()


def start(*arguments: object, **variables: str) -> Serving:
    """Starts it and waits until it says that it serves."""
    process = subprocess.Popen(
        command(*arguments), env=environment(**variables), stderr=subprocess.PIPE, bufsize=0
    )  # a buffer would hide lines from `select`
    assert process.stderr is not None
    said, deadline = "", time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([process.stderr], [], [], 1)[0]:
            more = os.read(process.stderr.fileno(), 10_000).decode()
            said += more
            found = re.search(r"serving http://127\.0\.0\.1:(\d+)(/\S+) until.*\n", said)
            if found:
                return Serving(process, int(found[1]), found[2], said)
            if not more:
                break
    process.kill()
    raise AssertionError(said)


@pytest.fixture(scope="module")
def serving(recording) -> Iterator[Serving]:
    found = start(recording, "--no-open", "--port", free_port())
    yield found
    found.process.terminate()
    found.process.wait()


def test_the_file_is_the_export(serving):
    with urllib.request.urlopen(f"http://127.0.0.1:{serving.port}{serving.path}") as answer:
        body = answer.read()
        assert int(answer.headers["Content-Length"]) == len(body)
        assert answer.headers["Cache-Control"] == "no-store"
    document = json.loads(gzip.decompress(body))
    assert {e["name"] for e in document["traceEvents"]} >= {"gemm", "aten::mm", "step 1"}
    assert serving.ask().read() == body  # again, and the same


def test_the_address_is_plain(serving):
    assert re.fullmatch(r"/[A-Za-z0-9._-]+\.perfetto\.json\.gz", serving.path)
    assert f"open {PERFETTO}/#!/?url=http://127.0.0.1:{serving.port}{serving.path}\n" in serving.said


def test_perfetto_may_read_it_and_no_other_page(serving):
    assert serving.ask(Origin=PERFETTO).getheader("Access-Control-Allow-Origin") == PERFETTO
    for origin in ("https://evil.example", "null", "http://ui.perfetto.dev", f"{PERFETTO}.evil.example", "*", ""):
        answer = serving.ask(Origin=origin)
        assert answer.getheader("Access-Control-Allow-Origin") is None, origin
        assert answer.getheader("Vary") == "Origin"
    assert serving.ask().getheader("Access-Control-Allow-Origin") is None


def test_a_browser_lets_perfetto_read_it_and_no_other_page(serving, chromium):
    """Pages of both origins, served by the test, in a real browser."""
    from playwright.sync_api import Error

    fetch = "url => fetch(url).then(r => r.arrayBuffer()).then(b => b.byteLength).catch(e => String(e))"
    answers = []
    for origin in (PERFETTO, "https://evil.example"):
        with chromium.new_context() as context:
            with contextlib.suppress(Error):  # which a browser of before 2025 does not know
                context.grant_permissions(["local-network-access"])  # what the user is asked for
            page = context.new_page()
            page.route(f"{origin}/*", lambda route: route.fulfill(body="<p>a page", content_type="text/html"))
            page.goto(f"{origin}/")
            answers.append(page.evaluate(fetch, f"http://127.0.0.1:{serving.port}{serving.path}"))
    assert answers == [len(serving.ask().read()), "TypeError: Failed to fetch"]


def test_preflights(serving):
    asked = {"Access_Control_Request_Method": "GET", "Access_Control_Request_Private_Network": "true"}
    answer = serving.ask("OPTIONS", Origin=PERFETTO, **asked)
    assert answer.status == 204
    assert answer.getheader("Access-Control-Allow-Origin") == PERFETTO
    assert answer.getheader("Access-Control-Allow-Private-Network") == "true"
    assert "GET" in (answer.getheader("Access-Control-Allow-Methods") or "")
    foreign = serving.ask("OPTIONS", Origin="https://evil.example", **asked)
    assert not [name for name, _ in foreign.getheaders() if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    ["/", "/index.html", "/..", "/trace", "/%2e%2e/etc/passwd", "//etc/passwd", "/trace.perfetto.json.gz/", "/?x", "*"],
)
def test_every_other_path_is_not_there(serving, path):
    for method in ("GET", "HEAD", "OPTIONS"):
        answer = serving.ask(method, path, Origin=PERFETTO)
        assert (answer.status, answer.read()) == (404, b"")
        assert answer.getheader("Access-Control-Allow-Origin") is None


def test_a_query_is_another_path(serving):
    assert serving.ask(path=f"{serving.path}?x=1").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT"])
def test_nothing_can_be_written(serving, method):
    answer = serving.ask(method)
    assert (answer.status, answer.getheader("Allow")) == (405, "GET, HEAD, OPTIONS")


def test_head_has_no_body(serving):
    answer = serving.ask("HEAD")
    assert answer.status == 200 and int(answer.getheader("Content-Length") or 0) > 100 and answer.read() == b""


def test_names_that_were_made_to_lead_here_are_refused(serving):
    for host in ("evil.example", f"evil.example:{serving.port}", "127.0.0.1", f"127.0.0.1:{serving.port + 1}", ""):
        for method in ("GET", "HEAD", "OPTIONS"):
            assert serving.ask(method, Host=host, Origin=PERFETTO).status == 403, host
    assert serving.ask(Host=f"localhost:{serving.port}").status == 200
    with socket.create_connection(("127.0.0.1", serving.port)) as raw:  # two of them, and none
        raw.sendall(f"GET {serving.path} HTTP/1.0\r\nHost: 127.0.0.1:{serving.port}\r\nHost: evil\r\n\r\n".encode())
        assert b" 403 " in raw.recv(100)
    with socket.create_connection(("127.0.0.1", serving.port)) as raw:
        raw.sendall(f"GET {serving.path} HTTP/1.0\r\n\r\n".encode())
        assert b" 403 " in raw.recv(100)


def test_it_listens_on_this_machine_only(serving):
    inodes = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    bound = [row[1] for row in inodes if row[3] == "0A" and int(row[1].split(":")[1], 16) == serving.port]
    assert [address.split(":")[0] for address in bound] == ["0100007F"]


def test_a_taken_port_is_one_line(serving, recording):
    done = in_process("view", recording, "--no-open", "--port", serving.port)
    assert done.returncode == 2
    assert done.stderr.startswith(f"gpuprof: port {serving.port} is not available") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_ends_it_and_leaves_nothing(recording, tmp_path, number):
    found = start(recording, "--no-open", "--port", free_port(), TMPDIR=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    with socket.create_connection(("127.0.0.1", found.port)) as half:  # a client that disconnects causes no message
        half.sendall(b"GET / HT")
    found.process.send_signal(number)
    _, rest = found.process.communicate(timeout=30)
    assert found.process.returncode == 0
    assert rest == b"gpuprof: stopped serving\n"
    assert not list(tmp_path.iterdir())


def test_a_browser_is_opened(recording, tmp_path):
    """The browser that the BROWSER variable names, which here notes its arguments."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/opened\n')
    browser.chmod(0o755)
    found = start(recording, "--port", free_port(), BROWSER=f"{browser} %s")
    found.process.terminate()
    found.process.communicate()
    assert (tmp_path / "opened").read_text() == f"{PERFETTO}/#!/?url=http://127.0.0.1:{found.port}{found.path}\n"


def test_a_report_is_just_opened(tmp_path):
    report = tmp_path / "my report.html"
    report.write_text("<p>hello</p>")
    done = in_process("view", report, "--no-open")
    assert (done.returncode, done.stderr) == (0, f"gpuprof: open file://{tmp_path}/my%20report.html\n")


def test_no_recording_is_one_line(tmp_path):
    for arguments, words in (((), "no recording given"), (("none.json",), "no such file")):
        done = in_process("view", *arguments, "--no-open", "--port", free_port(), cwd=tmp_path)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
