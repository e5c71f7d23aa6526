"""The ``retry`` command: a new job with the request and environment of one that has ended."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from factories import make_offer, make_spec, must_claim, serve
from site_of_one import Site
from template_history import make_tables

from gpuqueue import Client
from gpuqueue.client import connection, wait
from gpuqueue.errors import BadRequest, HistoryUnreachable, Refused
from gpuqueue.model.array import Indexes
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, Priority
from gpuqueue.model.probe import Probe
from gpuqueue.model.run import Ending
from gpuqueue.text.units import GIB, MIB


def ended(site: Site, status: int, job_id: int) -> None:
    """Claim the next job, which must be *job_id*, and end it with this exit status."""
    claimed = must_claim(site.queue, host=site.settings.host)
    assert job_id == claimed.job_id
    site.queue.runs.started(job_id, claimed.token, lease_s=300, log_path="/l", devices=())
    state = JobState.SUCCEEDED if status == 0 else JobState.FAILED
    ending = Ending.from_status(status)
    site.queue.runs.finish(job_id, claimed.token, state=state, ending=ending, duration_s=1, devices=())


def quiet(site: Site) -> Client:
    """Return the client of a site with a recorder, whose device has no worker."""
    site.start_recorder()
    serve(site.queue, make_offer(host=site.settings.host))
    return site.client


@pytest.mark.full
def test_a_job_is_tried_again_as_it_was_first(site: Site, tmp_path: Path) -> None:
    """A retry has the command, directory and environment of the first submit.

    Options override them, and it prints its id.
    """
    site.start_recorder()
    site.start_worker()
    (tmp_path / "here").mkdir()
    script = 'pwd; echo "$COLOUR ${GPUQUEUE_JOB_ID:+with id}"; test -e flag'
    words = ("--mem", "64M", "--name", "try", "--cwd", str(tmp_path / "here"), "--env", "COLOUR=blue")
    first = int(site.cli("submit", *words, "--", "sh", "-c", script).stdout)
    assert JobState.FAILED is site.until_recorded(first).job.state
    (tmp_path / "here" / "flag").touch()
    site.environ["COLOUR"] = "red"

    second = int(site.cli("retry", str(first), "--mem", "128M", "--time", "5m", "--priority", "high").stdout)

    assert JobState.SUCCEEDED is site.until_recorded(second).job.state
    assert site.cli("logs", str(first)).stdout == site.cli("logs", str(second)).stdout
    assert site.cli("logs", str(second)).stdout.startswith(f"{tmp_path / 'here'}\nblue ")
    reported = json.loads(site.cli("show", str(second), "--json").stdout)["job"]["spec"]
    assert (first, "try", 128 * MIB, 300, "high") == (
        reported["retry_of"],
        reported["name"],
        reported["mem_bytes"],
        reported["time_limit_s"],
        reported["priority"],
    )
    assert f"  retry of   job {first}\n" in site.cli("show", str(second)).stdout
    assert "retry of" not in site.cli("show", str(first)).stdout


@pytest.mark.full
def test_of_an_array_what_failed_is_tried_again(site: Site) -> None:
    """The failed members of an array become an array with the same indexes, so that a sweep's values are the same.

    A single member becomes a single job.
    """
    client = quiet(site)
    array = client.jobs.submit(["train", "{lr}"], mem="64M", sweep={"lr": [1, 2, 3, 4]}, at_once=3, after=None).id
    for index, status in enumerate((0, 1, 0, 1)):
        ended(site, status, array + 1 + index)
    site.until_recorded(array)

    again = client.jobs.retry(array, mem="1G")
    part = client.jobs.retry(f"{array}_2-3")
    one = client.jobs.retry(f"{array}_0")

    assert (Indexes.parse("1,3"), 3, GIB, array) == (
        again.spec.array.indexes if again.spec.array else None,
        again.spec.array.at_once if again.spec.array else None,
        again.spec.mem_bytes,
        again.spec.retry_of,
    )
    assert "train 4" == client.jobs.get(f"{again.id}_3").spec.command
    assert part.spec.array is not None
    assert Indexes.parse("3") == part.spec.array.indexes
    assert (None, "train 1", "0", array + 1) == (
        one.spec.array,
        one.spec.command,
        one.spec.env["GPUQUEUE_ARRAY_INDEX"],
        one.spec.retry_of,
    )
    with pytest.raises(Refused, match=f"no member of {array}_0,2 failed or was lost"):
        client.jobs.retry(f"{array}_0,2")


def test_no_failed_member_is_left_out_because_the_history_lags(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store knows how many failed. A retry of fewer is refused, and works once the history has them all."""
    monkeypatch.setattr(wait, "RECORD_S", 0.1)
    make_tables(site.settings.database_url)
    serve(site.queue, make_offer(host=site.settings.host))
    array = site.client.jobs.submit(["train"], mem="64M", array="0-2", after=None).id
    for index, status in enumerate((1, 0, 1)):
        ended(site, status, array + 1 + index)

    with pytest.raises(HistoryUnreachable, match=f"has 0 of the 2 members of {array} that failed.*try again later"):
        site.client.jobs.retry(array)

    site.start_recorder()
    site.until_recorded(array)
    again = site.client.jobs.retry(array)
    assert again.spec.array is not None
    assert Indexes.parse("0,2") == again.spec.array.indexes


def test_words_after_the_dashes_are_the_arguments_of_the_script(site: Site, tmp_path: Path) -> None:
    """``gpuqueue retry 2 -- --epochs 1`` submits job 2 with other arguments; it submitted job 1 as well.

    A job that runs a command has no script whose arguments could be replaced.
    """
    client = quiet(site)
    (tmp_path / "train.py").touch()
    other = client.jobs.submit(["true"], mem="64M").id
    ended(site, 1, other)
    job = client.jobs.submit("train.py", ["--epochs", "9"], mem="64M", cwd=tmp_path, env={"A": "1", "B": "1"}).id
    ended(site, 1, job)

    output = site.cli("retry", str(job), "--env", "B=2", "--device", "any", "--", "--epochs", str(other))

    assert 1 == len(output.stdout.split())
    again = client.jobs.get(int(output.stdout)).spec
    assert ("train.py", "--epochs", str(other)) == again.argv[1:]
    assert ("1", "2", "any") == (again.env["A"], again.env["B"], str(again.device))
    too_many = site.cli("retry", str(job), "--gpus", "2", check=False)
    assert "2 devices asked for, but no host has more than 1" in too_many.stderr
    array = client.jobs.submit("train.py", ["{lr}"], mem="64M", cwd=tmp_path, sweep={"lr": [1, 2]}).id
    site.queue.jobs.cancel(again_id := int(output.stdout))
    ended(site, 1, array + 1)
    site.queue.jobs.cancel(array)
    site.until_recorded(array)
    with pytest.raises(BadRequest, match=r"\{lrr\} is no value of this array"):
        client.jobs.retry(array, args=["{lr}", "{lrr}"])
    assert JobState.CANCELLED is client.jobs.get(again_id).state
    refused = site.cli("retry", str(other), "--", "--epochs", "1", check=False)
    line = f"gpuqueue: job {other} runs a command, not a script: submit it again with its new arguments\n"
    assert (2, "", line) == (refused.returncode, refused.stdout, refused.stderr)


def test_filters_leave_out_probes(site: Site) -> None:
    """A filter used to submit probes again, each with a whole card."""
    client = quiet(site)
    probe = site.queue.requests.submit(
        make_spec(account=client.account, name="a", time_limit_s=60, probe=str(Probe(flat_s=30)))
    ).id
    failed = client.jobs.submit(["true"], mem="1M", name="a").id
    for job in (probe, failed):
        ended(site, 1, job)
    site.until_recorded(failed)

    assert [failed] == [each.job.id for each in client.jobs.choose_ended(name="a")]


def test_only_its_owner_tries_it_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the owner or an admin can retry a job, because its environment may have tokens and passwords.

    An admin's retry belongs to the admin.
    """
    client = quiet(site)
    job = site.queue.requests.submit(make_spec()).id
    site.queue.jobs.cancel(job)
    monkeypatch.setattr(connection, "current_account", lambda host: Account(name="bob", uid=1001, host=host))

    with pytest.raises(Refused, match=f"job {job} is ada's: only ada may run it again, .* environment of ada"):
        client.jobs.retry(job)

    site.queue.rules.set_policy(half_life_s=86400, urgent=None, shares={}, admins="bob")
    again = client.jobs.retry(job, priority=Priority.LOW)
    assert ("bob", {"PATH": "/usr/bin:/bin"}, Priority.LOW) == (
        again.spec.account.name,
        again.spec.env,
        again.spec.priority,
    )


@pytest.mark.full
def test_a_retry_notes_what_is_checked_out_now(site: Site, tmp_path: Path) -> None:
    """A retry records the commit that is checked out now, because it reads the current files."""

    def git(*words: str) -> str:
        command = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    client = quiet(site)
    first = int(site.cli("submit", "--mem", "64M", "--cwd", str(tmp_path), "--", "true").stdout)
    ended(site, 1, first)
    git("commit", "-q", "--allow-empty", "-m", "two")

    second = int(site.cli("retry", str(first)).stdout)

    seen = client.jobs.get(second).spec.git
    assert seen is not None
    assert git("rev-parse", "HEAD") == seen.commit
