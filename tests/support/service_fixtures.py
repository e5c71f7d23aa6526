"""A site with its HTTP service, and a client for each kind of connection. conftest.py names this module."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import forked_service
import pytest
from factories import make_admin, make_offer, serve
from forked_service import ServiceProcess
from template_history import make_tables

from gpuqueue.client import Client
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.access_token import AccessToken, digest_of, new_token
from gpuqueue.model.caller import CallerKind, Scope
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import current_account
from workers.services.recorder import Recorder


def certificate(directory: Path) -> tuple[Path, Path]:
    """Return a self-signed certificate for 127.0.0.1 and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl program to make a certificate with")
    made, key = directory / "cert.pem", directory / "key.pem"
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    what = ("-x509", *kind, "-days", "2", "-subj", "/CN=service")
    where = ("-addext", "subjectAltName=IP:127.0.0.1", "-out", str(made), "-keyout", str(key))
    subprocess.run([openssl, "req", *what, *where], check=True, capture_output=True)
    return made, key


@dataclass
class ServedSite:
    """A site without workers: a store, a history, one device, and a service with a socket and TLS."""

    settings: Settings
    queue: JobQueue
    directory: Path
    port: int
    process: ServiceProcess | None = None
    #: Settings of the service, beside those that each site needs.
    chosen: Mapping[str, str] = field(default_factory=dict)
    #: Constants of the service's modules, by module and name.
    bounds: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment of the service."""
        return {
            **os.environ,
            "GPUQUEUE_STATE_DIR": str(self.settings.state_dir),
            "GPUQUEUE_HOST": self.settings.host,
            "GPUQUEUE_CONFIG": os.devnull,
            "GPUQUEUE_REQUEST_RATE": "none",
            "GPUQUEUE_ACCESS": "drain=everybody",
            "GPUQUEUE_ADMINS": current_account("here").name,
            **self.chosen,
        }

    @property
    def socket_path(self) -> Path:
        """Return the path of the service's socket."""
        return self.directory / "api.sock"

    def start(self) -> None:
        """Start the service and wait until it accepts connections."""
        words = [
            str(self.socket_path),
            str(self.port),
            str(self.directory / "cert.pem"),
            str(self.directory / "key.pem"),
            *[f"{name}={value}" for name, value in self.bounds.items()],
        ]
        self.process = forked_service.start(words, self.environ, self.directory / "service.log")

    def kill(self) -> None:
        """End the service with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=30)

    def client(self, kind: str, token: str = "mine") -> Client:
        """Return a client for *kind*: direct, unix or https."""
        if kind == "direct":
            return Client(self.settings)
        url = f"unix://{self.socket_path}" if kind == "unix" else f"https://127.0.0.1:{self.port}"
        return Client(replace(self.settings, url=url, token_file=self.directory / token))

    def token(self, account: str, uid: int, scopes: frozenset[Scope] = frozenset(Scope)) -> str:
        """Return a new access token of *account*."""
        with closing(HistoryDatabase(self.settings.database_url)) as database:
            return _token(database, account, uid, scopes)

    def record(self) -> None:
        """Bring the history up to date."""
        with closing(HistoryDatabase(self.settings.database_url)) as database:
            recorder = Recorder(self.settings, self.queue, database)
            recorder.mend()
            while recorder.record(0):
                pass


#: The tests send more requests that no account is responsible for than an address may: their rate is unbounded here.
_BOUNDS: Mapping[str, float | str] = {"gpuqueue.service.identity.site_identity:PER_ADDRESS": 1e6}


def ask(
    served: ServedSite, path: str, token: str | None = None, *, method: str = "GET", body: Any = None
) -> tuple[int, Any]:
    """Return the status and the JSON of an answer over TLS."""
    context = ssl.create_default_context(cafile=served.directory / "cert.pem")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with closing(http.client.HTTPSConnection("127.0.0.1", served.port, context=context, timeout=60)) as link:
        link.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
        answer = link.getresponse()
        return answer.status, json.loads(answer.read() or b"null")


def mine(served: ServedSite, name: str = "mine") -> str:
    """Return a token that the site's fixture has made."""
    return (served.directory / name).read_text()


def _write_tokens(settings: Settings, directory: Path) -> None:
    """Make access tokens of this account and of bob, and write them and a wrong one to files in *directory*."""
    me, wrong = current_account("here"), new_token()
    with closing(HistoryDatabase(settings.database_url)) as database:
        texts = {"mine": _token(database, me.name, me.uid), "bobs": _token(database, "bob", 54321), "wrong": str(wrong)}
    for name, text in texts.items():
        path = directory / name
        path.write_text(text)
        path.chmod(0o600)


def _token(database: HistoryDatabase, account: str, uid: int, scopes: frozenset[Scope] = frozenset(Scope)) -> str:
    secret = new_token()
    token = AccessToken(
        id=secret.id,
        kind=CallerKind.PERSON,
        account=account,
        uid=uid,
        scopes=scopes,
        name="test",
        made_by=account,
        made_at=datetime.now(timezone.utc),
    )
    database.add_token(token, digest_of(secret.secret))
    return str(secret)


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site with its service. The tests of a module share it, and each makes its own jobs."""
    with serving() as site:
        yield site


@contextmanager
def serving(bounds: Mapping[str, float | str] | None = None, **chosen: str) -> Iterator[ServedSite]:
    """Run a site with its service, which has the settings *chosen*, such as ``GPUQUEUE_ADMINS``.

    *bounds* are constants of the service's modules, such as ``gpuqueue.service.peer_protocol:REQUEST_S``.
    """
    directory = Path(mkdtemp(prefix="gpuqueue-served-"))
    certificate(directory)
    environ = {
        "GPUQUEUE_STATE_DIR": str(directory / "state"),
        "GPUQUEUE_CONFIG": os.devnull,
        "GPUQUEUE_HOST": make_offer().host,
        "GPUQUEUE_SNAPSHOT": "false",  # most tests have no code
    }
    settings = Settings.load(environ)
    store = EmbeddedStore(settings)
    store.start()
    make_tables(settings.database_url)
    queue = JobQueue(settings.redis_url)
    queue.recovery.open(0)
    make_admin(queue)
    serve(queue)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    site = ServedSite(settings, queue, directory, port, chosen=chosen, bounds={**_BOUNDS, **(bounds or {})})
    _write_tokens(settings, directory)
    site.start()
    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = str(directory / "cert.pem")
    try:
        yield site
    finally:
        if before is None:
            del os.environ["SSL_CERT_FILE"]
        site.kill()
        queue.close()
        store.stop()
        shutil.rmtree(directory, ignore_errors=True)
