"""Memory that is learned from earlier runs: one suite for the store and the service, on SQLite and on PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from factories import BOB, make_device, make_offer, make_spec, serve
from outbox import Outbox
from service_fixtures import ServedSite, serving

from gpuqueue.client import Client, past_runs
from gpuqueue.errors import BadRequest
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.device import Activity, DeviceKind, Peak, PeakSource
from gpuqueue.model.job import Job
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.settings.parsers import LearnMemory
from gpuqueue.system.account import current_account
from gpuqueue.text.units import GIB, format_bytes

IDS = count(10**6)
KINDS = ("direct", "unix")
#: How long a submit waits for the history here, in seconds: on a busy machine it takes longer than users would wait.
PATIENT_S = 60.0


@dataclass
class Learner:
    """A site, a client of it, a script of its own, and the lines that the client wrote."""

    site: ServedSite
    client: Client
    outbox: Outbox
    script: Path
    lines: list[str] = field(default_factory=list)

    def ran(
        self,
        *args: str,
        peak: float,
        lease: float = 20,
        died: bool = False,
        account: Account | None = None,
        use: float | None = None,
        shared: bool | None = None,
        lasted_s: float = 9.0,
    ) -> None:
        """Add a run of the script with this peak and allocation, in GiB, and with its own utilisation."""
        job_id, spec = next(IDS), make_spec(
            argv=(sys.executable, self.script.name, *args),
            script=self.script.name,
            interpreter=sys.executable,
            cwd=str(self.script.parent),
            account=account or current_account("laptop"),
        )  # fmt: skip
        seen = Peak(bytes=int(peak * GIB), source=PeakSource.NVML_SAMPLED, samples=50, shared=shared)
        device = RunDevice(
            uuid="GPU-0",
            lease_bytes=GIB,
            name="A10",
            kind=DeviceKind.GPU,
            total_bytes=24 * GIB,
            peak=seen,
            activity=Activity(own_utilisation_mean=use),
        )
        ending = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1) if died else Ending.from_status(0)
        self.outbox.submit(job_id, spec)
        self.outbox.run(job_id, (device,), ending, duration_s=lasted_s, claimed={"lease": str(int(lease * GIB))})
        self.outbox.record()

    def submit(self, *args: str, **changes: Any) -> Job:
        """Submit the script, and keep the lines about it."""
        serve(self.site.queue)  # a heartbeat of the device
        self.lines.clear()
        request = JobRequest(
            self.script.name, args, cwd=self.script.parent, python=sys.executable, git=False, **changes
        )
        return self.client.jobs.submit_request(request, note=self.lines.append)

    def asked(self, *args: str, **changes: Any) -> tuple[str, str | None, str]:
        """Submit the script; return its memory, where that came from, and the lines."""
        spec = self.submit(*args, **changes).spec
        return format_bytes(spec.mem_bytes), spec.mem_source, "; ".join(self.lines)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def learning(request: pytest.FixtureRequest) -> Iterator[tuple[ServedSite, Outbox]]:
    """Return a site with its service, and an outbox for its history."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(past_runs, "ANSWER_S", PATIENT_S)
        chosen = {"GPUQUEUE_DEFAULT_MEM": "3G"}
        if request.param == "postgresql":
            server, template = (request.getfixturevalue(name) for name in ("postgres_server", "_migrated_postgres"))
            chosen["GPUQUEUE_DATABASE_URL"] = stack.enter_context(server.database(template))
        site = stack.enter_context(serving({"gpuqueue.client.past_runs:ANSWER_S": PATIENT_S}, **chosen))
        if request.param == "postgresql":
            site.settings = replace(site.settings, database_url=chosen["GPUQUEUE_DATABASE_URL"])
        database = stack.enter_context(closing(HistoryDatabase(site.settings.database_url)))
        yield site, Outbox(database)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test over each connection."""
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", KINDS)


@pytest.fixture
def learner(learning: tuple[ServedSite, Outbox], kind: str, tmp_path: Path) -> Iterator[Learner]:
    """Return a site, its client, and a script that nobody has run."""
    site, outbox = learning
    script = tmp_path / "train.py"
    script.touch()
    with client_of(site, kind) as client:
        yield Learner(site, client, outbox, script)


def client_of(site: ServedSite, kind: str, **changes: Any) -> Client:
    """Return a client. The one of the store has the settings of the service."""
    if kind == "direct":
        client = Client(replace(site.settings, default_mem_bytes=3 * GIB, **changes))
        _ = client.history.search(limit=1)  # a program that has asked the history once: it is open
        return client
    return site.client(kind)


def test_mem_auto_asks_for_what_earlier_runs_needed_and_the_job_says_so(learner: Learner) -> None:
    learner.ran("--seed", "1", peak=5.1)
    learner.ran("--seed", "2", peak=5.3)
    learner.ran("--seed", "3", peak=5.2)
    line = "asking 6.1G: the last 3 runs with such arguments peaked at 5.1G to 5.3G"
    assert ("6.1G", "learned 3 moving", line) == learner.asked("--seed", "4", mem="auto")


def test_one_run_gives_three_tenths_more(learner: Learner) -> None:
    learner.ran(peak=5)
    assert ("6.5G", "learned 1 arguments", "asking 6.5G: the last run peaked at 5G") == learner.asked(mem="auto")


def test_a_batch_size_asks_for_its_place_on_the_line_of_earlier_ones(learner: Learner) -> None:
    for batch in (16, 32, 64):
        learner.ran("--batch-size", str(batch), peak=1.2 + batch * 40 / 1024)
    line = "asking 7.1G: 3 runs with batch-size 16 to 64 peaked at 1.2G + 40M x batch-size, 6.2G for 128"
    assert ("7.1G", "learned 3 line", line) == learner.asked("--batch-size", "128", mem="auto")


def test_a_job_that_runs_again_may_ask_for_less_at_first(learner: Learner) -> None:
    for peak in (5, 5, 5, 10, 5, 5, 5, 5, 10, 5, 5, 5):
        learner.ran(peak=peak)
    reason = "the last 12 runs peaked at 5G to 10G"
    less = f"asking 5.8G: {reason}; two thirds of them fit, and a job that does not runs again with twice as much"
    assert ("5.8G", "learned 12 arguments", less) == learner.asked(mem="auto")
    for changes in ({"mem_retries": 0}, {"requeue": False}):
        assert ("11.3G", "learned 12 arguments", f"asking 11.3G: {reason}") == learner.asked(mem="auto", **changes)
    assert f"asking 6G, but {reason}: the job may die, 11.3G would do" == learner.asked(mem="6G")[2]


def test_an_explicit_request_stays_and_a_line_says_what_would_do(learner: Learner) -> None:
    for _ in range(3):
        learner.ran(peak=5.1)
    line = "the last 3 runs peaked at 5.1G: 5.9G would do; asking 12G"
    assert ("12G", "asked", line) == learner.asked(mem="12G")
    line = "asking 4G, but the last 3 runs peaked at 5.1G: the job may die, 5.9G would do"
    assert ("4G", "asked", line) == learner.asked(mem="4G")
    assert ("6G", "asked", "") == learner.asked(mem="6G")


def test_what_was_not_enough_is_named_and_doubled_by_mem_auto(learner: Learner) -> None:
    learner.ran(peak=3.9, lease=4, died=True)
    assert ("4G", "asked", "asking 4G, but a run ran out of memory with 4G: try 8G") == learner.asked(mem="4G")
    assert ("8G", "learned 1 arguments", "asking 8G: a run ran out of memory with 4G") == learner.asked(mem="auto")


def test_a_size_is_advised_that_a_larger_device_gives(learner: Learner) -> None:
    # The devices of the site decide what is advised, not those of the run.
    learner.ran(peak=23.9, lease=24, died=True)
    line = "asking 24G, but a run ran out of memory with 24G, and no device that the job may use gives enough"
    assert ("24G", "asked", line) == learner.asked(mem="24G")
    serve(learner.site.queue, make_offer("GPU-large", device=make_device("GPU-large", total_bytes=80 * GIB)))
    try:
        assert "asking 24G, but a run ran out of memory with 24G: try 48G" == learner.asked(mem="24G")[2]
    finally:
        learner.site.queue.devices.withdraw("nodeA", "GPU-large")


def test_without_runs_auto_asks_for_the_default(learner: Learner) -> None:
    """A script that never ran gets the default of the site, and a line says why."""
    line = "asking 3G, the default: no earlier run of train.py shows its memory"
    assert ("3G", "default", line) == learner.asked(mem="auto")


def test_the_runs_of_another_account_are_private(learner: Learner) -> None:
    for _ in range(3):
        learner.ran(peak=5, account=BOB)
    assert ("3G", "default") == learner.asked(mem="auto")[:2]
    assert ("12G", "asked", "") == learner.asked(mem="12G")


def test_with_the_setting_suggest_nothing_changes_but_for_a_line(learner: Learner) -> None:
    for _ in range(3):
        learner.ran(peak=1)
    assert ("3G", "default", "the last 3 runs peaked at 1G: 1.4G would do; asking 3G") == learner.asked()


def test_all_members_of_a_sweep_ask_for_one_number(learner: Learner) -> None:
    for batch, peak in ((8, 2), (16, 4), (32, 8), (8, 2)):
        learner.ran("--batch", str(batch), "--data", "x", peak=peak)
    learner.ran("--batch", "64", "--data", "all", peak=16)
    found = learner.asked("--batch", "{b}", "--data", "x", mem="auto", sweep={"b": [8, 16]})
    assert ("9.1G", "learned 4 arguments") == found[:2]


def test_a_job_that_gets_the_whole_device_asks_for_no_number(learner: Learner) -> None:
    for _ in range(3):
        learner.ran(peak=5)
    assert (None, "") == learner.asked(exclusive=True)[1:]


def test_a_retry_keeps_the_number_and_may_learn_again(learner: Learner) -> None:
    """A retry asks for what the first submission asked for, unless ``--mem`` says otherwise."""
    learner.ran(peak=5)
    job = learner.submit(mem="auto")
    for change, wanted in (
        ({}, ("6.5G", "learned 1 arguments")),
        ({"mem": "2G"}, ("2G", "asked")),
        ({"mem": "auto"}, ("6.5G", "learned 1 arguments")),
    ):
        learner.client.jobs.cancel(job.id)
        job = learner.client.jobs.retry(job.id, **change)
        assert wanted == (format_bytes(job.spec.mem_bytes), job.spec.mem_source)


def test_edit_mem_auto_asks_for_what_was_learned_and_edit_mem_2g_for_this(learner: Learner) -> None:
    learner.ran(peak=5)
    job = learner.submit(mem="1G", hold=True)
    job = learner.client.jobs.edit(job.id, mem="auto")
    assert ("6.5G", "learned 1 arguments") == (format_bytes(job.spec.mem_bytes), job.spec.mem_source)
    job = learner.client.jobs.edit(job.id, mem="2G", priority="low")
    assert ("2G", "asked") == (format_bytes(job.spec.mem_bytes), job.spec.mem_source)
    job = learner.client.jobs.edit(job.id, priority="normal")
    assert "asked" == job.spec.mem_source


def test_a_job_that_is_placed_by_use_carries_what_runs_alone_showed(learner: Learner) -> None:
    """Of six runs three were alone: the median of their utilisations is expected. Other jobs carry none."""
    for use in (0.4, 0.7, 0.6):
        learner.ran(peak=1, use=use, shared=False)
        learner.ran(peak=1, use=0.1, shared=True)
    by_use = {"mem": "2G", "preference": "least-busy"}

    job = learner.submit(**by_use)
    assert 0.6 == job.spec.expected_utilisation
    assert learner.submit(mem="2G").spec.expected_utilisation is None
    assert learner.submit(**by_use, exclusive=True).spec.expected_utilisation is None
    assert 0.6 == learner.submit("--seed", "{s}", **by_use, sweep={"s": [1, 2]}).spec.expected_utilisation
    learner.client.jobs.cancel(job.id)
    assert 0.6 == learner.client.jobs.retry(job.id).spec.expected_utilisation


def test_a_job_carries_the_duration_of_nine_of_ten_runs(learner: Learner) -> None:
    """Runs that died do not count, and the members of an array share one duration."""
    learner.ran(peak=1, died=True, lasted_s=7000)
    for number in range(10):
        learner.ran(peak=1, lasted_s=60.0 * (number + 1))

    job = learner.submit(mem="2G")
    assert (540.0, "d600") == (job.spec.expected_duration_s, job.spec.shape.placement)
    limited = learner.submit(mem="2G", time_limit="1h").spec
    assert (540.0, "d600") == (limited.expected_duration_s, limited.shape.placement)
    assert 540.0 == learner.submit("--seed", "{s}", mem="2G", sweep={"s": [1, 2]}).spec.expected_duration_s
    learner.client.jobs.cancel(job.id)
    assert 540.0 == learner.client.jobs.retry(job.id).spec.expected_duration_s


# ---- the setting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "same", "others", "wanted"),
    [
        (LearnMemory.SUGGEST, 3, 0, ("3G", "default")),
        (LearnMemory.DEFAULT, 3, 0, ("5.8G", "learned 3 arguments")),
        (LearnMemory.DEFAULT, 2, 0, ("3G", "default")),
        (LearnMemory.DEFAULT, 0, 3, ("3G", "default")),
        (LearnMemory.AUTO, 1, 0, ("6.5G", "learned 1 arguments")),
        (LearnMemory.AUTO, 0, 3, ("6.6G", "learned 3 script")),
        (LearnMemory.AUTO, 0, 0, ("3G", "default")),
    ],
)
def test_default_needs_three_runs_with_the_same_arguments_and_auto_takes_any_run(
    learning: tuple[ServedSite, Outbox],
    tmp_path: Path,
    rule: LearnMemory,
    same: int,
    others: int,
    wanted: tuple[str, str],
) -> None:
    site, outbox = learning
    (tmp_path / "train.py").touch()
    with client_of(site, "direct", learn_memory=rule) as client:
        learner = Learner(site, client, outbox, tmp_path / "train.py")
        for _ in range(same):
            learner.ran(peak=5)
        for batch in range(others):
            learner.ran("--batch", str(batch), peak=3.7 + batch)
        assert wanted == learner.asked()[:2]
        assert ("2G", "asked") == learner.asked(mem="2G")[:2]


@pytest.mark.full
def test_the_service_has_the_setting_of_its_site(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    with (
        serving(GPUQUEUE_LEARN_MEMORY="auto") as site,
        site.client("unix") as client,
        closing(HistoryDatabase(site.settings.database_url)) as database,
    ):
        learner = Learner(site, client, Outbox(database), script)
        learner.ran(peak=5)
        assert ("6.5G", "learned 1 arguments", "asking 6.5G: the last run peaked at 5G") == learner.asked()

        learner.script = script.rename(tmp_path / "other.py")
        message = "no earlier run of other.py shows its memory, and there is no default: give --mem 6G"
        with pytest.raises(BadRequest, match=message):
            learner.submit()
