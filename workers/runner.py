"""Executes runs: puts the steps of a run together.

They are: check, choose Python, fetch code, authorise, spawn, follow, read exit, judge, report. The worker calls
``Runner`` with each claimed or adopted run. The short steps are functions of this file, the others are in
``workers.steps``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.python_environments import OF_ANOTHER_PYTHON
from gpuqueue.model.run import Ending
from gpuqueue.queue.evidence import NO_EVIDENCE
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.admission import AdmissionCheck
from workers.measure.monitor import DeviceMonitor
from workers.run.directory import Exit
from workers.run.orphans import KILL_S, earlier_runs, end_run, sweep_run
from workers.services.adoption import Adoption
from workers.shim.client import Shim, Shims
from workers.shim.supervisor import CANNOT_WRITE
from workers.steps.conclusion import Conclusion, Detached, NotStarted, answered, pause, wait_for
from workers.steps.container import check_container
from workers.steps.fetch_code import FetchCode
from workers.steps.judge import Judge
from workers.steps.report import Report
from workers.steps.spawn import Spawn, authorise
from workers.threads import SteadyEvent, in_time
from workers.warm_pool import TIDY_S, WarmPool

if TYPE_CHECKING:
    from workers.whole import outcome
else:  # only the worker of an engine
    outcome = later("workers.whole.outcome")

log = logging.getLogger(__name__)
#: How long the check for the program may take, in seconds: it may lie on a dead file server. Then the start decides.
FIND_PROGRAM_S = 5.0
#: Pause between two polls for a shim that is just being started, in seconds.
POLL_S = 0.05


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
        host_devices: int | None = None,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._admission = admission
        self._clock = clock
        self._shims = Shims()
        self._warm_pool = WarmPool(settings, self._shims, clock)
        self._stopping = SteadyEvent()
        self._fetch_code = FetchCode(settings, self._stopping)
        self._spawn = Spawn(settings, clock, runs, self._shims, self._warm_pool, host_devices)
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
            end_earlier(run, self._settings, self._stopping)
            checked = check_admission(run, self._admission)
            limited = checked if run.is_whole else check_limits(checked, self._settings.launcher_in_use)
            chosen = choose_python(limited, self._settings.environments)
            check_container(chosen, self._settings)
            ready = self._fetch_code.fetch(chosen)
            limits = self._spawn.limits(ready.spec) if ready.spec is not None else {}
            permit = authorise(ready, self._settings, self._queue, self._clock, self._stopping, limits)
            shim = self._spawn.spawn(permit, self._losses(ready))
            follow_child(run, shim, self._stopping)
        except NotStarted as refusal:
            return refusal
        except Detached:
            raise
        except Exception:
            log.exception("%s: starting or following it failed; it is followed by its files from now on", run)
        return None

    def _losses(self, run: LiveRun) -> int:
        """Return how often the whole job of *run* was lost before; 0 for other jobs, of which nobody asks."""
        if not run.is_whole:
            return 0
        job = answered(lambda: self._queue.jobs.get(run.held.job_id), self._stopping)
        return 0 if job is None else job.losses

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
        follow_by_files(run, self._stopping)
        end = read_exit(run, self._settings.launcher_in_use)
        if run.is_whole:
            end = outcome.exit_of(run, end)
        try:
            return self._judge.judge(run, end)
        except NotStarted as refusal:
            return refusal


def end_earlier(run: LiveRun, settings: Settings, stopping: SteadyEvent) -> None:
    """End the earlier runs of the job on this host, and wait until their processes are gone.

    A host that was declared lost may claim a job again before it learns that its run was given up.

    Raises:
        NotStarted: An earlier run does not end. The host is excluded for the job, so that it is not claimed again.
        Detached: The worker stops before.

    """
    try:
        for directory in earlier_runs(settings.runs_dir, run.held.job_id, run.held.token):
            log.warning("%s: its earlier run %s is still here, and is ended first", run, directory.token)
            is_gone = end_run(directory, settings.kill_grace_s + KILL_S, stopping)
            if stopping.is_set():
                raise Detached
            if not is_gone:
                raise NotStarted(f"its earlier run {directory.token} here does not end", host_lacks=NO_EVIDENCE)
            if not directory.has_exit():
                sweep_run(directory.token, settings.launcher_in_use)
            if not directory.claimed:  # settled meanwhile, and our try of its lock made the file again
                directory.settle()
    except OSError as error:
        raise NotStarted(error.strerror or str(error), host_failed=True) from error


def check_admission(run: LiveRun, admission: AdmissionCheck) -> LiveRun:
    """Return *run* if it still fits on its devices, which may have changed since the claim.

    Raises:
        NotStarted: The run does not fit, or the devices cannot be sampled.

    """
    try:
        changed = admission.still_fits(run)
    except OSError as error:
        raise NotStarted(error.strerror or str(error), host_failed=True) from error
    if changed is not None:
        raise NotStarted(changed)
    return run


def choose_python(run: LiveRun, programs: Mapping[str, str]) -> LiveRun:
    """Return *run* with the program of its environment by *programs*, the Python programs of this host by name.

    Raises:
        NotStarted: This host has no such environment, or its program is missing.

    """
    if run.spec is None or run.spec.environment is None:
        return run
    name = run.spec.environment
    program = programs.get(name)
    if program is None:
        raise NotStarted(f"this host has no environment {name} (setting environments)", host_lacks=NO_EVIDENCE)
    if in_time(lambda: _is_missing(program), FIND_PROGRAM_S):
        raise NotStarted(f"the environment {name} is missing: there is no {program}", host_lacks=NO_EVIDENCE)
    run.spec = with_python(run.spec, program)
    return run


def with_python(spec: JobSpec, program: str) -> JobSpec:
    """Return *spec* with the Python *program* for its script, and with its directory first on PATH.

    So a command such as torchrun, and what a script starts, belong to the same environment.
    """
    path = spec.env.get("PATH") or os.environ.get("PATH", os.defpath)
    env = {name: value for name, value in spec.env.items() if name not in OF_ANOTHER_PYTHON}
    env["PATH"] = f"{Path(program).parent}{os.pathsep}{path}"
    if spec.interpreter is None:
        return replace(spec, env=env)
    return replace(spec, env=env, argv=(program, *spec.argv[1:]), interpreter=program)


def _is_missing(program: str) -> bool:
    """Return whether *program* is certainly missing. The submitter may be able to read what the worker cannot."""
    try:
        os.stat(program)  # noqa: PTH116 - as the start does
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def follow_child(run: LiveRun, shim: Shim, stopping: SteadyEvent) -> None:
    """Wait until the shim that this worker started is gone.

    Raises:
        NotStarted: The shim did not begin the run.
        Detached: The worker stops before.

    """
    try:
        wait_for(shim.handle, stopping)
        code = shim.code()
    finally:
        shim.close()
    if code != 0 and run.directory.held() is not None and run.directory.shim() is None:
        # A shim writes its identity before it starts anything, so this one started nothing.
        why = f"its shim ended at once with {'a signal' if code is None else code}"
        raise NotStarted("its run directory cannot be written" if code == CANNOT_WRITE else why, host_failed=True)


def follow_by_files(run: LiveRun, stopping: SteadyEvent) -> None:
    """Wait until the shim of *run*, found by the files of the run directory, is gone.

    Raises:
        Detached: The worker stops before.

    """
    while (shim := run.directory.shim()) is None:
        if not run.directory.path.is_dir():
            return  # the run directory was deleted; the shim ends when it notices
        if run.lock_fd is None:
            run.lock_fd = run.directory.try_lock()
        if run.lock_fd is not None:
            return  # the lock is free, so no shim was started
        pause(stopping, POLL_S)
    handle = shim.handle()
    if handle is not None:
        wait_for(handle, stopping)


def check_limits(run: LiveRun, launcher: str | None) -> LiveRun:
    """Return *run* if its job has no such limits, or there is a *launcher*, which checks what the kernel can do.

    Raises:
        NotStarted: Jobs run without a launcher here.

    """
    spec = run.spec
    if launcher is None and spec is not None and (spec.cpus, spec.cpu_mem_bytes) != (None, None):
        raise NotStarted(
            "this host cannot limit host memory and processors of jobs, which needs run_as = submitter",
            host_lacks=NO_EVIDENCE,
        )
    return run


def read_exit(run: LiveRun, launcher: str | None) -> Exit:
    """Return the exit of *run*. Without a readable exit the run is lost, and its processes are killed.

    *launcher* is the launcher's socket if jobs run as their submitters.

    Raises:
        OSError: The exit cannot be read now, or the launcher does not answer, so processes may be left.

    """
    vanished = False
    try:
        found = run.directory.exit()
        if found is not None:
            return found
        vanished = run.directory.path.is_dir()
        words = "its shim vanished" if vanished else "its run directory was deleted"
    except Unreadable as error:
        words = str(error)
    swept = sweep_run(run.held.token, launcher)
    words += f", {swept} processes of it were ended" if swept else ""
    return Exit(ending=Ending.lost(words), duration_s=None, max_rss_bytes=None, shim_vanished=vanished)
