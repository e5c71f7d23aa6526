"""One sample of a device: its memory, divided among this host's runs and external processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.queue.lease import ExternalProcess
from workers.measure.external_processes import external_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOnDevice:
    """A run of this host, of any worker, on the sampled device."""

    job_id: int
    token: str
    #: The allocated bytes; 0 after the run has ended.
    lease_bytes: int
    #: Whether the run has a shim, and whether the shim or another process of the run is alive.
    started: bool
    alive: bool
    #: The run's processes on the device, and the bytes that they use. None if the driver does not report the bytes.
    pids: frozenset[int] = frozenset()
    used_bytes: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One sample. ``began_s`` is on the host's monotonic clock; ``counted`` are the bytes of each external process."""

    device: Device
    began_s: float
    reading: Reading
    runs: tuple[RunOnDevice, ...]
    counted: Mapping[int, int]
    external_processes: tuple[ExternalProcess, ...]

    def measured(self, token: str) -> RunOnDevice | None:
        """Return the run with this token, or None if it is not on the device or has not started.

        Without a process, host memory is unknown, not 0. A run may really use 0 bytes of a GPU.
        """
        run = next((run for run in self.runs if run.token == token), None)
        if run is None or not run.started or (self.device.kind is not DeviceKind.GPU and not run.pids):
            return None
        return run

    @property
    def observed(self) -> dict[int, int]:
        """Return the bytes that each run uses, by job id. A run whose use is unknown is left out."""
        return {run.job_id: run.used_bytes for run in self.runs if run.pids and run.used_bytes is not None}

    @property
    def external_bytes(self) -> int:
        """Return the bytes that anything but this host's runs uses now or used recently."""
        return self._external_bytes(self.counted)

    @property
    def committed_bytes(self) -> int:
        """Return the bytes that are in use by external processes or allocated to runs.

        Each run counts with its lease or its use, whichever is larger. If the sum exceeds the device's total, some run
        cannot get the memory that it was allocated.
        """
        ours, processes = self._ours, self.reading.processes
        now = {pid: held for pid, held in processes.items() if pid not in ours and held is not None}
        return self._external_bytes(now) + sum(max(run.lease_bytes, run.used_bytes or 0) for run in self.runs)

    @property
    def missing_bytes(self) -> int:
        """Return by how many bytes the device is over-committed; 0 or less if everything fits."""
        return self.committed_bytes - self.reading.total_bytes

    @property
    def _ours(self) -> frozenset[int]:
        return frozenset[int]().union(*(run.pids for run in self.runs))

    def _external_bytes(self, external_processes: Mapping[int, int]) -> int:
        if self.device.kind is DeviceKind.CPU:  # its reading lists no processes; those of runs are measured one by one
            return max(0, self.reading.used_bytes - sum(run.used_bytes or 0 for run in self.runs))
        return external_bytes(
            used=self.reading.used_bytes,
            processes=self.reading.processes,
            ours=self._ours,
            external_processes=external_processes,
            leased=sum(run.lease_bytes for run in self.runs if run.used_bytes is None),
        )
