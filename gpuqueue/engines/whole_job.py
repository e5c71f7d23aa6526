"""Whole jobs: what is handed to an engine, its key, and how the engine says that it ended. Pure.

A whole job has the same key in each attempt of ours that does not know how the one before ended, so that a second
attempt finds what the first has submitted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import field

from gpuqueue.lazy.frozen import dataclass

#: How many earlier keys of a job are searched for. More lost attempts in a row do not happen: the job is held before.
MAX_EARLIER = 8
_KEY = re.compile(r"w([0-9a-f]{8})j([0-9]{1,16})n([0-9]{1,6})")


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeJob:
    """What an engine is asked to run: ``argv`` in ``directory`` with ``env``, once on each of ``nodes`` machines.

    ``gpus`` are those on all nodes together. ``duration_s``, ``cpus`` and ``cpu_mem_bytes`` (both on each node) are
    None where the engine's defaults apply. ``signal`` is the name of a signal and how many seconds before the end of
    the time it comes. The engine's machines write the output to ``output`` and ``error`` (None: to ``output`` as well),
    and the exit code to ``exit_file``: a file system that they share with this host.
    """

    argv: tuple[str, ...]
    directory: str
    gpus: int
    output: str
    exit_file: str
    nodes: int = 1
    duration_s: float | None = None
    cpus: float | None = None
    cpu_mem_bytes: int | None = None
    signal: tuple[str, float] | None = None
    error: str | None = None
    umask: int = 0o022
    requeue: bool = True
    env: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def gpus_per_node(self) -> int:
        """Return how many GPUs each node gives."""
        return self.gpus // self.nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """What an engine knows of an allocation that has ended. None: it does not say.

    ``word`` is the engine's word for the end, in small letters, such as ``timeout``. Times are in seconds since 1970.
    ``gpu_mem_bytes`` is the most memory that one of its tasks used on the GPUs. ``is_late``: there is an accounting
    that does not have the end yet, so asking again may say more.
    """

    word: str
    exit_code: int | None = None
    signal: int | None = None
    nodes: str | None = None
    started_s: float | None = None
    ended_s: float | None = None
    gpu_mem_bytes: int | None = None
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class WholeKey:
    """The key of a whole job: its site, its id, and which of its runs this is, of those whose end is known."""

    site: str
    job_id: int
    number: int

    @classmethod
    def of(cls, place: str, job_id: int, number: int) -> WholeKey:
        """Return the key of a job of the site whose runs are in the directory *place*."""
        return cls(hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:8], job_id, number)

    @classmethod
    def parse(cls, key: str) -> WholeKey | None:
        """Return the parts of *key*, None for that of something else."""
        found = _KEY.fullmatch(key)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))

    def __str__(self) -> str:
        return f"w{self.site}j{self.job_id}n{self.number}"

    def others(self, attempt: int) -> Iterator[WholeKey]:
        """Yield the other keys that earlier runs of the job may have had in *attempt* attempts, the newest first."""
        for number in range(attempt, max(0, attempt - MAX_EARLIER), -1):
            if number != self.number:
                yield WholeKey(self.site, self.job_id, number)
