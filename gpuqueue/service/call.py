"""One call of the API: who calls, what the caller may do, and what the caller may see of a job.

Callers who may not see the arguments of a job get it without them: the command, its Python, the directory, the code and
the values of a sweep. The reasons why a job could not start name them too, so only reasons that certainly hold none of
them stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from gpuqueue.client.client import Client
from gpuqueue.client.connection import Connection
from gpuqueue.client.why import Why
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import AccessPolicy, Action, Audience, may, require
from gpuqueue.model.caller import Caller, Via
from gpuqueue.model.environment import is_secret
from gpuqueue.model.event import Event
from gpuqueue.model.job import Job
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import EndingKind, Listing, Note, Record, Run
from gpuqueue.model.run_mark import without_what
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.service.identity.audit_journal import Change
from gpuqueue.service.identity.browser_sessions import NewSession
from gpuqueue.system.account import SUPERUSER

if TYPE_CHECKING:
    from gpuqueue.model.job_spec import JobSpec
    from gpuqueue.queue.explanation import Explanation

#: Shown in place of a text that the caller may not see.
HIDDEN = "(hidden)"
#: The directory of a spec must be absolute, so this stands for a hidden one.
_NO_DIRECTORY = "/"
#: The start of the names of variables that hold the values of a sweep.
_SWEPT = "GPUQUEUE_SWEEP_"
#: Endings whose detail may be an error of the system, which names a program or a path, or name a metric.
_WITH_PATHS = frozenset({EndingKind.REFUSED, EndingKind.LOST, EndingKind.NAN})
#: Reasons of the scripts and of the worker that hold nothing of the user's.
_GENERIC = re.compile(
    r"dependency [0-9_]+(?: succeeded| failed| was cancelled| was lost| did not succeed)?"
    r"|the store lost its data, and how far it had come cannot be read"
    r"|[0-9]+ of its members failed and none succeeded"
    r"|no heartbeat renewed the lease in time"
    r"|its host was declared lost(?: by [\w.@-]+)?"
    r"|its worker vanished between the claim and the start"
    r"|its run directory is damaged"
    r"|it had no shim any more, [0-9]+ processes of it were ended"
    r"|(?:its shim vanished|its run directory was deleted)(?:, [0-9]+ processes of it were ended)?"
)


class Call:
    """A caller, and a client that acts for it."""

    def __init__(self, caller: Caller, policy: AccessPolicy, connection: Connection, identity: Identity) -> None:
        self.caller, self.policy, self._identity = caller, policy, identity
        # A job of a browser is submitted by the page, on this machine: the browser has no directory, only an address.
        is_here = caller.via in {Via.SOCKET, Via.SESSION}
        host = connection.settings.host if is_here else caller.address or "unknown"
        #: The account of new jobs. It comes from the kernel or from the token, never from the request.
        self.account = Account(
            name=caller.account or "anonymous", uid=-1 if caller.uid is None else caller.uid, host=host
        )
        self.is_admin = policy.is_admin(caller)
        #: What the answer warns of, in its header.
        self.warnings: list[str] = []
        self.connection = connection.acting_for(self.account, SUPERUSER if self.is_admin else self.account.name)

    @cached_property
    def client(self) -> Client:
        """The client that acts for the caller."""
        return Client(connection=self.connection)

    def may(self, action: Action, owner: Account | None = None) -> bool:
        """Return whether the caller may do *action* to jobs and tokens of *owner*."""
        return may(self.caller, action, owner, self.policy) is None

    def must(self, action: Action, owner: Account | None = None) -> None:
        """Check that the caller may do *action*.

        Raises:
            NotAuthenticated: the action needs an account of a person, and the caller has none.
            Forbidden: the caller has no right to the action.

        """
        require(self.caller, action, owner, self.policy)

    def must_run(self) -> None:
        """Check that jobs of the caller can start at this site.

        Raises:
            Refused: no launcher would start them.

        """
        self._identity.must_run(self.account)

    def must_see_jobs(self) -> None:
        """Check that the caller may see jobs at all, so that an empty list means that there are none.

        Raises:
            NotAuthenticated: the caller has no account, and the site shows its jobs to accounts only.

        """
        if not self.may(Action.SEE_JOBS):
            self.must(Action.SEE_SITE)

    @contextmanager
    def change(
        self,
        action: Action,
        name: str,
        *jobs: str,
        owner: Account | None = None,
        detail: Mapping[str, str] | None = None,
    ) -> Iterator[Change]:
        """Check that the caller may do *action*, and record the change *name* that the body makes.

        *detail* says what is asked for. It must hold no environment, no arguments and no token.
        """
        self._must_change(action, name, jobs, owner)
        with self.recorded(name, *jobs, detail=detail) as made:
            yield made

    @contextmanager
    def recorded(self, name: str, *jobs: str, detail: Mapping[str, str] | None = None) -> Iterator[Change]:
        """Record the change *name* that the body makes. The body checks whether the caller may make it."""
        with self._identity.change(self.caller, name, jobs, detail or {}) as made:
            yield made

    def change_again(
        self, action: Action, name: str, job: str, owner: Account, *, detail: Mapping[str, str] | None = None
    ) -> None:
        """Check that the caller may do *action* to a job of *owner*, and record it as a change that repeats."""
        self._must_change(action, name, (job,), owner)
        self._identity.noted(self.caller, name, (job,), detail)

    def _must_change(self, action: Action, name: str, jobs: tuple[str, ...], owner: Account | None) -> None:
        reason = may(self.caller, action, owner, self.policy)
        if reason is not None:
            self._identity.refused(self.caller, name, reason, jobs)
            self.must(action, owner)

    def must_read(self, action: Action, job: Job) -> None:
        """Check that the caller may read what *action* names of *job*. An admin's read is recorded.

        Raises:
            Forbidden: the caller may not.
            Unreachable: the read cannot be recorded.

        """
        self.must(action, job.spec.account)
        self.note_read(action, job.spec.account, job.label)

    def note_read(self, action: Action, owner: Account, label: str) -> None:
        """Record a read by a caller who may do *action* only as an admin."""
        if not self.caller.owns(owner) and self.policy.audience(action) is Audience.OWNER:
            self._identity.noted(self.caller, str(action), (label,))

    def owner_of(self, job: int | str) -> Account:
        """Return the submitter of a job.

        Raises:
            JobNotFound: the job does not exist.

        """
        self.must_see_jobs()
        return self.client.jobs.get(str(job).partition("_")[0]).spec.account

    # ---- what the caller may see -------------------------------------------------------------------------------------

    def job(self, job: Job, *, whole: bool = False) -> Job:
        """Return *job* as the caller may see it. Its environment, less its secrets, is there only if it is *whole*.

        Raises:
            Forbidden: the caller may not see the job.

        """
        owner, spec = job.spec.account, job.spec
        self.must(Action.SEE_JOBS, owner)
        shown = whole and self.may(Action.SEE_ENVIRONMENT, owner)
        env = {name: value for name, value in spec.env.items() if shown and not is_secret(name)}
        if env:
            self.note_read(Action.SEE_ENVIRONMENT, owner, job.label)
        found = job.without_secrets(env)
        if found.marks and not (self.may(Action.SEE_ARGUMENTS, owner) and self.may(Action.SEE_LOGS, owner)):
            found = replace(found, marks=without_what(found.marks))
        return found if self.may(Action.SEE_ARGUMENTS, owner) else without_arguments(found)

    def sees(self, job: Job) -> bool:
        """Return whether the caller may see *job* in a list."""
        return self.may(Action.SEE_JOBS, job.spec.account)

    def jobs(self, jobs: Iterable[Job]) -> tuple[Job, ...]:
        """Return those of *jobs* that the caller may see, as the caller may see them."""
        return tuple(self.job(each) for each in jobs if self.sees(each))

    def record(self, record: Record, *, whole: bool = False) -> Record:
        """Return *record* as the caller may see it."""
        owner, notes = record.job.spec.account, record.notes
        if not self.may(Action.SEE_ARGUMENTS, owner):
            notes = tuple(map(note_without_arguments, notes))
        runs = tuple(self.run(each, owner) for each in record.runs)
        return replace(record, job=self.job(record.job, whole=whole), runs=runs, notes=notes)

    def run(self, run: Run, owner: Account) -> Run:
        """Return *run*, of a job of *owner*, as the caller may see it."""
        path = run.log_path if self.may(Action.SEE_LOGS, owner) else run.log_path and HIDDEN
        sees_items = self.may(Action.SEE_ARGUMENTS, owner) and self.may(Action.SEE_LOGS, owner)
        notes = run.notes if sees_items else tuple(note.without_items() for note in run.notes)
        marks = run.marks if sees_items else without_what(run.marks)
        values = run.values if sees_items else None
        found = replace(run.without_token(), log_path=path, notes=notes, marks=marks, values=values)
        return found if self.may(Action.SEE_ARGUMENTS, owner) else run_without_arguments(found)

    def why(self, why: Why) -> Why:
        """Return *why* as the caller may see it."""
        explanation = why.explanation
        if explanation is not None and not self.may(Action.SEE_ARGUMENTS, why.job.spec.account):
            explanation = explanation_without_arguments(explanation)
        others = {each: self.job(job) for each, job in why.others.items() if self.sees(job)}
        devices = {each.device.uuid: each for each in self.devices(why.devices.values())}
        shown = {each: why.progress[each] for each in why.progress if self.reads_log_of(others.get(each))}
        return replace(
            why, job=self.job(why.job), explanation=explanation, others=others, devices=devices, progress=shown
        )

    def reads_log_of(self, job: Job | None) -> bool:
        """Return whether the caller may read the log of *job*, and so see its progress."""
        return job is not None and self.may(Action.SEE_LOGS, job.spec.account)

    def devices(self, devices: Iterable[DeviceStatus]) -> tuple[DeviceStatus, ...]:
        """Return *devices* as the caller may see them: why a host could not start a job names its arguments."""
        if self.may(Action.SEE_ARGUMENTS):  # of every owner
            return tuple(devices)
        return tuple(map(device_without_arguments, devices))

    def listing(self, page: Listing) -> Listing:
        """Return *page* as the caller may see it."""
        jobs = self.jobs(page.jobs)
        logs = {job.id for job in jobs if self.may(Action.SEE_LOGS, job.spec.account)}
        paths = {job_id: path for job_id, path in page.logs.items() if job_id in logs}
        seen = {job.id for job in jobs}
        return replace(
            page,
            jobs=jobs,
            logs=paths,
            held_bytes={each: held for each, held in page.held_bytes.items() if each in seen},
            devices={each: devices for each, devices in page.devices.items() if each in seen},
        )

    def events(self, events: Iterable[Event], owner: Account) -> tuple[Event, ...]:
        """Return *events* as the caller may see them: without tokens, and without a spec that has the environment."""
        hidden, found = {"token"}, tuple(events)
        if not self.may(Action.SEE_ENVIRONMENT, owner):
            hidden |= {"spec", "started"}
        elif found:
            self.note_read(Action.SEE_ENVIRONMENT, owner, str(found[0].job_id))
        return tuple(
            replace(each, fields={name: text for name, text in each.fields.items() if name not in hidden})
            for each in found
        )


def without_arguments(job: Job) -> Job:
    """Return *job* without its arguments. The number of an array's members stays."""
    return replace(job, spec=_spec_without_arguments(job.spec), because=job.because and _shown_reason(job.because))


def run_without_arguments(run: Run) -> Run:
    """Return *run* without what its ending says about the arguments of its job."""
    ending = run.ending
    if ending is None or ending.kind not in _WITH_PATHS:
        return run
    return replace(run, ending=replace(ending, detail=ending.detail and _shown_reason(ending.detail)))


def note_without_arguments(note: Note) -> Note:
    """Return *note* without its text, which can say why a host could not start the job."""
    return replace(note, text=HIDDEN)


def explanation_without_arguments(found: Explanation) -> Explanation:
    """Return *found* without the reasons why hosts could not start the job."""
    devices = tuple(replace(each, cannot_start=each.cannot_start and HIDDEN) for each in found.devices)
    return replace(found, devices=devices)


def device_without_arguments(status: DeviceStatus) -> DeviceStatus:
    """Return *status* without the reason why its host could not start the last job that it refused."""
    return replace(status, refusals=status.refusals and replace(status.refusals, why=HIDDEN))


def _spec_without_arguments(spec: JobSpec) -> JobSpec:
    return replace(
        spec,
        argv=(HIDDEN,),
        cwd=_NO_DIRECTORY,
        env=_unswept(spec.env),
        script=None,
        interpreter=None,
        environment=None,
        git=None,
        snapshot=None,
        output=None,
        error=None,
        keep=(),
        notifications=(),
        waits=replace(spec.waits, dedupe=None),
        array=spec.array and replace(spec.array, axes=()),
    )


def _unswept(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(_SWEPT)}


def _shown_reason(text: str) -> str:
    return text if _GENERIC.fullmatch(text) else HIDDEN


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """The process at the other end of a unix socket when it connected, as the kernel reports it."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """The proof of identity of a request: the peer of a unix socket, an ``Authorization`` header, or a session.

    ``session`` is the id of a browser's session. It counts only without the other two.
    """

    peer: Peer | None
    authorization: str | None
    address: str
    session: str | None = None


class Identity(Protocol):
    """Identifies callers, and records their changes."""

    def caller(self, credentials: Credentials, *, is_new: bool = True, stale_s: float = 0.0) -> Caller:
        """Return the caller, and count the request if it *is_new*.

        While the history is away, a token that was read up to *stale_s* seconds before is accepted.

        Raises:
            NotAuthenticated: the caller cannot be identified.

        """

    def caller_of_repeating(self, owner: Account, token_id: str | None) -> Caller | None:
        """Return *owner*, who added a repeating job, as a caller; None if the proof is not valid any more."""

    def must_run(self, account: Account) -> None:
        """Check that jobs of *account* can start at this site.

        Raises:
            Refused: no launcher would start them.

        """

    def received(self, caller: Caller, body_bytes: int) -> None:
        """Count the size of a request's body.

        Raises:
            TooManyRequests: the account sends too much.

        """

    def change(
        self, caller: Caller, action: str, jobs: tuple[str, ...], detail: Mapping[str, str]
    ) -> AbstractContextManager[Change]:
        """Return a context in which *caller* changes *jobs*; it is recorded with its outcome."""

    def refused(self, caller: Caller, action: str, reason: str, jobs: tuple[str, ...]) -> None:
        """Record a change that *caller* has no right to."""

    def noted(
        self, caller: Caller, action: str, jobs: tuple[str, ...], detail: Mapping[str, str] | None = None
    ) -> None:
        """Record what *caller* is about to read or to send; what repeats within minutes is counted."""

    def forget(self, token_id: str) -> None:
        """Stop accepting a token that was just revoked."""

    def new_code(self, caller: Caller) -> str:
        """Return a one-time code with which a browser signs in as *caller*.

        Raises:
            Forbidden: the caller is no person, or is itself a browser.

        """

    def sign_in(self, code_or_token: str, address: str) -> NewSession:
        """Begin a session of a browser, and return its secret.

        Raises:
            NotAuthenticated: the code or the token is not valid.

        """

    def sign_out(self, session: str) -> None:
        """End a session of a browser."""

    def new_download(self, session: str, target: str) -> str:
        """Return a one-time code with which a session of a browser downloads *target*, a path with its query.

        Raises:
            NotAuthenticated: the session has ended.

        """

    def session_of_download(self, code: str, target: str) -> str | None:
        """Return the session of a code for a download of *target*, and forget the code; None if it is not valid."""

    def start(self) -> None:
        """Begin to move records to the history."""

    def close(self) -> None:
        """Move the last records to the history."""
