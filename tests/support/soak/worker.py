"""A real worker, but one that lets a second serve the same device, and notes when it looks.

python soak/worker.py SLOTS LOOKS run --device 0 --plain

The product keeps the second worker of a device waiting (Worker._lock_device): the soak wants both to race. LOOKS is a
file to which every worker appends a line for the look that led to a claim, with the claim's nonce, and for each look
right before a start, with the run's token. So the oracle knows which moment to judge.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim
from workers.measure.admission import Gate
from workers.worker import Worker


def alone(_worker: Worker) -> int:
    """Be content without the device's lock."""
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def note_looks(path: str) -> None:
    """Let the gate and the claim tell when they looked."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    began = threading.local()
    look, seek, still_fits = Gate.look, JobQueue.seek, Gate.still_fits

    def noted_look(self: Gate) -> Any:
        began.ns = time.time_ns()
        return look(self)

    def noted_seek(self: JobQueue, *args: Any, nonce: str, **kwargs: Any) -> Any:
        found = seek(self, *args, nonce=nonce, **kwargs)
        if isinstance(found, Claim):
            os.write(file, f"claim {nonce} {began.ns}\n".encode())
        return found

    def noted_still_fits(self: Gate, run: Any) -> Any:
        ago_s = 0.0
        if self.newest(self._device) is not None and self._newest is not None:  # which is not taken again
            ago_s = time.monotonic() - self._newest[0]
        os.write(file, f"start {run.held.token} {time.time_ns() - round(ago_s * 1e9)}\n".encode())
        return still_fits(self, run)

    patched: Any = Gate
    patched.look, patched.still_fits = noted_look, noted_still_fits
    patched = JobQueue
    patched.seek = noted_seek


if __name__ == "__main__":
    os.environ["GPUQUEUE_SLOTS"], looks, *sys.argv[1:] = sys.argv[1:]
    patched: Any = Worker
    patched._lock_device = alone
    note_looks(looks)
    from workers.cli import main

    main()
