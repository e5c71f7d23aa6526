"""Celery, RQ and Huey: each with four slots, on a store that, like gpuqueue's, writes to the disk before it replies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.measure.home import BIN
from benchmarks.measure.place import ROOT, private_store
from benchmarks.peers.crew import MARK, Crew, running
from benchmarks.peers.install import HOME, PYTHON
from benchmarks.peers.peer import SLOTS, NotInstalled, Peer


@contextmanager
def celery() -> Iterator[Peer]:
    """Run one worker with four processes."""
    program = [str(BIN / "celery"), "-A", "benchmarks.peers.celery_app"]
    call = [*program, "call", "run", "--args", '[["/bin/true"]]']
    with _on_a_store([[*program, "worker", "-c", str(SLOTS)]]) as (crew, environ):
        yield Peer(name="celery", environ=environ, command=call, mains=crew.mains, restart=crew.start)


@contextmanager
def rq() -> Iterator[Peer]:
    """Run four workers with a work horse each."""
    program = HOME / "bin" / "rq"
    if not program.exists():
        raise NotInstalled("rq")
    with _on_a_store([]) as (_, environ):
        url = f"unix://{environ['PEERS_SOCKET']}"
        with running([[str(program), "worker", "--url", url]] * SLOTS, environ) as crew:
            yield Peer(
                name="rq",
                environ=environ,
                python=str(PYTHON),
                command=[str(program), "enqueue", "--url", url, "benchmarks.peers.tasks.run", ':["/bin/true"]'],
                mains=crew.mains,
                restart=crew.start,
            )


@contextmanager
def huey() -> Iterator[Peer]:
    """Run one consumer with four threads."""
    if not (HOME / "bin" / "huey_consumer").exists():
        raise NotInstalled("huey")
    consumer = [str(HOME / "bin" / "huey_consumer"), "benchmarks.peers.huey_app.huey", "-w", str(SLOTS)]
    with _on_a_store([consumer]) as (crew, environ):
        yield Peer(name="huey", environ=environ, python=str(PYTHON), mains=crew.mains, restart=crew.start)


@contextmanager
def _on_a_store(commands: Sequence[Sequence[str]]) -> Iterator[tuple[Crew, dict[str, str]]]:
    """Start *commands* with a store of their own."""
    with private_store() as store:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PEERS_SOCKET": str(store.settings.socket_path),
            MARK: str(store.settings.state_dir),
        }
        with running(commands, environ) as crew:
            yield crew, environ
