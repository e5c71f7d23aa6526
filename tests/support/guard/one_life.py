"""A job's whole life without a process, and what a store counts meanwhile."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from factories import claim, make_offer, make_spec, serve
from own_store import OwnStore

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim
from gpuqueue.text.units import GIB
from workers.services.recorder import Recorder

#: The steps of a job, in this order.
STEPS = ("submit", "claim", "started", "finish", "record")
#: Commands that only set up a connection. A ping is not among them: in a script it costs what any command costs.
NO_PART_OF_IT = frozenset({"client", "hello", "select", "auth"})
#: The commands of the measurement itself.
OURS = Counter(info=1)
#: Sent after the last step that is counted.
END = "that-was-all"


def uncovered(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return *environ* without coverage measurement, which would load and open many files in a child."""
    return {name: value for name, value in environ.items() if not name.startswith("COVERAGE_")}


@dataclass(kw_only=True)
class OneLife:
    """Runs jobs through a store and a history, one step at a time."""

    store: OwnStore
    queue: JobQueue
    database: HistoryDatabase

    def __post_init__(self) -> None:
        """Open the store, serve a device, and run jobs until everything is loaded and every key exists."""
        self.admin: Any = connect(self.store.url)
        self.recorder = Recorder(self.store.settings, self.queue, self.database)
        self.recorder.mend()
        serve(self.queue)
        for _ in range(3):
            self.through()

    def steps(self) -> dict[str, Callable[[], object]]:
        """Return the steps of one more job."""
        claimed: list[Claim] = []
        device = RunDevice(uuid="GPU-0", lease_bytes=GIB, kind=make_offer().device.kind, total_bytes=24 * GIB)

        def take() -> None:
            found = claim(self.queue)
            assert found is not None
            claimed.append(found)

        return {
            "submit": lambda: self.queue.requests.submit(make_spec()),
            "claim": take,
            "started": lambda: self.queue.runs.started(
                claimed[0].job_id, claimed[0].token, lease_s=300, log_path="/log", devices=(device,)
            ),
            "finish": lambda: self.queue.runs.finish(
                claimed[0].job_id,
                claimed[0].token,
                state=JobState.SUCCEEDED,
                ending=Ending.from_status(0),
                duration_s=1.0,
                devices=(device,),
            ),
            "record": lambda: self.recorder.record(0),
        }

    def through(self) -> None:
        """Run one job."""
        for step in self.steps().values():
            step()

    def counted(self, act: Callable[[], object]) -> Counter[str]:
        """Return how often each command ran in the store during *act*, including those of scripts."""
        before = self._commands()
        act()
        return self._commands() - before - OURS

    def asked(self, act: Callable[[], object]) -> int:
        """Return the number of round trips of *act* to the store; commands inside scripts do not count."""
        found = 0
        with self.admin.monitor() as listening:
            act()
            self.admin.echo(END)
            for heard in listening.listen():
                if END in heard["command"]:
                    return found
                command = heard["command"].split()[0].lower()
                found += heard["client_type"] != "lua" and command not in NO_PART_OF_IT
        raise AssertionError("the store stopped reporting")

    def _commands(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for name, each in self.admin.info("commandstats").items():
            command = re.sub(r"^cmdstat_([a-z]+).*", r"\1", name)
            if command not in NO_PART_OF_IT:
                found[command] += each["calls"]
        return found

    def kept(self) -> dict[str, int]:
        """Return each key of the store with its size in bytes."""
        return {key: self.admin.memory_usage(key, samples=0) for key in self.admin.scan_iter(count=10_000)}
