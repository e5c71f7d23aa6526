"""External processes: they are real, and take memory, free it, start and end.

They are polite: no job could survive beside a process that takes the memory that the job was just allocated. They take
only memory that is neither used nor allocated at that moment. The fake driver is locked while they read the leases and
grow, so that a job that starts afterwards has seen them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, cast

from soak.jobs import MIB

from gpuqueue.queue import keys

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    import redis
    from fake_driver.fake_driver import FakeGpus
    from soak.promises import Card

#: The most external processes on a card, and the most memory that they hold there together.
MOST = 3
MOST_BYTES = 8 * 1024 * MIB
_VARIABLE = b"GPUQUEUE_JOB_ID="


class ExternalProcesses:
    """All external processes on all cards; each step moves one of them."""

    def __init__(self, rng: Random, fake: FakeGpus, cards: Sequence[Card], store: redis.Redis) -> None:
        self._rng = rng
        self._fake = fake
        self._cards = cards
        self._store = store
        self._there: dict[int, dict[int, subprocess.Popen[bytes]]] = {card.index: {} for card in cards}
        self._job_of: dict[tuple[int, str], int] = {}
        self.moves = dict.fromkeys(("come", "grow", "shrink", "go", "waited"), 0)

    def step(self) -> None:
        """Make one move."""
        card = self._rng.choice(self._cards)
        there = self._there[card.index]
        move = self._rng.choices(("come", "grow", "shrink", "go"), (3, 4, 2, 1))[0]
        if move == "come" and len(there) < MOST:
            done = self._come(card)
        elif there and move != "come":
            pid = self._rng.choice(list(there))
            done = {"grow": self._grow, "shrink": self._shrink, "go": self._go}[move](card, pid)
        else:
            return
        self.moves[move if done else "waited"] += 1

    def leave(self) -> None:
        """End all of them."""
        for card in self._cards:
            for pid in list(self._there[card.index]):
                self._go(card, pid)

    # ---- moves ---------------------------------------------------------------------------------------------------

    def _come(self, card: Card) -> bool:
        process = subprocess.Popen(["/bin/sleep", "100000"], stdin=subprocess.DEVNULL)
        self._there[card.index][process.pid] = process
        return self._grow(card, process.pid) or not self._go(card, process.pid)

    def _grow(self, card: Card, pid: int) -> bool:
        more = self._rng.randrange(64, 2049, 2) * MIB
        with self._fake.locked():
            held = self._fake.held(card.index)
            ours = sum(held.get(each, 0) for each in self._there[card.index])
            if more > self._left(card, held) or ours + more > MOST_BYTES:
                return False
            self._fake.hold(card.index, pid, held.get(pid, 0) + more)
        return True

    def _shrink(self, card: Card, pid: int) -> bool:
        held = self._fake.held(card.index).get(pid, 0)
        self._fake.hold(card.index, pid, int(held * self._rng.uniform(0.2, 0.9)) // MIB * MIB)
        return True

    def _go(self, card: Card, pid: int) -> bool:
        self._fake.let_go(card.index, pid)
        process = self._there[card.index].pop(pid)
        process.kill()
        process.wait()
        return True

    # ---- manners -------------------------------------------------------------------------------------------------

    def _left(self, card: Card, held: dict[int, int]) -> int:
        """Return the memory that is neither used nor allocated, without the headroom."""
        by_job: dict[int, int] = {}
        for pid, held_bytes in held.items():
            job_id = self._job(pid)
            by_job[job_id] = by_job.get(job_id, 0) + held_bytes
        leases = cast("dict[str, str]", self._store.hgetall(keys.device_leases(card.uuid)))
        owed = sum(max(0, int(lease.split(":")[0]) - by_job.get(int(job), 0)) for job, lease in leases.items())
        return card.total_bytes - card.reserved_bytes - card.headroom_bytes - sum(held.values()) - owed

    def _job(self, pid: int) -> int:
        """Return the job that the process belongs to, by its environment; 0 for none."""
        process = Path(f"/proc/{pid}")
        try:
            key = (pid, (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[19])
            if key not in self._job_of:
                words = (process / "environ").read_bytes().split(b"\0")
                ids = [int(word[len(_VARIABLE) :]) for word in words if word.startswith(_VARIABLE)]
                self._job_of[key] = ids[0] if ids else 0
        except OSError:
            return 0
        return self._job_of[key]
