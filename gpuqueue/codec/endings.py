"""The reports of a worker about a run: its start, its devices, its ending."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.codec.devices import (
    activity_from_plain,
    activity_to_plain,
    peak_from_plain,
    peak_to_plain,
    timeline_from_plain,
    timeline_to_plain,
)
from gpuqueue.codec.text import VERSION, Plain, dump, meaning
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import DeviceKind
from gpuqueue.text.json_fields import Fields, loaded

if TYPE_CHECKING:
    from gpuqueue.model import run as runs
    from gpuqueue.model.mem_source import Shortage
    from gpuqueue.model.run import Ended, Ending, RunDevice
else:
    runs = later("gpuqueue.model.run")


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
    with meaning(what):
        return runs.Ending(
            kind=runs.EndingKind(fields.text("kind")),
            exit_code=fields.whole_or_none("exit_code"),
            signal=fields.whole_or_none("signal"),
            detail=fields.text("detail"),
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
    """Return the device of a run that *plain* describes."""
    what = "a run's device"
    fields = Fields(plain, what)
    with meaning(what):
        return runs.RunDevice(
            uuid=fields.text("uuid"),
            lease_bytes=fields.whole("lease_bytes"),
            index=fields.whole_or_none("index"),
            name=fields.text_or_none("name"),
            kind=DeviceKind(fields.text("kind")) if fields.has("kind") else None,
            total_bytes=fields.whole_or_none("total_bytes"),
            peak=peak_from_plain(fields.plain("peak")),
            activity=activity_from_plain(fields.plain("activity")),
            timeline=timeline_from_plain(fields.plain("timeline")),
        )


def encode_started(*, log_path: str, devices: tuple[RunDevice, ...]) -> str:
    """Return the report of the start of a run as text."""
    return dump({"v": VERSION, "log_path": log_path, "devices": [run_device_to_plain(each) for each in devices]})


def encode_ended(
    *,
    ending: Ending,
    duration_s: float | None,
    devices: tuple[RunDevice, ...],
    peak_at_once_bytes: int | None = None,
    shortage: Shortage | None = None,
) -> str:
    """Return the report of the end of a run as text. The store reads the *shortage*, the history does not."""
    return dump(
        {
            "v": VERSION,
            "ending": ending_to_plain(ending),
            "duration_s": duration_s,
            "devices": [run_device_to_plain(each) for each in devices],
            "peak_at_once_bytes": peak_at_once_bytes,
            **({} if shortage is None else {"shortage": _shortage_to_plain(shortage)}),
        }
    )


def _shortage_to_plain(shortage: Shortage) -> Plain:
    return {
        "peak_bytes": shortage.peak_bytes,
        "tried_bytes": shortage.tried_bytes,
        "blamed": shortage.blamed,
    }


def decode_started(text: object) -> tuple[str, tuple[RunDevice, ...]]:
    """Return the log's path and the devices that :func:`encode_started` wrote.

    Raises:
        Unreadable: *text* is no such report.

    """
    plain = loaded(text, "the report of a start")
    return plain.text("log_path"), tuple(run_device_from_plain(each) for each in plain.each("devices"))


def decode_ended(text: object) -> Ended:
    """Return the end of a run that :func:`encode_ended` wrote.

    Raises:
        Unreadable: *text* is no such report.

    """
    plain = loaded(text, "the report of an end")
    return runs.Ended(
        ending=ending_from_plain(plain.plain("ending")),
        duration_s=plain.number_or_none("duration_s"),
        devices=tuple(run_device_from_plain(each) for each in plain.each("devices")),
        peak_at_once_bytes=plain.whole_or_none("peak_at_once_bytes"),
    )
