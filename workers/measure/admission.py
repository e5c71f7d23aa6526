"""The admission check: computes what a device can grant, before each claim and with each heartbeat."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import EXCLUSIVE_PROCESS, Device, Health, cards_in, trouble_of
from gpuqueue.queue.lease import Offer
from gpuqueue.settings.parsers import OnMemoryErrors
from gpuqueue.settings.settings import Settings
from gpuqueue.system.machine_id import machine_id
from gpuqueue.text.units import format_bytes
from workers.devices.backend import DeviceTrouble
from workers.measure.active_runs import LiveRun
from workers.measure.monitor import DeviceMonitor
from workers.measure.sample import Sample
from workers.run.start_health import StartHealth, in_words
from workers.shim.tree import UNKILLABLE_S, is_killed

if TYPE_CHECKING:
    from workers.devices import mps
else:  # few sites use it
    mps = later("workers.devices.mps")

#: The first words of a device's trouble if processes hold it that cannot be killed.
HELD = "it is held by an unkillable process"
#: Time between two health checks of a device, in seconds. Temperature and modes change slowly.
HEALTH_S = 5.0
#: How long a device takes no new job after its last failed health check, in seconds.
COOL_DOWN_S = 60.0


class AdmissionCheck:
    """Decides what one device can grant. The claim script in the store adds up the leases."""

    def __init__(self, settings: Settings, monitor: DeviceMonitor, device: Device, clock: Clock) -> None:
        self._settings = settings
        self._monitor = monitor
        self.device = device
        self._clock = clock
        #: Records failed starts. While it reports trouble, the device takes no job.
        self.start_health = StartHealth(settings.runs_dir, clock, settings.launcher_in_use)
        self._mps = mps.DaemonWatch(settings, device) if settings.mps else None
        self._machine = machine_id(settings.state_dir)
        #: Since when each external process is known to be killed.
        self._killed_s: dict[int, float] = {}
        self._unwell: str | None = None
        self._unwell_until_s = 0.0

    def offer(self, sample: Sample | None = None) -> Offer:
        """Return the offer of the device, by *sample* or a new one.

        For a device in trouble it has no slots, and names the reason.
        """
        try:
            sample = sample or self._monitor.sample(self.device)
            health = self._monitor.health(self.device, HEALTH_S)
            trouble = self._trouble(health) or self._held(sample) or self._mps_trouble() or self.start_health.trouble()
            return self._offer(sample, trouble, health)
        except DeviceTrouble as error:
            return self._offer(None, str(error))
        except OSError as error:  # no descriptor left, or an unreadable disk: the heartbeat must still be sent
            return self._offer(None, in_words(error))

    def _offer(self, sample: Sample | None, trouble: str | None, health: Health | None = None) -> Offer:
        """Return the offer. Without a sample the external memory is unknown: unknown memory is not free memory."""
        return Offer(
            device=self.device,
            host=self._settings.host,
            headroom_bytes=min(self._settings.headroom_bytes, self.device.total_bytes),
            external_bytes=None if sample is None else sample.external_bytes,
            slots=self._slots(health) if trouble is None else 0,
            pool=self._settings.pool,
            observed={} if sample is None else sample.observed,
            external_processes=() if sample is None else sample.external_processes,
            trouble=trouble,
            machine=self._machine,
            health=health or Health(),
            only=self._settings.devices if cards_in(self._settings.devices) is not None else None,
        )

    def _slots(self, health: Health | None) -> int:
        """Return how many jobs the device may run at a time: one if its compute mode lets in one process.

        With MPS this process is the server of all jobs.
        """
        is_for_one = health is not None and health.compute_mode == EXCLUSIVE_PROCESS and not self._settings.mps
        return 1 if is_for_one else self._settings.slots_for(self.device)

    def _trouble(self, health: Health) -> str | None:
        """Return why the device should take no new job now, or None. The reason holds for ``COOL_DOWN_S``."""
        trouble = self._trouble_in(health)
        now_s = self._clock.monotonic_s()
        if trouble is not None:
            self._unwell, self._unwell_until_s = trouble, now_s + COOL_DOWN_S
        return self._unwell if now_s < self._unwell_until_s else None

    def _trouble_in(self, health: Health) -> str | None:
        closes = self._settings.on_memory_errors is OnMemoryErrors.CLOSE
        return trouble_of(health, self._settings.temperature_limit_c, without_errors=closes)

    def _held(self, sample: Sample) -> str | None:
        """Return which processes still hold memory of the device although they were killed, or None.

        Their memory counts like that of every external process. But a device that a driver does not let go of may not
        work either, and nobody knows when it comes back.
        """
        now_s, before = self._clock.monotonic_s(), self._killed_s
        killed = [process for process in sample.external_processes if is_killed(process.pid)]
        self._killed_s = {process.pid: before.get(process.pid, now_s) for process in killed}
        held = [process for process in killed if now_s - self._killed_s[process.pid] >= UNKILLABLE_S]
        names = [
            f"process {process.pid} of {process.user or 'somebody'}"
            + ("" if process.held_bytes is None else f" ({format_bytes(process.held_bytes)})")
            for process in held
        ]
        return f"{HELD}: SIGKILL does not end {', '.join(names)}" if names else None

    def _mps_trouble(self, *, at_start: bool = False) -> str | None:
        return None if self._mps is None else self._mps.trouble(at_start=at_start)

    def in_trouble(self, uuids: Collection[str]) -> frozenset[str]:
        """Check this host's devices *uuids* now, and return those in trouble. The trouble may explain a run's end."""
        return frozenset(uuid for uuid in uuids if self._is_unwell(uuid))

    def _is_unwell(self, uuid: str) -> bool:
        device = self._monitor.devices.get(uuid)
        if device is None or (uuid == self.device.uuid and self._clock.monotonic_s() < self._unwell_until_s):
            return True
        try:
            self._monitor.sample(device)
            return self._trouble_in(self._monitor.health(device)) is not None
        except DeviceTrouble:
            return True

    def still_fits(self, run: LiveRun) -> str | None:
        """Repeat the admission check between claim and spawn, and return why the run does not fit, or None.

        On each device of the run, the lease must be free in the driver, besides the memory that other runs there were
        allocated and have not used yet. For the other devices of a job on several devices this is the first sample:
        the claim used the last heartbeats of their workers.

        The claim's sample is reused if it is recent and the run fits. If the run does not fit, the device is sampled
        again, because a run that has ended since counts as an external process in the old sample.

        Where jobs share the device through MPS, its daemon must run.

        Raises:
            OSError: The device cannot be sampled, because the host is short of a resource.

        """
        trouble = self._mps_trouble(at_start=True)
        if trouble is not None:
            return trouble
        for uuid in (each.uuid for each in run.held.devices):
            device = self._monitor.devices.get(uuid)
            if device is None:
                continue
            sample = self._monitor.recent(device)
            if sample is None or sample.missing_bytes > 0:
                try:
                    sample = self._monitor.sample(device)
                except DeviceTrouble as error:
                    return str(error)
            run.meter(uuid).before_bytes = sample.reading.used_bytes
            missing = sample.missing_bytes
            if missing > 0:
                return f"{missing} bytes of {uuid} were taken by another process between the claim and the start"
        return None
