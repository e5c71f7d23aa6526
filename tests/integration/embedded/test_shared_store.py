"""The embedded store of a service whose workers have another account."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp

import pytest
import redis
from factories import make_spec
from lab import documented_rule

from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.queue.connect import connect
from gpuqueue.queue.host_users import SHARED_RULE
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.safety import check_safety
from gpuqueue.settings.settings import Settings


@pytest.fixture
def shared() -> Iterator[Settings]:
    """Return the settings of a site whose store runs, with its socket in a directory that a group may enter."""
    place = Path(mkdtemp(prefix="gpuqueue-shared-"))
    (place / "socket").mkdir(mode=0o750)
    named = {"GPUQUEUE_STATE_DIR": str(place / "state"), "GPUQUEUE_STORE_SOCKET": str(place / "socket" / "store.sock")}
    settings = Settings.load({**named, "GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_WORKERS_ACCOUNT": "workers"})
    store = EmbeddedStore(settings)
    assert store.start()
    yield settings
    assert store.stop()


def test_a_shared_store_can_be_entered_by_those_who_may_enter_its_directory(shared: Settings) -> None:
    """The directory stays as it is. The files of the store are in another one, for its account only."""
    directory = shared.socket_path.parent

    assert (0o750, 0o777) == (directory.stat().st_mode & 0o777, shared.socket_path.stat().st_mode & 0o777)
    assert 0o700 == (shared.state_dir / "store").stat().st_mode & 0o777
    assert ["store.sock"] == [each.name for each in directory.iterdir()]


def test_a_shared_store_is_enough_for_the_queue(shared: Settings) -> None:
    """It opens, takes jobs and gives no warning. A second start finds it."""
    with closing(JobQueue(shared.redis_url)) as queue:
        queue.recovery.open(0)
        job = queue.requests.submit(make_spec()).id
        assert job == queue.jobs.get(job).id

    assert [] == check_safety(shared.redis_url)
    assert not EmbeddedStore(shared).start()


@pytest.mark.parametrize(
    "words",
    [
        ("CONFIG", "SET", "dir", "/tmp"),
        ("ACL", "SETUSER", "other", "on", "nopass", "+@all"),
        ("SHUTDOWN", "NOSAVE"),
        ("FLUSHALL",),
        ("REPLICAOF", "127.0.0.1", "6379"),
        ("BGREWRITEAOF",),
        ("MODULE", "LIST"),
        ("KEYS", "*"),
        ("GET", "not-of-gpuqueue"),
    ],
)
def test_a_shared_store_takes_no_command_of_an_administrator(shared: Settings, words: tuple[str, ...]) -> None:
    """Workers that were taken over could else write files as the account of the store, or stop it."""
    with closing(connect(shared.redis_url)) as store, pytest.raises(redis.exceptions.NoPermissionError):
        store.execute_command(*words)


def test_the_rule_is_that_of_the_documentation() -> None:
    """It is tested with workers, recorder and clients as the rule of a store of one's own."""
    assert [*SHARED_RULE] == documented_rule()[5:]
