"""Folds a batch of events into rows of the history database. Pure: contains no SQL.

A job that is submitted, claimed, started and finished within one batch becomes one row in each table, instead of an
INSERT and three UPDATEs. Most of the recorder's speed comes from this.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import field, replace
from typing import TYPE_CHECKING

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec.marks import decode_store_marks, encode_marks
from gpuqueue.codec.request import (
    decode_apart,
    decode_ended,
    decode_request,
    decode_spec,
    decode_started,
    encode_environment,
    shown_request,
)
from gpuqueue.errors import Unreadable
from gpuqueue.history import columns
from gpuqueue.history.columns import Row
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import JobState
from gpuqueue.model.mem_source import LIMITED, NO_LARGER_DEVICE, OUT_OF_MEMORY, TAKEN_BY_OTHERS
from gpuqueue.model.notification import first_about
from gpuqueue.model.run import Ended, Ending
from gpuqueue.model.run_mark import MarkKind
from gpuqueue.text.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuqueue.model.run import RunDevice

JobKey = tuple[int]
#: Job and tag.
TagKey = tuple[int, str]
#: Job, attempt and token. A released claim and the next run have the same attempt number; the token differs.
RunKey = tuple[int, int, str]
#: Job, attempt and device UUID.
DeviceKey = tuple[int, int, str]

#: Job, attempt and name of the metric.
MetricKey = tuple[int, int, str]

#: Valid texts of a count, of a time in milliseconds, and of a size in bytes.
_COUNT, _TIME, _SIZE = re.compile("[0-9]{1,6}"), re.compile("[0-9]{1,14}"), re.compile("[1-9][0-9]{0,15}")
#: Why a job was not queued again -> in words. ``devices`` has a number as well.
_REFUSED = {
    "times": "it was queued again {times} already (--mem-retries)",
    "devices": f"{NO_LARGER_DEVICE} than {{most}} now",
    "limit": LIMITED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The rows that result from a batch of events.

    ``new_*`` hold whole rows. ``moved_*`` hold only the changed columns, by the key of the row. The runs in
    ``released`` are deleted before new runs are written, because the next run has their attempt number.
    """

    new_jobs: dict[JobKey, Row] = field(default_factory=dict)
    moved_jobs: dict[JobKey, Row] = field(default_factory=dict)
    environments: dict[int, Row] = field(default_factory=dict)
    #: Jobs that have ended after the batch. Their secrets are removed.
    ended: set[int] = field(default_factory=set)
    #: Runs whose claims were released: job and token.
    released: list[tuple[int, str]] = field(default_factory=list)
    #: Jobs whose tags are replaced as a whole.
    retagged: set[int] = field(default_factory=set)
    #: Whether the job has the tag after the batch.
    tags: dict[TagKey, bool] = field(default_factory=dict)
    new_runs: dict[RunKey, Row] = field(default_factory=dict)
    moved_runs: dict[RunKey, Row] = field(default_factory=dict)
    new_devices: dict[DeviceKey, Row] = field(default_factory=dict)
    moved_devices: dict[DeviceKey, Row] = field(default_factory=dict)
    timelines: dict[DeviceKey, Row] = field(default_factory=dict)
    #: The metrics of runs and their curves, by job, attempt and name.
    metrics: dict[MetricKey, Row] = field(default_factory=dict)
    curves: dict[MetricKey, Row] = field(default_factory=dict)
    #: How many targets a job notifies; those that an edit may have changed are written anew.
    notifications: dict[int, int] = field(default_factory=dict)
    renotified: set[int] = field(default_factory=set)
    #: Jobs whose runs were marked, with the number of their first notification of that. It is sent once.
    marked: set[tuple[int, int]] = field(default_factory=set)
    #: Arrays whose rest the queue has held. The owner is notified of each hold.
    held: set[int] = field(default_factory=set)
    events: list[Row] = field(default_factory=list)
    dead_letters: list[Row] = field(default_factory=list)

    def job(self, key: JobKey) -> Row:
        """Return the columns to set for a job: its new row, or its change."""
        return self.new_jobs.get(key) or self.moved_jobs.setdefault(key, {})

    def run(self, key: RunKey) -> Row:
        """Return the columns to set for a run."""
        return self.new_runs.get(key) or self.moved_runs.setdefault(key, {})

    def device(self, key: DeviceKey) -> Row:
        """Return the columns to set for a run's device."""
        return self.new_devices.get(key) or self.moved_devices.setdefault(key, {})


#: Acts that leave host, claim time and start time of a waiting job as they are. An array that has begun also waits.
_KEEP_PLACE = frozenset({Act.EDIT, Act.MOVE, Act.PROMOTE, Act.RESTORE})
_WAITS = frozenset({JobState.QUEUED, JobState.HELD})


def move_job(batch: Batch, event: Event) -> None:
    """Set the columns of a job that follow from any event: its state, counts and times."""
    if event.act is Act.MARK:
        return
    row = batch.job((event.job_id,))
    row["state"] = event.state.value
    row["reason"] = event.reason.value if event.reason else None
    row["attempt"] = event.attempt
    row["losses"] = event.losses
    _move_waits(row, event)
    row["ended_at"] = event.at if event.state.is_end else None
    (batch.ended.add if event.state.is_end else batch.ended.discard)(event.job_id)
    if event.act is Act.CLAIM:
        row.update(host=event.fields.get("host"), claimed_at=event.at, started_at=None)
    elif event.act is Act.STARTED:
        row["started_at"] = event.at
    elif event.act is Act.ARRAY or "left" in event.fields:
        _move_array(row, event)
    elif event.act is Act.RELEASE_CLAIM or (event.state in _WAITS and event.act not in _KEEP_PLACE):
        row.update(host=None, claimed_at=None, started_at=None)


def _move_waits(row: Row, event: Event) -> None:
    """Set the columns about waiting, and the memory after a lack of it, that an event carries. Most carry none.

    An invalid count is ignored. An invalid time or place is stored as None.
    """
    fields = event.fields
    for name in ("retries", "requeues", "mem_retries"):
        if name in fields and _COUNT.fullmatch(fields[name]):
            row[name] = int(fields[name])
    if "mem" in fields and _SIZE.fullmatch(fields["mem"]):
        row["mem_bytes"] = int(fields["mem"])
    if "begin" in fields:
        row["begins_at"] = from_epoch_ms(int(fields["begin"])) if _TIME.fullmatch(fields["begin"]) else None
    elif event.act is Act.CLAIM:
        row["begins_at"] = None
    if "front" in fields:
        row["front"] = int(fields["front"]) if _TIME.fullmatch(fields["front"]) else None
    if "because" in fields:
        row["because"] = fields["because"] or None


def _move_array(row: Row, event: Event) -> None:
    """Set the progress of an array. An array begins when its first member is taken."""
    if "began" in event.fields:
        row["started_at"] = from_epoch_ms(int(event.fields["began"]))
    if "left" in event.fields:
        row.update(array_left=event.fields["left"], array_held=event.fields.get("held", ""))


def submit(batch: Batch, event: Event) -> None:
    """Add the job of a request, and its environment. A member of an array has that of its array."""
    payload = event.fields["spec"]
    if event.act is Act.CLAIM:  # of a member: its row has only a reference to the array, which has the environment
        spec, member = decode_request(payload)
    else:
        spec, member, payload, env = decode_apart(payload)
        variables, secrets = encode_environment(env)
        batch.environments[event.job_id] = {"job_id": event.job_id, "variables": variables, "secrets": secrets}
    batch.tags.update(((event.job_id, tag), True) for tag in spec.tags)
    batch.new_jobs[(event.job_id,)] = columns.job_row(event, spec, member, payload)
    if spec.notifications:
        batch.notifications[event.job_id] = len(spec.notifications)


def run_mark(batch: Batch, event: Event) -> None:
    """Set the marks of a run, and notify the owner of a new one. Earlier versions recorded no marks but idle runs."""
    kind = event.fields.get("kind", MarkKind.IDLE.value)
    if event.fields.get("stage") != "0":
        batch.marked.add((event.job_id, first_about(kind, event.attempt)))
    if "marks" in event.fields:
        batch.run(run_key(event))["marks"] = encode_marks(decode_store_marks(event.fields["marks"]))


def hold(batch: Batch, event: Event) -> None:
    """Notify the owner of an array whose rest the queue has held. A user who holds it gives no reason."""
    if event.fields.get("because"):
        batch.held.add(event.job_id)


def mark(batch: Batch, event: Event) -> None:
    """Set the tags and the note that a user added or removed."""
    for name, is_one in (("add", True), ("remove", False)):
        for tag in _words(event.fields.get(name, "")):
            batch.tags[event.job_id, tag] = is_one
    if "note" in event.fields:
        batch.job((event.job_id,))["note"] = event.fields["note"] or None


def restore(batch: Batch, event: Event) -> None:
    """Set the tags and the note of a restored job, if the event carries them. Most restore events do not."""
    if "tags" in event.fields:
        batch.retagged.add(event.job_id)
        batch.tags.update({key: False for key in batch.tags if key[0] == event.job_id})
        batch.tags.update(((event.job_id, tag), True) for tag in _words(event.fields["tags"]))
    mark(batch, event)  # for the note


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def edit(batch: Batch, event: Event) -> None:
    """Replace the request of a job. Its environment stays the same."""
    payload = event.fields["spec"]
    spec = decode_spec(payload)
    batch.job((event.job_id,)).update(columns.spec_columns(spec, shown_request(payload)))
    batch.notifications[event.job_id] = len(spec.notifications)
    batch.renotified.add(event.job_id)


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


def started(batch: Batch, event: Event) -> dict[str, str]:
    """Set the start of a run, and return what its event keeps of the limits of its processes."""
    run = batch.run(run_key(event))
    run["started_at"] = event.at
    log_path, devices, limits = decode_started(event.fields["started"])
    run["log_path"] = log_path or None  # the log path of a restored run may be unknown
    batch.job((event.job_id,)).update(dict.fromkeys(columns.OF_LAST_RUN))
    _describe(batch, event, devices)
    return {"limits": json.dumps(limits)} if limits else {}


def adopt(batch: Batch, event: Event) -> dict[str, str]:
    """Record what the history database missed: the start, the run, or the whole job.

    The start is dated to the claim.
    """
    then = replace(event, at=from_epoch_ms(int(event.fields["claimed"])))
    if "spec" in event.fields:
        submit(batch, then)
    if "host" in event.fields:
        claim(batch, then)
        batch.job((event.job_id,)).update(host=event.fields["host"], claimed_at=then.at)
    kept = started(batch, then)
    batch.job((event.job_id,))["started_at"] = then.at
    return kept


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
    batch.run(key).update(columns.ended_columns(event, ended))
    for metric in ended.values.metrics if ended.values is not None else ():
        place_of_metric = (event.job_id, event.attempt, metric.name)
        batch.metrics[place_of_metric] = columns.metric_row(event, metric)
        batch.curves[place_of_metric] = columns.curve_row(event, metric)
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


log = logging.getLogger(__name__)

#: Payloads that other tables store. The event's row does not repeat them.
_ELSEWHERE: dict[Act, set[str]] = {
    Act.SUBMIT: {"spec"},
    Act.EDIT: {"spec"},
    Act.CLAIM: {"spec", "submitted"},
    Act.STARTED: {"started"},
    Act.ADOPT: {"spec", "started"},
    Act.FINISH: {"ended"},
    Act.RUN_MARK: {"marks"},
}


#: Some return fields that the row of the event keeps besides its own.
_FOLDS: dict[Act, Callable[[Batch, Event], dict[str, str] | None]] = {
    Act.SUBMIT: submit,
    Act.EDIT: edit,
    Act.MARK: mark,
    Act.IDLE: run_mark,
    Act.RUN_MARK: run_mark,
    Act.HOLD: hold,
    Act.RESTORE: restore,
    Act.CLAIM: claim,
    Act.STARTED: started,
    Act.ADOPT: adopt,
    Act.RELEASE_CLAIM: release_claim,
    Act.FINISH: finish,
    Act.LOSE: lose,
}


def fold(events: Sequence[Event], *, epoch: str) -> Batch:
    """Return the rows that result from *events*, in their order.

    If the fields of an event cannot be read, the state change is still applied and the event keeps all its fields, but
    for the environment in a request.
    """
    batch = Batch()
    for event in events:
        elsewhere = _ELSEWHERE.get(event.act, ())
        own = {name: text for name, text in event.fields.items() if name not in elsewhere}
        try:
            if event.act in _FOLDS:
                own.update(_FOLDS[event.act](batch, event) or {})
        except UNREADABLE:
            log.exception(
                "the fields of event %s of job %s cannot be read, they are stored as they are", event.id, event.job_id
            )
            own = dict(event.fields)
        if "spec" in own:
            own["spec"] = shown_request(own["spec"])
        move_job(batch, event)
        batch.events.append(columns.event_row(event, epoch=epoch, detail=json.dumps(own) if own else None))
    return batch


def note_of(event: Event) -> str:
    """Return the decision about memory that the end *event* of a run carries, empty if it carries none."""
    fields = event.fields
    if fields.get("mem_refused") in _REFUSED:
        return f"{OUT_OF_MEMORY}, and not queued again with more: {_refused(event)}"
    if fields.get("again") != "out_of_memory":
        return ""
    size = format_bytes(_number(event, "mem"))
    which = f"memory retry {_number(event, 'mem_retries')} of {_number(event, 'mem_allowed')}"
    if fields.get("blamed"):
        return f"{OUT_OF_MEMORY}, {TAKEN_BY_OTHERS}: {fields['blamed']}; queued again with {size} ({which})"
    return f"{OUT_OF_MEMORY}: queued again with {size} ({which})"


def _refused(event: Event) -> str:
    times = _number(event, "mem_retries")
    return _REFUSED[event.fields["mem_refused"]].format(
        times="once" if times == 1 else f"{times} times", most=format_bytes(_number(event, "mem_most"))
    )


def _number(event: Event, name: str) -> int:
    text = event.fields.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() else 0
