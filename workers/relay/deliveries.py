"""Delivers what ended runs leave: their logs, and the files that their jobs keep, which it packs."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.settings.settings import Settings
from gpuqueue.system.delivered_layout import FAILED, RESULTS
from gpuqueue.system.disk_room import has_room
from gpuqueue.system.logs import LOG
from gpuqueue.system.safe_open import open_regular, read_small
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.text.units import format_bytes
from workers.relay.link import CallFailed, Link, Refusal, ServiceAway
from workers.relay.logs import LogProgress
from workers.relay.packing import MOST_REASON_BYTES, DiskFull, PackFailed, Packing, Stopped
from workers.relay.trouble import Pending, Trouble
from workers.run import deliveries
from workers.run.deliveries import Delivery
from workers.run.directory import USER
from workers.run.files import put

log = logging.getLogger(__name__)

#: Time between two searches for runs to deliver, in seconds.
POLL_S = 1.0
#: How long the service may refuse a run before nothing more of it is sent, in seconds. It may learn of a run only after
#: the run has ended, if the history is behind.
REFUSED_S = 3600.0
#: For how long packing is tried again after a failure, in seconds.
PACKING_S = 600.0
#: How long packing may take besides the time for its bytes, in seconds. The packer may run as the job's account, and
#: other processes of that account can stop it again and again.
PACK_S = 3600.0
#: How long the service may take to store an archive after its last byte, in seconds.
STORED_S = 900.0
_TOO_LARGE = 413
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Deliveries:
    """The deliveries of one host. A loop sends logs, and another one packs and sends files, which may take hours.

    Each step can be repeated, and an entry is removed only after the last one: a relay that was killed loses nothing.
    """

    def __init__(self, settings: Settings, progress: LogProgress, results: Results) -> None:
        self._settings = settings
        self._has_service = settings.service_url is not None
        self._progress = progress
        self._results = results
        #: The runs whose logs were sent, and whose files were not.
        self._with_logs: set[str] = set()

    def send_logs(self, stopping: threading.Event) -> None:
        """Send the logs of settled runs until *stopping* is set."""
        self._loop(self._send_logs, lambda run: run.name not in self._with_logs, "logs", stopping)

    def send_files(self, stopping: threading.Event) -> None:
        """Pack the files of settled runs, and send them once the logs were sent, until *stopping* is set."""
        self._loop(
            lambda run, link: self._send_files(run, link, stopping), lambda run: bool(run.keep), "kept files", stopping
        )

    def _loop(
        self,
        work: Callable[[Delivery, Link], None],
        has_work: Callable[[Delivery], bool],
        what: str,
        stopping: threading.Event,
    ) -> None:
        trouble, pending = Trouble(f"no {what} are sent for now", f"{what} are sent again"), Pending()
        with closing(Link(self._settings)) as link:
            while not stopping.is_set():
                pause_s = POLL_S
                try:
                    for run in self._due(has_work, pending, stopping):
                        answers = link.answers
                        self._try(work, run, link, pending)
                        if link.answers > answers:
                            trouble.over()
                except (ServiceAway, BadRequest) as error:
                    pause_s = trouble.report(str(error))
                stopping.wait(pause_s)

    def _due(
        self, has_work: Callable[[Delivery], bool], pending: Pending, stopping: threading.Event
    ) -> Iterator[Delivery]:
        # A run with trouble may take its whole time again, so it waits behind the others.
        for run in sorted(deliveries.settled(self._settings), key=lambda each: pending.has(each.name)):
            if stopping.is_set():
                return
            if has_work(run) and pending.is_due(run.name):
                yield run

    def _try(self, work: Callable[[Delivery, Link], None], run: Delivery, link: Link, pending: Pending) -> None:
        """Do the *work* for one run. Its own trouble does not hold up the others."""
        try:
            work(run, link)
        except Stopped:
            return
        except CallFailed as error:
            pending.report(run.name, str(error))
        except Refusal as refusal:
            if pending.report(run.name, f"the service refuses it: {refusal}") > REFUSED_S:
                self._drop(run, f"the service has refused it for too long: {refusal}")
        except PackFailed as error:
            if pending.report(run.name, f"its files cannot be packed: {error}") > self._most_s(error):
                with contextlib.suppress(OSError):
                    self._results.give_up(run, str(error))
        except OSError as error:
            pending.report(run.name, f"its files cannot be read or written: {error}")
        else:
            pending.forget(run.name)

    def _send_logs(self, run: Delivery, link: Link) -> None:
        lost = self._lost(run)
        if lost is not None and run.keep and run.run_directory(self._settings).is_dir():
            log.warning("the logs of run %s are not delivered: %s", run.name, lost)
            self._with_logs.add(run.name)
        elif lost is not None:
            self._drop(run, lost)
        elif not self._has_service:
            self._with_logs.add(run.name)
            if not run.keep:
                self._drop(run, "this host has no service any more (setting service_url)")
        else:
            self._progress.of(run).send(link, is_final=True)
            link.put(f"/runs/{run.job_id}/{run.token}/complete")
            self._progress.forget(run)
            self._with_logs.add(run.name)
            if not run.keep:
                self._end(run)

    def _send_files(self, run: Delivery, link: Link, stopping: threading.Event) -> None:
        if not run.run_directory(self._settings).is_dir():
            return  # the other loop says so
        self._results.pack(run, stopping)
        if self._has_service and run.name in self._with_logs:
            self._results.deliver(link, run)
        if run.name in self._with_logs:
            self._end(run)

    def _most_s(self, error: PackFailed) -> float:
        """Return for how long packing is tried again after *error*. A full disk is waited for while code is kept."""
        if not isinstance(error, DiskFull):
            return PACKING_S
        keep_code_s = self._settings.keep_code_s
        return math.inf if keep_code_s is None else max(PACKING_S, keep_code_s)

    def _lost(self, run: Delivery) -> str | None:
        """Return why there is nothing to send any more, or None."""
        directory = run.run_directory(self._settings)
        if not directory.is_dir():
            return "its run directory is gone"
        # The link is made with the first file of each run, and goes with its logs.
        if self._has_service and not any(os.path.lexists(directory / name) for name in (LOG, USER)):
            return "it has no log here: it never began, or its log was deleted after the time of keep_logs"
        return None

    def _drop(self, run: Delivery, why: str) -> None:
        log.warning("nothing more of run %s is delivered: %s", run.name, why)
        self._end(run)

    def _end(self, run: Delivery) -> None:
        deliveries.remove(self._settings, run)
        self._with_logs.discard(run.name)
        self._progress.forget(run)


class Results:
    """The kept files of the runs of one host."""

    def __init__(self, settings: Settings, packing: Packing) -> None:
        self._settings = settings
        self._packing = packing

    def pack(self, run: Delivery, stopping: threading.Event) -> None:
        """Make the archive of *run* in its directory, or the file with the reason why there is none.

        Nothing is done if one of them is there.

        Raises:
            PackFailed: It did not work now, and may work later.
            Stopped: *stopping* is set.
            OSError: The program cannot be started, or the file cannot be written.

        """
        directory = run.run_directory(self._settings)
        if any(os.path.lexists(directory / name) for name in (RESULTS, FAILED)):
            return
        part = directory / f".{RESULTS}"
        part.unlink(missing_ok=True)  # of a relay that was killed
        try:
            with os.fdopen(os.open(part, _NEW, 0o600), "wb") as file:
                size_bytes = 0
                with self._packing.archive(directory, run.keep, stopping) as archive:
                    for piece in archive.pieces(PACK_S):
                        size_bytes += len(piece)
                        self._check_room(file.fileno(), size_bytes, len(piece))
                        file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            part.rename(directory / RESULTS)
        except PackFailed as error:
            if not error.is_final:
                raise
            self.give_up(run, str(error))
        finally:
            part.unlink(missing_ok=True)

    def give_up(self, run: Delivery, reason: str) -> None:
        """Write down why *run* has no kept files.

        Raises:
            OSError: The file cannot be written.

        """
        put(run.run_directory(self._settings) / FAILED, in_one_line(reason))

    def deliver(self, link: Link, run: Delivery) -> None:
        """Send the archive of *run* to the service, or the reason why there is none, and remove it here.

        Raises:
            ServiceAway: The service does not answer. The next call sends it again.
            Refusal: The service does not take it.
            BadRequest: The token or the certificate on this host cannot be used.
            OSError: The file cannot be read.

        """
        directory, place = run.run_directory(self._settings), f"/runs/{run.job_id}/{run.token}"
        reason: str | None = None
        if os.path.lexists(directory / RESULTS):
            reason = self._send(link, directory / RESULTS, f"{place}/results")
        else:
            reason = read_small(directory / FAILED).decode(errors="replace")
        if reason is not None:
            link.put(f"{place}/results-failed", reason.encode()[:MOST_REASON_BYTES])
        for name in (RESULTS, FAILED):
            (directory / name).unlink(missing_ok=True)

    def _send(self, link: Link, path: Path, place: str) -> str | None:
        """Send an archive. Return None, or why it cannot be kept at the service."""
        try:
            with os.fdopen(open_regular(path), "rb", buffering=0) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                link.put_file(place, file, size_bytes, answer_s=STORED_S)
        except Unreadable as error:  # the job has put something else there
            return f"the kept files cannot be read: {error}"
        except Refusal as refusal:
            if refusal.status != _TOO_LARGE:
                raise
            return str(refusal)
        return None

    def _check_room(self, file: int, size_bytes: int, more_bytes: int) -> None:
        """Check that *more_bytes* may be written to *file*, which then has *size_bytes*."""
        limit_bytes, host = self._settings.results_limit_bytes, self._settings.host
        if limit_bytes is not None and size_bytes > limit_bytes:
            limit = format_bytes(limit_bytes)
            raise PackFailed(f"they have more than {limit} (results_limit of host {host})", is_final=True)
        if not has_room(file, more_bytes):
            raise DiskFull(f"the disk of {host} was nearly full")
