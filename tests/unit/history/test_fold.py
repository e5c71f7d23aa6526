"""Tests of the rows that a batch of events gives, without SQL."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from factories import make_spec

from gpuqueue.codec.request import NOT_KEPT, encode_ended, encode_spec, encode_started, shown_request
from gpuqueue.history import records
from gpuqueue.history.fold import fold
from gpuqueue.history.writer import dead_letter
from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.text.units import GIB

T0 = datetime(2026, 11, 1, tzinfo=timezone.utc)
FIRST = "1.a"
RUN = (1, 1, FIRST)
DEVICE = (1, 1, "GPU-0")
FACTS: dict[str, Any] = {"uuid": "GPU-0", "lease_bytes": GIB, "index": 3, "name": "A10", "kind": DeviceKind.GPU}
PEAK = Peak(bytes=GIB, source=PeakSource.NVML_SAMPLED, samples=9, na_samples=1, interval_s=0.5, shared=True)


def event(second: int, act: Act, state: JobState, *, attempt: int = 1, losses: int = 0, **fields: str) -> Event:
    """Return an event of job 1 at *second* after T0."""
    at = T0 + timedelta(seconds=second)
    return Event(id=f"{second}-0", act=act, job_id=1, state=state, at=at, attempt=attempt, losses=losses, fields=fields)


def submit(second: int = 0) -> Event:
    """Return the submission of the job."""
    return event(second, Act.SUBMIT, JobState.QUEUED, attempt=0, spec=encode_spec(make_spec()))


def claim(second: int = 1, token: str = FIRST, devices: str = "GPU-0") -> Event:
    """Return a claim of the job."""
    fields: dict[str, Any] = {"token": token, "host": "nodeA", "worker": "w", "devices": devices, "lease": str(GIB)}
    return event(second, Act.CLAIM, JobState.STARTING, **fields)


def started(second: int = 2) -> Event:
    """Return the start of the claimed run."""
    payload = encode_started(log_path="/log", devices=(RunDevice(**FACTS, total_bytes=24 * GIB),))
    return event(second, Act.STARTED, JobState.RUNNING, token=FIRST, started=payload)


def finish(second: int = 3) -> Event:
    """Return a successful end of the run."""
    devices = (RunDevice(**FACTS, total_bytes=24 * GIB, peak=PEAK),)
    ended = encode_ended(ending=Ending.from_status(0), duration_s=0.75, devices=devices)
    return event(second, Act.FINISH, JobState.SUCCEEDED, token=FIRST, ended=ended)


def release_claim(second: int = 2, state: JobState = JobState.QUEUED) -> Event:
    """Return the release of the claim."""
    return event(second, Act.RELEASE_CLAIM, state, attempt=0, token=FIRST, detail="the device looked different")


def test_a_whole_life_is_one_row_in_each_table() -> None:
    """A job that lives within one batch is inserted in its final state, without an update."""
    batch = fold([submit(), claim(), started(), finish()], epoch="e")
    assert {(1,)} == set(batch.new_jobs)
    assert {RUN} == set(batch.new_runs)
    assert {DEVICE} == set(batch.new_devices)
    assert ({}, {}, {}, []) == (batch.moved_jobs, batch.moved_runs, batch.moved_devices, batch.released)
    job, run, device = batch.new_jobs[1,], batch.new_runs[RUN], batch.new_devices[DEVICE]
    assert ("succeeded", T0 + timedelta(seconds=3), "nodeA") == (job["state"], job["ended_at"], job["host"])
    assert ("exited", 0, 0.75, "/log") == (run["ending"], run["exit_code"], run["duration_s"], run["log_path"])
    assert ("A10", 3, 0, GIB) == tuple(device[name] for name in ("name", "host_index", "device_index", "peak_bytes"))


def test_a_step_of_a_known_job_sets_only_its_own_fields() -> None:
    """An event sets only the columns that it reports. A start leaves the columns of the claim unchanged."""
    batch = fold([started()], epoch="e")
    at = T0 + timedelta(seconds=2)
    moved = {"state": "running", "reason": None, "attempt": 1, "losses": 0, "ended_at": None, "started_at": at}
    shown = dict.fromkeys(("ending", "exit_code", "duration_s", "peak_bytes"))  # the last run's result is cleared
    assert {(1,): {**moved, **shown}} == batch.moved_jobs
    assert {RUN: {"started_at": at, "log_path": "/log"}} == batch.moved_runs
    facts = {"host_index": 3, "name": "A10", "kind": "gpu", "total_bytes": 24 * GIB}
    assert {DEVICE: facts} == batch.moved_devices


def test_devices_keep_the_order_of_the_claim() -> None:
    """A device's index within the run is its position in the claim."""
    batch = fold([claim(devices="GPU-b,GPU-a")], epoch="e")
    positions = [(row["device_uuid"], row["device_index"]) for row in batch.new_devices.values()]
    assert [("GPU-b", 0), ("GPU-a", 1)] == positions


def test_a_claim_released_in_the_same_batch_leaves_no_run() -> None:
    """A claim that is released in the same batch leaves no run to insert or delete, and the job is queued again."""
    batch = fold([submit(), claim(), release_claim()], epoch="e")
    assert ({}, {}, []) == (batch.new_runs, batch.new_devices, batch.released)
    job = batch.new_jobs[1,]
    assert ("queued", None, None, 0) == (job["state"], job["host"], job["claimed_at"], job["attempt"])


def test_a_released_claim_of_an_earlier_batch_is_removed() -> None:
    """The run of a claim from an earlier batch is marked for deletion.

    The next claim with the same attempt number is a new run.
    """
    batch = fold([release_claim(), claim(3, "1.b")], epoch="e")
    assert [(1, "1.a")] == batch.released
    assert {(1, 1, "1.b")} == set(batch.new_runs)
    assert {DEVICE} == set(batch.new_devices)
    assert "starting" == batch.moved_jobs[1,]["state"]


def test_release_of_a_cancelled_claim_ends_the_job_without_a_run() -> None:
    """A released claim of a cancelled job ends the job. The job has an end time and no claim."""
    row = fold([release_claim(5, JobState.CANCELLED)], epoch="e").moved_jobs[1,]
    assert ("cancelled", T0 + timedelta(seconds=5), None) == (row["state"], row["ended_at"], row["claimed_at"])


def test_a_lost_run_ends_and_the_job_waits_again() -> None:
    """A lost run ends with its detail, and the job is queued again without a claim."""
    batch = fold([event(4, Act.LOSE, JobState.QUEUED, losses=1, token=FIRST, detail="gone")], epoch="e")
    run, job = batch.moved_runs[RUN], batch.moved_jobs[1,]
    assert ("lost", "gone", None, T0 + timedelta(seconds=4)) == (
        run["ending"],
        run["detail"],
        run["exit_code"],
        run["ended_at"],
    )
    assert ("queued", 1, None, None) == (job["state"], job["losses"], job["claimed_at"], job["started_at"])


def test_payloads_are_not_kept_twice() -> None:
    """An event's own row has only the fields that no other table has."""
    details = [row["detail"] for row in fold([submit(), started(), release_claim()], epoch="e").events]
    kept = {"token": "1.a", "detail": "the device looked different"}
    assert [None, {"token": "1.a"}, kept] == [json.loads(text) if text else None for text in details]


def test_an_unreadable_event_stops_nothing() -> None:
    """The events around an unreadable event count, and its payload is kept unchanged."""
    broken = event(2, Act.STARTED, JobState.RUNNING, token=FIRST, started="{")
    batch = fold([submit(), claim(), broken, finish()], epoch="e")
    assert "succeeded" == batch.new_jobs[1,]["state"]
    assert {"token": "1.a", "started": "{"} == json.loads(batch.events[2]["detail"])


def test_an_unreadable_end_is_an_end_all_the_same() -> None:
    """A run whose end report is unreadable is lost, so that it does not stay open."""
    broken = event(3, Act.FINISH, JobState.FAILED, token=FIRST, ended="[]")
    batch = fold([claim(), broken], epoch="e")
    assert ("lost", T0 + timedelta(seconds=3)) == (batch.new_runs[RUN]["ending"], batch.new_runs[RUN]["ended_at"])
    assert "failed" == batch.moved_jobs[1,]["state"]


def test_an_unreadable_submission_leaves_only_events() -> None:
    """A job with an unreadable submission gets no row. The event keeps its payload if that is without secrets."""
    readable = encode_spec(make_spec(env={"HF_TOKEN": "hunter2"})).replace('"mem_bytes":', '"of_memory":')
    for payload, kept in (("{", NOT_KEPT), ('{"env":"hunter2"}', NOT_KEPT), (readable, shown_request(readable))):
        broken = event(0, Act.SUBMIT, JobState.QUEUED, attempt=0, spec=payload)
        batch = fold([broken], epoch="e")
        assert ({}, {}) == (batch.new_jobs, batch.environments)
        assert {"spec": kept} == json.loads(batch.events[0]["detail"])
        (letter,) = dead_letter(broken, "why", epoch="e").dead_letters
        assert kept == json.loads(letter["fields"])["spec"]
        assert "hunter2" not in kept + letter["fields"]


def test_the_secrets_of_a_job_go_with_the_batch_that_has_its_end() -> None:
    """A job has secrets while it lives, and none after the batch with its end. A job that comes back has them again."""
    payload = encode_spec(make_spec(env={"A": "1", "HF_TOKEN": "hunter2"}))
    began = event(0, Act.SUBMIT, JobState.QUEUED, attempt=0, spec=payload)
    again = {"token": "2.b", "claimed": "1700000000000", "started": started().fields["started"], "spec": payload}

    batches = [
        fold(events, epoch="e")
        for events in (
            [began, claim(), started()],
            [finish()],
            [began, claim(), started(), finish()],
            [finish(), event(4, Act.ADOPT, JobState.RUNNING, attempt=2, **again)],
        )
    ]

    assert [set(), {1}, {1}, set()] == [batch.ended for batch in batches]
    assert [{1}, set(), {1}, {1}] == [set(batch.environments) for batch in batches]
    assert '{"A":"1","HF_TOKEN":null}' == batches[0].environments[1]["variables"]
    assert '{"HF_TOKEN":"hunter2"}' == batches[0].environments[1]["secrets"]
    assert "hunter2" not in batches[0].new_jobs[1,]["spec"]


def test_a_run_that_never_started_has_its_devices_facts() -> None:
    """The end report repeats the device facts of the start report."""
    batch = fold([finish()], epoch="e")
    device = batch.moved_devices[DEVICE]
    assert ("A10", GIB, "nvml_sampled", 9, 1, 0.5, True) == tuple(
        device[name] for name in ("name", "peak_bytes", "peak_source", "samples", "na_samples", "interval_s", "shared")
    )


def test_a_job_shows_its_ending_if_only_a_dead_letter_could_be_written() -> None:
    """The result columns of a job match its run, also when only a dead letter is written.

    Lists show and search these columns.
    """
    fields = {"token": "1.a", "ended": "\0"}
    end = Event(id="1-1", act=Act.FINISH, job_id=1, state=JobState.FAILED, at=T0, attempt=1, fields=fields)

    batch = dead_letter(end, "it is not for any column", epoch="e")

    ((_, run),) = batch.moved_runs.items()
    shown = {name: batch.moved_jobs[1,][name] for name in ("ending", "exit_code", "duration_s", "peak_bytes")}
    assert "lost" == run["ending"]
    assert {"ending": "lost", "exit_code": None, "duration_s": None, "peak_bytes": None} == shown


def test_the_event_of_a_start_keeps_the_limits_of_its_run() -> None:
    """They are shown with one job, so no table has a column for them. Half a value is none."""
    limits = {"threads": 4, "open_files": 1024}
    payload = encode_started(log_path="/log", devices=(), limits=limits)
    start = event(2, Act.STARTED, JobState.RUNNING, token=FIRST, started=payload)
    (row,) = fold([start], epoch="e").events
    (without,) = fold([started()], epoch="e").events

    assert limits == records._limits(row["detail"])
    assert {} == records._limits(without["detail"]) == records._limits(None)
    for damaged in ("", "{", "[]", '{"threads": "4"}', '{"threads": -1}', "[" * 100_000):
        assert {} == records._limits(json.dumps({"limits": damaged}))
