"""The devices of all hosts: announcements and heartbeats of their workers, and drains."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gpuqueue.clock import from_epoch_ms, to_epoch_ms
from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.errors import BadRequest, HostTaken, Refused, Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.calendar import CalendarReservation
from gpuqueue.model.device import Device, Xid
from gpuqueue.model.job import JobState
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.drains import BY_HOST, DrainOrigin, drains, reservations_on
from gpuqueue.queue.lease import DeviceReservation, DeviceStatus, ExternalProcess, Holding, Refusals
from gpuqueue.queue.replies import readable_reply
from gpuqueue.queue.store import Store, answering, to_ms
from gpuqueue.text.json_fields import Fields, loaded
from gpuqueue.version import VERSION

if TYPE_CHECKING:
    import logging

    from gpuqueue.queue import replies
    from gpuqueue.queue.lease import Alive, Offer, Verdicts
else:
    logging = later("logging")
    replies = later("gpuqueue.queue.replies")

#: Most digits of a whole number that the store writes.
_MOST_DIGITS = 18


class Devices:
    """The devices that workers serve: announce, send heartbeats, list, drain and resume."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, str] = {}

    @answering
    def announce(
        self,
        offer: Offer,
        *,
        worker: str,
        pid: int,
        boot_id: str,
        near: Mapping[str, int] | None = None,
        address: str = "",
        environments: Sequence[str] | None = None,
        limits_jobs: bool | None = None,
    ) -> None:
        """Announce the device of *offer*, and the worker that serves it from now on, with its version and clock offset.

        *near* is the distance to the other devices of the host, by UUID, in NVML topology levels; unknown ones are left
        out. *address* says where the machine is, for people. *environments* are the names of its Python environments,
        and *limits_jobs* is whether it can limit processors and host memory of jobs.
        """
        facts = {"device": to_stored(offer.device), "host": offer.host, "worker": worker, "pid": pid}
        clock_ahead_s = round(time.time() - self._store.now_ms() / 1000, 3)
        more = {"boot_id": boot_id, "version": VERSION, "clock_ahead_s": clock_ahead_s, "near": dict(near or {})}
        more |= {"address": address, "environments": None if environments is None else list(environments)}
        more |= {"limits_jobs": limits_jobs, "only": offer.only}
        self._store.client.hset(keys.FACTS, offer.device.uuid, json.dumps({**facts, **more}))
        self._seen.pop(offer.device.uuid, None)  # a store that needs the announcement has no entry in SEEN either

    @answering
    def heartbeat(self, offer: Offer, alive: Sequence[Alive], *, lease_s: float) -> Verdicts:
        """Send the heartbeat of a device and its runs; renew the leases and return the verdict on each run.

        Raises:
            HostTaken: another machine has the host name. Nothing was changed.

        """
        args = device_words(offer, lease_s=lease_s)
        for run in alive:
            args += [run.job_id, run.token, len(run.observed)]
            for device, observed in run.observed.items():
                args += [device, observed]
        verdicts = replies.verdicts(self._store.scripts.run("heartbeat", *args))
        if isinstance(verdicts, str):
            raise self._taken(offer.host, verdicts, offer.machine)
        self._report_seen(offer)
        return verdicts

    @answering
    def name_host(self, host: str, machine: str, *, lease_s: float) -> None:
        """Take the name *host* for the machine with this id. It keeps the name while it has devices in the queue.

        Raises:
            HostTaken: another machine has the name.

        """
        owner = self._store.scripts.run("name_host", host, machine, to_ms(lease_s))
        if owner:
            raise self._taken(host, owner, machine)

    @answering
    def is_of(self, host: str, machine: str) -> bool:
        """Return whether the name *host* belongs to no other machine."""
        return self._store.client.hget(keys.MACHINES, host) in {None, machine}

    def _taken(self, host: str, owner: str, machine: str) -> HostTaken:
        """Return the error about a host name that the machine *owner* has."""
        address = ""
        for text in cast("list[str]", self._store.client.hvals(keys.FACTS)):
            with contextlib.suppress(Unreadable):
                plain = loaded(text, "a device")
                if plain.text("host") == host:
                    address = plain.text("address", "")
        where = f"{address}, id {owner}" if address else f"id {owner}"
        return HostTaken(
            f"another machine has the host name {host} ({where}; this one has id {machine}): give each machine its own "
            f"name with GPUQUEUE_HOST. If that machine is gone or was reinstalled: gpuqueue lost {host}"
        )

    @answering
    def all(self, host: str | None = None) -> list[DeviceStatus]:
        """Return every device that workers announced (on *host*), sorted by host, index and UUID."""
        pipe = self._store.client.pipeline(transaction=False)
        pipe.time()
        for key in (keys.FACTS, keys.DRAINED, keys.SEEN, keys.RESERVED, keys.DEATHS):
            pipe.hgetall(key)
        (seconds, micros), facts, drained, seen, reservations, deaths = pipe.execute()
        now = int(seconds) * 1000 + int(micros) // 1000
        reserved = self._device_reservations(reservations)
        found = []
        for uuid, record, leases in self._readings(facts, host):
            try:
                status = device_status(facts[uuid], record, leases, now, drained.get(uuid), seen.get(uuid))
                host_refusals = refusals(deaths.get(f"host:{status.host}"))
                found.append(replace(status, reservation=reserved.get(uuid), refusals=host_refusals))
            except Unreadable as error:
                logging.getLogger(__name__).warning("device %s is not shown: %s", uuid, error)
        return sorted(found, key=lambda each: (each.host, each.device.index, each.device.uuid))

    def _device_reservations(self, reservations: Mapping[str, str]) -> dict[str, DeviceReservation]:
        """Return the reservation of each reserved device; send no command if there are none."""
        found = {uuid: device_reservation(text) for uuid, text in reservations.items()}
        whole = {uuid: each for uuid, each in found.items() if each is not None}
        if not whole:
            return {}
        pipe = self._store.client.pipeline(transaction=False)
        for each in whole.values():
            pipe.hget(keys.job(each.job_id), stored.RESERVED_SINCE_MS)
        since = zip(whole.items(), pipe.execute(), strict=True)
        return {uuid: replace(each, since=moment_of(since_ms)) for (uuid, each), since_ms in since}

    def _readings(self, facts: Mapping[str, str], only: str | None) -> Iterator[tuple[str, str, dict[str, str]]]:
        """Yield each served device (on the host *only*) with its record and its leases."""
        pipe, asked = self._store.client.pipeline(transaction=False), []
        for uuid, text in facts.items():
            try:
                where = loaded(text, f"the worker's report of {uuid}").text("host")
            except Unreadable as error:
                logging.getLogger(__name__).warning("device %s is not shown: %s", uuid, error)
                continue
            if only is None or where == only:
                asked.append(uuid)
                pipe.hget(keys.host_devices(where), uuid)
                pipe.hgetall(keys.device_leases(uuid))
        answers = pipe.execute()
        for uuid, record, leases in zip(asked, answers[::2], answers[1::2], strict=True):
            if record:
                yield uuid, record, leases

    @answering
    def are_known(self) -> bool:
        """Return whether there is any announced device that was not withdrawn."""
        return bool(self._store.client.hlen(keys.FACTS))

    @answering
    def withdraw(self, host: str, uuid: str) -> None:
        """Forget a device that is no longer served; the feasibility check ignores it from now on.

        Only the drains of its host are removed. A card that comes back is still drained by the other origins.
        """
        self.resume([uuid], origins=BY_HOST)
        pipe = self._store.client.pipeline(transaction=True)
        pipe.hdel(keys.host_devices(host), uuid)
        pipe.hdel(keys.FACTS, uuid)
        pipe.hdel(keys.DEATHS, uuid)
        pipe.hdel(keys.SEEN, uuid)
        pipe.execute()

    @answering
    def drain(
        self, uuids: Iterable[str], *, origin: DrainOrigin, why: str, by: str, begins_at: datetime | None = None
    ) -> None:
        """Drain the devices in *uuids* until *origin* is resumed, at once or from *begins_at* on.

        A drain of this origin that holds already is not put off.
        """
        from_ms = "" if begins_at is None else to_epoch_ms(begins_at)
        self._store.scripts.run("drain", origin.value, why, by, from_ms, *uuids)

    @answering
    def reserve(self, wanted: CalendarReservation, *, grace_s: float, most_s: float | None = None) -> int:
        """Reserve devices for people, and return the id. One with an id is stored again as it was.

        *grace_s* is what the runs of others get at the start. *most_s* is the most device-seconds that its ``by`` may
        have reserved at a time; None: any.

        Raises:
            BadRequest: its end is over, or not after its start.
            Refused: a device is reserved at that time or too often, or it is too long.

        """
        span = (to_epoch_ms(wanted.begins_at), to_epoch_ms(wanted.ends_at))
        words = (wanted.why, wanted.by, to_ms(grace_s), "" if most_s is None else to_ms(most_s))
        what, *detail = self._store.scripts.run(
            "calendar_add", wanted.id or "", ",".join(wanted.users), *span, *words, *wanted.devices
        )
        if what == "made":
            return int(detail[0])
        if what == "over":
            raise BadRequest("the end of the reservation is over, or not after its start: give a later --until")
        if what == "budget":
            hours = f"{int(detail[0]) / 3_600_000:.3g}" if detail[0] != "0" else "no"
            raise Refused(
                f"you have {hours} device-hours reserved, and may have {(most_s or 0) / 3600:.3g} at a time "
                "(setting reserve_hours): reserve for a shorter time, or ask an administrator"
            )
        where = next(
            (f"{each.host}:{each.device.index}" for each in self.all() if each.device.uuid == detail[0]), detail[0]
        )
        if what == "many":
            raise Refused(f"{where} is reserved too often: cancel some, see gpuqueue reserve list")
        raise Refused(f"{where} is reserved then, by reservation {detail[1]}: see gpuqueue reserve list")

    @answering
    def cancel_reservation(self, reservation_id: int, *, user: str | None) -> bool:
        """Cancel a calendar reservation, and return whether there was one. *user* None: of any account.

        Raises:
            Refused: it is neither of nor only for the account *user*.

        """
        reply = self._store.scripts.run("calendar_cancel", reservation_id, user or "")
        if reply == "refused":
            raise Refused(
                f"reservation {reservation_id} is not yours: only its owner or an administrator may cancel it"
            )
        return bool(int(reply))

    @answering
    def preempt(self, uuids: Iterable[str], *, grace_s: float) -> dict[int, JobState]:
        """Preempt all runs on the devices in *uuids*, for no other job; return their jobs with their states.

        A run has *grace_s* seconds to end. A repeated call changes nothing for runs that are being preempted.
        """
        reply = self._store.scripts.run("preempt_devices", to_ms(grace_s), *uuids)
        return {int(job_id): JobState(state) for job_id, state in zip(reply[::2], reply[1::2], strict=True)}

    @answering
    def resume(self, uuids: Iterable[str], *, origins: Collection[DrainOrigin]) -> None:
        """Remove the drains of *origins* from the devices in *uuids*."""
        self._store.scripts.run("resume", len(origins), *(origin.value for origin in origins), *uuids)

    @answering
    def lose_host(self, host: str, *, by: str, loss_limit: int, silent_s: float) -> dict[int, JobState]:
        """End every run of a silent *host* as lost; return the jobs and their states afterwards.

        *by* is who declared it lost, for the reason of the runs. The caller has checked the right to do so.

        Raises:
            Refused: a device of the host sent a heartbeat in the last *silent_s* seconds.
            BadRequest: no device of this host is known.

        """
        reply = self._store.scripts.run("lose_host", host, by, loss_limit, to_ms(silent_s))
        if reply == "":
            raise BadRequest(f"no host {host} is known: gpuqueue gpus lists them")
        if isinstance(reply, str):
            raise Refused(f"{host} answered {int(reply) / 1000:.0f} s ago: it is not lost")
        return {int(job_id): JobState(state) for job_id, state in zip(reply[::2], reply[1::2], strict=True)}

    def _report_seen(self, offer: Offer) -> None:
        """Report the external memory of the device, its trouble and its load, if they have changed."""
        external_processes = [external_to_plain(each) for each in offer.external_processes]
        blind = offer.external_bytes is None
        health = offer.health
        load = {
            "utilisation": _rounded(health.utilisation, 2),
            "temperature_c": _rounded(health.temperature_c),
            "power_w": _rounded(health.power_w),
            "driver_bytes": offer.driver_bytes,
            "memory_errors": health.ecc_uncorrected,
            "retired_rows": health.retired_rows,
            "retirement": health.retirement,
            "xids": [[xid.code, xid.at.isoformat()] for xid in health.xids or ()] or None,
        }
        known = {name: figure for name, figure in load.items() if figure is not None}
        seen = json.dumps({"trouble": offer.trouble, "blind": blind, "external_processes": external_processes, **known})
        if self._seen.get(offer.device.uuid) != seen:
            self._store.client.hset(keys.SEEN, offer.device.uuid, seen)
            self._seen[offer.device.uuid] = seen


def _rounded(figure: float | None, digits: int = 0) -> float | None:
    return None if figure is None else round(figure, digits)


def known_devices(store: Store) -> list[tuple[Device, str]]:
    """Return every announced device with its pool; skip withdrawn and unreadable devices."""
    found = []
    for text in cast("list[str]", store.client.hvals(keys.FACTS)):
        with contextlib.suppress(Unreadable):
            plain = loaded(text, "a device")
            found.append((plain.text("host"), from_plain(Device, plain.plain("device"), "a device")))
    pipe = store.client.pipeline(transaction=False)
    for host, device in found:
        pipe.hget(keys.host_devices(host), device.uuid)
    records = zip(found, pipe.execute(), strict=True)
    return [(device, pool(record)) for (_, device), record in records if record]


def device_words(offer: Offer, *, lease_s: float) -> list[str | int]:
    """Return what a heartbeat reports about the device: the first arguments of ``heartbeat.lua``."""
    return [
        offer.host,
        offer.device.uuid,
        offer.device.total_bytes,
        offer.headroom_bytes,
        offer.counted_bytes,
        offer.slots,
        offer.pool,
        offer.kind_word,
        to_ms(lease_s),
        offer.machine,
    ]


def pool(record: str) -> str:
    """Return the pool of the device with this record, empty if it is in none."""
    words = record.split(":")
    return words[5] if len(words) > 5 else ""  # noqa: PLR2004 - the pool is the sixth word of a record


def device_status(
    facts: str,
    record: str,
    leases: Mapping[str, str],
    now_ms: int,
    drained: str | None,
    last_sample: str | None,
) -> DeviceStatus:
    """Return the status of a device from its facts, its last record and its leases.

    Raises:
        Unreadable: one of them is damaged.

    """
    plain = loaded(facts, "a worker's report of its device")
    with readable_reply("the store's entry of a device"):
        _, headroom, external, seen, slots, *more = record.split(":")
        holdings = tuple(_holding(job_id, leases[job_id]) for job_id in sorted(leases, key=int))
        sample = _last_sample(last_sample)
        all_drains, now = drains(drained), from_epoch_ms(now_ms)
        planned = [each for each in all_drains if not each.holds(now)]
        device = from_plain(Device, plain.plain("device"), "a device")
        return DeviceStatus(
            device=device,
            host=plain.text("host"),
            worker=plain.text("worker"),
            worker_pid=plain.whole("pid"),
            headroom_bytes=int(headroom),
            external_bytes=None if sample.blind else int(external),
            allocated_bytes=sum(max(each.lease_bytes, each.observed_bytes) for each in holdings),
            jobs=tuple(each.job_id for each in holdings),
            exclusive=any(_is_alone(lease) for lease in leases.values()),
            slots=int(slots),
            pool=pool(record),
            seen_s_ago=abs(now_ms - int(seen)) / 1000,
            drains=tuple(each for each in all_drains if each not in planned),
            planned_drains=tuple(sorted(planned, key=lambda each: each.begins_at or now)),
            calendar=tuple(each for each in reservations_on(device.uuid, drained) if now < each.ends_at),
            trouble=sample.trouble,
            external_processes=sample.external_processes,
            holdings=holdings,
            utilisation=sample.utilisation,
            temperature_c=sample.temperature_c,
            power_w=sample.power_w,
            driver_bytes=sample.driver_bytes,
            memory_errors=sample.memory_errors,
            retired_rows=sample.retired_rows,
            retirement=sample.retirement,
            xids=sample.xids,
            environments=plain.texts("environments") if plain.has("environments") else None,
            limits_jobs=plain.flag_or_none("limits_jobs"),
            only=plain.text_or_none("only"),
            lost_gpus=more[-1:] == ["cpu-lost"],
        )


def refusals(text: str | None) -> Refusals | None:
    """Return what the store has counted of a host; None if that is nothing or unreadable."""
    with suppress(Unreadable):
        plain = loaded(text, "the refusals of a host") if text else None
        return Refusals(jobs=plain.whole("count"), why=plain.text("why")) if plain else None
    return None


def device_reservation(text: str) -> DeviceReservation | None:
    """Return the reservation of a device, whose text is ``job:need:start:blockers:likely``; None if it names no job."""
    job_id, need, start_ms, blockers = [*text.split(":"), "", "", ""][:4]
    holder = _whole(job_id)
    if holder is None:
        return None
    return DeviceReservation(
        job_id=holder,
        since=None,
        need_bytes=_whole(need),
        start=moment_of(start_ms if start_ms != "0" else None),
        blockers=tuple(each for each in map(_whole, blockers.split(",")) if each is not None),
    )


def moment_of(text: str | None) -> datetime | None:
    """Return a time of the store in milliseconds since the epoch; None if it is missing or unreadable."""
    with suppress(ValueError, OverflowError, OSError):
        return from_epoch_ms(int(text)) if text else None
    return None


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _holding(job_id: str, lease: str) -> Holding:
    lease_bytes, observed_bytes, *_ = lease.split(":")
    return Holding(job_id=int(job_id), lease_bytes=int(lease_bytes), observed_bytes=int(observed_bytes))


def _is_alone(lease: str) -> bool:
    """Return whether a lease belongs to a run that holds the device exclusively."""
    return lease.split(":")[3:4] == ["x"]


class _Sample(NamedTuple):
    """What a worker reports with a heartbeat, where it is no part of the device's record."""

    trouble: str | None = None
    blind: bool = False
    external_processes: tuple[ExternalProcess, ...] = ()
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    driver_bytes: int | None = None
    memory_errors: int | None = None
    retired_rows: int | None = None
    retirement: str | None = None
    xids: tuple[Xid, ...] = ()


def _last_sample(text: str | None) -> _Sample:
    """Return the last sample of a worker; an empty one if it cannot be read."""
    try:
        sample = loaded(text, "a sample of a device")
        external_processes = tuple(_external(each) for each in sample.each("external_processes"))
        return _Sample(
            trouble=sample.text_or_none("trouble"),
            blind=sample.flag("blind"),
            external_processes=external_processes,
            utilisation=sample.number_or_none("utilisation"),
            temperature_c=sample.number_or_none("temperature_c"),
            power_w=sample.number_or_none("power_w"),
            driver_bytes=sample.whole_or_none("driver_bytes"),
            memory_errors=sample.whole_or_none("memory_errors"),
            retired_rows=sample.whole_or_none("retired_rows"),
            retirement=sample.text_or_none("retirement"),
            xids=tuple(map(_xid, sample.each("xids"))),
        )
    except Unreadable:
        return _Sample()


def _xid(plain: object) -> Xid:
    with readable_reply("an Xid error"):
        code, at = cast("tuple[int, str]", plain)
        return Xid(int(code), datetime.fromisoformat(at))


def _external(plain: object) -> ExternalProcess:
    fields = Fields(plain, "an external process")
    return ExternalProcess(
        pid=fields.whole("pid"),
        held_bytes=fields.whole_or_none("held_bytes"),
        counted_bytes=fields.whole_or_none("counted_bytes"),
        user=fields.text_or_none("user"),
        command=fields.text_or_none("command"),
        started_at=_moment(fields),
        job_id=fields.whole_or_none("job_id"),
    )


def _moment(fields: Fields) -> datetime | None:
    text = fields.text_or_none("started_at")
    with suppress(ValueError):
        return datetime.fromisoformat(text) if text else None
    return None


def external_to_plain(external: ExternalProcess) -> dict[str, Any]:
    """Return *external* as plain values, in the form of the store."""
    started_at = external.started_at
    return {**asdict(external), "started_at": started_at.isoformat() if started_at else None}
