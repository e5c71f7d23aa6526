"""What a device may promise now: looked at in the driver, right before each claim and with each beat."""

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
from gpuqueue.queue.lease import Offer, Stranger
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from workers.devices.backend import DeviceBackend, DeviceTrouble
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.attribution import pids_by_run
from workers.measure.external_processes import Strangers, foreign_bytes
from workers.run.directory import RunDir, unsettled
from workers.run.start_health import Ground, in_words
from workers.run.values import Held

log = logging.getLogger(__name__)

#: Time between two questions after a device's health, in seconds. Heat and modes change slowly.
HEALTH_S = 5.0
#: How long a device that was hot takes no new job after it has cooled down, in seconds.
COOL_DOWN_S = 60.0
#: A look that is no older says the same as one that is taken now, in seconds: a stranger that comes meanwhile could
#: as well have come right after. The start of a job's own interpreter takes about as long.
MOMENT_S = 0.05


@dataclass(frozen=True, slots=True)
class _Here:
    """A run on the device; its shim is None while it is just being started, its lease 0 when it is over."""

    job_id: int
    token: str
    shim: ProcessIdentity | None
    lease_bytes: int


class Gate:
    """Looks at one device. The sum over the leases is the claim script's; the look is ours."""

    def __init__(
        self, settings: Settings, backend: DeviceBackend, device: Device, runs: LiveRuns, clock: Clock
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._device = device
        self._known = {each.uuid: each for each in backend.devices()}
        self._runs = runs
        self._clock = clock
        #: Where starts that failed are told to; what it says closes the device.
        self.ground = Ground(settings.runs_dir, clock)
        self._strangers = Strangers()
        #: The claimer, the beats and the sampler look, each in a thread of its own.
        self._looking = threading.Lock()
        #: The last look, and when it began.
        self._newest: tuple[float, Reading] | None = None
        self._health_due_s = 0.0
        self._unwell: str | None = None
        self._unwell_until_s = 0.0

    # ---- look ----------------------------------------------------------------------------------------------------

    def look(self) -> Offer:
        """Return what the device is and what it may promise now: nothing, with the reason, where it is in trouble."""
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
        except OSError as error:  # no descriptor left, a disk that cannot be read: a beat must go out all the same
            return self._blind(in_words(error))

    def newest(self, device: Device, since_s: float = 0.0) -> Reading | None:
        """Return the last :meth:`look` at *device* if it was a moment ago, and not before *since_s*; else None.

        None of the CPU: what its processes hold is measured anew each time, and would not fit to an older sum.
        """
        if self._newest is None or device.uuid != self._device.uuid or device.kind is DeviceKind.CPU:
            return None
        began_s, reading = self._newest
        return reading if began_s >= max(since_s, self._clock.monotonic_s() - MOMENT_S) else None

    def _open(self, reading: Reading) -> Offer:
        here = self._here(self._device.uuid)
        pids = pids_by_run(self._device, reading, {run.token: run.shim for run in here})
        ours = frozenset[int]().union(*pids.values())
        strangers = self._strangers.note(reading.processes, ours, self._clock.monotonic_s())
        untold = {pid: None for pid, held in reading.processes.items() if held is None and pid not in ours}
        described = tuple(_stranger(pid, held) for pid, held in sorted({**untold, **strangers}.items()))
        observed = self._observed(reading, here, pids)
        self._note_neighbours(reading, here, pids.keys(), observed, described)
        return Offer(
            device=self._device,
            host=self._settings.host,
            headroom_bytes=self._headroom_bytes,
            foreign_bytes=self._foreign_bytes(self._device, reading, here, pids, strangers),
            slots=self._settings.slots_for(self._device),
            pool=self._settings.pool,
            observed=observed,
            strangers=described,
        )

    def _observed(self, reading: Reading, here: Sequence[_Here], pids: Mapping[str, frozenset[int]]) -> dict[int, int]:
        """Return what each run on the device holds in this very look, as far as that can be seen, by job id."""
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
        strangers: Sequence[Stranger],
    ) -> None:
        """Let each of our runs that is alive keep who else was there, for the case that it dies for want of memory."""
        held: dict[int, int | None] = {}
        for run in here:
            if run.token in seen:
                held[run.job_id] = observed.get(run.job_id)
            elif run.shim is not None and run.shim.alive():
                held[run.job_id] = 0  # it has not come to the device yet, or could not
        for own in self._runs.all():
            own.neighbours.seen(self._device, reading, held, strangers)

    def _foreign_bytes(
        self,
        device: Device,
        reading: Reading,
        here: Sequence[_Here],
        pids: Mapping[str, frozenset[int]],
        strangers: Mapping[int, int],
    ) -> int:
        ours = frozenset[int]().union(*pids.values())
        if device.kind is DeviceKind.CPU:  # its processes are not listed, ours are measured one by one
            return max(0, reading.used_bytes - (self._backend.used_by(reading, ours) or 0))
        untold = [run for run in here if any(reading.processes[pid] is None for pid in pids.get(run.token, ()))]
        return foreign_bytes(
            used=reading.used_bytes,
            processes=reading.processes,
            ours=ours,
            strangers=strangers,
            leased=sum(run.lease_bytes for run in untold),
        )

    def _here(self, uuid: str) -> list[_Here]:
        """Return this host's runs on the device *uuid*.

        A job on several devices is led by the worker of one; the others find it by its run directory, which is there
        before the run is and gone after it. What the store said a while ago would do for neither.
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
        """Return what another worker's run still holds of its lease: nobody may be there to settle it when it is over.

        A claim that never became a run holds nothing any more once its lease has run out.
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
        """Return why the device should take no new job now, or None. Once it was hot it must stay cool for a while."""
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
        """Return which of this host's devices *uuids* are in trouble, asked afresh: that explains what died there."""
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
        """Return the offer of a device that gives no reading: unknown memory is not free memory."""
        return Offer(
            device=self._device,
            host=self._settings.host,
            headroom_bytes=self._headroom_bytes,
            foreign_bytes=None,
            slots=0,
            pool=self._settings.pool,
            trouble=trouble,
        )

    # ---- look once more ------------------------------------------------------------------------------------------

    def still_fits(self, run: LiveRun) -> str | None:
        """Look once more between claim and spawn; return in words why the run does not fit (any more), or None.

        Each of its devices must have the lease free in the driver, beside what all runs there were granted and have
        not taken yet. For the other devices of a job on several it is the first look: the claim knew them from their
        workers' last beats. Where the claim's own look was a moment ago it is not taken again, unless it says no: a run
        that has ended since is a stranger in it.

        Raises:
            OSError: it cannot be looked at, for want of something that the host must give.

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
        return self.promised_bytes(device, reading) - reading.total_bytes

    def promised_bytes(self, device: Device, reading: Reading) -> int:
        """Return what others hold on *device* in *reading*, and what our runs there were promised or took beyond it.

        Everything is of this one look, runs of other workers too. Where it is more than the device has, somebody will
        not get what was promised.
        """
        here = self._here(device.uuid)
        pids = pids_by_run(device, reading, {run.token: run.shim for run in here})
        ours = frozenset[int]().union(*pids.values())
        strangers = {pid: held for pid, held in reading.processes.items() if pid not in ours and held is not None}
        promised = self._foreign_bytes(device, reading, here, pids, strangers)
        for run in here:
            its = pids.get(run.token, frozenset())
            promised += max(run.lease_bytes, (self._backend.used_by(reading, its) or 0) if its else 0)
        return promised


def _stranger(pid: int, held: int | None) -> Stranger:
    """Return what can be told of the process *pid*; of another namespace or gone already it is nothing."""
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
    return Stranger(pid=pid, held_bytes=held, user=user, command=command)
