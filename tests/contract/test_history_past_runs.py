"""Earlier runs of a program, from SQLite with both readers and from PostgreSQL."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from factories import ADA, BOB, make_spec
from outbox import Outbox, known

from gpuqueue.history import past_runs, sqlite_past_runs
from gpuqueue.history.connect import open_engine, reading, writing
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.learning.past_run import MOST_JOBS, PastRun, Proof
from gpuqueue.learning.signature import program_of
from gpuqueue.model.array import Array
from gpuqueue.model.device import Activity, DeviceKind, Peak, PeakSource
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, Checkout, JobSpec
from gpuqueue.model.run import Ending, EndingKind, RunDevice, RunNote
from gpuqueue.text.units import GIB

PROGRAM = "/home/ada/train.py"
WELL = Ending.from_status(0)
DIED = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1)
COMMIT = "c" * 40


def train(*args: str, account: Account = ADA, **changes: Any) -> JobSpec:
    """Return the spec of a script with *args*."""
    argv = ("/venv/python", "train.py", *args)
    return make_spec(
        argv=argv, script="train.py", interpreter="/venv/python", cwd="/home/ada", account=account, **changes
    )


def device(peak: int | None, uuid: str = "GPU-0", **changes: Any) -> RunDevice:
    """Return a device with a trusted peak of so many GiB."""
    seen = Peak.unknown() if peak is None else Peak(bytes=peak * GIB, source=PeakSource.NVML_SAMPLED, samples=50)
    defaults: dict[str, Any] = {"name": "A10", "kind": DeviceKind.GPU, "total_bytes": 24 * GIB, "peak": seen}
    return RunDevice(uuid=uuid, lease_bytes=GIB, **{**defaults, **changes})


def ran(outbox: Outbox, job_id: int, spec: JobSpec, *devices: RunDevice, ending: Ending = WELL) -> None:
    """Add a job with one run on *devices*."""
    outbox.submit(job_id, spec)
    finish(outbox, job_id, *devices, ending=ending)


def finish(
    outbox: Outbox,
    job_id: int,
    *devices: RunDevice,
    ending: Ending = WELL,
    notes: tuple[RunNote, ...] = (),
    **given: Any,
) -> None:
    """Add the one run of a job."""
    outbox.run(job_id, devices, ending, duration_s=9.0, claimed={"lease": str(8 * GIB), **given}, notes=notes)


def found(database: HistoryDatabase, user: str = "ada", program: str = PROGRAM) -> tuple[PastRun, ...]:
    """Return the runs of a program, after both readers of SQLite have agreed on them."""
    runs = database.runs_of_program(user, program)
    url = database._engine.url.render_as_string(hide_password=False)
    if url.startswith("sqlite:"):
        assert runs == sqlite_past_runs.runs_of(url, user, program)
    return runs


@pytest.mark.parametrize(
    ("next_gib", "next_peak", "proofs"),
    [(6, 3, [Proof.PEAK]), (12, 5, [Proof.PEAK]), (12, 2, [Proof.PEAK, Proof.DIED])],
)
def test_a_run_whose_memory_others_took_shows_nothing(
    database: HistoryDatabase, outbox: Outbox, next_gib: int, next_peak: int, proofs: list[Proof]
) -> None:
    """Others had taken it if the next run gets no more memory, or needs as much as the run that died."""
    outbox.submit(1, train())
    for attempt, (ending, lease_gib, peak) in enumerate([(DIED, 6, 3), (WELL, next_gib, next_peak)], 1):
        state = JobState.QUEUED if attempt == 1 else None
        seen = replace(device(peak), lease_bytes=lease_gib * GIB)
        outbox.run(1, (seen,), ending, attempt=attempt, state=state, duration_s=9.0)
    outbox.record()

    assert proofs == [run.proof for run in found(database)]


@pytest.mark.parametrize(
    ("own_gib", "need_gib", "proofs"),
    [(3, 9, [Proof.PEAK]), (None, 9, [Proof.PEAK]), (9, 9, [Proof.PEAK]), (11, 9, [Proof.PEAK, Proof.DIED])],
)
def test_the_run_that_repaired_a_death_says_more_than_the_death(
    database: HistoryDatabase, outbox: Outbox, own_gib: int | None, need_gib: int, proofs: list[Proof]
) -> None:
    # Others that no driver listed had taken the memory: twenty jobs that need 9.2G asked for 21G. A run that used more
    # itself than the one that repaired it had really needed that.
    outbox.submit(1, train())
    for attempt, (ending, lease_gib, gib) in enumerate([(DIED, 10, own_gib), (WELL, 20, need_gib)], 1):
        state = JobState.QUEUED if attempt == 1 else None
        seen = replace(device(gib), lease_bytes=lease_gib * GIB)
        outbox.run(1, (seen,), ending, attempt=attempt, state=state, duration_s=9.0)
    outbox.record()

    assert proofs == [run.proof for run in found(database)]


@pytest.mark.parametrize(("asks_gib", "proofs"), [(6, []), (12, [Proof.DIED])])
def test_a_run_whose_memory_others_took_shows_nothing_before_the_next_one(
    database: HistoryDatabase, outbox: Outbox, asks_gib: int, proofs: list[Proof]
) -> None:
    # The next job of the script used to ask for twice as much.
    seen = replace(device(3), lease_bytes=6 * GIB)
    outbox.submit(1, train())
    again = {"again": "out_of_memory", "mem": str(asks_gib * GIB), "mem_retries": "1", "mem_allowed": "2"}
    outbox.run(1, (seen,), DIED, state=JobState.QUEUED, duration_s=9.0, **again)
    outbox.record()

    assert proofs == [run.proof for run in found(database)]


def test_a_run_has_its_proof_its_arguments_its_code_and_its_devices(database: HistoryDatabase, outbox: Outbox) -> None:
    # The newest comes first.
    git = Checkout(commit=COMMIT, dirty=False)
    ran(outbox, 1, train("--lr", "1", git=git), device(5))
    ran(outbox, 2, train("--name", 'it\'s; a \\ "name"', ""), device(6, "GPU-1"), device(7, "GPU-0"))
    outbox.record()

    second, first = found(database)
    same: dict[str, Any] = {"proof": Proof.PEAK, "kind": DeviceKind.GPU, "interpreter": "/venv/python"}
    same |= {"room_bytes": 24 * GIB, "lasted_s": 9.0}
    words = ("--name", 'it\'s; a \\ "name"', "")
    assert first == PastRun(**same, bytes=5 * GIB, words=("--lr", "1"), code=COMMIT, models=("A10",))
    assert second == PastRun(**same, bytes=7 * GIB, words=words, gpus=2, models=("A10", "A10"))


def test_a_run_shows_its_utilisation_if_it_was_alone(database: HistoryDatabase, outbox: Outbox) -> None:
    use = Activity(own_utilisation_mean=0.25)
    for job_id, shared in enumerate((True, False, None), 1):
        peak = Peak(bytes=GIB // 2, source=PeakSource.NVML_SAMPLED, samples=50, shared=shared)
        ran(outbox, job_id, train(), replace(device(1), peak=peak, activity=use))
    ran(outbox, 4, train(), device(1))
    outbox.record()

    assert [None, None, 0.25, None] == [run.utilisation for run in found(database)]


def test_only_runs_that_show_a_need_are_found(database: HistoryDatabase, outbox: Outbox) -> None:
    """Failures, pending jobs and runs without a peak teach nothing; a run that died for lack of memory does."""
    ran(outbox, 1, train(), device(None))
    ran(outbox, 2, train(), device(5), ending=Ending.from_status(1))
    ran(outbox, 3, train(), device(None), ending=DIED)
    ran(outbox, 4, train(), device(6), ending=Ending.stopped(EndingKind.TIMED_OUT, -15))
    outbox.submit(5, train())
    outbox.record()

    assert [(Proof.PEAK, 6 * GIB), (Proof.DIED, 8 * GIB)] == [(run.proof, run.bytes) for run in found(database)]


def test_a_probe_that_ended_early_shows_a_lower_bound(database: HistoryDatabase, outbox: Outbox) -> None:
    limited: dict[str, Any] = {"probe": "flat=60", "time_limit_s": 600.0}
    ran(outbox, 1, train(**limited), device(5))
    ran(outbox, 2, train(**limited), device(8), ending=Ending.stopped(EndingKind.TIMED_OUT, -15))
    outbox.record()

    assert [(Proof.AT_LEAST, 8 * GIB), (Proof.PEAK, 5 * GIB)] == [(run.proof, run.bytes) for run in found(database)]


def test_only_the_accounts_own_runs_of_the_same_file_are_found(database: HistoryDatabase, outbox: Outbox) -> None:
    ran(outbox, 1, train(account=BOB), device(5))
    ran(outbox, 2, make_spec(argv=("./train.py",), cwd="/home/ada"), device(6))
    ran(outbox, 3, train(), device(7))
    outbox.record()

    assert [7 * GIB] == [run.bytes for run in found(database)]
    assert [5 * GIB] == [run.bytes for run in found(database, "bob")]
    assert () == found(database, "eve")
    assert () == found(database, program="/home/ada/other.py")


def test_a_member_has_the_values_of_its_index_and_the_code_of_its_array(
    database: HistoryDatabase, outbox: Outbox
) -> None:
    array = train("--lr", "{lr}", array=Array.asked(None, ["lr=1,2"], None), git=Checkout(commit=COMMIT, dirty=False))
    outbox.submit(1, array)
    outbox.record()
    for member, index in ((2, 0), (3, 1)):
        finish(outbox, member, device(member), of="1", index=str(index), left="" if index else "1", held="")
    outbox.record()

    assert [(("--lr", "2"), COMMIT), (("--lr", "1"), COMMIT)] == [(run.words, run.code) for run in found(database)]


def test_a_run_has_the_environment_that_was_named(database: HistoryDatabase, outbox: Outbox) -> None:
    # A variable of this name is no Python environment.
    outbox.submit(1, train("{x}", array=Array.asked(None, ["x=1"], None), environment="torch-2.8"))
    ran(outbox, 3, train("2", environment="jax", env={"environment": "no"}), device(5))
    ran(outbox, 4, train("3", env={"environment": "no"}), device(5))
    outbox.record()
    finish(outbox, 2, device(5), of="1", index="0", left="", held="")
    outbox.record()

    assert {"1": "torch-2.8", "2": "jax", "3": None} == {run.words[0]: run.environment for run in found(database)}


def test_with_uv_more_words_come_before_the_script_than_its_interpreter(
    database: HistoryDatabase, outbox: Outbox
) -> None:
    argv = ("uv", "run", "--frozen", "python", "train.py", "--lr", "1")
    ran(outbox, 1, make_spec(argv=argv, script="train.py", interpreter="uv run", cwd="/home/ada"), device(5))
    outbox.record()

    assert [("--lr", "1")] == [run.words for run in found(database)]


def test_names_that_are_not_utf8_are_found(database: HistoryDatabase, outbox: Outbox) -> None:
    """A script whose name no database stores as it is can be found all the same."""
    spec = make_spec(argv=("/py", "caf\udce9.py"), script="caf\udce9.py", interpreter="/py", cwd="/home/ada")
    ran(outbox, 1, spec, device(5))
    outbox.record()

    assert 1 == len(found(database, program=program_of(spec.argv, spec.script, spec.cwd)))


# ---- with many jobs --------------------------------------------------------------------------------------------------

MANY = 100_000


@pytest.fixture
def crowded(history_url: str) -> Any:
    """Return a history with MANY jobs: half of them of one program, of which 30 000 wait, and its connection."""
    engine = open_engine(history_url)
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY}) "
    waits, at = "i % 2 = 0 AND i > 40000", "'2026-11-01 12:00:00'"
    job = (
        "INSERT INTO jobs (id, name, user_name, user_uid, submit_host, state, priority, command, script, interpreter,"
        " cwd, mem_bytes, gpus, pool, attempt, losses, submitted_at, ended_at, spec, ending, exit_code, program) "
        f"{numbers} SELECT i, 'job', 'ada', 1000, 'h', CASE WHEN {waits} THEN 'queued' ELSE 'succeeded' END, 1,"
        " '/venv/python train.py --seed ' || CAST(i AS TEXT), 'train.py', '/venv/python', '/home/ada', 1, 1, '', 1, 0,"
        f" {at}, CASE WHEN {waits} THEN NULL ELSE {at} END, '{{}}',"
        f" CASE WHEN {waits} THEN NULL ELSE 'exited' END, CASE WHEN {waits} THEN NULL ELSE 0 END,"
        f" CASE WHEN i % 2 = 0 THEN '{PROGRAM}' ELSE '/home/ada/' || CAST((i % 1000) AS TEXT) END FROM n"
    )
    run = (
        "INSERT INTO runs (job_id, attempt, token, host, worker, claimed_at, ended_at, ending, exit_code) "
        "SELECT id, 1, '1.a', 'h', 'w', submitted_at, ended_at, ending, exit_code FROM jobs WHERE ending IS NOT NULL"
    )
    of_device = (
        "INSERT INTO run_devices (job_id, attempt, device_uuid, device_index, lease_bytes, peak_bytes, peak_source,"
        f" samples, na_samples) SELECT job_id, 1, 'GPU-0', 0, {8 * GIB}, {5 * GIB}, 'nvml_sampled', 50, 0 FROM runs"
    )
    with writing(engine, patient=True) as connection:
        if connection.dialect.name == "postgresql":
            job = job.replace(at, f"timestamptz {at}")
        for statement in (job, run, of_device):
            connection.execute(sa.text(statement))
    yield engine
    engine.dispose()


@pytest.mark.full
def test_the_query_is_quick_among_many_jobs(crowded: Any, history_url: str) -> None:
    """Among 100 000 jobs, half of them of the program and most of these pending, an index answers in milliseconds."""
    database, times = HistoryDatabase(history_url), []
    for _ in range(5):
        begun = time.perf_counter()
        runs = found(database)
        times.append(time.perf_counter() - begun)
    database.close()
    assert MOST_JOBS == len(runs)
    assert ("--seed", "40000") == runs[0].words
    assert min(times) < 0.1  # 5 ms on a quiet machine; a walk over all jobs takes more than a second

    with reading(crowded) as connection:
        is_server = connection.dialect.name == "postgresql"
        if is_server:
            connection.exec_driver_sql("ANALYZE")
        query = sa.text(("EXPLAIN " if is_server else "EXPLAIN QUERY PLAN ") + past_runs.QUERY)
        plan = "\n".join(str(row) for row in connection.execute(query, {"user": "ada", "program": PROGRAM}))
    assert "ix_jobs_user_name_program_id" in plan, plan
    assert "SCAN jobs" not in plan, plan
    assert "Seq Scan" not in plan, plan


def test_the_query_names_endings_literally_so_that_it_needs_few_modules() -> None:
    assert {EndingKind.EXITED, EndingKind.TIMED_OUT, EndingKind.OUT_OF_MEMORY} == {
        "exited",
        "timed_out",
        "out_of_memory",
    }


def test_a_success_that_hides_a_failure_shows_nothing(database: HistoryDatabase, outbox: Outbox) -> None:
    """A run whose processes were ended shows a lower bound, and one that hides a failure nothing."""
    for job_id, kinds in enumerate([("hidden_failure",), ("ended_processes", "of_a_newer_version"), ("other",)], 1):
        outbox.submit(job_id, train())
        notes = tuple(RunNote(kind=kind, items=('a "kind":"hidden_failure"',), count=2) for kind in kinds)
        finish(outbox, job_id, device(5), notes=notes)
    outbox.record()

    assert [Proof.PEAK, Proof.AT_LEAST] == [run.proof for run in found(database)]
    assert ["ended_processes", "of_a_newer_version"] == [note.kind for note in known(database, 2).runs[0].notes]
