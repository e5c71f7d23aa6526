"""The streams of the service: their events, the rights that they need, and a restart of the service."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from bounded import until
from event_stream import events, first
from factories import must_claim, serve
from service_fixtures import ServedSite, serving

from gpuqueue.client import Client
from gpuqueue.client.remote import link
from gpuqueue.errors import BadRequest, JobNotFound, Refused, ServiceUnreachable
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.lease import Claim
from gpuqueue.service.site import THREADS

#: Requests per second of one account: fewer than its streams poll.
RATE = 5


@pytest.fixture(scope="module")
def limited() -> Iterator[ServedSite]:
    """Return a site whose service permits few requests."""
    with serving(GPUQUEUE_REQUEST_RATE=str(RATE)) as site:
        yield site


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account. Nothing is open."""
    with served.client("direct") as direct:
        for each in direct.jobs.list():
            direct.jobs.cancel(each.id)
    serve(served.queue)
    with served.client("unix") as client:
        yield client


@pytest.fixture
def bob(served: ServedSite) -> Iterator[Client]:
    """Return a client of another account."""
    with served.client("https", "bobs") as client:
        yield client


def submitted(client: Client, **changes: Any) -> Job:
    """Submit a job whose command is private."""
    return client.jobs.submit(["true", "private"], mem="1M", env={"KEY": "private"}, **changes)


def started(site: ServedSite, job: Job, text: bytes = b"") -> Claim:
    """Let *job* run, with *text* in its log."""
    claim = must_claim(site.queue)
    assert job.id == claim.job_id
    log = site.directory / str(job.id) / claim.token / "log"
    log.parent.mkdir(parents=True)
    log.write_bytes(text)
    device = RunDevice(uuid="GPU-0", lease_bytes=2**20)
    site.queue.runs.started(job.id, claim.token, lease_s=300, log_path=str(log), devices=(device,))
    return claim


def finish(site: ServedSite, claim: Claim) -> None:
    """Let a run end well. The history does not have it yet."""
    device = RunDevice(uuid="GPU-0", lease_bytes=2**20)
    site.queue.runs.finish(
        claim.job_id, claim.token, state=JobState.SUCCEEDED, ending=Ending.from_status(0), duration_s=1.0,
        devices=(device,),
    )  # fmt: skip


def test_the_stream_of_all_jobs_shows_each_change(owner: Client) -> None:
    """It begins with the open jobs and ``ready``. Then come changes, new jobs, and the last states of ended jobs."""
    one, two = submitted(owner), submitted(owner, hold=True)
    stream = events(owner, "/streams/jobs")
    begun = [first(stream, "job"), first(stream, "job"), first(stream, "ready")]
    assert [one.id, two.id, None] == [each.value and each.value["id"] for each in begun]
    assert ["true", "private"] == begun[0].value["spec"]["argv"]
    assert "private" not in begun[0].value["spec"]["env"].values()

    def shown(*wanted: object) -> bool:
        """Return whether the stream shows this; the reason why a job waits may change besides."""
        return any(wanted == (each.name, each.value["id"], each.value["state"]) for each in stream if each.name != ":")

    owner.jobs.release(two.id)
    assert shown("job", two.id, "queued")
    three = submitted(owner, hold=True)
    assert shown("job", three.id, "held")
    owner.jobs.cancel(three.id)
    assert shown("ended", three.id, "cancelled")


def test_the_stream_of_all_jobs_hides_commands_and_chooses_users(owner: Client, bob: Client) -> None:
    """Others see a job's size and state, and not its command; ``user`` selects whose jobs are shown."""
    mine, bobs = submitted(owner), submitted(bob)
    stream = events(bob, "/streams/jobs")
    shown = {each.value["id"]: each.value["spec"] for each in (first(stream, "job"), first(stream, "job"))}
    assert (["(hidden)"], {}, "/") == tuple(shown[mine.id][each] for each in ("argv", "env", "cwd"))
    assert ["true", "private"] == shown[bobs.id]["argv"]

    chosen = events(bob, "/streams/jobs?user=bob")
    assert bobs.id == first(chosen, "job").value["id"]
    assert None is first(chosen, "ready").value


def test_a_stream_says_that_it_lives(owner: Client) -> None:
    """A comment comes while nothing happens, on each stream."""
    job = submitted(owner, hold=True)
    for path in ("/streams/jobs", f"/jobs/{job.id}/stream", "/streams/devices", f"/jobs/{job.id}/log/stream"):
        assert (":", "alive", None) == next(each for each in events(owner, path) if each.name == ":")


def test_the_stream_of_a_job_shows_its_states(owner: Client, bob: Client, served: ServedSite) -> None:
    """Each state is shown, without the command to others, and the stream ends with the job."""
    job = submitted(owner)
    streams = [events(owner, f"/jobs/{job.id}/stream"), events(bob, f"/jobs/{job.id}/stream")]
    states = [[first(each, "job").value["state"]] for each in streams]
    claim = started(served, job)
    for seen, stream in zip(states, streams, strict=True):
        seen.append(first(stream, "job").value["state"])
    finish(served, claim)
    last = [[each for each in stream if each.name != ":"] for stream in streams]

    assert [["queued", "running"]] * 2 == states
    assert [["succeeded"]] * 2 == [[each.value["state"] for each in seen] for seen in last]
    assert [["true", "private"], ["(hidden)"]] == [seen[0].value["spec"]["argv"] for seen in last]
    with pytest.raises(JobNotFound):
        next(events(owner, "/jobs/999999/stream"))


def test_the_stream_of_devices_shows_changes_only(owner: Client) -> None:
    """All devices come first, and again if one changes. Their age alone is no change."""
    stream = events(owner, "/streams/devices")
    shown = first(stream, "devices").value
    assert ["GPU-0"] == [each["device"]["uuid"] for each in shown]
    assert ":" == next(stream).name
    owner.devices.drain("GPU-0", reason="a new fan")
    try:
        changed = first(stream, "devices").value
        assert "a new fan" in str(changed[0])
    finally:
        owner.devices.resume("GPU-0")


def test_a_log_goes_on_behind_the_last_event_that_was_received(owner: Client, served: ServedSite) -> None:
    """``Last-Event-ID`` continues where the client was cut off, and a mark of something else is refused."""
    job = submitted(owner)
    claim = started(served, job, b"one\n")
    path = f"/jobs/{job.id}/log/stream"
    shown = first((each for each in events(owner, path) if each.name != "job"), "output")
    with (served.directory / str(job.id) / claim.token / "log").open("ab") as log:
        log.write(b"two\n")
    finish(served, claim)
    served.record()
    again = [each for each in events(owner, path, {"Last-Event-ID": shown.id or ""}) if each.name != ":"]

    assert ("one\n", "1:4") == (shown.value, shown.id)
    assert [("job", None), ("output", "two\n"), ("end", None)] == [
        (each.name, each.value if each.name != "job" else None) for each in again
    ]
    for mark in ("x", "1", "1:x", "-1:4", "9:0"):
        with pytest.raises(BadRequest):
            next(events(owner, path, {"Last-Event-ID": mark}))


def test_nobody_else_follows_a_log(owner: Client, bob: Client) -> None:
    """The output of a job is for its owner."""
    job = submitted(owner, hold=True)
    with pytest.raises(Refused, match="may see the output of this job"):
        next(events(bob, f"/jobs/{job.id}/log/stream"))


@pytest.mark.parametrize(
    "path",
    [
        "/streams/jobs",
        *[pytest.param(each, marks=pytest.mark.full) for each in ("/streams/devices", "/jobs/{}/stream")],
    ],
)
def test_a_stream_begins_anew_after_a_restart(owner: Client, served: ServedSite, path: str) -> None:
    """A stream ends with the service, and a client that comes back to the next one has the whole state again."""
    job = submitted(owner, hold=True)
    stream = events(owner, path.format(job.id))
    before = first(stream, "job", "devices")
    served.kill()
    with pytest.raises(ServiceUnreachable):
        list(stream)
    served.start()
    after = first(events(owner, path.format(job.id)), "job", "devices")

    assert before.name == after.name
    if before.name == "job":
        assert before == after


@pytest.mark.full
def test_a_watch_outlives_the_service(owner: Client, served: ServedSite) -> None:
    """``Client.jobs.watch`` continues with the next service and reports the end."""
    job = submitted(owner, hold=True)
    seen: list[JobState] = []
    thread = threading.Thread(target=lambda: seen.extend(each.state for each in owner.jobs.watch(job.id)), daemon=True)
    thread.start()
    until(lambda: seen, what="the first state")
    served.kill()
    served.start()
    with served.client("direct") as direct:
        direct.jobs.cancel(job.id)
    thread.join(timeout=60)

    assert JobState.CANCELLED is seen[-1]


@pytest.mark.full
def test_steps_of_a_stream_are_no_requests(limited: ServedSite) -> None:
    """Followers that poll more often than an account may call are not cut off."""
    with limited.client("unix") as client:
        job = submitted(client, hold=True)
        count = RATE
        with ExitStack() as stack:
            streams = [
                events(stack.enter_context(limited.client("unix")), f"/jobs/{job.id}/log/stream") for _ in range(count)
            ]
            for stream in streams:
                assert first(stream, "job").value["id"] == job.id
            for _ in range(2 * RATE):  # a comment comes four times a second
                for stream in streams:
                    assert ":" == next(stream).name


@pytest.fixture(scope="module")
def patient() -> Iterator[ServedSite]:
    """Return a site whose service waits so long for the history that no test sees the end of it."""
    modules = ("gpuqueue.service.routes.jobs", "gpuqueue.service.following")
    with serving(bounds={f"{each}:RECORD_S": 600.0 for each in modules}) as site:
        yield site


@pytest.mark.full
@pytest.mark.parametrize("way", ["recorded", "follow"])
def test_waiting_for_the_history_holds_up_nobody(patient: ServedSite, way: str) -> None:
    """While the history lags, any number of callers wait for ended jobs, and others are served at once."""
    over: list[object] = []
    with patient.client("unix") as owner:
        job = submitted(owner)
        finish(patient, started(patient, job, b"one\n"))
        ended = owner.jobs.get(job.id)

        def waits() -> None:
            with patient.client("unix") as client:
                over.append(client.jobs.recorded(ended) if way == "recorded" else [*client.logs.follow(job.id)])

        threads = [threading.Thread(target=waits, daemon=True) for _ in range(40)]
        for each in threads:
            each.start()
        for _ in range(20):
            owner.devices.list()
        waiting = len(threads) - len(over)
        patient.record()
        for each in threads:
            each.join(timeout=60)

    assert waiting > THREADS  # so no thread of the service was left for the others, if they took one
    assert 40 == len(over)


def test_the_record_of_a_job_that_runs_is_refused_at_once(patient: ServedSite) -> None:
    """Only an ended job has a last record. Others are not waited for: this service would wait for ten minutes."""
    with patient.client("unix") as owner:
        job = submitted(owner, hold=True)
        with pytest.raises(Refused, match=f"job {job.id} has not ended: it is held"):
            owner.jobs.recorded(job)


def test_a_client_waits_while_it_asks_too_often(limited: ServedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that changes a thousand jobs changes all of them: a refusal because of the rate has changed nothing."""
    pauses: list[float] = []
    pause_s = link._pause_s
    monkeypatch.setattr(link, "_pause_s", lambda answer: pauses.append(pause_s(answer)) or 0.1)
    with limited.client("unix") as client:
        job = submitted(client, hold=True)
        while not pauses:
            assert job.id == client.jobs.get(job.id).id

    assert 1.0 <= pauses[0] <= link.BUSY_S
