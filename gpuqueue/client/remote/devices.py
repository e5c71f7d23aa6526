"""The group ``client.devices`` over the service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuqueue.client.devices import Devices, named, span
from gpuqueue.client.remote.link import Link
from gpuqueue.client.remote.operations import asking
from gpuqueue.lazy.imports import later
from gpuqueue.model import api, validation
from gpuqueue.model.calendar import CalendarReservation
from gpuqueue.queue.lease import DeviceStatus

if TYPE_CHECKING:
    from datetime import datetime

    from gpuqueue.model import times
    from gpuqueue.model.device import DeviceFilter
else:
    times = later("gpuqueue.model.times")


@asking("devices")
class RemoteDevices(Devices):
    """The devices that workers have announced, as the service sees them."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def are_known(self) -> bool:
        """Return whether any worker has announced a device."""
        return bool(self.list())

    def drain(
        self, *devices: str, reason: str = "", at: datetime | str | None = None, all_here: bool = False
    ) -> Sequence[DeviceStatus]:
        """Drain devices and return their status. A bare index, and *all_here*, mean devices of this host."""
        begins_at = None if at is None else times.end("--at", at)
        return self._chosen("drain", devices, reason, begins_at, all_here=all_here)

    def resume(self, *devices: str, all_here: bool = False) -> Sequence[DeviceStatus]:
        """Resume devices that a person drained, or that were drained after early failures; return their status."""
        return self._chosen("resume", devices, all_here=all_here)

    def reserve(
        self,
        *devices: str,
        until: datetime | str,
        begin: datetime | str | None = None,
        users: Sequence[str] = (),
        reason: str = "",
        all_here: bool = False,
    ) -> CalendarReservation:
        """Reserve devices by the calendar. A bare index, and *all_here*, mean devices of this host."""
        begins_at, ends_at = span(begin, until)
        body = api.ReservationRequest(
            devices=tuple(devices),
            host=self._link.settings.host,
            all_here=all_here,
            begins_at=None if begin is None else begins_at,
            ends_at=ends_at,
            users=tuple(users),
            reason=reason,
        )
        return self._link.send("POST", "/reservations", body, kind=CalendarReservation)

    def _chosen(
        self, act: str, devices: Sequence[str], reason: str = "", at: datetime | None = None, *, all_here: bool
    ) -> Sequence[DeviceStatus]:
        host = self._link.settings.host
        body = api.DeviceChoice(devices=tuple(devices), host=host, all_here=all_here, reason=reason, at=at)
        return self._link.send("POST", f"/devices/{act}", body, kind=tuple[DeviceStatus, ...])


def uuids_of(link: Link, names: Sequence[str]) -> Sequence[str]:
    """Return the UUIDs of the devices that *names* match. A bare index means a device of this host.

    Raises:
        BadRequest: a name matches no device or several.

    """
    return [each.device.uuid for each in named(RemoteDevices(link).list(), names, host=link.settings.host)]


def with_host(link: Link, device: DeviceFilter | str | Sequence[str]) -> tuple[str, ...]:
    """Replace each bare index by ``HOST:INDEX``, since the service cannot know which host the user means."""
    host = link.settings.host
    return tuple(f"{host}:{word}" if word.isdecimal() else word for word in validation.listed("device", device))
