"""Ports of jobs through the service: real HTTP servers in real jobs, on its own host and on one that has joined."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from subprocess import PIPE

import pytest
from bounded import until
from far_host import GPUQUEUE, FarHost
from port_of_job import (
    LONG,
    at_once,
    free_port,
    get,
    is_answered,
    is_cut_off,
    posted_by_half_closing,
    rest_of,
    serving_job,
    stalled,
)
from service_fixtures import ServedSite, mine, serving
from websockets.exceptions import InvalidStatus
from websockets.sync.client import unix_connect

from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError, NotListening, Refused, ServiceUnreachable
from gpuqueue.model.access_token import parts_of
from gpuqueue.model.job import Job, JobState
from gpuqueue.system import websocket

#: How often each end asks whether the other is there, in seconds. A reader that stalls must stall for longer.
PING_S = 5.0


@pytest.fixture(scope="module", params=["here", "far"])
def far(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarHost]:
    """Return a worker on the host of the service, or on another one, which reaches it only through the service."""
    with serving({"gpuqueue.service.store_tunnel:PING_S": PING_S}) as site:
        name = site.settings.host if request.param == "here" else "far"
        made = FarHost(site, tmp_path_factory.mktemp(request.param), name)
        yield made
        made.close()


@pytest.fixture
def served(far: FarHost) -> ServedSite:
    """Return the service."""
    return far.served


@pytest.fixture
def client(served: ServedSite) -> Iterator[Client]:
    """Return a client over TLS, with a token."""
    with served.client("https") as opened:
        yield opened


@pytest.fixture
def running(client: Client) -> Iterator[tuple[Job, int]]:
    """Return a job that serves HTTP, and its port."""
    job, port = serving_job(client)
    yield job, port
    if not client.jobs.get(job.id).state.is_end:
        client.jobs.cancel(job.id)
        client.jobs.wait(job.id)


def errors() -> tuple[list[GpuQueueError], Callable[[GpuQueueError], None]]:
    """Return a list, and what adds a reported error to it."""
    found: list[GpuQueueError] = []
    return found, found.append


def test_many_connections_at_once_reach_the_server_of_a_job(client: Client, running: tuple[Job, int]) -> None:
    """Short answers and long ones arrive whole, and so does a body whose end is the end of its direction."""
    job, port = running
    body = os.urandom(3_000_000)
    with client.jobs.forward(job.id, port) as local:
        assert [b"short"] * 40 == at_once(40, lambda: get(local.port))
        assert [LONG] * 3 == at_once(3, lambda: rest_of(stalled(local.port)))
        assert hashlib.sha256(body).hexdigest().encode() == posted_by_half_closing(local.port, body)


def test_a_reader_that_stalls_holds_up_nobody_and_gets_all(
    client: Client, running: tuple[Job, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not taken for dead, however long it reads nothing."""
    monkeypatch.setattr(websocket, "PING_S", PING_S)
    monkeypatch.setattr(websocket, "PONG_S", PING_S)
    job, port = running
    with client.jobs.forward(job.id, port) as local:
        stalls = stalled(local.port)
        until_s = time.monotonic() + 3 * PING_S
        while time.monotonic() < until_s:
            assert b"short" == get(local.port)
        assert LONG == rest_of(stalls)


def test_only_ports_of_processes_of_the_job_are_reached(client: Client, running: tuple[Job, int]) -> None:
    """Neither that of another program of the same account, nor that of another job."""
    job, _ = running
    other, its_port = serving_job(client)
    reported, report = errors()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for port in (listener.getsockname()[1], its_port):
            with client.jobs.forward(job.id, port, report=report) as local:
                assert not is_answered(local.port)
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert [NotListening] * 2 == [type(each) for each in reported]
    client.jobs.cancel(other.id)
    client.jobs.wait(other.id)


def test_nobody_else_reaches_a_port_and_the_log_says_who_tried(
    served: ServedSite, client: Client, running: tuple[Job, int]
) -> None:
    """Not even an admin. The owner's connections to one port are one entry with the port."""
    job, port = running
    with served.client("https", "bobs") as bob:
        with pytest.raises(Refused, match=r"^only \S+ may reach the ports of this job$"):
            bob.jobs.forward(job.id, port)
        hers = bob.jobs.submit(["true"], mem="1M", env={}, hold=True)
        with pytest.raises(Refused, match=r"^only bob may reach the ports of this job$"):
            client.jobs.forward(hers.id, port)
    with client.jobs.forward(job.id, port) as local:
        at_once(5, lambda: get(local.port))

    def outcomes() -> list[tuple[str, str, str | None]]:
        entries = client.access.audit(action="forward")
        found = [(each.account, str(each.outcome), each.detail.get("port")) for each in entries]
        return sorted(each for each in found if each[0] == "bob" or each[2] == str(port))

    expected = [("bob", "refused", None), (served.environ["GPUQUEUE_ADMINS"], "done", str(port))]
    until(lambda: sorted(expected) == outcomes(), what=f"the entries, and not {outcomes()}")


def test_without_a_token_or_with_a_wrong_one_nothing_is_reached(served: ServedSite, running: tuple[Job, int]) -> None:
    """Nor with the token of the account on the socket of another one, nor as a host."""
    job, port = running
    with served.client("https", "wrong") as nobody, pytest.raises(Refused, match="token"):
        nobody.jobs.forward(job.id, port)
    for path in (f"/jobs/{job.id}/ports/0", "/jobs/999999/ports/1", f"/host/requests/{'a' * 32}/port"):
        with pytest.raises(InvalidStatus), unix_connect(str(served.socket_path), f"ws://localhost/api/v1{path}"):
            pass


def test_a_connection_ends_with_its_job(client: Client, running: tuple[Job, int]) -> None:
    job, port = running
    with client.jobs.forward(job.id, port) as local:
        stalls = stalled(local.port)
        assert b"HTTP" == stalls.recv(4)
        client.jobs.cancel(job.id)
        assert JobState.CANCELLED is client.jobs.wait(job.id).job.state
        until(lambda: is_cut_off(stalls), what="the end of the connection")
        assert not is_answered(local.port)
        stalls.close()


def test_a_revoked_token_ends_the_connection(served: ServedSite, client: Client, running: tuple[Job, int]) -> None:
    """The job runs on."""
    job, port = running
    me = client.access.whoami()
    text = served.token(me.account, me.uid or 0)
    (served.directory / "short-lived").write_text(text)
    (served.directory / "short-lived").chmod(0o600)
    parts = parts_of(text)
    assert parts is not None
    with served.client("https", "short-lived") as other, other.jobs.forward(job.id, port) as local:
        stalls = stalled(local.port)
        assert b"HTTP" == stalls.recv(4)
        client.access.revoke_token(parts.id)
        until(lambda: is_cut_off(stalls), what="the end of the connection")
        stalls.close()
    assert mine(served)
    assert JobState.RUNNING is client.jobs.get(job.id).state


def test_a_forward_outlives_the_service(served: ServedSite, client: Client, running: tuple[Job, int]) -> None:
    """Connections end with the service, and new ones work as soon as it is back."""
    job, port = running
    reported, report = errors()
    with client.jobs.forward(job.id, port, report=report) as local:
        assert is_answered(local.port)
        served.kill()
        assert not is_answered(local.port)
        assert [ServiceUnreachable] == [type(each) for each in reported]
        served.start()
        until(lambda: is_answered(local.port), timeout_s=60, what="the way to the job")


def test_the_command_says_an_outage_once(far: FarHost, running: tuple[Job, int]) -> None:
    """Both its connections and its wait for the end of the job meet the service that does not answer."""
    job, port = running
    words = [GPUQUEUE, "forward", str(job.id), f"{free_port()}:{port}"]
    with subprocess.Popen(words, env=far.environ, stdout=PIPE, stderr=PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        here = int(command.stdout.readline().partition(" ")[0].rpartition(":")[2])
        assert is_answered(here)
        far.served.kill()
        assert [False] * 3 == [is_answered(here) for _ in range(3)]
        line = command.stderr.readline()
        far.served.start()
        until(lambda: is_answered(here), timeout_s=60, what="the way to the job")
        command.send_signal(signal.SIGINT)
        assert line.endswith(": connections here are closed until that changes\n")
        assert "gpuqueue: interrupted" == command.stderr.read().strip()


def test_a_host_whose_relay_is_away_is_named(far: FarHost, client: Client, running: tuple[Job, int]) -> None:
    """The way is there again with the next relay."""
    if far.site.settings.host != "far":
        pytest.skip("the service connects itself")
    job, port = running
    with client.jobs.forward(job.id, port) as local:
        far.kill_relay()
        with pytest.raises(GpuQueueError, match=r"host far does not answer"):
            client.jobs.forward(job.id, port)
        far.relay = far.start_relay()
        until(lambda: is_answered(local.port), timeout_s=60, what="the way to the job")
