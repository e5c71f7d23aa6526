"""A host name belongs to one machine: a second machine with the same name is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from bounded import until
from factories import make_offer, must_claim, serve, submit
from site_of_one import Site

from gpuqueue.client import Client
from gpuqueue.client.connection import Connection
from gpuqueue.errors import BadRequest, HostTaken, Refused
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Offer
from gpuqueue.settings.settings import Settings

FIRST, SECOND = "a" * 16, "b" * 16


def heartbeat(queue: JobQueue, machine: str, uuid: str, *, lease_s: float = 300) -> Offer:
    """Send the heartbeat of a device of this machine, which calls itself gpu1."""
    offer = make_offer(uuid, host="gpu1", machine=machine)
    queue.devices.heartbeat(offer, [], lease_s=lease_s)
    queue.devices.announce(offer, worker="w", pid=1, boot_id="b", address=f"{machine[0]}.lab, 10.0.0.{ord(machine[0])}")
    return offer


def fall_silent(queue: JobQueue, uuid: str, silent_s: float) -> None:
    """Let the last heartbeat of a device be so long ago."""
    client = connect(queue.url)
    total, headroom, external, seen, rest = str(client.hget(keys.host_devices("gpu1"), uuid)).split(":", 4)
    record = f"{total}:{headroom}:{external}:{int(seen) - round(silent_s * 1000)}:{rest}"
    client.hset(keys.host_devices("gpu1"), uuid, record)


def test_a_second_machine_of_one_name_is_refused(queue: JobQueue) -> None:
    # The message has both ids, the address and what to do. The refused heartbeat changes nothing, whether the devices
    # of the two differ or not (the CPU of both is the same).
    heartbeat(queue, FIRST, "GPU-1")

    for uuid in ("GPU-1", "GPU-2"):
        with pytest.raises(HostTaken) as refused:
            heartbeat(queue, SECOND, uuid)
        assert str(refused.value) == (
            f"another machine has the host name gpu1 (a.lab, 10.0.0.97, id {FIRST}; this one has id {SECOND}): "
            "give each machine its own name with GPUQUEUE_HOST. If that machine is gone or was reinstalled: "
            "gpuqueue lost gpu1"
        )
        with pytest.raises(HostTaken):
            queue.devices.name_host("gpu1", SECOND, lease_s=300)
    assert ["GPU-1"] == [each.device.uuid for each in queue.devices.all()]
    assert (True, False) == (queue.devices.is_of("gpu1", FIRST), queue.devices.is_of("gpu1", SECOND))
    heartbeat(queue, FIRST, "GPU-1")


def test_after_down_a_machine_can_be_replaced_by_another_one_of_the_same_name(queue: JobQueue) -> None:
    heartbeat(queue, FIRST, "GPU-1")
    queue.devices.withdraw("gpu1", "GPU-1")

    heartbeat(queue, SECOND, "GPU-2")

    with pytest.raises(HostTaken):
        heartbeat(queue, FIRST, "GPU-1")


def test_a_reinstalled_machine_gets_its_name_back_after_the_silence(queue: JobQueue) -> None:
    # It gets its name once its old devices are silent. They must have been silent for a lease, and hold no run. The old
    # devices are gone then.
    heartbeat(queue, FIRST, "GPU-1")
    fall_silent(queue, "GPU-1", 299)
    with pytest.raises(HostTaken):
        heartbeat(queue, SECOND, "GPU-1")
    fall_silent(queue, "GPU-1", 2)

    heartbeat(queue, SECOND, "GPU-2")

    assert ["GPU-2"] == [each.device.uuid for each in queue.devices.all()]


def test_jobs_that_were_left_to_run_on_the_first_machine_keep_its_name(queue: JobQueue) -> None:
    # ``gpuqueue lost`` frees it at once.
    heartbeat(queue, FIRST, "GPU-1")
    job = submit(queue)
    must_claim(queue, "GPU-1", host="gpu1")
    fall_silent(queue, "GPU-1", 1000)
    with pytest.raises(HostTaken):
        heartbeat(queue, SECOND, "GPU-1")

    assert {job: JobState.QUEUED} == queue.devices.lose_host("gpu1", by="", loss_limit=3, silent_s=60)

    heartbeat(queue, SECOND, "GPU-1")
    with pytest.raises(HostTaken):
        heartbeat(queue, FIRST, "GPU-1")


@pytest.mark.full
def test_a_worker_of_another_machine_with_the_name_ends(site: Site, store_url: str) -> None:
    """The worker of a second machine ends with the reason, and its ``down`` leaves the first one's devices alone."""
    site.start_worker()
    other = Site(site.settings.state_dir.parent / "other", store_url, GPUQUEUE_HOST=site.settings.host)
    try:
        worker = other.spawn("run", "--device", "0", "--plain")
        until(lambda: worker.poll() is not None, what="the end of the second worker")
        assert (5, True) == (worker.returncode, "another machine has the host name" in other.log())

        down = other.cli("down")
        assert "left alone" in down.stdout
        (device,) = site.queue.devices.all()
        assert () == device.drains
        up = other.cli("up", check=False)
        assert (5, True) == (up.returncode, "gpuqueue lost" in up.stderr), up.stderr
        job = int(site.cli("submit", "--mem", "1M", "--", "true").stdout)
        site.start_recorder()
        assert JobState.SUCCEEDED is site.until_recorded(job).job.state
    finally:
        other.stop()


def test_a_machine_that_lost_its_name_ends_its_runs(site: Site) -> None:
    """A host that was cut off, declared lost and replaced by another of its name ends its runs once it is back."""
    worker = site.start_worker()
    job = int(site.cli("submit", "--mem", "1M", "--", "sleep", "1000").stdout)
    site.until_state(job, JobState.RUNNING)

    connect(site.queue.url).hset(keys.MACHINES, site.settings.host, SECOND)

    until(lambda: worker.poll() is not None, what="the end of the worker")
    until(lambda: not list(site.settings.runs_dir.glob("*/*/pid")) or _ended(site), what="the end of the run")


def _ended(site: Site) -> bool:
    return all((path.parent / "exit").exists() for path in site.settings.runs_dir.glob("*/*/pid"))


# ---- a host that an administrator declares lost ----------------------------------------------------------------------


def test_the_jobs_of_a_lost_host_run_elsewhere_at_once(queue: JobQueue) -> None:
    """A dead machine used to keep its jobs for an hour, though its administrator knew that it was off."""
    # A job with --no-requeue ends as lost, and a run that was lost too often is held. Other hosts keep their runs.
    serve(queue, make_offer("GPU-0"), make_offer("GPU-far", host="far"))
    jobs = [submit(queue, **more) for more in ({}, {"requeue": False}, {})]
    again, ended, far = must_claim(queue), must_claim(queue), must_claim(queue, "GPU-far", host="far")

    changed = queue.devices.lose_host("nodeA", by="", loss_limit=3, silent_s=0)

    assert {jobs[0]: JobState.QUEUED, jobs[1]: JobState.LOST} == changed
    assert far.token is not None
    assert [0, 0] == [each.allocated_bytes for each in queue.devices.all("nodeA") for _ in (again, ended)]
    assert jobs[0] == must_claim(queue, "GPU-far", host="far").job_id
    assert {jobs[0]: JobState.HELD, jobs[2]: JobState.HELD} == queue.devices.lose_host(
        "far", by="", loss_limit=1, silent_s=0
    )


def test_the_settings_of_now_decide_who_may_declare_a_host_lost(queue: JobQueue, tmp_path: Path) -> None:
    """As for tokens: the rules in the store are those of the last start of a worker or recorder."""
    serve(queue)
    queue.rules.set_policy(half_life_s=60, urgent=None, shares={}, admins="ada")

    def lost_by(user: str, admins: str) -> Refused:
        environ = {"GPUQUEUE_REDIS_URL": queue.url, "GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_ADMINS": admins}
        connection = Connection(Settings.load(environ)).acting_for(Account(name=user, uid=12345, host="nodeB"), user)
        with pytest.raises(Refused) as caught:
            Client(connection=connection).devices.lost("nodeA")
        connection.close()
        return caught.value

    assert "only an administrator of this site may declare a host lost" in str(lost_by("ada", admins="bob"))
    assert "nodeA answered 0 s ago: it is not lost" == str(lost_by("bob", admins="bob"))


def test_a_host_that_answers_is_not_lost(queue: JobQueue) -> None:
    """A host with a recent heartbeat and an unknown host are refused in one line."""
    serve(queue)
    job = submit(queue)
    must_claim(queue)
    for host, wanted, words in (
        ("nodeA", Refused, "nodeA answered 0 s ago: it is not lost"),
        ("nodeB", BadRequest, "no host nodeB is known"),
    ):
        with pytest.raises(wanted, match=words):
            queue.devices.lose_host(host, by="", loss_limit=3, silent_s=60)

    found = queue.jobs.get(job)
    assert JobState.STARTING is found.state
