"""Delivers what ended runs leave: their logs and the files that their jobs keep."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

from gpuqueue.errors import BadRequest
from gpuqueue.settings.settings import Settings
from gpuqueue.system.logs import LOG
from workers.relay.link import CallFailed, Link, Refusal, ServiceAway
from workers.relay.logs import LogProgress
from workers.relay.packing import DiskFull, PackFailed, Stopped
from workers.relay.results import Results
from workers.relay.trouble import Pending, Trouble
from workers.run import deliveries
from workers.run.deliveries import Delivery
from workers.run.directory import USER

log = logging.getLogger(__name__)

#: Time between two searches for runs to deliver, in seconds.
POLL_S = 1.0
#: How long the service may refuse a run before nothing more of it is sent, in seconds. It may learn of a run only after
#: the run has ended, if the history is behind.
REFUSED_S = 3600.0
#: For how long packing is tried again after a failure, in seconds.
PACKING_S = 600.0


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
