"""Turns the scripts' replies and the store's hashes into values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec import decode_spec, device_from_plain
from gpuqueue.event import Act, Event
from gpuqueue.job import Job, JobState, WaitReason
from gpuqueue.queue.drains import drains
from gpuqueue.queue.lease import Alive, Claim, DeviceStatus, Lease, Stranger, Verdicts


def claim(reply: Sequence[str]) -> Claim:
    """Return the claim that claim.lua answered with."""
    job_id, token, spec, attempt, lease_bytes, devices, claimed_ms = reply
    return Claim(
        job_id=int(job_id),
        token=token,
        attempt=int(attempt),
        spec=decode_spec(spec),
        lease_bytes=int(lease_bytes),
        devices=tuple(devices.split(",")),
        claimed_ms=int(claimed_ms),
    )


def verdicts(alive: Sequence[Alive], reply: Sequence[Any]) -> Verdicts:
    """Return what beat.lua answered about the runs *alive*, the other leases and the device."""
    per_run, others, drained = reply
    by_verdict = {1: set[str](), 0: set[str](), -1: set[str]()}
    for run, verdict in zip(alive, per_run, strict=True):
        by_verdict[int(verdict)].add(run.token)
    return Verdicts(
        go_on=frozenset(by_verdict[1]),
        cancelled=frozenset(by_verdict[-1]),
        stale=frozenset(by_verdict[0]),
        others=tuple(_leases(others)),
        drains=drains(drained or None),
    )


def _leases(flat: Sequence[str]) -> Iterator[Lease]:
    for i in range(0, len(flat), 5):
        job_id, token, lease_bytes, observed_bytes, leads = flat[i : i + 5]
        yield Lease(
            job_id=int(job_id),
            token=token,
            lease_bytes=int(lease_bytes),
            observed_bytes=int(observed_bytes),
            leads=leads == "1",
        )


def job(job_id: int, fields: Mapping[str, str], spec: str) -> Job:
    """Return the job whose hash and spec these are."""
    state = JobState(fields["st"])
    waits = state in {JobState.QUEUED, JobState.HELD}
    reason = WaitReason(fields["why"]) if fields.get("why") else None

    def moment(name: str) -> datetime | None:
        return from_epoch_ms(int(fields[name])) if fields.get(name) else None

    return Job(
        id=job_id,
        spec=decode_spec(spec),
        state=state,
        reason=reason or (WaitReason.MEMORY if state is JobState.QUEUED else None),
        attempt=int(fields["at"]),
        losses=int(fields["ls"]),
        submitted_at=from_epoch_ms(int(fields["ts"])),
        claimed_at=None if waits else moment("tc"),
        started_at=None if waits else moment("tr"),
        ended_at=moment("te"),
        host=fields.get("host") or None,
        devices=tuple(fields["devs"].split(",")) if fields.get("devs") else (),
    )


def pool(record: str) -> str:
    """Return the pool of the device with this record, empty if it is in none."""
    return record.split(":")[5]


def device_status(
    plain: Mapping[str, Any],
    record: str,
    leases: Mapping[str, str],
    now_ms: int,
    drained: str | None,
    last_look: str | None,
) -> DeviceStatus:
    """Return a device as its facts, its last reading and its leases tell."""
    _, headroom, foreign, seen, slots, *_ = record.split(":")
    look = json.loads(last_look) if last_look else {"trouble": None, "strangers": []}
    promised = 0
    for lease in leases.values():
        lease_bytes, observed_bytes, _ = lease.split(":")
        promised += max(int(lease_bytes), int(observed_bytes))
    return DeviceStatus(
        device=device_from_plain(plain["device"]),
        host=plain["host"],
        worker=plain["worker"],
        worker_pid=plain["pid"],
        headroom_bytes=int(headroom),
        foreign_bytes=None if look.get("blind") else int(foreign),
        promised_bytes=promised,
        jobs=tuple(sorted(int(job_id) for job_id in leases)),
        slots=int(slots),
        pool=pool(record),
        seen_s_ago=abs(now_ms - int(seen)) / 1000,
        drains=drains(drained),
        trouble=look["trouble"],
        strangers=tuple(Stranger(**each) for each in look["strangers"]),
    )


def event(entry_id: str, fields: Mapping[str, str]) -> Event:
    """Return the outbox entry as an event."""
    known = {"act", "job", "state", "at", "attempt", "losses", "reason"}
    return Event(
        id=entry_id,
        act=Act(fields["act"]),
        job_id=int(fields["job"]),
        state=JobState(fields["state"]),
        at=from_epoch_ms(int(fields["at"])),
        attempt=int(fields["attempt"]),
        losses=int(fields["losses"]),
        reason=WaitReason(fields["reason"]) if fields["reason"] else None,
        fields={name: value for name, value in fields.items() if name not in known},
    )
