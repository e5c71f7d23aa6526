"""Payloads of format 1 stay loadable for ever: in a rolling upgrade, and after time in the store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import redis
from factories import claim, make_spec, must_claim

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec.request import decode_ended, decode_started
from gpuqueue.errors import Impossible
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.device import DeviceKind, PeakSource
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind, RunDevice
from gpuqueue.queue import keys
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.recovery import catch_up
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import GIB, MIB
from workers.measure.active_runs import LiveRun
from workers.run.directory import RunDir
from workers.run.verdict import read_reports
from workers.services.recorder import Recorder

GOLDEN = Path(__file__).parents[2] / "golden"
DEVICE = RunDevice(
    uuid="GPU-1", lease_bytes=6 * GIB, index=1, name="Test 24G", kind=DeviceKind.GPU, total_bytes=24 * GIB
)
TOKEN = "1.0123456789ab"  # noqa: S105 - a fencing token is no password


def golden(name: str) -> str:
    """Return the text of a payload in format 1."""
    return (GOLDEN / name).read_text(encoding="utf-8").rstrip("\n")


def test_a_workers_start_report_loads_for_ever() -> None:
    # It waits in the outbox for a recorder, which may be newer.
    assert ("/state/runs/1/1.0123456789ab/log", (DEVICE,), {}) == decode_started(golden("started-v1.json"))


def test_a_workers_end_report_loads_for_ever_with_all_its_fields() -> None:
    ended = decode_ended(golden("ended-v1.json"))

    (device,) = ended.devices
    assert (EndingKind.TIMED_OUT, 15, "over") == (ended.ending.kind, ended.ending.signal, ended.ending.detail)
    assert (5 * GIB, PeakSource.NVML_SAMPLED, True) == (device.peak.bytes, device.peak.source, device.peak.shared)
    assert (2.5, 71.0) == (device.activity.first_memory_s, device.activity.temperature_max_c)
    assert (0.2, (0, None, 5 * GIB)) == (device.timeline.step_s, device.timeline.bytes)
    assert (12.5, 5 * GIB) == (ended.duration_s, ended.peak_at_once_bytes)


def test_a_device_that_a_worker_announced_is_known_for_ever(queue: JobQueue, store: redis.Redis) -> None:
    """A device that a worker announced loads for ever, in the scripts and in Python."""
    # Checked are its values, pool and external processes.
    store.sadd(keys.HOSTS, "nodeA")
    store.hset(keys.FACTS, "GPU-1", golden("facts-v1.json"))
    store.hset(keys.SEEN, "GPU-1", golden("seen-v1.json"))
    store.hset(keys.host_devices("nodeA"), "GPU-1", golden("device-record-v1.txt"))

    (status,) = queue.devices.all()
    assert ("GPU-1", 1, "Test 24G", DeviceKind.GPU, 24 * GIB) == (
        status.device.uuid,
        status.device.index,
        status.device.name,
        status.device.kind,
        status.device.total_bytes,
    )
    assert ("nodeA", "nodeA/GPU-1/0011aabb", 4711) == (status.host, status.worker, status.worker_pid)
    assert (512 * MIB, 3 * GIB, 8, "big") == (status.headroom_bytes, status.external_bytes, status.slots, status.pool)
    assert None is status.environments  # a worker of the first version does not say
    (external,) = status.external_processes
    actual = (external.pid, external.held_bytes, external.user, external.command)
    assert (7, 3 * GIB, "bob", "python notebook.py") == actual
    with pytest.raises(Impossible, match=r"can give 23\.5G"):
        queue.requests.submit(make_spec(mem_bytes=24 * GIB))
    queue.requests.submit(make_spec(pool="big"))
    assert must_claim(queue, "GPU-1").devices == ("GPU-1",)


def test_a_drained_device_stays_drained_for_ever(queue: JobQueue, store: redis.Redis) -> None:
    """A drained device stays drained until it is resumed, whichever version drained it."""
    origins = (DrainOrigin.PERSON, DrainOrigin.DOWN)
    store.sadd(keys.HOSTS, "nodeA")
    store.hset(keys.FACTS, "GPU-1", golden("facts-v1.json"))
    store.hset(keys.host_devices("nodeA"), "GPU-1", golden("device-record-v1.txt"))
    store.hset(keys.DRAINED, "GPU-1", golden("drained-v1.json"))
    queue.requests.submit(make_spec())

    (status,) = queue.devices.all()
    assert origins == tuple(each.origin for each in status.drains)
    assert "this machine is going down (gpuqueue down)" == status.drains[-1].why
    assert claim(queue, "GPU-1") is None
    queue.devices.resume(["GPU-1"], origins=origins)
    assert must_claim(queue, "GPU-1").job_id == 1


def test_the_hash_of_a_job_loads_for_ever(queue: JobQueue, store: redis.Redis) -> None:
    # Its spec has golden payloads of its own.
    store.hset(keys.job(7), mapping=json.loads(golden("job-hash-v1.json")))
    store.set(keys.spec(7), golden("spec-v1.json"))
    store.zadd(keys.LIVE, {"7": 7})

    (job,) = queue.jobs.live()

    assert (7, JobState.RUNNING, 1, 0) == (job.id, job.state, job.attempt, job.losses)
    assert ("nodeA", ("GPU-1",), "train.py") == (job.host, job.devices, job.spec.name)
    assert job.submitted_at < (job.claimed_at or job.submitted_at) < (job.started_at or job.submitted_at)
    assert queue.runs.note(7, TOKEN, "still ours")


def test_a_job_comes_back_from_the_store_for_ever(
    queue: JobQueue, store: redis.Redis, database: HistoryDatabase
) -> None:
    """A history that lost a running job gets it back from the store, with the report of its start."""
    store.hset(keys.job(8), mapping=json.loads(golden("job-hash-v1.json")))
    store.set(keys.spec(8), golden("spec-v1.json"))
    store.zadd(keys.LIVE, {"8": 8})
    store.hset(keys.META, "recorded", "1-0")

    assert 1 == catch_up(queue, database)

    record = database.get(8)
    assert ("/state/runs/1/1.0123456789ab/log", (DEVICE,)) == (record.runs[0].log_path, record.runs[0].devices)
    assert (TOKEN, "nodeA", ("GPU-1",)) == (record.runs[0].token, record.runs[0].host, record.job.devices)


def test_the_outbox_of_a_rebuilt_store_is_recorded_for_ever(
    queue: JobQueue, store: redis.Redis, database: HistoryDatabase
) -> None:
    # It has jobs restored by the history or a worker, and runs that were parked and adopted since.
    for entry_id, fields in json.loads(golden("outbox-v1-rebuilt.json")):
        store.xadd(keys.OUTBOX, fields, id=entry_id)

    Recorder(Settings.load(), queue, database).record(0)

    record = database.get(1)
    assert (JobState.RUNNING, "train.py", TOKEN) == (record.job.state, record.job.spec.script, record.runs[0].token)
    assert [Act.ADOPT, Act.PARK, Act.ADOPT] == [event.act for event in database.events(1)]
    assert [Act.RESTORE] == [event.act for event in database.events(2)]
    ((survivor,),) = database.survivors()
    assert (None, 1) == (survivor.parked_until, survivor.record.job.id)


def test_a_full_outbox_that_is_left_from_before_an_upgrade_is_recorded(
    queue: JobQueue, store: redis.Redis, database: HistoryDatabase
) -> None:
    for entry_id, fields in json.loads(golden("outbox-v1.json")):
        store.xadd(keys.OUTBOX, fields, id=entry_id)

    Recorder(Settings.load(), queue, database).record(0)

    acts = [event.act for event in database.events(1)]
    assert [Act.SUBMIT, Act.CLAIM, Act.STARTED, Act.NOTE, Act.FINISH] == acts
    record = database.get(1)
    actual = (record.job.state, record.job.spec.script, record.job.spec.mem_bytes)
    assert (JobState.SUCCEEDED, "train.py", 6 * GIB) == actual
    assert (TOKEN, "nodeA", "GPU-1") == (record.last_run.token, record.last_run.host, record.last_run.devices[0].uuid)
    assert ["it holds 7G on GPU-1"] == [note.text for note in record.notes]
    assert record.job.submitted_at > from_epoch_ms(0)


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    """Return the directory of a run that a worker claimed and its shim ended."""
    path = tmp_path / "1" / TOKEN
    (path / "inside").mkdir(parents=True)
    for name, golden in (
        ("claim", "claim-v1.json"),
        ("exit", "exit-v1.json"),
        ("pid", "pid-v1.txt"),
        ("inside/4711.json", "inside-v1.json"),
    ):
        shutil.copy(GOLDEN / golden, path / name)
    return RunDir(path)


def test_a_run_that_a_worker_left_is_adopted_for_ever(directory: RunDir) -> None:
    """A run that a worker left can be adopted: its devices, shim, ending and process reports load."""
    shutil.copy(GOLDEN / "spec-v1.json", directory.path / "job")
    held, end, shim = directory.held(), directory.exit(), directory.shim()

    assert (1, TOKEN, (DEVICE,), True) == (held.job_id, held.token, held.devices, held.capped)
    assert 1795276796048 == held.claimed_ms
    assert (GOLDEN / "spec-v1.json").read_text() == directory.payload()
    assert ProcessIdentity(3684, 692307, "0f0e0d0c-0b0a-4908-8706-050403020100") == shim
    actual = (end.ending.kind, end.ending.exit_code, end.max_rss_bytes, end.hosts_fault)
    assert (EndingKind.EXITED, 0, None, False) == actual
    report = read_reports(directory.path)
    assert (5 * GIB, False) == (report.reserved("GPU-1", 0), report.out_of_memory)


def test_a_refusal_that_a_shim_wrote_is_reported_for_ever(directory: RunDir) -> None:
    shutil.copy(GOLDEN / "exit-v1-refused.json", directory.path / "exit")

    end = directory.exit()

    assert "refused: cannot start /nonexistent/program: No such file or directory" == str(end.ending)


def test_measurements_that_another_worker_stored_continue(directory: RunDir) -> None:
    # A peak is not lost with the worker that measured it.
    shutil.copy(GOLDEN / "meters-v1.json", directory.path / "meters")
    held = directory.held()
    assert held is not None
    run = LiveRun(held=held, directory=directory, since_s=2000.0)

    run.resume()

    meter = run.meter("GPU-1")
    assert (5 * GIB, 2, 1, True) == (meter.peak_bytes, meter.samples, meter.na_samples, meter.shared)
    assert (1000.25, 5 * GIB) == (run.since_s, run.at_once_bytes)
    assert ({4711, 4712}, 6 * GIB, True) == (meter.pids, meter.delta_bytes, meter.warned)
    actual = (meter.activity().first_memory_s, meter.activity().utilisation_mean, meter.activity().temperature_max_c)
    assert (0.3, 0.5, 61.0) == actual
    assert meter.timeline() is not None


def test_every_golden_payload_is_loaded_by_some_test() -> None:
    # A file without a test protects nothing.
    tests = [path.read_text() for path in Path(__file__).parents[2].rglob("test_*.py")]

    read = [path for path in GOLDEN.iterdir() if any(path.name in text for text in tests)]
    assert set() == {path.name for path in {*GOLDEN.iterdir()} - {*read}}
