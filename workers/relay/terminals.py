"""Passes on what users type on the terminal of a run, and sends what the job answers at once.

The output goes to the service as any part of the log does. While a terminal is open, it is sent when the shim says that
the log has grown, and not only each 0.25 s.
"""

from __future__ import annotations

import logging
import threading
from contextlib import closing

from gpuqueue.errors import BadRequest
from gpuqueue.settings.settings import Settings
from gpuqueue.system.logs import LOG
from gpuqueue.system.terminal_socket import TerminalSocket
from workers.relay.link import Link, Refusal, ServiceAway
from workers.relay.logs import PART_BYTES, RunLogs

log = logging.getLogger(__name__)

#: How long the service may keep a long poll for keys, and how long it may take to answer after that, in seconds.
POLL_S, LATE_S = 20.0, 20.0
#: How long the job may not read its input before the terminal is left, in seconds. The service waits a little longer.
UNREAD_S = 3.0
#: Shortest time between two parts of the output, and after a whole part, in seconds.
PACE_S, FULL_PACE_S = 0.02, 0.25
#: Longest wait for output, and pause after trouble with the service, in seconds.
WAIT_S, AGAIN_S = 0.5, 1.0


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
        log_path = self._logs.run.run_directory(self._settings) / LOG
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
