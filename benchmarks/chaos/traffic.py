"""The submitters and cancellers, and the answers that they got."""

from __future__ import annotations

import contextlib
import heapq
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.plan import JobPlan
from benchmarks.chaos.site import Site
from gpuqueue import Client
from gpuqueue.errors import GpuQueueError, JobNotFound, Refused, Unreachable
from gpuqueue.model.job import JobState

SUBMITTERS = 3
#: How many jobs are kept waiting: enough for every device to have one to claim after a kill.
BACKLOG = 12
#: How many are kept waiting while a kill is due: enough for something to run.
LEAST_BACKLOG = 2
#: Pause after an error, and polling interval of the backlog, in seconds.
PAUSE_S = 0.1
#: How long a reading of the backlog is valid, in seconds: a stopped store is silent for longer.
FRESH_S = 1.0
#: How often held jobs are released, in seconds.
RELEASE_S = 2.0
PROGRAM = Path(__file__).with_name("job.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """A job whose id was returned. ``at`` is wall-clock time in seconds."""

    job_id: int
    plan: JobPlan
    name: str
    at: float


@dataclass(kw_only=True)
class Delivery:
    """The queue's answers to its users, shared by their threads."""

    acks: dict[int, Ack] = field(default_factory=dict)
    #: Submits that ended in an error, by the name they were sent with: the job may exist nevertheless.
    unsure: dict[str, JobPlan] = field(default_factory=dict)
    cancels: set[int] = field(default_factory=set)
    releases: set[int] = field(default_factory=set)
    #: How often a device was resumed after quick deaths.
    resumes: int = 0
    #: Acknowledged jobs that were unknown later.
    unknown: set[int] = field(default_factory=set)
    #: Unexpected errors.
    surprises: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Traffic:
    """Submits the plan at the pace of the site, and more slowly while the kills are *behind*."""

    def __init__(self, site: Site, plans: Sequence[JobPlan], behind: Callable[[], bool]) -> None:
        self.reported = Delivery()
        self._behind = behind
        self._site = site
        self._left = iter(plans)
        self._waiting = 0
        self._polled_s = 0.0
        self._due: list[tuple[float, int]] = []
        self._stopping = threading.Event()
        self._submitters = [threading.Thread(target=self._submit_all, daemon=True) for _ in range(SUBMITTERS)]
        self._others = [
            threading.Thread(target=each, daemon=True) for each in (self._poll, self._cancel, self._release)
        ]

    def start(self) -> None:
        """Start submitting."""
        for thread in (*self._submitters, *self._others):
            thread.start()

    @property
    def acknowledged(self) -> int:
        """Return how many jobs were acknowledged so far."""
        return len(self.reported.acks)

    @property
    def done(self) -> bool:
        """Return whether everything was submitted, and every cancel delivered."""
        return not any(thread.is_alive() for thread in self._submitters) and not self._due

    def stop(self) -> None:
        """Stop all threads."""
        self._stopping.set()
        for thread in (*self._submitters, *self._others):
            thread.join()

    # ---- submit --------------------------------------------------------------------------------------------------

    def _submit_all(self) -> None:
        with self._client() as client:
            while not self._stopping.is_set():
                with self.reported.lock:
                    plan = next(self._left, None)
                if plan is None:
                    return
                while self._enough() and not self._stopping.wait(PAUSE_S):
                    pass
                self._submit(client, plan)

    def _enough(self) -> bool:
        """Return whether enough jobs wait; without a fresh reading of the backlog, return False."""
        most = LEAST_BACKLOG if self._behind() else BACKLOG
        return self._waiting >= most and time.monotonic() - self._polled_s < FRESH_S

    def _submit(self, client: Client, plan: JobPlan) -> None:
        """Submit until it is acknowledged, each time under a new name: an earlier submit may have succeeded."""
        tries = 0
        while not self._stopping.is_set():
            name = f"{plan.name}.{tries}"
            tries += 1
            try:
                job_id = client.jobs.submit(
                    command(plan, name),
                    mem=f"{plan.mem_gib}G",
                    gpus=plan.gpus,
                    time_limit=plan.time_limit_s,
                    name=name,
                    cwd=self._site.effects,
                    priority=plan.priority,
                    requeue=plan.requeue,
                ).id
            except Unreachable:
                with self.reported.lock:
                    self.reported.unsure[name] = plan
                self._stopping.wait(PAUSE_S)
            except Exception as error:  # noqa: BLE001 - whatever else it is, it is a finding
                with self.reported.lock:
                    self.reported.unsure[name] = plan
                    self.reported.surprises.append(f"submit of {name}: {error!r}")
                self._stopping.wait(PAUSE_S)
            else:
                with self.reported.lock:
                    self.reported.acks[job_id] = Ack(job_id=job_id, plan=plan, name=name, at=time.time())
                    if plan.cancel_after_s is not None:
                        heapq.heappush(self._due, (time.monotonic() + plan.cancel_after_s, job_id))
                return

    # ---- the others ----------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        with self._client() as client:
            while not self._stopping.wait(PAUSE_S):
                try:
                    self._waiting, _ = client.queue.jobs.counts()
                    self._polled_s = time.monotonic()
                except Unreachable:
                    self._waiting = 0  # submitters do not wait for the store to be up

    def _cancel(self) -> None:
        with self._client() as client:
            while not self._stopping.wait(PAUSE_S / 2):
                while self._due and self._due[0][0] <= time.monotonic():
                    first = self._due[0]
                    if not self._cancelled(client, first[1]):
                        break
                    with self.reported.lock:  # an earlier one may have been added meanwhile
                        self._due.remove(first)
                        heapq.heapify(self._due)

    def _cancelled(self, client: Client, job_id: int) -> bool:
        """Cancel a job; return False if the result is unknown."""
        try:
            client.jobs.cancel(job_id)
        except Refused:
            return True
        except JobNotFound:
            self.reported.unknown.add(job_id)
            return True
        except Unreachable:
            return False
        except Exception as error:  # noqa: BLE001 - as in _submit
            self.reported.surprises.append(f"cancel of job {job_id}: {error!r}")
            return True
        self.reported.cancels.add(job_id)
        return True

    def _release(self) -> None:
        """Release jobs that were lost too often, and resume devices after quick deaths, as an operator would."""
        with self._client() as client:
            while not self._stopping.wait(RELEASE_S):
                with contextlib.suppress(GpuQueueError):
                    for job in client.jobs.list():
                        if job.state is JobState.HELD:
                            client.jobs.release(job.id)
                            self.reported.releases.add(job.id)
                    drained = [each.device.uuid for each in client.devices.list() if each.drained]
                    if drained:
                        client.devices.resume(*drained)
                        self.reported.resumes += len(drained)

    def _client(self) -> Client:
        return Client(self._site.settings)


def command(plan: JobPlan, name: str) -> list[str]:
    """Return the command of *plan*, which writes its effects to a file of this *name*."""
    if plan.refused:
        return [f"/{'x' * 256}", name]
    return [
        *(sys.executable, "-I", "-S", str(PROGRAM)),
        *(name, f"{plan.duration_s:.3f}", str(plan.exit_code), str(plan.signal or 0)),
        *(plan.second.value, "stubborn" if plan.stubborn else "-"),
    ]
