"""Repeating jobs, with a real store and history, and a clock that the test sets."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

import known_accounts
import pytest
from factories import end, make_admin, must_claim, serve, start
from template_history import make_tables

from gpuqueue.client import repeating
from gpuqueue.client.connection import Connection
from gpuqueue.client.signing import Signer
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.errors import BadRequest, Refused, StoreUnreachable
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.access import AccessPolicy
from gpuqueue.model.access_token import AccessToken, digest_of, new_token
from gpuqueue.model.api import NewJob
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.audit import AuditQuery
from gpuqueue.model.caller import CallerKind, Scope, Via
from gpuqueue.model.dependencies import Waits
from gpuqueue.model.job import Job
from gpuqueue.model.job_spec import Account
from gpuqueue.model.repeating import NewRepeatingJob, Repetition
from gpuqueue.queue import keys
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.requests import Requests
from gpuqueue.service.identity.site_identity import SiteIdentity
from gpuqueue.service.repeating import DOWN, LATE_S, LEFT_S, NO_PROOF, Repeater
from gpuqueue.settings.settings import Settings
from workers.services.recorder import Recorder

NOW = datetime(2026, 11, 2, 12, tzinfo=timezone.utc)
ADA = Account(name="ada", uid=54320, host="nodeA")
KEY = bytes(range(32))


class SetClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.s = 0.0

    def now(self) -> datetime:
        """Return the set time."""
        return NOW + timedelta(seconds=self.s)

    def monotonic_s(self) -> float:
        """Return the seconds since the start of the test."""
        return self.s


@dataclass
class Lab:
    """A site without a service: a test makes the repeaters of its services."""

    settings: Settings
    queue: JobQueue
    clock: SetClock = field(default_factory=SetClock)

    def __post_init__(self) -> None:
        """Open the history, and what knows the accounts."""
        self.database = HistoryDatabase(self.settings.database_url)
        self.identity = SiteIdentity(self.settings, self.clock)
        self._repeaters: list[Repeater] = []

    def repeater(self, signer: Signer | None = None, **words: int) -> Repeater:
        """Return what a new service uses."""
        made = Repeater(self.settings, self.identity, self.clock, signer, **words)
        self._repeaters.append(made)
        return made

    def close(self) -> None:
        """Close all connections."""
        for each in self._repeaters:
            each._connection.close()
        self.identity.close()
        self.database.close()
        self.queue.close()

    def add(
        self, times: str = "0 * * * *", token_id: str | None = None, signer: Signer | None = None, **rules: object
    ) -> Repetition:
        """Add a repeating job of ada, as the service does."""
        job = NewJob(argv=("true",), cwd="/", mem_bytes=2**20, env={"A": "1", "API_KEY": "hush"})
        changes = {
            name: rules.pop(name) for name in ("name", "array", "mem_bytes", "waits", "retry_of") if name in rules
        }
        name = str(changes.get("name", "nightly"))
        wanted = NewRepeatingJob(times=times, job=replace(job, **changes), zone="UTC", **rules)  # type: ignore[arg-type]
        return repeating.added(self.connection(signer), wanted, name=name, token_id=token_id)

    def connection(self, signer: Signer | None = None) -> Connection:
        """Return the connection of a service that acts for ada."""
        made = Connection(self.settings, database=self.database, signer=signer)
        made._queue = self.queue
        return made.acting_for(ADA, ADA.name)

    @property
    def only(self) -> Repetition:
        """The one repeating job."""
        (found,) = self.database.repeating_jobs()
        return found

    def jobs(self) -> list[Job]:
        """Return the jobs of the queue."""
        return [*self.queue.jobs.page(limit=100, after=0).jobs]

    def to(self, text: str, *repeaters: Repeater) -> list[int]:
        """Set the clock to a time of that day, let each of *repeaters* work, and return the ids of all jobs."""
        hour, minute = map(int, text.split(":"))
        self.clock.s = (hour - NOW.hour) * 3600 + minute * 60
        for each in repeaters:
            each.turn()
        return [job.id for job in self.jobs()]

    def end_job(self) -> None:
        """Run the one job that waits, to its end."""
        claim = must_claim(self.queue)
        start(self.queue, claim)
        end(self.queue, claim)

    def record(self) -> None:
        """Bring the history up to date."""
        recorder = Recorder(self.settings, self.queue, self.database)
        recorder.mend()
        while recorder.record(0):
            pass


@pytest.fixture(scope="module")
def store() -> Iterator[Settings]:
    """Return the settings of a site whose store runs."""
    with TemporaryDirectory(prefix="gpuqueue-repeating-") as directory:
        settings = Settings.load(
            {
                "GPUQUEUE_STATE_DIR": directory,
                "GPUQUEUE_CONFIG": os.devnull,
                "GPUQUEUE_HOST": "nodeA",
                "GPUQUEUE_REQUEST_RATE": "none",
            }
        )
        embedded = EmbeddedStore(settings)
        embedded.start()
        yield settings
        embedded.stop()


@pytest.fixture
def lab(store: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Return a site with one device and no jobs, at noon of a day. Its next full hour is 13:00."""
    monkeypatch.setattr(pwd, "getpwuid", pwd.getpwuid)
    known_accounts.know()
    url = f"sqlite:///{tmp_path / 'history.db'}"
    make_tables(url)
    settings = replace(store, database_url=url)
    queue = JobQueue(settings.redis_url)
    queue._store.client.execute_command("FLUSHALL")
    queue.recovery.open(0)
    make_admin(queue)
    serve(queue)
    made = Lab(settings, queue)
    monkeypatch.setattr(repeating, "_now", made.clock.now)  # when they are added
    yield made
    made.close()


def test_a_job_is_submitted_at_each_time_as_its_owner(lab: Lab) -> None:
    """It has the request of its owner with the whole environment, and the log of the site has each submit."""
    lab.add()
    service = lab.repeater()
    assert [] == lab.to("12:59", service)

    first = lab.to("13:00", service)
    assert first == lab.to("13:01", service)
    lab.end_job()
    second = lab.to("14:00", service)

    assert (1, 2) == (len(first), len(second))
    job = lab.jobs()[-1]
    assert (ADA, "nightly", {"A": "1", "API_KEY": "hush"}) == (job.spec.account, job.spec.name, dict(job.spec.env))
    assert (job.id, NOW + timedelta(hours=2), NOW + timedelta(hours=3)) == (
        lab.only.last_job_id,
        lab.only.last_at,
        lab.only.next_at,
    )
    assert (0, None) == (lab.only.missed, lab.only.begun_job_id)


def test_two_services_submit_a_time_once(lab: Lab) -> None:
    """Both have read that the time has come, and both try."""
    lab.add()
    first, second = lab.repeater(), lab.repeater()
    lab.clock.s = 3600
    due = lab.database.due_repeating(now=lab.clock.now())

    for service in (first, second):
        service._deal(due[0], lab.clock.now())

    assert 1 == len(lab.jobs())
    assert [job.id for job in lab.jobs()] == [lab.only.last_job_id]


def test_the_next_time_is_missed_while_the_last_job_waits(lab: Lab) -> None:
    lab.add()
    service = lab.repeater()
    (job,) = lab.to("13:00", service)

    assert [job] == lab.to("14:00", service)
    assert [job] == lab.to("15:00", service)

    assert (2, NOW + timedelta(hours=3)) == (lab.only.missed, lab.only.missed_at)
    assert lab.only.missed_why is not None
    assert lab.only.missed_why.startswith(f"job {job} ")
    lab.end_job()
    assert 2 == len(lab.to("16:00", service))


def test_with_overlap_a_job_starts_while_the_last_one_waits(lab: Lab) -> None:
    lab.add(overlap=True)
    service = lab.repeater()

    assert [1, 2] == [len(lab.to(each, service)) for each in ("13:00", "14:00")]
    assert 0 == lab.only.missed


def test_an_ended_job_that_only_the_history_knows_holds_up_nothing(lab: Lab) -> None:
    lab.add()
    service = lab.repeater()
    lab.to("13:00", service)
    lab.end_job()
    lab.record()

    assert 1 == len(lab.to("14:00", service))
    assert 0 == lab.only.missed


def test_times_while_nothing_ran_are_missed_and_counted(lab: Lab) -> None:
    """The service comes back at 16:30: the times from 13:00 to 16:00 have no job, and the next one is at 17:00."""
    lab.add()

    assert [] == lab.to("16:30", lab.repeater())

    assert (4, NOW + timedelta(hours=4), DOWN) == (lab.only.missed, lab.only.missed_at, lab.only.missed_why)
    assert NOW + timedelta(hours=5) == lab.only.next_at


def test_a_short_restart_misses_nothing(lab: Lab) -> None:
    """Up to LATE_S late the last time gets its job. The times before it are missed."""
    lab.add()
    lab.clock.s = 4 * 3600 + LATE_S

    lab.repeater().turn()

    assert 1 == len(lab.jobs())
    assert (3, NOW + timedelta(hours=3), DOWN) == (lab.only.missed, lab.only.missed_at, lab.only.missed_why)
    assert NOW + timedelta(hours=4) == lab.only.last_at


def test_with_catch_up_one_job_is_submitted_late(lab: Lab) -> None:
    lab.add(catch_up=True)

    assert 1 == len(lab.to("16:30", lab.repeater()))
    assert (3, NOW + timedelta(hours=4), NOW + timedelta(hours=5)) == (
        lab.only.missed,
        lab.only.last_at,
        lab.only.next_at,
    )


def test_a_request_that_is_refused_is_a_missed_time_with_the_reason(lab: Lab) -> None:
    """The next time is tried again: a device may have come. No id is left begun."""
    lab.add(mem_bytes=2**50)
    service = lab.repeater()

    assert [] == lab.to("13:00", service)
    assert [] == lab.to("14:00", service)

    assert (2, None, None) == (lab.only.missed, lab.only.begun_job_id, lab.only.stopped)
    assert "the largest device can give" in str(lab.only.missed_why)


def test_an_array_repeats(lab: Lab) -> None:
    """The members of each array have ids of their own."""
    lab.add(array=Array(indexes=Indexes.parse("0-4")), overlap=True)
    service = lab.repeater()

    ids = lab.to("13:00", service)
    later = lab.to("14:00", service)

    assert 2 == len(later)
    assert later[1] - ids[0] > 5


def token_of_ada(lab: Lab, **changes: object) -> str:
    """Store an access token of ada, and return its id."""
    secret = new_token()
    token = AccessToken(
        id=secret.id,
        kind=CallerKind.PERSON,
        account=ADA.name,
        uid=ADA.uid,
        scopes=frozenset({Scope.READ, Scope.SUBMIT}),
        name="laptop",
        made_by=ADA.name,
        made_at=NOW,
    )
    lab.database.add_token(replace(token, **changes), digest_of(secret.secret))  # type: ignore[arg-type]
    return secret.id


def test_a_revoked_token_stops_what_it_has_added(lab: Lab) -> None:
    """With the new token of its owner it goes on."""
    old = token_of_ada(lab)
    lab.add(token_id=old, overlap=True)
    service = lab.repeater()
    assert 1 == len(lab.to("13:00", service))

    lab.database.revoke_token(old, at=lab.clock.now())
    assert 1 == len(lab.to("14:00", service))
    assert (NO_PROOF, None) == (lab.only.stopped, lab.only.next_at)
    assert 1 == len(lab.to("15:00", service))

    connection = lab.connection()
    repeating.resumed(connection, repeating.with_proof(connection, lab.only, token_of_ada(lab)))
    assert 2 == len(lab.to("16:00", service))


@pytest.mark.parametrize(
    "changes",
    [
        {"expires_at": NOW + timedelta(minutes=30)},
        {"account": "bob", "uid": 54321},
        {"kind": CallerKind.HOST, "uid": None, "scopes": frozenset()},
    ],
    ids=["expired", "of another account", "of a host"],
)
def test_a_token_that_does_not_prove_the_owner_stops_it(lab: Lab, changes: dict[str, object]) -> None:
    lab.add(token_id=token_of_ada(lab, **changes))

    assert [] == lab.to("13:00", lab.repeater())
    assert NO_PROOF == lab.only.stopped


def test_a_token_without_the_scope_submits_nothing(lab: Lab) -> None:
    """The rights of the owner are judged at each time, and the refusal is in the list."""
    lab.add(token_id=token_of_ada(lab, scopes=frozenset({Scope.READ})))

    assert [] == lab.to("13:00", lab.repeater())
    assert (1, True) == (lab.only.missed, "has no scope submit" in str(lab.only.missed_why))


def test_an_account_that_is_gone_stops_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does an account that has the uid now, under another name."""
    lab.add()
    monkeypatch.setattr(known_accounts, "ACCOUNTS", {ADA.uid: "eve"})
    known_accounts.know()

    assert [] == lab.to("13:00", lab.repeater())
    assert NO_PROOF == lab.only.stopped


def test_a_name_with_a_slash_is_refused(lab: Lab) -> None:
    """It would be a part of the address under which the job is paused and removed, and no route has it."""
    with pytest.raises(BadRequest, match="has no slash: give 'a/b' another --name"):
        lab.add(name="a/b")


def test_the_audit_log_names_the_repeating_job(lab: Lab) -> None:
    lab.add()
    (job,) = lab.to("13:00", lab.repeater())
    lab.identity.start()
    lab.identity.close()

    (entry,) = lab.database.audit_entries(AuditQuery(since=None, account=ADA.name, action="submit", limit=10))
    assert (str(Via.CRON), "submit", (str(job),), {"cron": "nightly"}) == (
        entry.via,
        entry.action,
        entry.jobs,
        dict(entry.detail),
    )


# ---- run now, pause, remove ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked_to_run", [True, False], ids=["run", "its time"])
def test_a_pause_leaves_its_job_to_a_time_that_has_come(lab: Lab, *, asked_to_run: bool) -> None:
    """No service has seen the time before the pause. The job is submitted all the same, once, and no other follows."""
    kept = lab.add()
    lab.clock.s = 1800 if asked_to_run else 3600
    if asked_to_run:
        kept = repeating.due_now(lab.connection(), kept)
    assert repeating.PAUSED == repeating.paused(lab.connection(), kept).stopped
    service = lab.repeater()

    for _ in range(3):
        service.turn()
        lab.clock.s += LEFT_S + 1
    (job,) = lab.to("15:00", service)

    assert (job, repeating.PAUSED, None) == (lab.only.last_job_id, lab.only.stopped, lab.only.next_at)


def test_a_pause_makes_up_for_no_time_that_is_missed(lab: Lab) -> None:
    """It is too old for a job, or the last job still waits."""
    kept = lab.add()
    lab.clock.s = 3600 + LATE_S + 1
    repeating.paused(lab.connection(), kept)
    service = lab.repeater()
    assert [] == lab.to("14:30", service)

    repeating.resumed(lab.connection(), lab.only)
    assert 1 == len(lab.to("15:00", service))
    repeating.paused(lab.connection(), repeating.due_now(lab.connection(), lab.only))
    for _ in range(2):
        service.turn()
        lab.clock.s += LEFT_S + 1

    assert (1, 1, None) == (len(lab.jobs()), lab.only.missed, lab.only.begun_job_id)
    assert "job 1 is queued" == lab.only.missed_why


def test_to_run_now_while_a_time_is_dealt_with_is_a_run_more(lab: Lab) -> None:
    """The service that submits for the time does not take the later one as dealt with."""
    lab.add(overlap=True)
    lab.clock.s = 3600
    service = lab.repeater()
    settle = service._settle

    def run_first(kept: Repetition, at: datetime | None, **words: object) -> None:
        service._settle = settle  # type: ignore[method-assign]
        lab.clock.s += 5
        repeating.due_now(lab.connection(), lab.only)
        settle(kept, at, **words)  # type: ignore[arg-type]

    service._settle = run_first  # type: ignore[assignment,method-assign]
    for _ in range(4):
        service.turn()
        lab.clock.s += LEFT_S + 1

    assert 2 == len(lab.jobs())
    assert lab.only.last_at == NOW + timedelta(hours=1, seconds=5)


# ---- a service that signs jobs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"request": '{"argv":["sh","-c","evil"],"cwd":"/","mem_bytes":1048576}'},
        {"owner": replace(ADA, name="bob", uid=54321)},
        {"times": "* * * * *"},
        {"token_id": "other"},
        {"seal": None},
        {"id": "another"},
        {"seal": "00" * 32},
        {"begun_at": NOW, "begun_job_id": 1, "seal": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_was_changed_in_the_database_is_not_run(lab: Lab, changes: dict[str, object]) -> None:
    """A service with a key submits only what was sent to it by its owner: who writes to the database gains nothing."""
    signer = Signer(KEY)
    made = lab.add(signer=signer)
    lab.database.remove_repeating(made.id)
    lab.database.add_repeating(replace(made, **changes))  # type: ignore[arg-type]

    service = lab.repeater(signer)
    service.turn()
    lab.clock.s = LEFT_S + 1

    service.turn()
    assert [] == lab.to("13:00", service)
    assert "has not signed" in str(lab.only.stopped)
    connection = lab.connection(signer)
    with pytest.raises(Refused, match="has not signed"):
        repeating.with_proof(connection, lab.only, None)


def test_a_signed_repeating_job_makes_signed_jobs(lab: Lab) -> None:
    """Each job has a ticket of its own id. Another key, as after a change of the key, ends that."""
    signer = Signer(KEY)
    lab.add(signer=signer, overlap=True)

    lab.to("13:00", lab.repeater(signer))
    (job,) = lab.jobs()
    signer.check(job, job.id, job.spec.env)
    lab.to("14:00", lab.repeater(Signer(bytes(32))))

    assert [job] == lab.jobs()
    assert "has not signed" in str(lab.only.stopped)


# ---- a service that was killed ---------------------------------------------------------------------------------------


def begun(lab: Lab, *, submitted: bool) -> Repetition:
    """Return a repeating job whose service was killed at 13:00: before the submit, or after it."""
    kept = lab.add()
    lab.clock.s = 3600
    job_id = lab.queue.requests.take_id(None)
    assert lab.database.begin_repeating(kept, lab.clock.now(), job_id, None)
    if submitted:
        service = lab.repeater()
        service._settle = lambda *_args, **_words: None  # type: ignore[assignment,method-assign]
        service._finish(lab.only)
    return lab.only


@pytest.mark.parametrize("submitted", [False, True])
@pytest.mark.parametrize("expired", [False, True])
def test_what_a_killed_service_has_begun_is_finished_once(lab: Lab, submitted: bool, expired: bool) -> None:  # noqa: FBT001
    """The next service submits the job of the time unless it is there, however long that takes."""
    read = begun(lab, submitted=submitted)
    if expired:  # the id and the key of the submit were forgotten
        client = lab.queue._store.client
        for name in client.execute_command("KEYS", f"{keys.PREFIX}*"):
            if "taken" in str(name) or "idem" in str(name):
                client.execute_command("DEL", name)
    services = lab.repeater(), lab.repeater()
    for _ in range(4):
        for each in services:
            each.turn()
        lab.clock.s += LEFT_S + 1

    (job,) = lab.jobs()
    assert (job.id, NOW + timedelta(hours=1), None) == (lab.only.last_job_id, lab.only.last_at, lab.only.begun_job_id)
    assert (job.id == read.begun_job_id) is (submitted or not expired)
    assert NOW + timedelta(hours=2) == lab.only.next_at


def test_a_store_that_does_not_answer_costs_no_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id was taken, the submit failed: it is sent once the store answers, and the answer may have been lost."""
    lab.add()
    service, submit = lab.repeater(), Requests.submit

    def lost(self: Requests, *args: object, **words: object) -> Job:
        submit(self, *args, **words)  # type: ignore[arg-type]
        raise StoreUnreachable("no answer")

    monkeypatch.setattr(Requests, "submit", lost)
    assert 1 == len(lab.to("13:00", service))
    assert lab.only.last_job_id is None
    monkeypatch.setattr(Requests, "submit", submit)
    for minute in ("13:01", "13:02"):
        assert 1 == len(lab.to(minute, service))

    assert [job.id for job in lab.jobs()] == [lab.only.last_job_id]


# ---- what cannot be added --------------------------------------------------------------------------------------------


def test_the_same_request_again_changes_nothing_and_another_one_is_refused(lab: Lab) -> None:
    made = lab.add()

    assert made == lab.add()
    with pytest.raises(Refused, match="you have a repeating job nightly: gpuqueue cron remove nightly"):
        lab.add("0 4 * * *")
    assert "other" == lab.add("0 4 * * *", name="other").name


def test_an_account_has_only_so_many(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeating, "MOST", 1)
    lab.add()

    with pytest.raises(Refused, match="you have 1 repeating jobs"):
        lab.add(name="other")


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"waits": Waits(begin_at=NOW)}, "leave out --begin"), ({"retry_of": 3}, "cannot be a retry")],
)
def test_a_request_with_a_time_of_its_own_or_of_another_job_is_refused(
    lab: Lab, changes: dict[str, object], why: str
) -> None:
    with pytest.raises(BadRequest, match=why):
        lab.add(**changes)


def test_a_recorder_submits_only_for_its_own_account(lab: Lab) -> None:
    """It may not know the accounts that the service knows, and stops nothing of theirs."""
    lab.add()

    assert [] == lab.to("13:00", lab.repeater(only_uid=ADA.uid + 1))
    assert (None, 0) == (lab.only.stopped, lab.only.missed)
    assert 1 == len(lab.to("13:01", lab.repeater(only_uid=ADA.uid)))


def test_a_request_that_cannot_be_read_stops_it_and_no_other(lab: Lab) -> None:
    """As of a newer version, after a downgrade."""
    bad = lab.add(name="bad")
    lab.add(name="good")
    lab.database.remove_repeating(bad.id)
    lab.database.add_repeating(replace(bad, request='{"argv":7}'))

    assert 1 == len(lab.to("13:00", lab.repeater()))

    stopped = {each.name: each.stopped for each in lab.database.repeating_jobs()}
    assert stopped["good"] is None
    assert "cannot be read" in str(stopped["bad"])


def test_an_admin_is_no_owner(lab: Lab) -> None:
    """A repeating job of root of this machine has the rights of root, and that of ada those of ada."""
    lab.add()
    caller = lab.identity.caller_of_repeating(ADA, None)

    assert caller is not None
    assert ("ada", Via.CRON, False) == (caller.account, caller.via, AccessPolicy.parse("", "").is_admin(caller))
