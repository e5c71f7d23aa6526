"""The ``wait`` command: all jobs, any job, timeouts, and no import of the history's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from bounded import until
from factories import make_offer, make_spec, must_claim, serve
from site_of_one import BIN, Site

from gpuqueue.errors import JobNotFound
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunNote

#: Runs `gpuqueue` and prints on stderr whether it imported the library of the history.
REPORTING = """
import atexit, sys
atexit.register(lambda: print("sqlalchemy" in sys.modules, file=sys.stderr))
from gpuqueue.cli.main import main
sys.argv = ["gpuqueue", *sys.argv[1:]]
main()
"""


@pytest.fixture
def open_site(site: Site) -> Site:
    """Return a site with a history and a device without a worker."""
    site.make_tables()
    serve(site.queue)
    return site


def submit(site: Site, **more: str) -> int:
    """Submit a job and return its id."""
    return site.client.jobs.submit(["true"], mem="64M", **more).id


def end(site: Site, code: int = 0, notes: tuple[RunNote, ...] = ()) -> int:
    """Claim the next job, end it and return its id."""
    claimed = must_claim(site.queue)
    state = JobState.FAILED if code else JobState.SUCCEEDED
    ending = Ending.from_status(code)
    site.queue.runs.finish(
        claimed.job_id, claimed.token, state=state, ending=ending, duration_s=1.0, devices=(), notes=notes
    )
    return claimed.job_id


def waiting(site: Site, *words: str) -> subprocess.Popen[str]:
    """Start ``gpuqueue wait`` in the background."""
    return subprocess.Popen(
        [str(BIN / "gpuqueue"), "wait", *words],
        env=site.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.full
def test_any_returns_with_the_first_that_ends(open_site: Site) -> None:
    """``--any`` returns at the first end, with that job's exit code and its name on stdout for scripts."""
    open_site.spawn("record")
    first, second = submit(open_site), submit(open_site, begin="2h")
    process = waiting(open_site, "--any", str(second), str(first))

    end(open_site, 7)

    out, err = process.communicate(timeout=30)
    assert (7, f"{first}\n") == (process.returncode, out), err


@pytest.mark.full
def test_all_is_the_default_and_the_code_is_of_the_first_bad_one_named(open_site: Site) -> None:
    """The default is all jobs. The exit code is that of the first failed one on the command line, not in time."""
    open_site.spawn("record")
    one, two, three = (submit(open_site) for _ in range(3))
    process = waiting(open_site, str(three), str(two), str(one), "--json")

    for code in (5, 6, 0):
        end(open_site, code)

    out, err = process.communicate(timeout=30)
    assert 6 == process.returncode, err
    assert [three, two, one] == [each["job"]["id"] for each in json.loads(out)]
    assert 5 == open_site.cli("wait", "--all", str(one), str(two), check=False).returncode


@pytest.mark.full
def test_each_held_job_is_reported_while_others_run(open_site: Site) -> None:
    """``wait`` reports each held job at once, not after the earlier ones have ended.

    The waiting user may be the one to release it.
    """
    first, second = submit(open_site), submit(open_site, begin="2h")
    open_site.client.jobs.hold(second)
    process = waiting(open_site, str(first), str(second))
    assert process.stderr is not None

    assert f"job {second} is held" in process.stderr.readline()

    end(open_site)
    open_site.client.jobs.cancel(second)
    open_site.spawn("record")
    assert 130 == process.wait(timeout=30)
    process.communicate()


def test_an_unknown_job_is_reported_at_once(open_site: Site) -> None:
    """An unknown job is an error at once, before the others end."""
    with pytest.raises(JobNotFound, match="no job 77"):
        next(open_site.client.jobs.ends([submit(open_site), 77]))


def test_parts_of_arrays_are_waited_for_member_by_member(open_site: Site) -> None:
    """``wait`` on parts of an array waits for those members, also if one is cancelled before a device takes it."""
    array = open_site.client.jobs.submit(["true"], mem="64M", array="0-3").id
    process = waiting(open_site, f"{array}_0-1", f"{array}_3")

    end(open_site)
    open_site.client.jobs.cancel(f"{array}_3")
    until(lambda: end(open_site), what="the second member")
    open_site.spawn("record")

    assert 130 == process.wait(timeout=30)
    process.communicate()
    assert JobState.QUEUED is open_site.client.jobs.get(array).state


@pytest.mark.parametrize("what", ["job", "member"])
def test_the_history_is_not_asked_where_the_queue_knows(open_site: Site, what: str) -> None:
    """If the queue has the end of a job, ``wait`` does not import the history's library, which is slow to import."""
    array = {"array": "0-1"} if what == "member" else {}
    job = submit(open_site, **array)
    name = f"{job}_0" if array else str(job)
    process = subprocess.Popen(
        [sys.executable, "-c", REPORTING, "wait", name],
        env={**os.environ, **open_site.environ},
        stderr=subprocess.PIPE,
        text=True,
    )

    end(open_site)

    _, err = process.communicate(timeout=30)
    assert (0, ["False"]) == (process.returncode, err.splitlines())


def test_a_timeout_of_zero_only_polls(site: Site) -> None:
    """A timeout of 0 checks once, for scripts that poll. It used to be refused."""
    serve(site.queue, make_offer())
    job_id = site.queue.requests.submit(make_spec()).id
    for word in ("0s", "0"):
        output = site.cli("wait", "--timeout", word, str(job_id), check=False)
        assert (124, "") == (output.returncode, output.stdout)
        assert f"job {job_id} has not ended after 0 s" in output.stderr


@pytest.mark.parametrize("code", [0, 3])
def test_the_notes_of_a_run_are_printed_before_the_history_has_them(open_site: Site, code: int) -> None:
    """No recorder runs here, so the note is still in the store. The exit code stays that of the job."""
    submit(open_site)
    note = RunNote(kind="ended_processes", items=("sleep 9 (pid 17)",))
    end(open_site, code, (note,))

    done = open_site.cli("wait", "1", check=False)

    assert (code, f"gpuqueue: job 1: {note.words}\n") == (done.returncode, done.stderr)
