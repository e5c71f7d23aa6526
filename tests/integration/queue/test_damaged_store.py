from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import redis
from factories import BOB, claim, make_offer, make_spec, must_claim, serve, submit
from site_of_one import Site
from store_dump import dump, faults

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec.request import UNREADABLE
from gpuqueue.errors import StoreUnreachable, Unreadable
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.event import Act
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import BrokenClaim, Stray
from gpuqueue.queue.wakeup import WakeUp, wake_of
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB
from workers.services.recorder import Recorder

#: Possible damage of a spec: missing, no JSON, other JSON, a spec of a newer version.
NO_SPECS = (
    None,
    "",
    "{",
    "null",
    "[1]",
    '{"v":9}',
    "[" * 100_000,
    '{"v":1,"argv":["a"],"cwd":"/","env":{},"account":{"name":"a b","uid":1,"host":"h"},"mem_bytes":1,"name":"n"}',
    '{"v":1,"argv":["a"],"cwd":"/","env":{},"account":{"name":"ada","uid":1,"host":"h"},"mem_bytes":NaN,"name":"n"}',
    b"\xff\xfe",
)


def spoil(store: redis.Redis, job_id: int, text: Any) -> None:
    """Replace a job's spec with *text*."""
    store.delete(keys.spec(job_id))
    if text is not None:
        store.set(keys.spec(job_id), text)


@pytest.mark.parametrize("text", NO_SPECS, ids=lambda text: repr(text)[:20])
def test_a_job_whose_request_cannot_be_read_is_seen_and_never_claimed_twice(
    queue: JobQueue, store: redis.Redis, text: Any
) -> None:
    # It shows its other fields and hides no other job. A worker that claims it gets an error that names the job to end.
    serve(queue)
    first, second = submit(queue, mem_bytes=2 * GIB), submit(queue)
    spoil(store, first, text)

    shown = queue.jobs.get(first)
    assert (UNREADABLE, "ada", 2 * GIB) == (shown.spec.name, shown.spec.account.name, shown.spec.mem_bytes)
    assert [first, second] == [job.id for job in queue.jobs.live()]
    with pytest.raises(BrokenClaim, match="request cannot be read") as caught:
        claim(queue)
    broken = caught.value
    assert first == broken.job_id
    refused = Ending.refused(broken.why)
    assert queue.runs.finish(first, broken.token, state=JobState.FAILED, ending=refused, duration_s=None, devices=())
    assert second == must_claim(queue).job_id
    assert claim(queue) is None
    assert [] == [fault for fault in faults(dump(store)) if "has no spec" not in fault]


@pytest.mark.parametrize(
    "lost", [("mem",), ("at",), ("ls",), ("tc",), ("dep", "rate"), ("at", "ls", "mem"), ("rq",)], ids="-".join
)
@pytest.mark.parametrize("worth", [None, "", "x", "1e999", "-1"])
def test_fields_that_a_job_has_lost_stop_nobody(
    queue: JobQueue, store: redis.Redis, lost: tuple[str, ...], worth: str | None
) -> None:
    """Lost or damaged fields of a job stop no other job, before and after its claim."""

    # The job itself continues, and all indexes are right afterwards.
    def lose() -> None:
        for name in lost:
            if worth is None:
                store.hdel(keys.job(1), name)
            else:
                store.hset(keys.job(1), name, worth)

    serve(queue)
    queue.requests.submit(make_spec())
    queue.requests.submit(make_spec(account=BOB))
    lose()
    claimed = must_claim(queue)
    assert (1, GIB) == (claimed.job_id, claimed.lease_bytes)
    lose()
    assert 2 == must_claim(queue).job_id
    done = queue.runs.started(1, claimed.token, lease_s=300, log_path="/l", devices=()) and queue.runs.finish(
        1, claimed.token, state=JobState.SUCCEEDED, ending=Ending.from_status(0), duration_s=1.0, devices=()
    )

    assert done
    assert [] == faults(dump(store))
    assert [Act.SUBMIT, Act.SUBMIT, Act.CLAIM, Act.CLAIM, Act.STARTED, Act.FINISH] == [
        event.act for event in queue.outbox.events("0-0")
    ]


@pytest.mark.parametrize("lost", ["st", "mem", "at", "ls", "u", "pr", "sh", "rq", "ts"])
@pytest.mark.parametrize("worth", [None, "", "x", "1e999"])
def test_a_run_of_a_damaged_job_is_adopted_completely_or_not_at_all(
    queue: JobQueue, store: redis.Redis, lost: str, worth: str | None
) -> None:
    # An error half-way would leave the job neither waiting nor running.
    queue.requests.submit(make_spec())
    held = dict(store.hgetall(keys.job(1)))
    store.hset(keys.job(1), mapping={**held, lost: worth}) if worth is not None else store.hdel(keys.job(1), lost)
    device = RunDevice(uuid="GPU-0", lease_bytes=GIB)
    stray = Stray(job_id=1, token="1.abc", host="nodeA", worker="w", devices=(device,), claimed_ms=None, log_path="/l")
    before = dump(store)

    state = queue.runs.adopt(stray, lease_s=300)

    assert lost == "u" or (state is None) == (lost in {"st", "pr", "sh"})
    if state is None:
        assert before == dump(store)
    else:
        assert lost == "u" or [] == faults(dump(store))  # a claim later drops its stale entry in another user's queue
        assert [GIB] == [int(lease.split(":")[0]) for lease in store.hvals("{gq}:dl:GPU-0")]


def test_a_job_that_lost_its_place_in_the_order_can_still_be_ended(queue: JobQueue, store: redis.Redis) -> None:
    """A job that lost its priority, user or shape cannot be queued again, but it can be ended."""
    # A job that would be queued again ends as lost, and its history stays.
    serve(queue, make_offer("GPU-0"))
    for _ in range(4):
        queue.requests.submit(make_spec())
    tokens = [must_claim(queue).token for _ in range(3)]
    for job_id in (1, 2, 3, 4):
        store.hdel(keys.job(job_id), stored.PRIORITY, stored.USER, stored.SHAPE)
    store.zadd(keys.LEASES, {"1": 0})

    assert not queue.runs.release_claim(2, tokens[1], "no room")  # no change: its lease expires
    assert JobState.LOST is queue.runs.lose(3, tokens[2], loss_limit=3, detail="gone")
    store.hset(keys.PREFIX + "meta", "reap", queue.now_ms())  # the reaper was not away
    assert {1: JobState.LOST} == queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)
    assert JobState.CANCELLED is queue.jobs.cancel(4)
    assert claim(queue) is None


def test_an_entry_with_an_unknown_state_is_logged_and_hides_no_other_job(
    queue: JobQueue, store: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    # A request for its id gives one clear error.
    for _ in range(3):
        queue.requests.submit(make_spec())
    store.hset(keys.job(2), stored.STATE, "paused by a version to come")

    with caplog.at_level(logging.WARNING):
        assert [1, 3] == [job.id for job in queue.jobs.live()]
    assert "the store's entry of job 2 cannot be read" in caplog.text
    with pytest.raises(Unreadable, match="the store's entry of job 2 cannot be read"):
        queue.jobs.get(2)
    page = queue.jobs.page(after=1, limit=1)
    assert ((), 2) == (page.jobs, page.after)  # the next page starts behind it


@pytest.mark.parametrize(
    ("key", "field", "text"),
    [
        (keys.FACTS, "GPU-0", "no JSON"),
        (keys.FACTS, "GPU-0", "{}"),
        (keys.FACTS, "GPU-0", '{"host":"nodeA","worker":"w","pid":1,"device":{"uuid":5}}'),
        (keys.FACTS, "GPU-0", '{"host":"nodeA","worker":"w","pid":"1","device":null}'),
        (keys.host_devices("nodeA"), "GPU-0", "a:b"),
        (keys.host_devices("nodeA"), "GPU-0", "1:2:3:4:five:"),
        (keys.device_leases("GPU-0"), "7", "much"),
    ],
)
def test_gpus_logs_a_damaged_device_and_shows_the_others_which_continue_to_serve(
    queue: JobQueue, store: redis.Redis, caplog: pytest.LogCaptureFixture, key: str, field: str, text: str
) -> None:
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    store.hset(key, field, text)

    assert ["GPU-1"] == [each.device.uuid for each in queue.devices.all()]
    assert "device GPU-0 is not shown" in caplog.text
    queue.requests.submit(make_spec())
    assert 1 == must_claim(queue, "GPU-1").job_id


def test_a_lease_that_cannot_be_read_closes_its_device(queue: JobQueue, store: redis.Redis) -> None:
    """An unreadable lease stops claims on its device, because an unknown size is not zero."""
    # The device's worker continues to send heartbeats for its other runs.
    serve(queue)
    store.hset(keys.device_leases("GPU-0"), "7", "much")
    queue.requests.submit(make_spec())

    assert claim(queue) is None
    (other,) = queue.devices.heartbeat(make_offer(), [], lease_s=300).others
    assert (7, 0, False) == (other.job_id, other.lease_bytes, other.leads)


def test_invalid_external_processes_are_ignored(queue: JobQueue, store: redis.Redis) -> None:
    """Malformed external processes, reported by a worker of another version, do not hide the device."""
    serve(queue)
    for text in ("no JSON", "[]", '{"external_processes":5}', '{"external_processes":[{}]}', '{"trouble":7}'):
        store.hset(keys.SEEN, "GPU-0", text)
        (device,) = queue.devices.all()
        assert ((), None) == (device.external_processes, device.trouble)


def test_an_outbox_entry_that_makes_no_sense_stops_no_recorder(
    queue: JobQueue, store: redis.Redis, database: HistoryDatabase
) -> None:
    # Cases: a state of a newer version, bytes that are no text, and unknown fields.
    queue.requests.submit(make_spec(name="first"))
    store.xadd(keys.OUTBOX, {"act": "submit", "job": "x"})
    store.xadd(keys.OUTBOX, {b"\xff": b"\xfe\x1b]0;x\x07"})
    store.xadd(keys.OUTBOX, {"act": "pause", "job": 1, "state": "paused", "at": 1, "attempt": 0, "losses": 0})
    queue.requests.submit(make_spec(name="last"))
    recorder = Recorder(Settings.load(), queue, database)

    while recorder.record(0):
        pass

    assert ["last", "first"] == [record.job.spec.name for record in database.history(HistoryQuery())]
    strange = database.events(0)
    assert 3 == len(strange)
    assert {"act": "submit", "job": "x"} == dict(strange[0].fields)
    assert {"\udcff": "\udcfe\x1b]0;x\x07"} == dict(strange[1].fields)
    assert strange[2].at >= from_epoch_ms(1)
    assert JobState.QUEUED is database.history(HistoryQuery())[1].job.state


def test_an_unreadable_request_in_the_history_hides_no_record(queue: JobQueue, database: HistoryDatabase) -> None:
    for name in ("first", "last"):
        queue.requests.submit(make_spec(name=name, argv=("echo", "a b"), gpus=2, time_limit_s=5.0))
    Recorder(Settings.load(), queue, database).record(0)
    with database._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET spec = '{\"v\":9}' WHERE id = 1")

    last, first = database.history(HistoryQuery())

    actual = (first.job.spec.name, first.job.spec.argv, first.job.spec.gpus, first.job.spec.time_limit_s)
    assert ("first", ("echo", "a b"), 2, 5.0) == actual
    assert "last" == last.job.spec.name


def test_a_key_of_ours_that_holds_something_else_is_one_clear_error(queue: JobQueue, store: redis.Redis) -> None:
    # Another program uses the same database. That is no outage, so no store may act as if the store were unreachable.
    store.set(keys.LIVE, "mine")

    with pytest.raises(Unreadable, match="gave an unexpected answer: 'WRONGTYPE") as caught:
        queue.jobs.live()
    assert not isinstance(caught.value, StoreUnreachable)


@pytest.mark.parametrize("text", ["", "x", "cancel", "cancel:1", "cancel:x:1.a", "\x00", "9" * 5000])
def test_a_malformed_wake_up_message_only_means_check_for_work(text: str) -> None:
    # Any store of the store can publish, and no worker may crash.
    assert WakeUp("work") == wake_of(keys.CONTROL, text)
    assert WakeUp("work") == wake_of(keys.END, text)
    assert WakeUp("cancel", 7, "1.a") == wake_of(keys.CONTROL, "cancel:7:1.a")
    assert WakeUp("end", 7) == wake_of(keys.END, "7")


@pytest.mark.full
def test_a_worker_ends_what_it_cannot_read_and_goes_on(site: Site, store_url: str) -> None:
    """A worker ends a job that it cannot decode and continues with the next job."""
    # The job is refused once, with its story in the history, instead of being claimed and released for ever.
    store = connect(store_url)
    bad = [submit(site.queue, account=BOB) for _ in range(2)]
    good = submit(site.queue)
    spoil(store, bad[0], None)
    spoil(store, bad[1], "{")
    store.hset(keys.FACTS, "GPU-gone", "no JSON")
    store.close()
    site.start_recorder()
    worker = site.start_worker()

    site.until_state(good, JobState.SUCCEEDED)
    for job_id in bad:
        record = site.until_recorded(job_id)
        assert (JobState.FAILED, EndingKind.REFUSED) == (record.job.state, record.last_run.ending.kind)
        assert "request cannot be read" in record.last_run.ending.detail
    assert worker.poll() is None
    assert good in [row["job"]["id"] for row in json.loads(site.cli("history", "--json").stdout)]
    assert "submit the job again" in site.cli("show", str(bad[1])).stdout
