"""The values of a recorded job in CSV files, by the name of their column. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gpuqueue.model.run import Record, Run

#: Returns the value of a record, None if it is unknown.
Value = Callable[[Record], Any]


def _of_run(value: Callable[[Run], Any]) -> Value:
    """Return a function that applies *value* to the last run of a record; None for a job that never ran."""
    return lambda record: None if record.last_run is None else value(record.last_run)


def _wait_s(record: Record) -> float | None:
    """Return the wait before the first run in seconds by the store's clock, or None without a first run."""
    first = next((run for run in record.runs if run.attempt == 1), None)
    return None if first is None else max(0.0, (first.claimed_at - record.job.submitted_at).total_seconds())


def _used(record: Record) -> float | None:
    """Return the peak of the last run as a share of its allocated memory, or None if the peak is unknown."""
    run = record.last_run
    if run is None or run.peak_bytes is None:
        return None
    return run.peak_bytes / sum(device.lease_bytes for device in run.devices)


def _sources(run: Run | None) -> str:
    return " ".join(sorted({device.peak.source.value for device in run.devices})) if run else ""


def _utilisation(run: Run) -> float | None:
    """Return the largest own utilisation of the run on a device, None if none is known."""
    known = (device.activity.own_utilisation_mean for device in run.devices)
    return max((each for each in known if each is not None), default=None)


def _models(run: Run) -> str:
    """Return the model names of the devices, each once."""
    return ", ".join(dict.fromkeys(device.name for device in run.devices if device.name))


#: Column name -> value, in the order of ``gpuqueue history --csv``; docs/reference/json.md explains them. Add new ones
#: only at the end.
VALUES: Mapping[str, Value] = MappingProxyType(
    {
        "id": lambda record: record.job.id,
        "name": lambda record: record.job.spec.name,
        "user": lambda record: record.job.spec.account.name,
        "state": lambda record: record.job.state.value,
        "ending": _of_run(lambda run: run.ending.kind.value if run.ending else None),
        "exit_code": _of_run(lambda run: run.ending.exit_code if run.ending else None),
        "signal": _of_run(lambda run: run.ending.signal if run.ending else None),
        "host": lambda record: record.job.host,
        "devices": lambda record: " ".join(each.uuid for each in record.last_run.devices) if record.last_run else "",
        "submitted_at": lambda record: record.job.submitted_at,
        "started_at": lambda record: record.job.started_at,
        "ended_at": lambda record: record.job.ended_at,
        "duration_s": _of_run(lambda run: run.duration_s),
        "mem_bytes": lambda record: record.job.spec.mem_bytes,
        "gpus": lambda record: record.job.spec.gpus,
        "peak_bytes": _of_run(lambda run: run.peak_bytes),
        "peak_source": lambda record: _sources(record.last_run),
        "attempt": lambda record: record.job.attempt,
        "command": lambda record: record.job.spec.command,
        "wait_s": _wait_s,
        "used": _used,
        "model": _of_run(lambda run: _models(run) or None),
        "cwd": lambda record: record.job.spec.cwd,
        "because": lambda record: record.job.because,
        "array_id": lambda record: record.job.member.array_id if record.job.member else None,
        "array_index": lambda record: record.job.member.index if record.job.member else None,
        "time_limit_s": lambda record: record.job.spec.time_limit_s,
        "priority": lambda record: str(record.job.spec.priority),
        "tags": lambda record: " ".join(record.job.tags),
        "note": lambda record: record.job.note,
        "own_utilisation": _of_run(_utilisation),
    }
)
