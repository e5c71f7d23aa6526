"""The life of one run, from its claim to its settlement: ask to start, spawn the shim, follow it, settle the run."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from gpuqueue.clock import Clock
from gpuqueue.errors import Unreachable, Unreadable
from gpuqueue.model.job import JobSpec, JobState, WaitReason
from gpuqueue.model.run import Ending, EndingKind, RunDevice, state_after
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import NO_EVIDENCE, Again, Evidence
from gpuqueue.settings.settings import Settings
from gpuqueue.system.logs import LOGS
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.admission import AdmissionCheck
from workers.measure.device_evidence import Witness
from workers.measure.sampler import Sampler
from workers.run import process_tree
from workers.run.environment import TOKEN, environment
from workers.run.start_health import NO_START
from workers.run.torch_report import read_reports
from workers.run.values import Exit, ShimSpec
from workers.run.verdict import judged, tail
from workers.services.adoption import Adoption
from workers.shim.client import Shim, Shims, Unanswered
from workers.shim.supervisor import CANNOT_WRITE
from workers.threads.steady_clock import SteadyEvent
from workers.warm.pool import TIDY_S, WarmPool

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Outcome of a run whose claim was released, cancelled or stale.
NOT_STARTED = "not started"
#: Pause between two attempts to report an ending to a store that does not answer, in seconds.
RETRY_S = 1.0
#: Pause between two polls for a shim that is just being started, in seconds.
POLL_S = 0.05


class Detached(Exception):
    """The worker is stopping. The next worker of the device continues from the run directory."""


class Runner:
    """Executes runs, each in a thread of Celery's pool or of a plain thread pool."""

    def __init__(
        self,
        settings: Settings,
        queue: JobQueue,
        admission: AdmissionCheck,
        sampler: Sampler,
        runs: LiveRuns,
        clock: Clock,
        adoption: Adoption,
    ) -> None:
        self._settings = settings
        self._adoption = adoption
        self._queue = queue
        self._admission = admission
        self._sampler = sampler
        self._runs = runs
        self._clock = clock
        self._witness = Witness(admission, clock)
        self._shims = Shims()
        self._warm_pool = WarmPool(settings, self._shims, clock)
        self._detached = SteadyEvent()
        self._detach_read, self._detach_write = os.pipe()

    def prepare(self) -> None:
        """Start the process that forks shims, before the first run needs it."""
        self._shims.prepare()

    def tidy(self, stopping: SteadyEvent) -> None:
        """End warm interpreters that no job has asked for lately, until *stopping* is set."""
        while not stopping.wait(TIDY_S):
            self._warm_pool.tidy()

    def detach(self) -> None:
        """Stop following the runs. They continue in their shims."""
        self._detached.set()
        os.write(self._detach_write, b"x")
        self._warm_pool.close()
        self._shims.close()

    def run(self, run: LiveRun) -> str:
        """Execute *run*, and return its outcome in a word or two for the log and for Celery.

        The steps are: repeat the admission check, ask the queue for permission to start, spawn the shim, follow it to
        its end, settle the run. An adopted run has already started, so it is only followed and settled.
        """
        try:
            if run.spec is not None:
                shim = self._start(run, run.spec)
                if shim is None or not self._follow_child(run, shim):
                    return self._let_go(run, NOT_STARTED)
        except Detached:
            return self._let_go(run, "detached")
        except Exception:
            log.exception("%s: starting or following it failed; it is followed by its files from now on", run)
        return self._let_go(run, self._to_the_end(run))

    def _to_the_end(self, run: LiveRun) -> str:
        """Follow and settle *run*, and retry until the run is settled or the worker detaches."""
        while True:
            try:
                self._follow(run)
                return self._settle(run)
            except Detached:
                return "detached"
            except OSError as error:  # the host is short of a resource; the files of the run stay in place
                log.warning("%s: it cannot be settled for now: %s", run, error)
            except Exception:
                log.exception("%s: it could not be settled, trying again", run)
            if self._detached.wait(RETRY_S):
                return "detached"

    def _let_go(self, run: LiveRun, outcome: str) -> str:
        """Stop managing *run*: close its files and remove it from the live runs. Return *outcome*."""
        run.directory.close()
        if run.lock_fd is not None:
            os.close(run.lock_fd)
            run.lock_fd = None
        self._runs.remove(run.held.token)
        return outcome

    # ---- start ---------------------------------------------------------------------------------------------------

    def _start(self, run: LiveRun, spec: JobSpec) -> Shim | None:
        try:
            changed = self._admission.still_fits(run)
        except OSError as error:
            self._never_began(run, error.strerror or str(error))
            return None
        if changed is not None:
            self._give_back(run, changed)
            return None
        until_s, verdict = self._answered(lambda: self._ask_to_start(run))
        if verdict is JobState.RUNNING:
            try:
                return self._spawn(run, spec, start_before=until_s)
            except OSError as error:
                self._never_began(run, error.strerror or str(error))
                return None
        if verdict is JobState.CANCELLING:
            self._give_back(run, "cancelled before it started")
        else:
            log.warning("%s does not start: the claim is stale", run)
            run.directory.discard()
        return None

    def _give_back(self, run: LiveRun, why: str) -> None:
        """Release a claim that started no process. The release does not count as an attempt."""
        log.warning("%s goes back: %s", run, why)
        self._answered(lambda: self._queue.runs.release_claim(run.held.job_id, run.held.token, why))
        run.directory.discard()

    def _never_began(self, run: LiveRun, why: str) -> str:
        """Release the claim of a run that the host had no disk space, descriptor or process for.

        The device accepts no job until a trial start succeeds.
        """
        self._admission.ground.failed(f"{NO_START}: {why}")
        self._give_back(run, f"it could not be started on {self._settings.host}: {why}")
        return NOT_STARTED

    def _ask_to_start(self, run: LiveRun) -> tuple[float, JobState | None]:
        """Ask the queue for permission to start.

        Returns:
            The time until which the permission is valid, and the job's state, None if the claim is stale. The time is
            on the host's monotonic clock and is counted from before the request.

        """
        until_s = self._clock.monotonic_s() + self._settings.shim_grace_s
        verdict = self._queue.runs.started(
            run.held.job_id,
            run.held.token,
            lease_s=self._settings.lease_s,
            log_path=str(run.directory.log),
            devices=run.held.devices,
        )
        return until_s, verdict

    def _spawn(self, run: LiveRun, spec: JobSpec, *, start_before: float) -> Shim:
        if run.lock_fd is None:
            raise OSError("the run directory is locked by somebody else")
        held, directory = run.held, run.directory
        env = environment(held.job_id, held.token, spec, held.devices, directory.path, cap=self._settings.cap)
        # Written with the spec. A worker that adopts the run before the first heartbeat would otherwise count the
        # run's time from the adoption.
        run.since_s = self._clock.monotonic_s()
        directory.write_spec(
            ShimSpec(
                argv=spec.argv,
                cwd=spec.cwd,
                env=env,
                time_limit_s=spec.time_limit_s,
                signal=(spec.signal.number, spec.signal.before_s) if spec.signal else None,
                kill_grace_s=self._settings.kill_grace_s,
                fence_grace_s=self._settings.fence_grace_s,
                start_before=start_before,
                umask=spec.umask,
                log_limit_bytes=self._settings.log_limit_bytes,
                pty=(spec.pty.columns, spec.pty.rows) if spec.pty is not None else None,
                typed=spec.pty is not None and spec.pty.typed,
                separate_stderr=spec.separate_stderr,
            ),
            run.figures(),
        )
        directory.renew(start_before)
        shim = self._shim_of(run, spec, env, run.lock_fd)
        run.since_s = self._clock.monotonic_s()
        self._runs.wake()  # a short run may end before the sampler's next poll
        log.info("started %s: %s", run, spec.name)
        return shim

    def _shim_of(self, run: LiveRun, spec: JobSpec, env: Mapping[str, str], lock_fd: int) -> Shim:
        """Start the shim of *run*. From then on only the shim holds the run's lock, so a free lock means no shim.

        Raises:
            OSError: No shim was started, and this worker holds the lock again.
            Unanswered: A shim was started but gave no answer. The caller must follow it by its files.

        """
        run.lock_fd = None
        try:
            shim = self._warm(run, spec, env, lock_fd) or self._shims.start(run.directory.path, lock_fd)
        except Exception as error:  # any error: a lock left open here would look like a live shim for ever
            os.close(lock_fd)  # if a shim did start, it still holds the lock
            with contextlib.suppress(OSError):
                run.lock_fd = run.directory.try_lock()
            if run.lock_fd is None:
                raise Unanswered(str(error)) from error
            raise OSError(getattr(error, "errno", errno.EAGAIN), str(error) or type(error).__name__) from error
        os.close(lock_fd)
        return shim

    def _warm(self, run: LiveRun, spec: JobSpec, env: Mapping[str, str], lock_fd: int) -> Shim | None:
        """Return the shim of a warm interpreter that becomes the run, or None if the run must start cold."""
        if not spec.warm:
            return None
        shim, why = self._warm_pool.start(spec, env, run.directory.path, lock_fd)
        run.warm_asked = shim is not None  # the warm interpreter may refuse; the shim then writes the reason
        if shim is None:
            run.notes.append(f"started cold: {why}")
        return shim

    # ---- follow --------------------------------------------------------------------------------------------------

    def _follow_child(self, run: LiveRun, shim: Shim) -> bool:
        """Wait until the shim that this worker started is gone, and return whether the shim began the run.

        If the shim did not begin the run, the claim is released.
        """
        try:
            self._wait_for(shim.handle)
            code = shim.code()
        finally:
            shim.close()
        if code != 0 and run.directory.held() is not None and run.directory.shim() is None:
            # A shim writes its identity before it starts anything, so this one started nothing.
            cannot_write = "its run directory cannot be written"
            words = f"its shim ended at once with {'a signal' if code is None else code}"
            self._never_began(run, cannot_write if code == CANNOT_WRITE else words)
            return False
        return True

    def _follow(self, run: LiveRun) -> None:
        """Wait until the shim of *run*, found by the files of the run directory, is gone."""
        while run.directory.shim() is None:
            if not run.directory.path.is_dir():
                return  # the run directory was deleted; the shim ends when it notices
            if run.lock_fd is None:
                run.lock_fd = run.directory.try_lock()
            if run.lock_fd is not None:
                return  # the lock is free, so no shim was started
            if self._detached.wait(POLL_S):
                raise Detached
        shim = run.directory.shim()
        handle = shim.handle() if shim is not None else None
        if handle is not None:
            self._wait_for(handle)

    def _wait_for(self, handle: int) -> None:
        """Wait until the process behind the pidfd *handle* ends, and close it.

        Raises:
            Detached: The worker stops before the process ends.

        """
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(self._detach_read, select.POLLIN)
        try:
            poll.poll()
        finally:
            os.close(handle)
        if self._detached.is_set():
            raise Detached

    # ---- settle --------------------------------------------------------------------------------------------------

    def _settle(self, run: LiveRun) -> str:
        try:
            end = run.directory.exit()
        except Unreadable as error:
            process_tree.sweep(TOKEN, run.held.token)
            return self._lose(run, str(error))
        if end is None:
            swept = process_tree.sweep(TOKEN, run.held.token)
            gone = not run.directory.path.is_dir()
            words = "its run directory was deleted" if gone else "its shim vanished"
            evidence = NO_EVIDENCE if gone else self._witness.lost(run, words)
            return self._lose(run, f"{words}, {swept} processes of it were ended" if swept else words, evidence)
        if end.hosts_fault:
            return self._never_began(run, end.ending.detail)
        self._admission.ground.held()
        if end.ending.kind is EndingKind.LOST:
            return self._lose(run, end.ending.detail)
        return self._finish(run, end)

    def _finish(self, run: LiveRun, end: Exit) -> str:
        held = run.held
        log_tail = b"\n".join(tail(run.directory.path / name) for name in LOGS)
        devices, ending = self._judged(run, end, log_tail)
        again = Again(reason=WaitReason.RETRY) if ending.kind is EndingKind.PREEMPTED else None
        state = state_after(ending) if again is None else JobState.QUEUED
        evidence = self._witness.ended(run, ending, end.duration_s, log_tail)
        run.hear_start()
        for text in run.taken_notes():
            self._answered(partial(self._queue.runs.note, held.job_id, held.token, text))
        report = partial(
            self._queue.runs.finish,
            held.job_id,
            held.token,
            state=state,
            ending=ending,
            duration_s=end.duration_s,
            devices=devices,
            peak_at_once_bytes=run.at_once_bytes,
            evidence=evidence,
            again=again,
        )
        after = self._answered(lambda: report() or self._tell_if_ours(run, report))
        log.info("%s: %s (%s)", run, after or "stale, the result changes nothing", ending)
        if after is None:
            run.directory.settle()
            return "stale"
        self._keep(run)
        return str(after)

    def _keep(self, run: LiveRun) -> None:
        """Keep the run's files until the history has the end. Errors are only logged: the store already has the end."""
        self._runs.report(run)
        try:
            run.directory.report()
            if run.was_seen:  # a run that ended before the first sample has no figures to keep
                run.directory.keep_meters(run.figures())
        except OSError as error:  # the next worker reports the end again, which changes nothing
            log.warning("%s: it cannot be noted that its end was reported: %s", run, error)

    def _tell_if_ours(self, run: LiveRun, report: Callable[[], JobState | None]) -> JobState | None:
        """Offer a run that the store calls stale, and report its end if the store takes the run back.

        A store that lost its data does not know the run until a worker offers it. Return the job's state, or None if
        the run is stale.
        """
        state = self._adoption.offer(run)
        return state if state is None or state.is_end else report()

    def _judged(self, run: LiveRun, end: Exit, log_tail: bytes) -> tuple[tuple[RunDevice, ...], Ending]:
        """Return the devices with their peaks, and the ending, which may become OUT_OF_MEMORY.

        Every exception is caught, so that a bug here cannot prevent the report of the end.
        """
        try:
            report = read_reports(run.directory.path)
            devices = self._sampler.reported(run, end.max_rss_bytes, report)
            ran_out_on = report.ran_out_on([each.uuid for each in devices]) if report is not None else ()
            full = run.neighbours.fullest(ran_out_on)
            peaks = [each.peak.bytes for each in devices if full is None or each.uuid == full.device.uuid]
            return devices, judged(
                end.ending,
                report,
                log_tail,
                asked_bytes=run.held.devices[0].lease_bytes,
                peak_bytes=max((peak for peak in peaks if peak is not None), default=None),
                circumstances=full.in_words(several=len(devices) > 1) if full is not None else "",
            )
        except Exception:
            log.exception("%s: its peaks could not be reported", run)
            return run.held.devices, end.ending

    def _lose(self, run: LiveRun, detail: str, evidence: Evidence = NO_EVIDENCE) -> str:
        held, limit = run.held, self._settings.loss_limit
        state = self._answered(
            lambda: self._queue.runs.lose(held.job_id, held.token, loss_limit=limit, detail=detail, evidence=evidence)
        )
        log.warning("%s was lost: %s; the job is %s now", run, detail, state or "no longer ours")
        run.directory.settle()
        return "lost"

    def _answered(self, ask: Callable[[], T]) -> T:
        """Call *ask* until the store answers, so that a store outage does not lose an ending.

        Raises:
            Detached: The worker is stopping. The run directory keeps the data for the next worker.

        """
        while True:
            try:
                return ask()
            except Unreachable as error:
                log.warning("the store does not answer, trying again: %s", error)
                if self._detached.wait(RETRY_S):
                    raise Detached from error
