"""Random jobs for the soak: mostly small, mostly within their request, each with the steps that soak/job.c performs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

MIB = 2**20
#: What the fake driver charges a process for each device that it uses, in MiB. The smallest jobs have room for it.
CONTEXT_MIB = 100
#: How far a liar exceeds its request, in which steps (MiB), and its pause between two steps (ms).
LIE_MIB, LIE_STEP_MIB, LIE_PAUSE_MS = 4096, 64, 100
#: How much a fib exceeds its request, in MiB: less than the watchdog's tolerance.
FIB_MIB = 200
#: Shares of the sizes, and their bounds in MiB.
_SIZES = ((0.55, 256, 1024), (0.28, 1024, 4096), (0.13, 4096, 10240), (0.04, 10240, 20480))


class Kind(str, Enum):
    """What a job does."""

    #: One process that grows to its peak, stays there and sometimes frees a part.
    ONE = "one"
    #: Two processes at the same time that together stay within the request.
    TWO = "two"
    #: One process that is at its peak only for a moment.
    SPIKE = "spike"
    #: One process on two devices.
    GANG = "gang"
    #: One process that slightly exceeds its request, which is tolerated unless the memory is allocated to others.
    FIB = "fib"
    #: One process that takes more and more memory.
    LIAR = "liar"

    @property
    def honest(self) -> bool:
        """Return whether the job stays within its request."""
        return self not in {Kind.FIB, Kind.LIAR}


_SHARES = {Kind.ONE: 0.69, Kind.TWO: 0.12, Kind.SPIKE: 0.1, Kind.GANG: 0.05, Kind.FIB: 0.03, Kind.LIAR: 0.01}


@dataclass(frozen=True, slots=True)
class SoakJob:
    """One job: its request, and the words that soak/job.c reads what to allocate from."""

    kind: Kind
    mem_mib: int
    words: tuple[str, ...]

    @property
    def gpus(self) -> int:
        """Return the number of devices that the job asks for."""
        return 2 if self.kind is Kind.GANG else 1


def draw(rng: Random, hold_ms: tuple[int, int]) -> SoakJob:
    """Return the next job; *hold_ms* are the bounds of the time at its peak."""
    kind = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
    _, low, high = rng.choices(_SIZES, [share for share, _, _ in _SIZES])[0]
    mem_mib = max(rng.randrange(low, high + 1, 2), 512 if kind is Kind.TWO else 0)
    return SoakJob(kind, mem_mib, tuple(_WORDS[kind](rng, mem_mib, f"s{rng.randint(*hold_ms)}")))


def _climb(rng: Random, mem_mib: int) -> list[str]:
    """Return steps that lead to the peak, which in three of ten jobs is exactly the request."""
    share = 1.0 if rng.random() < 0.3 else rng.uniform(0.4, 0.95)
    left = max(2, int(mem_mib * share) - CONTEXT_MIB) // 2 * 2
    words = []
    for _ in range(rng.randint(0, 3)):
        part = min(left - 2, rng.randrange(0, left + 1, 2))
        if part > 0:
            words += [f"a{part}", f"s{rng.randint(5, 40)}"]
            left -= part
    return [*words, f"a{left}"]


def _one(rng: Random, mem_mib: int, hold: str) -> list[str]:
    words = [*_climb(rng, mem_mib), hold]
    return [*words, "f", f"s{rng.randint(10, 60)}"] if rng.random() < 0.4 else words


def _two(rng: Random, mem_mib: int, hold: str) -> list[str]:
    first = rng.randrange(200, mem_mib - 200, 2)
    return [*_one(rng, first, hold), "+", *_one(rng, mem_mib - first, hold)]


def _spike(rng: Random, mem_mib: int, hold: str) -> list[str]:
    return [*_climb(rng, mem_mib), f"s{rng.randint(1, 20)}", "f", hold]


def _gang(rng: Random, mem_mib: int, hold: str) -> list[str]:
    return ["d0", *_climb(rng, mem_mib), "d1", *_climb(rng, mem_mib), hold]


def _fib(_rng: Random, mem_mib: int, hold: str) -> list[str]:
    return [f"a{mem_mib + FIB_MIB - CONTEXT_MIB}", hold]


def _liar(_rng: Random, mem_mib: int, _hold: str) -> list[str]:
    first = max(2, int(0.95 * mem_mib) - CONTEXT_MIB)
    steps = (mem_mib + LIE_MIB - first) // LIE_STEP_MIB
    return [f"a{first}", *(f"a{LIE_STEP_MIB}", f"s{LIE_PAUSE_MS}") * steps, "s5000"]


_WORDS = {
    Kind.ONE: _one,
    Kind.TWO: _two,
    Kind.SPIKE: _spike,
    Kind.GANG: _gang,
    Kind.FIB: _fib,
    Kind.LIAR: _liar,
}
