"""What a device may promise now: looked at in the driver, right before each claim and with each beat."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gpuqueue.device import Device
from gpuqueue.queue.lease import Lease, Offer
from gpuqueue.settings import Settings
from workers import tree
from workers.devices.backend import DeviceBackend, DeviceTrouble
from workers.live import LiveRuns

log = logging.getLogger(__name__)


class Gate:
    """Looks at one device. The sum over the leases is the claim script's; the look is ours.

    ``foreign`` is what nobody of ours holds: used bytes, less what our own runs are seen to hold in the same
    reading, less what other workers of this host last saw their runs hold here.
    """

    def __init__(self, settings: Settings, backend: DeviceBackend, device: Device, runs: LiveRuns) -> None:
        self._settings = settings
        self._backend = backend
        self._device = device
        self._runs = runs
        self._others: Sequence[Lease] = ()

    def heard(self, others: Sequence[Lease]) -> None:
        """Take note of the leases on this device that other workers own, as the last beat told them."""
        self._others = others

    def look(self) -> Offer | None:
        """Return what the device is and what strangers hold on it now, or None where it will not say."""
        try:
            reading = self._backend.reading(self._device)
        except DeviceTrouble as trouble:
            log.warning("%s takes no new job: %s", self._device.uuid, trouble)
            return None
        ours = sum(lease.observed_bytes for lease in self._others)
        for run in self._runs.all():
            shim = run.directory.shim()
            if shim is not None:
                ours += self._backend.used_by(reading, tree.below(shim.pid)) or 0
        return self._offer(max(0, reading.used_bytes - ours))

    def closed(self) -> Offer:
        """Return the offer of a device that promises nothing: unknown memory is not free memory."""
        return self._offer(self._device.total_bytes)

    def _offer(self, foreign_bytes: int) -> Offer:
        return Offer(
            device=self._device,
            host=self._settings.host,
            headroom_bytes=min(self._settings.headroom_bytes, self._device.total_bytes),
            foreign_bytes=foreign_bytes,
            slots=self._settings.slots,
            pool=self._settings.pool,
        )
