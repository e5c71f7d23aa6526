"""A small HTTP server with the calls of worker hosts. It keeps what hosts send, and checks how they send it."""

from __future__ import annotations

import json
import queue
import re
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "gqt_host_secret"  # noqa: S105 - of this server only
BASE = "/api/v1/host"
FILES = ("log", "stderr", "log.times", "stderr.times")
#: Most bytes of a log in one request.
MOST_PART_BYTES = 4 * 2**20


class HostService:
    """The state of the service. ``directory`` has what was delivered, in ``JOB/TOKEN``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.token = TOKEN
        self.url = ""
        #: The runs of the host, ``JOB/TOKEN``; None: any.
        self.runs: set[str] | None = None
        #: The stream of the code of each job.
        self.codes: dict[int, bytes] = {}
        #: Most bytes of a log, and of the kept files of a run.
        self.log_limit_bytes = self.results_limit_bytes = 2**40
        #: The answers to long polls, each a list of requests, and what was sent for each request.
        self.polls: queue.Queue[list[dict[str, Any]]] = queue.Queue()
        self.contents: dict[str, bytes] = {}
        #: The requests whose content was cut off, and the reason with which each request ended.
        self.cut: set[str] = set()
        self.done: dict[str, str] = {}
        #: The frames of keys for each request, and the requests that the service has ended.
        self.keys: dict[str, bytes] = {}
        self.over: set[str] = set()
        #: How many bytes of keys the relay has passed on, by request.
        self.passed_on: dict[str, int] = {}
        #: The progress that was sent for each request.
        self.progress: dict[str, Any] = {}
        #: All calls, such as ``PUT /runs/1/1.a/log?offset=0&replace=false``.
        self.calls: list[str] = []
        #: Errors of this server: a host has not kept to the protocol.
        self.faults: list[BaseException] = []
        #: Returns the status with which a call is refused; None if it is not.
        self.refuse: Callable[[str], int | None] = lambda _: None
        #: Returns the status of a call that fails in the service, which says so as a problem; None if it does not.
        self.fail: Callable[[str], int | None] = lambda _: None
        #: Called for each part of a body, which is kept only after that.
        self.on_part: Callable[[str, int], None] = lambda _, __: None

    def delivered(self, run: str, name: str) -> bytes | None:
        """Return a delivered file of *run*, ``JOB/TOKEN``; None if there is none."""
        path = self.directory / run / name
        return path.read_bytes() if path.exists() else None

    def is_complete(self, run: str) -> bool:
        """Return whether the logs of a run were delivered whole."""
        return (self.directory / run / "complete").exists()

    def ask(self, request_id: str, kind: str, run: str, *patterns: str) -> None:
        """Have the relay answer a request at its next long poll."""
        job, token = run.split("/")
        known = {"id": request_id, "kind": kind, "job": int(job), "token": token, "patterns": list(patterns)}
        self.polls.put([known])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: HostService

    def do_GET(self) -> None:
        path, query = self._begin()
        if path is None:
            return
        if path == "/requests":
            try:
                found = self.service.polls.get(timeout=min(0.3, float(query["timeout_s"])))
            except queue.Empty:
                found = []
            self._answer(200, json.dumps(found).encode())
        elif match := re.fullmatch(r"/requests/(\w+)/keys", path):
            self._keys(match[1], int(query["offset"]))
        elif match := re.fullmatch(r"/jobs/(\d+)/code", path):
            code = self.service.codes.get(int(match[1]))
            if code is None:
                self._problem(404, "the job has no claim on this host")
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(code)))
            self.end_headers()
            for at in range(0, len(code), 1000):
                self.service.on_part(path, at)
                self.wfile.write(code[at : at + 1000])
        else:
            self._problem(404, "there is nothing here", ours=False)

    def _keys(self, request_id: str, offset: int) -> None:
        """Answer a long poll for keys."""
        self.service.passed_on[request_id] = offset
        until_s = time.monotonic() + 0.3
        while time.monotonic() < until_s and request_id not in self.service.over:
            if found := self.service.keys.get(request_id, b"")[offset:]:
                self._answer(200, found)
                return
            time.sleep(0.01)
        if request_id in self.service.over or request_id in self.service.done:
            self._problem(404, "nobody types on this terminal any more")
        else:
            self._answer(200)

    def do_PUT(self) -> None:
        path, query = self._begin()
        if path is None:
            return
        match path[1:].split("/"):
            case ["runs", job, token, name] if self.service.runs is None or f"{job}/{token}" in self.service.runs:
                self._run(self.service.directory / job / token, name, query)
            case ["runs", *_]:
                self._problem(404, "this host has no such run")
            case ["requests", request_id, "content"]:
                self._content(request_id)
            case ["requests", request_id, "progress"]:
                self.service.progress[request_id] = json.loads(b"".join(self._body()))
                self._answer(204)
            case ["requests", request_id, "done"]:
                self.service.done[request_id] = b"".join(self._body()).decode()
                self._answer(204)
            case _:
                self._problem(404, "there is nothing here", ours=False)

    def _run(self, run: Path, name: str, query: dict[str, str]) -> None:
        run.mkdir(parents=True, exist_ok=True)
        if name in FILES:
            self._log(run / name, int(query["offset"]), replace=query["replace"] == "true")
        elif name == "results":
            length = int(self.headers["Content-Length"])
            if length > self.service.results_limit_bytes:
                self._problem(413, "the kept files are above the limit of the service")
                return
            part = run / ".results"
            with part.open("wb") as file:
                file.writelines(self._body())
            assert part.stat().st_size == length
            part.rename(run / "results")
            self._answer(204)
        elif name in {"results-failed", "complete"}:
            (run / name).write_bytes(b"".join(self._body()))
            self._answer(204)
        else:
            self._problem(404, "there is nothing here", ours=False)

    def _log(self, path: Path, offset: int, *, replace: bool) -> None:
        assert int(self.headers["Content-Length"]) <= MOST_PART_BYTES
        assert offset == 0 or not replace
        size = path.stat().st_size if path.exists() and not replace else 0
        if offset < size:
            self._problem(409, "the service has more of this file", {"Gpuqueue-Next-Offset": str(size)})
            return
        stored_bytes = path.stat().st_blocks * 512 if size else 0
        if stored_bytes + int(self.headers["Content-Length"]) > self.service.log_limit_bytes:
            self._problem(413, "the log is above the limit of the service")
            return
        with path.open("wb" if replace else "r+b" if path.exists() else "wb", buffering=0) as file:
            file.truncate(max(size, offset))
            file.seek(offset)
            for part in self._body():
                file.write(part)
        self._answer(204)

    def _content(self, request_id: str) -> None:
        self.service.contents[request_id] = b""
        try:
            for part in self._body():
                self.service.contents[request_id] += part
        except ConnectionError:
            self.service.cut.add(request_id)
            raise
        self._answer(204)

    def _begin(self) -> tuple[str | None, dict[str, str]]:
        """Return path and query of a call; None if it is refused."""
        parts = urlsplit(self.path)
        assert parts.path.startswith(BASE), self.path
        call = f"{self.command} {self.path.removeprefix(BASE)}"
        self.service.calls.append(call)
        status = self.service.refuse(call)
        if status is None and self.headers["Authorization"] != f"Bearer {self.service.token}":
            status = 401
        if status is not None:
            self._problem(status, f"refused with {status}")
            return None, {}
        status = self.service.fail(call)
        if status is not None:
            self._problem(status, f"failed with {status}", {"Content-Type": "application/problem+json"})
            return None, {}
        return parts.path.removeprefix(BASE), {name: each[0] for name, each in parse_qs(parts.query).items()}

    def _body(self) -> Iterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            ConnectionError: it is cut off.

        """
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self._exactly_a_line(), 16):
                yield self._exactly(size)
                self._exactly(2)
            self._exactly(2)
            return
        left = int(self.headers["Content-Length"])
        while left:
            part = self._exactly(min(left, 2**16))
            left -= len(part)
            self.service.on_part(self.path, left)
            yield part

    def _exactly_a_line(self) -> bytes:
        line = self.rfile.readline(100)
        if not line.endswith(b"\r\n"):
            self.close_connection = True
            raise ConnectionError("the body is cut off")
        return line

    def _exactly(self, size: int) -> bytes:
        part = self.rfile.read(size)
        if len(part) < size:
            self.close_connection = True
            raise ConnectionError("the body is cut off")
        return part

    def _problem(self, status: int, detail: str, headers: dict[str, str] | None = None, *, ours: bool = True) -> None:
        kind = "urn:gpuqueue:error:Refused" if ours else f"urn:gpuqueue:http:{status}"
        self.close_connection = True  # the body was not read
        self._answer(status, json.dumps({"type": kind, "detail": detail}).encode(), headers)

    def _answer(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    faults: list[BaseException]

    def handle_error(self, *_: Any) -> None:
        """Note faults, but not that a client was killed."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, (ConnectionError, ssl.SSLError)):
            self.faults.append(error)


@contextmanager
def host_service(directory: Path, certificate: tuple[Path, Path] | None = None, port: int = 0) -> Iterator[HostService]:
    """Run a service that keeps what it gets in *directory*, with TLS if there is a *certificate* and its key."""
    service = HostService(directory)
    handler = type("Handler", (_Handler,), {"service": service})
    server = _Server(("127.0.0.1", port), handler)
    server.faults = service.faults
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    service.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield service
        assert [] == service.faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
