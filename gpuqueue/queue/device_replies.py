"""Converts what the store has about a device to values: its record, its leases and the last sample of its worker."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec.wire import from_plain
from gpuqueue.errors import Unreadable
from gpuqueue.model.device import Device
from gpuqueue.queue.drains import drains
from gpuqueue.queue.lease import DeviceReservation, DeviceStatus, ExternalProcess, Holding, Refusals
from gpuqueue.queue.replies import readable_reply
from gpuqueue.text.json_fields import Fields, loaded

#: Most digits of a whole number that the store writes.
_MOST_DIGITS = 18


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
        _, headroom, external, seen, slots, *_ = record.split(":")
        holdings = tuple(_holding(job_id, leases[job_id]) for job_id in sorted(leases, key=int))
        sample = _last_sample(last_sample)
        return DeviceStatus(
            device=from_plain(Device, plain.plain("device"), "a device"),
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
            drains=drains(drained),
            trouble=sample.trouble,
            external_processes=sample.external_processes,
            holdings=holdings,
            utilisation=sample.utilisation,
            temperature_c=sample.temperature_c,
            power_w=sample.power_w,
            driver_bytes=sample.driver_bytes,
            environments=plain.texts("environments") if plain.has("environments") else None,
        )


def refusals(text: str | None) -> Refusals | None:
    """Return what the store has counted of a host; None if that is nothing or unreadable."""
    with suppress(Unreadable):
        plain = loaded(text, "the refusals of a host") if text else None
        return Refusals(jobs=plain.whole("count"), why=plain.text("why")) if plain else None
    return None


def device_reservation(text: str) -> DeviceReservation | None:
    """Return the reservation of a device, whose text is ``job:need:start:blockers``; None if it names no job."""
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
        )
    except Unreadable:
        return _Sample()


def _external(plain: object) -> ExternalProcess:
    fields = Fields(plain, "an external process")
    return ExternalProcess(
        pid=fields.whole("pid"),
        held_bytes=fields.whole_or_none("held_bytes"),
        counted_bytes=fields.whole_or_none("counted_bytes"),
        user=fields.text_or_none("user"),
        command=fields.text_or_none("command"),
        started_at=_moment(fields),
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
