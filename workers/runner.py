"""One run, from its claim to its settlement: may it start? spawn, follow, settle."""

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
from workers.measure.admission import Gate
from workers.measure.device_evidence import Witness
from workers.measure.sampler import Sampler
from workers.run import process_tree
from workers.run.environment import TOKEN, environment
from workers.run.start_health import NO_START
from workers.run.torch_report import read_reports
from workers.run.values import Exit, ShimSpec
from workers.run.verdict import judged, tail
from workers.services.adoption import Adoption
from workers.services.after_end import AfterEnd
from workers.shim.client import Shim, Shims, Unanswered
from workers.shim.supervisor import CANNOT_WRITE
from workers.threads.steady_clock import SteadyEvent
from workers.warm.pool import TIDY_S, Spares

log = logging.getLogger(__name__)

T = TypeVar("T")

#: What becomes of a run whose claim was given back, cancelled or stale.
NOT_STARTED = "not started"
#: Pause between two tries to tell an ending to a store that does not answer, in seconds.
RETRY_S = 1.0
#: Pause between two looks for a shim that is just being started, in seconds.
LOOK_S = 0.05


class Detached(Exception):
    """The worker is leaving; whoever serves the device next goes on from the run directory."""


class Runner:
    """Takes runs through their life, each in a thread that Celery's pool (or a plain one) lends."""

    def __init__(
        self,
        settings: Settings,
        queue: JobQueue,
        gate: Gate,
        sampler: Sampler,
        runs: LiveRuns,
        clock: Clock,
        adoption: Adoption,
    ) -> None:
        self._settings = settings
        self._adoption = adoption
        self._queue = queue
        self._gate = gate
        self._sampler = sampler
        self._runs = runs
        self._clock = clock
        self._witness = Witness(gate, clock)
        self._after_end = AfterEnd(queue)
        self._shims = Shims()
        self._spares = Spares(settings, self._shims, clock)
        self._detached = SteadyEvent()
        self._detach_read, self._detach_write = os.pipe()

    def prepare(self) -> None:
        """Have ready what the first run needs."""
        self._shims.prepare()

    def tidy(self, stopping: SteadyEvent) -> None:
        """Let go of the spares that nobody wants any more, until *stopping* is set."""
        while not stopping.wait(TIDY_S):
            self._spares.tidy()

    def detach(self) -> None:
        """Let every run go on without us, from now on."""
        self._detached.set()
        os.write(self._detach_write, b"x")
        self._spares.close()
        self._shims.close()

    def run(self, run: LiveRun) -> str:
        """Take *run* as far as it goes; return in one word how far that was, for the log and for Celery.

        In turn: look at the device once more, ask the queue whether it may start, spawn its shim, follow it to its
        end, settle it. A run that was adopted has started long ago and is only followed.
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
        """Follow and settle, again and again if need be: while a run is not settled it must be answered for."""
        while True:
            try:
                self._follow(run)
                return self._settle(run)
            except Detached:
                return "detached"
            except OSError as error:  # the host is short of something; what is in the run directory stays there
                log.warning("%s: it cannot be settled for now: %s", run, error)
            except Exception:
                log.exception("%s: it could not be settled, trying again", run)
            if self._detached.wait(RETRY_S):
                return "detached"

    def _let_go(self, run: LiveRun, outcome: str) -> str:
        """Answer for the run no more."""
        run.directory.close()
        if run.lock_fd is not None:
            os.close(run.lock_fd)
            run.lock_fd = None
        self._runs.remove(run.held.token)
        return outcome

    # ---- start ---------------------------------------------------------------------------------------------------

    def _start(self, run: LiveRun, spec: JobSpec) -> Shim | None:
        try:
            changed = self._gate.still_fits(run)
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
        """Return a claim that came to no process; it counts as no attempt."""
        log.warning("%s goes back: %s", run, why)
        self._answered(lambda: self._queue.giveback(run.held.job_id, run.held.token, why))
        run.directory.discard()

    def _never_began(self, run: LiveRun, why: str) -> str:
        """Give back what the host had no room, descriptor or process for; the device takes nothing until it has."""
        self._gate.ground.failed(f"{NO_START}: {why}")
        self._give_back(run, f"it could not be started on {self._settings.host}: {why}")
        return NOT_STARTED

    def _ask_to_start(self, run: LiveRun) -> tuple[float, JobState | None]:
        """Ask the queue, and return until when its yes holds, on our own clock counted from before we asked."""
        until_s = self._clock.monotonic_s() + self._settings.shim_grace_s
        verdict = self._queue.started(
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
        # With when it begins. Who adopts it before the first beat would count its time from the adoption.
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
        directory.vouch(start_before)
        shim = self._shim_of(run, spec, env, run.lock_fd)
        run.since_s = self._clock.monotonic_s()
        self._runs.wake()  # for the sampler: a short run is over before its next turn
        log.info("started %s: %s", run, spec.name)
        return shim

    def _shim_of(self, run: LiveRun, spec: JobSpec, env: Mapping[str, str], lock_fd: int) -> Shim:
        """Start the shim of *run*. It alone holds the run's lock from then on: free means gone.

        Raises:
            OSError: there is none, and the lock is ours as before.
            Unanswered: there is one; it is to be followed by its files.

        """
        run.lock_fd = None
        try:
            shim = self._warm(run, spec, env, lock_fd) or self._shims.start(run.directory.path, lock_fd)
        except Exception as error:  # whatever it is: a lock that stays open says for ever that there is a shim
            os.close(lock_fd)  # if there is a shim all the same, it still holds the lock
            with contextlib.suppress(OSError):
                run.lock_fd = run.directory.try_lock()
            if run.lock_fd is None:
                raise Unanswered(str(error)) from error
            raise OSError(getattr(error, "errno", errno.EAGAIN), str(error) or type(error).__name__) from error
        os.close(lock_fd)
        return shim

    def _warm(self, run: LiveRun, spec: JobSpec, env: Mapping[str, str], lock_fd: int) -> Shim | None:
        """Return the shim of a spare that becomes the run, None where the job wants none or there is none for it."""
        if not spec.warm:
            return None
        shim, why = self._spares.start(spec, env, run.directory.path, lock_fd)
        run.spare_asked = shim is not None  # which may refuse: the shim says what came of it
        if shim is None:
            run.notes.append(f"started cold: {why}")
        return shim

    # ---- follow --------------------------------------------------------------------------------------------------

    def _follow_child(self, run: LiveRun, shim: Shim) -> bool:
        """Wait until the shim that we started is gone, however long that takes; return whether it ever began."""
        try:
            self._wait_for(shim.handle)
            code = shim.code()
        finally:
            shim.close()
        if code != 0 and run.directory.held() is not None and run.directory.shim() is None:
            # It says who it is before it starts anything.
            cannot_write = "its run directory cannot be written"
            words = f"its shim ended at once with {'a signal' if code is None else code}"
            self._never_began(run, cannot_write if code == CANNOT_WRITE else words)
            return False
        return True

    def _follow(self, run: LiveRun) -> None:
        """Wait until the shim that another worker started is gone."""
        while run.directory.shim() is None:
            if not run.directory.path.is_dir():
                return  # somebody deleted it, and the shim leaves for that
            if run.lock_fd is None:
                run.lock_fd = run.directory.try_lock()
            if run.lock_fd is not None:
                return  # nobody is there: the shim was never started
            if self._detached.wait(LOOK_S):
                raise Detached
        shim = run.directory.shim()
        handle = shim.handle() if shim is not None else None
        if handle is not None:
            self._wait_for(handle)

    def _wait_for(self, handle: int) -> None:
        """Wait until the process behind the pidfd *handle* ends, and close it.

        Raises:
            Detached: the worker is leaving first.

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
        self._gate.ground.held()
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
            self._answered(partial(self._queue.note, held.job_id, held.token, text))
        tell = partial(
            self._queue.finish,
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
        after = self._answered(lambda: tell() or self._tell_if_ours(run, tell))
        log.info("%s: %s (%s)", run, after or "stale, the result changes nothing", ending)
        if after is None:
            run.directory.settle()
            return "stale"
        spec = run.spec  # which is not kept
        self._keep(run)
        if after.is_end:
            self._after_end.ended(run, after, ending, spec)
        return str(after)

    def _keep(self, run: LiveRun) -> None:
        """Keep what was told until the book has it. Whatever cannot be noted, the end is told."""
        self._runs.tell(run)
        try:
            run.directory.tell()
            if run.was_seen:  # of a run that was over before any look there is nothing to tell once more
                run.directory.keep_meters(run.figures())
        except OSError as error:  # the next worker tells the end once more, and hears that it is known
            log.warning("%s: it cannot be noted that its end was told: %s", run, error)

    def _tell_if_ours(self, run: LiveRun, tell: Callable[[], JobState | None]) -> JobState | None:
        """Return where the job stands if the end of a run that the store calls stale counts all the same.

        A store that lost its data knows the run again only when it is offered: its end must not be the first it hears.
        """
        state = self._adoption.offer(run)
        return state if state is None or state.is_end else tell()

    def _judged(self, run: LiveRun, end: Exit, log_tail: bytes) -> tuple[tuple[RunDevice, ...], Ending]:
        """Return the peaks, and the ending in their light. A bug in here must not keep the end from being told."""
        try:
            report = read_reports(run.directory.path)
            devices = self._sampler.told(run, end.max_rss_bytes, report)
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
            log.exception("%s: its peaks could not be told", run)
            return run.held.devices, end.ending

    def _lose(self, run: LiveRun, detail: str, evidence: Evidence = NO_EVIDENCE) -> str:
        held, limit = run.held, self._settings.loss_limit
        state = self._answered(
            lambda: self._queue.lose(held.job_id, held.token, loss_limit=limit, detail=detail, evidence=evidence)
        )
        log.warning("%s was lost: %s; the job is %s now", run, detail, state or "no longer ours")
        if state is not None and state.is_end:
            self._after_end.ended(run, state, Ending.lost(detail))
        run.directory.settle()
        return "lost"

    def _answered(self, ask: Callable[[], T]) -> T:
        """Ask until the store answers: an ending must not get lost because the store is away for a while.

        Raises:
            Detached: the worker is leaving; the run directory keeps what was to be said.

        """
        while True:
            try:
                return ask()
            except Unreachable as error:
                log.warning("the store does not answer, trying again: %s", error)
                if self._detached.wait(RETRY_S):
                    raise Detached from error
