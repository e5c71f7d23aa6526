"""The device monitor: takes every sample of this host's devices, and keeps the latest one of each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import Device, DeviceKind, Health, Reading, Utilisation
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from workers.devices.backend import DeviceBackend, DeviceTrouble
from workers.measure.active_runs import LiveRuns, root_of
from workers.measure.attribution import pids_by_run
from workers.measure.described import described
from workers.measure.external_processes import ExternalProcesses
from workers.measure.meter import INTERVAL_S
from workers.measure.own_use import own_utilisation
from workers.measure.sample import RunOnDevice, Sample
from workers.run.directory import RunDir, unsettled
from workers.run.values import Held

if TYPE_CHECKING:
    from workers.devices import mps
else:  # few sites use it
    mps = later("workers.devices.mps")

log = logging.getLogger(__name__)

#: Largest age of a sample that may be reused, in seconds. A new sample protects no better, because an external process
#: could still start right after it. The start of a job's interpreter takes about this long.
MOMENT_S = 0.05


@dataclass(slots=True)
class _Latest:
    """The latest sample of one device. The lock is held while the device is sampled."""

    external_processes: ExternalProcesses
    lock: threading.Lock = field(default_factory=threading.Lock)
    sample: Sample | None = None
    health: tuple[float, Health] | None = None


class DeviceMonitor:
    """Samples the devices of one host for one worker, and records each sample of the worker's runs. Thread-safe.

    The claimer, the heartbeats and the sampler ask for samples in separate threads.
    """

    def __init__(self, settings: Settings, backend: DeviceBackend, runs: LiveRuns, clock: Clock) -> None:
        self._settings = settings
        self._backend = backend
        self._runs = runs
        self._clock = clock
        self.devices = {device.uuid: device for device in backend.devices()}
        half_life_s = settings.external_half_life_s
        self._latest = {uuid: _Latest(ExternalProcesses(half_life_s)) for uuid in self.devices}
        #: The claims of other workers' runs, by token. A claim never changes.
        self._claims: dict[str, Held] = {}

    def sample(self, device: Device, since_s: float | None = None) -> Sample:
        """Return a sample of *device* that began after *since_s*, by default after this call.

        Raises:
            DeviceTrouble: The device does not answer.
            OSError: The host is short of a resource.

        """
        since_s = self._clock.monotonic_s() if since_s is None else since_s
        latest = self._latest[device.uuid]
        with latest.lock:
            if latest.sample is None or latest.sample.began_s <= since_s:
                latest.sample = self._new_sample(device, latest.external_processes)
            return latest.sample

    def recent(self, device: Device) -> Sample | None:
        """Return the latest sample of *device*, divided among the present runs, or None if it is too old.

        A sample of the CPU is never reused: the memory of its processes is measured anew, and would not match an older
        total.
        """
        sample = self._latest[device.uuid].sample
        if sample is None or device.kind is DeviceKind.CPU or sample.began_s < self._clock.monotonic_s() - MOMENT_S:
            return None
        return replace(sample, runs=self._runs_on(device, sample.reading))

    def health(self, device: Device, max_age_s: float = 0.0) -> Health:
        """Return the health of *device*, as of *max_age_s* seconds ago at the earliest.

        Raises:
            DeviceTrouble: The device does not answer.

        """
        latest = self._latest[device.uuid]
        with latest.lock:
            now_s = self._clock.monotonic_s()
            if latest.health is None or now_s - latest.health[0] >= max_age_s:
                latest.health = now_s, self._backend.health(device)
                self._note_health(device, latest.health[1], latest.sample)
            return latest.health[1]

    def _note_health(self, device: Device, health: Health, sample: Sample | None) -> None:
        """Record *health* for the worker's runs on *device*, and how much the device worked for each of them."""
        now_s = self._clock.monotonic_s()
        fresh = sample if sample is not None and now_s - sample.began_s <= 2 * INTERVAL_S else None
        by_process = cache(lambda: self._utilisations(device))
        for run in self._runs.all():
            if run.has(device.uuid) and run.shim is not None:
                own = None if fresh is None else own_utilisation(run.held.token, fresh, health, by_process)
                run.note_health(device, health, own, now_s)

    def _utilisations(self, device: Device) -> Mapping[int, Utilisation] | None:
        try:
            return self._backend.utilisations(device)
        except DeviceTrouble as trouble:
            log.warning("no utilisation of %s by process: %s", device.uuid, trouble)
            return None

    def accounted(self, uuid: str, pids: Collection[int]) -> Mapping[int, int]:
        """Return the driver's own peak of each process of *pids* on the device *uuid*, in bytes. Usually empty."""
        device = self.devices.get(uuid)
        if device is None or not pids:
            return {}
        try:
            return self._backend.accounted(device, pids)
        except DeviceTrouble as trouble:
            log.warning("no accounting of %s: %s", uuid, trouble)
            return {}

    def _new_sample(self, device: Device, external_processes: ExternalProcesses) -> Sample:
        began_s = self._clock.monotonic_s()
        reading = self._backend.reading(device)
        if self._settings.mps and device.kind is DeviceKind.GPU:
            reading = mps.without_servers(reading)
        runs = self._runs_on(device, reading)
        ours = frozenset[int]().union(*(run.pids for run in runs))
        counted = external_processes.note(reading.processes, ours, began_s)
        others = sorted(pid for pid in reading.processes if pid not in ours)
        sample = Sample(
            device=device,
            began_s=began_s,
            reading=reading,
            runs=runs,
            counted=counted,
            external_processes=tuple(described(pid, reading.processes[pid], counted.get(pid)) for pid in others),
        )
        for run in self._runs.all():
            run.note(sample)
        return sample

    def _runs_on(self, device: Device, reading: Reading) -> tuple[RunOnDevice, ...]:
        """Return this host's runs on *device*, with the processes of each in *reading*.

        The worker of one device leads a job on several devices. The other workers find the run by its run directory,
        which exists before the run starts and until it is settled. The store's last answer would be out of date for
        both the start and the end.
        """
        own = [run for run in self._runs.all() if run.has(device.uuid)]
        others = list(self._others(device.uuid, {run.held.token for run in own}))
        roots = {run.held.token: run.root for run in own} | {each.token: root_of(known) for _, each, known in others}
        pids = pids_by_run(device, reading, roots)
        found = [self._run(run.held, device.uuid, run.shim, reading, pids) for run in own]
        for directory, held, known in others:
            run = self._run(held, device.uuid, next(iter(known), None), reading, pids)
            found.append(run if self._counts(directory, run) else replace(run, lease_bytes=0))
        return tuple(found)

    def _others(
        self, uuid: str, own: Collection[str]
    ) -> Iterator[tuple[RunDir, Held, tuple[ProcessIdentity | None, ...]]]:
        """Yield the unsettled runs of other workers on the device *uuid*, with their known processes."""
        claims: dict[str, Held] = {}
        for directory in unsettled(self._settings.runs_dir, but=own):
            held = self._claims.get(directory.token) or directory.held()
            if held is not None:
                claims[held.token] = held
                if any(each.uuid == uuid for each in held.devices):
                    yield directory, held, directory.processes()
        self._claims = claims

    def _run(
        self,
        held: Held,
        uuid: str,
        shim: ProcessIdentity | None,
        reading: Reading,
        pids_by_token: Mapping[str, frozenset[int]],
    ) -> RunOnDevice:
        pids = pids_by_token.get(held.token, frozenset())
        return RunOnDevice(
            job_id=held.job_id,
            token=held.token,
            lease_bytes=sum(each.lease_bytes for each in held.devices if each.uuid == uuid),
            started=shim is not None,
            alive=bool(pids) or (shim is not None and shim.alive()),
            pids=pids,
            used_bytes=self._backend.used_by(reading, pids) if pids else 0,
        )

    def _counts(self, directory: RunDir, run: RunOnDevice) -> bool:
        """Return whether the lease of another worker's run counts.

        The run may have ended without being settled, because its worker may be gone. A claim that never became a run
        counts until its lease expires.
        """
        if run.started:
            return run.alive
        claimed_at, lease = directory.claimed_at(), timedelta(seconds=self._settings.lease_s)
        return claimed_at is not None and self._clock.now() - claimed_at <= lease
