"""Reads and combines the reports that the processes of a run wrote about torch (see :mod:`workers.inside`)."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.system.safe_open import read_small
from gpuqueue.text.json_fields import Fields, loaded
from workers.shim.acl import REPORTS

#: A figure that is larger than any device's memory. The job writes the files, so they may hold anything.
_ABSURD = 2**60
#: Most reports that are read per run, and most bytes of one report.
_MAX_REPORTS = 4096
_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class InsideReport:
    """The figures of torch's allocators in one process of a run, or in all of them.

    The keys are device UUIDs, or the device's position in the run if a process did not know the UUID. The bytes of a
    run are those of the process with the most. They are exact for one process, and a lower bound for several, because
    the peaks of the processes may have occurred at the same time.
    """

    #: Whether a process died of an uncaught OutOfMemoryError.
    out_of_memory: bool = False
    reserved_on: Mapping[str | int, int] = field(default_factory=dict)
    #: The number of out-of-memory errors on each device.
    ooms_on: Mapping[str | int, int] = field(default_factory=dict)
    #: The message of the OutOfMemoryError that a process died of, empty if none is known.
    message: str = ""

    def reserved(self, uuid: str, position: int) -> int | None:
        """Return the bytes reserved on the run's device *uuid* at *position*, or None if torch did not use it."""
        found = [self.reserved_on[key] for key in (uuid, position) if key in self.reserved_on]
        return sum(found) if found else None

    def ran_out_on(self, uuids: Sequence[str]) -> list[str]:
        """Return those of the run's devices *uuids*, in order, that ran out of memory; empty if none is known."""
        places = enumerate(uuids)
        return [uuid for position, uuid in places if any(self.ooms_on.get(key) for key in (uuid, position))]


def read_reports(run_dir: Path) -> InsideReport | None:
    """Return the combined report of the run's processes, or None if no process has written a valid report."""
    texts = islice(_texts(run_dir), _MAX_REPORTS)
    reported = [report for text in texts if (report := _read(text)) is not None]
    if not reported:
        return None
    places = {place for each in reported for place in each.reserved_on}
    return InsideReport(
        out_of_memory=any(each.out_of_memory for each in reported),
        reserved_on={place: max(each.reserved_on.get(place, 0) for each in reported) for place in places},
        ooms_on={place: sum(each.ooms_on.get(place, 0) for each in reported) for place in places},
        message=next((each.message for each in reported if each.message), ""),
    )


def _texts(run_dir: Path) -> Iterator[bytes]:
    """Yield each report: a line of ``reports``, or a file in ``inside`` of a run that an earlier version started."""
    with contextlib.suppress(OSError, Unreadable):
        yield from read_small(run_dir / REPORTS).splitlines()
    with contextlib.suppress(OSError), os.scandir(run_dir / "inside") as entries:
        for entry in entries:
            with contextlib.suppress(OSError, Unreadable):
                yield read_small(entry.path, _MAX_BYTES)


def _read(text: bytes) -> InsideReport | None:
    """Return the report of one process, or None if *text* is not a valid report. The job writes it."""
    try:
        if len(text) > _MAX_BYTES:
            return None
        fields = loaded(text, "a report of torch")
        reserved: Counter[str | int] = Counter()
        ooms: Counter[str | int] = Counter()
        for plain in fields.each("devices"):
            device = Fields(plain, "a device in a report of torch")
            place = device.text_or_none("uuid") or device.whole("index")
            reserved[place] += device.whole("reserved_bytes")
            ooms[place] += device.whole("ooms")
    except Unreadable:
        return None
    if max([*reserved.values(), *ooms.values()], default=0) >= _ABSURD:
        return None
    message = fields.plain("message")
    return InsideReport(
        out_of_memory=fields.plain("out_of_memory") is True,
        reserved_on=reserved,
        ooms_on=ooms,
        message=message.encode(errors="replace").decode() if isinstance(message, str) else "",
    )
