from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from factories import make_device, make_offer, make_spec, must_claim, serve
from site_of_one import Site

from gpuqueue.cli.output.why_text import why_text
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.placement import Placement
from gpuqueue.model.retries import Retries
from gpuqueue.model.run import Ending
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.text.units import GIB


def one_run(queue: JobQueue, duration_s: float, **changes: object) -> None:
    """Let a job run and end."""
    queue.requests.submit(make_spec(**changes))
    run = must_claim(queue)
    queue.runs.started(run.job_id, run.token, lease_s=300, log_path="/l", devices=())
    done = {"state": JobState.SUCCEEDED, "ending": Ending.from_status(0), "devices": ()}
    queue.runs.finish(run.job_id, run.token, duration_s=duration_s, **done)  # type: ignore[arg-type]


@pytest.mark.full
def test_a_wait_is_explained_with_names_bytes_and_earlier_runs(site: Site) -> None:
    """``why`` names the jobs in the way and the missing bytes.

    The end of a job without a time limit is estimated from earlier runs of its name.
    """
    site.start_recorder()
    queue = site.queue
    serve(queue, make_offer(headroom_bytes=GIB))
    for duration_s in (3600.0, 7200.0):
        one_run(queue, duration_s, name="long")
    queue.requests.submit(make_spec(mem_bytes=20 * GIB, name="long"))
    must_claim(queue)
    waiting = queue.requests.submit(make_spec(mem_bytes=10 * GIB, name="mine")).id
    site.until_recorded(2)

    output = site.cli("why", str(waiting))

    assert "job 4  mine (ada), 10G on 1 device" in output.stdout
    assert "7G too little: job 3 (ada) 20G; headroom 1G" in output.stdout
    assert "unknown: nodeA:0 has room once job 3 has ended, and it has no time limit" in output.stdout
    assert "job 3: runs of its name took 1:00:00 (half of them), 2:00:00 (nine of ten), in 2 runs" in output.stdout
    plain = json.loads(site.cli("why", str(waiting), "--json").stdout)
    assert 3 == plain["explanation"]["start"]["blockers"][0]
    assert ((3600.0, 7200.0), {}) == (
        (plain["usual"]["3"]["median_s"], plain["usual"]["3"]["p90_s"]),
        plain["outlived"],
    )
    assert "memory" == plain["explanation"]["devices"][0]["obstacle"]


def test_no_start_is_known_behind_other_jobs(site: Site) -> None:
    """A job behind others gets no estimated start, only that of the first one. It used to get that start itself."""
    site.make_tables()
    queue = site.queue
    serve(queue)
    for _ in range(7):
        queue.requests.submit(make_spec(mem_bytes=20 * GIB, time_limit_s=3600.0))
    must_claim(queue)

    output = site.cli("why", "7").stdout

    assert "before it: 5 jobs of ada's own" in output
    assert re.search(
        r"^start  unknown: 5 jobs that may take the room go before it; there is room for the first of them by "
        r"\S+ \S+ on nodeA:0, when job 1 must have ended$",
        output,
        re.MULTILINE,
    )
    seventh, second = (json.loads(site.cli("why", job, "--json").stdout)["explanation"]["start"] for job in ("7", "2"))
    assert (None, 5) == (seventh["at_ms"], seventh["rivals"])
    assert seventh["room_ms"] == second["at_ms"]


@pytest.mark.full
def test_a_run_longer_than_earlier_ones_is_reported(site: Site) -> None:
    """A run that is longer than all earlier runs of its name is reported as such.

    The facts from the history used to disappear then.
    """
    site.start_recorder()
    queue = site.queue
    serve(queue)
    for _ in range(2):
        one_run(queue, 0.0001, name="long")
    queue.requests.submit(make_spec(mem_bytes=20 * GIB, name="long"))
    run = must_claim(queue)
    queue.runs.started(run.job_id, run.token, lease_s=300, log_path="/l", devices=())
    waiting = queue.requests.submit(make_spec(mem_bytes=20 * GIB)).id
    site.until_recorded(2)

    output = site.cli("why", str(waiting)).stdout

    assert "job 3: it has lasted longer than each of the last 2 runs of its name: its end is unknown" in output
    plain = json.loads(site.cli("why", str(waiting), "--json").stdout)
    (blocker,) = plain["explanation"]["start"]["blockers"]
    assert ({}, {str(blocker): 2}) == (plain["usual"], plain["outlived"])


@pytest.mark.full
def test_a_member_waits_for_what_its_array_waits_for(site: Site) -> None:
    """A member has the same dependencies and begin as its array.

    ``why`` used to say that no device would ever have the memory for it.
    """
    site.make_tables()
    serve(site.queue)
    parent = site.cli("submit", "--mem", "1G", "--hold", "--", "true").stdout.strip()
    words = ("submit", "--mem", "1G", "--array", "0-2")
    after = site.cli(*words, "--after", parent, "--", "true").stdout.strip()
    later = site.cli(*words, "--begin", "2h", "--", "true").stdout.strip()

    for array, start in ((after, f"not before job {parent} has succeeded: it is held"), (later, "not before ")):
        output = [line for line in site.cli("why", array).stdout.splitlines() if line.startswith("start")]
        assert len(output) == 1
        assert start in output[0]
        member = site.cli("why", f"{array}_2").stdout
        assert output == [line for line in member.splitlines() if line.startswith("start")]
        assert "unknown: " not in member


@pytest.mark.full
def test_the_members_before_it_go_before_a_member(site: Site) -> None:
    """The earlier members of an array count as jobs before a member.

    ``why`` used to count none and to give a start time.
    """
    site.make_tables()
    serve(site.queue)
    array = site.cli("submit", "--mem", "20G", "--time", "10m", "--array", "0-9", "--", "true").stdout.strip()
    must_claim(site.queue)  # the first member

    printed = {index: site.cli("why", f"{array}_{index}", "--json").stdout for index in (1, 2, 9)}
    reported = {index: json.loads(text)["explanation"] for index, text in printed.items()}
    assert {1: 0, 2: 1, 9: 8} == {index: each["own_before"] for index, each in reported.items()}
    assert {1: 0, 2: 1, 9: 8} == {index: each["start"]["rivals"] for index, each in reported.items()}
    assert reported[1]["start"]["at_ms"] is not None, "when the run must have ended that is in its way"
    assert reported[9]["start"]["at_ms"] is None, "who knows"
    assert "8 jobs of" in site.cli("why", f"{array}_9").stdout


@pytest.mark.full
def test_a_job_without_a_reservation_sees_the_other_reservations(site: Site) -> None:
    """``why`` names the job with the reservation, and the rule of one reservation per host."""
    site.make_tables()
    queue = site.queue
    site.environ["GPUQUEUE_RESERVE_AFTER"] = "0.001s"
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1", device=make_device("GPU-1", index=1)))
    for uuid in ("GPU-0", "GPU-1"):
        queue.requests.submit(make_spec(mem_bytes=20 * GIB))
        must_claim(queue, uuid)
    holder, next_one = (queue.requests.submit(make_spec(mem_bytes=20 * GIB)).id for _ in range(2))
    (reservation,) = queue.maintenance.reserve(after_s=0, most=1)
    assert holder == reservation.job_id

    output = site.cli("why", str(next_one)).stdout
    reported = json.loads(site.cli("why", str(next_one), "--json").stdout)

    rule = "nothing is reserved for this job yet: a host reserves devices for 1 job at a time (setting reservations)"
    reserved = rf"^reserved on nodeA for job {holder} \(ada\) since 20[-0-9]+ [:0-9]+; {re.escape(rule)}$"
    assert len(re.findall(reserved, output, re.MULTILINE)) == 1
    assert any(re.match(reserved, line) for line in reported["sentences"]["obstacles"])
    reservations = [each["reservation"] for each in reported["devices"].values() if each["reservation"]]
    assert [(holder, "20")] == [(each["job_id"], each["since"][:2]) for each in reservations]
    own = site.cli("why", str(holder))
    assert "reserved on" not in own.stdout
    assert re.search(r"^reserved for this job: \S+ since 20[-0-9]+ [:0-9]+; others start", own.stdout, re.MULTILINE)
    site.environ["GPUQUEUE_RESERVATIONS"] = "2"
    assert "reserved on" not in site.cli("why", str(next_one)).stdout, "it has one at the next tick"
    site.environ["GPUQUEUE_RESERVE_AFTER"] = "1h"
    site.environ["GPUQUEUE_RESERVATIONS"] = "1"
    assert "reserved on" not in site.cli("why", str(next_one)).stdout, "it has not waited for long enough"


def test_the_list_of_devices_names_the_job_of_a_reservation(site: Site) -> None:
    """``gpus`` shows for which job a device is reserved, and since when. It used to show only `ready`."""
    queue = site.queue
    site.environ |= {
        "GPUQUEUE_HEARTBEAT": "10s",
        "GPUQUEUE_HOST_LOST_AFTER": "1h",
    }  # long, because this test sends no heartbeats
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1", device=make_device("GPU-1", index=1)))
    for uuid in ("GPU-0", "GPU-1"):
        queue.requests.submit(make_spec(mem_bytes=20 * GIB))
        must_claim(queue, uuid)
    holder = queue.requests.submit(make_spec(mem_bytes=20 * GIB)).id
    assert "reserved" not in site.cli("gpus").stdout
    (reservation,) = queue.maintenance.reserve(after_s=0, most=1)
    connect(site.environ["GPUQUEUE_REDIS_URL"]).hset(keys.RESERVED, "GPU-9", "damaged")

    shown = site.cli("gpus").stdout.splitlines()
    reported = {each["device"]["uuid"]: each for each in json.loads(site.cli("gpus", "--json").stdout)}

    (reserved,) = reservation.devices
    (other,) = {"GPU-0", "GPU-1"} - {reserved}
    place = 1 if reserved == "GPU-0" else 2
    assert shown[place].endswith(f"reserved for job {holder}")
    assert shown[3 - place].endswith("ready")
    (below,) = [line for line in shown if line.startswith("reserved: ")]
    assert below.startswith(f"reserved: nodeA device {place - 1} since 20")
    assert below.endswith(f"for job {holder}, see gpuqueue why {holder}")
    assert holder == reported[reserved]["reservation"]["job_id"]
    assert reported[reserved]["reservation"]["since"].startswith("20")
    assert reported[other]["reservation"] is None


def test_a_held_job_shows_what_it_waits_for_after_its_release(site: Site) -> None:
    """``why`` shows a held job's dependencies and begin too.

    It used to hide them, and to say of each device that the job starts there at its turn.
    """
    site.make_tables()
    serve(site.queue)
    parent = site.cli("submit", "--mem", "1G", "--hold", "--", "true").stdout.strip()
    waits = ("--mem", "1G", "--hold", "--after", parent, "--begin", "2h")
    job = site.cli("submit", *waits, "--", "true").stdout.strip()
    array = site.cli("submit", "--mem", "1G", "--array", "0-2", "--", "true").stdout.strip()
    site.client.jobs.hold(f"{array}_1")

    output = site.cli("why", job).stdout

    starts = [line for line in output.splitlines() if line.startswith("start")]
    assert 3 == len(starts)
    assert f"start  not before somebody releases it: gpuqueue release {job}" == starts[0]
    assert f"start  not before job {parent} has succeeded: it is held" == starts[1]
    assert re.fullmatch(r"start  not before \S+ \S+", starts[2])
    for each in (job, parent, f"{array}_1"):
        reported = site.cli("why", each).stdout
        assert "it has room, but the job may not start yet" in reported
        assert "it starts there" not in reported


def test_a_held_member_of_an_array_that_has_begun_waits_for_a_person(site: Site) -> None:
    """A held member of a started array is shown as held.

    An array without a running member is not shown as running.
    """
    site.make_tables()
    serve(site.queue)
    array = site.cli("submit", "--mem", "1G", "--array", "0-1", "--", "true").stdout.strip()
    run = must_claim(site.queue)
    site.queue.runs.started(run.job_id, run.token, lease_s=300, log_path="/l", devices=())
    site.client.jobs.hold(f"{array}_1")

    assert f"held: it waits until it is released: gpuqueue release {array}_1\n" in site.cli("why", f"{array}_1").stdout
    assert "it does not wait: running since" in site.cli("why", array).stdout
    again = {"state": JobState.FAILED, "ending": Ending.from_status(75), "devices": ()}
    site.queue.runs.finish(run.job_id, run.token, duration_s=1.0, **again)  # type: ignore[arg-type]
    assert f"its members wait to be run again: gpuqueue why {array}_N shows" in site.cli("why", array).stdout
    site.client.jobs.hold(f"{array}_0")
    output = site.cli("why", array).stdout
    assert f"held: it waits until it is released: gpuqueue release {array}\n" in output
    assert "does not wait" not in output


def test_the_pause_before_a_retry_of_a_held_job_is_shown(site: Site) -> None:
    """``why`` shows a held job's pause before a retry only while the pause lasts.

    The job's reason is then another one.
    """
    serve(site.queue)
    queue = site.queue
    queue.requests.submit(make_spec(retries=Retries(times=1)))
    run = must_claim(queue)
    failed = {"state": JobState.FAILED, "ending": Ending.from_status(1), "devices": ()}
    queue.runs.finish(run.job_id, run.token, duration_s=1.0, **failed)  # type: ignore[arg-type]
    queue.jobs.hold(run.job_id)
    found = site.client.jobs.why(run.job_id)

    assert " (before it is run again)" in why_text(found)
    assert found.job.begins_at is not None
    assert found.explanation is not None
    assert "held: it waits until it is released" in why_text(found)
    over = replace(found, job=replace(found.job, begins_at=found.job.submitted_at))
    assert "not before somebody releases it" in why_text(over)
    assert "run again" not in why_text(over)


@pytest.mark.parametrize(
    ("code", "reported", "in_queue"),
    [
        (75, "(its last run asked to be run again, with exit code 75)", r"again in \d+(\.\d)?s"),
        (1, "(a retry)", r"retry in \d+(\.\d)?s"),
    ],
)
def test_a_run_that_asked_for_another_gets_no_retry(site: Site, code: int, reported: str, in_queue: str) -> None:
    """A run that ends with 75 is shown as a requested repetition. It is no failure and uses no retry."""
    serve(site.queue)
    job_id = site.queue.requests.submit(make_spec(retries=Retries(times=1))).id
    run = must_claim(site.queue)
    ended = {"state": JobState.FAILED, "ending": Ending.from_status(code), "devices": ()}
    site.queue.runs.finish(job_id, run.token, duration_s=1.0, **ended)  # type: ignore[arg-type]

    assert reported in site.cli("why", str(job_id)).stdout
    assert re.search(in_queue, site.cli("queue").stdout)
    reason = json.loads(site.cli("queue", "--json").stdout)["jobs"][0]["reason"]
    assert reason == ("requeue" if code == 75 else "retry")


def test_a_job_that_does_not_wait_is_explained_too(site: Site) -> None:
    """``why`` also answers for held, running, ended and unknown jobs."""
    site.make_tables()
    serve(site.queue)
    site.queue.requests.submit(make_spec())
    must_claim(site.queue)
    held = site.queue.requests.submit(make_spec()).id
    site.queue.jobs.hold(held)

    assert "it does not wait: starting" in site.cli("why", "1").stdout
    assert f"held: it waits until it is released: gpuqueue release {held}" in site.cli("why", str(held)).stdout
    site.queue.jobs.cancel(held)
    assert f"it has ended: cancelled. How: gpuqueue show {held}" in site.cli("why", str(held)).stdout
    nobody = site.cli("why", "77", check=False)
    assert 3 == nobody.returncode
    assert "gpuqueue: there is no job 77: see gpuqueue queue and gpuqueue history" == nobody.stderr.strip()


def test_a_card_reserved_for_another_job_is_not_too_small_for_ever(site: Site) -> None:
    """For a job blocked by a reservation, ``why`` names the job that must start first.

    It used to say that no device would ever have the memory.
    """
    site.make_tables()
    serve(site.queue)
    running = site.queue.requests.submit(make_spec(mem_bytes=8 * GIB)).id
    must_claim(site.queue)
    large, small = (site.queue.requests.submit(make_spec(mem_bytes=size * GIB)).id for size in (20, 5))
    store = connect(site.queue.url)
    store.hset(keys.PREFIX + "rsv", "GPU-0", f"{large}:{20 * GIB}:0:{running}")
    store.hset(keys.job(large), stored.RESERVED, "GPU-0")

    output = site.cli("why", str(small)).stdout

    assert (
        f"start  unknown: there is room once job {large} (ada), for which devices are reserved, has started" in output
    )
    assert "ever have enough room" not in output
    store.close()


def test_only_reservations_on_devices_of_the_job_are_in_its_way(site: Site) -> None:
    """A reservation on a device that the job cannot use is not shown as an obstacle."""
    site.make_tables()
    serve(site.queue, make_offer("GPU-0"), make_offer("GPU-1"))
    large = site.queue.requests.submit(make_spec(mem_bytes=20 * GIB)).id
    small = site.queue.requests.submit(make_spec(placement=Placement(devices=("GPU-1",)))).id
    site.queue.devices.drain(["GPU-1"], origin=DrainOrigin.PERSON, why="the fan", by="ada")
    store = connect(site.queue.url)
    store.hset(keys.PREFIX + "rsv", "GPU-0", f"{large}:{20 * GIB}:0:")
    store.hset(keys.job(large), stored.RESERVED, "GPU-0")

    output = site.cli("why", str(small)).stdout

    assert f"job {large}" not in output.splitlines()[0]
    assert "start  not before somebody resumes" in output
    store.close()


@pytest.mark.full
def test_a_preempted_job_is_explained(site: Site) -> None:
    """``why`` distinguishes devices reserved after a preemption from those of a job that waited long.

    It also shows by when a preempted job must end, and how often it was preempted.
    """
    site.make_tables()
    queue = site.queue
    serve(queue)
    queue.requests.submit(make_spec(mem_bytes=20 * GIB, priority=Priority.LOW))
    run = must_claim(queue)
    queue.runs.started(run.job_id, run.token, lease_s=300, log_path="/l", devices=())
    urgent = queue.requests.submit(make_spec(mem_bytes=20 * GIB, priority=Priority.URGENT)).id
    small = queue.requests.submit(make_spec(mem_bytes=5 * GIB)).id
    assert {run.job_id: urgent} == queue.maintenance.preempt({Priority.URGENT: [Priority.LOW]}, after_s=0, grace_s=600)
    asked = site.cli("why", str(run.job_id)).stdout
    assert re.search(rf"^it is being preempted for job {urgent} by \S+ \S+$", asked, re.MULTILINE)
    reported = json.loads(site.cli("why", str(run.job_id), "--json").stdout)["preemption"]
    assert (urgent, 1) == (reported["by"], reported["times"])
    assert "preempted again" not in asked
    connect(queue.url).hset(keys.job(run.job_id), stored.PREEMPTIONS, 5)
    assert "it was preempted 5 times: it is not preempted again" in site.cli("why", str(run.job_id)).stdout
    gone = {"state": JobState.FAILED, "ending": Ending.from_status(1), "devices": ()}
    queue.runs.finish(run.job_id, run.token, duration_s=1.0, **gone)  # type: ignore[arg-type]

    assert f"reserved for job {urgent}, for which others were preempted" in site.cli("why", str(small)).stdout
    (device,) = json.loads(site.cli("why", str(small), "--json").stdout)["explanation"]["devices"]
    assert (urgent, True) == (device["reserved_for"], device["by_preemption"])


@pytest.mark.full
def test_a_job_on_several_drained_devices_needs_all_of_them_resumed(site: Site) -> None:
    """``why`` names as many devices to resume as the job needs. It used to name only one."""
    site.make_tables()
    devices = {f"GPU-{index}": make_device(f"GPU-{index}", index=index) for index in range(3)}
    serve(site.queue, *(make_offer(uuid, device=device) for uuid, device in devices.items()))
    job_id = site.queue.requests.submit(make_spec(gpus=2)).id
    site.queue.devices.drain([*devices], origin=DrainOrigin.PERSON, why="the fan", by="ada")

    assert (
        "start  not before somebody resumes 2 of nodeA:0, nodeA:1, nodeA:2: gpuqueue resume nodeA:0 nodeA:1\n"
    ) in site.cli("why", str(job_id)).stdout
    site.queue.devices.resume(["GPU-1"], origins=[DrainOrigin.PERSON])
    assert ("start  not before somebody resumes nodeA:0 or nodeA:2: gpuqueue resume nodeA:0\n") in site.cli(
        "why", str(job_id)
    ).stdout
    assert "drained" == site.cli("queue").stdout.splitlines()[-1].split()[-1]
    both = site.queue.requests.submit(make_spec(gpus=2, placement=Placement(devices=("GPU-0", "GPU-2")))).id
    assert ("start  not before somebody resumes nodeA:0 and nodeA:2: gpuqueue resume nodeA:0 nodeA:2\n") in site.cli(
        "why", str(both)
    ).stdout


@pytest.mark.full
def test_the_pause_after_a_rebuild_is_shown(site: Site) -> None:
    """``why`` shows the pause after a rebuild of the store, whatever else blocks the job.

    Nothing is claimed before its end.
    """
    site.make_tables()
    site.queue.recovery.open(0)
    serve(site.queue)
    waiting = site.queue.requests.submit(make_spec()).id
    store = connect(site.queue.url)
    store.hset(keys.META, "claims", site.queue.now_ms() + 60_000)

    output = site.cli("why", str(waiting)).stdout

    assert "not before the pause after a rebuild of the store is over" in output
    assert site.cli("queue").stdout.splitlines()[-1].split()[-1] == "pause"
    store.close()


@pytest.mark.full
def test_the_runs_that_a_job_may_preempt_are_named(site: Site) -> None:
    """``why`` names the jobs that may be preempted for this one, and when. It used to give no start."""
    site.make_tables()
    queue = site.queue
    serve(queue)
    queue.requests.submit(make_spec(mem_bytes=20 * GIB, priority=Priority.LOW))
    run = must_claim(queue)
    queue.runs.started(run.job_id, run.token, lease_s=300, log_path="/l", devices=())
    urgent = queue.requests.submit(make_spec(mem_bytes=20 * GIB, priority=Priority.URGENT)).id
    assert "it may preempt" not in site.cli("why", str(urgent)).stdout
    site.environ.update(GPUQUEUE_PREEMPT="urgent: low", GPUQUEUE_PREEMPT_AFTER="10m", GPUQUEUE_PREEMPT_GRACE="1m")

    output = site.cli("why", str(urgent)).stdout

    assert re.search(rf"may preempt job {run.job_id} .*from \S+ \S+ on; a preempted job has 1:00 to end", output)
    said = json.loads(site.cli("why", str(urgent), "--json").stdout)["sentences"]["start"]
    assert [True] == [f"job {run.job_id} " in line for line in said if "may preempt" in line]
    other = queue.requests.submit(make_spec(mem_bytes=20 * GIB)).id
    assert "it may preempt" not in site.cli("why", str(other)).stdout, "its priority may not"


def low_run(queue: JobQueue, uuid: str = "GPU-0", **changes: object) -> int:
    """Let a job of the lowest priority run on a device, and return its id."""
    queue.requests.submit(make_spec(mem_bytes=20 * GIB, priority=Priority.LOW, **changes))
    run = must_claim(queue, uuid)
    queue.runs.started(run.job_id, run.token, lease_s=300, log_path="/l", devices=())
    return run.job_id


def may_preempt(site: Site, job_id: int) -> list[int]:
    """Return the jobs that *job_id* may preempt, by the text."""
    output = site.cli("why", str(job_id)).stdout
    return [int(each) for each in re.findall(r"job (\d+) ", output.partition("it may preempt")[2].partition("\n")[0])]


@pytest.mark.full
def test_no_impossible_preemption_is_offered(site: Site) -> None:
    """Jobs on drained devices, or already preempted five times, are not shown as preemptable."""
    site.make_tables()
    queue = site.queue
    site.environ.update(GPUQUEUE_PREEMPT="urgent: low")
    serve(queue, *(make_offer(f"GPU-{i}", device=make_device(f"GPU-{i}", index=i)) for i in range(2)))
    first, second = low_run(queue), low_run(queue, "GPU-1")
    urgent = queue.requests.submit(make_spec(mem_bytes=20 * GIB, priority=Priority.URGENT)).id
    assert [first, second] == may_preempt(site, urgent)

    connect(queue.url).hset(keys.job(first), stored.PREEMPTIONS, 5)
    assert [second] == may_preempt(site, urgent)
    queue.devices.drain(["GPU-1"], origin=DrainOrigin.PERSON, why="the fan", by="ada")
    assert [] == may_preempt(site, urgent)
    assert {} == queue.maintenance.preempt({Priority.URGENT: [Priority.LOW]}, after_s=0, grace_s=60)


@pytest.mark.full
def test_no_preemption_is_offered_if_too_few_devices_would_be_free(site: Site) -> None:
    """No preemption is shown if it does not free enough devices for the job."""
    site.make_tables()
    queue = site.queue
    site.environ.update(GPUQUEUE_PREEMPT="urgent: low")
    offers = [make_offer(f"GPU-{i}", device=make_device(f"GPU-{i}", index=i)) for i in range(2)]
    serve(queue, *offers)
    goes, stays = low_run(queue), low_run(queue, "GPU-1", requeue=False)
    both = queue.requests.submit(make_spec(mem_bytes=20 * GIB, gpus=2, priority=Priority.URGENT)).id
    one = queue.requests.submit(make_spec(mem_bytes=21 * GIB, priority=Priority.URGENT)).id

    assert [] == may_preempt(site, both)
    assert [goes] == may_preempt(site, one)
    queue.jobs.cancel(stays)
    serve(queue, *offers)  # a new heartbeat, as the commands above may take long
    assert [goes] == may_preempt(site, both), "the other one ends in any case"
    serve(queue, *offers)
    assert {goes: both} == queue.maintenance.preempt({Priority.URGENT: [Priority.LOW]}, after_s=0, grace_s=60)


@pytest.mark.full
def test_a_device_reserved_for_a_lower_priority_is_offered(site: Site) -> None:
    """A preemption is shown also for a device that is reserved for a job of a lower priority that may be preempted."""
    site.make_tables()
    queue = site.queue
    serve(queue)
    low = low_run(queue)
    normal = queue.requests.submit(make_spec(mem_bytes=20 * GIB)).id
    assert [normal] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]
    urgent = queue.requests.submit(make_spec(mem_bytes=20 * GIB, priority=Priority.URGENT)).id

    site.environ.update(GPUQUEUE_PREEMPT="urgent: low")
    assert [] == may_preempt(site, urgent), "who has waited for it is on a priority that is not named"
    site.environ.update(GPUQUEUE_PREEMPT="urgent: low normal")
    assert [low] == may_preempt(site, urgent)
    assert {low: urgent} == queue.maintenance.preempt(
        {Priority.URGENT: [Priority.LOW, Priority.NORMAL]}, after_s=0, grace_s=60
    )
