"""The admission check: reads a device and computes what it can grant, before each claim and with each heartbeat."""

from __future__ import annotations

import logging
import pwd
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from gpuqueue.clock import Clock
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Device, DeviceKind, Reading, trouble_of
from gpuqueue.queue.lease import ExternalProcess, Offer
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from workers.devices.backend import DeviceBackend, DeviceTrouble
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.attribution import pids_by_run
from workers.measure.external_processes import ExternalProcesses, external_bytes
from workers.run.directory import RunDir, unsettled
from workers.run.start_health import Ground, in_words
from workers.run.values import Held

log = logging.getLogger(__name__)

#: Time between two health checks of a device, in seconds. Temperature and modes change slowly.
HEALTH_S = 5.0
#: How long a device takes no new job after its last failed health check, in seconds.
COOL_DOWN_S = 60.0
#: Largest age of a reading that may be reused, in seconds. A new reading protects no better, because an external
#: process could still start right after it. The start of a job's interpreter takes about this long.
MOMENT_S = 0.05


@dataclass(frozen=True, slots=True)
class _Here:
    """A run on the device. The shim is None while the run is being started, the lease is 0 after the run has ended."""

    job_id: int
    token: str
    shim: ProcessIdentity | None
    lease_bytes: int


class AdmissionCheck:
    """Reads one device for admission. The claim script in the store adds up the leases."""

    def __init__(
        self, settings: Settings, backend: DeviceBackend, device: Device, runs: LiveRuns, clock: Clock
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._device = device
        self._known = {each.uuid: each for each in backend.devices()}
        self._runs = runs
        self._clock = clock
        #: Records failed starts. While it reports trouble, the device takes no job.
        self.ground = Ground(settings.runs_dir, clock)
        self._external_processes = ExternalProcesses()
        #: Guards :meth:`look`. The claimer, the heartbeats and the sampler call it in separate threads.
        self._looking = threading.Lock()
        #: The time at which the last reading began, and the reading.
        self._newest: tuple[float, Reading] | None = None
        self._health_due_s = 0.0
        self._unwell: str | None = None
        self._unwell_until_s = 0.0

    # ---- offer ---------------------------------------------------------------------------------------------------

    def look(self) -> Offer:
        """Read the device and return its offer. The offer has no slots, and the reason, if the device is in trouble."""
        with self._looking:
            return self._look()

    def _look(self) -> Offer:
        try:
            began_s = self._clock.monotonic_s()
            reading = self._backend.reading(self._device)
            self._newest = began_s, reading
            trouble = self._trouble() or self.ground.trouble()
            offer = self._open(reading)
            return offer if trouble is None else replace(offer, slots=0, trouble=trouble)
        except DeviceTrouble as error:
            return self._blind(str(error))
        except OSError as error:  # no descriptor left, or an unreadable disk: the heartbeat must still be sent
            return self._blind(in_words(error))

    def newest(self, device: Device, since_s: float = 0.0) -> Reading | None:
        """Return the last reading of *device* if it is younger than ``MOMENT_S`` and not older than *since_s*.

        Return None otherwise, and always for the CPU: the memory of its processes is measured anew each time, and would
        not match an older total.
        """
        if self._newest is None or device.uuid != self._device.uuid or device.kind is DeviceKind.CPU:
            return None
        began_s, reading = self._newest
        return reading if began_s >= max(since_s, self._clock.monotonic_s() - MOMENT_S) else None

    def _open(self, reading: Reading) -> Offer:
        here = self._here(self._device.uuid)
        pids = pids_by_run(self._device, reading, {run.token: run.shim for run in here})
        ours = frozenset[int]().union(*pids.values())
        external_processes = self._external_processes.note(reading.processes, ours, self._clock.monotonic_s())
        unreported = {pid: None for pid, held in reading.processes.items() if held is None and pid not in ours}
        described = tuple(_external(pid, held) for pid, held in sorted({**unreported, **external_processes}.items()))
        observed = self._observed(reading, here, pids)
        self._note_neighbours(reading, here, pids.keys(), observed, described)
        return Offer(
            device=self._device,
            host=self._settings.host,
            headroom_bytes=self._headroom_bytes,
            external_bytes=self._external_bytes(self._device, reading, here, pids, external_processes),
            slots=self._settings.slots_for(self._device),
            pool=self._settings.pool,
            observed=observed,
            external_processes=described,
        )

    def _observed(self, reading: Reading, here: Sequence[_Here], pids: Mapping[str, frozenset[int]]) -> dict[int, int]:
        """Return the bytes that each run uses in *reading*, by job id, and record a sample of this worker's runs.

        A run is left out if its use is unknown.
        """
        now_s = self._clock.monotonic_s()
        held: dict[int, int] = {}
        for run in here:
            its = pids.get(run.token, frozenset())
            used = self._backend.used_by(reading, its) if its else None
            own = self._runs.get(run.token)
            if own is not None and its:
                own.note(self._device.uuid, reading, used, its, now_s)
            if used is not None:
                held[run.job_id] = used
        return held

    def _note_neighbours(
        self,
        reading: Reading,
        here: Sequence[_Here],
        seen: Collection[str],
        observed: Mapping[int, int],
        external_processes: Sequence[ExternalProcess],
    ) -> None:
        """Record the neighbours of each run of this worker, for the detail of a possible out-of-memory ending."""
        held: dict[int, int | None] = {}
        for run in here:
            if run.token in seen:
                held[run.job_id] = observed.get(run.job_id)
            elif run.shim is not None and run.shim.alive():
                held[run.job_id] = 0  # the run is alive but uses no memory of the device
        for own in self._runs.all():
            own.neighbours.seen(self._device, reading, held, external_processes)

    def _external_bytes(
        self,
        device: Device,
        reading: Reading,
        here: Sequence[_Here],
        pids: Mapping[str, frozenset[int]],
        external_processes: Mapping[int, int],
    ) -> int:
        ours = frozenset[int]().union(*pids.values())
        if device.kind is DeviceKind.CPU:  # a CPU reading lists no processes; those of runs are measured one by one
            return max(0, reading.used_bytes - (self._backend.used_by(reading, ours) or 0))
        unreported = [run for run in here if any(reading.processes[pid] is None for pid in pids.get(run.token, ()))]
        return external_bytes(
            used=reading.used_bytes,
            processes=reading.processes,
            ours=ours,
            external_processes=external_processes,
            leased=sum(run.lease_bytes for run in unreported),
        )

    def _here(self, uuid: str) -> list[_Here]:
        """Return this host's runs on the device *uuid*.

        The worker of one device leads a job on several devices. The other workers find the run by its run directory,
        which exists before the run starts and until it is settled. The store's last answer would be out of date for
        both the start and the end.
        """
        own = [run for run in self._runs.all() if run.has(uuid)]
        here = [_Here(run.held.job_id, run.held.token, run.shim, run.lease_bytes(uuid)) for run in own]
        known = {run.token for run in here}
        for directory in unsettled(self._settings.runs_dir, but=known):
            held = directory.held()
            if held is not None and any(each.uuid == uuid for each in held.devices):
                here.append(_Here(held.job_id, held.token, directory.shim(), self._lease_bytes(directory, held, uuid)))
        return here

    def _lease_bytes(self, directory: RunDir, held: Held, uuid: str) -> int:
        """Return the lease of another worker's run on the device *uuid*, in bytes; 0 if the run has ended.

        The run may have ended without being settled, because its worker may be gone. A claim that never became a run
        counts until its lease expires.
        """
        shim, claimed_at = directory.shim(), directory.claimed_at()
        if shim is not None:
            over = not shim.alive()
        else:
            lease = timedelta(seconds=self._settings.lease_s)
            over = claimed_at is None or self._clock.now() - claimed_at > lease
        return 0 if over else sum(each.lease_bytes for each in held.devices if each.uuid == uuid)

    @property
    def _headroom_bytes(self) -> int:
        return min(self._settings.headroom_bytes, self._device.total_bytes)

    # ---- trouble -------------------------------------------------------------------------------------------------

    def _trouble(self) -> str | None:
        """Return why the device should take no new job now, or None. The reason holds for ``COOL_DOWN_S``."""
        now = self._clock.monotonic_s()
        if now >= self._health_due_s:
            self._health_due_s = now + HEALTH_S
            trouble = trouble_of(self._backend.health(self._device))
            if trouble is not None:
                self._unwell, self._unwell_until_s = trouble, now + COOL_DOWN_S
        if now < self._unwell_until_s:
            return self._unwell
        return None

    def in_trouble(self, uuids: Collection[str]) -> frozenset[str]:
        """Check this host's devices *uuids* now, and return those in trouble. The trouble may explain a run's end."""
        try:
            known = {device.uuid: device for device in self._backend.devices()}
        except DeviceTrouble:
            return frozenset(uuids)
        return frozenset(uuid for uuid in uuids if uuid not in known or self._is_unwell(known[uuid]))

    def _is_unwell(self, device: Device) -> bool:
        if device.uuid == self._device.uuid and self._clock.monotonic_s() < self._unwell_until_s:
            return True
        try:
            self._backend.reading(device)
            return trouble_of(self._backend.health(device)) is not None
        except DeviceTrouble:
            return True

    def _blind(self, trouble: str) -> Offer:
        """Return an offer without slots for a device that gives no reading. Unknown memory is not free memory."""
        return Offer(
            device=self._device,
            host=self._settings.host,
            headroom_bytes=self._headroom_bytes,
            external_bytes=None,
            slots=0,
            pool=self._settings.pool,
            trouble=trouble,
        )

    # ---- check before the start ----------------------------------------------------------------------------------

    def still_fits(self, run: LiveRun) -> str | None:
        """Repeat the admission check between claim and spawn, and return why the run does not fit, or None.

        On each device of the run, the lease must be free in the driver, besides the memory that other runs there were
        allocated and have not used yet. For the other devices of a job on several devices this is the first reading:
        the claim used the last heartbeats of their workers.

        The claim's reading is reused if it is younger than ``MOMENT_S`` and the run fits. If the run does not fit, the
        device is read again, because a run that has ended since counts as an external process in the old reading.

        Raises:
            OSError: The device cannot be read, because the host is short of a resource.

        """
        for uuid in (each.uuid for each in run.held.devices):
            device = self._known.get(uuid)
            if device is None:
                continue
            reading = self.newest(device)
            missing = None if reading is None else self._missing_bytes(device, reading)
            if reading is None or missing is None or missing > 0:
                try:
                    reading = self._backend.reading(device)
                except DeviceTrouble as error:
                    return str(error)
                missing = self._missing_bytes(device, reading)
            run.meter(uuid).before_bytes = reading.used_bytes
            if missing > 0:
                return f"{missing} bytes of {uuid} were taken by somebody else between the claim and the start"
        return None

    def _missing_bytes(self, device: Device, reading: Reading) -> int:
        return self.allocated_bytes(device, reading) - reading.total_bytes

    def allocated_bytes(self, device: Device, reading: Reading) -> int:
        """Return the bytes of *device* that are in use by external processes or allocated to runs, as of *reading*.

        Each run on this host, of any worker, counts with its lease or its use, whichever is larger. If the sum exceeds
        the device's total, some run cannot get the memory that it was allocated.
        """
        here = self._here(device.uuid)
        pids = pids_by_run(device, reading, {run.token: run.shim for run in here})
        ours = frozenset[int]().union(*pids.values())
        external_processes = {
            pid: held for pid, held in reading.processes.items() if pid not in ours and held is not None
        }
        allocated = self._external_bytes(device, reading, here, pids, external_processes)
        for run in here:
            its = pids.get(run.token, frozenset())
            allocated += max(run.lease_bytes, (self._backend.used_by(reading, its) or 0) if its else 0)
        return allocated


def _external(pid: int, held: int | None) -> ExternalProcess:
    """Return the external process *pid*. User and command are None if it has ended or is in another pid namespace."""
    process = Path(f"/proc/{pid}")
    try:
        user = pwd.getpwuid(process.stat().st_uid).pw_name
    except (OSError, KeyError):
        user = None
    try:
        words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        command = b" ".join(words).decode(errors="replace")[:200] or None
    except OSError:
        command = None
    return ExternalProcess(pid=pid, held_bytes=held, user=user, command=command)
