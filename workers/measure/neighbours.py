"""Who was on a device beside a run, at the last look that saw it alive. Pure.

When a run has died for want of memory, what it held is free again and says nothing any more. So each look that sees a
run alive leaves a small picture of its devices here; the ending's detail puts the last one in words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Device, Reading
from gpuqueue.queue.lease import Stranger
from gpuqueue.text.sanitize import short
from gpuqueue.text.units import format_bytes

#: How many neighbours are named, the largest first, and how much of a stranger's command line.
NAMED = 4
COMMAND_WIDTH = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A job or a stranger on the device; None where the driver does not say what it holds."""

    who: str
    held_bytes: int | None
    #: What runs there; None for a job, and where it cannot be seen.
    command: str | None = None

    def __str__(self) -> str:
        held = "bytes unknown" if self.held_bytes is None else format_bytes(self.held_bytes)
        return f"{self.who} ({held})" if self.command is None else f"{self.who} ({self.command}, {held})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """One device at one look. ``own_bytes`` is what the run itself held, None where the driver does not say."""

    device: Device
    free_bytes: int
    own_bytes: int | None
    beside: tuple[Neighbour, ...]

    def in_words(self, *, several: bool = False) -> str:
        """Return what was free and who else was there; with the device's index if the run had *several*."""
        where = f" on device {self.device.index}" if several else ""
        names = [str(each) for each in self.beside[:NAMED]]
        if len(self.beside) > NAMED:
            names.append(f"{len(self.beside) - NAMED} more")
        who = f"beside it: {', '.join(names)}" if names else "nobody was beside it"
        return f"{format_bytes(self.free_bytes)} were free{where}; {who}"


class Neighbours:
    """The last look at each device of one run, that of the job *job_id*."""

    def __init__(self, job_id: int) -> None:
        self._job_id = job_id
        self._looks: dict[str, Look] = {}

    def seen(
        self,
        device: Device,
        reading: Reading,
        ours_by_job: Mapping[int, int | None],
        strangers: Sequence[Stranger],
    ) -> None:
        """Take note of one look at *device*.

        It counts only if the run was alive, and once it has held something only while it does: what is seen of a
        run that is being torn down is the memory that it lacked a moment before.

        Args:
            device: One of the run's devices.
            reading: The look. What strangers hold is taken from it, not from what they are remembered with.
            ours_by_job: Bytes held there by each of our jobs that is alive; None where the driver does not say.
            strangers: The processes there that the queue did not start.

        """
        if self._job_id not in ours_by_job:
            return
        own_bytes = ours_by_job[self._job_id]
        before = self._looks.get(device.uuid)
        if own_bytes == 0 and before is not None and before.own_bytes != 0:
            return
        jobs = {job_id: held for job_id, held in ours_by_job.items() if job_id != self._job_id and held != 0}
        beside = [Neighbour(who=f"job {job_id}", held_bytes=held) for job_id, held in jobs.items()]
        beside += _described(reading, strangers)
        self._looks[device.uuid] = Look(
            device=device,
            free_bytes=reading.free_bytes,
            own_bytes=own_bytes,
            beside=tuple(sorted(beside, key=lambda each: -(each.held_bytes or 0))),
        )

    def fullest(self, uuids: Collection[str] = ()) -> Look | None:
        """Return the look at the fullest device among *uuids* (all if none is given), None if nobody looked."""
        looks = [look for uuid, look in self._looks.items() if not uuids or uuid in uuids]
        return min(looks, key=lambda look: look.free_bytes, default=None)


def _described(reading: Reading, strangers: Sequence[Stranger]) -> Iterator[Neighbour]:
    for stranger in strangers:
        user = f" of {short(stranger.user)}" if stranger.user else ""
        yield Neighbour(
            who=f"pid {stranger.pid}{user}",
            held_bytes=reading.processes.get(stranger.pid, stranger.held_bytes),
            command=short(stranger.command, COMMAND_WIDTH) if stranger.command else None,
        )
