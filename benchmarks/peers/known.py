"""The peers that we can start: each with four slots, and as durable as it can be."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import psutil

from benchmarks.measure.place import BIN, GPUQUEUE, ROOT, private_machine, private_store
from benchmarks.measure.spent import workers
from benchmarks.peers.install import HOME, PYTHON
from benchmarks.peers.peer import SLOTS, Crew, NotInstalled, Peer, marked

INSTALL = "not installed: python -m benchmarks.peers.install"


@contextmanager
def gpuqueue() -> Iterator[Peer]:
    """One simulated device with four slots, a worker that Celery hosts, a recorder."""
    with private_machine(SLOTS=str(SLOTS)) as machine:
        state = str(machine.place)
        yield Peer(
            name="gpuqueue",
            environ={**machine.environ, "PYTHONPATH": str(ROOT), "PEERS_PLACE": state},
            command=[GPUQUEUE, "submit", "--mem", "1M", "--", "/bin/true"],
            mains=lambda: workers(state),
            restart=lambda: None,  # the host process does it
        )


@contextmanager
def celery() -> Iterator[Peer]:
    """One worker with four processes."""
    program = [str(BIN / "celery"), "-A", "benchmarks.peers.celery_app"]
    call = [*program, "call", "run", "--args", '[["/bin/true"]]']
    with _on_a_store([[*program, "worker", "-c", str(SLOTS)]]) as (crew, environ):
        yield Peer(name="celery", environ=environ, command=call, mains=crew.mains, restart=crew.start)


@contextmanager
def rq() -> Iterator[Peer]:
    """Four workers with a work horse each."""
    program = HOME / "bin" / "rq"
    if not program.exists():
        raise NotInstalled(INSTALL)
    with _on_a_store([]) as (_, environ):
        url = f"unix://{environ['PEERS_SOCKET']}"
        crew = Crew([[str(program), "worker", "--url", url]] * SLOTS, environ)
        crew.start()
        try:
            yield Peer(
                name="rq",
                environ=environ,
                python=str(PYTHON),
                command=[str(program), "enqueue", "--url", url, "benchmarks.peers.tasks.run", ':["/bin/true"]'],
                mains=crew.mains,
                restart=crew.start,
            )
        finally:
            crew.end()


@contextmanager
def huey() -> Iterator[Peer]:
    """One consumer with four threads."""
    if not (HOME / "bin" / "huey_consumer").exists():
        raise NotInstalled(INSTALL)
    consumer = [str(HOME / "bin" / "huey_consumer"), "benchmarks.peers.huey_app.huey", "-w", str(SLOTS)]
    with _on_a_store([consumer]) as (crew, environ):
        yield Peer(name="huey", environ=environ, python=str(PYTHON), mains=crew.mains, restart=crew.start)


@contextmanager
def task_spooler() -> Iterator[Peer]:
    """Its server starts itself; it keeps nothing on the disk."""
    program = shutil.which("tsp")
    if program is None:
        raise NotInstalled(INSTALL)
    with tempfile.TemporaryDirectory(prefix="gq-peer-") as place:
        environ = {**os.environ, "TS_SOCKET": f"{place}/s", "PEERS_PLACE": place, "TMPDIR": place}

        def start() -> None:
            subprocess.run([program, "-S", str(SLOTS)], env=environ, check=True)

        start()
        try:
            yield Peer(
                name="task-spooler",
                environ=environ,
                command=[program, "/bin/true"],
                mains=lambda: [each for each in marked(place) if each.name() == "tsp" and each.ppid() == 1],
                restart=start,
            )
        finally:
            for each in marked(place):
                each.kill()


@contextmanager
def _on_a_store(commands: Sequence[Sequence[str]]) -> Iterator[tuple[Crew, dict[str, str]]]:
    """Start *commands* on a store that has each write on the disk before it replies, as ours has."""
    with private_store() as store:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PEERS_SOCKET": str(store.settings.socket_path),
            "PEERS_PLACE": str(store.settings.state_dir),
        }
        crew = Crew(commands, environ)
        crew.start()
        try:
            yield crew, environ
        finally:
            crew.end()


PEERS: dict[str, Callable[[], AbstractContextManager[Peer]]] = {
    "gpuqueue": gpuqueue,
    "celery": celery,
    "rq": rq,
    "huey": huey,
    "task-spooler": task_spooler,
}


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return those that still run."""
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
