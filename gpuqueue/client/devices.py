"""The devices of the site: lists, drains and resumes them, and reads the limits of their use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.clock import SystemClock, from_epoch_ms, to_epoch_ms
from gpuqueue.errors import BadRequest, Impossible
from gpuqueue.lazy.imports import later
from gpuqueue.model.calendar import CalendarReservation, together
from gpuqueue.model.job_ref import MAX_ID
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.settings.parsers import read_host
from gpuqueue.text.sanitize import brief, is_name, plain

if TYPE_CHECKING:
    from gpuqueue.model import host_limits, times
    from gpuqueue.model.job import JobState
    from gpuqueue.model.job_spec import JobSpec
    from gpuqueue.model.limits import LimitsInUse
else:
    host_limits = later("gpuqueue.model.host_limits")
    times = later("gpuqueue.model.times")

#: Longest reason for a drain, in characters. The reason is shown on one line.
MAX_REASON = 200
#: The largest number of candidates that an error names.
NAMED = 3


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

    def drain(
        self, *devices: str, reason: str = "", at: datetime | str | None = None, all_here: bool = False
    ) -> Sequence[DeviceStatus]:
        """Drain devices and return their status. A drained device takes no new job until it is resumed.

        Running jobs continue. Before the time *at*, a device takes only jobs that are over by then. A device that is
        drained already stays drained.

        Args:
            devices: For each device an index on this host, ``HOST:INDEX``, or a UUID or a prefix of one; or a host, for
                all of its devices.
            reason: Shown wherever the devices are listed. At most MAX_REASON characters.
            at: When the drain begins to hold: a datetime, or a text such as ``18:00`` or ``2h``. None: now.
            all_here: Drain all devices of this host, instead of named ones.

        Raises:
            BadRequest: a name matches no device or several, the reason is too long, or the time is over or is none.

        """
        from gpuqueue.queue.drains import DrainOrigin  # noqa: PLC0415 - lazy import for startup time

        why = _reason(reason)
        begins_at = None if at is None else times.end("--at", at)
        uuids = uuids_of(self._connection, devices, all_here=all_here, with_hosts=True)
        by = self._connection.account.name
        self._connection.queue.devices.drain(uuids, origin=DrainOrigin.PERSON, why=why, by=by, begins_at=begins_at)
        return self._statuses(uuids)

    def resume(self, *devices: str, all_here: bool = False) -> Sequence[DeviceStatus]:
        """Resume devices that a person drained, or that were drained after early failures; return their status.

        A planned drain is removed too. A device whose machine is going down stays drained until ``gpuqueue up`` resumes
        it, and the end of a host that was started with one stays.

        Raises:
            BadRequest: a name matches no device or several.

        """
        from gpuqueue.queue.drains import BY_PEOPLE  # noqa: PLC0415 - lazy import for startup time

        uuids = uuids_of(self._connection, devices, all_here=all_here, with_hosts=True)
        self._connection.queue.devices.resume(uuids, origins=BY_PEOPLE)
        return self._statuses(uuids)

    def reserve(
        self,
        *devices: str,
        until: datetime | str,
        begin: datetime | str | None = None,
        users: Sequence[str] = (),
        reason: str = "",
        all_here: bool = False,
    ) -> CalendarReservation:
        """Reserve devices by the calendar: from *begin* to *until* only jobs of *users* start there.

        Before that, jobs of others start there only if they are over by then. What still runs of others at the start
        is preempted if it may run again; else it goes on.

        Args:
            devices: As in :meth:`drain`.
            until: A datetime, or a text such as ``mon 08:00``; a duration counts from *begin*.
            begin: The same; None: now.
            users: The accounts it is for; by default the caller. At a service only admins reserve for others.
            reason: As in :meth:`drain`.
            all_here: As in :meth:`drain`.

        Raises:
            BadRequest: a name matches no device or several, a time is none, or *until* is not after *begin*.
            Refused: this account may not reserve them, or one of them is reserved at that time.

        """
        uuids = uuids_of(self._connection, devices, all_here=all_here, with_hosts=True)
        return reserved(self._connection, uuids, users, span(begin, until), reason)

    def reservations(self) -> Sequence[CalendarReservation]:
        """Return the calendar reservations that are not over, the first ones first."""
        return together(each for status in self.list() for each in status.calendar)

    def cancel_reservation(self, reservation: int) -> None:
        """Cancel a calendar reservation. One that has begun ends now.

        Raises:
            BadRequest: there is none with this id.
            Refused: it is of another account, and the service asks for an administrator.

        """
        cancelled(self._connection, reservation)

    def lost(self, host: str) -> Mapping[int, JobState]:
        """Declare a silent host lost: end its runs as lost, and queue their jobs again. Return the jobs' states.

        Use it when the machine is off: a host that is only cut off from the store may still run these jobs. The devices
        of a host with an end are forgotten, because it does not come back.

        Raises:
            Refused: this account is no administrator, or the host is not silent.
            BadRequest: no device of this host is known.

        """
        from gpuqueue.client.access import caller_of, policy_of  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.model.access import Action, require  # noqa: PLC0415 - as above
        from gpuqueue.queue.drains import DrainOrigin  # noqa: PLC0415 - as above
        from gpuqueue.queue.lease import SILENT_HEARTBEATS  # noqa: PLC0415 - as above

        require(caller_of(self._connection), Action.LOSE_HOST, None, policy_of(self._connection))
        settings = self._connection.settings
        devices = self._connection.queue.devices
        changed = devices.lose_host(
            read_host(host),
            by=self._connection.account.name,
            loss_limit=settings.loss_limit,
            silent_s=SILENT_HEARTBEATS * settings.heartbeat_s,
        )
        for status in devices.all(host):
            if any(each.origin is DrainOrigin.UNTIL for each in (*status.drains, *status.planned_drains)):
                devices.withdraw(host, status.device.uuid)
        return changed

    def limits(self) -> LimitsInUse:
        """Return the limits of users, groups and pools, and the current use by users and groups."""
        from gpuqueue.model.limits import LimitsInUse  # noqa: PLC0415 - lazy import for startup time

        queue = self._connection.queue
        limits = queue.rules.limits()
        return LimitsInUse(bounds=tuple(limits.bounds(queue.rules.uses())), pools=limits.pools)

    def _statuses(self, uuids: Sequence[str]) -> Sequence[DeviceStatus]:
        by_uuid = {each.device.uuid: each for each in self.list()}
        return [by_uuid[uuid] for uuid in uuids if uuid in by_uuid]


def reserved(
    connection: Connection,
    uuids: Sequence[str],
    users: Sequence[str],
    times_of: tuple[datetime, datetime],
    reason: str,
    most_s: float | None = None,
) -> CalendarReservation:
    """Reserve devices by the calendar, by default for the account of *connection*.

    *most_s* is how many device-seconds that account may have reserved at a time; None: any.

    Raises:
        BadRequest: a user or the reason is not usable, or the end is over.
        Refused: a device is reserved at that time, or it is too long.

    """
    own = connection.account.name
    chosen = tuple(dict.fromkeys(users)) or (own,)
    if not all(map(is_name, chosen)):
        raise BadRequest(f"{brief(', '.join(chosen))} names no users: give --user once for each")
    begins_at, ends_at = (from_epoch_ms(to_epoch_ms(each)) for each in times_of)  # the store keeps milliseconds
    wanted = CalendarReservation(
        id=0,
        users=chosen,
        begins_at=begins_at,
        ends_at=ends_at,
        why=_reason(reason),
        by=own,
        devices=tuple(uuids),
    )
    grace_s = connection.settings.preempt_grace_s
    return replace(wanted, id=connection.queue.devices.reserve(wanted, grace_s=grace_s, most_s=most_s))


def cancelled(connection: Connection, reservation: int, user: str | None = None) -> None:
    """Cancel a calendar reservation; one of the account *user*, if it is given.

    Raises:
        BadRequest: there is none with this id.
        Refused: it is not of *user*.

    """
    is_id = 0 < reservation <= MAX_ID
    if not is_id or not connection.queue.devices.cancel_reservation(reservation, user=user):
        raise BadRequest(f"there is no reservation {reservation}: see gpuqueue reserve list")


def span(begin: datetime | str | None, until: datetime | str) -> tuple[datetime, datetime]:
    """Return from when until when a reservation is. *begin* None or in the past is now.

    Raises:
        BadRequest: one of them is no time, or *until* is not after *begin*.

    """
    try:
        begins_at = times.begin(begin) or SystemClock().now()
    except BadRequest as error:
        raise BadRequest(f"--from: {str(error).replace(' to begin', '')}") from None
    if isinstance(until, datetime) and until <= begins_at:
        raise BadRequest("--until must be later than --from")
    return begins_at, times.end("--until", until, now=begins_at)


def _reason(text: str) -> str:
    why = plain(" ".join(text.split()))
    if len(why) > MAX_REASON:
        raise BadRequest(f"a reason must have at most {MAX_REASON} characters, not {len(why)}")
    return why


def check_limits(connection: Connection, spec: JobSpec) -> None:
    """Check that a host can enforce the limits of *spec* on processors and host memory, if it has any.

    An engine enforces them itself, so there it is enough that a host hands jobs to it.

    Raises:
        Impossible: none can of those whose devices the job may use, by pool and by name.

    """
    if spec.is_whole:
        _check_engine(connection, spec)
        return
    if (spec.cpus, spec.cpu_mem_bytes) == (None, None):
        return
    named = spec.placement.devices
    host_limits.check_enforced(
        status.limits_jobs
        for status in connection.queue.devices.all()
        if spec.pool in {"", status.pool} and (not named or status.device.uuid in named)
    )


def _check_engine(connection: Connection, spec: JobSpec) -> None:
    """Check that a host hands whole jobs to the engine of *spec*.

    Raises:
        Impossible: none does.

    """
    engine = spec.device
    if engine is None or not any(each.device.kind.value == engine.value for each in connection.queue.devices.all()):
        raise Impossible(f"no host here hands jobs to {engine}: on a host with sbatch, gpuqueue up --devices {engine}")


def uuids_of(
    connection: Connection, names: Sequence[str], *, all_here: bool = False, with_hosts: bool = False
) -> Sequence[str]:
    """Return the UUIDs of the devices that *names* match, as :func:`named` does.

    Raises:
        BadRequest: a name matches no device or several.

    """
    found, host = connection.queue.devices.all(), connection.settings.host
    meant = named(found, names, host=host, all_here=all_here, with_hosts=with_hosts)
    return [each.device.uuid for each in meant]


def named(
    found: Sequence[DeviceStatus], names: Sequence[str], *, host: str, all_here: bool = False, with_hosts: bool = False
) -> list[DeviceStatus]:
    """Return the devices of *found* that match *names*, each once, in the order of the names.

    A name is an index on *host*, ``HOST:INDEX``, a UUID or a prefix of one. *all_here* selects all devices of *host*.
    If *with_hosts*, the name of a host selects all of its devices.

    Raises:
        BadRequest: a name matches no device or several, or not exactly one of *names* and *all_here* is given.

    """
    if all_here and names:
        raise BadRequest("name the devices, or use --all for those of this host: not both")
    if not all_here and not names:
        raise BadRequest("name the devices (an index, HOST:INDEX or a UUID), or use --all for those of this host")
    if all_here:
        here = [each for each in found if each.host == host]
        if not here:
            raise BadRequest(f"no worker has announced a device of {host}: see gpuqueue gpus")
        return here
    of_host = {name: [each for each in found if with_hosts and each.host == name] for name in names}
    meant = [each for name in names for each in of_host[name] or [_named(found, name, host)]]
    return list({each.device.uuid: each for each in meant}.values())


def _named(found: Sequence[DeviceStatus], name: str, host: str) -> DeviceStatus:
    where, colon, index = name.rpartition(":")
    if index.isascii() and index.isdigit() and (where or not colon):
        place = where or host
        fitting = [each for each in found if each.host == place and each.device.index == int(index)]
    else:
        fitting = [each for each in found if each.device.uuid == name]
        fitting = fitting or [each for each in found if name and each.device.uuid.startswith(name)]
    if not fitting:
        raise BadRequest(f"there is no device {name!r}: gpuqueue gpus lists them by host and index")
    if len(fitting) > 1:
        several = " or ".join(each.device.uuid for each in fitting[:NAMED])
        more = ", …" if len(fitting) > NAMED else ""
        raise BadRequest(f"{name!r} could be {several}{more}: give more of the UUID")
    return fitting[0]
