"""A job on a made-up GPU, in real processes under a real shim, and a stand-in for torch."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

from factories import make_spec

from gpuqueue.model.device import DeviceKind
from gpuqueue.model.run import RunDevice
from gpuqueue.text.units import GIB
from workers.run.directory import Held, RunDir, ShimSpec
from workers.run.environment import environment
from workers.run.verdict import read_reports
from workers.shim.client import Shims

GPU = RunDevice(uuid="GPU-0", lease_bytes=6 * GIB, kind=DeviceKind.GPU, total_bytes=24 * GIB)

#: Reports what the real torch would report, and starts CUDA on request.
TORCH = """
__version__ = "2.9.1"
class OutOfMemoryError(RuntimeError): pass
from . import cuda
"""
CUDA = """
import os
_queue, _started_by, fractions = [], None, {}
def _lazy_call(call): _queue.append(call)
def init():
    global _started_by
    _started_by = os.getpid()
    for call in _queue: call()
def is_initialized(): return _started_by == os.getpid()
def device_count(): return 1
def set_per_process_memory_fraction(fraction, device): fractions[device] = fraction
def memory_stats(device): return {"num_ooms": 1, "num_alloc_retries": 2}
def max_memory_allocated(device): return 3 * 2**30
def max_memory_reserved(device): return 4 * 2**30
"""


class Ran:
    """A job on a GPU that ran to its end under a shim, with the environment that a worker gives it."""

    def __init__(self, place: Path, *argv: str, path: Path | None = None, **spec: Any) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": str(place), **spec.pop("env", {})}
        if path is not None:
            env["PYTHONPATH"] = str(path)
        wanted = make_spec(argv=argv, env=env, cwd=str(place), mem_bytes=6 * GIB, **spec)
        place.mkdir(exist_ok=True)
        self.directory = RunDir.create(place / "runs", Held(job_id=1, token="1.abc", devices=(GPU,)))
        lock = self.directory.try_lock()
        assert lock is not None
        self.env = environment(1, "1.abc", wanted, (GPU,), self.directory.path)
        self.directory.write_spec(
            ShimSpec(
                argv=wanted.argv,
                cwd=wanted.cwd,
                env=self.env,
                time_limit_s=60,
                kill_grace_s=1,
                start_before=time.monotonic() + 60,
                umask=0o022,
            )
        )
        self.directory.renew(time.monotonic() + 60)
        by = Shims()
        shim = by.start(self.directory.path, lock)
        os.close(lock)
        poll = select.poll()
        poll.register(shim.handle, select.POLLIN)
        assert poll.poll(90_000), "the job did not end"
        assert 0 == shim.code()
        os.close(shim.handle)
        shim.close()
        by.close()
        end = self.directory.exit()
        assert end is not None
        self.code = end.ending.exit_code
        self.log = self.directory.log.read_text()
        self.report = read_reports(self.directory.path)

    def reported(self) -> list[dict[str, Any]]:
        """Return the report of each process."""
        reports = self.directory.path / "reports"
        return [json.loads(line) for line in reports.read_text().splitlines()] if reports.exists() else []
