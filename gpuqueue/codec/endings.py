"""The reports of a worker about a run as text: its start and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.codec.text import VERSION, dump
from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.lazy.imports import later
from gpuqueue.text.json_fields import loaded

if TYPE_CHECKING:
    from gpuqueue.model import run as runs
    from gpuqueue.model.mem_source import Shortage
    from gpuqueue.model.run import Ended, Ending, RunDevice
else:
    runs = later("gpuqueue.model.run")

_START, _END = "the report of a start", "the report of an end"


def encode_started(*, log_path: str, devices: tuple[RunDevice, ...]) -> str:
    """Return the report of the start of a run as text."""
    return dump({"v": VERSION, "log_path": log_path, "devices": to_stored(devices)})


def encode_ended(
    *,
    ending: Ending,
    duration_s: float | None,
    devices: tuple[RunDevice, ...],
    peak_at_once_bytes: int | None = None,
    shortage: Shortage | None = None,
) -> str:
    """Return the report of the end of a run as text. The store reads the *shortage*, the history does not."""
    ended = runs.Ended(ending=ending, duration_s=duration_s, devices=devices, peak_at_once_bytes=peak_at_once_bytes)
    more = {} if shortage is None else {"shortage": to_stored(shortage)}
    return dump({"v": VERSION, **to_stored(ended), **more})


def decode_started(text: object) -> tuple[str, tuple[RunDevice, ...]]:
    """Return the log's path and the devices that :func:`encode_started` wrote.

    Raises:
        Unreadable: *text* is no such report.

    """
    plain = loaded(text, _START)
    devices = from_plain(tuple[runs.RunDevice, ...], plain.each("devices"), f"the devices in {_START}")
    return plain.text("log_path"), devices


def decode_ended(text: object) -> Ended:
    """Return the end of a run that :func:`encode_ended` wrote.

    Raises:
        Unreadable: *text* is no such report.

    """
    ended: Ended = from_plain(runs.Ended, loaded(text, _END).whole_object(), _END)
    return ended
