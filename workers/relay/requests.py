"""Serves what the service asks this host for: logs, files and progress of runs, and passing on what users type.

The host calls the service, never the other way round: a long poll returns the requests, and the answers are calls of
their own. The output of a terminal goes to the service as any part of the log does. While it is open, it is sent when
the shim says that the log has grown, and not only each 0.25 s.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuqueue.codec import figures_file
from gpuqueue.codec.wire import to_stored
from gpuqueue.errors import BadRequest, GpuQueueError, Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.file_patterns import file_patterns
from gpuqueue.settings.settings import Settings
from gpuqueue.system import command_socket, progress_file
from gpuqueue.system.logs import LOG as LOG_NAME
from gpuqueue.system.safe_open import read_small
from gpuqueue.system.terminal_socket import TerminalSocket
from gpuqueue.text.json_fields import Fields
from workers.relay.link import Link, Refusal, ServiceAway
from workers.relay.logs import PART_BYTES, Followed, LogProgress, RunLogs
from workers.relay.packing import MOST_REASON_BYTES, PackFailed, Packing, Stopped
from workers.relay.trouble import Trouble
from workers.run import deliveries
from workers.run.deliveries import Delivery, run_named
from workers.threads import SteadyEvent

if TYPE_CHECKING:
    from workers.relay import ports
    from workers.relay.ports import Ports
else:
    ports = later("workers.relay.ports")

log = logging.getLogger(__name__)

#: How long the service may keep a long poll for requests or keys, and how long it may take to answer after that, in
#: seconds.
POLL_S, LATE_S = 20.0, 20.0
#: Shortest time between two polls that returned nothing, in seconds.
PAUSE_S = 1.0
#: Longest pause while the service is away, in seconds. Somebody who reads a log then waits for it.
MOST_PAUSE_S = 5.0
#: Most requests that are served at a time, and most of them for files, which may take long.
MOST, MOST_FILES = 8, 6
#: Most terminals that are open at a time, beside the other requests.
MOST_TERMINALS = 32
#: How long the parts of a log are sent before the answer, in seconds. The service waits for it a little longer.
LOG_S = 3.0
#: How long the first bytes of an archive are waited for before the answer begins, in seconds. Until then the reason of
#: a failure is the whole answer.
FIRST_S = 3.0
#: The kinds of requests.
LOG, FILES, TERMINAL, FIGURES, PROGRESS, EXEC, PORT = "log", "files", "terminal", "figures", "progress", "exec", "port"
#: Those that stay open as long as a user wants. They never wait for others.
LONG = (TERMINAL, EXEC)
#: What a request for the progress of all runs has in place of a run.
_NO_RUN = Delivery(job_id=0, token="")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: How long the job may not read its input before the terminal is left, in seconds. The service waits a little longer.
UNREAD_S = 3.0
#: Shortest time between two parts of the output, and after a whole part, in seconds.
PACE_S, FULL_PACE_S = 0.02, 0.25
#: Most bytes of one piece of the output of a second command.
PIECE_BYTES = 65536
#: Longest wait for output, and pause after trouble with the service, in seconds.
WAIT_S, AGAIN_S = 0.5, 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request of the service."""

    id: str
    kind: str
    run: Delivery
    patterns: tuple[str, ...]
    port: int = 0

    @classmethod
    def of(cls, plain: object) -> Request:
        """Return the request in *plain*.

        Raises:
            Unreadable: It is no request that this host knows.

        """
        fields = Fields(plain, "a request of the service")
        request_id, kind = fields.text("id"), fields.text("kind")
        run = _NO_RUN if kind == PROGRESS else run_named(f"{fields.whole('job')}.{fields.text('token')}")
        patterns = fields.texts("patterns") if fields.has("patterns") else ()
        if not _ID.fullmatch(request_id):
            raise fields.wrong("id", "a name")
        if run is None:
            raise fields.wrong("token", "that of a run")
        port = fields.whole("port") if kind == PORT else 0
        try:
            return cls(id=request_id, kind=kind, run=run, patterns=file_patterns("patterns", patterns), port=port)
        except BadRequest:
            raise fields.wrong("patterns", "a few patterns of files") from None


class Requests:
    """The requests to this host. Each is served in a thread of its own, with a connection of its own."""

    def __init__(self, settings: Settings, progress: LogProgress, packing: Packing, followed: Followed) -> None:
        self._settings = settings
        self._progress = progress
        self._packing = packing
        self._followed = followed
        #: From the first request for a port on: its library for WebSockets takes memory.
        self._ports: Ports | None = None
        self._served: dict[str, Request] = {}
        self._ended = SteadyEvent()

    def loop(self, stopping: threading.Event) -> None:
        """Serve requests until *stopping* is set."""
        words = "no requests of the service are served for now", "requests of the service are served again"
        trouble = Trouble(*words, most_s=MOST_PAUSE_S)
        with closing(Link(self._settings)) as link:
            while not stopping.is_set():
                began_s, pause_s = time.monotonic(), 0.0
                try:
                    found = link.get_list(f"/requests?timeout_s={POLL_S:g}", timeout_s=POLL_S + LATE_S)
                    trouble.over()
                    for request in _known(found):
                        self._begin(request, stopping)
                    if not found:
                        pause_s = max(0.0, PAUSE_S - (time.monotonic() - began_s))
                except (ServiceAway, Refusal, BadRequest) as error:
                    pause_s = trouble.report(str(error))
                if pause_s:
                    stopping.wait(pause_s)

    def _begin(self, request: Request, stopping: threading.Event) -> None:
        """Serve a request in a new thread, once fewer than ``MOST`` are served. What a person types in never waits."""
        if request.kind == PORT and self._ports is None:
            self._ports = ports.Ports(self._settings)
        while request.kind not in {*LONG, PORT} and len(self._served) - sum(map(self._count, LONG)) >= MOST:
            self._ended.wait(PAUSE_S)
            self._ended.clear()
            if stopping.is_set():
                return
        self._served[request.id] = request
        name = f"gpuqueue-request-{request.id}"
        try:
            threading.Thread(target=self._serve, args=(request, stopping), name=name, daemon=True).start()
        except RuntimeError:  # the host cannot create another thread
            self._served.pop(request.id, None)
            raise

    def _serve(self, request: Request, stopping: threading.Event) -> None:
        try:
            with closing(Link(self._settings)) as link:
                reason = self._reason_against(request, link, stopping)
                if reason is not None:
                    self._end(link, request, reason)
        except Exception as error:
            known = isinstance(error, (GpuQueueError, OSError))
            log.warning("a request of the service for run %s failed: %s", request.run.name, error, exc_info=not known)
        finally:
            self._served.pop(request.id, None)
            self._ended.set()

    def _reason_against(self, request: Request, link: Link, stopping: threading.Event) -> str | None:
        """Do what *request* wants. Return why that is not possible, "" if it was done, None if the service knows."""
        serve: Mapping[str, Callable[[Request, Link, threading.Event], str | None]] = {
            LOG: self._send_log,
            FILES: self._send_files,
            TERMINAL: self._open_terminal,
            EXEC: self._pass_on_command,
            FIGURES: self._send_figures,
            PROGRESS: self._send_progress,
            PORT: self._open_port,
        }
        host = self._settings.host
        if request.kind not in serve:
            return f"{host} has a version of gpuqueue without requests of the kind {request.kind}"
        if request.kind != PROGRESS and not request.run.run_directory(self._settings).is_dir():
            return f"the run directory is no longer on {host}"
        try:
            return serve[request.kind](request, link, stopping)
        except (PackFailed, Stopped, OSError) as error:
            return str(error)
        except Refusal as refusal:
            return f"the service does not take it: {refusal}"

    def _send_log(self, request: Request, link: Link, _stopping: threading.Event) -> str | None:
        """Send what is new in a log, in parts, for at most ``LOG_S``. The rest is sent by *followed*."""
        logs, until_s = self._progress.of(request.run), time.monotonic() + LOG_S
        while (sent_bytes := logs.send(link, PART_BYTES)) >= PART_BYTES and time.monotonic() < until_s:
            pass
        self._followed.follow(request.run)
        return "" if sent_bytes < PART_BYTES else f"host {self._settings.host} has not sent all of it yet"

    def _send_files(self, request: Request, link: Link, stopping: threading.Event) -> str | None:
        """Send an archive as it is packed."""
        if self._count(FILES) > MOST_FILES:
            return f"{self._settings.host} already sends the files of {MOST_FILES} runs: ask again later"
        directory = request.run.run_directory(self._settings)
        with self._packing.archive(directory, request.patterns, stopping) as archive:
            pieces = archive.pieces()
            first = next(pieces, b"") if archive.begins(FIRST_S) else b""
            try:
                link.put_pieces(f"/requests/{request.id}/content", self._all(request, first, pieces))
            except (PackFailed, Stopped, Refusal):
                return None
        return ""

    def _open_terminal(self, request: Request, link: Link, stopping: threading.Event) -> str | None:
        if self._count(TERMINAL) > MOST_TERMINALS:
            return f"{self._settings.host} already has {MOST_TERMINALS} terminals open: try again later"
        return OpenTerminal(self._settings, self._progress.of(request.run), request.id).serve(link, stopping)

    def _pass_on_command(self, request: Request, link: Link, stopping: threading.Event) -> str | None:
        if self._count(EXEC) > MOST_TERMINALS:
            return f"{self._settings.host} already has {MOST_TERMINALS} second commands: try again later"
        return PassedCommand(self._settings, request).serve(link, stopping)

    def _open_port(self, request: Request, _link: Link, _stopping: threading.Event) -> str | None:
        return "" if self._ports is None else self._ports.reason_against(request.id, request.run, request.port)

    def _send_figures(self, request: Request, link: Link, _stopping: threading.Event) -> str | None:
        content = read_small(request.run.run_directory(self._settings) / figures_file.NAME, figures_file.MAX_BYTES)
        with contextlib.suppress(Refusal):  # nobody waits for it any more
            link.put(f"/requests/{request.id}/figures", content)
        return None

    def _send_progress(self, request: Request, link: Link, _stopping: threading.Event) -> str | None:
        runs = json.dumps(list(progress_of_runs(self._settings))).encode("ascii")
        with contextlib.suppress(Refusal):  # nobody waits for it any more
            link.put(f"/requests/{request.id}/progress", runs)
        return None

    def _count(self, kind: str) -> int:
        """Return how many requests of this *kind* are served now."""
        return sum(each.kind == kind for each in list(self._served.values()))

    def _all(self, request: Request, first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the archive. After a failure the service gets its reason before it sees that the archive is cut off."""
        yield first
        try:
            yield from rest
        except (PackFailed, Stopped) as error:
            with closing(Link(self._settings)) as link:
                self._end(link, request, str(error))
            raise

    def _end(self, link: Link, request: Request, reason: str) -> None:
        with contextlib.suppress(Refusal):  # nobody waits for it any more
            link.put(f"/requests/{request.id}/done", reason.encode(errors="replace")[:MOST_REASON_BYTES])


def _known(found: list[object]) -> Iterator[Request]:
    for plain in found:
        try:
            yield Request.of(plain)
        except Unreadable as error:
            log.warning("the service asks for something unknown: %s", error)


def progress_of_runs(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the progress of each run that goes on and shows any, as the service takes it.

    Each run of this host has an entry among the deliveries, so no other run directory is read.
    """
    for run in filter(None, map(deliveries.run_named, deliveries.names(settings))):
        directory = run.run_directory(settings)
        if not os.path.lexists(directory / "claim"):
            continue
        reading = progress_file.read(directory)
        if reading is not None:
            progress = to_stored(reading.progress)
            yield {"job": run.job_id, "token": run.token, **progress, "is_sure": reading.is_sure}


class OpenTerminal:
    """The terminal of one run, for as long as somebody types on it. *request_id* is that of the service's request."""

    def __init__(self, settings: Settings, logs: RunLogs, request_id: str) -> None:
        self._settings, self._logs = settings, logs
        self._place = f"/requests/{request_id}"
        self._is_left = threading.Event()

    def serve(self, link: Link, stopping: threading.Event) -> str | None:
        """Pass on keys until nobody types any more, or the run has ended.

        Return why the terminal cannot be used, "" if there is none any more, None if the service has ended the request.

        Raises:
            ServiceAway: the service does not answer. It asks again if somebody types.
            BadRequest: the token or the certificate on this host cannot be used.

        """
        log_path = self._logs.run.run_directory(self._settings) / LOG_NAME
        try:
            line = TerminalSocket(log_path, unread_s=UNREAD_S)
        except (FileNotFoundError, ConnectionRefusedError):
            return ""
        except OSError as error:
            return error.strerror or "unknown error"
        with closing(line):
            sender = threading.Thread(target=self._send_output, args=(line,), name="gpuqueue-terminal", daemon=True)
            sender.start()
            try:
                return self._pass_on(line, link, stopping)
            finally:
                self._is_left.set()
                sender.join()

    def _pass_on(self, line: TerminalSocket, link: Link, stopping: threading.Event) -> str | None:
        passed_on = 0
        while not stopping.is_set():
            try:
                frames = link.get(
                    f"{self._place}/keys?offset={passed_on}&timeout_s={POLL_S:g}", timeout_s=POLL_S + LATE_S
                )
                line.send(frames)
            except Refusal:
                return None
            except (BrokenPipeError, ConnectionResetError):
                return ""
            except BlockingIOError:
                return f"the job has not read what was typed for {UNREAD_S:g} s"
            passed_on += len(frames)
        return None  # the next key waits for the next relay

    def _send_output(self, line: TerminalSocket) -> None:
        """Send the output whenever there is some. Report the end of the run."""
        with closing(Link(self._settings)) as link:
            while not self._is_left.is_set():
                line.wait(WAIT_S)
                has_ended = line.has_ended()  # before the log is read, so that no output before the end is missed
                pause_s = self._send_new(link)
                if has_ended and self._report_end(link):
                    return
                self._is_left.wait(pause_s)

    def _send_new(self, link: Link) -> float:
        """Send what is new, and return how long to wait before the next part, in seconds."""
        try:
            return PACE_S if self._logs.send(link, PART_BYTES) < PART_BYTES else FULL_PACE_S
        except (ServiceAway, Refusal, BadRequest, OSError) as error:
            log.debug("the output of run %s is sent later: %s", self._logs.run.name, error)
            return AGAIN_S

    def _report_end(self, link: Link) -> bool:
        """Report that the run has no terminal any more, which ends the poll for keys. Return whether that is known."""
        try:
            link.put(f"{self._place}/done")
        except Refusal:
            pass
        except (ServiceAway, BadRequest):
            return False
        return True


class PassedCommand:
    """The input and output of a second command in a run, whose shim and whose client speak with each other."""

    def __init__(self, settings: Settings, request: Request) -> None:
        self._settings, self._request = settings, request

    def serve(self, link: Link, stopping: threading.Event) -> str | None:
        """Pass on everything until the command has ended, or the client has gone.

        Return why there is no command, "" if all was passed on, None if the service has ended the request.
        """
        try:
            line = command_socket.connected(self._request.run.run_directory(self._settings))
        except (FileNotFoundError, ConnectionRefusedError):
            return "the job has just ended, or takes no second command: was it started by an earlier version?"
        with closing(line):
            sender = threading.Thread(target=self._send_input, args=(line, stopping), name="gpuqueue-exec", daemon=True)
            sender.start()
            try:
                link.put_pieces(f"/requests/{self._request.id}/content", iter(partial(line.recv, PIECE_BYTES), b""))
            except (Refusal, ServiceAway, ConnectionResetError):
                return None
            finally:
                _shut(line)  # also ends the thread, if it waits for the command to read
        return ""

    def _send_input(self, line: socket.socket, stopping: threading.Event) -> None:
        """Pass on the request and the input, until the client or the command is gone."""
        passed_on, place = 0, f"/requests/{self._request.id}/keys"
        with closing(Link(self._settings)) as link:
            try:
                while not stopping.is_set():
                    frames = link.get(f"{place}?offset={passed_on}&timeout_s={POLL_S:g}", timeout_s=POLL_S + LATE_S)
                    line.sendall(frames)
                    passed_on += len(frames)
            except (GpuQueueError, OSError):
                pass
            finally:
                _shut(line)


def _shut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
