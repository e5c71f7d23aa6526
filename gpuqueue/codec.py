"""The one door between values and bytes: specs, endings and records as JSON.

Every payload carries ``v``, the format's version. Payloads of older versions load for ever (the files
under ``tests/golden`` hold us to it), unknown keys are ignored, so that an older reader survives a newer
writer. A payload may also be damaged, or too new: whatever it holds, a reader here returns a value or raises
:class:`~gpuqueue.errors.Unreadable`, and nothing else. The text is pure ASCII: file names and arguments that are no
valid UTF-8 travel as escaped surrogates, as Python itself carries them, and come out unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpuqueue.array import Array, Axis, Indexes, Member
from gpuqueue.device import Activity, Device, DeviceKind, DeviceWish, Peak, PeakSource, Timeline
from gpuqueue.early_signal import EarlySignal
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.exec_limits import refuse_what_no_process_takes
from gpuqueue.fields import Fields, loaded
from gpuqueue.job import Account, Job, JobSpec, Level
from gpuqueue.later import later
from gpuqueue.placement import ANYWHERE, Placement, Preference
from gpuqueue.retries import NO_RETRIES, Retries, RetryOn
from gpuqueue.waits import NO_WAITS, Condition, Dependency, Waits
from gpuqueue.window import Window

if TYPE_CHECKING:
    from gpuqueue import run as runs
    from gpuqueue.run import Ended, Ending, Record, Run, RunDevice
else:
    runs = later("gpuqueue.run")

VERSION = 1
#: Largest spec taken, in bytes of JSON. It lives in the store's memory until the job has ended.
MAX_SPEC_BYTES = 1024 * 1024

Plain = dict[str, Any]


def _dump(plain: Plain) -> str:
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True)


@contextmanager
def _meaning(what: str) -> Iterator[None]:
    """Let values that no value of ours can have (an unknown word, a peak without a source) be one error.

    Raises:
        Unreadable: instead of ValueError and BadRequest.

    """
    try:
        yield
    except (ValueError, BadRequest) as error:
        raise Unreadable(f"{what} cannot be read: {error}") from error


def encode_spec(spec: JobSpec) -> str:
    """Return *spec* as text: the door to the queue for every submitter.

    Raises:
        BadRequest: it is larger than MAX_SPEC_BYTES, or no process could be given its command or environment.

    """
    refuse_what_no_process_takes(spec.argv, spec.env, spec.cwd)
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
            "placement": placement_to_plain(spec.placement) if spec.placement else None,
            "time_limit_s": spec.time_limit_s,
            "name": spec.name,
            "level": int(spec.level),
            "pool": spec.pool,
            "requeue": spec.requeue,
            "cap": spec.cap,
            "umask": spec.umask,
            "pty": {"columns": spec.pty.columns, "rows": spec.pty.rows} if spec.pty is not None else None,
            "script": spec.script,
            "interpreter": spec.interpreter,
            "array": _array_to_plain(spec.array),
            "snapshot": spec.snapshot,
            "signal": signal_to_plain(spec.signal),
            **({"waits": waits_to_plain(spec.waits)} if spec.waits != NO_WAITS else {}),
            **({"retries": retries_to_plain(spec.retries)} if spec.retries != NO_RETRIES else {}),
        }
    )
    if len(text) > MAX_SPEC_BYTES:
        env_bytes = len(_dump(dict(spec.env)))
        remedy = (
            "submit from a smaller environment (env -i), or put large values into a file"
            if env_bytes > MAX_SPEC_BYTES // 2
            else "put large inputs into a file"
        )
        raise BadRequest(
            f"the job's command and environment take {len(text)} bytes, at most {MAX_SPEC_BYTES} are taken: {remedy}"
        )
    return text


def decode_spec(text: object) -> JobSpec:
    """Return the spec that *text* holds; where it is a member's (:func:`of_member`), what that member is to run.

    Raises:
        Unreadable: it holds none that this version knows.

    """
    what = "a job's request"
    plain = loaded(text, what)
    account, env = plain.below("account", "a job's account"), plain.below("env", "a job's environment")
    with _meaning(what):
        spec = JobSpec(
            argv=plain.texts("argv"),
            cwd=plain.text("cwd"),
            env={name: env.text(name) for name in env},
            account=Account(name=account.text("name"), uid=account.whole("uid"), host=account.text("host")),
            mem_bytes=plain.whole("mem_bytes"),
            gpus=plain.whole("gpus", 1),
            device=DeviceWish(plain.text("device")) if plain.has("device") else None,
            placement=placement_from_plain(plain.plain("placement")),
            time_limit_s=plain.number_or_none("time_limit_s"),
            name=plain.text("name"),
            level=Level(plain.whole("level", Level.NORMAL.value)),
            pool=plain.text("pool", ""),
            requeue=plain.flag("requeue", default=True),
            cap=plain.flag("cap", default=True),
            umask=plain.whole("umask", 0o022),
            pty=_window(plain.below("pty", "a terminal")) if plain.has("pty") else None,
            script=plain.text_or_none("script"),
            interpreter=plain.text_or_none("interpreter"),
            snapshot=plain.text_or_none("snapshot"),
            waits=_waits_from_plain(plain.plain("waits", None)),
            retries=_retries_from_plain(plain.plain("retries", None)),
            array=_array_from_plain(plain.plain("array")),
            signal=signal_from_plain(plain.plain("signal")),
        )
        member = _member_from_plain(plain)
        return spec if member is None else spec.of_member(member)


def _array_to_plain(array: Array | None) -> Plain | None:
    """Return *array* as submit.lua reads it as well: the names in this order."""
    if array is None:
        return None
    return {"indexes": str(array.indexes), "at_once": array.at_once, "axes": [str(axis) for axis in array.axes]}


def _array_from_plain(plain: object) -> Array | None:
    if plain is None:
        return None
    fields = Fields(plain, "an array")
    return Array(
        indexes=Indexes.parse(fields.text("indexes")),
        at_once=fields.whole_or_none("at_once"),
        axes=tuple(map(Axis.parse, fields.texts("axes"))),
    )


def _member_from_plain(plain: Fields) -> Member | None:
    return Member(plain.whole("of"), plain.whole("index")) if plain.has("of") else None


def of_member(payload: str, member: Member) -> str:
    """Return the spec of a *member* from the *payload* of its array: that, and whose member it is."""
    owner = f',"of":{member.array_id},"index":{member.index}}}'
    return payload if payload.endswith(owner) else payload[:-1] + owner


def member_note(member: Member) -> str:
    """Return what stands for the spec of a *member* where its array's is kept anyway."""
    return _dump({"v": VERSION, "of": member.array_id, "index": member.index})


def whole_payload(payload: str, array: str | None) -> str:
    """Return a spec that can be read alone, from one that may be a :func:`member_note`, and its array's if known."""
    if array is None or len(payload) > 100:  # noqa: PLR2004 - a note has two numbers, a spec more than ten fields
        return payload
    try:
        plain = loaded(payload, "a job's request")
        member = None if plain.has("argv") else _member_from_plain(plain)
    except Unreadable:
        return payload
    return payload if member is None else of_member(array, member)


def member_of(payload: object) -> Member | None:
    """Return whose member the spec in *payload* says that it is, None where it says nothing or cannot be read."""
    try:
        return _member_from_plain(loaded(payload, "a job's request"))
    except Unreadable:
        return None


def waits_to_plain(waits: Waits) -> Plain:
    """Return *waits* as plain values."""
    return {
        "after": [{"job_id": each.job_id, "condition": each.condition.value} for each in waits.after],
        "begin_at": _iso(waits.begin_at),
        "hold": waits.hold,
        "dedupe": waits.dedupe,
    }


def _waits_from_plain(plain: object) -> Waits:
    if plain is None:
        return NO_WAITS
    fields = Fields(plain, "what a job waits for")
    after = (Fields(each, "a job to wait for") for each in fields.each("after"))
    begin_at = fields.text_or_none("begin_at")
    return Waits(
        after=tuple(Dependency(each.whole("job_id"), Condition(each.text("condition"))) for each in after),
        begin_at=datetime.fromisoformat(begin_at) if begin_at else None,
        hold=fields.flag("hold", default=False),
        dedupe=fields.text_or_none("dedupe"),
    )


def retries_to_plain(retries: Retries) -> Plain:
    """Return *retries* as plain values."""
    return {"times": retries.times, "on": [each.value for each in retries.on]}


def _retries_from_plain(plain: object) -> Retries:
    if plain is None:
        return NO_RETRIES
    fields = Fields(plain, "a job's retries")
    return Retries(times=fields.whole("times"), on=tuple(RetryOn(each) for each in fields.texts("on")))


def signal_to_plain(early: EarlySignal | None) -> Plain | None:
    """Return *early* as plain values, None where there is none."""
    return None if early is None else {"number": early.number, "before_s": early.before_s}


def signal_from_plain(plain: object) -> EarlySignal | None:
    """Return the early signal that *plain* describes."""
    if plain is None:
        return None
    what = "an early signal"
    fields = Fields(plain, what)
    with _meaning(what):
        return EarlySignal(number=fields.whole("number"), before_s=fields.number("before_s"))


def placement_to_plain(placement: Placement) -> Plain:
    """Return *placement* as plain values."""
    return {
        "exclusive": placement.exclusive,
        "whole": placement.whole,
        "models": list(placement.models),
        "devices": list(placement.devices),
        "preference": placement.preference.value if placement.preference else None,
    }


def placement_from_plain(plain: object) -> Placement:
    """Return the placement that *plain* describes; requests of before there were any have none."""
    if plain is None:
        return ANYWHERE
    what = "a placement"
    fields = Fields(plain, what)
    with _meaning(what):
        return Placement(
            exclusive=fields.flag("exclusive", default=False),
            whole=fields.flag("whole", default=False),
            models=fields.texts("models") if fields.has("models") else (),
            devices=fields.texts("devices") if fields.has("devices") else (),
            preference=Preference(fields.text("preference")) if fields.has("preference") else None,
        )


def _window(plain: Fields) -> Window:
    return Window(columns=plain.whole("columns", 80), rows=plain.whole("rows", 24))


#: The name and the command of a job whose request nobody can read.
UNREADABLE = "(unreadable)"


def stand_in(*, user: str, mem_bytes: int, **known: Any) -> JobSpec:
    """Return what is shown of a request that cannot be read: the job is there all the same, and must be seen.

    Raises:
        Unreadable: not even that makes sense.

    """
    account = Account(name=user, uid=known.pop("uid", 0), host=known.pop("host", ""))
    defaults = {"argv": (UNREADABLE,), "cwd": "/", "name": UNREADABLE}
    with _meaning("a job's request"):
        return JobSpec(**{**defaults, **known, "account": account, "mem_bytes": mem_bytes})


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


def device_from_plain(plain: object) -> Device:
    """Return the device that *plain* describes."""
    what = "a device"
    fields = Fields(plain, what)
    with _meaning(what):
        return Device(
            uuid=fields.text("uuid"),
            index=fields.whole("index"),
            name=fields.text("name"),
            kind=DeviceKind(fields.text("kind")),
            total_bytes=fields.whole("total_bytes"),
            pci_bus=fields.text_or_none("pci_bus"),
            mig_parent=fields.text_or_none("mig_parent"),
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


def peak_from_plain(plain: object) -> Peak:
    """Return the peak that *plain* describes."""
    what = "a peak"
    fields = Fields(plain, what)
    with _meaning(what):
        return Peak(
            bytes=fields.whole_or_none("bytes"),
            source=PeakSource(fields.text("source")),
            samples=fields.whole("samples"),
            na_samples=fields.whole("na_samples"),
            interval_s=fields.number_or_none("interval_s"),
            shared=fields.flag_or_none("shared"),
        )


def activity_to_plain(activity: Activity) -> Plain:
    """Return *activity* as plain values."""
    return {
        "first_memory_s": activity.first_memory_s,
        "utilisation_mean": activity.utilisation_mean,
        "utilisation_max": activity.utilisation_max,
        "temperature_max_c": activity.temperature_max_c,
    }


def activity_from_plain(plain: object) -> Activity:
    """Return the activity that *plain* describes."""
    fields = Fields(plain, "an activity")
    return Activity(
        first_memory_s=fields.number_or_none("first_memory_s"),
        utilisation_mean=fields.number_or_none("utilisation_mean"),
        utilisation_max=fields.number_or_none("utilisation_max"),
        temperature_max_c=fields.number_or_none("temperature_max_c"),
    )


def timeline_to_plain(timeline: Timeline | None) -> Plain | None:
    """Return *timeline* as plain values, None where there is none."""
    return None if timeline is None else {"step_s": timeline.step_s, "bytes": list(timeline.bytes)}


def timeline_from_plain(plain: object) -> Timeline | None:
    """Return the timeline that *plain* describes."""
    if plain is None:
        return None
    fields = Fields(plain, "a timeline")
    return Timeline(step_s=fields.number("step_s"), bytes=fields.wholes_or_none("bytes"))


def ending_to_plain(ending: Ending) -> Plain:
    """Return *ending* as plain values."""
    return {
        "kind": ending.kind.value,
        "exit_code": ending.exit_code,
        "signal": ending.signal,
        "detail": ending.detail,
    }


def ending_from_plain(plain: object) -> Ending:
    """Return the ending that *plain* describes."""
    what = "an ending"
    fields = Fields(plain, what)
    with _meaning(what):
        return runs.Ending(
            kind=runs.EndingKind(fields.text("kind")),
            exit_code=fields.whole_or_none("exit_code"),
            signal=fields.whole_or_none("signal"),
            detail=fields.text("detail", ""),
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


def run_device_from_plain(plain: object) -> RunDevice:
    """Return the run's device that *plain* describes."""
    what = "a run's device"
    fields = Fields(plain, what)
    with _meaning(what):
        return runs.RunDevice(
            uuid=fields.text("uuid"),
            lease_bytes=fields.whole("lease_bytes"),
            index=fields.whole_or_none("index"),
            name=fields.text_or_none("name"),
            kind=DeviceKind(fields.text("kind")) if fields.has("kind") else None,
            total_bytes=fields.whole_or_none("total_bytes"),
            peak=peak_from_plain(fields.plain("peak")),
            activity=activity_from_plain(fields.plain("activity", {})),
            timeline=timeline_from_plain(fields.plain("timeline")),
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


def decode_started(text: object) -> tuple[str, tuple[RunDevice, ...]]:
    """Return the log's path and the devices that :func:`encode_started` wrote.

    Raises:
        Unreadable: it wrote no such thing.

    """
    plain = loaded(text, "what a worker told of a start")
    return plain.text("log_path"), tuple(run_device_from_plain(each) for each in plain.each("devices"))


def decode_ended(text: object) -> Ended:
    """Return what :func:`encode_ended` wrote.

    Raises:
        Unreadable: it wrote no such thing.

    """
    plain = loaded(text, "what a worker told of an end")
    return runs.Ended(
        ending=ending_from_plain(plain.plain("ending")),
        duration_s=plain.number_or_none("duration_s"),
        devices=tuple(run_device_from_plain(each) for each in plain.each("devices")),
        peak_at_once_bytes=plain.whole_or_none("peak_at_once_bytes"),
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
        "placement": placement_to_plain(spec.placement),
        "time_limit_s": spec.time_limit_s,
        "signal": str(spec.signal) if spec.signal else None,
        "level": str(spec.level),
        "pool": spec.pool,
        "attempt": job.attempt,
        "losses": job.losses,
        "retries": job.retries,
        "max_retries": spec.retries.times,
        "retry_on": [each.value for each in spec.retries.on] if spec.retries.times else [],
        "requeues": job.requeues,
        "after": [str(each) for each in spec.waits.after],
        "awaits": [str(each) for each in job.awaits],
        "begins_at": _iso(job.begins_at),
        "dedupe": spec.waits.dedupe,
        "because": job.because,
        "submitted_at": _iso(job.submitted_at),
        "claimed_at": _iso(job.claimed_at),
        "started_at": _iso(job.started_at),
        "ended_at": _iso(job.ended_at),
        "host": job.host,
        "devices": list(job.devices),
        "array_id": job.member.array_id if job.member else None,
        "array_index": job.member.index if job.member else None,
        "array": array_to_plain(job),
    }


def array_to_plain(job: Job) -> Plain | None:
    """Return an array as the ``--json`` output shows it, None for any other job."""
    array, here = job.spec.array, job.tally
    if array is None:
        return None
    return {
        "indexes": str(array.indexes),
        "count": len(array),
        "at_once": array.at_once,
        "sweep": [str(axis) for axis in array.axes],
        "left": str(here.left) if here else None,
        "held": str(here.held) if here else None,
        "ended": dict(here.ended) if here else None,
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
        "start_kind": str(run.start_kind) if run.start_kind else None,
        "log_path": run.log_path,
        "devices": [run_device_to_plain(each) for each in run.devices],
    }


def record_to_plain(record: Record) -> Plain:
    """Return *record* as the ``--json`` output shows it: the job's keys, its ``runs`` and ``notes``."""
    notes = [{"at": _iso(note.at), "attempt": note.attempt, "text": note.text} for note in record.notes]
    return {**job_to_plain(record.job), "runs": [run_to_plain(run) for run in record.runs], "notes": notes}


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="milliseconds") if moment else None
