"""The arguments of a job are hidden from other accounts in each answer, also in reasons, searches and sweeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from event_stream import events, first
from factories import make_offer, must_claim, serve
from service_fixtures import ServedSite

from gpuqueue.client import Client
from gpuqueue.codec.wire import to_plain
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_values import JobValues, Metric, Reported
from gpuqueue.model.run import Ending, RunDevice, RunNote

PRIVATE = "/home/here/zebra"


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account, an admin. Nothing is open."""
    with served.client("direct") as direct:
        for each in direct.jobs.list():
            direct.jobs.cancel(each.id)
    serve(served.queue)
    with served.client("unix") as opened:
        yield opened


@pytest.fixture
def bob(served: ServedSite) -> Iterator[Client]:
    """Return a client of another account."""
    with served.client("https", "bobs") as opened:
        yield opened


def of_token(served: ServedSite, account: str, uid: int) -> Client:
    """Return a client with a new token of *account*."""
    path = served.directory / f"{account}-{uid}"
    path.write_text(served.token(account, uid))
    path.chmod(0o600)
    return served.client("https", path.name)


def ids(found: Any) -> list[int]:
    """Return the ids of records or folded rows."""
    return [getattr(each, "record", each).job.id for each in found]


def test_a_search_by_text_finds_only_commands_that_the_caller_may_see(
    served: ServedSite, owner: Client, bob: Client
) -> None:
    """Otherwise a command is recovered letter by letter. An account is a name and a uid; admins search everywhere."""
    mine = owner.jobs.submit(["true", "--password=zebra"], mem="1M", env={}, name="mine")
    bobs = bob.jobs.submit(["true", "--password=zebra"], mem="1M", env={}, name="bobs")
    served.record()

    for text in ("zeb", "--password=z"):
        for client, user, wanted in (
            (owner, None, [bobs.id, mine.id]),
            (bob, None, [bobs.id]),
            (bob, "bob", [bobs.id]),
            (bob, mine.spec.account.name, []),
        ):
            assert wanted == ids(client.history.search(text=text, user=user))
            assert wanted == ids(client.history.folded(text=text, user=user))
    assert [mine.id] == ids(bob.history.search(name="mine")), "everybody sees that the job exists"
    with closing(of_token(served, "bob", 777)) as namesake:
        assert [] == ids(namesake.history.search(text="zebra", limit=1))


def failed_to_start(served: ServedSite, owner: Client) -> Job:
    """Return a held job: its only host could not enter its directory."""
    job = owner.jobs.submit(["true"], mem="1M", env={}, requeue=True, priority="urgent")
    claim = must_claim(served.queue)
    assert job.id == claim.job_id
    why = f"cannot enter the working directory {PRIVATE} as here: No such file or directory"
    served.queue.runs.exclude_host(job.id, claim.token, why)
    served.record()
    return owner.jobs.get(job.id)


def test_the_reason_of_a_failed_start_is_hidden_everywhere(served: ServedSite, owner: Client, bob: Client) -> None:
    """It names the directory, so others see neither it in lists and records nor in explanations and streams."""
    job = failed_to_start(served, owner)
    assert JobState.HELD is job.state
    assert PRIVATE in str(job.because)
    reads: tuple[Callable[[Client], Any], ...] = (
        lambda client: client.jobs.get(job.id),
        lambda client: client.jobs.show(job.id),
        lambda client: client.jobs.why(job.id),
        lambda client: client.jobs.listing(),
        lambda client: client.history.search(),
        lambda client: client.devices.list(),
        lambda client: first(events(client, "/streams/devices"), "devices").value,
        lambda client: first(events(client, "/streams/jobs"), "job").value,
        lambda client: first(events(client, f"/jobs/{job.id}/stream"), "job").value,
    )

    for number, read in enumerate(reads):
        assert PRIVATE in json.dumps(to_plain(read(owner))), f"read {number} is of no use for this test"
        assert PRIVATE not in json.dumps(to_plain(read(bob))), number
    assert "(hidden)" == bob.jobs.get(job.id).because
    owner.jobs.cancel(job.id)


def test_the_ending_of_a_failed_start_is_hidden(served: ServedSite, owner: Client, bob: Client) -> None:
    """The detail names the program: others see that the run was refused."""
    job = owner.jobs.submit(["true"], mem="1M", env={}, priority="urgent")
    claim = must_claim(served.queue)
    device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**20)
    ending = Ending.refused(f"cannot start {PRIVATE} as here: No such file or directory")
    served.queue.runs.note(job.id, claim.token, f"its program is {PRIVATE}")
    served.queue.runs.finish(
        job.id, claim.token, state=JobState.FAILED, ending=ending, duration_s=None, devices=(device,)
    )
    served.record()

    mine, bobs = owner.jobs.show(job.id).last_run, bob.jobs.show(job.id).last_run
    assert mine is not None
    assert bobs is not None
    assert ending == mine.ending
    assert "refused: (hidden)" == str(bobs.ending)
    assert {"(hidden)"} == {each.text for each in bob.jobs.show(job.id).notes}
    for found in (bob.history.search(), bob.history.folded(), bob.jobs.newest(job.id), bob.jobs.wait(job.id)):
        assert PRIVATE not in json.dumps(to_plain(found))


def test_the_values_of_a_sweep_are_hidden(served: ServedSite, owner: Client, bob: Client) -> None:
    """They are arguments of the members: others see how many members there are."""
    job = owner.jobs.submit(["true", "{word}"], mem="1M", env={}, sweep={"word": ["okapi", "gnu"]}, priority="urgent")
    must_claim(served.queue)
    served.record()
    member = [each for each in owner.history.search(array=job.id) if each.job.member]
    assert {"word": "okapi"} == owner.history.params(member)[member[0].job.id]

    shown = bob.jobs.get(job.id).spec.array
    assert shown is not None
    assert ((), 2) == (shown.axes, len(shown))
    assert {} == bob.history.params([each for each in bob.history.search(array=job.id) if each.job.member])
    seen = (bob.jobs.show(job.id), bob.jobs.listing(), bob.history.folded(), bob.jobs.why(job.id))
    assert "okapi" not in json.dumps(to_plain(seen))
    owner.jobs.cancel(job.id)


def test_what_the_notes_of_a_run_name_is_hidden(served: ServedSite, owner: Client, bob: Client) -> None:
    """They name command lines and errors of the job: others see what kind of note there is, and how many it counts."""
    job = owner.jobs.submit(["true"], mem="1M", env={}, priority="urgent")
    claim = must_claim(served.queue)
    device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**20)
    note = RunNote(kind="ended_processes", items=(f"{PRIVATE} (pid 17)",), count=4)
    ending = Ending.from_status(0)
    served.queue.runs.finish(
        job.id, claim.token, state=JobState.SUCCEEDED, ending=ending, duration_s=None, devices=(device,), notes=(note,)
    )
    served.record()

    mine, bobs = owner.jobs.show(job.id).last_run, bob.jobs.show(job.id).last_run
    assert mine is not None
    assert bobs is not None
    assert ((note,), (note.without_items(),)) == (mine.notes, bobs.notes)
    for found in (bob.history.search(), bob.history.folded(), bob.jobs.newest(job.id), bob.jobs.wait(job.id)):
        assert PRIVATE not in json.dumps(to_plain(found))


def test_what_a_job_reported_is_hidden(served: ServedSite, owner: Client, bob: Client) -> None:
    """Its values say what it does: others see none, and find no job of another account in their order."""
    job = owner.jobs.submit(["true"], mem="1M", env={}, priority="urgent")
    claim = must_claim(served.queue)
    device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**20)
    metric = Metric(name="acc", count=1, last=Reported(value=0.5, after_s=1.0))
    values = JobValues(metrics=(metric,), params={"word": "okapi"}, result={"word": "okapi"})
    ending, succeeded = Ending.from_status(0), JobState.SUCCEEDED
    served.queue.runs.finish(
        job.id, claim.token, state=succeeded, ending=ending, duration_s=None, devices=(device,), values=values
    )
    served.record()

    mine, bobs = owner.jobs.show(job.id).last_run, bob.jobs.show(job.id).last_run
    assert mine is not None
    assert bobs is not None
    assert (values, None) == (mine.values, bobs.values)
    assert {"word": "okapi"} == owner.history.params([owner.jobs.show(job.id)])[job.id]
    assert job.id == ids(owner.history.search(metric="acc"))[0]
    assert job.id not in ids(bob.history.search(metric="acc"))
    for found in (bob.history.search(), bob.history.folded(), bob.jobs.newest(job.id), bob.jobs.wait(job.id)):
        assert "okapi" not in json.dumps(to_plain(found))
