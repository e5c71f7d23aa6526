"""The service of one person's machine: the web page of ``up --web``, on the loopback address only."""

from __future__ import annotations

import os
import signal
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.errors import GpuQueueError, Refused
from gpuqueue.lazy.imports import later
from gpuqueue.settings.settings import Settings
from gpuqueue.system.ownership import process_of, write_pid
from gpuqueue.system.process import DetachedProcess, ProcessIdentity

if TYPE_CHECKING:
    import socket
    from http import client as http

    from gpuqueue.system import socket_http
else:
    http = later("http.client")
    socket, socket_http = later("socket"), later("gpuqueue.system.socket_http")

#: The address that it listens at.
HOST = "127.0.0.1"
#: Time limit for it to start and to stop, in seconds, and the interval between two polls.
READY_S, LEAVE_S, POLL_S = 30.0, 10.0, 0.05


class PageService:
    """Starts and stops the service that shows the page of one machine's queue."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._pid_file = settings.state_dir / "web.pid"
        self._log = settings.logs_dir / "web.log"
        #: Its unix socket, in a directory that only this account can enter.
        self.socket = settings.state_dir / "web.sock"

    @property
    def url(self) -> str:
        """Return the address of the service for programs."""
        return f"unix://{self.socket}"

    def running(self) -> ProcessIdentity | None:
        """Return the identity of the service, or None if it does not run."""
        identity = process_of(self.settings.state_dir, self._pid_file.name)
        return identity if identity is not None and identity.alive() else None

    def start(self, port: int = 0) -> bool:
        """Start the service, and return whether it did not run before. *port* 0: any that is free.

        Raises:
            Refused: the port is in use.
            GpuQueueError: it does not start.

        """
        if self.running() is not None:
            return False
        self._log.unlink(missing_ok=True)
        words = [sys.executable, "-m", "gpuqueue", "serve", "--socket", str(self.socket)]
        words += ["--listen", f"{HOST}:{_free_port(port)}"]
        environ = {name: text for name, text in os.environ.items() if name != "GPUQUEUE_URL"}
        started = DetachedProcess(words, log=self._log, environ=environ)
        write_pid(self._pid_file, started.pid)
        deadline_s = time.monotonic() + READY_S
        while not self._answers():
            if started.poll() is not None:
                raise GpuQueueError(f"the web page did not start: {_last_line(self._log)}")
            if time.monotonic() > deadline_s:
                raise GpuQueueError(f"the web page did not start within {READY_S:g} s: see {self._log}")
            time.sleep(POLL_S)
        return True

    def trouble(self) -> str | None:
        """Return what a browser reads in place of the page, or None: the page is there, or the service has ended."""
        connection = socket_http.SocketConnection(self.url, timeout=READY_S)
        try:
            connection.request("GET", "/")
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, http.HTTPException):
            return None
        finally:
            connection.close()
        return None if answer.status == HTTPStatus.OK else " ".join(text.split())

    def stop(self) -> bool:
        """Stop the service, and return whether it ran."""
        running = self.running()
        if running is None:
            return False
        running.send(signal.SIGTERM)
        if not running.wait(LEAVE_S):
            running.send(signal.SIGKILL)
        self._pid_file.unlink(missing_ok=True)
        return True

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            try:
                link.connect(str(self.socket))
            except OSError:
                return False
        return True


def _free_port(port: int) -> int:
    """Return *port*, or one that is free now for 0.

    Raises:
        Refused: *port* is in use.

    """
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            link.bind((HOST, port))
        except OSError as error:
            raise Refused(f"port {port} of {HOST} cannot be used: {error.strerror}: give another --web-port") from error
        return int(link.getsockname()[1])


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else f"see {path}"
