"""The rows that result from a batch of events, and the events that change only a job. Pure: contains no SQL."""

from __future__ import annotations

import re
from dataclasses import field

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec import decode_request, decode_spec, encode_environment, shown_request, without_environment
from gpuqueue.history import columns
from gpuqueue.history.columns import Row
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import JobState

JobKey = tuple[int]
#: Job and tag.
TagKey = tuple[int, str]
#: Job, attempt and token. A released claim and the next run have the same attempt number; the token differs.
RunKey = tuple[int, int, str]
#: Job, attempt and device UUID.
DeviceKey = tuple[int, int, str]

#: Valid texts of a count, of a time in milliseconds, and of a size in bytes.
_COUNT, _TIME, _SIZE = re.compile("[0-9]{1,6}"), re.compile("[0-9]{1,14}"), re.compile("[1-9][0-9]{0,15}")


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
    notifications: dict[tuple[int, int], Row] = field(default_factory=dict)
    #: Jobs whose runs were marked as idle. The owner of each is notified once.
    idle: set[int] = field(default_factory=set)
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
    spec, member = decode_request(payload)
    if member is None or event.act is not Act.CLAIM:  # of a claim the row has only a reference to the array
        payload, env = without_environment(payload)
        variables, secrets = encode_environment(env)
        batch.environments[event.job_id] = {"job_id": event.job_id, "variables": variables, "secrets": secrets}
    batch.tags.update(((event.job_id, tag), True) for tag in spec.tags)
    batch.new_jobs[(event.job_id,)] = columns.job_row(event, spec, member, payload)
    for number in range(len(spec.notifications)):
        batch.notifications[event.job_id, number] = {"job_id": event.job_id, "number": number, "tries": 0}


def idle(batch: Batch, event: Event) -> None:
    """Notify the owner of a job whose run was marked as idle."""
    if event.fields.get("stage") != "0":
        batch.idle.add(event.job_id)


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
    batch.job((event.job_id,)).update(columns.spec_columns(decode_spec(payload), shown_request(payload)))
