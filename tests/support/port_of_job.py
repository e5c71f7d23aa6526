"""A job that listens on a port, and what a test does with it through a forwarded one."""

from __future__ import annotations

import hashlib
import http.client
import re
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from bounded import until

from gpuqueue.client import Client
from gpuqueue.model.job import Job

#: The body of the long answer, which is more than all buffers on the way.
LONG_BYTES = 24_000_000
#: Serves HTTP: ``/short``, and ``/long`` of LONG_BYTES. It answers ``POST`` with the digest of the whole body, which
#: ends with the client's direction of the connection if it has no length. It prints its port.
SERVER = f"""
import hashlib, http.server, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        body = b"short" if self.path == "/short" else bytes(range(250)) * ({LONG_BYTES} // 250)
        self.answer(body)

    def do_POST(self):
        self.answer(hashlib.sha256(self.rfile.read()).hexdigest().encode())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"""
LONG = hashlib.sha256(bytes(range(250)) * (LONG_BYTES // 250)).hexdigest()


def free_port() -> int:
    """Return a port at which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def serving_job(client: Client, port: int = 0) -> tuple[Job, int]:
    """Submit the server, and return the job and its port once it listens."""
    job = client.jobs.submit([sys.executable, "-c", SERVER, str(port)], mem="1M", env={})

    def its_port() -> int | None:
        tail = client.logs.tail()
        record = client.jobs.newest(job.id)
        if not record.runs or not record.runs[-1].log_path:
            return None
        client.logs.turn(tail, record)
        match = re.search(rb"port (\d+)\n", b"".join(tail.rest()))
        return None if match is None else int(match[1])

    found = until(its_port, timeout_s=60, what="the port of the job")
    assert found is not None
    return job, found


def get(port: int, path: str = "/short") -> bytes:
    """Return the answer at a local port."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as link:
        link.request("GET", path)
        return link.getresponse().read()


def is_answered(port: int) -> bool:
    """Return whether the server answers at a local port."""
    try:
        return get(port) == b"short"
    except (OSError, http.client.HTTPException):
        return False


def posted_by_half_closing(port: int, body: bytes) -> bytes:
    """Send *body*, end this direction, and return the answer, which comes only then."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
        link.sendall(b"POST / HTTP/1.0\r\n\r\n" + body)
        link.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: link.recv(65536), b""))
    return answer.partition(b"\r\n\r\n")[2]


def stalled(port: int) -> socket.socket:
    """Return a connection that has asked for the long answer, and does not read it."""
    link = socket.create_connection(("127.0.0.1", port), timeout=60)
    link.sendall(b"GET /long HTTP/1.0\r\n\r\n")
    return link


def is_cut_off(link: socket.socket) -> bool:
    """Return whether a connection is over, though the long answer was not whole."""
    link.settimeout(0.2)
    try:
        return not link.recv(65536)
    except TimeoutError:
        return False
    except OSError:
        return True


def rest_of(link: socket.socket) -> str:
    """Return the digest of the body that comes."""
    with closing(link), link.makefile("rb") as file:
        return hashlib.sha256(file.read().partition(b"\r\n\r\n")[2]).hexdigest()


def at_once(count: int, call: Callable[[], object]) -> list[object]:
    """Return the results of *count* calls that run at the same time."""
    with ThreadPoolExecutor(count) as pool:
        return [each.result(timeout=120) for each in [pool.submit(call) for _ in range(count)]]
