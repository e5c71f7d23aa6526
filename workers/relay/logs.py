"""Sends the logs of runs to the service, whole or while they are written. A log may have a hole in its middle."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator

from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.settings.settings import Settings
from gpuqueue.system.logs import LOGS, TIMES, has_hole, next_data
from gpuqueue.system.safe_open import open_regular
from workers.relay.link import Link, Refusal, ServiceAway
from workers.run.deliveries import Delivery
from workers.threads import SteadyEvent

log = logging.getLogger(__name__)

#: The files of a run that are sent.
NAMES = tuple(name + suffix for name in LOGS for suffix in ("", TIMES))
#: Bytes in one request, which a slow network must carry within 30 s.
PART_BYTES = 2 * 2**20
#: A file of unknown progress that is larger is not sent before the service has said how much of it there is.
PROBE_BYTES = 64 * 1024
#: The last bytes sent are compared with the file before the next ones are: this many.
MARK_BYTES = 1024
#: How often in one call the service may say that it has more than was known.
MOST_CONFLICTS = 3
#: If the service has no room for a log, it is sent anew if less than this share of what the service has is still here.
LESS = 0.9
#: How long nothing of a log is sent that the service has no room for, unless it is cut here, in seconds.
FULL_S = 5.0
#: Bytes of a block in ``st_blocks`` of stat(2), on every file system.
_BLOCK_BYTES = 512
#: Runs whose progress is kept in memory. Without it the service is asked.
MOST_RUNS = 1024
#: Statuses of the service: it has more of the file, and the file is above its limit.
_CONFLICT, _TOO_LARGE = 409, 413
#: How often new output is sent, and for how long after a request, in seconds. Readers ask again before that.
PACE_S, FOLLOW_S = 0.25, 30.0
#: How long the loop sleeps while nobody reads a log, in seconds. A request wakes it.
IDLE_S = 2.0


class RunLogs:
    """The logs of one run, and how much of each was sent. Threads may share it."""

    def __init__(self, settings: Settings, run: Delivery) -> None:
        self.run = run
        directory = run.run_directory(settings)
        self._files = [_LogFile(f"{directory}/{name}", f"/runs/{run.job_id}/{run.token}/{name}") for name in NAMES]
        self._lock = threading.Lock()

    def send(self, link: Link, most_bytes: int | None = None, *, is_final: bool = False) -> int:
        """Send what is new now, at most about *most_bytes*, and return how many bytes that were.

        *is_final*: the run has ended, so the logs are no longer written or cut by the run.

        Raises:
            ServiceAway: The service does not answer. The next call goes on.
            Refusal: The service does not take the logs of this run.
            BadRequest: The token or the certificate on this host cannot be used.
            OSError: A file cannot be read now.

        """
        sent_bytes = 0
        with self._lock:
            for file in self._files:
                left_bytes = None if most_bytes is None else most_bytes - sent_bytes
                if left_bytes is None or left_bytes > 0:
                    sent_bytes += file.send(link, left_bytes, is_final=is_final)
        return sent_bytes


class LogProgress:
    """The logs of runs of which something was sent. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._known: dict[str, RunLogs] = {}

    def of(self, run: Delivery) -> RunLogs:
        """Return the logs of *run*."""
        with self._lock:
            found = self._known.pop(run.name, None) or RunLogs(self._settings, run)
            while len(self._known) >= MOST_RUNS:
                del self._known[next(iter(self._known))]
            self._known[run.name] = found
            return found

    def forget(self, run: Delivery) -> None:
        """Forget how much of the logs of *run* was sent."""
        with self._lock:
            self._known.pop(run.name, None)


class Followed:
    """The runs whose logs are sent while they are written. Threads may share it."""

    def __init__(self, settings: Settings, progress: LogProgress) -> None:
        self._settings = settings
        self._progress = progress
        self._lock = threading.Lock()
        #: The runs, by name, and until when each is followed, on the monotonic clock.
        self._runs: dict[str, tuple[Delivery, float]] = {}
        self._woken = SteadyEvent()

    def follow(self, run: Delivery) -> None:
        """Send what is new in the logs of *run* for a while."""
        with self._lock:
            self._runs[run.name] = run, time.monotonic() + FOLLOW_S
        self._woken.set()

    def loop(self, stopping: threading.Event) -> None:
        """Send what is new until *stopping* is set. Trouble ends it for a run: its readers will ask again."""
        with contextlib.closing(Link(self._settings)) as link:
            while not stopping.is_set():
                runs = self._current()
                for run in runs:
                    self._send(run, link)
                if runs:
                    stopping.wait(PACE_S)
                else:
                    link.close()
                    self._woken.wait(IDLE_S)
                    self._woken.clear()

    def _current(self) -> list[Delivery]:
        now_s = time.monotonic()
        with self._lock:
            self._runs = {name: each for name, each in self._runs.items() if each[1] > now_s}
            return [run for run, _ in self._runs.values()]

    def _send(self, run: Delivery, link: Link) -> None:
        try:
            self._progress.of(run).send(link, PART_BYTES)
        except (ServiceAway, Refusal, BadRequest, OSError) as error:
            log.warning("the log of run %s is not sent as it is written: %s", run.name, error)
            with self._lock:
                self._runs.pop(run.name, None)


class _LogFile:
    """One file of a run. ``_offset`` is up to where it was sent, None if that is unknown."""

    def __init__(self, path: str, url: str) -> None:
        self._path = path
        self._url = url
        self._offset: int | None = None
        #: The last bytes that were sent. If they have changed, the file was cut back and written again.
        self._mark = b""
        #: How many bytes of it the service stores; None if that is unknown.
        self._there_bytes: int | None = 0
        #: How often the service has refused a part in this call.
        self._conflicts = 0
        #: Until when the service is not asked again whether it has room, on the monotonic clock.
        self._full_until_s = 0.0
        self._is_full_reported = False
        #: Whether the file was sent anew because the service had no room for its end.
        self._is_end_anew = False
        self._is_over = False

    def send(self, link: Link, most_bytes: int | None, *, is_final: bool) -> int:
        """Send what is new, at most about *most_bytes*, and return how many bytes that were."""
        sent_bytes = 0
        with self._opened() as file:
            if file is None or self._is_over or (not is_final and self._is_full(file)):
                return 0
            self._conflicts = 0
            self._begin(link, file)
            while (most_bytes is None or sent_bytes < most_bytes) and (part := self._next(link, file)):
                try:
                    sent_bytes += self._send_part(link, *part)
                except Refusal as refusal:
                    if refusal.status != _TOO_LARGE:
                        raise
                    if not self._is_less_here(file) and not (is_final and self._may_fit(file, len(part[1]))):
                        self._stop(refusal, is_final=is_final)
                        break
                    self._begin_anew(link)
                    self._is_end_anew = is_final
        return sent_bytes

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int | None]:
        try:
            file = open_regular(self._path)
        except FileNotFoundError:
            yield None
            return
        except Unreadable as error:
            if not self._is_over:
                log.warning("%s is not sent: %s", self._path, error)
            self._is_over = True
            yield None
            return
        try:
            yield file
        finally:
            os.close(file)

    def _begin(self, link: Link, file: int) -> None:
        """Ask the service how much of a large file an earlier relay has sent."""
        if self._offset is None:
            self._offset = 0
            if os.fstat(file).st_size > PROBE_BYTES:
                self._send_part(link, 0, b"")

    def _next(self, link: Link, file: int) -> tuple[int, bytes] | None:
        """Return the next part to send. If the file was shortened, as on a disk without holes, begin again."""
        if (self._offset or 0) > os.fstat(file).st_size or not self._is_as_sent(file):
            self._begin_anew(link)
        return next_data(file, self._offset or 0, PART_BYTES)

    def _begin_anew(self, link: Link) -> None:
        link.put(f"{self._url}?offset=0&replace=true")
        self._offset, self._mark, self._there_bytes = 0, b"", 0

    def _is_less_here(self, file: int) -> bool:
        """Return whether the service has, or may have, many bytes that were cut from the file after they were sent."""
        kept_bytes = os.fstat(file).st_blocks * _BLOCK_BYTES
        return self._there_bytes is None or kept_bytes < LESS * self._there_bytes

    def _may_fit(self, file: int, more_bytes: int) -> bool:
        """Return whether the service may take the whole file anew, although it takes no *more_bytes* at its end."""
        kept_bytes = os.fstat(file).st_blocks * _BLOCK_BYTES
        return not self._is_end_anew and kept_bytes < (self._there_bytes or 0) + more_bytes

    def _is_full(self, file: int) -> bool:
        return time.monotonic() < self._full_until_s and not self._is_less_here(file)

    def _stop(self, refusal: Refusal, *, is_final: bool) -> None:
        """Send no more for now. While the run goes on, its shim may cut the file, and then the service has room."""
        self._is_over = is_final
        self._full_until_s = time.monotonic() + FULL_S
        if not self._is_full_reported:
            log.warning("%s: the service takes no more of it: %s", self._path, refusal)
        self._is_full_reported = True

    def _is_as_sent(self, file: int) -> bool:
        end = self._offset or 0
        begin = end - len(self._mark)
        # What is next to a hole was overwritten with a line about it. The service has the bytes that were there.
        return os.pread(file, len(self._mark), begin) == self._mark or has_hole(file, begin, end + 1)

    def _send_part(self, link: Link, begin: int, data: bytes) -> int:
        """Send *data*, which begins at *begin*, and return its length; 0 if the service has it already."""
        try:
            link.put(f"{self._url}?offset={begin}&replace=false", data)
        except Refusal as refusal:
            # Sent by an earlier relay, or by this one, and the answer was lost.
            self._conflicts += 1
            there = refusal.next_offset
            if refusal.status != _CONFLICT or there is None or there <= begin or self._conflicts > MOST_CONFLICTS:
                raise
            self._offset, self._mark, self._there_bytes = there, b"", None
            return 0
        before = self._mark if begin == self._offset else b""
        self._offset = begin + len(data)
        self._mark = (before + data[-MARK_BYTES:])[-MARK_BYTES:]
        if self._there_bytes is not None:
            self._there_bytes += len(data)
        return len(data)
