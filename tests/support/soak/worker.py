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

    def began_ns(sample: Any) -> int:
        """Return when *sample* began, or now if a new one is taken."""
        ago_s = 0.0 if sample is None else time.monotonic() - sample.began_s
        return time.time_ns() - round(ago_s * 1e9)

    def noted_offer(self: AdmissionCheck, sample: Any = None) -> Any:
        began.ns = began_ns(sample)
        return offer(self, sample)

    def noted_seek(self: Runs, *args: Any, nonce: str, **kwargs: Any) -> Any:
        found = seek(self, *args, nonce=nonce, **kwargs)
        if isinstance(found, Claim):
            os.write(file, f"claim {nonce} {began.ns}\n".encode())
        return found

    def noted_still_fits(self: AdmissionCheck, run: Any) -> Any:
        recent = self._monitor.recent(self.device)  # the check reuses this sample
        os.write(file, f"start {run.held.token} {began_ns(recent)}\n".encode())
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
