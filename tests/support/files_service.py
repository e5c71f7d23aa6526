"""A small HTTP server that answers as the service does to ``GET /jobs/{name}/files``, with any archive."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

#: Most bytes of one chunk of an answer.
CHUNK_BYTES = 300_000


@dataclass
class FilesService:
    """The answer to each request, and the requests that came: the path, and the values of the query."""

    #: The parts of the archive. Without its end mark, the connection is closed after them.
    parts: Iterable[bytes] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    #: A problem document instead of an archive.
    problem: Mapping[str, Any] | None = None
    #: Whether the connection is closed before the last chunk.
    breaks: bool = False
    url: str = ""
    requests: list[tuple[str, dict[str, list[str]]]] = field(default_factory=list)


def _handler(service: FilesService) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers the requests of one server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            service.requests.append((unquote(parts.path), parse_qs(parts.query)))
            with suppress(BrokenPipeError, ConnectionResetError):  # the client may go at any time
                if service.problem is not None:
                    self._send_problem(service.problem)
                else:
                    self._send_archive()

        def _send_archive(self) -> None:
            self.send_response(200)
            headers = {"Content-Type": "application/x-tar", "Transfer-Encoding": "chunked", **service.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            for part in service.parts:
                for at in range(0, len(part), CHUNK_BYTES):
                    piece = part[at : at + CHUNK_BYTES]
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if service.breaks:
                self.close_connection = True
            else:
                self.wfile.write(b"0\r\n\r\n")

        def _send_problem(self, problem: Mapping[str, Any]) -> None:
            content = json.dumps(problem).encode()
            self.send_response(int(problem["status"]))
            self.send_header("Content-Type", "application/problem+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    return Handler


@contextmanager
def files_service(**answer: Any) -> Iterator[FilesService]:
    """Run a server with the fields of FilesService until the end of the block."""
    service = FilesService(**answer)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(service))
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
