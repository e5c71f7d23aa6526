"""What gpuqueue asks of an engine: to submit, to say how things stand, to cancel, and to find again.

An engine is the scheduler of somebody else. It gives an **allocation**: some devices of one of its machines for some
time, in which it runs a shell script of ours. Each allocation has a **key** of ours, which is random and never used
twice. The engine stores the key with the allocation, so that it is found again after any crash of ours, and is never
confused with another one to which the engine gives the same number.

An engine answers only what it knows. A command that fails, hangs or has no answer yet is ``UNKNOWN``, and never the end
of an allocation.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from gpuqueue.errors import BadRequest, Refused, Unreachable
from gpuqueue.lazy.frozen import dataclass

if TYPE_CHECKING:
    from gpuqueue.engines.whole_job import Account, WholeJob

#: How long an allocation must be missing without a break before its absence means anything, in seconds.
ABSENT_S = 300.0
#: Letters and digits of a key: they may stand in names of jobs, hosts and files, and Kubernetes takes no capitals.
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_KEY_LENGTH = 10
_KEY = re.compile(r"[a-z0-9]{4,40}")


class Phase(str, Enum):
    """Where an allocation is in its life, for all engines."""

    #: The engine has it, and its script has not begun. It may have begun before and have been requeued.
    WAITING = "waiting"
    #: The script runs, or the engine is cleaning up after it.
    RUNNING = "running"
    #: The engine says that it is over. It never runs again.
    ENDED = "ended"
    #: The engine did not answer, or does not know the allocation (yet, or any more). It may run.
    UNKNOWN = "unknown"

    __str__ = str.__str__


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationRequest:
    """What an engine is asked for: ``gpus`` devices of one machine for ``duration_s``, and the script to run there.

    ``script`` is the text of a bash script. It may contain secrets, so an engine passes it on where no other user of
    its cluster reads it. The script gets SIGTERM ``warning_s`` before the end. An allocation that could not end within
    ``wait_s + duration_s`` from now is dropped by the engine.
    """

    gpus: int
    duration_s: float
    script: str = field(repr=False)
    warning_s: float = 120.0
    wait_s: float = 86400.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BadRequest: one of them is of no use.

        """
        if self.gpus < 1 or self.duration_s < 60 or self.warning_s < 0 or self.wait_s < 60:  # noqa: PLR2004 - a minute
            raise BadRequest("an allocation has at least one GPU, and lasts and may wait for at least a minute")


@dataclass(frozen=True, slots=True)
class Ref:
    """An allocation at an engine: our key, and the engine's own id. The id alone identifies nothing: ids come again."""

    key: str
    id: str

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """How an allocation stands.

    ``word`` is the engine's own word for it, or why it is unknown. ``node`` is the machine on which it runs, None if it
    does not. ``left_s`` is the time until its end, which is a duration because clocks differ; None: not known.
    """

    phase: Phase
    word: str
    node: str | None = None
    left_s: float | None = None


class NotAccepted(Refused):
    """The engine has refused the request, and is known not to have taken it."""


class Uncertain(Unreachable):
    """The engine may have accepted the request. ``find`` says later whether it has."""


class EngineUnreachable(Unreachable):
    """The engine cannot be asked: its commands are missing, fail or do not answer in time."""


class Engine(Protocol):
    """A scheduler of others. ``name`` is its word in commands and settings, such as ``slurm``."""

    name: str

    def submit(self, request: AllocationRequest, key: str) -> Ref:
        """Ask for an allocation under *key*, at most once.

        One that has this key already is returned.

        An engine that reports an error may have accepted the request all the same, so it is searched for by its key
        before this raises.

        Raises:
            NotAccepted: the engine has refused, and there is no such allocation.
            Uncertain: it is not known whether there is one. Ask ``find`` later, or submit again with the same key.
            EngineUnreachable: nothing was submitted.

        """

    def states(self, refs: Collection[Ref]) -> Mapping[Ref, Status]:
        """Return how each of *refs* stands, with few questions to the engine. Raises nothing: see ``UNKNOWN``.

        An allocation that the engine does not list is ``UNKNOWN`` until it was missing for ``ABSENT_S`` without a break
        and the engine's accounting says how it ended. An engine without accounting must list no part of it either. A
        removal by this object that the engine has confirmed needs no such time.
        """

    def cancel(self, ref: Ref, *, now: bool = False) -> None:
        """Have an allocation ended. One that is over already, or has another key than *ref*, is left alone.

        One that waits is removed. The script of one that runs gets SIGTERM, and only the script: it can end what it has
        started in order. With *now* the engine ends everything by its own rules, which may signal all processes.

        Raises:
            EngineUnreachable: the engine does not answer.

        """

    def find(self, keys: Collection[str]) -> Mapping[Ref, Status]:
        """Return the allocations with *keys* that the engine has, and how they stand, as ``states`` says it.

        It is one question for all. Of several allocations with one key the newest counts.

        Raises:
            EngineUnreachable: the engine does not answer, which says nothing about the allocation.

        """


class WholeJobEngine(Engine, Protocol):
    """An engine that takes whole jobs too."""

    def submit(self, request: AllocationRequest | WholeJob, key: str) -> Ref:
        """Ask for an allocation, or the run of a whole job, under *key*, as :meth:`Engine.submit` does."""

    def account(self, ref: Ref) -> Account | None:
        """Return how an allocation has ended, as far as the engine knows; None if it does not know it (any more)."""

    def alive(self) -> Sequence[Ref]:
        """Return all allocations of this account with keys of ours that have not ended.

        Raises:
            EngineUnreachable: the engine does not answer.

        """


def new_key() -> str:
    """Return a new random key, of about 50 bits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(_KEY_LENGTH))


def first(refs: Iterable[Ref]) -> Ref | None:
    """Return the first of *refs*, such as what ``find`` says of one key; None if there is none."""
    return next(iter(refs), None)


def check_key(key: str) -> str:
    """Return *key*.

    Raises:
        BadRequest: it may not stand in the names of jobs and hosts.

    """
    if not _KEY.fullmatch(key):
        raise BadRequest(f"{key!r} is no key of an allocation: 4 to 40 small letters and digits")
    return key
