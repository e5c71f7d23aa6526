"""gpuqueue as ``gpuqueue up`` starts it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.measure.place import GPUQUEUE, ROOT, private_machine
from benchmarks.measure.spent import workers
from benchmarks.peers.crew import MARK
from benchmarks.peers.peer import SLOTS, Peer


@contextmanager
def gpuqueue() -> Iterator[Peer]:
    """Run one simulated device with four slots, a worker in Celery, and a recorder."""
    with private_machine(SLOTS=str(SLOTS)) as machine:
        state = str(machine.place)
        yield Peer(
            name="gpuqueue",
            environ={**machine.environ, "PYTHONPATH": str(ROOT), MARK: state},
            command=[GPUQUEUE, "submit", "--mem", "1M", "--", "/bin/true"],
            mains=lambda: workers(state),
            restart=lambda: None,  # the host process restarts it
        )
