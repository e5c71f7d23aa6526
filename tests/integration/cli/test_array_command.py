"""Arrays and sweeps on the command line and in Python: submit, show, wait, changes to parts, and history."""

from __future__ import annotations

import csv
import io
import json

import pytest
from factories import make_offer, must_claim, serve
from site_of_one import Site

from gpuqueue import Client
from gpuqueue.errors import BadRequest, JobNotFound, Refused
from gpuqueue.model.array import Array
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.run import Ending
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from workers.services.recorder import Recorder


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


@pytest.mark.full
def test_a_device_names_the_members_that_it_has(site: Site) -> None:
    """``gpus``, ``status`` and ``drain`` use member names, as other commands do. They used to print job ids."""
    client = quiet(site)
    array = client.jobs.submit(["true"], mem="64M", array="0-3").id
    claimed = [must_claim(site.queue).job_id for _ in range(2)]
    redis = connect(site.queue.url)
    redis.hset(keys.RESERVED, "GPU-0", f"{claimed[1]}:1")
    redis.close()

    for command in (("gpus",), ("status",)):
        shown = site.cli(*command).stdout
        assert f"  {array}_0 {array}_1  " in shown, shown
        assert f"for job {array}_1, see gpuqueue why {array}_1\n" in shown
    (plain,) = json.loads(site.cli("gpus", "--json").stdout)
    assert (claimed, claimed[1]) == (plain["jobs"], plain["reservation"]["job_id"])
    assert f"; jobs {array}_0, {array}_1 go on\n" in site.cli("drain", f"{plain['host']}:0").stdout


@pytest.mark.full
def test_a_member_that_never_was_a_job_has_no_number(site: Site) -> None:
    """A member that never started is shown without a job id, because it has none."""
    client = quiet(site)
    array = client.jobs.submit(["true"], mem="64M", array="0-3").id
    site.cli("cancel", f"{array}_1")

    for index in (1, 2):  # one is cancelled, one waits
        assert f"  member     {index} of array {array}\n" in site.cli("show", f"{array}_{index}").stdout


def test_the_list_shows_what_is_left(site: Site) -> None:
    """The list has one line for the waiting part, one for the held part, and one for each member on a device."""
    client = quiet(site)
    array = int(site.cli("submit", "--mem", "64M", "--array", "0-99%2", "--", "true").stdout)
    must_claim(site.queue)
    site.cli("hold", f"{array}_50-99")

    lines = site.cli("queue").stdout.splitlines()

    assert [f"{array}_[1-49%2]", f"{array}_[50-99%2]", f"{array}_0"] == [line.split()[0] for line in lines[1:]]
    assert ["queued", "held", "starting"] == [line.split()[3] for line in lines[1:]]
    (job, member) = json.loads(site.cli("queue", "--json").stdout)["jobs"]
    assert {"indexes": "0-99", "at_once": 2, "axes": []} == job["spec"]["array"]
    none = dict.fromkeys(("succeeded", "failed", "cancelled", "lost"), 0)
    assert {"left": "1-49", "held": "50-99", "ended": none} == job["tally"]
    assert ({"array_id": array, "index": 0}, None) == (member["member"], member["tally"])
    must_claim(site.queue)
    assert WaitReason.ARRAY_LIMIT is client.jobs.get(array).reason
    assert "array limit" in site.cli("why", str(array)).stdout
    assert "array limit" in site.cli("why", f"{array}_30").stdout


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


def test_members_that_never_began_are_named(site: Site) -> None:
    """The history lists cancelled members that never started in a message, because they have no entry."""
    client = quiet(site)
    array = client.jobs.submit(["true"], mem="64M", array="0-9").id
    client.jobs.cancel(f"{array}_5-6")
    must_claim(site.queue)
    recorder = Recorder(site.settings, site.queue, client.database)
    while recorder.record(0):
        pass

    asked = site.cli("history", "--array", str(array))

    assert [f"{array}_0"] == [line.split()[0] for line in asked.stdout.splitlines()[1:]]
    assert f"and never began: {array}_5-6, cancelled before a device took them\n" == asked.stderr
    assert "never began" not in site.cli("history", "--array", str(array), "--state", "failed").stderr
    assert "state      cancelled (before it started)" in site.cli("show", f"{array}_5").stdout


def test_an_array_stands_as_the_last_of_its_members_do(site: Site) -> None:
    """An array is not running if its remaining members are held or wait for a retry."""
    client = quiet(site)
    array = client.jobs.submit(["true"], mem="64M", array="0-1", retries=1).id
    runs = [must_claim(site.queue) for _ in range(2)]
    assert ["starting"] * 2 == [str(each.state) for each in client.jobs.list() if each.member is not None]
    assert JobState.RUNNING is client.jobs.show(array).job.state

    for run, code in zip(runs, (0, 1), strict=True):
        state = JobState.FAILED if code else JobState.SUCCEEDED
        ending = Ending.from_status(code << 8)
        site.queue.runs.finish(run.job_id, run.token, state=state, ending=ending, duration_s=1, devices=())

    assert "state      queued (retry)" in site.cli("show", str(array)).stdout
    assert ["queued", "queued"] == [job["state"] for job in json.loads(site.cli("queue", "--json").stdout)["jobs"]]
    client.jobs.hold(f"{array}_1")
    assert "state      held" in site.cli("show", str(array)).stdout
    assert ["held", "held"] == [job["state"] for job in json.loads(site.cli("queue", "--json").stdout)["jobs"]]
    client.jobs.release(array)
    assert JobState.QUEUED is client.jobs.show(array).job.state


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


def test_a_member_is_no_job_to_edit(site: Site) -> None:
    """``edit 1_2`` is refused. Python reads 1_2 as 12, and job 12 used to be changed."""
    client = quiet(site)
    for _ in range(12):
        client.jobs.submit(["true"], mem="1G", hold=True)

    output = site.cli("edit", "1_2", "--mem", "9G", check=False)

    assert (2, 1) == (output.returncode, output.stderr.count("\n"))
    assert "a part of an array" in output.stderr
    assert client.jobs.submit(["true"], mem="1G").spec.mem_bytes == client.jobs.get(12).spec.mem_bytes


@pytest.mark.full
def test_a_wait_for_a_part_reports_a_cancel(site: Site) -> None:
    """``wait`` on a part needs the ends of all its members. A cancelled array returns the code of a cancelled job."""
    client = quiet(site)
    site.start_recorder()
    array = int(site.cli("submit", "--mem", "64M", "--hold", "--array", "0-3", "--", "true").stdout)
    late = site.cli("wait", f"{array}_1-2", "--timeout", "0.01s", check=False)
    assert (124, True) == (late.returncode, f"job {array}_1 has not ended" in late.stderr)
    assert "not before somebody releases it" in site.cli("why", str(array)).stdout

    client.jobs.cancel(array)

    assert 130 == site.cli("wait", f"{array}_1-2", check=False).returncode
    assert 130 == site.cli("wait", str(array), check=False).returncode
