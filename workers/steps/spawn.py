"""The fifth step: writes the shim's spec and starts the shim, which starts the job."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.framework_memory import cuda_bytes
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import RunDevice
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.run import deliveries
from workers.run.directory import ShimSpec
from workers.run.environment import NO_MPS, environment, threads_of
from workers.shim.client import Shim, Shims
from workers.shim.code import TREE
from workers.shim.tree import open_files
from workers.steps.conclusion import NotStarted, answered
from workers.steps.container import container_of
from workers.steps.fetch_code import unpacking
from workers.threads import SteadyEvent
from workers.warm_pool import WarmPool

if TYPE_CHECKING:
    from workers.devices import mps
    from workers.measure import context
    from workers.whole import prepare as whole
else:
    context = later("workers.measure.context")
    mps = later("workers.devices.mps")
    whole = later("workers.whole.prepare")

log = logging.getLogger(__name__)


class Unanswered(Exception):
    """It is unknown why, but the run's lock shows that a shim has the run."""


class Spawn:
    """Starts the shims of one worker's runs."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        runs: LiveRuns,
        shims: Shims,
        warm_pool: WarmPool,
        host_devices: int | None,
    ) -> None:
        self._settings = settings
        self._host_devices = host_devices
        self._clock = clock
        self._runs = runs
        self._shims = shims
        self._warm_pool = warm_pool

    def spawn(self, permit: Permit, losses: int = 0) -> Shim:
        """Start the run's shim. *losses* is how often the job was lost before.

        Raises:
            NotStarted: No shim was started, because the host is short of a resource.
            Unanswered: A shim has the run all the same. The caller must follow it by its files.

        """
        run, spec = permit.run, permit.run.spec
        if spec is None or run.lock_fd is None:
            raise NotStarted("the run directory is locked by another process", host_failed=True)
        try:
            self._note_delivery(run, spec)
            env = self._write_spec(run, spec, permit.until_s, losses)
            shim = self._shim_of(run, spec, env, run.lock_fd)
        except OSError as error:
            raise NotStarted(error.strerror or str(error), host_failed=True) from error
        run.since_s = self._clock.monotonic_s()
        self._runs.wake()  # a short run may end before the sampler's next poll
        log.info("started %s: %s", run, spec.name)
        return shim

    def limits(self, spec: JobSpec) -> dict[str, int]:
        """Return what a run of *spec* gets of this host, as far as it is known: see :attr:`Run.limits`."""
        limits: dict[str, int] = {}
        if spec.is_whole:
            return limits
        if self._settings.limit_threads and self._host_devices and (threads := threads_of(spec, self._host_devices)):
            limits["threads"] = threads
        if self._settings.launcher_in_use is None:  # else it has the limits of the launcher, or of a session
            limits["open_files"] = open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        return limits

    def _note_delivery(self, run: LiveRun, spec: JobSpec) -> None:
        """Note that the relay will have something to do for *run*, before anything of it can be lost."""
        if self._settings.service_url is not None or spec.keep:
            held = run.held
            deliveries.add(self._settings, deliveries.Delivery(job_id=held.job_id, token=held.token, keep=spec.keep))

    def _context_bytes(self, devices: Sequence[RunDevice]) -> int | None:
        """Return the context of the GPUs among *devices*, in bytes; None if it is not known, or if there are none."""
        models = {device.name for device in devices if device.kind is DeviceKind.GPU}
        return context.known_bytes(self._settings, models) if models else None

    def _write_spec(self, run: LiveRun, spec: JobSpec, start_before: float, losses: int) -> Mapping[str, str]:
        """Write the shim's spec and its first heartbeat, and return the run's environment.

        The process of a whole job follows it. The engine, and not the shim, keeps the job's time and sends its signal.
        """
        held, directory, settings = run.held, run.directory, self._settings
        launcher = settings.launcher_in_use
        code = None
        if spec.snapshot is not None:
            snapshot = CodeSnapshot.parse(spec.snapshot)
            code = unpacking(snapshot, directory.code)
            spec = replace(spec, cwd=str(directory.code / TREE / snapshot.directory))
        if run.is_whole:
            whole.work_of(settings, spec, directory.path, job_id=held.job_id, token=held.token, losses=losses).write(
                directory.path
            )
            env: Mapping[str, str] = whole.environment_of(directory.path, held.token)
            spec = replace(spec, argv=whole.command_of(directory.path), time_limit_s=None, signal=None)
        else:
            env = self._environment(run, spec)
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
                kill_grace_s=settings.kill_grace_s,
                fence_grace_s=settings.fence_grace_s,
                start_before=start_before,
                umask=spec.umask,
                log_limit_bytes=settings.log_limit_bytes,
                pty=(spec.pty.columns, spec.pty.rows) if spec.pty is not None else None,
                typed=spec.pty is not None and spec.pty.typed,
                separate_stderr=spec.separate_stderr,
                user=None if launcher is None else {"name": spec.account.name, "uid": spec.account.uid},
                launcher=launcher,
                code=code,
                limits=None if run.is_whole else _limits(spec),
                ticket=None if launcher is None else spec.ticket,
                outputs=self._outputs(run, spec),
                oom_score_adj=settings.oom_score_adj,
                remove_shared_memory=settings.remove_shared_memory,
                container=container_of(spec, settings.container_engine, held.devices, env),
            ),
            run.figures(),
        )
        directory.note_user(spec.account.name)
        directory.renew(start_before)
        return env

    def _environment(self, run: LiveRun, spec: JobSpec) -> Mapping[str, str]:
        held, settings = run.held, self._settings
        return environment(
            held.job_id,
            held.token,
            replace(spec, visible=spec.visible or settings.visible),
            held.devices,
            run.directory.path,
            cap=settings.cap,
            as_submitters=settings.launcher_in_use is not None,
            mps=mps.client_environment(settings) if settings.mps else NO_MPS,
            threads=self.limits(spec).get("threads"),
            cuda=cuda_bytes(self._context_bytes(held.devices)),
        )

    def _outputs(self, run: LiveRun, spec: JobSpec) -> Mapping[str, str | None] | None:
        """Return the links to the logs of *run*.

        Where hosts share the directory, other hosts see a link that leads nowhere there: the logs are on this host.
        """
        if spec.output is None and spec.error is None:
            return None
        if spec.account.host != self._settings.host:
            host = self._settings.host
            run.notes.append(f"the link to its output leads to its log on {host}; elsewhere gpuqueue logs shows it")
        return {"log": spec.output, "stderr": spec.error}

    def _shim_of(self, run: LiveRun, spec: JobSpec, env: Mapping[str, str], lock_fd: int) -> Shim:
        """Start the shim of *run*. From then on only the shim holds the run's lock, so a free lock means no shim."""
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
        if spec.snapshot is not None:
            run.notes.append("started cold: its code came with it, which no warm interpreter has")
            return None
        if self._settings.launcher_in_use is not None:  # a warm interpreter has the worker's account
            run.notes.append("started cold: jobs run as their submitters here, without warm interpreters")
            return None
        shim, why = self._warm_pool.start(spec, env, run.directory.path, lock_fd)
        run.warm_asked = shim is not None  # the warm interpreter may refuse; the shim then writes the reason
        if shim is None:
            run.notes.append(f"started cold: {why}")
        return shim


def _limits(spec: JobSpec) -> Mapping[str, float | None] | None:
    """Return the limits of host memory and processors for the launcher, None if the job has none."""
    limits = {"memory_bytes": spec.cpu_mem_bytes, "cpus": spec.cpus}
    return None if set(limits.values()) == {None} else limits


@dataclass(frozen=True, slots=True)
class Permit:
    """The permission to start *run* until ``until_s`` on the host's monotonic clock, in seconds."""

    run: LiveRun
    until_s: float


def authorise(
    run: LiveRun,
    settings: Settings,
    queue: JobQueue,
    clock: Clock,
    stopping: SteadyEvent,
    limits: Mapping[str, int],
) -> Permit:
    """Return the permission to start *run*, whose *limits* are recorded.

    Raises:
        NotStarted: The job was cancelled, or the claim is stale.
        Detached: The worker stops before the store answers.

    """

    def ask() -> tuple[float, JobState | None]:
        until_s = clock.monotonic_s() + settings.shim_grace_s  # counted from before the request
        state = queue.runs.started(
            run.held.job_id,
            run.held.token,
            lease_s=settings.lease_s,
            log_path=str(run.directory.log),
            devices=run.held.devices,
            limits=limits,
        )
        return until_s, state

    until_s, state = answered(ask, stopping)
    if state is JobState.CANCELLING:
        raise NotStarted("cancelled before it started")
    if state is not JobState.RUNNING:
        raise NotStarted("the claim is stale", stale=True)
    return Permit(run, until_s)
