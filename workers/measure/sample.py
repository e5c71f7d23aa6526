"""One sample of a device: its memory, divided among this host's runs and external processes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.queue.lease import ExternalProcess


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
    #: Whether the run was given the device. Else it uses it all the same, and its memory here is external.
    was_given: bool = True
    #: The name of a member of an array; None for another job.
    member: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One sample. ``began_s`` is on the host's monotonic clock; ``counted`` are the bytes of each external process."""

    device: Device
    began_s: float
    reading: Reading
    runs: tuple[RunOnDevice, ...]
    counted: Mapping[int, int]
    external_processes: tuple[ExternalProcess, ...]
    #: Whether a run that had processes in it has ended since.
    is_outdated: bool = False

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
        return {run.job_id: run.used_bytes for run in self._given if run.pids and run.used_bytes is not None}

    @property
    def external_bytes(self) -> int:
        """Return the bytes that anything but the runs on this device uses now or used recently."""
        return self._external_bytes(self.counted)

    @property
    def committed_bytes(self) -> int:
        """Return the bytes that are in use by external processes or allocated to runs.

        Each run counts with its lease or its use, whichever is larger. If the sum exceeds the device's total, some run
        cannot get the memory that it was allocated.
        """
        ours, processes = self._ours, self.reading.processes
        now = {pid: held for pid, held in processes.items() if pid not in ours and held is not None}
        return self._external_bytes(now) + sum(max(run.lease_bytes, run.used_bytes or 0) for run in self._given)

    @property
    def missing_bytes(self) -> int:
        """Return by how many bytes the device is over-committed; 0 or less if everything fits."""
        return self.committed_bytes - self.reading.total_bytes

    @property
    def _given(self) -> Sequence[RunOnDevice]:
        return [run for run in self.runs if run.was_given]

    @property
    def _ours(self) -> frozenset[int]:
        return frozenset[int]().union(*(run.pids for run in self._given))

    def _external_bytes(self, external_processes: Mapping[int, int]) -> int:
        if self.device.kind is DeviceKind.CPU:  # its reading lists no processes; those of runs are measured one by one
            return max(0, self.reading.used_bytes - sum(run.used_bytes or 0 for run in self.runs))
        return external_bytes(
            used=self.reading.used_bytes,
            processes=self.reading.processes,
            ours=self._ours,
            external_processes=external_processes,
            leased=sum(run.lease_bytes for run in self._given if run.used_bytes is None),
        )


class ExternalProcesses:
    """Counts the memory of each external process on one device, for as long as the process lives.

    A notebook that frees its memory between two cells soon needs it again, so a job should not take it at once. Freed
    memory therefore keeps counting and halves every *half_life_s* seconds. With None, freed memory does not count.
    """

    def __init__(self, half_life_s: float | None) -> None:
        self._half_life_s = half_life_s
        #: The bytes that count for each process.
        self._counted: dict[int, float] = {}
        self._at_s = 0.0

    def note(self, processes: Mapping[int, int | None], ours: Collection[int], now_s: float) -> dict[int, int]:
        """Record a sample of all *processes*, and return the bytes that count for each external process.

        The result has no entry for a process whose memory the driver does not report. Its memory is part of the
        device's used bytes.
        """
        left = 0.0 if self._half_life_s is None else 0.5 ** ((now_s - self._at_s) / self._half_life_s)
        self._at_s = now_s
        self._counted = {
            pid: used + left * max(0.0, self._counted.get(pid, 0.0) - used)
            for pid, used in processes.items()
            if pid not in ours and used is not None
        }
        return {pid: int(counted) for pid, counted in self._counted.items()}


def external_bytes(
    *,
    used: int,
    processes: Mapping[int, int | None],
    ours: Collection[int],
    external_processes: Mapping[int, int],
    leased: int,
) -> int:
    """Return the bytes of a device that count for anything but this host's runs.

    Args:
        used: Bytes that are not free, as the device reports them.
        processes: Bytes used by each process on the device; None where the driver does not report them.
        ours: The pids of the runs of this host, of all its workers.
        external_processes: The bytes that count for each external process (:meth:`ExternalProcesses.note`).
        leased: The sum of the leases of the runs whose memory the driver does not report.

    """
    known = sum(held for held in processes.values() if held is not None)
    unnamed = max(0, used - known)  # the driver's own memory, contexts of dead processes, and unreported processes
    unreported = {pid for pid, held in processes.items() if held is None}
    if unreported and unreported <= set(ours):
        unnamed = max(0, unnamed - leased)  # the leases are counted elsewhere, and this memory belongs to them
    # If an external process is unreported too, the memory cannot be divided, so all of it counts as external.
    return unnamed + sum(external_processes.values())
