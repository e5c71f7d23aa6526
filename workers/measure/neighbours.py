"""The other processes on a run's devices, as of the last reading at which the run was alive. Pure.

After a run has died of a lack of memory, its memory is free again, so a later reading does not explain the death.
Therefore each reading of a live run leaves a snapshot of its devices here. The ending's detail describes the last one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Device, Reading
from gpuqueue.queue.lease import ExternalProcess
from gpuqueue.text.sanitize import short
from gpuqueue.text.units import GIB, format_bytes

#: How many neighbours are named, the largest first, and how many characters of an external process's command line.
NAMED = 4
COMMAND_WIDTH = 60
#: From so many bytes on, memory that a run lacks and no listed process holds is named. The driver takes less itself.
UNLISTED_BYTES = GIB // 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A job or an external process on the device. ``held_bytes`` is None where the driver does not report it."""

    who: str
    held_bytes: int | None
    #: The command line; None for a job, and where it cannot be read.
    command: str | None = None
    #: Whether its memory was not allocated to it: it is an external process, or a job that uses more than its lease.
    takes: bool = False

    def __str__(self) -> str:
        held = "bytes unknown" if self.held_bytes is None else format_bytes(self.held_bytes)
        return f"{self.who} ({held})" if self.command is None else f"{self.who} ({self.command}, {held})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A snapshot of one device. ``own_bytes`` is the run's own memory, None where the driver does not report it.

    ``unlisted_bytes`` is what no listed process holds, with what the driver takes for itself; None where the driver
    does not report what each process holds.
    """

    device: Device
    free_bytes: int
    own_bytes: int | None
    beside: tuple[Neighbour, ...]
    unlisted_bytes: int | None = None

    def blamed(self, lease_bytes: int) -> str | None:
        """Return who had taken memory of a run with *lease_bytes* here, None if nobody had or if that is unknown.

        A claim leaves the run its whole lease. If less is free than the run has not used yet, others use more than the
        queue allocated to them, or something holds memory that no driver lists: a process in another container.
        """
        if self.own_bytes is None or self.free_bytes >= lease_bytes - self.own_bytes:
            return None
        takers = [str(each) for each in self.beside if each.takes][:NAMED]
        lacks_bytes = lease_bytes - self.own_bytes - self.free_bytes
        if not takers and UNLISTED_BYTES <= lacks_bytes <= (self.unlisted_bytes or 0):
            takers = [f"{format_bytes(lacks_bytes)} that no listed process holds"]
        return ", ".join(takers) or None

    def in_words(self, *, several: bool = False) -> str:
        """Describe the free memory and the neighbours, with the device's index if the run had *several* devices."""
        where = f" on device {self.device.index}" if several else ""
        names = [str(each) for each in self.beside[:NAMED]]
        if len(self.beside) > NAMED:
            names.append(f"{len(self.beside) - NAMED} more")
        who = f"beside it: {', '.join(names)}" if names else "no other process was on the device"
        return f"{format_bytes(self.free_bytes)} were free{where}; {who}"


class Neighbours:
    """The last snapshot of each device of one run, which belongs to the job *job_id*."""

    def __init__(self, job_id: int) -> None:
        self._job_id = job_id
        self._snapshots: dict[str, Snapshot] = {}

    def note(
        self,
        device: Device,
        reading: Reading,
        used_by_job: Mapping[int, int | None],
        external_processes: Sequence[ExternalProcess],
        leases: Mapping[int, int],
        members: Mapping[int, str],
    ) -> None:
        """Record a snapshot of *device* from one reading.

        A reading counts only if the run was alive. A reading at which the run uses no memory does not replace one at
        which it did: the run is then being torn down, and the memory that it lacked before appears free.

        Args:
            device: One of the run's devices.
            reading: The reading. The memory of external processes is taken from it, not from their recent peaks.
            used_by_job: Bytes used there by each live job of this host; None where the driver does not report them.
            external_processes: The external processes there.
            leases: Bytes allocated to each of these jobs.
            members: The names of those that are members of arrays.

        """
        if self._job_id not in used_by_job:
            return
        own_bytes = used_by_job[self._job_id]
        before = self._snapshots.get(device.uuid)
        if own_bytes == 0 and before is not None and before.own_bytes != 0:
            return
        jobs = {job_id: held for job_id, held in used_by_job.items() if job_id != self._job_id and held != 0}
        beside = [
            Neighbour(
                who=f"job {members.get(job_id, job_id)}", held_bytes=held, takes=(held or 0) > leases.get(job_id, 0)
            )
            for job_id, held in jobs.items()
        ]
        beside += _described(reading, external_processes)
        self._snapshots[device.uuid] = Snapshot(
            device=device,
            free_bytes=reading.free_bytes,
            own_bytes=own_bytes,
            beside=tuple(sorted(beside, key=lambda each: -(each.held_bytes or 0))),
            unlisted_bytes=_unlisted(reading),
        )

    def fullest(self, uuids: Collection[str] = ()) -> Snapshot | None:
        """Return the snapshot of the fullest device among *uuids* (all if none is given), or None without snapshots."""
        found = [each for uuid, each in self._snapshots.items() if not uuids or uuid in uuids]
        return min(found, key=lambda each: each.free_bytes, default=None)


def _unlisted(reading: Reading) -> int | None:
    """Return the used bytes of *reading* that no listed process holds; None if those of a process are unknown."""
    held = [size for size in reading.processes.values() if size is not None]
    if not reading.listed or len(held) < len(reading.processes):
        return None
    return max(0, reading.used_bytes - sum(held))


def _described(reading: Reading, external_processes: Sequence[ExternalProcess]) -> Iterator[Neighbour]:
    for external in external_processes:
        if external.job_id is not None:  # it is among the jobs
            continue
        user = f" of {short(external.user)}" if external.user else ""
        yield Neighbour(
            who=f"pid {external.pid}{user}",
            held_bytes=reading.processes.get(external.pid, external.held_bytes),
            command=short(external.command, COMMAND_WIDTH) if external.command else None,
            takes=True,
        )
