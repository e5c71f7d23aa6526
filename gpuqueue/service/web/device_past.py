"""The last hours of each device: what the heartbeats of its worker have said, in equal steps.

A thread of the service reads the devices from the store, so the workers send nothing more for it, and hosts that have
joined are there too. It keeps a few numbers for each step in memory, and writes them into a small file now and then, so
that a service that starts again goes on. Steps in which no service ran, or the worker was silent, are unknown.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from datetime import datetime, timezone

from gpuqueue.client.connection import Connection
from gpuqueue.errors import GpuQueueError, Unreadable
from gpuqueue.model.page import DevicePast, DevicesPast
from gpuqueue.queue.lease import SILENT_HEARTBEATS, DeviceStatus
from gpuqueue.settings.settings import Settings
from gpuqueue.system.safe_open import read_small
from gpuqueue.text.json_fields import Fields, loaded

log = logging.getLogger(__name__)

#: The length of a step in seconds, and how many steps are kept: eight hours.
STEP_S, STEPS = 180, 160
#: How often the devices are read, and how often the file is written, in seconds.
READ_S, KEEP_S = 15.0, 600.0
#: Most devices. Those that were seen longest ago are forgotten first.
MOST_DEVICES = 1000
#: The file in the state directory, and its largest size in bytes.
NAME, MAX_BYTES = "device-past", 16 * 1024 * 1024

#: One step: its number since 1970, the most used memory as a share, the sum of the utilisation, and of how many reads.
_Step = tuple[int, float | None, float, int]


class PastOfDevices:
    """The steps of all devices. Threads may share it."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._path = settings.state_dir / NAME
        self._silent_s = SILENT_HEARTBEATS * settings.heartbeat_s
        self._lock = threading.Lock()
        self._steps: OrderedDict[str, list[_Step]] = OrderedDict()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read the devices, in a thread, from where an earlier service was."""
        self.restore()
        self._thread = threading.Thread(target=self._loop, name="device-past", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and keep the steps in the file."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self.keep()

    def _loop(self) -> None:
        kept_s = time.monotonic()
        with closing(Connection(self._settings)) as connection:
            while not self._over.is_set():
                try:
                    self.note(connection.queue.devices.all())
                except GpuQueueError as error:  # the store is away: these steps stay unknown
                    log.debug("the devices cannot be read: %s", error)
                if time.monotonic() - kept_s >= KEEP_S:
                    self.keep()
                    kept_s = time.monotonic()
                self._over.wait(READ_S)

    def note(self, devices: Iterable[DeviceStatus]) -> None:
        """Note how *devices* are now. Those whose worker is silent are left out."""
        number = int(self._clock() // STEP_S)
        with self._lock:
            for status in devices:
                if status.seen_s_ago <= self._silent_s:
                    self._note(status, number)
            while len(self._steps) > MOST_DEVICES:
                self._steps.popitem(last=False)

    def _note(self, status: DeviceStatus, number: int) -> None:
        steps = self._steps.setdefault(status.device.uuid, [])
        self._steps.move_to_end(status.device.uuid)
        used, load = _used_share(status), status.utilisation
        _, most, sum_of, count = steps.pop() if steps and steps[-1][0] == number else (number, None, 0.0, 0)
        most = used if most is None else most if used is None else max(most, used)
        steps.append((number, most, sum_of + (load or 0.0), count + (load is not None)))
        del steps[:-STEPS]

    def past(self) -> DevicesPast:
        """Return the steps of all devices up to now. The newest one goes on."""
        now_s = self._clock()
        last = int(now_s // STEP_S)
        with self._lock:
            devices = {
                uuid: _past_of(steps, last) for uuid, steps in self._steps.items() if steps[-1][0] > last - STEPS
            }
        at = datetime.fromtimestamp((last + 1) * STEP_S, timezone.utc)
        return DevicesPast(at=at, step_s=STEP_S, devices=devices)

    def keep(self) -> None:
        """Write the steps into the file, as one whole."""
        with self._lock:
            text = json.dumps({"step_s": STEP_S, "devices": self._steps}, separators=(",", ":"))
        new = self._path.with_name(f".{NAME}.{os.getpid()}")
        try:
            new.write_text(text, encoding="ascii")
            new.replace(self._path)
        except OSError as error:  # a full disk: a later service has a gap
            log.warning("the past of the devices cannot be kept in %s: %s", self._path, error.strerror)
            with suppress(OSError):
                new.unlink(missing_ok=True)

    def restore(self) -> None:
        """Read the steps of an earlier service from the file. A file that is damaged, or has other steps, is none."""
        try:
            fields = loaded(read_small(self._path, MAX_BYTES), "the past of the devices")
            if fields.whole("step_s") != STEP_S:
                return
            devices = fields.below("devices", "the past of the devices")
            found = {uuid: [_step(devices, each) for each in devices.each(uuid)][-STEPS:] for uuid in devices}
        except (OSError, Unreadable):  # none yet
            return
        with self._lock:
            self._steps.update({uuid: steps for uuid, steps in found.items() if steps})


def _used_share(status: DeviceStatus) -> float | None:
    """Return the used memory as a share: that of the runs and of external processes; None if that is unknown."""
    if status.external_bytes is None or not status.device.total_bytes:
        return None
    used_bytes = status.external_bytes + sum(each.observed_bytes for each in status.holdings)
    return round(min(1.0, used_bytes / status.device.total_bytes), 3)


def _past_of(steps: Sequence[_Step], last: int) -> DevicePast:
    known = {number: (most, round(sum_of / count, 3) if count else None) for number, most, sum_of, count in steps}
    found = [known.get(number, (None, None)) for number in range(last - STEPS + 1, last + 1)]
    return DevicePast(used=tuple(used for used, _ in found), utilisation=tuple(load for _, load in found))


def _step(fields: Fields, plain: object) -> _Step:
    match plain:
        case [int(number), float() | None as most, float(sum_of), int(count)] if count >= 0:
            return number, most, sum_of, count
    raise fields.wrong("devices", "lists of steps")
