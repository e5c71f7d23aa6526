"""Worker hosts that reach the store through the service, over TLS, with nothing but a token."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis
from bounded import until
from factories import make_spec
from link import Link
from service_fixtures import ServedSite, mine, serving
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as connect_websocket

from gpuqueue.errors import BadRequest, StoreUnreachable
from gpuqueue.model.access_token import TokenRequest, parts_of
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system import ownership
from gpuqueue.system.process import installed

Join = Callable[..., Settings]


@pytest.fixture(scope="module")
def site() -> Iterator[ServedSite]:
    """Return a site with the embedded store, which listens on a unix socket only."""
    with serving() as made:
        yield made


@pytest.fixture
def join(site: ServedSite, tmp_path: Path) -> Iterator[Join]:
    """Return a function that lets a host join with a token, starts its tunnel, and returns its settings."""
    with ExitStack() as stack:

        def joined(host: str, port: int | None = None) -> Settings:
            environ = environment_of(site, tmp_path / host, host_token(site, host), port)
            tunnel = stack.enter_context(closing_process(environ))
            assert tunnel.stdout is not None
            assert "ready\n" == tunnel.stdout.readline()
            return Settings.load(environ)

        yield joined


def environment_of(site: ServedSite, state: Path, token: str, port: int | None = None) -> dict[str, str]:
    """Return all that a host needs to know of its site, as variables. *port* leads to the service."""
    state.mkdir(exist_ok=True)
    file = state / "token"
    file.write_text(token)
    file.chmod(0o600)
    return {
        "PATH": os.environ["PATH"],
        "GPUQUEUE_CONFIG": os.devnull,
        "GPUQUEUE_STATE_DIR": str(state),
        "GPUQUEUE_HOST": state.name,
        "GPUQUEUE_SERVICE_URL": f"https://127.0.0.1:{port or site.port}",
        "GPUQUEUE_SERVICE_TOKEN_FILE": str(file),
        "GPUQUEUE_SERVICE_CA": str(site.directory / "cert.pem"),
    }


def host_token(site: ServedSite, host: str) -> str:
    """Return a new token of *host*."""
    with site.client("unix") as client:
        return client.access.make_token(TokenRequest(host=host, lifetime_s=None)).text


def closing_process(environ: dict[str, str]) -> subprocess.Popen[str]:
    """Start the tunnel of a host. It ends with its standard input, which the block of the process closes."""
    words = [installed("gpuqueue-worker"), "tunnel", "--for-command"]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def answers(store: Any) -> bool:
    """Return whether *store* answers."""
    try:
        return bool(store.ping())
    except redis.RedisError:
        return False


def test_a_host_uses_the_embedded_store_as_a_user_of_its_own(site: ServedSite, join: Join) -> None:
    """It sees the jobs of the site, and may not administer the server."""
    settings = join("nodeB")
    job = site.queue.requests.submit(make_spec()).id

    with closing(JobQueue(settings.redis_url)) as queue, closing(connect(settings.redis_url)) as store:
        assert job == queue.jobs.get(job).id
        assert "gpuqueue-host-nodeB" == store.execute_command("ACL", "WHOAMI")
        for words in (("CONFIG", "GET", "dir"), ("ACL", "LIST"), ("GET", "not-of-gpuqueue"), ("FLUSHALL",)):
            with pytest.raises(Exception, match=r"(?i)no permissions"):
                store.execute_command(*words)
    assert not settings.record
    assert not settings.embedded
    assert not settings.store_is_here


def test_large_answers_and_commands_pass_whole(join: Join) -> None:
    """They are longer than one message of the WebSocket."""
    settings, text = join("large"), "x" * 3_000_000
    with closing(connect(settings.redis_url)) as store:
        store.set("{gq}:test-large", text)
        assert text == store.get("{gq}:test-large")
        store.delete("{gq}:test-large")


@pytest.mark.parametrize("words", [("AUTH", "default", "x"), ("reset",), ("HELLO", "3", "AUTH", "default", "x")])
def test_a_host_cannot_become_another_user(join: Join, words: tuple[str, ...]) -> None:
    """The embedded store accepts everybody as its default user, who may do all: the service ends the connection."""
    settings = join("climber")
    with closing(connect(settings.redis_url)) as store:
        with pytest.raises(Exception, match=r"(?i)closed|reset"):
            store.execute_command(*words)
        assert "gpuqueue-host-climber" == store.execute_command("ACL", "WHOAMI")


def test_a_revoked_token_ends_the_connections_of_its_host(site: ServedSite, join: Join) -> None:
    """Its user is removed from the store. Other hosts go on."""
    settings, other = join("gone"), join("stays")
    with site.client("unix") as client, closing(connect(settings.redis_url)) as store:
        subscriber = store.pubsub()
        subscriber.subscribe("{gq}:x")
        subscriber.get_message(timeout=5)
        parts = parts_of((settings.state_dir / "token").read_text())
        assert parts is not None
        client.access.revoke_token(parts.id)

        with pytest.raises(Exception, match=r"(?i)closed|reset"):
            until(lambda: subscriber.get_message(timeout=0.1) is not None, what="a message")
        assert not answers(store)
    with closing(connect(site.settings.redis_url)) as admin, closing(connect(other.redis_url)) as store:
        until(lambda: "gpuqueue-host-gone" not in admin.execute_command("ACL", "USERS"), what="its user to be removed")
        assert answers(store)


def test_a_host_comes_back_after_the_service_or_the_store(site: ServedSite, join: Join) -> None:
    """The store has forgotten the users then, and the service makes them again."""
    settings = join("steady")
    with closing(connect(settings.redis_url)) as store:
        assert answers(store)
        site.kill()
        assert not answers(store)
        site.start()
        until(lambda: answers(store), what="the service")
        with closing(connect(site.settings.redis_url)) as admin:
            admin.execute_command("ACL", "DELUSER", "gpuqueue-host-steady")  # as a restart of the store does
        until(lambda: answers(store), what="the store")


@pytest.mark.parametrize("who", ["admin", "wrong"])
def test_only_a_host_is_served(site: ServedSite, tmp_path: Path, who: str) -> None:
    """The command that starts the tunnel says why not, and its exit code is that of a store that is away."""
    token = mine(site) if who == "admin" else mine(site, who)
    with closing_process(environment_of(site, tmp_path / who, token)) as tunnel:
        _, errors = tunnel.communicate(timeout=60)

    assert StoreUnreachable.exit_code == tunnel.returncode
    assert f"gpuqueue-worker: the service at https://127.0.0.1:{site.port} does not serve this host: " in errors
    assert 1 == len(errors.splitlines())


def test_a_host_does_not_use_the_token_of_another(site: ServedSite, tmp_path: Path) -> None:
    """The service would ask the other host for the logs of the jobs that run here."""
    with closing_process(environment_of(site, tmp_path / "gpu3", host_token(site, "gpu2"))) as tunnel:
        _, errors = tunnel.communicate(timeout=60)

    assert BadRequest.exit_code == tunnel.returncode
    line = "has the token of host gpu2, and this is host gpu3: make a token for this one with gpuqueue token create"
    assert line in errors
    assert 1 == len(errors.splitlines())


def test_a_command_on_a_refused_host_says_why(site: ServedSite, join: Join) -> None:
    """The tunnel tries again after a pause. Until then each command finds the reason in its record."""
    settings = join("expired")
    parts = parts_of((settings.state_dir / "token").read_text())
    assert parts is not None
    with ExitStack() as stack:
        settings.logs_dir.mkdir()
        log = stack.enter_context((settings.logs_dir / "host.log").open("w"))
        host = stack.enter_context(subprocess.Popen(["/bin/sleep", "300"], stdout=log))
        stack.callback(host.kill)
        ownership.write_pid(settings.state_dir / "host.pid", host.pid)  # so this host is up
        client = stack.enter_context(site.client("unix"))
        queue = stack.enter_context(closing(JobQueue.of(settings)))
        assert queue.epoch()
        client.access.revoke_token(parts.id)
        until(lambda: not is_open(queue), what="the end of the connection")
        with pytest.raises(StoreUnreachable, match="token is not valid: make one with gpuqueue token create --host"):
            until(lambda: not queue.epoch(), what="an answer")

        (settings.state_dir / "token").write_text(host_token(site, "expired"))
        until(lambda: is_open(queue), what="the new token")
    assert not (settings.state_dir / ownership.TUNNEL_TROUBLE).exists()


def is_open(queue: JobQueue) -> bool:
    """Return whether the store of *queue* answers."""
    try:
        return queue.epoch() is not None
    except StoreUnreachable:
        return False


@pytest.mark.full
def test_a_silent_network_ends_a_connection_in_seconds(site: ServedSite, join: Join) -> None:
    """Packets vanish in both directions: each end asks the other, and takes no answer for the end."""
    with ExitStack() as stack:
        link = Link(f"tcp://127.0.0.1:{site.port}")
        stack.callback(link.close)
        settings = join("far", link.port)
        store = stack.enter_context(closing(connect(settings.redis_url)))
        assert answers(store)
        link.cut()
        assert not answers(store)
        link.heal()
        until(lambda: answers(store), what="the store")


@pytest.mark.parametrize("path", ["/api/v1/host/settings", "/api/v1/jobs", "/", "/api/v1/host/store"])
def test_nothing_else_becomes_a_websocket(site: ServedSite, path: str) -> None:
    """The right path does not without the token of a host."""
    context = ssl.create_default_context(cafile=str(site.directory / "cert.pem"))
    with pytest.raises(InvalidStatus) as refused:
        connect_websocket(f"wss://127.0.0.1:{site.port}{path}", ssl=context, proxy=None)

    assert refused.value.response.status_code in {200, 401, 404}
