"""The events of runs: claim, start, adoption, release, end and loss. Pure."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec import decode_ended, decode_started
from gpuqueue.errors import Unreadable
from gpuqueue.history import columns
from gpuqueue.history.batch import Batch, RunKey, submit
from gpuqueue.model.run import Ended, Ending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuqueue.model.event import Event
    from gpuqueue.model.run import RunDevice

log = logging.getLogger(__name__)

#: Exceptions that an unreadable payload can raise. One bad event must not stop the recorder for ever.
UNREADABLE = (Unreadable, ValueError, KeyError, TypeError, AttributeError)


def _first_claim(batch: Batch, event: Event) -> None:
    """Add the job of an array member that is claimed for the first time.

    Also set the members that the array has left.
    """
    if "spec" in event.fields:
        submit(batch, replace(event, at=from_epoch_ms(int(event.fields["submitted"]))))
    batch.job((int(event.fields["of"]),))["array_left"] = event.fields["left"]


def claim(batch: Batch, event: Event) -> None:
    """Add the run that a claim begins, and its devices."""
    fields = event.fields
    if "of" in fields:
        _first_claim(batch, event)
    lease_bytes, uuids = int(fields["lease"]), fields["devices"].split(",")
    batch.new_runs[run_key(event)] = columns.run_row(event)
    for position, uuid in enumerate(uuids):
        place = (event.job_id, event.attempt, uuid)
        batch.new_devices[place] = columns.device_row(event, position, uuid, lease_bytes)


def started(batch: Batch, event: Event) -> None:
    """Set the start of a run."""
    run = batch.run(run_key(event))
    run["started_at"] = event.at
    log_path, devices = decode_started(event.fields["started"])
    run["log_path"] = log_path or None  # the log path of a restored run may be unknown
    batch.job((event.job_id,)).update(dict.fromkeys(columns.OF_LAST_RUN))
    _describe(batch, event, devices)


def adopt(batch: Batch, event: Event) -> None:
    """Record what the history database missed: the start, the run, or the whole job.

    The start is dated to the claim.
    """
    then = replace(event, at=from_epoch_ms(int(event.fields["claimed"])))
    if "spec" in event.fields:
        submit(batch, then)
    if "host" in event.fields:
        claim(batch, then)
        batch.job((event.job_id,)).update(host=event.fields["host"], claimed_at=then.at)
    started(batch, then)
    batch.job((event.job_id,))["started_at"] = then.at


def release_claim(batch: Batch, event: Event) -> None:
    """Remove the run of a claim that was released."""
    token = event.fields["token"]
    key = (event.job_id, event.attempt + 1, token)  # the event's attempt no longer counts the claim
    batch.moved_runs.pop(key, None)
    if batch.new_runs.pop(key, None) is None:
        batch.released.append((event.job_id, token))
    for devices in (batch.new_devices, batch.moved_devices):
        for gone in [each for each in devices if each[:2] == key[:2]]:
            del devices[gone]


def finish(batch: Batch, event: Event) -> None:
    """Set the end of a run and its measurements."""
    key = run_key(event)
    try:
        ended = decode_ended(event.fields["ended"])
    except UNREADABLE as error:
        # The job has ended even if its report cannot be read. Only its ending is unknown.
        log.exception("the report of job %s's end (event %s) cannot be read", event.job_id, event.id)
        unknown = Ending.lost(f"the report of its end cannot be read: {error}")
        ended = Ended(ending=unknown, duration_s=None, devices=())
    batch.run(key).update(
        ended_at=event.at,
        duration_s=ended.duration_s,
        peak_at_once_bytes=ended.peak_at_once_bytes,
        **columns.ending_columns(ended.ending),
    )
    sum_up(batch, event, ended)
    _describe(batch, event, ended.devices)
    for device in ended.devices:
        place = (event.job_id, event.attempt, device.uuid)
        batch.device(place).update(columns.seen_columns(device.peak, device.activity))
        if device.timeline is not None:
            batch.timelines[place] = columns.timeline_row(event, device.uuid, device.timeline)


def lose(batch: Batch, event: Event) -> None:
    """Set the end of a run that was lost."""
    ending = Ending.lost(event.fields.get("detail", ""))
    batch.run(run_key(event)).update(ended_at=event.at, **columns.ending_columns(ending))
    sum_up(batch, event, Ended(ending=ending, duration_s=None, devices=()))


def sum_up(batch: Batch, event: Event, ended: Ended) -> None:
    """Set the columns of a job that lists show of its last run. A claim does not set them: it may be released."""
    batch.job((event.job_id,)).update(columns.last_run_columns(ended))


def run_key(event: Event) -> RunKey:
    """Return the key of the run that *event* is about."""
    return event.job_id, event.attempt, event.fields["token"]


def _describe(batch: Batch, event: Event, devices: Sequence[RunDevice]) -> None:
    """Set the properties of the run's devices.

    The end event repeats them for a run that never started.
    """
    for device in devices:
        if device.name is not None:
            batch.device((event.job_id, event.attempt, device.uuid)).update(columns.device_columns(device))
