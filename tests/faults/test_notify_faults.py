"""Tests of notification targets that are down, slow or refuse, and of killed senders.

No job and no recorder is disturbed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from factories import make_offer, must_claim, serve
from listeners import Hook, web_hook
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending

WITH_CONSTANT = Path(__file__).parents[1] / "support" / "with_constant.py"
#: Retries follow each other at once. With the real pauses they take a whole evening.
HASTY = ("workers.services.sender:PAUSE_S=0.2", "workers.services.sender:PAUSE_FACTOR=1")
#: What the sender says about a target that does not answer within 5 s. Apprise itself waits for 4 s.
NO_ANSWER = {
    "it took longer than 5 s",
    "A Connection error occurred sending JSON notification to localhost.",
    "its target did not answer in time a moment ago",
}


@pytest.fixture
def hook() -> Iterator[Hook]:
    """Return a web server that stores what is posted."""
    with web_hook() as made:
        yield made


@pytest.fixture
def open_site(site: Site) -> Site:
    """Return a site with a history and a card without a worker."""
    site.make_tables()
    serve(site.queue, make_offer())
    return site


def recorder(site: Site, *constants: str) -> subprocess.Popen[bytes]:
    """Start a recorder with these constants."""
    return site.spawn_command([sys.executable, str(WITH_CONSTANT), *constants, "record"])


def end_one(site: Site, **notifications: Any) -> int:
    """Submit a job with *notifications* and end it."""
    job = site.client.jobs.submit(["true"], mem="64M", **notifications).id
    claimed = must_claim(site.queue)
    ending = Ending.from_status(0)
    site.queue.runs.finish(
        claimed.job_id, claimed.token, state=JobState.SUCCEEDED, ending=ending, duration_s=1.0, devices=()
    )
    return job


def reported(site: Site, job: int) -> list[dict[str, Any]]:
    """Return the outcomes of the notifications of a job."""
    found: list[dict[str, Any]] = json.loads(site.cli("show", str(job), "--json").stdout)["reported"]
    return found


def outcome(site: Site, job: int) -> str | None:
    """Return the outcome of the job's only notification, or None.

    None means that it is not sent yet, or that the history does not have the job's end.
    """
    found = [each["outcome"] for each in reported(site, job)]
    return found[0] if found else None


@pytest.mark.full
def test_what_is_refused_is_tried_again_and_given_up_at_last(open_site: Site, hook: Hook) -> None:
    """A refused notification is given up after five tries, and `show` reports it.

    The job's own state does not change.
    """
    recorder(open_site, *HASTY)
    job = end_one(open_site, on_end=hook.url("refuse"))

    until(lambda: outcome(open_site, job), timeout_s=60, what=f"an outcome\n{open_site.log()}")

    (one,) = reported(open_site, job)
    assert ("given_up", 5) == (one["outcome"], one["tries"])
    assert "500" in one["trouble"]
    assert 5 == len(hook.reported("refuse"))
    assert JobState.SUCCEEDED is open_site.client.jobs.get(job).state
    assert "on end     json://…: given up after 5 tries: " in open_site.cli("show", str(job)).stdout
    doctor = open_site.cli("doctor", check=False).stdout
    assert "given up" not in doctor, "a URL of a job concerns its submitter, not the administrator"


@pytest.mark.full
def test_what_is_refused_once_is_sent_the_next_time(open_site: Site, hook: Hook) -> None:
    """A notification that is refused once is sent at the next try, so a restarted chat server loses none."""
    recorder(open_site, *HASTY)
    job = end_one(open_site, on_end=hook.url("refuse"))

    until(lambda: hook.reported("refuse"), what=f"a post\n{open_site.log()}")
    hook.refuses = False

    until(lambda: outcome(open_site, job) == "sent", what=f"it was sent\n{open_site.log()}")


@pytest.mark.full
def test_a_target_that_hangs_holds_up_neither_the_history_nor_the_others(open_site: Site, hook: Hook) -> None:
    """A hanging target delays neither the history nor other targets.

    More notifications hang than there are threads. The history goes on while they hang. Then another target gets its
    notification.
    """
    first = recorder(open_site, "workers.services.sender:LIMIT_S=3600", "workers.services.sender:PAUSE_S=0.2")
    hanging = [end_one(open_site, on_end=hook.url("hang")) for _ in range(12)]
    until(lambda: len(hook.reported("hang")) >= 4, timeout_s=60, what=f"four that hang\n{open_site.log()}")

    many = [end_one(open_site) for _ in range(100)]
    open_site.until_recorded(many[-1])
    open_site.end(first, signal.SIGKILL)
    recorder(open_site, "workers.services.sender:LIMIT_S=5")
    last = end_one(open_site, on_end=hook.url("fine"))
    until(lambda: hook.reported("fine"), timeout_s=60, what=f"another target\n{open_site.log()}")

    until(lambda: outcome(open_site, last) == "sent", what="that it was sent")
    troubles = {reported(open_site, job)[0]["trouble"] for job in hanging}
    assert set() < troubles - {None} <= NO_ANSWER
    assert all(JobState.SUCCEEDED is open_site.client.jobs.get(job).state for job in hanging)


@pytest.mark.full
def test_a_sender_killed_before_it_notes_sends_once_more(open_site: Site, hook: Hook) -> None:
    """A sender killed before it records the delivery causes one more delivery.

    Delivery is at least once. A recorded delivery is never repeated.
    """
    first = recorder(open_site, "workers.services.sender:LIMIT_S=5")
    noted = end_one(open_site, on_end=hook.url("fine"))
    until(lambda: outcome(open_site, noted), what=f"an outcome\n{open_site.log()}")
    job = end_one(open_site, on_end=hook.url("hang"))
    until(lambda: hook.reported("hang"), what=f"a post\n{open_site.log()}")

    open_site.end(first, signal.SIGKILL)  # received by the hook, not recorded as sent
    hook.released.set()
    recorder(open_site, "workers.services.sender:LIMIT_S=5")

    until(lambda: outcome(open_site, job) == "sent", timeout_s=30, what=f"it was sent\n{open_site.log()}")
    assert (2, 2) == (len(hook.reported("hang")), reported(open_site, job)[0]["tries"])
    assert 1 == len(hook.reported("fine"))


@pytest.mark.full
def test_two_senders_send_each_message_once(open_site: Site, hook: Hook) -> None:
    """Two senders send each notification once, because each is claimed in the history before it is sent."""
    for _ in range(2):
        recorder(open_site)
    jobs = [end_one(open_site, on_end=hook.url("fine")) for _ in range(12)]

    until(lambda: all(outcome(open_site, job) for job in jobs), timeout_s=60, what="all outcomes")

    assert 12 == len(hook.reported("fine"))


@pytest.mark.full
def test_a_recorder_that_leaves_lets_what_is_on_its_way_arrive(open_site: Site, hook: Hook) -> None:
    """A recorder that is stopped waits for deliveries in progress, and records them."""
    process = recorder(open_site)
    job = end_one(open_site, on_end=hook.url("hang"))
    until(lambda: hook.reported("hang"), what=f"a post\n{open_site.log()}")

    process.send_signal(signal.SIGTERM)
    hook.released.set()

    assert 0 == process.wait(timeout=30)
    assert "sent" == outcome(open_site, job)


@pytest.mark.full
def test_without_apprise_nothing_is_sent_and_users_are_warned(site: Site, hook: Hook, tmp_path: Path) -> None:
    """Without Apprise no notification is sent, and the submit says so.

    The notifications wait until Apprise is installed.
    """
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['apprise'] = None\n")
    site.make_tables()
    serve(site.queue, make_offer())
    site.environ["PYTHONPATH"] = str(tmp_path)
    without = recorder(site)
    until(site.queue.senders.all, what=f"a sender\n{site.log()}")

    output = site.cli("submit", "--mem", "64M", "--on-end", hook.url("fine"), "--", "true")
    claimed = must_claim(site.queue)
    site.queue.runs.finish(
        claimed.job_id,
        claimed.token,
        state=JobState.SUCCEEDED,
        ending=Ending.from_status(0),
        duration_s=1.0,
        devices=(),
    )

    host = site.settings.host
    assert f"Apprise is not installed on {host}: nobody is notified" in output.stderr
    site.until_recorded(int(output.stdout))
    site.end(without)
    assert [] == hook.reported("fine")
    site.environ.pop("PYTHONPATH")
    recorder(site)
    until(lambda: hook.reported("fine"), what=f"a post\n{site.log()}")
