"""The devices of the site: lists, drains and resumes them, and reads the limits of their use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.errors import BadRequest
from gpuqueue.settings.parsers import read_host
from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    from gpuqueue.model.job import JobState
    from gpuqueue.model.limits import LimitsInUse
    from gpuqueue.queue.lease import DeviceStatus

#: Longest reason for a drain, in characters. The reason is shown on one line.
MAX_REASON = 200


class Devices:
    """The devices that workers have announced."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> list[DeviceStatus]:
        """Return all devices that workers have announced."""
        return self._connection.queue.devices.all()

    def are_known(self) -> bool:
        """Return whether any worker has announced a device."""
        return self._connection.queue.devices.are_known()

    def drain(self, *devices: str, reason: str = "", all_here: bool = False) -> Sequence[DeviceStatus]:
        """Drain devices and return their status. A drained device takes no new job until it is resumed.

        Running jobs continue.

        Args:
            devices: For each device an index on this host, ``HOST:INDEX``, or a UUID or a prefix of one.
            reason: Shown wherever the devices are listed. At most MAX_REASON characters.
            all_here: Drain all devices of this host, instead of named ones.

        Raises:
            BadRequest: a name matches no device or several, or the reason is too long.

        """
        from gpuqueue.queue.drains import DrainOrigin  # noqa: PLC0415 - lazy import for startup time

        why = plain(" ".join(reason.split()))
        if len(why) > MAX_REASON:
            raise BadRequest(f"a reason must have at most {MAX_REASON} characters, not {len(why)}")
        uuids = uuids_of(self._connection, devices, all_here=all_here)
        by = self._connection.account.name
        self._connection.queue.devices.drain(uuids, origin=DrainOrigin.PERSON, why=why, by=by)
        return self._statuses(uuids)

    def resume(self, *devices: str, all_here: bool = False) -> Sequence[DeviceStatus]:
        """Resume devices that a person drained, or that were drained after early failures; return their status.

        A device whose machine is going down stays drained until ``gpuqueue up`` resumes it.

        Raises:
            BadRequest: a name matches no device or several.

        """
        from gpuqueue.queue.drains import BY_PEOPLE  # noqa: PLC0415 - lazy import for startup time

        uuids = uuids_of(self._connection, devices, all_here=all_here)
        self._connection.queue.devices.resume(uuids, origins=BY_PEOPLE)
        return self._statuses(uuids)

    def lost(self, host: str) -> Mapping[int, JobState]:
        """Declare a silent host lost: end its runs as lost, and queue their jobs again. Return the jobs' states.

        Use it when the machine is off: a host that is only cut off from the store may still run these jobs.

        Raises:
            Refused: this account is no administrator, or the host is not silent.
            BadRequest: no device of this host is known.

        """
        from gpuqueue.queue.lease import SILENT_HEARTBEATS  # noqa: PLC0415 - lazy import for startup time

        settings = self._connection.settings
        return self._connection.queue.devices.lose_host(
            read_host(host),
            by=self._connection.user,
            loss_limit=settings.loss_limit,
            silent_s=SILENT_HEARTBEATS * settings.heartbeat_s,
        )

    def limits(self) -> LimitsInUse:
        """Return the limits of users, groups and pools, and the current use by users and groups."""
        from gpuqueue.model.limits import LimitsInUse  # noqa: PLC0415 - lazy import for startup time

        queue = self._connection.queue
        limits = queue.rules.limits()
        return LimitsInUse(bounds=tuple(limits.bounds(queue.rules.uses())), pools=limits.pools)

    def _statuses(self, uuids: Sequence[str]) -> Sequence[DeviceStatus]:
        by_uuid = {each.device.uuid: each for each in self.list()}
        return [by_uuid[uuid] for uuid in uuids if uuid in by_uuid]


def uuids_of(connection: Connection, names: Sequence[str], *, all_here: bool = False) -> Sequence[str]:
    """Return the UUIDs of the devices that *names* match.

    Raises:
        BadRequest: a name matches no device or several.

    """
    from gpuqueue.client.device_lookup import named  # noqa: PLC0415 - lazy import for startup time

    meant = named(connection.queue.devices.all(), names, host=connection.settings.host, all_here=all_here)
    return [each.device.uuid for each in meant]
