"""Arrays and sweeps on the command line and in Python: submit, show, wait, changes to parts, and history."""

from __future__ import annotations

import csv
import io

import pytest
from factories import make_offer, must_claim, serve
from site_of_one import Site

from gpuqueue import Client
from gpuqueue.errors import BadRequest, JobNotFound, Refused
from gpuqueue.model.array import Array
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending


def quiet(site: Site) -> Client:
    """Return the client of a site whose device has no worker. The tests claim jobs themselves."""
    site.make_tables()
    serve(site.queue, make_offer())
    return site.client


@pytest.mark.full
def test_a_sweep_goes_its_whole_way(site: Site) -> None:
    """Each member runs with its own values and log. The array's exit code is that of the worst member."""
    site.start_recorder()
    site.start_worker()
    script = (
        'echo "$GPUQUEUE_ARRAY_INDEX of $GPUQUEUE_ARRAY_COUNT in $GPUQUEUE_ARRAY_JOB_ID lr=$GPUQUEUE_SWEEP_LR $1 $2"; '
        'test "$GPUQUEUE_ARRAY_INDEX" != 2 || exit 7'
    )
    sweep = ("--sweep", "lr=1e-3,1e-4", "--sweep", "seed=0..1", "--at-once", "2")

    done = site.cli("submit", "--mem", "64M", *sweep, "--", "sh", "-c", script, "x", "{lr}-{seed}", '{"a": {index}}')
    array = int(done.stdout)
    waited = site.cli("wait", str(array), "--timeout", "60s", check=False)

    assert 7 == waited.returncode, waited.stderr
    assert f'2 of 4 in {array} lr=1e-4 1e-4-0 {{"a": 2}}\n' == site.cli("logs", f"{array}_2").stdout
    assert f'3 of 4 in {array} lr=1e-4 1e-4-1 {{"a": 3}}\n' == site.cli("logs", f"{array}_3").stdout
    assert 0 == site.cli("wait", f"{array}_3").returncode
    assert 7 == site.cli("wait", f"{array}_2", check=False).returncode
    shown = site.cli("show", str(array)).stdout
    assert "members    4 (0-3), at most 2 at once" in shown
    assert "so far     3 succeeded, 1 failed" in shown
    rows = list(csv.DictReader(io.StringIO(site.cli("history", "--array", str(array), "--csv", "-r").stdout)))
    assert ["0", "1", "2", "3"] == [row["array_index"] for row in rows]
    assert f"{array}_2" in site.cli("history", "--members", "--exit-code", "7").stdout
    assert f"member     2 of array {array}, job {array + 3}" in site.cli("show", f"{array}_2").stdout
    assert JobState.FAILED is site.client.jobs.get(array).state
    assert site.client.jobs.get(f"{array}_2") == site.client.jobs.get(array + 3)


def test_members_are_known_before_and_after(site: Site) -> None:
    """A member can be named whether it waits, is held, runs or was cancelled."""
    client = quiet(site)
    array = client.jobs.submit(["true"], mem="64M", array="0-9").id
    must_claim(site.queue)
    client.jobs.hold(f"{array}_4")
    client.jobs.cancel(f"{array}_5-6")

    states = [client.jobs.get(f"{array}_{index}").state for index in (0, 1, 4, 5)]

    assert [JobState.STARTING, JobState.QUEUED, JobState.HELD, JobState.CANCELLED] == states
    assert "_".join((str(array), "3")) == client.jobs.get(f"{array}_3").label
    assert JobState.CANCELLED is client.jobs.wait(f"{array}_5", timeout_s=5).job.state
    with pytest.raises(JobNotFound, match="no job 1_10"):
        client.jobs.get(f"{array}_10")
    with pytest.raises(Refused, match=f"name a member, such as {array}_0"):
        client.logs.path(array)
    with pytest.raises(Refused, match="has no log yet"):
        client.logs.path(f"{array}_1")


def test_parts_are_cancelled_held_and_released(site: Site) -> None:
    """An action that has nothing to do says so, with the documented exit code."""
    client = quiet(site)
    array = client.jobs.submit(["true"], mem="64M", array="0-9").id
    run = must_claim(site.queue)

    assert f"job {array}_0-1: cancelling\njob {array}_8: cancelled\n" == (
        site.cli("cancel", f"{array}_0-1", f"{array}_8").stdout
    )
    assert JobState.HELD is client.jobs.hold(f"{array}_2-3").state
    assert JobState.QUEUED is client.jobs.release(f"{array}_3").state
    assert JobState.HELD is client.jobs.hold(array).state
    assert JobState.CANCELLED is client.jobs.cancel(f"{array}_8").state, "it is already"
    for act, words in ((client.jobs.hold, f"{array}_2"), (client.jobs.release, f"{array}_8")):
        with pytest.raises(Refused, match="nothing"):
            act(words)
    assert 5 == site.cli("hold", str(array), check=False).returncode
    single = client.jobs.submit(["true"], mem="64M").id
    with pytest.raises(BadRequest, match="is no array"):
        client.jobs.cancel(f"{single}_1")
    assert JobState.CANCELLING is client.jobs.cancel(array).state
    ended = Ending.from_status(-15)
    site.queue.runs.finish(run.job_id, run.token, state=JobState.CANCELLED, ending=ended, duration_s=1, devices=())
    assert JobState.CANCELLED is client.jobs.get(array).state


def test_a_program_asks_for_arrays_as_well(site: Site) -> None:
    """The Python API takes arrays and sweeps as Python types. Invalid ones are refused before anything is queued."""
    client = quiet(site)

    job = client.jobs.submit(
        ["train", "{lr}", "{seed}"], mem="64M", sweep={"lr": [1e-3, 1e-4], "seed": range(3)}, at_once=4
    )

    assert job.spec.array == Array.asked(None, ["lr=0.001,0.0001", "seed=0,1,2"], 4)
    assert "train 0.0001 0" == client.jobs.get(f"{job.id}_3").spec.command
    for asked in ({"array": "x"}, {"array": 5}, {"sweep": {"a": "123"}}, {"sweep": {"a": ["1,2"]}}, {"sweep": "a=1"}):
        with pytest.raises(BadRequest):
            client.jobs.submit(["true"], mem="64M", **asked)  # type: ignore[arg-type]
    assert (1, 0) == site.queue.jobs.counts()


@pytest.mark.full
def test_an_array_shows_the_last_words_of_a_failed_member(site: Site) -> None:
    """``show``, ``history`` and ``logs`` of an array read the logs of its members. ``wait`` says how it ended."""
    site.start_recorder()
    site.start_worker()
    script = 'echo "member {index}"; test {index} != 1 || { echo "KeyError: lr" >&2; exit 3; }'

    array = site.cli("submit", "--mem", "64M", "--array", "0-2", "--", "sh", "-c", script).stdout.strip()
    waited = site.cli("wait", array, "--timeout", "60s", check=False)
    site.until_recorded(int(array))

    assert (3, f"gpuqueue: job {array} failed (2 succeeded, 1 failed): gpuqueue show {array}\n") == (
        waited.returncode,
        waited.stderr,
    )
    shown = site.cli("show", array).stdout
    assert f"  failed     {array}_1\n  such as    {array}_1: exit 3; its log ends with: KeyError: lr\n" in shown
    logs = site.cli("logs", "--tail", "1", array).stdout
    heads = [
        f"==> {array}_{index} <==\n{last}\n" for index, last in enumerate(("member 0", "KeyError: lr", "member 2"))
    ]
    assert "\n".join(heads) == logs
    words = ("history", "--array", array, "--columns", "index,reason,last", "--csv", "-r")
    rows = "index,reason,last\n0,exit 0,member 0\n1,exit 3,KeyError: lr\n2,exit 0,member 2\n"
    assert rows.replace("index", "array_index") == site.cli(*words).stdout
