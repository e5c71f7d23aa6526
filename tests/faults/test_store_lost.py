"""Tests of a store that restarts without its data.

Nothing is lost, nothing runs twice, and no healthy run is ended.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from own_store import OwnStore
from site_of_one import Site

from gpuqueue.model.event import Act
from gpuqueue.model.job import Job, JobState
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.recovery import ID_GAP
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import GIB, MIB

DIE_AT = Path(__file__).parents[1] / "support" / "die_at.py"


class Patient:
    """A job that writes its pid, and exits with *code* once its gate file exists."""

    def __init__(self, site: Site, place: Path, code: int = 0) -> None:
        self.site = site
        self.output, self.gate = place / f"said-{code}", place / f"gate-{code}"
        script = f"echo $$ >> {self.output}; while [ ! -e {self.gate} ]; do sleep 0.05; done; exit {code}"
        self.job: Job = site.queue.requests.submit(
            make_spec(argv=("sh", "-c", script), mem_bytes=MIB, name=f"patient-{code}")
        )

    def pids(self) -> list[int]:
        """Return the pid of each copy of the job that ever began."""
        return [int(word) for word in self.output.read_text().split()] if self.output.exists() else []

    def process(self) -> ProcessIdentity:
        """Wait until the job runs, and return its process."""
        (pid,) = until(self.pids, what=f"job {self.job.id} runs\n{self.site.log()[-2000:]}")
        identity = ProcessIdentity.of(pid)
        assert identity is not None
        return identity

    def end(self) -> None:
        """Let the job end."""
        self.gate.touch()


def until_in_history(site: Site, job_id: int, state: JobState) -> None:
    """Wait until the history has the job in *state*."""

    def there() -> bool:
        record = site.client.database.get(job_id)
        return record is not None and record.job.state is state

    until(there, what=f"job {job_id} {state} in the history")


def lose_data(store: OwnStore) -> None:
    """Kill the store, delete its data and start it again."""
    store.kill()
    store.remove_data()
    store.start()


def until_open(site: Site) -> None:
    """Wait until the store is rebuilt."""
    until(site.queue.epoch, what=f"the store is open\n{site.log()[-2000:]}")


@pytest.mark.full
@pytest.mark.parametrize("across", ["socket", "network"])
def test_an_empty_store_ends_no_run(own_store: OwnStore, tmp_path: Path, across: str) -> None:
    """An empty store ends no run.

    A heartbeat used to get the answer that its token is unknown, and training runs of three days were ended as stale,
    all at once.
    """
    url = own_store.url if across == "socket" else own_store.listen()
    site = Site(tmp_path / across, url, GPUQUEUE_HOST_LOST_AFTER="2s")
    try:
        site.start_worker()
        process = Patient(site, tmp_path).process()

        own_store.empty()

        # Longer than the grace: without heartbeats the shim would end the job as well.
        until(lambda: site.log().count("the runs go on") > 12, what="the worker heartbeats on")
        assert process.alive()
    finally:
        site.stop()


@pytest.mark.full
@pytest.mark.parametrize("own_site", ["15s"], indirect=True, ids=[""])
@pytest.mark.parametrize(
    ("plain", "worker_dies"),
    [(True, False), (True, True), (False, True)],
    ids=["plain", "plain, killed too", "celery, killed too"],
)
def test_everything_goes_on_where_it_was(
    own_site: Site, own_store: OwnStore, tmp_path: Path, *, worker_dies: bool, plain: bool
) -> None:
    """Running jobs keep their tokens and pids, waiting ones run once and in order, held ones stay held, ids grow."""
    site = own_site
    site.start_recorder()
    worker = site.start_worker(plain=plain)
    patients = [Patient(site, tmp_path, code) for code in (3, 4)]
    processes = [patient.process() for patient in patients]
    effects = tmp_path / "effects"
    # Each job needs the whole device, so they run one by one, after the patients.
    waiting = [
        site.queue.requests.submit(make_spec(argv=("sh", "-c", f"echo {number} >> {effects}"), mem_bytes=8 * GIB)).id
        for number in range(3)
    ]
    held = site.queue.requests.submit(make_spec(argv=("sh", "-c", f"echo held >> {effects}"), mem_bytes=8 * GIB)).id
    site.queue.jobs.hold(held)
    until_in_history(site, held, JobState.HELD)
    tokens = [site.client.database.get(patient.job.id).runs[0].token for patient in patients]  # type: ignore[union-attr]

    if worker_dies:
        site.end(worker, signal.SIGKILL)
    lose_data(own_store)
    until_open(site)
    if worker_dies:
        site.start_worker(plain=plain)

    late = site.queue.requests.submit(make_spec(argv=("sh", "-c", f"echo late >> {effects}"), mem_bytes=8 * GIB)).id
    assert late > held + ID_GAP
    assert [*waiting, held] == [job.id for job in site.client.jobs.list() if job.id in {*waiting, held}]
    for patient in patients:
        patient.end()
    for patient, process, token, code in zip(patients, processes, tokens, (3, 4), strict=True):
        record = site.until_recorded(patient.job.id)
        assert f"exit {code}" == str(record.runs[-1].ending)
        assert ([token], 0) == ([run.token for run in record.runs], record.job.losses)
        assert [process.pid] == patient.pids()
        assert Act.RESTORE in [event.act for event in site.client.jobs.events(patient.job.id)]
    assert ["exit 0"] * 4 == [str(site.until_recorded(each).runs[-1].ending) for each in (*waiting, late)]
    assert ["0", "1", "2", "late"] == effects.read_text().split()
    assert JobState.HELD is site.client.jobs.get(held).state
    site.client.jobs.release(held)
    assert JobState.SUCCEEDED is site.until_recorded(held).job.state


#: What the history missed when the store was lost -> how many steps of the job it had.
MISSED = {"the job": 0, "the claim": 1, "the start": 2, "the end": 3}


def record_steps(site: Site, job_id: int, steps: int) -> None:
    """Record what a recorder would have recorded that died right after the first *steps* steps of a job."""
    reported = site.queue.outbox.events("0-0", most=1000)
    places = [place for place, event in enumerate(reported) if event.job_id == job_id]
    assert site.client.database.apply(
        reported[: places[steps]], expected=site.client.database.cursor(), epoch=site.queue.epoch() or ""
    )


@pytest.mark.full
@pytest.mark.parametrize("worker_dies", [False, True], ids=["worker lives", "worker dies too"])
@pytest.mark.parametrize("missed", ["the job", "the claim", "the start"])
def test_a_run_that_is_not_in_the_history_is_not_run_twice(
    own_site: Site, own_store: OwnStore, tmp_path: Path, missed: str, *, worker_dies: bool
) -> None:
    """A run that the history did not have is not run twice: its worker reports it.

    The run's events were still in the outbox, and were lost with the store.
    """
    site = own_site
    site.make_tables()
    other = site.queue.requests.submit(make_spec(mem_bytes=MIB)).id
    worker = site.start_worker()
    site.until_state(other, JobState.SUCCEEDED)
    patient = Patient(site, tmp_path, 5)
    process = patient.process()
    record_steps(site, patient.job.id, MISSED[missed])
    if worker_dies:
        site.end(worker, signal.SIGKILL)

    lose_data(own_store)
    site.start_recorder()
    until_open(site)
    if worker_dies:
        site.start_worker()
    until_in_history(site, patient.job.id, JobState.RUNNING)
    patient.end()

    record = site.until_recorded(patient.job.id)
    wanted = replace(patient.job.spec, env={})  # the history has the environment in a table of its own
    assert ("exit 5", 0, wanted) == (str(record.runs[-1].ending), record.job.losses, replace(record.job.spec, env={}))
    assert 1 == len(record.runs)
    assert [process.pid] == patient.pids()
    assert Path(record.runs[0].log_path or "").is_file()
    assert Act.ADOPT in [event.act for event in site.client.jobs.events(patient.job.id)]
    assert site.queue.requests.submit(make_spec()).id > patient.job.id + ID_GAP - 10


@pytest.mark.full
@pytest.mark.parametrize("worker_dies", [False, True], ids=["worker lives", "worker dies too"])
@pytest.mark.parametrize("missed", ["the job", "the claim", "the end"])
def test_an_end_that_is_not_in_the_history_is_reported_again(
    own_site: Site, own_store: OwnStore, tmp_path: Path, missed: str, *, worker_dies: bool
) -> None:
    """An end that the history did not have is reported again.

    The store had acknowledged the end, so the run directory was emptied, and the job would have run again.
    """
    site = own_site
    site.make_tables()
    other = site.queue.requests.submit(make_spec(mem_bytes=MIB)).id
    worker = site.start_worker()
    site.until_state(other, JobState.SUCCEEDED)
    patient = Patient(site, tmp_path, 6)
    patient.end()
    site.until_state(patient.job.id, JobState.FAILED)
    record_steps(site, patient.job.id, MISSED[missed])
    if worker_dies:
        site.end(worker, signal.SIGKILL)

    lose_data(own_store)
    site.start_recorder()
    until_open(site)
    if worker_dies:
        site.start_worker()

    record = site.until_recorded(patient.job.id)
    assert ("exit 6", 0) == (str(record.runs[-1].ending), record.job.losses)
    assert 1 == len(record.runs) == len(patient.pids())
    assert "exit 0" == str(site.until_recorded(other).runs[-1].ending)
    until(lambda: not list(site.settings.runs_dir.glob("[0-9]*/*/claim")), what="every run directory is emptied")


@pytest.mark.full
@pytest.mark.parametrize("own_site", ["10s"], indirect=True, ids=[""])
def test_a_worker_that_finds_the_store_not_open_keeps_its_runs_alive_meanwhile(
    own_site: Site, own_store: OwnStore, tmp_path: Path
) -> None:
    """A worker that starts while the store is not open keeps its runs alive.

    It used to exit at once, and its restart took longer than the shims' grace.
    """
    site = own_site
    site.make_tables()
    worker = site.start_worker()
    patient = Patient(site, tmp_path, 8)
    process = patient.process()
    record_steps(site, patient.job.id, MISSED["the start"])
    site.end(worker, signal.SIGKILL)
    own_store.empty()

    site.spawn("run", "--device", "0", "--plain")
    until(lambda: site.log().count("the runs go on") > 15, what="longer than the grace")
    site.spawn("record")
    until_in_history(site, patient.job.id, JobState.RUNNING)
    until(site.queue.devices.all, what="the worker is up")
    patient.end()

    assert "exit 8" == str(site.until_recorded(patient.job.id).runs[-1].ending)
    assert [process.pid] == patient.pids()


@pytest.mark.full
def test_an_end_may_be_the_first_report_of_a_run_to_a_rebuilt_store(own_store: OwnStore, tmp_path: Path) -> None:
    """A rebuilt store accepts the end of a run that it does not know.

    The run ended while the store was away, before the next heartbeat. Its end must not be taken for a stale one.
    """
    site = Site(tmp_path / "state", own_store.url, GPUQUEUE_HOST_LOST_AFTER="90s", GPUQUEUE_HEARTBEAT="10s")
    try:
        site.make_tables()
        site.start_worker()
        patient = Patient(site, tmp_path, 7)
        patient.process()
        record_steps(site, patient.job.id, MISSED["the claim"])
        own_store.kill()
        patient.end()
        until(lambda: list(site.settings.runs_dir.glob("[0-9]*/*/exit")), what="the shim's last word")
        own_store.remove_data()
        own_store.start()
        site.start_recorder()

        record = site.until_recorded(patient.job.id)
        assert ("exit 7", 0, 1) == (str(record.runs[-1].ending), record.job.losses, len(patient.pids()))
    finally:
        site.stop()


@pytest.mark.full
def test_a_device_that_somebody_drained_stays_drained(own_site: Site, own_store: OwnStore) -> None:
    """A drained device stays drained after the store lost its data.

    Otherwise a broken card would take jobs again. Its worker remembers who drained it, and why.
    """
    site = own_site
    recorder = site.start_recorder()
    site.start_worker()
    uuid = site.queue.devices.all()[0].device.uuid
    site.cli("drain", "0", "--reason", "it is broken")
    site.queue.devices.drain([uuid], origin=DrainOrigin.DOWN, why="going down", by="gpuqueue")
    until(lambda: "it is broken" in site.log() and "going down" in site.log(), what="the worker has heard of it")
    site.end(recorder)

    own_store.empty()
    site.spawn("record")
    until_open(site)

    drains = until(lambda: site.queue.devices.all() and site.queue.devices.all()[0].drains, what="it is drained again")
    assert [(DrainOrigin.PERSON, "it is broken")] == [(each.origin, each.why) for each in drains]


@pytest.mark.full
@pytest.mark.parametrize("own_site", ["6s"], indirect=True, ids=[""])
def test_an_unreported_run_is_over_before_its_job_starts_again(
    own_site: Site, own_store: OwnStore, tmp_path: Path
) -> None:
    """A run that neither history nor worker knows is over before its job starts again.

    Its shim ends it within the lease, and claims begin only after that.
    """
    site = own_site
    site.make_tables()
    worker = site.start_worker()
    output = tmp_path / "output"
    # Each copy writes whether an earlier one is still alive.
    script = (
        f'for pid in $(cut -d" " -f1 {output} 2>/dev/null); do kill -0 $pid && alive=$pid; done; '
        f'echo $$ ${{alive:-alone}} >> {output}; [ "$(wc -l < {output})" -gt 1 ] || sleep 1000'
    )
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB))
    until(lambda: output.exists() and output.read_text().count("alone") == 1, what="it runs")
    record_steps(site, job.id, MISSED["the claim"])
    site.end(worker, signal.SIGKILL)

    elsewhere = Site(
        tmp_path / "elsewhere",
        own_store.url,
        GPUQUEUE_HOST_LOST_AFTER="6s",
        GPUQUEUE_DATABASE_URL=site.settings.database_url,
    )
    try:
        lose_data(own_store)
        elsewhere.spawn("record")
        until_open(elsewhere)
        elsewhere.start_worker()

        assert JobState.SUCCEEDED is elsewhere.until_recorded(job.id).job.state
        assert ["alone", "alone"] == [line.split()[1] for line in output.read_text().splitlines()]
    finally:
        elsewhere.stop()


@pytest.mark.full
@pytest.mark.parametrize("step", ["restore", "restore@2", "open"])
def test_a_recorder_killed_in_the_rebuild_is_followed_by_one_that_ends_it(
    own_site: Site, own_store: OwnStore, step: str
) -> None:
    """A recorder killed during the rebuild is followed by one that completes it.

    It is killed at the first page, in the middle, and right before the store is open. Each job is restored once, in
    order.
    """
    site = own_site
    recorder = site.start_recorder()
    ids = [site.queue.requests.submit(make_spec(name=f"n{number}")).id for number in range(600)]  # more than one page
    until_in_history(site, ids[-1], JobState.QUEUED)
    site.end(recorder)
    lose_data(own_store)
    place, _, turn = step.partition("@")
    command = [sys.executable, str(DIE_AT), f"kill@{turn or 1}", f"gpuqueue.queue.recovery:Recovery.{place}", "record"]
    killed = subprocess.run(command, env=site.environ, capture_output=True, text=True, timeout=60, check=False)
    assert -signal.SIGKILL == killed.returncode, killed.stderr
    assert site.queue.epoch() is None

    for _ in range(2):
        site.spawn("record")
    until_open(site)

    assert [(each, f"n{number}") for number, each in enumerate(ids)] == [
        (job.id, job.spec.name) for job in site.client.jobs.list()
    ]
    until(lambda: len(site.client.jobs.events(ids[-1])) == 2, what="the story has the rebuild")
    assert all(
        [Act.SUBMIT, Act.RESTORE] == [event.act for event in site.client.jobs.events(each)] for each in ids[::50]
    )
