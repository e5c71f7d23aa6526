"""The queue: one object with a group of operations for each subject."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gpuqueue.lazy.imports import later
from gpuqueue.queue.connect import Connect, WhyAway, connect
from gpuqueue.queue.store import Store, answering

if TYPE_CHECKING:
    from gpuqueue.queue import absence, devices, jobs, maintenance, outbox, recovery, requests, rules, runs, senders
    from gpuqueue.settings.settings import Settings
else:
    absence = later("gpuqueue.queue.absence")
    jobs = later("gpuqueue.queue.jobs")
    requests = later("gpuqueue.queue.requests")
    runs = later("gpuqueue.queue.runs")
    devices = later("gpuqueue.queue.devices")
    rules = later("gpuqueue.queue.rules")
    maintenance = later("gpuqueue.queue.maintenance")
    outbox = later("gpuqueue.queue.outbox")
    senders = later("gpuqueue.queue.senders")
    recovery = later("gpuqueue.queue.recovery")


class JobQueue:
    """The queue at *url*. Every method raises StoreUnreachable or StoreNotReady if the store cannot serve.

    A group of operations is imported on first use, because a short command needs only one.
    """

    def __init__(
        self, url: str, *, by: Connect = connect, why_away: WhyAway | None = None, store: Store | None = None
    ) -> None:
        self._store = store or Store(url, by=by, why_away=why_away)

    @classmethod
    def of(cls, settings: Settings, *, by: Connect = connect) -> JobQueue:
        """Return the queue of *settings*. Its errors say why the embedded store is away."""
        return cls(settings.redis_url, by=by, why_away=lambda: absence.why_away(settings))

    @cached_property
    def jobs(self) -> jobs.Jobs:
        """The jobs in the queue: get, page, live, why, record, counts, cancel, hold, release, move, mark."""
        return jobs.Jobs(self._store)

    @cached_property
    def requests(self) -> requests.Requests:
        """Requests of users: submit a job, edit one that waits."""
        return requests.Requests(self._store)

    @cached_property
    def runs(self) -> runs.Runs:
        """The runs of jobs: claim, seek, started, note, release_claim, exclude_host, finish, lose, adopt, park."""
        return runs.Runs(self._store)

    @cached_property
    def devices(self) -> devices.Devices:
        """The devices of all hosts: announce, heartbeat, all, withdraw, drain, resume."""
        return devices.Devices(self._store)

    @cached_property
    def rules(self) -> rules.Rules:
        """The rules of the site: policy, administrators, limits, uses."""
        return rules.Rules(self._store)

    @cached_property
    def maintenance(self) -> maintenance.Maintenance:
        """Periodic tasks: reap, reserve, promote, preempt."""
        return maintenance.Maintenance(self._store)

    @cached_property
    def outbox(self) -> outbox.Outbox:
        """The events for the history: events, backlog, recorded, settle."""
        return outbox.Outbox(self._store)

    @cached_property
    def senders(self) -> senders.Senders:
        """The senders of notifications: announce, all."""
        return senders.Senders(self._store)

    @cached_property
    def recovery(self) -> recovery.Recovery:
        """Opening and restoring a store: begin, restore, gather, open, survivors."""
        return recovery.Recovery(self._store)

    @property
    def store(self) -> Store:
        """Return the store, with its client and its scripts."""
        return self._store

    @property
    def url(self) -> str:
        """Return the URL of the store."""
        return self._store.url

    @answering
    def epoch(self) -> str | None:
        """Return the store's epoch, or None if it is not open."""
        return self._store.epoch()

    @answering
    def now_ms(self) -> int:
        """Return the store's time, in milliseconds since 1970."""
        return self._store.now_ms()

    def close(self) -> None:
        """Close the connections."""
        self._store.close()
