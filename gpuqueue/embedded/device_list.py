"""Lists the devices of this machine in a process of its own.

A call of a failing driver may never return, and may keep its process from ending even after SIGKILL. So a listing has a
time limit, and nobody waits for the end of its process.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from subprocess import DEVNULL, Popen

from gpuqueue.codec.wire import from_plain
from gpuqueue.embedded.machine import as_error
from gpuqueue.errors import GpuQueueError
from gpuqueue.model.device import Device
from gpuqueue.system.process import end, installed

#: Time limit of a listing, in seconds. The driver and each card have far lower limits.
LIST_S = 60.0
POLL_S = 0.02
#: How long a process that has written its list may take to end, in seconds.
END_S = 1.0
#: Most bytes of a list.
MAX_BYTES = 2**20


class DeviceList:
    """The devices that *spec* selects on this machine, as soon as its process has listed them.

    If they are *checked*, there are none where MPS is on and does not run. Workers wait for it by themselves.
    """

    def __init__(self, spec: str, *, checked: bool = True) -> None:
        self._until_s = time.monotonic() + LIST_S
        # Files, because a pipe would be read until all threads of the process have ended.
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - open until the end
        words = [
            installed("gpuqueue-worker"),
            "devices",
            "--devices",
            spec,
            "--json",
            *([] if checked else ["--unchecked"]),
        ]
        self._process = Popen(words, stdin=DEVNULL, stdout=self._out, stderr=self._err)

    def poll(self) -> tuple[Device, ...] | None:
        """Return the devices, or None if they are not listed yet.

        Raises:
            GpuQueueError: there are none, or they could not be listed in time.
            BadRequest: the spec is malformed.

        """
        code = self._process.poll()
        text = os.pread(self._out.fileno(), MAX_BYTES, 0)
        is_listed = text.endswith(b"\n")
        if not is_listed and code is None and time.monotonic() < self._until_s:
            return None
        lines = os.pread(self._err.fileno(), MAX_BYTES, 0).decode(errors="replace").strip().splitlines()
        self._out.close()
        self._err.close()
        end(self._process, END_S)
        if is_listed:
            devices: tuple[Device, ...] = from_plain(tuple[Device, ...], json.loads(text), "the list of devices")
            return devices
        if code is None:
            raise GpuQueueError(f"the devices could not be listed within {LIST_S:g} s: the driver hangs")
        raise as_error(code, lines)

    def wait(self) -> tuple[Device, ...]:
        """Wait for the devices. Raises the errors of :meth:`poll`."""
        while (devices := self.poll()) is None:
            time.sleep(POLL_S)
        return devices
