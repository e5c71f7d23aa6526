"""The history and the statistics as CSV files: those of the command line, for each caller what it may see."""

from __future__ import annotations

import csv
import http.client
import io
import os
import ssl
from collections.abc import Iterator
from contextlib import closing

import pytest
from factories import make_offer, must_claim
from forked_command import command
from service_fixtures import ServedSite, ask, mine, serving

from gpuqueue.client import Client
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice

#: So small that a few jobs are several pages, and the last ones are beyond the end of a file.
MOST, MOST_LINES = 2, 6


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site whose service reads two jobs at a time, and sends six."""
    where = "gpuqueue.service.routes.history"
    with serving({f"{where}:MOST": MOST, f"{where}:MOST_LINES": MOST_LINES}) as site:
        yield site


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account."""
    with served.client("unix") as client:
        yield client


def file_of(served: ServedSite, path: str, token: str = "mine") -> tuple[dict[str, str], str]:
    """Return the headers and the text of a CSV file."""
    context = ssl.create_default_context(cafile=served.directory / "cert.pem")
    with closing(http.client.HTTPSConnection("127.0.0.1", served.port, context=context, timeout=60)) as link:
        link.request("GET", f"/api/v1{path}", None, {"Authorization": f"Bearer {mine(served, token)}"})
        answer = link.getresponse()
        text = answer.read().decode()
        assert 200 == answer.status, text
        return {name.lower(): value for name, value in answer.getheaders()}, text


def names(text: str) -> list[str]:
    """Return the names of the jobs in a file."""
    return [row["name"] for row in csv.DictReader(io.StringIO(text))]


def cli(served: ServedSite, *words: str) -> str:
    """Return what ``gpuqueue`` prints over the socket."""
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(served.directory),
        "GPUQUEUE_URL": f"unix://{served.socket_path}",
        "GPUQUEUE_CONFIG": os.devnull,
    }
    done = command(words, own)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def ended(served: ServedSite, owner: Client, name: str) -> None:
    """Let a job run and fail."""
    job = owner.jobs.submit(["true"], mem="1M", name=name, priority="urgent")
    claim = must_claim(served.queue)
    device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**20)
    served.queue.runs.started(job.id, claim.token, lease_s=300, log_path="/log", devices=(device,))
    served.queue.runs.finish(
        job.id, claim.token, state=JobState.FAILED, ending=Ending.from_status(3), duration_s=1.0, devices=(device,)
    )


@pytest.mark.full
def test_the_files_are_those_of_the_command_line(served: ServedSite, owner: Client) -> None:
    """All pages are in one file, in each order, up to the most lines. Filters count, and a formula is quoted."""
    ended(served, owner, "=1+1")
    for number in range(MOST_LINES):
        owner.jobs.submit(["true"], mem="1M", name=f"job-{number}", hold=True, tags=["night"])
    served.record()

    headers, text = file_of(served, "/history/csv")
    assert ("text/csv; charset=utf-8", 'attachment; filename="gpuqueue-history.csv"') == (
        headers["content-type"],
        headers["content-disposition"],
    )
    assert cli(served, "history", "--csv", "--limit", str(MOST_LINES)) == text
    assert [f"job-{number}" for number in reversed(range(MOST_LINES))] == names(text)
    backwards = file_of(served, "/history/csv?reverse=true")[1]
    assert cli(served, "history", "--csv", "--reverse", "--limit", str(MOST_LINES)) == backwards
    assert "'=1+1" == names(backwards)[0]
    for query, words in (
        ("state=failed", ("--state", "failed")),
        ("tag=night&sort=user&name=job-3", ("--tag", "night", "--sort", "user", "--name", "job-3")),
        ("exit_code=3&sort=duration", ("--exit-code", "3", "--sort", "duration")),
    ):
        assert cli(served, "history", "--csv", *words) == file_of(served, f"/history/csv?{query}")[1]
    headers, text = file_of(served, "/stats/csv?by=host")
    assert 'attachment; filename="gpuqueue-stats-host.csv"' == headers["content-disposition"]
    (row,) = csv.DictReader(io.StringIO(text))
    assert ("nodeA", "1", "1") == (row["label"], row["jobs"], row["failed"])


def test_a_caller_gets_what_it_may_see(served: ServedSite, owner: Client) -> None:
    """A file has no command of others, and a search by a text finds only own jobs."""
    owner.jobs.submit(["true", "zebra"], mem="1M", name="mine", hold=True)
    with served.client("https", "bobs") as bob:
        bob.jobs.submit(["true", "zebra"], mem="1M", name="bobs", hold=True)
    served.record()
    assert ["bobs"] == names(file_of(served, "/history/csv?text=zebra", "bobs")[1])
    shown = file_of(served, "/history/csv?name=mine", "bobs")[1]
    assert (["mine"], False) == (names(shown), "zebra" in shown)


@pytest.mark.parametrize("path", ["/history/csv?colour=red", "/history/csv?limit=5", "/stats/csv?by=colour"])
def test_a_wrong_question_is_no_file(served: ServedSite, path: str) -> None:
    """The answer is a problem, as of the other routes. So is that to a caller without an account."""
    status, problem = ask(served, path, mine(served))
    assert (400, "BadRequest") == (status, problem["error"])
    assert 401 == ask(served, path.partition("?")[0])[0]
