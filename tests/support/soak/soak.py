"""The soak: a real site on four fake cards, with two workers for each, random jobs and external processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from bounded import until
from factories import ADA, BOB, make_spec
from fake_driver.fake_driver import FakeGpus, build, compiler
from site_of_one import Site
from soak.external_processes import ExternalProcesses
from soak.jobs import CONTEXT_MIB, MIB, SoakJob, draw
from soak.outcome import Outcome, judge
from soak.promises import Card

from gpuqueue.model.event import Act
from gpuqueue.model.job_spec import Account
from gpuqueue.model.retries import Retries
from gpuqueue.queue.connect import connect

if TYPE_CHECKING:
    from fake_driver.fake_driver import Change

    from gpuqueue.model.event import Event

HERE = Path(__file__).parent
CARDS, WORKERS_A_CARD = 4, 2
TOTAL_BYTES, RESERVED_BYTES = 24 * 2**30, 512 * MIB
#: Jobs that wait at a time: enough for the claimers to choose from, and few enough for large ones to get their turn.
WAITING = 80
#: How long honest jobs stay at their peak, in milliseconds: several of the sampler's steps.
HOLD_MS = (400, 600)
#: The pause between two turns of the loop, in seconds, and the moves of external processes in each.
TURN_S, MOVES = 0.02, 4
#: The soak is stuck when no event came for this time, in seconds.
STUCK_S = 60.0
#: The product's defaults, where tests have shorter values: data as old as a heartbeat is part of the test.
_SETTINGS = {
    "GPUQUEUE_DEVICES": "gpu",
    "GPUQUEUE_HEADROOM": "512M",
    "GPUQUEUE_HEARTBEAT": "10s",
    "GPUQUEUE_HOST_LOST_AFTER": "300s",
    "GPUQUEUE_POLL": "2s",
}
_USERS = (ADA, BOB, Account(name="eve", uid=1002, host="laptop"))


class Soak:
    """One soak of *claims* jobs, drawn from *seed*, in *directory*, over the empty store at *store_url*."""

    def __init__(
        self, directory: Path, store_url: str, *, claims: int, seed: int, hold_ms: tuple[int, int] = HOLD_MS
    ) -> None:
        self._wanted, self._hold_ms = claims, hold_ms
        self._rng = Random(seed)  # noqa: S311 - a draw that can be had again, no secret
        self._job, self._samples, self._record = directory / "job", directory / "samples", directory / "record"
        self._samples.touch()
        compile_job(self._job)
        self.fake = FakeGpus.create(
            directory / "gpus", (TOTAL_BYTES,) * CARDS, reserved_bytes=RESERVED_BYTES, context_bytes=CONTEXT_MIB * MIB
        )
        for index in range(0, CARDS, 2):  # every other card has accounting on, which administrators may choose
            self.fake.state.gpus[index].accounting = 1
        self.site = Site(directory / "state", store_url, **_SETTINGS)
        self._driver = self.fake.environ(build(directory))
        self.site.environ.update(self._driver)
        kept = (TOTAL_BYTES, RESERVED_BYTES, self.site.settings.headroom_bytes)
        self.cards = [Card(self.fake.uuid(index), index, *kept) for index in range(CARDS)]
        self._store = connect(store_url)
        external_processes = Random(seed + 1)  # noqa: S311 - as above; apart, so that the jobs are the same each time
        self._external_processes = ExternalProcesses(external_processes, self.fake, self.cards, self._store)
        self._workers: list[subprocess.Popen[bytes]] = []
        self.jobs: dict[int, SoakJob] = {}
        self.events: list[Event] = []
        self.changes: list[Change] = []
        self._claimed = self._ended = 0

    def run(self) -> Outcome:
        """Run the soak, and return its result."""
        self._start_workers()
        began = time.monotonic()
        heard_s = began
        while self._ended < self._wanted:
            heard_s = time.monotonic() if self._turn() else heard_s
            if time.monotonic() - heard_s > STUCK_S:
                raise AssertionError(f"stuck with {self._ended} of {self._wanted} jobs\n{self.site.log()[-3000:]}")
        took_s = time.monotonic() - began
        self._external_processes.leave()
        self._turn()
        self._record.write_text("\n".join(" ".join(map(str, change)) for change in self.changes))
        for worker in self._workers:
            self.site.end(worker)
        self.site.start_recorder()
        until(self._is_recorded, timeout_s=300, what="everything is in the history")
        return judge(self, took_s=took_s, samples=self._samples.read_text(), moves=self._external_processes.moves)

    def close(self) -> None:
        """End all processes."""
        self._external_processes.leave()
        self._store.close()
        self.site.stop()

    def _is_recorded(self) -> bool:
        known = self.site.client.database.cursor()
        return known is not None and known.last_id == self.events[-1].id

    # ---- workers -------------------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        """Start all workers at once, each with its own number of slots."""
        for index in range(CARDS):
            slots = str(self._rng.randint(5, 12))
            for _ in range(WORKERS_A_CARD):
                program = [sys.executable, str(HERE / "worker.py"), slots, str(self._samples)]
                words = [*program, "run", "--device", str(index), "--plain"]
                self._workers.append(self.site.spawn_command(words))
        serving = CARDS * WORKERS_A_CARD
        until(lambda: self.site.log().count(" serves ") == serving, timeout_s=100, what="all workers")

    # ---- one turn ------------------------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Read new events, feed the queue and move external processes; return whether there was an event."""
        self.changes += self.fake.changes()
        after = self.events[-1].id if self.events else "0-0"
        heard = self.site.queue.outbox.events(after, wait_s=TURN_S)
        self.events += heard
        acts = Counter(event.act for event in heard)
        self._claimed += acts[Act.CLAIM] - acts[Act.RELEASE_CLAIM] - acts[Act.LOSE]
        self._ended += sum(event.state.is_end for event in heard)
        waiting = len(self.jobs) - self._claimed
        for _ in range(min(WAITING - waiting, self._wanted - len(self.jobs))):
            self._submit()
        if len(self.jobs) < self._wanted or waiting:
            for _ in range(MOVES):
                self._external_processes.step()
        return bool(heard)

    def _submit(self) -> None:
        job = draw(self._rng, self._hold_ms)
        spec = make_spec(
            argv=(str(self._job), *job.words),
            env={"PATH": "/usr/bin:/bin", **self._driver},
            mem_bytes=job.mem_mib * MIB,
            gpus=job.gpus,
            retries=Retries(mem_times=0),
            name=job.kind.value,
            account=self._rng.choice(_USERS),
        )
        self.jobs[self.site.queue.requests.submit(spec).id] = job


def compile_job(program: Path) -> None:
    """Build soak/job.c."""
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]
    subprocess.run([str(compiler()), *flags, "-o", str(program), str(HERE / "job.c"), "-ldl"], check=True)
