"""Private places to measure in, removed afterwards: a store, a machine that is up, a database."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from benchmarks.measure.home import BIN, clean_environ, end_all
from gpuqueue.client import Client
from gpuqueue.embedded.server import VARIABLE, loaded_by
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
GPUQUEUE = str(BIN / "gpuqueue")


def from_the_tests() -> None:
    """Make the helpers of the tests importable: a private PostgreSQL, cards of a fake driver."""
    path = str(ROOT / "tests" / "support")
    if path not in sys.path:
        sys.path.append(path)


def quiet(words: Sequence[str], environ: dict[str, str] | None = None) -> None:
    """Run a command to its end, without its output."""
    subprocess.run(words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


@dataclass(frozen=True, kw_only=True)
class Store:
    """A store that is open for jobs, as ``gpuqueue up`` starts it: each write is on the disk before its reply."""

    settings: Settings
    queue: JobQueue
    client: redis.Redis

    def preloaded(self) -> Path | None:
        """Return the allocator that its server has loaded instead of its own."""
        info: dict[str, Any] = self.client.info("server")
        return loaded_by(info["process_id"])


@contextmanager
def private_store(*, durable: bool = True, opened: bool = True, preload: bool = True) -> Iterator[Store]:
    """Yield a private store.

    Without *durable* it does not wait for the disk. Without *opened* the caller opens it. With *preload* it loads this
    machine's allocator, as any embedded store does.
    """
    with _directory() as state:
        settings = Settings.load({"GPUQUEUE_STATE_DIR": state, "GPUQUEUE_CONFIG": os.devnull})
        store = EmbeddedStore(settings)
        try:
            with contextlib.nullcontext() if preload else _environ(VARIABLE, ""):
                store.start()
            queue, client = JobQueue(settings.redis_url), connect(settings.redis_url, wait_s=60)
            if not durable:
                client.config_set("appendfsync", "no")
            if opened:
                queue.recovery.open(0)
            yield Store(settings=settings, queue=queue, client=client)
            queue.close()
            client.close()
        finally:
            store.stop()


def _directory() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory whose removal never hides an error of the measurement."""
    return tempfile.TemporaryDirectory(prefix="gq-bench-", ignore_cleanup_errors=True)


@contextmanager
def _environ(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What ``gpuqueue up`` starts: a store, a recorder, and a worker for each device."""

    place: Path
    environ: dict[str, str]
    settings: Settings
    client: Client

    def run(self, *words: str) -> None:
        """Run ``gpuqueue`` as a user would."""
        quiet([GPUQUEUE, *words], self.environ)


@contextmanager
def private_machine(devices: str = "sim:1x8G", **settings: str) -> Iterator[Machine]:
    """Yield a machine that is up, with simulated devices; *settings* by their names, as in ``SLOTS="4"``."""
    with _directory() as place:
        environ = clean_environ(place) | {
            "GPUQUEUE_STATE_DIR": place,
            "GPUQUEUE_DEVICES": devices,
            "GPUQUEUE_HOST": f"bench-{secrets.token_hex(3)}",
            **{f"GPUQUEUE_{name}": value for name, value in settings.items()},
        }
        stopped = False
        try:
            quiet([GPUQUEUE, "up"], environ)
            loaded = Settings.load(environ)
            with Client(loaded) as client:
                yield Machine(place=Path(place), environ=environ, settings=loaded, client=client)
        except KeyboardInterrupt:
            stopped = True
            raise
        finally:
            if stopped or not _is_down(environ):  # a stopped run does not wait for its jobs
                end_all(place)


def _is_down(environ: dict[str, str]) -> bool:
    try:
        quiet([GPUQUEUE, "down", "--cancel-jobs"], environ)
    except subprocess.SubprocessError:
        return False
    return True


@contextmanager
def postgres(given: str | None = None) -> Iterator[str | None]:
    """Yield the URL of a PostgreSQL database: the given one, or one on a private server; None without any.

    The private server is that of the tests, which does not wait for the disk. Give a real one for figures to plan with.
    """
    if given:
        yield given
        return
    from_the_tests()
    try:
        from private_postgres import NoPostgres, any_server  # noqa: PLC0415 - of the tests
    except ImportError:
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(any_server(below=tempfile.gettempdir()))
        except NoPostgres:
            yield None
            return
        yield stack.enter_context(server.database())
