"""The command line for jobs that wait for another job, a time or a retry."""

from __future__ import annotations

import json

import pytest
from factories import make_spec, must_claim, serve
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.settings.settings import Settings
from workers.services.recorder import Recorder

TRUE = ["--mem", "1G", "--", "true"]


@pytest.fixture
def open_site(site: Site) -> Site:
    """Return a site with a history and a device without a worker."""
    site.make_tables()
    serve(site.queue)
    return site


def submit(site: Site, *words: str) -> int:
    """Submit on the command line and return the id."""
    return int(site.cli("submit", *words, *TRUE).stdout)


def end(site: Site, code: int = 0) -> None:
    """Claim the next job and end it."""
    claimed = must_claim(site.queue)
    state = JobState.FAILED if code else JobState.SUCCEEDED
    ending = Ending.from_status(code)
    site.queue.runs.finish(claimed.job_id, claimed.token, state=state, ending=ending, duration_s=1.0, devices=())


@pytest.mark.full
def test_a_retry_that_waits_cannot_be_taken_back_by_their_number(open_site: Site) -> None:
    """Fewer retries are refused once the retry waits. The edit used to be accepted, and the job still ran again."""
    job_id = submit(open_site, "--retries", "2")
    end(open_site, 256)

    refused = open_site.cli("edit", str(job_id), "--retries", "0", "--name", "x", check=False)

    output = (
        f"gpuqueue: job {job_id} waits for its retry 1 already: gpuqueue cancel {job_id} if it must not run again, or"
    )
    assert (5, f"{output} --retries 1 to make this the last one\n") == (refused.returncode, refused.stderr)
    assert "x" != open_site.client.jobs.get(job_id).spec.name
    assert 1 == len(open_site.cli("edit", str(job_id), "--retries", "1").stdout.splitlines())


@pytest.mark.full
def test_a_member_is_not_waited_for_by_the_id_of_its_job_either(open_site: Site) -> None:
    """A job cannot wait for an array member, neither by its name nor by its job id.

    The id used to be accepted, and the job was then shown as one that no list has.
    """
    array = submit(open_site, "--array", "0-3")
    other = submit(open_site)
    end(open_site)
    member = array + 1
    assert open_site.client.jobs.get(member).label == f"{array}_0"
    line = f"job {member} is {array}_0: a job can wait only for a whole array: write {array}"

    def refused(*words: str) -> None:
        done = open_site.cli(*words, check=False)
        assert (2, f"gpuqueue: {line}\n") == (done.returncode, done.stderr)

    refused("submit", "--after", str(member), *TRUE)
    refused("edit", str(other), "--after", f"{member}:any")

    recorder = Recorder(Settings.load(), open_site.queue, open_site.client.database)
    while recorder.record(0):
        pass
    assert open_site.queue.jobs.get(member) is None, "the queue has forgotten it, and the history knows it"
    refused("submit", "--after", str(member), *TRUE)


def test_why_says_drained_once(open_site: Site) -> None:
    """``why`` says ``drained: by ann``, not ``drained: drained by ann``."""
    job_id = submit(open_site)
    open_site.queue.devices.drain(["GPU-0"], origin=DrainOrigin.PERSON, why="", by="ann")

    reported = open_site.cli("why", str(job_id)).stdout

    assert "drained: by ann" in reported


@pytest.mark.full
def test_a_promotion_by_waiting_is_shown(open_site: Site) -> None:
    """``queue``, ``show`` and ``why`` agree on the priority of a promoted job, and ``show`` records the promotion.

    ``queue`` and ``show`` used to say low where ``why`` said high.
    """
    job_id = submit(open_site, "--priority", "low")
    store = connect(open_site.queue.url)
    store.hset(keys.job(job_id), stored.SUBMITTED_MS, open_site.queue.now_ms() - 90 * 1000)
    store.close()
    assert [1, 0] == [open_site.queue.maintenance.promote(after_s=60) for _ in range(2)]
    recorder = Recorder(Settings.load(), open_site.queue, open_site.client.database)
    while recorder.record(0):
        pass

    assert "priority low, promoted to normal" in open_site.cli("queue").stdout
    shown = open_site.cli("show", str(job_id)).stdout
    assert ", priority low, promoted to normal\n" in shown
    assert "waited long: promoted to priority normal\n" in shown
    assert "priority normal" in open_site.cli("why", str(job_id)).stdout
    (note,) = json.loads(open_site.cli("show", str(job_id), "--json").stdout)["notes"]
    assert (0, "waited long: promoted to priority normal") == (note["attempt"], note["text"])


@pytest.mark.full
def test_queue_show_and_why_name_what_a_job_waits_for(open_site: Site) -> None:
    """Each command names the other job and its state, the begin time or the retry."""
    first = submit(open_site, "--name", "first")
    second = submit(open_site, "--after", str(first), "--retries", "2")
    third = submit(open_site, "--begin", "2h", "--hold")
    fourth = submit(open_site, "--begin", "2h")

    rows = open_site.cli("queue").stdout.splitlines()
    assert f"job {first}" in rows[2]
    assert "held" in rows[3]
    assert "begin in 1:59:" in rows[4] or "begin in 2:00:00" in rows[4]
    story = open_site.cli("why", str(second)).stdout
    assert f"start  not before job {first} has succeeded: it is queued" in story
    assert "it fits" not in story
    assert "start  not before 20" in open_site.cli("why", str(fourth)).stdout
    shown = open_site.cli("show", str(second)).stdout
    assert f"(job {first})" in shown
    assert "retries    0 of 2, after: failed, signalled, refused, lost" in shown
    assert f"  after      {first}:ok" in shown
    plain = json.loads(open_site.cli("why", str(second), "--json").stdout)
    assert {"not_yet"} == {each["obstacle"] for each in plain["explanation"]["devices"]}
    assert plain["explanation"]["start"] is None
    assert [{"job_id": first, "condition": "ok"}] == plain["job"]["awaits"]
    assert "held" in open_site.cli("show", str(third)).stdout


@pytest.mark.full
def test_wait_show_and_history_report_why_a_dependant_was_cancelled(open_site: Site) -> None:
    """A job cancelled because of a dependency names it, and has the exit code of a cancelled job."""
    first = submit(open_site)
    second = submit(open_site, "--after", f"{first}")
    end(open_site, 1)
    recorder = Recorder(Settings.load(), open_site.queue, open_site.client.database)
    while recorder.record(0):
        pass

    assert f"cancelled (dependency {first} failed)" in open_site.cli("show", str(second)).stdout
    done = open_site.cli("wait", str(second), check=False)
    assert 130 == done.returncode
    assert f"job {second} cancelled (dependency {first} failed)" in done.stderr
    (reported, _) = json.loads(open_site.cli("history", "--json").stdout)
    assert (f"dependency {first} failed", "dependency") == (reported["job"]["because"], reported["job"]["reason"])
    assert f"dependency {first} failed" in open_site.cli("history", "--columns", "id,state,because").stdout


@pytest.mark.full
def test_an_old_dependency_is_read_from_the_history(open_site: Site) -> None:
    """A dependency on a job that the queue has deleted is looked up in the history."""
    first, second = submit(open_site), submit(open_site)
    end(open_site)
    end(open_site, 1)
    recorder = Recorder(Settings.load(), open_site.queue, open_site.client.database)
    while recorder.record(0):
        pass
    assert open_site.queue.jobs.get(first) is None

    assert 3 == submit(open_site, "--after", f"{first},{second}:fail")
    done = open_site.cli("submit", "--after", str(second), *TRUE, check=False)
    assert (2, "") == (done.returncode, done.stdout)
    assert f"job {second} failed, or was cancelled" in done.stderr
    assert "memory" in open_site.cli("queue").stdout


def test_a_second_job_with_a_key_is_the_first(open_site: Site) -> None:
    """A submit with the dedupe key of a waiting job returns that job and says so."""
    first = submit(open_site, "--dedupe", "nightly")

    done = open_site.cli("submit", "--dedupe", "nightly", *TRUE)

    assert f"{first}\n" == done.stdout
    assert f"job {first} has this dedupe key and is queued" in done.stderr
    assert 1 == len(open_site.queue.jobs.live())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--after", "x"], "is no job to wait for: write --after 12"),
        (["--after", "1:well"], "is no job to wait for"),
        (["--after", "1,1:any"], "only once"),
        (["--after", "17_3"], "a job can wait only for a whole array: write 17"),
        (["--begin", "9999-12-31"], "more than ten years away"),
        (["--begin", "soon"], "is no time to begin: write 2h"),
        (["--begin", "25:00"], "is no time to begin"),
        (["--dedupe", "a b"], "is no dedupe key"),
        (["--retries", "-1"], "retries must be a whole number from 0 to 100"),
        (["--retries", "1000"], "from 0 to 100"),
        (["--retry-on", "lost"], "give the number of retries"),
        (["--retries", "1", "--retry-on", "sunday"], "is no ending to retry after"),
        (["--retries", "1", "--no-requeue"], "leave out --retries or --no-requeue"),
    ],
)
def test_a_mistake_gets_a_clear_line_and_nothing_is_queued(open_site: Site, words: list[str], line: str) -> None:
    """A mistake gets one line that says what to write instead."""
    open_site.queue.requests.submit(make_spec())

    _is_refused(open_site, words, 2, line)


@pytest.mark.full
@pytest.mark.parametrize(("ids", "line"), [("77", "no job 77 to wait for"), ("77,78", "no job 77, 78 to wait for")])
def test_a_job_that_nobody_knows_cannot_be_waited_for(open_site: Site, ids: str, line: str) -> None:
    """A dependency on an unknown job ends with 3, as in all other commands. It used to be 2."""
    open_site.queue.requests.submit(make_spec())

    _is_refused(open_site, ["--after", ids], 3, line)
    assert 3 == open_site.cli("edit", "1", "--after", ids, check=False).returncode


def _is_refused(open_site: Site, words: list[str], code: int, line: str) -> None:
    done = open_site.cli("submit", *words, *TRUE, check=False)

    assert (code, "") == (done.returncode, done.stdout)
    assert line in done.stderr
    assert 1 == done.stderr.count("\n")
    assert 1 == len(open_site.queue.jobs.live())
