"""Converts events and values to the columns of each table. Pure. ``records.py`` does the reverse."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gpuqueue.codec.request import encode_notes, member_note
from gpuqueue.codec.wire import dump, to_stored
from gpuqueue.learning.signature import program_of
from gpuqueue.model.device import FIGURES, Activity, Peak
from gpuqueue.model.event import Act
from gpuqueue.model.run import StartKind

if TYPE_CHECKING:
    from gpuqueue.model.array import Member
    from gpuqueue.model.device import Timeline
    from gpuqueue.model.event import Event
    from gpuqueue.model.job_spec import JobSpec
    from gpuqueue.model.job_values import Metric, Reported
    from gpuqueue.model.run import Ended, Ending, RunDevice

Row = dict[str, Any]

#: Returns the figures of an activity: one call for all, because each event of a run needs them.
_FIGURES_OF = attrgetter(*FIGURES)

#: Columns of a job that describe its current or last run.
OF_LAST_RUN = ("ending", "exit_code", "duration_s", "peak_bytes")


def event_row(event: Event, *, epoch: str, detail: str | None) -> Row:
    """Return the row of *event* in ``job_events``."""
    return {
        "epoch": epoch,
        "event_id": event.id,
        "job_id": event.job_id,
        "attempt": event.attempt,
        "losses": event.losses,
        "act": event.act.value,
        "state": event.state.value,
        "at": event.at,
        "reason": event.reason.value if event.reason else None,
        "detail": detail,
    }


def job_row(event: Event, spec: JobSpec, member: Member | None, payload: str) -> Row:
    """Return the row of the job that *event* adds, without the columns that every event sets.

    *payload* is the text of its request, without the environment.
    """
    return {
        "id": event.job_id,
        **spec_columns(spec, payload),
        "retries": 0,
        "requeues": 0,
        "mem_retries": 0,
        "begins_at": None,
        "because": None,
        "submitted_at": event.at,
        **dict.fromkeys(("claimed_at", "started_at", "host", *OF_LAST_RUN)),
        "spec": member_note(member) if member and event.act is Act.CLAIM else payload,
        "front": None,
        "note": None,
        "program": program_of(spec.argv, spec.script, spec.cwd),
        "array_id": member.array_id if member else None,
        "array_index": member.index if member else None,
        "array_left": None if spec.array is None else "" if spec.waits.hold else str(spec.array.indexes),
        "array_held": None if spec.array is None else str(spec.array.indexes) if spec.waits.hold else "",
    }


def spec_columns(spec: JobSpec, payload: str) -> Row:
    """Return the columns of a job that come from its request; *payload* is its text, without the environment.

    An edit replaces these columns.
    """
    return {
        "name": spec.name,
        "command": spec.command,
        "script": spec.script,
        "interpreter": spec.interpreter,
        "cwd": spec.cwd,
        "mem_bytes": spec.mem_bytes,
        "gpus": spec.gpus,
        "time_limit_s": spec.time_limit_s,
        "pool": spec.pool,
        "user_name": spec.account.name,
        "user_uid": spec.account.uid,
        "submit_host": spec.account.host,
        "priority": int(spec.priority),
        "spec": payload,
    }


def last_run_columns(ended: Ended) -> Row:
    """Return the columns of a job that lists show of its last run.

    The peak is None unless the peak of each device is known.
    """
    peaks = [device.peak.bytes for device in ended.devices]
    known = [peak for peak in peaks if peak is not None]
    return {
        "ending": ended.ending.kind.value,
        "exit_code": ended.ending.exit_code,
        "duration_s": ended.duration_s,
        "peak_bytes": sum(known) if known and len(known) == len(peaks) else None,
    }


def run_row(event: Event) -> Row:
    """Return the row of the run that the claim *event* begins."""
    return {
        "job_id": event.job_id,
        "attempt": event.attempt,
        "token": event.fields["token"],
        "host": event.fields["host"],
        "worker": event.fields["worker"],
        "claimed_at": event.at,
        **dict.fromkeys(
            ("started_at", "ended_at", "duration_s", "ending", "exit_code", "signal", "detail", "log_path")
        ),
        "peak_at_once_bytes": None,
        **dict.fromkeys(("notes", "marks", "params", "result")),
        "start_kind": StartKind.known(event.fields.get("start")),
    }


def ending_columns(ending: Ending) -> Row:
    """Return the columns of a run that describe its ending."""
    return {
        "ending": ending.kind.value,
        "exit_code": ending.exit_code,
        "signal": ending.signal,
        "detail": ending.detail,
    }


def device_row(event: Event, position: int, uuid: str, lease_bytes: int) -> Row:
    """Return the row of one device of the run that the claim *event* begins, without measurements."""
    return {
        "job_id": event.job_id,
        "attempt": event.attempt,
        "device_uuid": uuid,
        "device_index": position,
        **dict.fromkeys(("host_index", "name", "kind", "total_bytes")),
        "lease_bytes": lease_bytes,
        **_NOTHING_SEEN,
    }


def device_columns(device: RunDevice) -> Row:
    """Return the columns of a run's device that describe the device itself."""
    return {
        "host_index": device.index,
        "name": device.name,
        "kind": device.kind.value if device.kind else None,
        "total_bytes": device.total_bytes,
    }


def seen_columns(peak: Peak, activity: Activity) -> Row:
    """Return the columns of a run's device that hold measurements."""
    return {
        "peak_bytes": peak.bytes,
        "peak_source": peak.source.value,
        "samples": peak.samples,
        "na_samples": peak.na_samples,
        "interval_s": peak.interval_s,
        "shared": peak.shared,
        **dict(zip(FIGURES, _FIGURES_OF(activity), strict=True)),
    }


_NOTHING_SEEN = seen_columns(Peak.unknown(), Activity())


def timeline_row(event: Event, uuid: str, timeline: Timeline) -> Row:
    """Return the row with the memory timeline of one device for the run that *event* ends."""
    return {
        "job_id": event.job_id,
        "attempt": event.attempt,
        "device_uuid": uuid,
        "step_s": timeline.step_s,
        "bytes": json.dumps(timeline.bytes, separators=(",", ":")),
    }


def ended_columns(event: Event, ended: Ended) -> Row:
    """Return the columns of the run that *event* ends."""
    values = ended.values
    return {
        "ended_at": event.at,
        "duration_s": ended.duration_s,
        "peak_at_once_bytes": ended.peak_at_once_bytes,
        "notes": encode_notes(ended.notes),
        "params": dump(dict(values.params)) if values is not None and values.params else None,
        "result": dump(dict(values.result)) if values is not None and values.result is not None else None,
        **ending_columns(ended.ending),
    }


def metric_row(event: Event, metric: Metric) -> Row:
    """Return the row with the last, least and largest value of a metric for the run that *event* ends."""
    detail = to_stored(metric)
    return {
        **_of_metric(event, metric),
        "last_value": _finite(metric.last),
        "min_value": _finite(metric.min),
        "max_value": _finite(metric.max),
        "detail": dump({name: value for name, value in detail.items() if name not in {"name", "curve"}}),
    }


def curve_row(event: Event, metric: Metric) -> Row:
    """Return the row with the values of a metric over time for the run that *event* ends."""
    return {**_of_metric(event, metric), "points": json.dumps(metric.curve, separators=(",", ":"))}


def _of_metric(event: Event, metric: Metric) -> Row:
    return {"job_id": event.job_id, "attempt": event.attempt, "name": metric.name}


def _finite(reported: Reported | None) -> float | None:
    """Return a value as a number of SQL. Not every database stores NaN and infinity, or sorts them alike."""
    return None if reported is None or isinstance(reported.value, str) else reported.value
