from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest
import redis
from bounded import until
from factories import make_spec

from gpuqueue.client import Client
from gpuqueue.embedded import machine
from gpuqueue.embedded import store as embedded
from gpuqueue.embedded.machine import Machine
from gpuqueue.embedded.server import find_server
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.errors import GpuQueueError, StoreLoading, StoreNotReady, StoreUnreachable
from gpuqueue.queue.connect import Connect, connect, connect_at_once, translated
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Return the settings of a store that a test may break, because no other test uses it."""
    state = tmp_path_factory.mktemp("s")
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(state), "GPUQUEUE_CONFIG": os.devnull})
    store = EmbeddedStore(settings)
    store.start()
    with closing(JobQueue(settings.redis_url)) as other:
        other.recovery.open(0)
    yield settings
    store.stop()


def server_of(settings: Settings) -> ProcessIdentity:
    """Return the store's server."""
    identity = ProcessIdentity.parse((settings.state_dir / "store" / "pid").read_text())
    assert identity is not None
    return identity


def listens(path: str) -> bool:
    """Return whether a server takes connections at the socket *path*."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def load_slowly(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the store, and have its next server take more than a second to load its data."""
    writer = connect(settings.redis_url)
    with writer.pipeline(transaction=False) as pipe:
        for number in range(12_000):
            pipe.set(f"filler-{number}", "x")
        pipe.execute()
    writer.close()
    server = server_of(settings)
    server.send(signal.SIGKILL)
    assert server.wait(10)
    slowly = ("--key-load-delay", "100")  # microseconds for each key; the server answers clients after each 1024th
    command = EmbeddedStore(settings)._command(find_server().path)
    monkeypatch.setattr(EmbeddedStore, "_command", lambda _self, _program: [*command, *slowly])


def is_loading(settings: Settings) -> bool:
    """Return whether the store answers that it is loading its data."""
    with closing(JobQueue(settings.redis_url)) as queue:
        try:
            queue.epoch()
        except StoreLoading:
            return True
        except StoreUnreachable:
            return False
        return False


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"maxmemory": "1"}, "reached its maxmemory"),
        ({"requirepass": "secret"}, "password"),
        ({"min-replicas-to-write": "3"}, "replicas that it requires"),
    ],
)
def test_a_store_that_cannot_serve_says_why(own: Settings, config: dict[str, str], words: str) -> None:
    """A store that runs but cannot serve raises `StoreNotReady` with the reason.

    The advice must not be to start it, and the Redis library's own errors must not reach the caller.
    """
    admin = connect(own.redis_url)
    for name, value in config.items():
        admin.config_set(name, value)
    queue = JobQueue(own.redis_url)

    with pytest.raises(StoreNotReady, match=words):
        queue.requests.submit(make_spec())

    queue.close()
    admin.close()


def test_a_read_only_replica_says_so(own: Settings) -> None:
    """A read-only replica is named in the error.

    That happens after a fail-over in which only the address was not changed.
    """
    admin = connect(own.redis_url)
    admin.replicaof("127.0.0.1", 1)
    queue = JobQueue(own.redis_url)

    with pytest.raises((StoreNotReady, StoreUnreachable)) as caught:
        queue.requests.submit(make_spec())

    assert "replica" in str(caught.value)
    queue.close()
    admin.close()


def test_a_store_that_is_loading_is_not_taken_for_dead() -> None:
    """A store that is loading is not ready, but not unreachable.

    Otherwise a second server would be started on the same files.
    """
    with pytest.raises(StoreNotReady, match="still loading"), translated("unix:///x"):
        raise redis.BusyLoadingError("Redis is loading the dataset in memory")


@pytest.mark.full
def test_a_store_that_reads_its_data_for_long_comes_up(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that takes long to load its data comes up.

    After a SIGKILL, `gpuqueue up` used to find the store loading and stop it, each time.
    """
    load_slowly(own, monkeypatch)
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 0.9)
    began_s = monotonic()

    assert EmbeddedStore(own).start()

    assert monotonic() - began_s > embedded.START_TIMEOUT_S, "it was there at once: nothing was tried"
    with closing(JobQueue(own.redis_url)) as other:
        assert other.epoch() is not None


@pytest.mark.parametrize("records", ["true", "false"])
def test_a_start_waits_for_a_store_of_others_that_is_loading(
    own: Settings, records: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``up`` waits while a store that it did not start loads its data, and says so.

    In system mode the workers' ``up`` used to end with exit code 4 if the store was loading when it looked.
    """
    load_slowly(own, monkeypatch)
    monkeypatch.setattr(machine, "SILENT_S", 0.0)
    until(EmbeddedStore(own).launch)  # the one that was killed may hold the lock for a moment
    until(lambda: is_loading(own), what="a store that is loading")
    elsewhere = {"GPUQUEUE_STATE_DIR": str(own.state_dir / "workers"), "GPUQUEUE_CONFIG": os.devnull}
    others = Settings.load({**elsewhere, "GPUQUEUE_REDIS_URL": own.redis_url, "GPUQUEUE_RECORD": records})

    assert "was running" == Machine(others).start_store()

    assert "gpuqueue: the store is still loading its data. Waiting for it, at most 600 s\n" == capsys.readouterr().err


def test_a_server_whose_last_thread_is_still_ending_is_waited_for(
    own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start waits for the lock of a server that is still ending.

    The server's first thread was gone and its lock was not, and `up` used to wait a minute for an answer.
    """
    assert EmbeddedStore(own).stop()
    ending = os.open(own.state_dir / "store" / "lock", os.O_RDWR)
    fcntl.flock(ending, fcntl.LOCK_EX)
    taken, answers = embedded.taken, []

    def asked(lock: int) -> bool:
        answers.append(taken(lock))
        if not answers[-1]:
            os.close(ending)
        return answers[-1]

    monkeypatch.setattr(embedded, "taken", asked)

    assert EmbeddedStore(own).start()

    assert answers == [False, True]


def test_a_server_that_hangs_is_never_doubled(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """No second server is started while the first one hangs.

    Two servers on one directory each acknowledged a job 2, and one of these jobs was gone after a restart.
    """
    server = server_of(own)
    server.send(signal.SIGSTOP)
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 0.5)
    monkeypatch.setattr("gpuqueue.queue.connect.COMMAND_TIMEOUT_S", 0.2)

    with pytest.raises(GpuQueueError, match="does not answer within"):
        EmbeddedStore(own).start()

    server.send(signal.SIGCONT)
    assert not EmbeddedStore(own).start()
    assert server == server_of(own)


def test_a_submit_without_an_answer_says_that_the_job_may_be_queued(
    own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submit that was sent and not answered names what to do before it is repeated; the job is there once.

    The error used to say only that the store does not answer. A person who submitted again had two jobs.
    """
    server = server_of(own)
    with monkeypatch.context() as quick, Client(own) as client:
        quick.setattr("gpuqueue.queue.connect.COMMAND_TIMEOUT_S", 0.3)
        assert [] == client.jobs.list()
        server.send(signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnreachable, match="look at gpuqueue queue before you submit it again"):
                client.jobs.submit(["true"], mem="1M")
        finally:
            server.send(signal.SIGCONT)

    with Client(own) as client:
        until(client.jobs.list, what="the job")
        assert ["true"] == [job.spec.name for job in client.jobs.list()]


@pytest.mark.parametrize("by", [connect_at_once, connect], ids=["built-in", "redis-py"])
def test_a_submit_without_a_connection_was_not_sent(
    own: Settings, monkeypatch: pytest.MonkeyPatch, by: Connect
) -> None:
    """Where no store listens, nothing can be queued, and nobody has to look."""
    monkeypatch.setattr("gpuqueue.queue.connect.connect_at_once", by)
    server = server_of(own)
    server.send(signal.SIGKILL)
    until(lambda: not listens(str(own.socket_path)), what="the end of its last thread, which holds the socket")

    with Client(own) as client, pytest.raises(StoreUnreachable) as refused:
        client.jobs.submit(["true"], mem="1M")

    assert "gpuqueue queue" not in str(refused.value)


def test_a_server_whose_socket_was_removed_makes_way(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose socket file was removed is replaced.

    Someone had cleaned up /tmp. The server lived on unreachable, and `up` waited a minute and gave up.
    """
    monkeypatch.setattr(embedded, "UNREACHABLE_S", 0.0)
    queue = JobQueue(own.redis_url)
    job_id = queue.requests.submit(make_spec()).id
    queue.close()
    server = server_of(own)
    Path(own.socket_path).unlink()

    assert EmbeddedStore(own).start()

    assert not server.alive()
    assert server != server_of(own)
    assert job_id == JobQueue(own.redis_url).jobs.get(job_id).id  # type: ignore[union-attr]


def test_a_server_that_is_only_just_coming_up_is_left_alone(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has just started, and has no socket yet, is waited for and not replaced."""
    server = server_of(own)
    Path(own.socket_path).unlink()
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 0.3)
    monkeypatch.setattr(embedded, "UNREACHABLE_S", 1000.0)

    with pytest.raises(GpuQueueError, match="does not answer within"):
        EmbeddedStore(own).start()

    assert server.alive()


def _may_lower_scores() -> bool:
    """Return whether this process may have the kernel kill others before it (CAP_SYS_RESOURCE of capabilities(7))."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) & 1 << 24)


@pytest.mark.skipif(not _may_lower_scores(), reason="takes CAP_SYS_RESOURCE, which root has outside of containers")
def test_the_kernel_kills_jobs_before_the_store_when_host_memory_runs_out(own: Settings) -> None:
    """The store holds the queue of all jobs, and a job that is killed can run again."""
    found = Path(f"/proc/{server_of(own).pid}/oom_score_adj")

    assert embedded.OOM_SCORE_ADJ == int(found.read_text())
