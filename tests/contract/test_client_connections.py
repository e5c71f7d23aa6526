"""One suite for the three connections of a client: the store itself, a unix socket, and HTTPS with a token."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from factories import make_offer, must_claim, serve
from git_trees import make, write
from service_fixtures import ServedSite

from gpuqueue.cli.output.job_story import failed_lines
from gpuqueue.client import Client
from gpuqueue.client.access import Access
from gpuqueue.client.devices import Devices
from gpuqueue.client.fetching import RunFiles
from gpuqueue.client.history import History
from gpuqueue.client.jobs import Jobs
from gpuqueue.client.logs import Logs
from gpuqueue.client.remote.access import RemoteAccess
from gpuqueue.client.remote.devices import RemoteDevices
from gpuqueue.client.remote.history import RemoteHistory
from gpuqueue.client.remote.http import HttpConnection
from gpuqueue.client.remote.jobs import RemoteJobs
from gpuqueue.client.remote.logs import RemoteLogs
from gpuqueue.client.remote.operations import OPERATIONS
from gpuqueue.client.remote.repeating import RemoteCron
from gpuqueue.client.remote.stored_snapshots import RemoteSnapshots
from gpuqueue.client.repeating import Cron, request_of
from gpuqueue.client.stored_snapshots import Snapshots
from gpuqueue.errors import (
    BadRequest,
    GpuQueueError,
    Impossible,
    JobNotFound,
    NotAuthenticated,
    Refused,
    ServiceUnreachable,
    StoreUnreachable,
    SubmittedInPart,
    WaitTimeout,
)
from gpuqueue.files.blob_store import blob_store_of
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.run import Ending, Record, RunDevice
from gpuqueue.model.run_figures import RunFigures
from gpuqueue.queue.requests import Requests
from gpuqueue.service import app
from workers.services.snapshot_prune import collect_snapshots

KINDS = ("direct", "unix", "https")

#: Public methods that only the direct client can have, and why.
ONLY_DIRECT = {
    "path": "the path of a log means something only on the host of the run",
    "path_in": "as path",
    "path_or_none": "as path",
    "runs_to_read": "a part of follow, which the service uses",
    "turned": "as runs_to_read",
}
#: Public methods that a remote group inherits: they only call others of their group.
SHARED = {"submit", "list", "wait", "search", "folded", "params"}


@pytest.fixture(params=KINDS)
def client(served: ServedSite, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Return a client for each kind."""
    serve(served.queue)  # a heartbeat of the device
    with served.client(request.param) as opened:
        yield opened


@pytest.fixture
def direct(served: ServedSite) -> Iterator[Client]:
    """Return a client that uses the store itself."""
    with served.client("direct") as opened:
        yield opened


def submitted(client: Client, **changes: Any) -> Job:
    """Submit a small job."""
    return client.jobs.submit(["true"], **{"mem": "1M", "env": {"A": "1"}, **changes})


def ended(served: ServedSite, code: int = 0, **changes: Any) -> Job:
    """Return a job that ran and ended, and that the history has. Its log has three lines."""
    with served.client("direct") as client:
        for left in client.jobs.list():  # of an earlier test: it would be claimed instead
            client.jobs.cancel(left.id)
        client.jobs.submit(["true"], mem="1M", priority="urgent", **changes)
    claim = must_claim(served.queue)
    device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**20)
    log = served.directory / str(claim.job_id) / claim.token / "log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"one\ntwo \xff\nthree\n")
    served.queue.runs.started(claim.job_id, claim.token, lease_s=300, log_path=str(log), devices=(device,))
    state = JobState.FAILED if code else JobState.SUCCEEDED
    ending = Ending.from_status(code)
    served.queue.runs.finish(claim.job_id, claim.token, state=state, ending=ending, duration_s=1.0, devices=(device,))
    served.record()
    with served.client("direct") as client:
        return client.jobs.get(claim.job_id)


@pytest.fixture(scope="module")
def old(served: ServedSite) -> Job:
    """Return a failed job that the history has."""
    return ended(served, code=7, env={"A": "1"}, name="old")


# ---- the same methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "remote"),
    [
        (Jobs, RemoteJobs),
        (History, RemoteHistory),
        (Devices, RemoteDevices),
        (Logs, RemoteLogs),
        (Access, RemoteAccess),
        (Snapshots, RemoteSnapshots),
        (Cron, RemoteCron),
    ],
    ids=lambda each: each.__name__,
)
def test_each_public_method_is_there_over_each_connection(here: type, remote: type) -> None:
    """A public method of a group has a remote counterpart with the same parameters."""

    # A method that means something only on the host of a run is in ONLY_DIRECT, with the reason.
    def public(kind: type) -> dict[str, Any]:
        return {name: each for name, each in inspect.getmembers(kind, callable) if not name.startswith("_")}

    for name, method in public(here).items():
        if name in ONLY_DIRECT and name not in public(remote):
            continue
        assert name in vars(remote).keys() | SHARED, f"{here.__name__}.{name} has no counterpart in {remote.__name__}"
        wanted = [*inspect.signature(method).parameters]
        assert wanted == [*inspect.signature(public(remote)[name]).parameters], name
    assert set() == public(remote).keys() - public(here).keys()


def test_the_service_serves_each_operation_in_the_list_of_the_client() -> None:
    served = {(each.method, each.path) for each in app.OPERATIONS}

    assert set() == {name for name, each in OPERATIONS.items() if (each.method, each.path) not in served}


def test_each_method_of_each_group_is_called_in_this_file() -> None:
    text = Path(__file__).read_text()
    for kind in (Jobs, History, Devices, Logs, RunFiles, Access, Snapshots, Cron):
        for name in dir(kind):
            if not name.startswith("_") and name not in ONLY_DIRECT:
                assert f".{name}(" in text or f'"{name}"' in text, f"{kind.__name__}.{name} is not tested here"


# ---- the same answers ------------------------------------------------------------------------------------------------


READS: dict[str, Callable[[Client, Job, Job], Any]] = {
    "get": lambda client, job, _: client.jobs.get(job.id),
    "get ended": lambda client, _, old: client.jobs.get(str(old.id)),
    "show": lambda client, job, _: client.jobs.show(job.id),
    "show ended": lambda client, _, old: _tokenless(client.jobs.show(old.id)),
    "newest": lambda client, _, old: _tokenless(client.jobs.newest(old.id)),
    "recorded": lambda client, _, old: _envless(_tokenless(client.jobs.recorded(old))),
    "list": lambda client, job, _: [each.id for each in client.jobs.list(user=job.spec.account.name)],
    "listing": lambda client, *_: [_job_envless(each) for each in client.jobs.listing(limit=3).jobs],
    "listing filtered": lambda client, job, _: [
        each.id for each in client.jobs.listing(name=job.spec.name, states=["held"], tags=[], limit=5).jobs
    ],
    "choose_ended": lambda client, *_: [each.name for each in client.jobs.choose_ended(name="old", since="1h")],
    "folded": lambda client, *_: [
        (row.record.job.id, row.last_id, dict(row.members)) for row in client.history.folded(limit=1000)
    ],
    "rows_of": lambda client, *_: [row.last_id for row in client.history.rows_of(HistoryQuery.of(reverse=True))],
    "records_of": lambda client, *_: [
        each.job.id for each in client.history.records_of(HistoryQuery.of(states=["failed"], min_duration="0.5s"))
    ],
    "params": lambda client, *_: client.history.params(client.history.search(limit=1000)),
    "log of a run": lambda client, _, old: _log_of_run(client, old),
    "tokens": lambda client, *_: [(each.id, each.account, each.scopes) for each in client.access.tokens()],
    "listing after": lambda client, job, _: [each.id for each in client.jobs.listing(after=job.id - 1).jobs],
    "labels": lambda client, job, _: dict(client.jobs.labels([job.id, 10**6])),
    "senders": lambda client, *_: list(client.jobs.senders()),
    "nobody_sends": lambda client, *_: client.jobs.nobody_sends(),
    "choose": lambda client, job, _: [each.name for each in client.jobs.choose(name=job.spec.name, state="waiting")],
    "named": lambda client, job, _: list(client.jobs.named(f"{job.id}-{job.id + 5}")),
    "must_own": lambda client, *_: client.jobs.must_own(client.account.name),
    "search": lambda client, _, old: [
        _envless(_tokenless(each)) for each in client.history.search(states=["failed"], since="1h", after_id=old.id + 1)
    ],
    "search all": lambda client, *_: [each.job.id for each in client.history.search(limit=1000, reverse=True)],
    "has": lambda client, job, _: (client.history.has(job.id), client.history.has(10**9)),
    "never_began": lambda client, job, _: client.history.never_began(job.id),
    "stats": lambda client, *_: client.history.stats("day", since="2d", until="1h").by,
    "course": lambda client, *_: len(client.history.course(since="2d", steps=7).steps),
    "learning": lambda client, *_: _replay(client),
    "devices": lambda client, *_: [replace(each, seen_s_ago=0.0) for each in client.devices.list()],
    "are_known": lambda client, *_: client.devices.are_known(),
    "limits": lambda client, *_: client.devices.limits(),
    "spec_again": lambda client, _, old: replace(
        client.jobs.spec_again(old.id, env={"B": "2"}, mem="2M"), account=old.spec.account, git=None
    ),
    "retries": lambda client, _, old: client.jobs.retries(old.id),
    "log end": lambda client, _, old: client.logs.end(client.jobs.newest(old.id), 6),
    "progress": lambda client, job, _: client.logs.progress([job]),
    "figures": lambda client, job, _: client.logs.figures(job.id) or RunFigures(),
    "follow": lambda client, _, old: b"".join(client.logs.follow(old.id)),
    "account": lambda client, *_: (client.account.name, client.account.uid),
    "snapshots": lambda client, *_: list(client.snapshots.list()),
}


def _log_of_run(client: Client, job: Job) -> bytes:
    tail = client.logs.tail()
    client.logs.turn(tail, client.jobs.show(job.id), run=1)
    return b"".join(tail.rest())


def _replay(client: Client) -> tuple[int, int, Any]:
    report = client.history.learning(since="2d")
    return report.jobs, report.unclear, report.rules


def _tokenless(record: Record) -> Record:
    """Return *record* without tokens, which the service never shows."""
    return replace(record, runs=tuple(replace(run, token="") for run in record.runs))


def _job_envless(job: Job) -> Job:
    """Return *job* without its environment, which lists of the service leave out."""
    return replace(job, spec=replace(job.spec, env={}))


def _envless(record: Record) -> Record:
    return replace(record, job=_job_envless(record.job))


@pytest.mark.full
@pytest.mark.parametrize("what", READS)
def test_each_connection_gives_the_same_answer(direct: Client, client: Client, old: Job, what: str) -> None:
    """A read through the service gives the value that the store and the history give."""
    job = submitted(direct, name=f"waits-{what.replace(' ', '-')}", hold=True)

    expected, actual = READS[what](direct, job, old), READS[what](client, job, old)

    if what in {"newest", "show ended"}:
        expected, actual = _envless(expected), _envless(actual)
    assert expected == actual


def test_why_a_job_waits_is_explained_alike(direct: Client, client: Client) -> None:
    job = submitted(direct, hold=True)

    expected, actual = direct.jobs.why(job.id), client.jobs.why(job.id)

    assert expected.explanation is not None
    assert actual.explanation is not None
    assert [each.obstacle for each in expected.explanation.devices] == [
        each.obstacle for each in actual.explanation.devices
    ]
    assert expected.devices.keys() == actual.devices.keys()


def test_the_events_of_a_job_come_in_the_same_order_without_the_tokens_of_runs(
    direct: Client, client: Client, old: Job
) -> None:
    expected, actual = direct.jobs.events(old.id), client.jobs.events(old.id)

    assert [each.act for each in expected] == [each.act for each in actual]
    assert expected[0] == actual[0]


def test_a_list_is_queued_in_its_order_and_what_is_refused_is_named(direct: Client, client: Client) -> None:
    """Each job is judged for itself. Variables that all have are sent once, and arrive with each."""
    env = {"SHARED": "1"}
    good = [JobRequest(["true"], mem="1M", name=f"n{number}", env={**env, "OWN": str(number)}) for number in range(3)]
    jobs = client.jobs.submit_many(good)

    assert ["n0", "n1", "n2"] == [job.spec.name for job in jobs]
    assert sorted(job.id for job in jobs) == [job.id for job in jobs]
    for number, job in enumerate(jobs):
        stored = direct.jobs.get(job.id)
        assert ("1", str(number)) == (stored.spec.env["SHARED"], stored.spec.env["OWN"])

    twin = client.jobs.submit(["true"], mem="1M", dedupe="twin", hold=True)
    mixed = [good[0], JobRequest(["true"], mem="900G"), JobRequest(["true"], mem="1M", dedupe="twin")]
    with pytest.raises(SubmittedInPart, match=r"1 of 3 jobs were refused.* number 2 of the list: .*900G") as caught:
        client.jobs.submit_many(mixed)
    assert ["n0", None, twin.id] == [
        caught.value.jobs[0].spec.name,
        caught.value.jobs[1],
        caught.value.jobs[2].id,
    ]
    assert [(1, Impossible)] == [(place, type(error)) for place, error in caught.value.refusals.items()]
    before = len(direct.jobs.list())
    with pytest.raises(BadRequest):
        client.jobs.submit_many([good[0], JobRequest(["true"], mem="much")])
    assert before == len(direct.jobs.list())
    assert [] == [*client.jobs.submit_many([])]
    client.jobs.cancel(twin.id)


def test_a_list_whose_answer_was_lost_makes_no_job_twice(
    direct: Client, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent again with the same key, which is one for the whole list, and gets the same jobs."""
    is_direct = client.service is None
    where, name = (Requests, "submit_many") if is_direct else (HttpConnection, "ask")
    sent, real = 0, getattr(where, name)

    def lost(self: Any, *words: Any, **named: Any) -> Any:
        nonlocal sent
        answer = real(self, *words, **named)
        sent += 1
        if sent == 1:
            raise StoreUnreachable("lost", is_unanswered=True) if is_direct else OSError("the answer is lost")
        return answer

    before = len(direct.jobs.list())
    monkeypatch.setattr(where, name, lost)
    jobs = client.jobs.submit_many([JobRequest(["true"], mem="1M")] * 5)

    assert 2 == sent
    assert before + 5 == len(direct.jobs.list())
    assert 5 == len({job.id for job in jobs})


def test_a_dry_run_says_what_would_be_submitted_and_submits_nothing(direct: Client, client: Client) -> None:
    """The service decides what it would decide at a submit: here the memory."""
    before = [job.id for job in direct.jobs.list()]
    request = JobRequest(["true"], mem="1M", env={"A": "1"}, tags=["t"], snapshot=False)

    spec = client.jobs.spec_of(request)

    assert (("true",), 2**20, "1", ("t",)) == (spec.argv, spec.mem_bytes, spec.env["A"], spec.tags)
    with pytest.raises(BadRequest, match="--mem auto"):
        client.jobs.spec_of(JobRequest(["true"], snapshot=False))
    assert before == [job.id for job in direct.jobs.list()]


def test_a_script_is_judged_alike_over_each_connection(client: Client, tmp_path: Path) -> None:
    """It lies on the submitter's machine, whoever keeps the queue."""
    (tmp_path / "dos.sh").write_bytes(b"#!/bin/sh\r\n")
    (tmp_path / "seeds.sh").write_bytes(b"#!/bin/sh\n#SBATCH -J seeds\n")
    notes: list[str] = []

    with pytest.raises(BadRequest, match=r"dos\.sh cannot run: its first line ends with"):
        client.jobs.submit("dos.sh", mem="1M", cwd=tmp_path, snapshot=False)
    spec = client.jobs.spec_of(JobRequest("dos.sh", mem="1M", cwd=tmp_path, snapshot=False, anyway=True))
    assert ("/bin/sh", str(tmp_path / "dos.sh")) == spec.argv
    client.jobs.spec_of(JobRequest("seeds.sh", mem="1M", cwd=tmp_path, snapshot=False), note=notes.append)

    assert ["seeds.sh: its #SBATCH line is not read here: gpuqueue submit seeds.sh reads them"] == notes


# ---- the same errors -------------------------------------------------------------------------------------------------


ERRORS: dict[str, Callable[[Client, Job, Job], Any]] = {
    "no such job": lambda client, *_: client.jobs.get(10**9),
    "no job's name": lambda client, *_: client.jobs.get("x"),
    "no member": lambda client, job, _: client.jobs.get(f"{job.id}_5"),
    "cancel unknown": lambda client, *_: client.jobs.cancel(10**9),
    "cancel ended": lambda client, _, old: client.jobs.cancel(old.id),
    "hold ended": lambda client, _, old: client.jobs.hold(old.id),
    "release ended": lambda client, _, old: client.jobs.release(old.id),
    "move ended": lambda client, _, old: client.jobs.move(old.id),
    "edit ended": lambda client, _, old: client.jobs.edit(old.id, mem="2M"),
    "extend ended": lambda client, _, old: client.jobs.extend(old.id, "2h"),
    "extend badly": lambda client, job, _: client.jobs.extend(job.id, "a while"),
    "forward waiting": lambda client, job, _: client.jobs.forward(job.id, 6006),
    "forward badly": lambda client, job, _: client.jobs.forward(job.id, 70_000),
    "forward at no address": lambda client, job, _: client.jobs.forward(job.id, 6006, address="here"),
    "extend without a limit": lambda client, job, _: client.jobs.extend(job.id, 60),
    "edit nothing": lambda client, job, _: client.jobs.edit(job.id),
    "edit badly": lambda client, job, _: client.jobs.edit(job.id, mem="much"),
    "edit device": lambda client, job, _: client.jobs.edit(job.id, device="nowhere:9"),
    "no tag": lambda client, job, _: client.jobs.tag(job.id),
    "bad tag": lambda client, job, _: client.jobs.tag(job.id, "two words"),
    "retry waiting": lambda client, job, _: client.jobs.retry(job.id),
    "too large": lambda client, *_: client.jobs.submit(["true"], mem="900G"),
    "no memory": lambda client, *_: client.jobs.submit(["true"]),
    "no command": lambda client, *_: client.jobs.submit([], mem="1M"),
    "no file": lambda client, *_: client.jobs.submit("absent.py", mem="1M"),
    "bad dependency": lambda client, *_: client.jobs.submit(["true"], mem="1M", after=10**9),
    "unknown target": lambda client, *_: client.jobs.submit(["true"], mem="1M", on_end="nobody"),
    "no device": lambda client, *_: client.jobs.submit(["true"], mem="1M", device="nowhere:9"),
    "drain unknown": lambda client, *_: client.devices.drain("nowhere:9"),
    "drain in the past": lambda client, *_: client.devices.drain("0", at="2020-01-01"),
    "drain nothing": lambda client, *_: client.devices.drain(),
    "long reason": lambda client, *_: client.devices.drain("0", reason="x" * 300),
    "reserve unknown": lambda client, *_: client.devices.reserve("nowhere:9", until="2h"),
    "reserve in the past": lambda client, *_: client.devices.reserve("0", until="2020-01-01"),
    "reserve backwards": lambda client, *_: client.devices.reserve("0", begin="2h", until=datetime.now(timezone.utc)),
    "reserve for nobody": lambda client, *_: client.devices.reserve("0", until="2h", users=["a b"]),
    "cancel no reservation": lambda client, *_: client.devices.cancel_reservation(10**9),
    "cancel what cannot be a reservation": lambda client, *_: client.devices.cancel_reservation(-7),
    "resume unknown": lambda client, *_: client.devices.resume("77"),
    "lost unknown": lambda client, *_: client.devices.lost("nowhere"),
    "lost nonsense": lambda client, *_: client.devices.lost("no host"),
    "bad search": lambda client, *_: client.history.search(states=["odd"]),
    "after unknown": lambda client, *_: client.history.search(sort="peak", after_id=10**9),
    "bad period": lambda client, *_: client.history.stats(since="1h", until="2h"),
    "bad steps": lambda client, *_: client.history.course(steps=0),
    "bad period of learning": lambda client, *_: client.history.learning(since="1h", until="2h"),
    "no such run": lambda client, _, old: client.logs.turn(client.logs.tail(), client.jobs.show(old.id), run=9),
    "retry of the unended": lambda client, *_: client.jobs.choose_ended(states=["running"]),
    "retry of no state": lambda client, *_: client.jobs.choose_ended(states=[]),
    "folded by peak": lambda client, *_: client.history.folded(sort="peak"),
    "bad pool": lambda client, *_: client.jobs.listing(states=["odd"]),
    "revoke unknown": lambda client, *_: client.access.revoke_token("aaaaaaaa"),
    "unknown snapshot": lambda client, *_: client.snapshots.delete("abcdef0"),
    "short address": lambda client, *_: client.snapshots.delete("abc"),
    "no address": lambda client, *_: client.snapshots.delete("../x"),
    "difference of no code": lambda client, job, _: client.snapshots.diff(job.id),
    "difference of no job": lambda client, *_: client.snapshots.diff(10**9),
    "bad state": lambda client, *_: client.jobs.choose(state="odd"),
    "empty range": lambda client, *_: client.jobs.named("900000-900001"),
    "bad range": lambda client, *_: client.jobs.named("1-2", which="nonsense"),
    "log of waiting": lambda client, job, _: client.logs.turn(client.logs.tail(), client.jobs.newest(job.id)),
    "files of no job's name": lambda client, *_: client.files.fetch("x"),
    "files of several jobs": lambda client, *_: client.files.list("17_1-2"),
    "files of an unknown job": lambda client, *_: client.files.fetch(10**9),
    "files of waiting": lambda client, job, _: client.files.list(job.id),
    "files without code": lambda client, _, old: client.files.fetch(old.id),
    "kept files of an unknown job": lambda client, *_: client.files.kept(10**9),
    "kept files without code": lambda client, _, old: client.files.kept(old.id),
    "bad patterns": lambda client, _, old: client.files.list(old.id, ["#"]),
    "follow unknown": lambda client, *_: list(client.logs.follow(10**9)),
    "wait unknown": lambda client, *_: client.jobs.wait(10**9, timeout_s=5),
    "wait too long": lambda client, job, _: client.jobs.wait(job.id, timeout_s=0.1),
    "wait nonsense": lambda client, job, _: client.jobs.wait(job.id, timeout_s=float("nan")),
}


@pytest.mark.full
@pytest.mark.parametrize("what", ERRORS)
def test_an_error_has_the_same_class_the_same_line_and_the_same_exit_code(
    direct: Client, client: Client, old: Job, what: str
) -> None:
    job = submitted(direct, hold=True)

    with pytest.raises(GpuQueueError) as expected:
        ERRORS[what](direct, job, old)
    with pytest.raises(GpuQueueError) as actual:
        ERRORS[what](client, job, old)

    assert (str(expected.value), expected.value.exit_code) == (str(actual.value), actual.value.exit_code)
    assert actual.type in expected.type.__mro__


# ---- changes ---------------------------------------------------------------------------------------------------------


def test_a_job_is_submitted_with_all_that_it_asks_for(client: Client, direct: Client, tmp_path: Path) -> None:
    """All values of a submit arrive: command, environment, directory, limits, dependencies, tags, notes."""
    first = submitted(client, hold=True)
    begin = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=2)

    job = client.jobs.submit(
        ["python", "-c", "print('\udcff')", "{a}"],
        mem="3M", env=["A=é", "B="], cwd=tmp_path, priority="high", time_limit="1h", signal="USR1@60", after=first.id,
        begin=begin, retries=2, retry_on="failed", tags=["x", "y"], name="all", sweep={"a": [1, 2]}, at_once=1,
    )  # fmt: skip

    known = direct.jobs.get(job.id).spec
    assert known == job.spec
    assert ("é", "", str(tmp_path)) == (known.env["A"], known.env["B"], known.cwd)
    assert "print('\udcff')" == known.argv[2]
    assert direct.account.name == known.account.name
    assert 2 == len(known.array or ())


def test_the_whole_device_the_time_limit_and_the_rule_of_a_probe_reach_the_queue(
    client: Client, direct: Client
) -> None:
    # A malformed rule is refused.
    probe = {"mem": None, "exclusive": True, "time_limit": "10m"}
    job = submitted(client, **probe, probe="flat=60,steps=9", hold=True)

    known = direct.jobs.get(job.id).spec
    assert ("flat=60,steps=9", 600.0, True) == (known.probe, known.time_limit_s, known.placement.whole)
    with pytest.raises(BadRequest, match="does not describe a probe"):
        submitted(client, **probe, probe="flat")


def test_a_waiting_job_is_changed(client: Client, direct: Client) -> None:
    """Hold, release, move, edit, tag, note and cancel take effect and give the new state."""
    job = submitted(client)

    assert JobState.HELD is client.jobs.hold(job.id).state
    assert JobState.QUEUED is client.jobs.release(job.id).state
    assert JobState.QUEUED is client.jobs.move(job.id)
    assert 2 * 2**20 == client.jobs.edit(job.id, mem="2M", begin="2h", device="0").spec.mem_bytes
    client.jobs.edit(job.id, time_limit="1h")
    assert 10_800 == client.jobs.extend(job.id, "2h").spec.time_limit_s
    client.jobs.tag(job.id, "a", "b")
    client.jobs.tag(job.id, "a", remove=True)
    client.jobs.note(job.id, "mind the gap")
    known = direct.jobs.get(job.id)
    assert (("b",), "mind the gap", None) == (known.tags, known.note, None if known.front else 0)
    assert JobState.CANCELLED is client.jobs.cancel(job.id).state
    assert client.jobs.cancel(job.id).already


def test_a_change_to_a_part_says_which_members_it_did_not_reach(client: Client) -> None:
    job = submitted(client, array="0-3")

    done = client.jobs.cancel(f"{job.id}_1-2")
    again = client.jobs.cancel(f"{job.id}_1-3")

    assert JobState.CANCELLED is done.state
    assert ["1-2"] == [str(indexes) for _, indexes in again.missed]
    client.jobs.cancel(job.id)


def test_an_array_says_which_members_failed_and_what_ran_them_again(
    served: ServedSite, client: Client, direct: Client
) -> None:
    """`show` and `retry` read the members, the end of a log and the retries over each connection."""
    first = ended(served, code=1, array="0-2", name="typo").member
    assert first is not None
    direct.jobs.cancel(first.array_id)
    again = [direct.jobs.retry(name, env={"A": "1"}).id for name in (first.array_id, str(first))]
    served.record()

    array = client.jobs.get(first.array_id)

    assert [
        f"  failed     {first}",
        f"  such as    {first}: exit 1; its log ends with: three",
        f"  retried    as job {again[0]}, {again[1]}",
    ] == [*failed_lines(client, array)]
    assert (again[1],) == client.jobs.retries(str(first))
    for each in again:
        direct.jobs.cancel(each)


def test_the_values_of_a_sweep_have_commas_and_come_from_a_file(client: Client, tmp_path: Path) -> None:
    """Each line of a file of the submitter is a member, whatever characters it has."""
    lines = tmp_path / "lines.txt"
    lines.write_text("a,b [c\n0..4\n")

    job = client.jobs.submit(["x", "{line} {size}"], mem="1M", each_line=lines, sweep=["size=[1,2],[3,4]"], hold=True)

    assert ["x 'a,b [c [1,2]'", "x '0..4 [3,4]'"] == [client.jobs.get(f"{job.id}_{n}").spec.command for n in (0, 3)]
    client.jobs.cancel(job.id)


def test_limits_that_no_host_can_enforce_are_refused(served: ServedSite, client: Client) -> None:
    """A submit, an edit and a release are refused, instead of a job that no release gets going."""
    serve(served.queue)  # a host that does not say
    held = submitted(client, cpus=4, hold=True)
    other = submitted(client, hold=True)
    serve(served.queue, limits_jobs=False)

    for act in (
        lambda: submitted(client, cpu_mem="8G"),
        lambda: client.jobs.edit(other.id, cpus=2),
        lambda: client.jobs.release(held.id),
    ):
        with pytest.raises((Impossible, Refused), match="no host can limit processors and host memory"):
            act()

    client.jobs.edit(held.id, cpus="none")
    assert JobState.QUEUED is client.jobs.release(held.id).state
    for each in (held, other):
        client.jobs.cancel(each.id)


def test_a_wait_for_an_array_reports_that_its_members_are_held(served: ServedSite, client: Client) -> None:
    """Such a wait said nothing for ever. The array has the reason of its first member."""
    for left in client.jobs.list():  # of an earlier test: it would be claimed instead
        client.jobs.cancel(left.id)
    job = submitted(client, array="0-1")
    for run in (must_claim(served.queue), must_claim(served.queue)):
        served.queue.runs.lose(run.job_id, run.token, loss_limit=1, detail="gone")
    reported: list[Job] = []

    with pytest.raises(WaitTimeout):
        list(client.jobs.ends([job.id], timeout_s=0, held=reported.append))

    assert [(job.id, JobState.HELD, WaitReason.LOST_TOO_OFTEN)] == [(j.id, j.state, j.reason) for j in reported]
    client.jobs.cancel(job.id)


def test_a_second_submit_with_the_key_returns_the_first_job_and_says_so(client: Client) -> None:
    found: list[Job] = []
    job = submitted(client, dedupe="key", hold=True)

    again = client.jobs.submit_spec(replace(job.spec), found=found.append)
    request = JobRequest(["true"], mem="1M", dedupe="key")
    assert job.id == client.jobs.submit_request(request, found=found.append).id

    assert job.id == again.id
    assert [job.id] * 2 == [each.id for each in found]
    client.jobs.cancel(job.id)


def test_an_ended_job_is_retried(client: Client, old: Job) -> None:
    """A retry is a new job with the environment of the first, and with the changes."""
    new = client.jobs.retry(old.id, env={"B": "2"}, mem="2M")

    actual = (new.spec.retry_of, new.spec.env["A"], new.spec.env["B"], new.spec.mem_bytes)
    assert (old.id, "1", "2", 2 * 2**20) == actual


def test_a_drain_by_index_means_the_device_of_this_host_with_its_reason(client: Client) -> None:
    (drained,) = client.devices.drain("0", reason="the fan")
    (resumed,) = client.devices.resume(all_here=True)

    assert ("the fan", None) == (drained.drained, resumed.drained)


def test_a_planned_drain_gives_the_devices_of_a_host_an_end(client: Client) -> None:
    (device,) = client.devices.list()
    at = datetime.now(timezone.utc) + timedelta(hours=2)
    (planned,) = client.devices.drain(device.host, at=at, reason="new fans")
    (moved,) = client.devices.drain("0", at="3h")
    (resumed,) = client.devices.resume(device.host)

    assert ((), "new fans") == (planned.drains, planned.planned_drains[0].why)
    assert planned.ends_at is not None
    assert abs(planned.ends_at - at) < timedelta(seconds=1)
    assert moved.ends_at is not None
    assert timedelta(minutes=59) < moved.ends_at - at < timedelta(minutes=61)
    assert resumed.ends_at is None


def test_a_device_is_reserved_listed_and_given_back(client: Client) -> None:
    made = client.devices.reserve("0", begin="1h", until="30m", users=["eve", "ann"], reason="course")
    try:
        (device,) = client.devices.list()
        assert (made,) == tuple(client.devices.reservations()) == device.calendar
        assert ((device.device.uuid,), ("eve", "ann"), "course") == (made.devices, made.users, made.why)
        assert timedelta(minutes=30) == made.ends_at - made.begins_at, "a duration counts from the start"
    finally:
        client.devices.cancel_reservation(made.id)
    assert () == tuple(client.devices.reservations())


@pytest.mark.full
def test_waits_end_with_the_jobs_and_report_a_held_job_once(client: Client) -> None:
    first, second = submitted(client), submitted(client, hold=True)
    held: list[int] = []
    client.jobs.cancel(first.id)

    ends = client.jobs.ends([second.id, first.id], timeout_s=30, held=lambda job: held.append(job.id))
    assert first.id == next(ends)[0]
    client.jobs.cancel(second.id)
    name, job = next(ends)

    assert (second.id, JobState.CANCELLED) == (name, job.state)
    assert [second.id] == held
    assert JobState.CANCELLED is client.jobs.wait(second.id).job.state
    assert [JobState.CANCELLED] == [each.state for each in client.jobs.watch(second.id)]


def test_the_log_of_a_record_without_tokens_is_found(client: Client, old: Job) -> None:
    """The server of one's own queue answers without tokens: `logs ARRAY` said that the logs were on this host."""
    assert client.logs.end(client.jobs.show(old.id).without_secrets(), 1000).endswith(b"three\n")


def test_a_log_is_read_from_anywhere(client: Client, old: Job) -> None:
    """A log is read from its beginning, from its last lines and from a time, byte by byte."""
    record = client.jobs.newest(old.id)

    def read(**how: Any) -> bytes:
        tail = client.logs.tail()
        client.logs.turn(tail, record)
        if "lines" in how:
            tail.skip_to_last(how["lines"])
        if "since" in how:
            assert not tail.skip_to_time(how["since"])
        return b"".join(tail.rest()) + b"".join(tail.rest())

    assert b"one\ntwo \xff\nthree\n" == read() == read(since=datetime.now(timezone.utc))
    assert b"three\n" == read(lines=1)
    assert b"" == read(lines=0)


# ---- who calls -------------------------------------------------------------------------------------------------------


def test_no_answer_has_the_secrets_of_a_job(served: ServedSite, direct: Client) -> None:
    """The service keeps the secrets of a job for its run, and shows them to nobody: not even to the owner."""
    with served.client("https") as remote:
        job = submitted(remote, env={"API_KEY": "hush", "A": "1"})
        seen = [job, remote.jobs.get(job.id), remote.jobs.show(job.id).job, remote.jobs.edit(job.id, name="other")]

    assert "hush" == direct.jobs.get(job.id).spec.env["API_KEY"]
    assert [("1", False)] * 4 == [(each.spec.env["A"], "API_KEY" in each.spec.env) for each in seen]


def test_code_is_seen_and_deleted_from_anywhere(client: Client, direct: Client, tmp_path: Path) -> None:
    """Each connection keeps the code alike, says how it differs from its commit, lists it, and deletes it."""
    repository = make(tmp_path / "repository", "train.py")
    write(repository, "train.py", content=f"# {tmp_path}\n")
    job = client.jobs.submit("train.py", mem="1M", cwd=repository, snapshot=True)
    assert job.spec.snapshot is not None
    address = CodeSnapshot.parse(job.spec.snapshot).address

    assert b"1 modified\nM  train.py\n" in client.snapshots.diff(job.id)
    assert direct.snapshots.diff(job.id) == client.snapshots.diff(str(job.id))
    (found,) = [each for each in client.snapshots.list() if each.address == address]
    assert (1, (str(job.id),)) == (found.files, found.jobs)
    assert found in direct.snapshots.list()
    with pytest.raises(Refused, match=rf"job {job.id} needs the snapshot"):
        client.snapshots.delete(address)
    client.jobs.cancel(job.id)
    assert address == client.snapshots.delete(address[:12]).address
    assert address not in [each.address for each in direct.snapshots.list()]


@pytest.fixture
def bob(served: ServedSite) -> Iterator[Client]:
    """Return the client of another account."""
    with served.client("https", "bobs") as opened:
        yield opened


#: A time that does not come while the tests run.
YEARLY = "0 0 29 2 *"


def test_a_job_repeats_alike_over_each_connection(client: Client, direct: Client) -> None:
    """It is added, listed, paused, resumed and removed. The request that is kept is the same, with its environment."""
    request = JobRequest(["sh", "-c", "exit"], mem="1M", env={"API_KEY": "hush"}, name="yearly", tags=["a"])

    made = client.cron.add(YEARLY, request, zone="Europe/Berlin", catch_up=True)

    assert (made,) == tuple(client.cron.list())
    assert (made,) == tuple(direct.cron.list()) == tuple(direct.cron.list(direct.account.name, everybody=False))
    assert (YEARLY, "Europe/Berlin", True, False, ("sh", "-c", "exit")) == (
        made.times,
        made.zone,
        made.catch_up,
        made.overlap,
        made.command,
    )
    with closing(HistoryDatabase(direct.settings.database_url)) as database:
        (kept,) = database.repeating_jobs()
    request_of_it = request_of(kept)
    assert ("hush", 2**20, ("a",), None) == (
        request_of_it.env["API_KEY"],
        request_of_it.mem_bytes,
        request_of_it.tags,
        request_of_it.git,
    )
    assert made == client.cron.add(YEARLY, request, zone="Europe/Berlin", catch_up=True)
    with pytest.raises(Refused, match="you have a repeating job yearly"):
        client.cron.add("0 1 1 1 *", request)

    assert ("paused", None) == (client.cron.pause("yearly").stopped, direct.cron.list()[0].next_at)
    with pytest.raises(Refused, match=r"has stopped \(paused\)"):
        client.cron.run("yearly")
    assert made == client.cron.resume("yearly")
    assert made == client.cron.remove("yearly", user=direct.account.name)
    assert () == tuple(client.cron.list(everybody=True))
    for change in (client.cron.remove, client.cron.pause, client.cron.resume, client.cron.run):
        with pytest.raises(JobNotFound, match="you have no repeating job 'yearly'"):
            change("yearly")


def test_a_repeating_job_runs_now_over_each_connection(client: Client, direct: Client) -> None:
    """The service submits it within seconds."""
    client.cron.add(YEARLY, JobRequest(["true"], mem="1M", name="at-once"))

    client.cron.run("at-once")

    last = until(lambda: direct.cron.list()[0].last_job_id, what="the job")
    assert last is not None
    assert "at-once" == direct.jobs.get(last).spec.name
    client.cron.remove("at-once")


def test_what_cannot_repeat_is_refused_alike(client: Client) -> None:
    for times, zone, changes, why in (
        ("61 * * * *", None, {}, "bad minute"),
        (YEARLY, "Europe/Nowhere", {}, "knows no time zone"),
        (YEARLY, None, {"begin": "2h"}, "leave out --begin"),
    ):
        with pytest.raises(BadRequest, match=why):
            client.cron.add(times, JobRequest(["true"], mem="1M", **changes), zone=zone)
    assert () == tuple(client.cron.list())


def test_the_code_of_a_repeating_job_stays_until_it_is_removed(
    served: ServedSite, client: Client, tmp_path: Path
) -> None:
    """It is neither deleted by its owner nor collected when it is old."""
    repository = make(tmp_path / "repository", "train.py")
    write(repository, "train.py", content=f"# {tmp_path}\n")
    client.cron.add(YEARLY, JobRequest("train.py", mem="1M", cwd=repository, snapshot=True, name="with-code"))
    with closing(HistoryDatabase(served.settings.database_url)) as database:
        ((_, _, text),) = database.repeating_snapshots()
        address = CodeSnapshot.parse(text).address
        month_ago = time.time() - 31 * 86400
        for path in blob_store_of(served.settings).blobs.rglob("*"):
            os.utime(path, (month_ago, month_ago))

        collect_snapshots(served.settings, served.queue, database)

    assert address in [each.address for each in client.snapshots.list()]
    with pytest.raises(Refused, match="the repeating job with-code needs the snapshot"):
        client.snapshots.delete(address)
    client.cron.remove("with-code")
    assert address == client.snapshots.delete(address).address


def test_another_account_sees_no_command_of_a_repeating_job_and_changes_none(direct: Client, bob: Client) -> None:
    made = direct.cron.add(YEARLY, JobRequest(["sh", "-c", "secret"], mem="1M", name="hers"))

    assert () == tuple(bob.cron.list())
    (seen,) = bob.cron.list(everybody=True)
    assert replace(made, command=("(hidden)",)) == seen
    for change in (bob.cron.remove, bob.cron.pause, bob.cron.resume, bob.cron.run):
        with pytest.raises(Refused, match=f"only {direct.account.name} may change this job"):
            change("hers", user=direct.account.name)
    assert made == direct.cron.list()[0]
    direct.cron.remove("hers")


def test_only_the_owner_types_on_a_terminal(direct: Client, bob: Client) -> None:
    """Another account is refused, before the service looks for the terminal."""
    job = submitted(direct)

    with pytest.raises(Refused, match=f"only {direct.account.name} may use the terminal"):
        bob.logs.terminal(job.id, bob.logs.tail())


def test_a_job_that_waits_takes_no_second_command(client: Client, direct: Client, bob: Client) -> None:
    """Another account is refused by its rights, and the owner because the job does not run."""
    job = submitted(direct)

    with pytest.raises(Refused, match=f"only {direct.account.name} may run a command in this job"):
        bob.jobs.exec(job.id, ["true"])
    with pytest.raises(Refused, match="does not run: a command needs a running job"):
        client.jobs.exec(job.id, ["true"], stdin=True)
    with pytest.raises(BadRequest, match="name the command"):
        client.jobs.exec(job.id, [])


def test_an_ended_run_has_no_terminal(client: Client, old: Job) -> None:
    """A run that has ended, or that had no terminal that takes input, gives None."""
    tail = client.logs.tail()
    client.logs.turn(tail, client.jobs.show(old.id))

    assert client.logs.terminal(old.id, tail) is None


def test_each_call_of_a_service_makes_a_new_code(served: ServedSite) -> None:
    # Without a service there is no page to open.
    codes = []
    for kind in ("unix", "https"):
        with served.client(kind) as client:
            codes.append(client.access.sign_in_code().code)
    assert len({*codes}) == 2
    with served.client("direct") as client, pytest.raises(Refused, match="gpuqueue up --web"):
        client.access.sign_in_code()


def test_a_token_works_until_it_is_revoked(served: ServedSite) -> None:
    """A token made over the socket opens the service over HTTPS, and no longer once it is revoked."""
    # Both changes are in the audit log. A token that is no admin's can neither make tokens nor read the log.
    path = served.directory / "fresh"
    with served.client("unix") as local:
        made = local.access.make_token()
        path.write_text(made.text)
        path.chmod(0o600)
        with served.client("https", "fresh") as remote:
            me = remote.access.whoami()
            assert (local.account.name, "token", made.token.id) == (me.account, me.via, me.token_id)
            with pytest.raises(Refused):
                remote.access.make_token()
            with pytest.raises(Refused):
                remote.access.audit()
        local.access.revoke_token(made.token.id)
        with served.client("https", "fresh") as remote, pytest.raises(NotAuthenticated):
            remote.access.whoami()
        until(
            lambda: (
                {"token-create", "token-revoke"}
                <= {each.action for each in local.access.audit() if each.detail.get("token") == made.token.id}
            )
        )


def test_the_account_is_the_callers(bob: Client) -> None:
    """A job belongs to the account of the token, and no request can say otherwise."""
    job = submitted(bob)

    assert ("bob", 54321) == (job.spec.account.name, job.spec.account.uid)
    with pytest.raises(BadRequest, match="there is no field 'account'"):
        bob._link.send("POST", "/jobs", {"argv": ["true"], "cwd": "/", "mem_bytes": 1, "account": {"name": "root"}})
    bob.jobs.cancel(job.id)


@pytest.mark.parametrize("act", ["cancel", "hold", "release", "move", "retry", "spec_again"])
def test_another_account_is_refused_and_the_job_stays_as_it_is(direct: Client, bob: Client, act: str) -> None:
    job = submitted(direct)

    with pytest.raises(Refused, match="only"):
        getattr(bob.jobs, act)(job.id)

    assert JobState.QUEUED is direct.jobs.get(job.id).state


def test_another_account_sees_sizes_and_no_secrets(served: ServedSite, bob: Client) -> None:
    """Others see the name and the size of a job, but no command, environment, directory, log or event."""
    old = ended(served, env={"SECRET": "hush"}, name="secret")

    seen = [bob.jobs.get(old.id), bob.jobs.show(old.id).job, bob.history.search(name="secret")[0].job]

    for job in seen:
        assert ({}, ("(hidden)",), "/") == (job.spec.env, job.spec.argv, job.spec.cwd)
        assert (old.spec.name, old.spec.mem_bytes) == (job.spec.name, job.spec.mem_bytes)
    with pytest.raises(Refused, match="see the output"):
        list(bob.logs.follow(old.id))
    with pytest.raises(Refused, match="see the output"):
        bob.logs.turn(bob.logs.tail(), bob.jobs.newest(old.id))
    with pytest.raises(Refused, match="see the command"):
        bob.jobs.events(old.id)
    assert b"" == bob.logs.end(bob.jobs.newest(old.id), 100)


def test_an_unknown_token_is_refused_for_reads_and_for_writes(served: ServedSite) -> None:
    with served.client("https", "wrong") as unknown:
        for call in (lambda: unknown.jobs.get(1), lambda: submitted(unknown), unknown.devices.list):
            with pytest.raises(NotAuthenticated):
                call()


def test_without_a_service_the_error_says_so_in_one_line_with_exit_code_4(served: ServedSite, tmp_path: Path) -> None:
    with Client(replace(served.settings, url=f"unix://{tmp_path}/none.sock")) as client:
        with pytest.raises(ServiceUnreachable, match="gpuqueue serve") as caught:
            client.jobs.get(1)
        assert 4 == caught.value.exit_code


def test_a_client_of_the_service_has_no_queue_and_no_database_of_its_own(served: ServedSite) -> None:
    with served.client("unix") as client:
        with pytest.raises(Refused, match="through the service"):
            _ = client.queue
        with pytest.raises(Refused, match="through the service"):
            _ = client.database


def test_an_idempotency_key_makes_one_job(served: ServedSite, bob: Client) -> None:
    """The same key of an account yields the same job, and that of another account another one."""
    body = {"argv": ["true"], "cwd": "/", "mem_bytes": 2**20, "waits": {"hold": True}}
    with served.client("unix") as mine:
        links = [mine._link, mine._link, bob._link]
        made = [
            link.answered("POST", "/jobs", body, kind=Job, headers={"Idempotency-Key": "k-1"})[0]
            for link in links
            if link
        ]

    assert made[0].id == made[1].id != made[2].id


def test_an_idempotency_key_with_another_body_is_another_key(client: Client) -> None:
    """The answer is the job of this request, never that of an earlier one with the same key."""
    if client._link is None:
        return
    bodies = [{"argv": [word], "cwd": "/", "mem_bytes": 2**20, "waits": {"hold": True}} for word in ("true", "false")]
    made = [
        client._link.answered("POST", "/jobs", body, kind=Job, headers={"Idempotency-Key": "k-2"})[0]
        for body in (*bodies, bodies[0])
    ]

    assert made[0].id == made[2].id != made[1].id
    assert [("true",), ("false",)] == [client.jobs.get(each.id).spec.argv for each in made[:2]]
