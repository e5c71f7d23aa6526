"""The group ``client.cron``: adds, lists and changes repeating jobs.

A repeating job is the request of a submit, as it was when it was added. The service submits its jobs, or the recorder
of one person's machine (``service/repeating.py``). The history database has all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpuqueue.client import reads
from gpuqueue.client.access import caller_of, policy_of
from gpuqueue.client.connection import Connection
from gpuqueue.client.cron_times import local_zone, next_time, read_times, zone_of
from gpuqueue.codec.wire import from_plain, from_request, to_stored
from gpuqueue.errors import BadRequest, JobNotFound, Refused
from gpuqueue.lazy.imports import later
from gpuqueue.model import validation
from gpuqueue.model.access import Action, require
from gpuqueue.model.api import NewJob
from gpuqueue.model.repeating import PAUSED, NewRepeatingJob, RepeatingJob, Repetition
from gpuqueue.text.sanitize import brief, plain

if TYPE_CHECKING:
    from gpuqueue.client import submit
    from gpuqueue.model.job import JobState
    from gpuqueue.model.job_request import JobRequest
    from gpuqueue.model.job_spec import Account
else:
    submit = later("gpuqueue.client.submit")

#: Most repeating jobs of one account.
MOST = 1000
#: A time is dealt with if it came at most this long ago, in seconds: a service may be started again meanwhile.
LATE_S = 600.0
#: The message about a time of its own.
NO_BEGIN = "a repeating job starts at its times: leave out --begin"


class Cron:
    """The repeating jobs of one site. A *name* is that of its jobs, and *user* another account that owns it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(
        self,
        times: str,
        request: JobRequest,
        *,
        zone: str | None = None,
        overlap: bool = False,
        catch_up: bool = False,
        note: Callable[[str], None] | None = None,
    ) -> RepeatingJob:
        """Have the queue submit *request* again and again, and return the repeating job.

        Args:
            times: An expression of cron: ``"0 3 * * *"``, or a word such as ``"@daily"``.
            request: What to submit. Its environment and its directory are those of now.
            zone: The time zone of *times*, such as ``"Europe/Berlin"``. By default that of the machine which submits.
            overlap: Whether a job may start while the last one waits or runs. By default the time is missed then.
            catch_up: Whether one job is submitted late after times that were missed because nothing ran.
            note: Called with lines about the script and its code.

        Raises:
            BadRequest: a value is malformed.
            Refused: this account has another repeating job of this name, or too many.

        """
        made = submit.made_here(self._connection, request, note)
        left_open = None if made.placement.whole else submit.open_memory(request, made)
        body = submit.body_of(made, left_open, self._connection.settings.default_mem_bytes)
        job = from_request(NewJob, body)
        wanted = NewRepeatingJob(times=times, job=job, zone=zone, overlap=overlap, catch_up=catch_up)
        return self._shown(added(self._connection, wanted, name=made.name, token_id=None))

    def list(self, user: str | None = None, *, everybody: bool = False) -> Sequence[RepeatingJob]:
        """Return the repeating jobs of this account, of *user*, or of *everybody*, by account and name."""
        return tuple(map(self._shown, listed(self._connection, user, everybody=everybody)))

    def remove(self, name: str, *, user: str | None = None) -> RepeatingJob:
        """Remove a repeating job, and return it as it was. Its jobs that wait or run go on.

        Raises:
            JobNotFound: there is none of this name.
            Refused: it belongs to another account.

        """
        return self._changed(name, user, removed)

    def pause(self, name: str, *, user: str | None = None) -> RepeatingJob:
        """Pause a repeating job: its times pass, and nothing is submitted."""
        return self._changed(name, user, paused)

    def resume(self, name: str, *, user: str | None = None) -> RepeatingJob:
        """Let a repeating job that is paused, or has stopped, go on from its next time."""
        return self._changed(name, user, resumed)

    def run(self, name: str, *, user: str | None = None) -> RepeatingJob:
        """Submit a job of a repeating job within seconds, as if its time had come now."""
        return self._changed(name, user, due_now)

    def _changed(
        self, name: str, user: str | None, change: Callable[[Connection, Repetition], Repetition]
    ) -> RepeatingJob:
        kept = the(self._connection, name, user)
        require(caller_of(self._connection), Action.CHANGE_JOB, kept.owner, policy_of(self._connection))
        return self._shown(change(self._connection, kept))

    def _shown(self, kept: Repetition) -> RepeatingJob:
        return shown(kept, last_state(self._connection, kept))


def added(connection: Connection, wanted: NewRepeatingJob, *, name: str, token_id: str | None) -> Repetition:
    """Add a repeating job of the account of *connection*, whose jobs have this *name*.

    If it is there already, with the same request, it is returned as it is. *token_id* is the access token that proved
    the account.

    Raises:
        BadRequest: a value is malformed.
        Refused: the account has another repeating job of this name, or too many.

    """
    if wanted.job.waits.begin_at is not None:
        raise BadRequest(NO_BEGIN)
    if wanted.job.retry_of is not None:
        raise BadRequest("a repeating job cannot be a retry: submit it without retry_of")
    if "/" in name:
        raise BadRequest(f"the name of a repeating job has no slash: give {brief(name)} another --name")
    times, zone, now = read_times(wanted.times), wanted.zone or local_zone(), _now()
    zone_of(zone)
    next_at = next_time(times, zone, now)
    if next_at is None:
        raise BadRequest(f"{brief(wanted.times)} is no time of cron: it never comes")
    # The commit of a directory that does not travel may be another one at each time.
    job = replace(wanted.job, name=name, git=wanted.job.git if wanted.job.snapshot is not None else None)
    made = Repetition(
        id=os.urandom(6).hex(),
        name=name,
        owner=connection.account,
        token_id=token_id,
        times=times,
        zone=zone,
        overlap=wanted.overlap,
        catch_up=wanted.catch_up,
        request=json.dumps(to_stored(job), separators=(",", ":"), sort_keys=True),
        made_at=now,
        next_at=next_at,
    )
    if connection.signer is not None:
        made = connection.signer.sealed(made)
    own = listed(connection)
    if len(own) < MOST and connection.database.add_repeating(made):
        return made
    twin = next((each for each in own if each.name == name), None)
    if twin is not None and _rules(twin) == _rules(made):
        return twin
    if twin is None and len(own) >= MOST:
        raise Refused(f"you have {MOST} repeating jobs, which is the most: remove one with gpuqueue cron remove NAME")
    raise Refused(
        f"you have a repeating job {plain(name)}: gpuqueue cron remove {plain(name)}, or give this one another --name"
    )


def _rules(kept: Repetition) -> tuple[object, ...]:
    return kept.times, kept.zone, kept.overlap, kept.catch_up, kept.request


def listed(connection: Connection, user: str | None = None, *, everybody: bool = False) -> list[Repetition]:
    """Return the repeating jobs of the account of *connection*, of *user*, or of *everybody*, by account and name."""
    name = validation.text_or_none("user", user)
    if everybody:
        return connection.database.repeating_jobs()
    found = connection.database.repeating_jobs(name or connection.account.name)
    return found if name else [each for each in found if _is_own(each.owner, connection.account)]


def _is_own(owner: Account, account: Account) -> bool:
    return (owner.name, owner.uid) == (account.name, account.uid)


def the(connection: Connection, name: str, user: str | None = None) -> Repetition:
    """Return the repeating job *name* of the account of *connection*, or of *user*.

    Raises:
        JobNotFound: there is none.

    """
    for each in listed(connection, user):
        if each.name == name:
            return each
    whose = f"{plain(user)} has" if user else "you have"
    raise JobNotFound(f"{whose} no repeating job {brief(name)}: see gpuqueue cron list")


def removed(connection: Connection, kept: Repetition) -> Repetition:
    """Remove *kept*."""
    connection.database.remove_repeating(kept.id)
    return kept


def paused(connection: Connection, kept: Repetition) -> Repetition:
    """Pause *kept*. A time that has come just now still gets its job: it is begun here, and the service finishes it."""
    at = kept.next_at
    if at is not None and kept.begun_job_id is None and 0 <= (_now() - at).total_seconds() <= LATE_S:
        job_id = connection.queue.requests.take_id(request_of(kept).array)
        connection.database.begin_repeating(kept, at, job_id, None)
    connection.database.stop_repeating(kept.id, PAUSED)
    return _again(connection, kept)


def resumed(connection: Connection, kept: Repetition) -> Repetition:
    """Let *kept* go on from its next time, with its proof as it is."""
    next_at = next_time(kept.times, kept.zone, _now())
    if kept.stopped is None or next_at is None:
        return kept
    connection.database.go_on_repeating(kept, next_at)
    return _again(connection, kept)


def with_proof(connection: Connection, kept: Repetition, token_id: str | None) -> Repetition:
    """Return *kept* with the access token *token_id*, by which its owner has proved the account anew.

    Raises:
        Refused: it is not what its owner has asked for.

    """
    if connection.signer is None:
        return replace(kept, token_id=token_id)
    if not connection.signer.is_sealed(kept):
        raise Refused(f"{not_sealed(kept)}: remove it, and add it again")
    return connection.signer.sealed(replace(kept, token_id=token_id))


def not_sealed(kept: Repetition) -> str:
    """Return the message about a repeating job without a genuine seal."""
    return f"this service has not signed the repeating job {plain(kept.name)} as it is now"


def due_now(connection: Connection, kept: Repetition) -> Repetition:
    """Have a job of *kept* submitted now, after that of a time which has begun.

    Raises:
        Refused: it has stopped.

    """
    if kept.stopped is not None:
        name = plain(kept.name)
        raise Refused(f"the repeating job {name} has stopped ({kept.stopped}): gpuqueue cron resume {name} first")
    now = _now()
    connection.database.go_on_repeating(kept, now if kept.begun_job_id is not None else min(now, kept.next_at or now))
    return _again(connection, kept)


def _again(connection: Connection, kept: Repetition) -> Repetition:
    """Return *kept* as it is now."""
    return next((each for each in listed(connection, kept.owner.name) if each.id == kept.id), kept)


def last_state(connection: Connection, kept: Repetition) -> JobState | None:
    """Return the state of the last job of *kept*, None if there is none or it is not known any more."""
    if kept.last_job_id is None:
        return None
    try:
        return reads.get(connection, kept.last_job_id).state
    except JobNotFound:
        return None


def request_of(kept: Repetition) -> NewJob:
    """Return what *kept* submits.

    Raises:
        Unreadable: another version has written it.

    """
    job: NewJob = from_plain(NewJob, json.loads(kept.request), f"the request of the repeating job {plain(kept.name)}")
    return job


def shown(kept: Repetition, state: JobState | None, command: Sequence[str] | None = None) -> RepeatingJob:
    """Return *kept* for people. *state* is that of its last job, *command* stands for its own."""
    names = set(RepeatingJob.__slots__) - {"user", "command", "last_state"}
    words = json.loads(kept.request)["argv"] if command is None else command
    return RepeatingJob(
        **{name: getattr(kept, name) for name in names}, user=kept.owner.name, command=tuple(words), last_state=state
    )


def _now() -> datetime:
    return datetime.now(timezone.utc).replace(microsecond=0)
