"""Pilots by rule: a real store and a real history, and an engine in memory."""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from factories import claim, make_offer, must_claim, serve
from prometheus_client import CollectorRegistry
from template_history import make_tables

from gpuqueue.client import Client
from gpuqueue.engines.engine import ABSENT_S, AllocationRequest, EngineUnreachable, NotAccepted, Phase, Ref, Status
from gpuqueue.model.access_token import TokenRequest
from gpuqueue.model.lending import TOKEN_NAME
from gpuqueue.queue import keys
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.service.bursting import AFTER_FAILURE_S, TURN_S, Burster
from gpuqueue.service.metrics.exposition import PilotFigures
from gpuqueue.settings.settings import Settings

BURST = (
    '{"slurm": {"service_url": "https://localhost:1", "when_waiting": "30m", "max": 2, "gpus": 2, "users": "", '
    '"mem": "80G"}}'
)


class Clock:
    """A clock that is ahead by what the test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> datetime:
        """Return the time."""
        return datetime.now(timezone.utc) + timedelta(seconds=self.ahead_s)

    def monotonic_s(self) -> float:
        """Return the time of the steady clock."""
        return self.ahead_s


class EngineInMemory:
    """An engine whose allocations stand as the test says."""

    name = "slurm"

    def __init__(self) -> None:
        self.requests: dict[str, AllocationRequest] = {}
        self.phases: dict[str, Phase] = {}
        self.questions = 0
        self.is_away = self.refuses = False

    def submit(self, request: AllocationRequest, key: str) -> Ref:
        """Accept the request."""
        if self.refuses:
            raise NotAccepted("Slurm has refused: no such partition")
        self.requests[key] = request
        self.phases[key] = Phase.WAITING
        return Ref(key, str(len(self.requests)))

    def states(self, refs: Collection[Ref]) -> Mapping[Ref, Status]:
        """Return how they stand."""
        return {ref: Status(phase=self.phases[ref.key], word="") for ref in refs}

    def cancel(self, ref: Ref, *, now: bool = False) -> None:  # noqa: ARG002 - as of an engine
        """Forget it."""
        del self.phases[ref.key]

    def find(self, keys: Collection[str]) -> Mapping[Ref, Status]:
        """Find them."""
        self.questions += 1
        if self.is_away:
            raise EngineUnreachable("slurmctld does not answer")
        return self.states([Ref(key, "1") for key in keys if key in self.phases])


@pytest.fixture
def engine() -> EngineInMemory:
    """Return the engine."""
    return EngineInMemory()


@pytest.fixture
def clock() -> Clock:
    """Return the clock of the rule."""
    return Clock()


@pytest.fixture
def settings(queue: JobQueue, store_url: str, tmp_path: Path) -> Settings:
    """Return the settings of a site with a rule, with one small device."""
    database = f"sqlite:///{tmp_path / 'history.db'}"
    make_tables(database)
    serve(queue, make_offer())
    return Settings.load(
        {
            "GPUQUEUE_STATE_DIR": str(tmp_path / "state"),
            "GPUQUEUE_REDIS_URL": store_url,
            "GPUQUEUE_DATABASE_URL": database,
            "GPUQUEUE_BURST": BURST,
            "GPUQUEUE_CONFIG": os.devnull,
            "GPUQUEUE_URL": "unix:///no/such/service",  # what people of this account use is not for the rule
        }
    )


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    """Return a client of the site, whose account is no admin."""
    with Client(replace(settings, url="")) as opened:
        yield opened


@pytest.fixture
def registry() -> CollectorRegistry:
    """Return where the metrics of that service are."""
    return CollectorRegistry()


@pytest.fixture
def burster(settings: Settings, engine: EngineInMemory, clock: Clock, registry: CollectorRegistry) -> Iterator[Burster]:
    """Return the rule of one service."""
    figures = PilotFigures(registry)
    with closing(Burster(settings, clock, figures=figures, engines=lambda _: {"slurm": engine})) as made:
        yield made


def wait_behind_another(client: Client, queue: JobQueue) -> int:
    """Submit a job for the whole device, and one that waits behind it."""
    total = make_offer().device.total_bytes
    client.jobs.submit(["true"], mem=total)
    must_claim(queue)
    return client.jobs.submit(["true"], mem=total).id


def run_on(queue: JobQueue, host: str, expected: int | None = None) -> None:
    """Have the pilot *host* serve a device and take the next job, *expected* if it is named."""
    offer = make_offer(f"GPU-{host}", host=host)
    serve(queue, offer)
    claimed = claim(queue, f"GPU-{host}", host=host)
    assert claimed is not None
    assert expected in {None, claimed.job_id}


def test_the_rule_asks_for_one_pilot_after_the_other(
    client: Client,
    queue: JobQueue,
    burster: Burster,
    engine: EngineInMemory,
    clock: Clock,
    registry: CollectorRegistry,
) -> None:
    """Nothing is asked for before the time, then one pilot, a second one when that runs, and no third one.

    The record of a pilot says which job it was for, and its token is in the script.
    """
    waits = wait_behind_another(client, queue)
    burster.turn()
    assert {} == engine.requests

    clock.ahead_s = 1801
    burster.turn()
    burster.turn()
    ((key, request),) = engine.requests.items()
    (token,) = client.database.tokens(None)
    assert (f"slurm-{key}", f"pilot: 1 GPU, 8h: job {waits} waits") == (token.account, token.name)
    assert f"gq_{token.id}_" in request.script
    assert (1, 8 * 3600) == (request.gpus, request.duration_s)

    engine.phases[key] = Phase.RUNNING
    burster.turn()
    assert 1 == len(engine.requests), "it has not joined yet"
    run_on(queue, f"slurm-{key}", waits)
    client.jobs.submit(["true"], mem=make_offer().device.total_bytes)
    clock.ahead_s += 1801
    burster.turn()
    assert 2 == len(engine.requests)
    (second,) = engine.requests.keys() - {key}
    engine.phases = dict.fromkeys(engine.phases, Phase.RUNNING)
    run_on(queue, f"slurm-{second}")
    client.jobs.submit(["true"], mem=make_offer().device.total_bytes)
    clock.ahead_s += 1801
    burster.turn()
    assert 2 == len(engine.requests), "max"
    assert 2 == registry.get_sample_value("gpuqueue_pilots", {"engine": "slurm", "phase": "running"})
    assert 2 == registry.get_sample_value("gpuqueue_pilots_started_total", {"engine": "slurm"})


def test_a_turn_asks_the_engine_once_for_all_pilots(
    settings: Settings, burster: Burster, engine: EngineInMemory
) -> None:
    """A cluster with many pilots is not asked for each of them."""
    with closing(Client(replace(settings, url="", admins=getpass.getuser()))) as admin:
        for number in range(20):
            name = f"{TOKEN_NAME}1 GPU, 8h"
            admin.access.make_token(TokenRequest(host=f"slurm-key{number:02d}", name=name, lifetime_s=9000.0))
            engine.phases[f"key{number:02d}"] = Phase.RUNNING
    burster.turn()

    assert 1 == engine.questions


def test_two_services_ask_once(
    settings: Settings, client: Client, queue: JobQueue, burster: Burster, engine: EngineInMemory, clock: Clock
) -> None:
    """The service that had the turn last keeps it."""
    wait_behind_another(client, queue)
    clock.ahead_s = 1801
    with closing(Burster(settings, clock, engines=lambda _: {"slurm": engine})) as other:
        burster.turn()
        (key,) = engine.phases
        engine.phases[key] = Phase.ENDED
        other.turn()
        assert 1 == len(engine.requests)
        queue.store.client.delete(f"{keys.BURSTING}:slurm")
        other.turn()
        assert 2 == len(engine.requests)


def test_a_pilot_that_its_engine_does_not_know_is_given_up(
    client: Client, queue: JobQueue, burster: Burster, engine: EngineInMemory, clock: Clock
) -> None:
    """Without an answer nothing is given up; after minutes of answers without it, its token is revoked."""
    wait_behind_another(client, queue)
    clock.ahead_s = 1801
    burster.turn()
    engine.is_away = True
    for _ in range(3):
        clock.ahead_s += ABSENT_S
        burster.turn()
    assert [None] == [token.revoked_at for token in client.database.tokens(None)]

    engine.is_away, engine.phases = False, {}
    burster.turn()
    clock.ahead_s += ABSENT_S - TURN_S
    burster.turn()
    assert [None] == [token.revoked_at for token in client.database.tokens(None)]
    clock.ahead_s += TURN_S
    burster.turn()
    revoked = [token.revoked_at is not None for token in client.database.tokens(None)]
    assert [False, True] == sorted(revoked), "and the job that still waits has another one"


def test_a_decision_is_logged_when_it_changes(burster: Burster, caplog: pytest.LogCaptureFixture) -> None:
    """What the rule decides is in the log of the service, when it changes."""
    caplog.set_level(logging.INFO, "gpuqueue.service.bursting")
    burster.turn()
    burster.turn()
    assert ["slurm: no job that waits would start on a pilot"] == [entry.getMessage() for entry in caplog.records]


def test_an_engine_that_refuses_is_asked_again_after_minutes(
    client: Client, queue: JobQueue, burster: Burster, engine: EngineInMemory, clock: Clock
) -> None:
    """Each request makes a token, which is revoked at once. One each turn filled the audit log."""
    wait_behind_another(client, queue)
    clock.ahead_s, engine.refuses = 1801, True
    for _ in range(3):
        burster.turn()
    assert [True] == [token.revoked_at is not None for token in client.database.tokens(None)]

    clock.ahead_s += AFTER_FAILURE_S
    engine.refuses = False
    burster.turn()
    assert 1 == len(engine.requests)


def test_a_missing_pilot_is_given_up_at_a_site_with_two_engines(
    settings: Settings, client: Client, queue: JobQueue, clock: Clock
) -> None:
    """Each engine has its own list of missing pilots. With one list, the turn of either began the time of the other."""
    wait_behind_another(client, queue)
    clock.ahead_s = 1801
    both = {"slurm": EngineInMemory(), "kubernetes": EngineInMemory()}
    of_both = replace(settings, burst=dict.fromkeys(both, settings.burst["slurm"]))
    with closing(Burster(of_both, clock, engines=lambda _: both)) as burster:
        burster.turn()
        for engine in both.values():
            engine.phases = {}
        burster.turn()
        clock.ahead_s += ABSENT_S
        burster.turn()

    revoked = [token.account.partition("-")[0] for token in client.database.tokens(None) if token.revoked_at]
    assert ["kubernetes", "slurm"] == sorted(revoked)
