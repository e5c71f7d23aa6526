"""A real worker that lets a second one serve the same device, and logs when it reads the device.

python soak/worker.py SLOTS SAMPLES run --device 0 --plain

The product makes the second worker of a device wait (Takeover.lock), and the soak needs both at once. SAMPLES is a
file to which every worker appends a line for the reading that led to a claim, with the claim's nonce, and for each
reading right before a start, with the run's token. So the judge knows the moment of each reading.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from gpuqueue.queue.lease import Claim
from gpuqueue.queue.runs import Runs
from workers.measure.admission import AdmissionCheck
from workers.takeover import Takeover


def alone(_takeover: Takeover) -> int:
    """Replace the lock of the device by one that is always free."""
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def note_samples(path: str) -> None:
    """Make the admission check and the claim log when they read the device."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    began = threading.local()
    offer, seek, still_fits = AdmissionCheck.offer, Runs.seek, AdmissionCheck.still_fits

    def noted_offer(self: AdmissionCheck) -> Any:
        began.ns = time.time_ns()
        return offer(self)

    def noted_seek(self: Runs, *args: Any, nonce: str, **kwargs: Any) -> Any:
        found = seek(self, *args, nonce=nonce, **kwargs)
        if isinstance(found, Claim):
            os.write(file, f"claim {nonce} {began.ns}\n".encode())
        return found

    def noted_still_fits(self: AdmissionCheck, run: Any) -> Any:
        ago_s = 0.0
        sample = self._monitor.recent(self.device)
        if sample is not None:  # the check reuses this sample
            ago_s = time.monotonic() - sample.began_s
        os.write(file, f"start {run.held.token} {time.time_ns() - round(ago_s * 1e9)}\n".encode())
        return still_fits(self, run)

    patched: Any = AdmissionCheck
    patched.offer, patched.still_fits = noted_offer, noted_still_fits
    patched = Runs
    patched.seek = noted_seek


if __name__ == "__main__":
    os.environ["GPUQUEUE_SLOTS"], samples, *sys.argv[1:] = sys.argv[1:]
    patched: Any = Takeover
    patched.lock = alone
    note_samples(samples)
    from workers.cli import main

    main()
