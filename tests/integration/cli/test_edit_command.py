"""The ``edit`` command: placement, warning signals, time limits and the concurrency limit of arrays."""

from __future__ import annotations

import pytest
from factories import claim, make_offer, must_claim, serve
from site_of_one import Site
from store_dump import dump, faults

from gpuqueue import Client
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.limits import Limits
from gpuqueue.model.placement import Placement, Preference
from gpuqueue.model.run import Ending
from gpuqueue.queue.connect import connect
from gpuqueue.text.units import GIB, MIB


@pytest.fixture
def client(site: Site) -> Client:
    """Return the client of a site whose device has no worker. The tests claim jobs themselves."""
    site.make_tables()
    serve(site.queue, make_offer())
    return site.client


def submit(site: Site, *words: str) -> int:
    """Submit a job and return its id."""
    return int(site.cli("submit", *words, "--", "true").stdout)


@pytest.mark.full
def test_where_a_job_goes_can_be_changed(site: Site, client: Client) -> None:
    """``edit`` takes all placement options of ``submit``, and can reset each."""
    job = submit(site, "--mem", "64M")
    uuid = make_offer().device.uuid

    site.cli("edit", str(job), "--exclusive", "--device", uuid[:12], "--device-type", "none", "--pack")

    there = client.jobs.get(job).spec
    assert Placement(exclusive=True, devices=(uuid,), preference=Preference.PACK) == there.placement
    assert DeviceFilter.ANY is there.device
    site.cli("edit", str(job), "--shared", "--device", "gpu", "--no-preference")
    back = client.jobs.get(job).spec
    assert (Placement(), DeviceFilter.GPU, 64 * MIB) == (back.placement, back.device, back.mem_bytes)


@pytest.mark.full
def test_who_wanted_the_whole_card_must_say_how_much_is_enough(site: Site, client: Client) -> None:
    """``--shared`` for an exclusive job requires ``--mem``, because its memory need beside others is unknown."""
    job = submit(site, "--exclusive")

    refused = site.cli("edit", str(job), "--shared", check=False)

    assert 2 == refused.returncode
    assert "give the memory that it needs beside other jobs, with --mem 6G" in refused.stderr
    assert client.jobs.get(job).spec.placement.whole
    site.cli("edit", str(job), "--shared", "--mem", "128M")
    assert (Placement(), 128 * MIB) == (client.jobs.get(job).spec.placement, client.jobs.get(job).spec.mem_bytes)


@pytest.mark.full
def test_a_device_that_never_fits_changes_nothing(site: Site, client: Client) -> None:
    """A placement that no device satisfies is refused with the available types, as at submit."""
    job = submit(site, "--mem", "64M")

    refused = site.cli("edit", str(job), "--device-type", "H100", check=False)

    assert 2 == refused.returncode
    assert "H100" in refused.stderr
    assert Placement() == client.jobs.get(job).spec.placement


@pytest.mark.full
@pytest.mark.parametrize("words", [("--spread", "--pack"), ("--pack", "--no-preference")])
def test_contradictions_are_refused(site: Site, client: Client, words: tuple[str, str]) -> None:
    """Contradicting options are refused. The last one used to win silently, at submit too."""
    job = submit(site, "--mem", "64M")

    refused = site.cli("edit", str(job), *words, check=False)

    assert 2 == refused.returncode
    assert f"{words[0]} and {words[1]} contradict each other" in refused.stderr
    assert JobState.QUEUED is client.jobs.get(job).state


@pytest.mark.parametrize("limit", [("--cpus", "many"), ("--cpus", "0"), ("--cpu-mem", "32")])
def test_a_bad_limit_of_the_host_has_one_message(site: Site, client: Client, limit: tuple[str, str]) -> None:
    """``submit`` and ``edit`` refuse it in the same words, and nothing is changed."""
    job = submit(site, "--mem", "64M", "--cpus", "4")

    refused = [
        site.cli(*words, check=False)
        for words in (("submit", "--mem", "64M", *limit, "--", "true"), ("edit", str(job), *limit))
    ]

    assert [2, 2] == [each.returncode for each in refused]
    assert refused[0].stderr == refused[1].stderr
    assert limit[0].strip("-").replace("-", "_") in refused[0].stderr
    assert [(job, 4.0, None)] == [(each.id, each.spec.cpus, each.spec.cpu_mem_bytes) for each in client.jobs.list()]


def test_the_limits_of_the_host_can_be_changed(site: Site, client: Client) -> None:
    """``edit`` sets each limit, and ``none`` removes it. The other one stays."""
    job = submit(site, "--mem", "64M", "--cpus", "4")

    said = site.cli("edit", str(job), "--cpu-mem", "32G").stdout

    assert f"job {job}: queued, cpu mem 32G\n" == said
    assert (4.0, 32 * GIB) == (client.jobs.get(job).spec.cpus, client.jobs.get(job).spec.cpu_mem_bytes)
    site.cli("edit", str(job), "--cpus", "none")
    assert (None, 32 * GIB) == (client.jobs.get(job).spec.cpus, client.jobs.get(job).spec.cpu_mem_bytes)
    assert "  limits     at most 32G of host memory\n" in site.cli("show", str(job)).stdout


def test_submit_refuses_both_preferences(site: Site, client: Client) -> None:
    """``submit`` with both ``--pack`` and ``--spread`` is refused, and nothing is queued."""
    refused = site.cli("submit", "--mem", "64M", "--pack", "--spread", "--", "true", check=False)

    assert 2 == refused.returncode
    assert not list(client.jobs.list())


@pytest.mark.full
def test_a_warning_can_be_had_and_taken_back(site: Site, client: Client) -> None:
    """A warning signal can be set and removed. It needs a time limit that it comes before."""
    job = submit(site, "--mem", "64M")

    refused = site.cli("edit", str(job), "--signal", "USR1@120", check=False)
    site.cli("edit", str(job), "--signal", "USR1@120", "--time", "1h")

    assert (2, True) == (refused.returncode, "there is none: give one (--time)" in refused.stderr)
    assert "USR1@120" == str(client.jobs.get(job).spec.signal)
    site.cli("edit", str(job), "--signal", "none")
    assert client.jobs.get(job).spec.signal is None


def test_an_array_that_runs_can_be_given_more_room_and_less(site: Site, client: Client) -> None:
    """The concurrency limit of a running array can be changed, as with Slurm's ArrayTaskThrottle.

    Running members go on, and the next ones follow the new limit.
    """
    array = submit(site, "--mem", "64M", "--array", "0-9%1")
    first = must_claim(site.queue)
    assert (first.job_id, claim(site.queue)) == (array + 1, None)
    assert WaitReason.ARRAY_LIMIT is client.jobs.get(array).reason

    site.cli("edit", str(array), "--at-once", "3")

    second, third = must_claim(site.queue), must_claim(site.queue)
    assert [array + 2, array + 3] == [second.job_id, third.job_id]
    assert claim(site.queue) is None
    site.cli("edit", str(array), "--at-once", "1")
    done = Ending.from_status(0)
    for each in (first, second):
        site.queue.runs.finish(
            each.job_id, each.token, state=JobState.SUCCEEDED, ending=done, duration_s=1.0, devices=()
        )
    assert claim(site.queue) is None
    site.cli("edit", str(array), "--at-once", "none")
    assert array + 4 == must_claim(site.queue).job_id
    asked = client.jobs.get(array).spec.array
    assert asked is not None
    assert asked.at_once is None
    assert [] == faults(dump(connect(site.queue.url)))


def test_of_an_array_that_runs_nothing_else_can_be_changed(site: Site, client: Client) -> None:
    """A running array's other options cannot be changed, because all members, even running ones, share them."""
    array = submit(site, "--mem", "64M", "--array", "0-9%2")
    must_claim(site.queue)

    refused = site.cli("edit", str(array), "--mem", "1G", "--at-once", "3", check=False)

    assert 5 == refused.returncode
    assert "only --at-once can be changed" in refused.stderr
    asked = client.jobs.get(array).spec.array
    assert asked is not None
    assert 2 == asked.at_once


@pytest.mark.full
@pytest.mark.parametrize(
    "words", [("--begin", "now"), ("--after", "none"), ("--begin", "now", "--at-once", "3"), ("--priority", "normal")]
)
def test_what_an_array_that_runs_asked_for_already_is_not_changed_in_silence(
    site: Site, client: Client, words: tuple[str, ...]
) -> None:
    """An edit of a running array that changes nothing is refused too.

    The array has begun, so an edit of its begin has no effect. Such edits used to be accepted.
    """
    array = submit(site, "--mem", "64M", "--array", "0-9%2")
    must_claim(site.queue)

    refused = site.cli("edit", str(array), *words, check=False)

    assert 5 == refused.returncode
    assert "only --at-once can be changed" in refused.stderr
    asked = client.jobs.get(array).spec.array
    assert asked is not None
    assert 2 == asked.at_once


@pytest.mark.full
def test_at_once_is_for_arrays_only(site: Site, client: Client) -> None:
    """``--at-once`` is only for arrays, and takes a number from 1 up."""
    single, array = submit(site, "--mem", "64M"), submit(site, "--mem", "64M", "--array", "0-9")

    refused = [
        site.cli("edit", str(job), "--at-once", most, check=False)
        for job, most in ((single, "2"), (array, "0"), (array, "many"))
    ]

    assert [2, 2, 2] == [each.returncode for each in refused]
    assert "this job is no array" in refused[0].stderr
    assert client.jobs.get(array).state is JobState.QUEUED


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
    """A device still claims an edited job.

    The edit used to put the default device kind after the placement, and no device matched.
    """
    job = submit(site, *submitted)

    site.cli("edit", str(job), *edited)

    assert must_claim(site.queue).job_id in {job, job + 1}
    assert JobState.STARTING in {client.jobs.get(each).state for each in (job, job + 1) if site.queue.jobs.get(each)}


@pytest.mark.full
def test_who_does_not_ask_for_time_is_not_refused_for_it(site: Site, client: Client) -> None:
    """A new time limit of the pool does not block edits of other options of an older job."""
    job = submit(site, "--mem", "64M")
    site.queue.rules.set_limits(Limits.parse("", "*: max_time=1s", {}))

    site.cli("edit", str(job), "--name", "other")

    assert "other" == client.jobs.get(job).spec.name
    assert 5 == site.cli("edit", str(job), "--time", "1h", check=False).returncode


POOLS = "big: default_time=30s max_time=1m; *: max_time=7d"


@pytest.fixture
def big(site: Site, client: Client) -> Site:
    """Return a site with a device in a pool that allows less time than outside of it."""
    serve(client.queue, make_offer(), make_offer("GPU-big", pool="big"))
    client.queue.rules.set_limits(Limits.parse("", POOLS, {}))
    return site


@pytest.mark.full
@pytest.mark.parametrize("output", [("--time", "2h"), ()])
def test_a_job_that_comes_to_a_pool_is_held_to_its_time(big: Site, client: Client, output: tuple[str, ...]) -> None:
    """A job that is moved to a pool must satisfy the pool's time limit.

    Its own limit used not to be checked if it was unchanged, so a job moved while held could run there for days.
    """
    job = submit(big, "--hold", "--mem", "64M", *output)
    before = client.jobs.get(job).spec

    moved = big.cli("edit", str(job), "--pool", "big", check=False)

    assert (5, "") == (moved.returncode, moved.stdout)
    asked = "2:00:00" if output else "7d 00:00:00"
    reported = f"{asked} of time asked for, and pool big may have 1:00 (limit max_time): ask for less time"
    assert reported in moved.stderr
    assert before == client.jobs.get(job).spec
    big.cli("edit", str(job), "--pool", "big", "--time", "50s")
    assert ("big", 50.0) == (client.jobs.get(job).spec.pool, client.jobs.get(job).spec.time_limit_s)
    assert 0 == big.cli("edit", str(job), "--pool", "").returncode


@pytest.mark.full
def test_a_job_without_a_time_limit_gets_that_of_the_pool_it_comes_to(big: Site, client: Client) -> None:
    """A job or array without a time limit gets the pool's default when it is moved, as at submit.

    Others can then plan with its end. An explicit ``--time none`` is refused.
    """
    big.queue.rules.set_limits(Limits.parse("", POOLS.partition(";")[0], {}))
    jobs = [submit(big, "--hold", "--mem", "64M", *more) for more in ((), ("--array", "0-3"), ())]

    for job in jobs[:2]:
        assert f"job {job}: held, pool big\n" == big.cli("edit", str(job), "--pool", "big").stdout
    refused = big.cli("edit", str(jobs[2]), "--pool", "big", "--time", "none", check=False)

    assert [("big", 30.0), ("big", 30.0), ("", None)] == [
        (client.jobs.get(job).spec.pool, client.jobs.get(job).spec.time_limit_s) for job in jobs
    ]
    assert 5 == refused.returncode
    assert "pool big may have 1:00 and not more (limit max_time): give a time limit" in refused.stderr
    big.cli("release", str(jobs[0]))
    assert 30.0 == must_claim(big.queue, "GPU-big").spec.time_limit_s
    connection = connect(big.queue.url)
    assert [] == faults(dump(connection))
    connection.close()


@pytest.mark.full
def test_a_given_time_limit_is_checked_even_if_unchanged(site: Site, client: Client) -> None:
    """An explicit time limit is checked even if it equals the old one.

    Six days used to be refused where the job's own seven were accepted.
    """
    job = submit(site, "--mem", "64M", "--time", "7d")
    site.queue.rules.set_limits(Limits.parse("", "*: max_time=2d", {}))

    codes = [site.cli("edit", str(job), "--time", time, check=False).returncode for time in ("7d", "6d", "none", "2d")]

    assert [5, 5, 5, 0] == codes
    assert 2 * 86400.0 == client.jobs.get(job).spec.time_limit_s


def test_alone_and_beside_others_is_not_both(site: Site, client: Client) -> None:
    """``--exclusive`` with ``--shared`` is refused, so that the last one does not win silently."""
    job = submit(site, "--mem", "64M")

    for words in (["--exclusive", "--shared"], ["--shared", "--exclusive"]):
        done = site.cli("edit", str(job), *words, check=False)
        assert (2, "") == (done.returncode, done.stdout)
        assert "--exclusive and --shared contradict each other: use one of them" in done.stderr
    assert not client.jobs.get(job).spec.placement.exclusive


def test_an_edit_to_a_missing_device_kind_warns(site: Site, client: Client) -> None:
    """An edit to a device kind without a worker gives a warning, as at submit."""
    job = submit(site, "--mem", "64M")

    done = site.cli("edit", str(job), "--device", "cpu")

    assert f"job {job}: queued, device cpu\n" == done.stdout
    assert "no CPU is served: the job waits. Serve one with gpuqueue up --devices auto,cpu" in done.stderr
    assert WaitReason.DEVICE is client.jobs.get(job).reason
    assert "" == site.cli("edit", str(job), "--device", "gpu").stderr


@pytest.mark.full
def test_a_named_device_shows_no_device_kind(site: Site, client: Client) -> None:
    """A job for a named device is not shown as one for GPU or CPU."""
    uuid = make_offer().device.uuid
    job = submit(site, "--mem", "64M", "--device", uuid)
    either = submit(site, "--mem", "64M", "--device", "any")

    assert f"64M on 1 device, only {uuid}" in site.cli("show", str(job)).stdout
    assert f"64M on 1 device, only {uuid}" in site.cli("why", str(job)).stdout
    assert "64M on 1 device, GPU or CPU" in site.cli("show", str(either)).stdout
    assert DeviceFilter.ANY is client.jobs.get(job).spec.device
