"""The fifth step: writes the shim's spec and starts the shim, which starts the job."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpuqueue.clock import Clock
from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.queue.evidence import NO_EVIDENCE
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.run import deliveries
from workers.run.directory import ShimSpec
from workers.run.environment import NO_MPS, environment
from workers.shim.client import Shim, Shims, Unanswered
from workers.shim.code import BUNDLE, TREE
from workers.steps.conclusion import NotStarted, answered
from workers.threads import SteadyEvent
from workers.warm.pool import WarmPool

if TYPE_CHECKING:
    from workers.devices import mps
    from workers.relay.link import Download
else:
    mps = later("workers.devices.mps")

log = logging.getLogger(__name__)

#: Longest silence of the service while it sends the code, and longest time for all of it, in seconds. The device is
#: reserved for the job meanwhile.
SILENCE_S, TOTAL_S = 20.0, 600.0


class Spawn:
    """Starts the shims of one worker's runs."""

    def __init__(self, settings: Settings, clock: Clock, runs: LiveRuns, shims: Shims, warm_pool: WarmPool) -> None:
        self._settings = settings
        self._clock = clock
        self._runs = runs
        self._shims = shims
        self._warm_pool = warm_pool

    def spawn(self, permit: Permit) -> Shim:
        """Start the run's shim.

        Raises:
            NotStarted: No shim was started, because the host is short of a resource.
            Unanswered: A shim was started but gave no answer. The caller must follow it by its files.

        """
        run, spec = permit.run, permit.run.spec
        if spec is None or run.lock_fd is None:
            raise NotStarted("the run directory is locked by another process", host_failed=True)
        try:
            self._note_delivery(run, spec)
            env = self._write_spec(run, spec, permit.until_s)
            shim = self._shim_of(run, spec, env, run.lock_fd)
        except OSError as error:
            raise NotStarted(error.strerror or str(error), host_failed=True) from error
        run.since_s = self._clock.monotonic_s()
        self._runs.wake()  # a short run may end before the sampler's next poll
        log.info("started %s: %s", run, spec.name)
        return shim

    def _note_delivery(self, run: LiveRun, spec: JobSpec) -> None:
        """Note that the relay will have something to do for *run*, before anything of it can be lost."""
        if self._settings.service_url is not None or spec.keep:
            held = run.held
            deliveries.add(self._settings, deliveries.Delivery(job_id=held.job_id, token=held.token, keep=spec.keep))

    def _write_spec(self, run: LiveRun, spec: JobSpec, start_before: float) -> Mapping[str, str]:
        """Write the shim's spec and its first heartbeat, and return the run's environment."""
        held, directory, settings = run.held, run.directory, self._settings
        launcher = settings.launcher_in_use
        code = None
        if spec.snapshot is not None:
            snapshot = CodeSnapshot.parse(spec.snapshot)
            code = unpacking(snapshot, directory.code)
            spec = replace(spec, cwd=str(directory.code / TREE / snapshot.directory))
        env = environment(
            held.job_id,
            held.token,
            spec,
            held.devices,
            directory.path,
            cap=settings.cap,
            as_submitters=launcher is not None,
            mps=mps.client_environment(settings) if settings.mps else NO_MPS,
        )
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
                limits=_limits(spec),
                ticket=None if launcher is None else spec.ticket,
            ),
            run.figures(),
        )
        directory.note_user(spec.account.name)
        directory.renew(start_before)
        return env

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


def authorise(run: LiveRun, settings: Settings, queue: JobQueue, clock: Clock, stopping: SteadyEvent) -> Permit:
    """Return the permission to start *run*.

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
        )
        return until_s, state

    until_s, state = answered(ask, stopping)
    if state is JobState.CANCELLING:
        raise NotStarted("cancelled before it started")
    if state is not JobState.RUNNING:
        raise NotStarted("the claim is stale", stale=True)
    return Permit(run, until_s)


class FetchCode:
    """Fetches the code of one worker's runs."""

    def __init__(self, settings: Settings, stopping: threading.Event) -> None:
        self._settings = settings
        self._stopping = stopping

    def fetch(self, run: LiveRun) -> LiveRun:
        """Return *run* once its code is in its directory.

        Raises:
            NotStarted: This host cannot get the code, or has no room for it.

        """
        if run.spec is None or run.spec.snapshot is None:
            return run
        snapshot = CodeSnapshot.parse(run.spec.snapshot)
        try:
            if self._settings.service_url is None:
                self._copy(snapshot.address, run.directory.path / BUNDLE)
            else:
                self._fetch(run.held.job_id, snapshot.address, run.directory.path / BUNDLE)
        except OSError as error:
            raise NotStarted(f"the job's code cannot be copied: {error.strerror}", host_failed=True) from error
        return run

    def _fetch(self, job_id: int, address: str, path: Path) -> None:
        """Fetch the code from the service. If that fails for another reason than the job, this host is in trouble.

        The manifest is checked here, and the length of the whole stream. The contents of the files are checked by the
        job's first process.
        """
        # These take a while to import, and few jobs need them.
        from gpuqueue.files.errors import InvalidManifest, UnpackFailed  # noqa: PLC0415
        from gpuqueue.files.manifest import ACCEPTED_BEFORE, StreamReader, address_of, read_manifest  # noqa: PLC0415
        from workers.relay.link import CHUNK_BYTES, Link, Refusal  # noqa: PLC0415

        try:
            with (
                open(_new_file(path), "wb", buffering=CHUNK_BYTES) as file,
                closing(Link(self._settings, silence_s=SILENCE_S)) as link,
                link.download(f"/jobs/{job_id}/code", total_s=TOTAL_S) as download,
            ):
                source = _Copied(download, file, self._stopping)
                stream = StreamReader(source)
                if address_of(stream.text) != address:
                    raise InvalidManifest("the service sends the code of another job")
                for _ in stream.blob(sum(read_manifest(stream.text, ACCEPTED_BEFORE).blobs().values())):
                    pass
                if source.read(1):
                    raise UnpackFailed("the service sends more than the snapshot has")
        except Refusal as error:
            raise NotStarted(f"the service has no code for this host: {error}", host_lacks=NO_EVIDENCE) from error
        except GpuQueueError as error:
            raise NotStarted(f"the job's code cannot be fetched: {error}", host_failed=True) from error

    def _copy(self, address: str, path: Path) -> None:
        """Write the code from the snapshots of this host."""
        try:
            self._write(address, path)
        except GpuQueueError as error:
            log.info("the code at %s is not here: %s", address, error)
            reason = "this host has no copy of the job's code, and no service to fetch it from (gpuqueue join)"
            raise NotStarted(reason, host_lacks=NO_EVIDENCE) from error

    def _write(self, address: str, path: Path) -> None:
        # These take a while to import, and few jobs need them.
        from gpuqueue.files.blob_store import blob_store_of  # noqa: PLC0415
        from gpuqueue.files.manifest import ACCEPTED_BEFORE, read_manifest, write_stream  # noqa: PLC0415

        store = blob_store_of(self._settings)
        manifest = read_manifest(store.manifest_text(address), ACCEPTED_BEFORE)
        with open(_new_file(path), "wb") as file:
            file.writelines(write_stream(manifest, store.content))


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # other accounts may enter


class _Copied:
    """A download whose bytes are written into a file as they are read."""

    def __init__(self, download: Download, file: IO[bytes], stopping: threading.Event) -> None:
        self._download = download
        self._file = file
        self._stopping = stopping

    def read(self, size: int, /) -> bytes:
        """Return at most *size* bytes, none at the end."""
        if self._stopping.is_set():
            raise NotStarted("the worker stops")
        part = self._download.read(size)
        self._file.write(part)
        return part


def unpacking(snapshot: CodeSnapshot, directory: Path) -> dict[str, Any]:
    """Return how the shim unpacks *snapshot* into *directory*: the arguments of :func:`workers.shim.code.unpack`."""
    return {"directory": str(directory), "address": snapshot.address, "cwd": snapshot.directory}
