"""The one door between values and bytes: specs, endings and records as JSON.

Every payload carries ``v``, the format's version. Payloads of older versions load for ever (the files
under ``tests/golden`` hold us to it), unknown keys are ignored, so that an older reader survives a newer
writer. The text is pure ASCII: file names and arguments that are no valid UTF-8 travel as escaped
surrogates, as Python itself carries them, and come out unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpuqueue.device import Activity, Device, DeviceKind, DeviceWish, Peak, PeakSource, Timeline
from gpuqueue.errors import BadRequest
from gpuqueue.job import Account, Job, JobSpec, Level
from gpuqueue.run import Ended, Ending, EndingKind, Record, Run, RunDevice

VERSION = 1
#: Largest spec taken, in bytes of JSON. It lives in the store's memory until the job has ended.
MAX_SPEC_BYTES = 1024 * 1024

Plain = dict[str, Any]


def _dump(plain: Plain) -> str:
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True)


def encode_spec(spec: JobSpec) -> str:
    """Return *spec* as text.

    Raises:
        BadRequest: it is larger than MAX_SPEC_BYTES.

    """
    text = _dump(
        {
            "v": VERSION,
            "argv": spec.argv,
            "cwd": spec.cwd,
            "env": dict(spec.env),
            "account": {"name": spec.account.name, "uid": spec.account.uid, "host": spec.account.host},
            "mem_bytes": spec.mem_bytes,
            "gpus": spec.gpus,
            "device": spec.device.value if spec.device else None,
            "time_limit_s": spec.time_limit_s,
            "name": spec.name,
            "level": int(spec.level),
            "pool": spec.pool,
            "requeue": spec.requeue,
            "cap": spec.cap,
            "umask": spec.umask,
            "script": spec.script,
            "interpreter": spec.interpreter,
            "snapshot": spec.snapshot,
        }
    )
    if len(text) > MAX_SPEC_BYTES:
        raise BadRequest(
            f"the job's command and environment take {len(text)} bytes, at most {MAX_SPEC_BYTES} are taken: "
            "put large inputs into a file"
        )
    return text


def decode_spec(text: str) -> JobSpec:
    """Return the spec that *text* holds."""
    plain = json.loads(text)
    account = plain["account"]
    return JobSpec(
        argv=tuple(plain["argv"]),
        cwd=plain["cwd"],
        env=plain["env"],
        account=Account(name=account["name"], uid=account["uid"], host=account["host"]),
        mem_bytes=plain["mem_bytes"],
        gpus=plain.get("gpus", 1),
        device=DeviceWish(plain["device"]) if plain.get("device") else None,
        time_limit_s=plain.get("time_limit_s"),
        name=plain["name"],
        level=Level(plain.get("level", Level.NORMAL)),
        pool=plain.get("pool", ""),
        requeue=plain.get("requeue", True),
        cap=plain.get("cap", True),
        umask=plain.get("umask", 0o022),
        script=plain.get("script"),
        interpreter=plain.get("interpreter"),
        snapshot=plain.get("snapshot"),
    )


def device_to_plain(device: Device) -> Plain:
    """Return *device* as plain values."""
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "kind": device.kind.value,
        "total_bytes": device.total_bytes,
        "pci_bus": device.pci_bus,
        "mig_parent": device.mig_parent,
    }


def device_from_plain(plain: Mapping[str, Any]) -> Device:
    """Return the device that *plain* describes."""
    return Device(
        uuid=plain["uuid"],
        index=plain["index"],
        name=plain["name"],
        kind=DeviceKind(plain["kind"]),
        total_bytes=plain["total_bytes"],
        pci_bus=plain.get("pci_bus"),
        mig_parent=plain.get("mig_parent"),
    )


def peak_to_plain(peak: Peak) -> Plain:
    """Return *peak* as plain values."""
    return {
        "bytes": peak.bytes,
        "source": peak.source.value,
        "samples": peak.samples,
        "na_samples": peak.na_samples,
        "interval_s": peak.interval_s,
        "shared": peak.shared,
    }


def peak_from_plain(plain: Mapping[str, Any]) -> Peak:
    """Return the peak that *plain* describes."""
    return Peak(
        bytes=plain["bytes"],
        source=PeakSource(plain["source"]),
        samples=plain["samples"],
        na_samples=plain["na_samples"],
        interval_s=plain.get("interval_s"),
        shared=plain.get("shared"),
    )


def activity_to_plain(activity: Activity) -> Plain:
    """Return *activity* as plain values."""
    return {
        "first_memory_s": activity.first_memory_s,
        "utilisation_mean": activity.utilisation_mean,
        "utilisation_max": activity.utilisation_max,
        "temperature_max_c": activity.temperature_max_c,
    }


def activity_from_plain(plain: Mapping[str, Any]) -> Activity:
    """Return the activity that *plain* describes."""
    return Activity(
        first_memory_s=plain.get("first_memory_s"),
        utilisation_mean=plain.get("utilisation_mean"),
        utilisation_max=plain.get("utilisation_max"),
        temperature_max_c=plain.get("temperature_max_c"),
    )


def timeline_to_plain(timeline: Timeline | None) -> Plain | None:
    """Return *timeline* as plain values, None where there is none."""
    return None if timeline is None else {"step_s": timeline.step_s, "bytes": list(timeline.bytes)}


def timeline_from_plain(plain: Mapping[str, Any] | None) -> Timeline | None:
    """Return the timeline that *plain* describes."""
    return None if plain is None else Timeline(step_s=plain["step_s"], bytes=tuple(plain["bytes"]))


def ending_to_plain(ending: Ending) -> Plain:
    """Return *ending* as plain values."""
    return {
        "kind": ending.kind.value,
        "exit_code": ending.exit_code,
        "signal": ending.signal,
        "detail": ending.detail,
    }


def ending_from_plain(plain: Mapping[str, Any]) -> Ending:
    """Return the ending that *plain* describes."""
    return Ending(
        kind=EndingKind(plain["kind"]),
        exit_code=plain.get("exit_code"),
        signal=plain.get("signal"),
        detail=plain.get("detail", ""),
    )


def run_device_to_plain(device: RunDevice) -> Plain:
    """Return *device* as plain values."""
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "kind": device.kind.value if device.kind else None,
        "total_bytes": device.total_bytes,
        "lease_bytes": device.lease_bytes,
        "peak": peak_to_plain(device.peak),
        "activity": activity_to_plain(device.activity),
        "timeline": timeline_to_plain(device.timeline),
    }


def run_device_from_plain(plain: Mapping[str, Any]) -> RunDevice:
    """Return the run's device that *plain* describes."""
    return RunDevice(
        uuid=plain["uuid"],
        lease_bytes=plain["lease_bytes"],
        index=plain.get("index"),
        name=plain.get("name"),
        kind=DeviceKind(plain["kind"]) if plain.get("kind") else None,
        total_bytes=plain.get("total_bytes"),
        peak=peak_from_plain(plain["peak"]),
        activity=activity_from_plain(plain.get("activity", {})),
        timeline=timeline_from_plain(plain.get("timeline")),
    )


def encode_started(*, log_path: str, devices: tuple[RunDevice, ...]) -> str:
    """Return as text what the worker knows when a run starts."""
    return _dump({"v": VERSION, "log_path": log_path, "devices": [run_device_to_plain(each) for each in devices]})


def encode_ended(
    *,
    ending: Ending,
    duration_s: float | None,
    devices: tuple[RunDevice, ...],
    peak_at_once_bytes: int | None = None,
) -> str:
    """Return as text what the worker knows when a run has ended."""
    return _dump(
        {
            "v": VERSION,
            "ending": ending_to_plain(ending),
            "duration_s": duration_s,
            "devices": [run_device_to_plain(each) for each in devices],
            "peak_at_once_bytes": peak_at_once_bytes,
        }
    )


def decode_started(text: str) -> tuple[str, tuple[RunDevice, ...]]:
    """Return the log's path and the devices that :func:`encode_started` wrote."""
    plain = json.loads(text)
    return plain["log_path"], tuple(run_device_from_plain(each) for each in plain["devices"])


def decode_ended(text: str) -> Ended:
    """Return what :func:`encode_ended` wrote."""
    plain = json.loads(text)
    return Ended(
        ending=ending_from_plain(plain["ending"]),
        duration_s=plain["duration_s"],
        devices=tuple(run_device_from_plain(each) for each in plain["devices"]),
        peak_at_once_bytes=plain.get("peak_at_once_bytes"),
    )


def job_to_plain(job: Job) -> Plain:
    """Return *job* as the ``--json`` output shows it; the environment stays out."""
    spec = job.spec
    return {
        "id": job.id,
        "name": spec.name,
        "user": spec.account.name,
        "submit_host": spec.account.host,
        "state": job.state.value,
        "reason": job.reason.value if job.reason else None,
        "command": list(spec.argv),
        "cwd": spec.cwd,
        "script": spec.script,
        "interpreter": spec.interpreter,
        "mem_bytes": spec.mem_bytes,
        "gpus": spec.gpus,
        "device": spec.device.value if spec.device else None,
        "time_limit_s": spec.time_limit_s,
        "level": str(spec.level),
        "pool": spec.pool,
        "attempt": job.attempt,
        "losses": job.losses,
        "submitted_at": _iso(job.submitted_at),
        "claimed_at": _iso(job.claimed_at),
        "started_at": _iso(job.started_at),
        "ended_at": _iso(job.ended_at),
        "host": job.host,
        "devices": list(job.devices),
    }


def run_to_plain(run: Run) -> Plain:
    """Return *run* as the ``--json`` output shows it."""
    return {
        "job_id": run.job_id,
        "attempt": run.attempt,
        "host": run.host,
        "worker": run.worker,
        "claimed_at": _iso(run.claimed_at),
        "started_at": _iso(run.started_at),
        "ended_at": _iso(run.ended_at),
        "duration_s": run.duration_s,
        "ending": ending_to_plain(run.ending) if run.ending else None,
        "peak_bytes": run.peak_bytes,
        "peak_at_once_bytes": run.peak_at_once_bytes,
        "log_path": run.log_path,
        "devices": [run_device_to_plain(each) for each in run.devices],
    }


def record_to_plain(record: Record) -> Plain:
    """Return *record* as the ``--json`` output shows it: the job's keys, its ``runs`` and ``notes``."""
    notes = [{"at": _iso(note.at), "attempt": note.attempt, "text": note.text} for note in record.notes]
    return {**job_to_plain(record.job), "runs": [run_to_plain(run) for run in record.runs], "notes": notes}


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="milliseconds") if moment else None
