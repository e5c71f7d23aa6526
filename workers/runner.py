"""Puts the steps of a run together.

They are: check, choose Python, fetch code, authorise, spawn, follow, read exit, judge, report.
"""

from __future__ import annotations

import logging

from gpuqueue.clock import Clock
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.admission import AdmissionCheck
from workers.measure.monitor import DeviceMonitor
from workers.services.adoption import Adoption
from workers.shim.client import Shims
from workers.steps.authorise import authorise
from workers.steps.check import check
from workers.steps.choose_python import choose_python
from workers.steps.conclusion import Conclusion, NotStarted
from workers.steps.detach import Detached, pause
from workers.steps.fetch_code import FetchCode
from workers.steps.follow import follow, follow_child
from workers.steps.host_limits import check_limits
from workers.steps.judge import Judge
from workers.steps.read_exit import read_exit
from workers.steps.report import Report
from workers.steps.spawn import Spawn
from workers.threads.steady_clock import SteadyEvent
from workers.warm.pool import TIDY_S, WarmPool

log = logging.getLogger(__name__)


class Runner:
    """Executes runs, each in a thread of Celery's pool or of a plain thread pool."""

    def __init__(
        self,
        settings: Settings,
        queue: JobQueue,
        admission: AdmissionCheck,
        monitor: DeviceMonitor,
        runs: LiveRuns,
        clock: Clock,
        adoption: Adoption,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._admission = admission
        self._clock = clock
        self._shims = Shims()
        self._warm_pool = WarmPool(settings, self._shims, clock)
        self._stopping = SteadyEvent()
        self._fetch_code = FetchCode(settings, self._stopping)
        self._spawn = Spawn(settings, clock, runs, self._shims, self._warm_pool)
        self._judge = Judge(admission, monitor, clock)
        self._report = Report(settings, queue, runs, admission.start_health, adoption, self._stopping)

    def prepare(self) -> None:
        """Start the process that forks shims, before the first run needs it."""
        self._shims.prepare()

    def tidy(self, stopping: SteadyEvent) -> None:
        """End warm interpreters that no job has asked for lately, until *stopping* is set."""
        while not stopping.wait(TIDY_S):
            self._warm_pool.tidy()

    def detach(self) -> None:
        """Stop following the runs. They continue in their shims."""
        self._stopping.set()
        self._warm_pool.close()
        self._shims.close()

    def run(self, run: LiveRun) -> str:
        """Execute *run*, and return its outcome in a word or two for the log and for Celery.

        An adopted run has already started, so it is only followed and reported.
        """
        try:
            conclusion = self._start(run) if run.spec is not None else None
            return self._finish(run, conclusion)
        except Detached:
            return "detached"
        finally:
            run.close()

    def _start(self, run: LiveRun) -> NotStarted | None:
        """Start *run* and wait until its shim is gone. Return why it did not start, or None."""
        try:
            checked = check(run, self._admission)
            limited = check_limits(checked, self._settings.launcher_in_use)
            chosen = choose_python(limited, self._settings.environments)
            ready = self._fetch_code.fetch(chosen)
            permit = authorise(ready, self._settings, self._queue, self._clock, self._stopping)
            shim = self._spawn.spawn(permit)
            follow_child(run, shim, self._stopping)
        except NotStarted as refusal:
            return refusal
        except Detached:
            raise
        except Exception:
            log.exception("%s: starting or following it failed; it is followed by its files from now on", run)
        return None

    def _finish(self, run: LiveRun, conclusion: Conclusion | NotStarted | None) -> str:
        """Follow *run* to its end, judge and report it. Retry until it is reported or the worker stops."""
        while True:
            try:
                conclusion = conclusion or self._conclude(run)
                return self._report.report(run, conclusion)
            except Detached:
                raise
            except OSError as error:  # the host is short of a resource; the files of the run stay in place
                log.warning("%s: it cannot be settled for now: %s", run, error)
            except Exception:
                log.exception("%s: it could not be settled, trying again", run)
            pause(self._stopping)

    def _conclude(self, run: LiveRun) -> Conclusion | NotStarted:
        follow(run, self._stopping)
        end = read_exit(run, self._settings.launcher_in_use)
        try:
            return self._judge.judge(run, end)
        except NotStarted as refusal:
            return refusal
