"""``edit`` as people use it: where a job goes, when it is warned, and how many of an array run at once."""

from __future__ import annotations

import pytest
from factories import claim, make_offer, must_claim, serve
from site_of_one import Site
from store_dump import dump, faults

from gpuqueue import Client
from gpuqueue.model.device import DeviceWish
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.limits import Limits
from gpuqueue.model.placement import Placement, Preference
from gpuqueue.model.run import Ending
from gpuqueue.queue.connect import connect
from gpuqueue.text.units import MIB


@pytest.fixture
def client(site: Site) -> Client:
    """Return the client of a site whose device nobody works for: what is claimed, the test itself claims."""
    site.make_tables()
    serve(site.queue, make_offer())
    return site.client


def submit(site: Site, *words: str) -> int:
    """Queue a job and return its id."""
    return int(site.cli("submit", *words, "--", "true").stdout)


@pytest.mark.full
def test_where_a_job_goes_can_be_changed(site: Site, client: Client) -> None:
    """All that submit takes of devices edit takes as well, and takes it back."""
    job = submit(site, "--mem", "64M")
    uuid = make_offer().device.uuid

    site.cli("edit", str(job), "--exclusive", "--device", uuid[:12], "--device-type", "none", "--pack")

    there = client.get(job).spec
    assert Placement(exclusive=True, devices=(uuid,), preference=Preference.PACK) == there.placement
    assert DeviceWish.ANY is there.device
    site.cli("edit", str(job), "--shared", "--device", "gpu", "--no-preference")
    back = client.get(job).spec
    assert (Placement(), DeviceWish.GPU, 64 * MIB) == (back.placement, back.device, back.mem_bytes)


@pytest.mark.full
def test_who_wanted_the_whole_card_must_say_how_much_is_enough(site: Site, client: Client) -> None:
    """Nobody knows how much memory such a job needs beside others."""
    job = submit(site, "--exclusive")

    refused = site.cli("edit", str(job), "--shared", check=False)

    assert 2 == refused.returncode
    assert "say how much it needs beside others, with --mem 6G" in refused.stderr
    assert client.get(job).spec.placement.whole
    site.cli("edit", str(job), "--shared", "--mem", "128M")
    assert (Placement(), 128 * MIB) == (client.get(job).spec.placement, client.get(job).spec.mem_bytes)


@pytest.mark.full
def test_a_device_that_never_fits_changes_nothing(site: Site, client: Client) -> None:
    """As at submit: refused with what there is."""
    job = submit(site, "--mem", "64M")

    refused = site.cli("edit", str(job), "--device-type", "H100", check=False)

    assert 2 == refused.returncode
    assert "H100" in refused.stderr
    assert Placement() == client.get(job).spec.placement


@pytest.mark.full
@pytest.mark.parametrize("words", [("--spread", "--pack"), ("--pack", "--no-preference")])
def test_contradictions_are_refused(site: Site, client: Client, words: tuple[str, str]) -> None:
    """The last one said used to win, silently; so it did at submit."""
    job = submit(site, "--mem", "64M")

    refused = site.cli("edit", str(job), *words, check=False)

    assert 2 == refused.returncode
    assert f"{words[0]} and {words[1]} contradict each other" in refused.stderr
    assert JobState.QUEUED is client.get(job).state


def test_submit_refuses_both_preferences(site: Site, client: Client) -> None:
    """Nothing is queued."""
    refused = site.cli("submit", "--mem", "64M", "--pack", "--spread", "--", "true", check=False)

    assert 2 == refused.returncode
    assert not list(client.jobs())


@pytest.mark.full
def test_a_warning_can_be_had_and_taken_back(site: Site, client: Client) -> None:
    """It must still come before the time limit."""
    job = submit(site, "--mem", "64M")

    refused = site.cli("edit", str(job), "--signal", "USR1@120", check=False)
    site.cli("edit", str(job), "--signal", "USR1@120", "--time", "1h")

    assert (2, True) == (refused.returncode, "there is none: give one (--time)" in refused.stderr)
    assert "USR1@120" == str(client.get(job).spec.signal)
    site.cli("edit", str(job), "--signal", "none")
    assert client.get(job).spec.signal is None


@pytest.mark.full
def test_an_array_that_runs_can_be_given_more_room_and_less(site: Site, client: Client) -> None:
    """What Slurm's users do with ArrayTaskThrottle: members that run go on, and the next ones come as is said now."""
    array = submit(site, "--mem", "64M", "--array", "0-9%1")
    first = must_claim(site.queue)
    assert (first.job_id, claim(site.queue)) == (array + 1, None)
    assert WaitReason.ARRAY_LIMIT is client.get(array).reason

    site.cli("edit", str(array), "--at-once", "3")

    second, third = must_claim(site.queue), must_claim(site.queue)
    assert [array + 2, array + 3] == [second.job_id, third.job_id]
    assert claim(site.queue) is None
    site.cli("edit", str(array), "--at-once", "1")
    done = Ending.from_status(0)
    for each in (first, second):
        site.queue.finish(each.job_id, each.token, state=JobState.SUCCEEDED, ending=done, duration_s=1.0, devices=())
    assert claim(site.queue) is None
    site.cli("edit", str(array), "--at-once", "none")
    assert array + 4 == must_claim(site.queue).job_id
    asked = client.get(array).spec.array
    assert asked is not None
    assert asked.at_once is None
    assert [] == faults(dump(connect(site.queue.url)))


def test_of_an_array_that_runs_nothing_else_can_be_changed(site: Site, client: Client) -> None:
    """Its members have its request: also those that run."""
    array = submit(site, "--mem", "64M", "--array", "0-9%2")
    must_claim(site.queue)

    refused = site.cli("edit", str(array), "--mem", "1G", "--at-once", "3", check=False)

    assert 5 == refused.returncode
    assert "only --at-once can be changed" in refused.stderr
    asked = client.get(array).spec.array
    assert asked is not None
    assert 2 == asked.at_once


@pytest.mark.full
@pytest.mark.parametrize(
    "words", [("--begin", "now"), ("--after", "none"), ("--begin", "now", "--at-once", "3"), ("--priority", "normal")]
)
def test_what_an_array_that_runs_asked_for_already_is_not_changed_in_silence(
    site: Site, client: Client, words: tuple[str, ...]
) -> None:
    """It has begun: what is said of its begin does nothing, and was taken with a nod."""
    array = submit(site, "--mem", "64M", "--array", "0-9%2")
    must_claim(site.queue)

    refused = site.cli("edit", str(array), *words, check=False)

    assert 5 == refused.returncode
    assert "only --at-once can be changed" in refused.stderr
    asked = client.get(array).spec.array
    assert asked is not None
    assert 2 == asked.at_once


@pytest.mark.full
def test_how_many_at_once_is_said_of_arrays_only(site: Site, client: Client) -> None:
    """And is a number, from 1 up."""
    single, array = submit(site, "--mem", "64M"), submit(site, "--mem", "64M", "--array", "0-9")

    refused = [
        site.cli("edit", str(job), "--at-once", most, check=False)
        for job, most in ((single, "2"), (array, "0"), (array, "many"))
    ]

    assert [2, 2, 2] == [each.returncode for each in refused]
    assert "this job is none" in refused[0].stderr
    assert client.get(array).state is JobState.QUEUED


@pytest.mark.parametrize(
    ("submitted", "edited"),
    [
        (("--mem", "1G"), ("--pack",)),
        (("--mem", "1G"), ("--exclusive",)),
        (("--mem", "1G", "--spread"), ("--mem", "2G")),
        (("--mem", "1G", "--device-type", "24G"), ("--name", "z")),
        (("--exclusive",), ("-p", "high")),
        (("--mem", "1G", "--array", "0-3", "--exclusive"), ("--at-once", "1")),
    ],
)
def test_what_was_edited_is_still_claimed(
    site: Site, client: Client, submitted: tuple[str, ...], edited: tuple[str, ...]
) -> None:
    """The word that it is meant for a GPU was put behind what else it says of devices: no device ever took it."""
    job = submit(site, *submitted)

    site.cli("edit", str(job), *edited)

    assert must_claim(site.queue).job_id in {job, job + 1}
    assert JobState.STARTING in {client.get(each).state for each in (job, job + 1) if site.queue.get(each)}


@pytest.mark.full
def test_who_does_not_ask_for_time_is_not_refused_for_it(site: Site, client: Client) -> None:
    """It was submitted before there was a limit on time, and something else is edited."""
    job = submit(site, "--mem", "64M")
    site.queue.set_limits(Limits.parse("", "*: max_time=1s", {}))

    site.cli("edit", str(job), "--name", "other")

    assert "other" == client.get(job).spec.name
    assert 5 == site.cli("edit", str(job), "--time", "1h", check=False).returncode


POOLS = "big: default_time=30s max_time=1m; *: max_time=7d"


@pytest.fixture
def big(site: Site, client: Client) -> Site:
    """Return a site with a pool that allows less time than what is outside it, and a device there."""
    serve(client.queue, make_offer(), make_offer("GPU-big", pool="big"))
    client.queue.set_limits(Limits.parse("", POOLS, {}))
    return site


@pytest.mark.full
@pytest.mark.parametrize("said", [("--time", "2h"), ()])
def test_a_job_that_comes_to_a_pool_is_held_to_its_time(big: Site, client: Client, said: tuple[str, ...]) -> None:
    """It was held, edited, released, and ran there for days: its time limit was not judged, as it was the same."""
    job = submit(big, "--hold", "--mem", "64M", *said)
    before = client.get(job).spec

    moved = big.cli("edit", str(job), "--pool", "big", check=False)

    assert (5, "") == (moved.returncode, moved.stdout)
    asked = "2:00:00" if said else "7d 00:00:00"
    told = f"{asked} of time asked for, and pool big may have 1:00 (limit max_time): ask for less with --time"
    assert told in moved.stderr
    assert before == client.get(job).spec
    big.cli("edit", str(job), "--pool", "big", "--time", "50s")
    assert ("big", 50.0) == (client.get(job).spec.pool, client.get(job).spec.time_limit_s)
    assert 0 == big.cli("edit", str(job), "--pool", "").returncode


@pytest.mark.full
def test_a_job_without_a_time_limit_gets_that_of_the_pool_it_comes_to(big: Site, client: Client) -> None:
    """As at submit, so that others can plan with its end; an array as well. Who says that there be none is refused."""
    big.queue.set_limits(Limits.parse("", POOLS.partition(";")[0], {}))
    jobs = [submit(big, "--hold", "--mem", "64M", *more) for more in ((), ("--array", "0-3"), ())]

    for job in jobs[:2]:
        assert f"job {job}: held, pool big\n" == big.cli("edit", str(job), "--pool", "big").stdout
    refused = big.cli("edit", str(jobs[2]), "--pool", "big", "--time", "none", check=False)

    assert [("big", 30.0), ("big", 30.0), ("", None)] == [
        (client.get(job).spec.pool, client.get(job).spec.time_limit_s) for job in jobs
    ]
    assert 5 == refused.returncode
    assert "pool big may have 1:00 and not more (limit max_time): say how long it may run with --time" in refused.stderr
    big.cli("release", str(jobs[0]))
    assert 30.0 == must_claim(big.queue, "GPU-big").spec.time_limit_s
    connection = connect(big.queue.url)
    assert [] == faults(dump(connection))
    connection.close()


@pytest.mark.full
def test_a_time_limit_that_is_said_is_judged_also_where_it_is_the_same(site: Site, client: Client) -> None:
    """Six days were refused, and the seven that it had already were not."""
    job = submit(site, "--mem", "64M", "--time", "7d")
    site.queue.set_limits(Limits.parse("", "*: max_time=2d", {}))

    codes = [site.cli("edit", str(job), "--time", time, check=False).returncode for time in ("7d", "6d", "none", "2d")]

    assert [5, 5, 5, 0] == codes
    assert 2 * 86400.0 == client.get(job).spec.time_limit_s


def test_alone_and_beside_others_is_not_both(site: Site, client: Client) -> None:
    """The last word would win unseen."""
    job = submit(site, "--mem", "64M")

    for words in (["--exclusive", "--shared"], ["--shared", "--exclusive"]):
        done = site.cli("edit", str(job), *words, check=False)
        assert (2, "") == (done.returncode, done.stdout)
        assert "--exclusive and --shared contradict each other: say one of them" in done.stderr
    assert not client.get(job).spec.placement.exclusive


def test_who_is_sent_where_nobody_serves_is_told(site: Site, client: Client) -> None:
    """As at submit: the job waits for a device that may never come."""
    job = submit(site, "--mem", "64M")

    done = site.cli("edit", str(job), "--device", "cpu")

    assert f"job {job}: queued, device cpu\n" == done.stdout
    assert "no CPU is served: the job waits. Serve one with gpuqueue up --devices auto,cpu" in done.stderr
    assert WaitReason.DEVICE is client.get(job).reason
    assert "" == site.cli("edit", str(job), "--device", "gpu").stderr


@pytest.mark.full
def test_who_names_a_device_is_not_said_to_want_either_kind(site: Site, client: Client) -> None:
    """A device that is named is a GPU, or it is none."""
    uuid = make_offer().device.uuid
    job = submit(site, "--mem", "64M", "--device", uuid)
    either = submit(site, "--mem", "64M", "--device", "any")

    assert f"64M on 1 device, only {uuid}" in site.cli("show", str(job)).stdout
    assert f"64M on 1 device, only {uuid}" in site.cli("why", str(job)).stdout
    assert "64M on 1 device, GPU or CPU" in site.cli("show", str(either)).stdout
    assert DeviceWish.ANY is client.get(job).spec.device
