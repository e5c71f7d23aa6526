"""Repeating jobs: a request that is submitted again and again, at times that an expression of cron gives. Pure.

``client/repeating.py`` adds and changes them, and ``service/repeating.py`` submits their jobs.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.api import NewJob
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account

#: Why a repeating job stops when a person pauses it.
PAUSED = "paused"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRepeatingJob:
    """A repeating job to add.

    ``times`` is an expression of cron, such as ``0 3 * * *``, and ``zone`` the time zone that it means; without one,
    that of the service. With ``overlap``, a job may start while the last one waits or runs. With ``catch_up``, one job
    is submitted late if times were missed. Each job is that of a submit of ``job``.
    """

    times: str
    job: NewJob
    zone: str | None = None
    overlap: bool = False
    catch_up: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatingName:
    """Which repeating job is meant, beside its name: the one of this account, by default of the caller."""

    user: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatingJob:
    """A repeating job, for people.

    - ``command`` is hidden from those who may not see the arguments of its jobs.
    - ``next_at`` is None if it has stopped; ``stopped`` says why, ``paused`` if its owner did that.
    - ``last_at`` is the last time at which a job was submitted, ``last_job_id`` that job, ``last_state`` its state,
      None if the job is not known any more.
    - ``missed`` counts the times at which no job was submitted. The last of them was ``missed_at``, for the reason
      ``missed_why``.
    """

    id: str
    name: str
    user: str
    times: str
    zone: str
    overlap: bool
    catch_up: bool
    command: tuple[str, ...]
    made_at: datetime
    next_at: datetime | None = None
    stopped: str | None = None
    last_at: datetime | None = None
    last_job_id: int | None = None
    last_state: JobState | None = None
    missed: int = 0
    missed_at: datetime | None = None
    missed_why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """A repeating job, as the history database keeps it.

    - ``owner`` made it. ``token_id`` is the access token by which that was proved, None for an account of the machine.
    - ``request`` is the ``NewJob`` as JSON, with its whole environment.
    - ``seal`` is the signature of a service that signs jobs of its ``statement``.
    - ``begun_at`` and ``begun_job_id`` are a time whose job is being submitted, and the id that this job has or gets.
    """

    id: str
    name: str
    owner: Account
    token_id: str | None
    times: str
    zone: str
    overlap: bool
    catch_up: bool
    request: str = field(repr=False)
    seal: str | None = None
    made_at: datetime
    next_at: datetime | None = None
    stopped: str | None = None
    begun_at: datetime | None = None
    begun_job_id: int | None = None
    last_at: datetime | None = None
    last_job_id: int | None = None
    missed: int = 0
    missed_at: datetime | None = None
    missed_why: str | None = None

    @property
    def statement(self) -> list[object]:
        """Return what a service that signs jobs has signed: all that decides what runs, as which account, and when."""
        owner = [self.owner.name, self.owner.uid, self.owner.host]
        rules = [self.times, self.zone, self.overlap, self.catch_up]
        return [self.id, self.name, *owner, self.token_id, *rules, self.request]


@dataclass(frozen=True, kw_only=True, slots=True)
class Missed:
    """Times at which no job was submitted: their number, the last one, and why there was none."""

    count: int
    last_at: datetime
    why: str
