"""Checks from the outbox and the driver's record that no card was over-allocated, with its own sums. Pure.

The product computes free memory from its reading and its leases. This module judges each claim from outside: by the
leases that were live in the order of the events, by the fake driver's record, and by the moment of the reading, which
the soak's workers log. A quantity that changes in between counts with its least value, so that each reported violation
is certain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from soak.truth import Run, Truth

    from gpuqueue.model.event import Event

#: Nanoseconds of a millisecond, the resolution of the store's clock.
_MS = 1_000_000
#: How old the heartbeat of a neighbour may be (claim.lua), in nanoseconds.
_SEEN_NS = 15_000_000_000
_OVER = {Act.RELEASE_CLAIM, Act.FINISH, Act.LOSE}


@dataclass(frozen=True, slots=True)
class Card:
    """A device of the soak, with the memory that no job can get."""

    uuid: str
    index: int
    total_bytes: int
    reserved_bytes: int
    headroom_bytes: int


@dataclass(slots=True)
class Promises:
    """The results of the events."""

    claims: int = 0
    starts: int = 0
    released: int = 0
    losses: int = 0
    #: The final state of each ended job.
    ended: dict[int, JobState] = field(default_factory=dict)
    #: For each claim on each card: the share of the available memory that was then allocated.
    shares: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class Judge:
    """Judges the events in their order."""

    def __init__(self, cards: Iterable[Card], truth: Truth, samples: Mapping[str, int]) -> None:
        self._cards = {card.uuid: card for card in cards}
        self._truth = truth
        self._samples = samples
        self._leases: dict[str, dict[Run, int]] = {uuid: {} for uuid in self._cards}
        self.promises = Promises()

    def take(self, event: Event) -> None:
        """Judge the next event."""
        at_ns = round(event.at.timestamp() * 1000) * _MS + _MS
        run = (event.job_id, event.fields.get("token", ""))
        if event.act is Act.CLAIM:
            self.promises.claims += 1
            sampled_ns = self._samples.get(run[1].partition(".")[2], at_ns)
            for position, uuid in enumerate(event.fields["devices"].split(",")):
                # The claim uses the last heartbeats of the other devices' workers.
                self._claim(event, run, uuid, sampled_ns - (_SEEN_NS if position else 0), at_ns)
        elif event.act is Act.STARTED:
            self.promises.starts += 1
            for uuid in (uuid for uuid, leases in self._leases.items() if run in leases):
                self._start(event, uuid, self._samples.get(run[1], at_ns), at_ns)
        elif event.act in _OVER:
            for uuid, leases in self._leases.items():
                if leases.pop(run, None) is not None:
                    self._is_gone(event, run, self._cards[uuid].index, at_ns)
            self.promises.released += event.act is Act.RELEASE_CLAIM
            self.promises.losses += event.act is Act.LOSE
        if event.state.is_end:
            self.promises.ended[event.job_id] = event.state

    def _claim(self, event: Event, run: Run, uuid: str, from_ns: int, at_ns: int) -> None:
        if event.job_id in {job_id for job_id, _ in self._leases[uuid]}:
            self.promises.violations.append(f"job {event.job_id} was claimed while it held a lease on {uuid}")
        self._leases[uuid][run] = int(event.fields["lease"])
        room = self._room(uuid, from_ns, at_ns) - self._cards[uuid].headroom_bytes
        allocated = self._judge(event, uuid, self._leases[uuid], room, from_ns, at_ns)
        self.promises.shares.append(allocated / room if room > 0 else float("inf"))

    def _start(self, event: Event, uuid: str, from_ns: int, at_ns: int) -> None:
        """Judge a start, which may use the headroom if an external process has come meanwhile.

        Of two jobs that were claimed at the same time, the one with the later reading must see the other. So each is
        judged beside the runs with an earlier reading. A run that is over needs no memory, although its lease lives
        until its worker has reported the end.
        """
        card = self._cards[uuid].index
        beside = {
            run: lease
            for run, lease in self._leases[uuid].items()
            if self._samples.get(run[1], 0) <= from_ns and not self._is_over(run, card, at_ns)
        }
        self._judge(event, uuid, beside, self._room(uuid, from_ns, at_ns), from_ns, at_ns)

    def _is_over(self, run: Run, card: int, at_ns: int) -> bool:
        """Return whether the run had taken its last step, which frees everything unless the run was killed."""
        level = self._truth.runs.get((run, card))
        return level is not None and level.at_ns[-1] <= at_ns

    def _is_gone(self, event: Event, run: Run, card: int, at_ns: int) -> None:
        """Check that a run neither takes nor frees memory after its lease was released."""
        level = self._truth.runs.get((run, card))
        if level is not None and level.at_ns[-1] > at_ns:
            late_ms = (level.at_ns[-1] - at_ns) / 1e6
            self.promises.violations.append(
                f"job {event.job_id} was on card {card} {late_ms:.0f} ms after its {event.act}"
            )

    def _room(self, uuid: str, from_ns: int, at_ns: int) -> int:
        """Return the memory for jobs, without the least that all external processes together held."""
        card = self._cards[uuid]
        return card.total_bytes - card.reserved_bytes - self._truth.external_processes[card.index].least(from_ns, at_ns)

    def _judge(self, event: Event, uuid: str, leases: Mapping[Run, int], room: int, from_ns: int, at_ns: int) -> int:
        """Return the sum of what is allocated and used, and report it if it exceeds *room*."""
        card = self._cards[uuid].index
        allocated = sum(max(lease, self._held(run, card, from_ns, at_ns)) for run, lease in leases.items())
        if allocated > room:
            self.promises.violations.append(
                f"{event.act} of job {event.job_id} on card {card} at {at_ns}: {allocated / 2**20:.0f} MiB are "
                f"promised to {len(leases)} jobs and {room / 2**20:.0f} MiB were there, "
                f"{(at_ns - from_ns) / 1e6:.0f} ms ago"
            )
        return allocated

    def _held(self, run: Run, card: int, from_ns: int, to_ns: int) -> int:
        level = self._truth.runs.get((run, card))
        # After its last step a process may be dead without a trace. Then only its lease is certain.
        return level.least(from_ns, to_ns) if level is not None and to_ns <= level.at_ns[-1] else 0
