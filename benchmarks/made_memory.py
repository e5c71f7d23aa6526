"""Histories of programs whose peaks vary in known ways, the same each time, to replay rules of memory on.

Each program runs many times, one run after the other, and its owner asks for memory as people do: twice what the first
run used, in whole GiB, and twice as much again after each run that lacked memory. The device has 80 GiB.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone

from gpuqueue.learning.past_run import PastRun, Proof
from gpuqueue.learning.replay import PastJob
from gpuqueue.model.device import DeviceKind
from gpuqueue.text.units import GIB

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
ROOM_BYTES = 80 * GIB
#: The median size of programs in GiB, and the standard deviation of its logarithm: half are between 4 and 10 GiB.
TYPICAL_GIB, SIGMA = 6.0, 0.7
#: The median time of a run in seconds, and the standard deviation of its logarithm.
TYPICAL_S, SIGMA_S = 3600.0, 1.0
#: The standard deviation of the logarithm of peaks: of a steady program, and with heavy tails.
JITTER, HEAVY = 0.02, 0.35
#: The share of large runs of a program with two sizes, and how much larger they are.
LARGE, TIMES = 0.15, 2.0
#: The share of runs with an argument that is rarely used, and how much larger they are.
RARE, RARE_TIMES = 0.08, 8.0
#: The growth of a growing program from run to run.
GROWTH = 1.02
#: The batch sizes of programs whose peak they move, and the share of the program's size that is there without a batch.
BATCHES, FIXED = range(16, 257, 16), 0.25
#: The batch size at which such a program has its size and FIXED, and the width of the steps of one that rounds up.
USUAL_BATCH, STEP = 128, 64
#: The standard deviation of the logarithm of the peaks of a noisy program.
NOISE = 0.1
#: The number of runs after which the owner of a climbing program doubles the batch size.
CLIMB_AFTER = 8

#: Returns the peak of run number n as a multiple of the program's size, and the arguments of the run.
Mode = Callable[[random.Random, int], tuple[float, tuple[str, ...]]]


def _steady(chance: random.Random, _: int) -> tuple[float, tuple[str, ...]]:
    return chance.lognormvariate(0, JITTER), ()


def _two_sizes(chance: random.Random, _: int) -> tuple[float, tuple[str, ...]]:
    return (TIMES if chance.random() < LARGE else 1.0) * chance.lognormvariate(0, JITTER), ()


def _growing(chance: random.Random, number: int) -> tuple[float, tuple[str, ...]]:
    return GROWTH**number * chance.lognormvariate(0, JITTER), ()


def _heavy_tailed(chance: random.Random, _: int) -> tuple[float, tuple[str, ...]]:
    return chance.lognormvariate(0, HEAVY), ()


def _arguments(chance: random.Random, number: int) -> tuple[float, tuple[str, ...]]:
    """Return a run of a sweep: the batch size decides, and the seed does not."""
    batch = chance.choice((16, 32, 64, 128))
    return (1 + batch / 64) / 2 * chance.lognormvariate(0, JITTER), ("--batch", str(batch), "--seed", str(number))


def _rare_arguments(chance: random.Random, _: int) -> tuple[float, tuple[str, ...]]:
    """Return a run with the usual batch size, or now and then with one that needs much more."""
    is_rare = chance.random() < RARE
    times = RARE_TIMES if is_rare else 1.0
    return times * chance.lognormvariate(0, JITTER), ("--batch", "512" if is_rare else "16")


def _of_batch(shape: Callable[[float], float], jitter: float = JITTER) -> Mode:
    """Return a mode whose peak is that of *shape*, for the batch size as a multiple of the usual one."""

    def mode(chance: random.Random, number: int) -> tuple[float, tuple[str, ...]]:
        batch = chance.choice(BATCHES)
        return _with_batch(shape, batch, number, chance.lognormvariate(0, jitter))

    return mode


def _with_batch(
    shape: Callable[[float], float], batch: int, number: int, times: float
) -> tuple[float, tuple[str, ...]]:
    return (FIXED + shape(batch / USUAL_BATCH)) * times, ("--batch", str(batch), "--seed", str(number))


def _straight(batch: float) -> float:
    return batch


def _stepped(batch: float) -> float:
    return math.ceil(batch * USUAL_BATCH / STEP) * STEP / USUAL_BATCH


def _squared(batch: float) -> float:
    return batch**2


def _climbing(chance: random.Random, number: int) -> tuple[float, tuple[str, ...]]:
    """Return a run of somebody who tries a batch size, then twice as much."""
    batch = BATCHES[0] * 2 ** (number // CLIMB_AFTER)
    return _with_batch(_straight, batch, number, chance.lognormvariate(0, JITTER))


MODES: Mapping[str, Mode] = {
    "steady": _steady,
    "arguments": _arguments,
    "rare-arguments": _rare_arguments,
    "growing": _growing,
    "two-sizes": _two_sizes,
    "heavy-tailed": _heavy_tailed,
    "linear": _of_batch(_straight),
    "climbing": _climbing,
    "step": _of_batch(_stepped),
    "quadratic": _of_batch(_squared),
    "noisy": _of_batch(_straight, NOISE),
}


def made(mode: str, *, programs: int, runs: int, seed: int = 1) -> Sequence[PastJob]:
    """Return the jobs of *programs* programs with *runs* runs each, all of one mode."""
    chance = random.Random(f"{mode} {seed}")  # noqa: S311 - the same history each time
    return [job for program in range(programs) for job in _program(MODES[mode], program, runs, chance)]


def _program(mode: Mode, program: int, runs: int, chance: random.Random) -> Iterator[PastJob]:
    size = TYPICAL_GIB * chance.lognormvariate(0, SIGMA) * GIB
    asked, at = 0, BEGIN
    for number in range(runs):
        times, words = mode(chance, number)
        peak = min(ROOM_BYTES, int(size * times))
        asked = asked or min(ROOM_BYTES, math.ceil(2 * peak / GIB) * GIB)
        duration_s = TYPICAL_S * chance.lognormvariate(0, SIGMA_S)
        run = PastRun(proof=Proof.PEAK, bytes=peak, kind=DeviceKind.GPU, words=words, room_bytes=ROOM_BYTES)
        job = PastJob(
            id=1 + program * runs + number,
            program=("ada", f"/home/ada/{program}.py"),
            runs=(run,),
            is_known=True,
            asked_bytes=asked,
            used_bytes=peak,
            devices=1,
            duration_s=duration_s,
            submitted_at=at,
            ended_at=at + timedelta(seconds=duration_s),
        )
        yield job
        while asked < peak:
            asked = min(ROOM_BYTES, 2 * asked)
        at = job.ended_at
