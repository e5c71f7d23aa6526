"""The server process: a unix socket and TCP, one event loop, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import ipaddress
import logging
import os
import signal
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import uvicorn
import uvloop

from gpuqueue.clock import SystemClock
from gpuqueue.errors import BadRequest, GpuQueueError, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.joining import MAX_MESSAGE_BYTES
from gpuqueue.service import peer_protocol, store_tunnel
from gpuqueue.service.app import application
from gpuqueue.service.call import Identity
from gpuqueue.service.peer_protocol import Connections, PeerProtocol, permit_many_files
from gpuqueue.service.repeating import Repeater
from gpuqueue.service.responses import OtherHost, answer_of
from gpuqueue.service.site import Site
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import current_account
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: How long requests may take after the order to stop, in seconds. Streams and long polls end by themselves.
STOP_S = 5
#: How long a connection without a request is kept, in seconds.
IDLE_S = 75
#: Connections that wait to be accepted.
BACKLOG = 512
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
#: Addresses to listen at that are no addresses to call.
_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - nothing listens by this


@dataclass(frozen=True, kw_only=True, slots=True)
class Listen:
    """Where the service listens: a unix socket, and an address of TCP with or without TLS."""

    path: Path | None = None
    host: str = ""
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: bool = False
    #: Whether only the account of the service may connect to the unix socket.
    is_private: bool = False

    @property
    def url(self) -> str | None:
        """The address of the page at the TCP socket, None without one. Everywhere is at the name of this machine."""
        if not self.host:
            return None
        name = socket.gethostname().lower() if self.host in _EVERY_ADDRESS else self.host
        host = f"[{name}]" if ":" in name else name
        return f"{'https' if self.certificate is not None else 'http'}://{host}:{self.port}"

    def check(self) -> None:
        """Check that access tokens are never sent in the clear.

        Raises:
            BadRequest: they would be, or there is no address to listen at.
            Refused: the certificate cannot be used.

        """
        if self.path is None and not self.host:
            raise BadRequest("the service must listen somewhere: --socket PATH, or --listen HOST:PORT")
        if (self.certificate is None) != (self.key is None):
            raise BadRequest("--tls-cert and --tls-key belong together: give both")
        if self.certificate is not None and not self.host:
            raise BadRequest("--tls-cert is for --listen: give both")
        if self.host and self.certificate is None and self.host not in _LOOPBACK and not self.behind_proxy:
            raise BadRequest(
                "plain HTTP shows access tokens to the network: give --tls-cert and --tls-key, or --behind-proxy if a "
                "proxy adds TLS"
            )
        if self.certificate is not None and self.key is not None:
            for file in (self.certificate, self.key):
                _check_readable(file)
            _check_pair(self.certificate, self.key)


def _check_pair(certificate: Path, key: Path) -> None:
    """Check that *key* has no passphrase, which nobody could type for a service, and belongs to *certificate*.

    Raises:
        Refused: it has one, or the two cannot be used.

    """

    def passphrase() -> str:
        raise Refused(f"the key {key} has a passphrase: write one without it (openssl pkey -in {key} -out FILE)")

    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, passphrase)
    except OSError as error:  # ssl.SSLError is one
        belong = getattr(error, "reason", None) != "KEY_VALUES_MISMATCH"
        why = "one is no PEM file, or they are exchanged" if belong else "they do not belong together"
        raise Refused(f"the certificate {certificate} with the key {key} cannot be used: {why}") from error


def _check_readable(file: Path) -> None:
    """Check that this account can read a file of TLS.

    Raises:
        Refused: it cannot.

    """
    try:
        file.open("rb").close()
    except OSError as error:
        account = current_account("").name
        remedy = f": let the account {account} read it, and enter its directory" if error.errno == errno.EACCES else ""
        raise Refused(f"{file} cannot be read for TLS: {error.strerror}{remedy}") from error


class OwnHosts:
    """ASGI middleware that refuses requests for other hosts.

    A page elsewhere may have a name that leads to this machine (DNS rebinding). To a browser, the answers of this
    service would be those of that page. A request for an address and no name is not from such a page. With TLS none is:
    the certificate does not have its name.
    """

    def __init__(self, app: ASGIApp, listen: Listen, web_url: str | None) -> None:
        """Pass requests to *app* that are for where it listens, for this machine, or for *web_url*."""
        self._app = app
        machine = socket.gethostname().lower()
        names = {listen.host.lower(), machine, machine.partition(".")[0], "localhost"}
        self._names = names | ({str(urlsplit(web_url).hostname)} if web_url else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        name = self._other(scope) if scope["type"] in {"http", "websocket"} else None
        if name is None:
            await self._app(scope, receive, send)
            return
        error = OtherHost(
            f"this is not the service of {brief(name)}: call it by the address at which it listens, or by that of the "
            "setting web_url"
        )
        await answer_of(error)(scope, receive, send)

    def _other(self, scope: Scope) -> str | None:
        """Return the name of another host that a request is for, None if it is for this one."""
        hosts: list[str] = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        for host in hosts:
            try:
                name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
            except ValueError:
                return host
            if name in self._names or name.endswith(".localhost"):
                continue
            try:
                ipaddress.ip_address(name.partition("%")[0])
            except ValueError:
                return host
        return None


class _Loop(uvloop.Loop):
    """A loop with less patience for the beginning and the end of TLS than the minute and half of one by default."""

    async def create_server(self, *args: Any, **words: Any) -> Any:
        if words.get("ssl") is not None:
            words["ssl_handshake_timeout"] = peer_protocol.HANDSHAKE_S
            words["ssl_shutdown_timeout"] = peer_protocol.SHUTDOWN_S
        return await super().create_server(*args, **words)


class _Server(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    settings: Settings,
    identity: Identity,
    listen: Listen,
    ready: Callable[[], None] = lambda: None,
    stopping: threading.Event | None = None,
) -> None:
    """Serve until *stopping* is set; without it, until SIGTERM or SIGINT. *ready* is called once clients can connect.

    Raises:
        BadRequest: see :meth:`Listen.check`.
        Refused: another service listens there, or the address cannot be used.

    """
    listen.check()
    with contextlib.ExitStack() as stack:
        sockets = []
        if listen.path is not None:
            sockets.append(
                (stack.enter_context(_unix_socket(listen.path, 0o600 if listen.is_private else 0o666)), False)
            )
        if listen.host:
            sockets.append((stack.enter_context(_tcp_socket(listen.host, listen.port)), True))
        identity.start()
        stack.callback(identity.close)
        loop = _Loop()
        try:
            loop.run_until_complete(_served(settings, identity, listen, sockets, ready, stopping))
        finally:
            loop.close()


async def _served(
    settings: Settings,
    identity: Identity,
    listen: Listen,
    sockets: list[tuple[socket.socket, bool]],
    ready: Callable[[], None],
    stopping: threading.Event | None,
) -> None:
    site = Site(settings, identity, settings.web_url or listen.url, is_private=listen.is_private)
    app = application(site)
    permit_many_files()
    logging.getLogger("uvicorn.error").addFilter(_is_worth_logging)
    checked = app if listen.certificate is not None else OwnHosts(app, listen, settings.web_url)
    servers = [_Server(_config(checked if is_tcp else app, listen, is_tcp=is_tcp)) for _, is_tcp in sockets]
    stop = asyncio.create_task(_stop_of(stopping))
    running = [
        asyncio.create_task(server.serve(sockets=[each])) for server, (each, _) in zip(servers, sockets, strict=True)
    ]
    while not all(each.started for each in servers) and not any(each.done() for each in running):  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    ready()
    site.past.start()
    ended = threading.Event()
    repeater = Repeater(settings, identity, SystemClock(), site.signer)
    repeating = threading.Thread(target=repeater.loop, args=(ended,), name="repeating", daemon=True)
    repeating.start()
    if any(each.when_waiting_s is not None for each in settings.burst.values()):
        from gpuqueue.service.bursting import Burster  # noqa: PLC0415 - only at sites with such a rule

        burster = Burster(settings, SystemClock(), figures=site.metrics.pilots)
        threading.Thread(target=burster.loop, args=(ended,), name="bursting", daemon=True).start()
    await asyncio.wait([stop, *running], return_when=asyncio.FIRST_COMPLETED)
    ended.set()
    site.stop()
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*running)
    await asyncio.to_thread(repeating.join, STOP_S)
    site.close()


async def _stop_of(stopping: threading.Event | None) -> None:
    """Wait until *stopping* is set; without it, until SIGTERM or SIGINT."""
    if stopping is not None:
        await asyncio.to_thread(stopping.wait)
        return
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


def _is_worth_logging(entry: logging.LogRecord) -> bool:
    """Return whether to log an entry of uvicorn. It takes a WebSocket that was refused with an answer for a fault."""
    return "without completing handshake" not in str(entry.msg)


def _config(app: object, listen: Listen, *, is_tcp: bool) -> uvicorn.Config:
    counted = None if is_tcp and listen.behind_proxy else Connections()  # a proxy has those of many clients
    return uvicorn.Config(
        app,  # type: ignore[arg-type] # an ASGI application
        http=partial(PeerProtocol, counted=counted),  # type: ignore[arg-type] # makes a protocol, as a class does
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=store_tunnel.PING_S,
        ws_ping_timeout=store_tunnel.PING_S,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[("x-content-type-options", "nosniff")],  # what users write is never a page or a script
        proxy_headers=is_tcp and listen.behind_proxy,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=str(listen.certificate) if is_tcp and listen.certificate else None,
        ssl_keyfile=str(listen.key) if is_tcp and listen.key else None,
    )


@contextmanager
def _unix_socket(path: Path, mode: int) -> Iterator[socket.socket]:
    """Listen at *path*. A socket that a dead service has left is replaced, a live service is not."""
    lock = -1
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
            raise Refused(f"{path} is there and is no socket: name another path with --socket")
        path.unlink(missing_ok=True)
        made.bind(str(path))
        path.chmod(mode)  # with 0o666 every account may connect: the kernel says which one it is
        made.listen(BACKLOG)
        yield made
    except BlockingIOError:
        raise Refused(f"another service listens at {path}: stop it, or name another path with --socket") from None
    except OSError as error:
        raise GpuQueueError(
            f"cannot listen at {path}: {error.strerror or error}. Name a path in a directory of yours with --socket"
        ) from error
    finally:
        made.close()
        if lock >= 0:
            os.close(lock)


@contextmanager
def _tcp_socket(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        raise GpuQueueError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    try:
        yield made
    finally:
        made.close()
