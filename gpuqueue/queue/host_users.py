"""The users in a store for worker hosts that reach it through the service: one for each host.

The service makes them (``ACL SETUSER``) with passwords of its own process, which never leave it. A store that was
restarted has forgotten them, and gets them again with the next connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuqueue.errors import Refused
from gpuqueue.queue.connect import COMMAND_TIMEOUT_S, translated
from gpuqueue.queue.resp.connection import Address, Gone, Line, NotLetIn, ReplyError, packed, parsed, tls_context

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

    from gpuqueue.settings.settings import Settings

#: The access rule of a store that other accounts use: all that gpuqueue needs, and no administration of the server. The
#: documentation has the same for a store of one's own (docs/explanation/identity.md).
SHARED_RULE = (
    *("~{gq}:*", "&{gq}:*", "&{gq}:celery:/0.celery.pidbox", "&{gq}:celery:/0.celeryev/*"),
    *("+@all", "-@admin", "-@dangerous", "+info"),
)
#: The user as which the service makes and removes the users of hosts, in an embedded store that other accounts use, and
#: what that user may do.
SERVICE_USER, SERVICE_RULE = "gpuqueue-service", ("-@all", "+acl|setuser", "+acl|deluser")
#: The file with that user's password, in the directory of the store's files.
SECRET_FILE = "service-secret"  # noqa: S105 - the name of a file
#: The start of the name of a host's user.
PREFIX = "gpuqueue-host-"
#: Why the service can make no users in a store, and what to do.
_MAY_NOT = (
    "the service may make no users in the store, so hosts cannot use it through the service: give its user there "
    "+acl|setuser and +acl|deluser, or set hosts_redis_url"
)
_OLDER_STORE = (
    "the store was started by an older version of gpuqueue, which no host can use through the service: restart it"
)


def digest_of(password: str) -> str:
    """Return *password* as ``ACL SETUSER`` takes it, so that no list of processes or commands shows it."""
    return f"#{hashlib.sha256(password.encode('ascii')).hexdigest()}"


def make_secret(directory: Path) -> str:
    """Return a new password of the service for the store of *directory*, which it keeps there for this account only.

    Raises:
        OSError: the file cannot be written.

    """
    secret = secrets.token_hex(32)
    draft = directory / f"{SECRET_FILE}.new"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(secret)
    draft.replace(directory / SECRET_FILE)
    return secret


def _secret_of(directory: Path) -> str:
    """Return the password of the service for the store of *directory*.

    Raises:
        Refused: there is none, because the store was started by an older version.

    """
    try:
        return (directory / SECRET_FILE).read_text(encoding="ascii")
    except OSError as error:
        raise Refused(_OLDER_STORE) from error


class _HostUser(NamedTuple):
    name: str
    password: str


class HostUsers:
    """Makes the users of hosts, and opens their connections. Threads may share an instance."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._known: dict[str, _HostUser] = {}

    async def connect(self, host: str) -> tuple[StreamReader, StreamWriter]:
        """Return a connection to the store on which the user of *host* is logged in.

        Raises:
            Unreachable: the store does not answer, or cannot serve.
            Refused: the service may make no users there, or the address of the store has unusual parameters.

        """
        with translated(self._settings.redis_url):
            try:
                return await self._login(await asyncio.to_thread(self._user, host))
            except NotLetIn:  # the store was started again, and has forgotten the user
                self._forget(host)
                return await self._login(await asyncio.to_thread(self._user, host))

    def remove(self, host: str) -> None:
        """Remove the user of *host* from the store, which ends its connections there.

        Raises:
            Unreachable: the store does not answer, or cannot serve.
            Refused: as for :meth:`connect`.

        """
        self._forget(host)
        with translated(self._settings.redis_url):
            self._administer("DELUSER", PREFIX + host)

    def _forget(self, host: str) -> None:
        with self._lock:
            self._known.pop(host, None)

    def _user(self, host: str) -> _HostUser:
        """Return the user of *host*, and make it in the store unless this process has done so."""
        with self._lock:
            user = self._known.get(host)
            if user is None:
                user = _HostUser(PREFIX + host, secrets.token_hex(32))
                database = f"/{_address(self._settings.redis_url).database}."
                rule = [word.replace("/0.", database) for word in SHARED_RULE]
                self._administer("SETUSER", user.name, "reset", "on", digest_of(user.password), *rule)
                self._known[host] = user
            return user

    def _administer(self, *words: str) -> None:
        settings = self._settings
        address = _address(settings.redis_url)
        if settings.embedded and settings.store_socket is not None:
            address = address._replace(user=SERVICE_USER, password=_secret_of(settings.state_dir / "store"))
        try:
            with closing(Line(address, connect_s=COMMAND_TIMEOUT_S, silent_s=COMMAND_TIMEOUT_S)) as line:
                (answer,) = line.ask([("ACL", *words)])
        except NotLetIn as error:
            if address.user == SERVICE_USER:
                raise Refused(_OLDER_STORE) from error
            raise
        if isinstance(answer, ReplyError):
            raise Refused(_MAY_NOT) if "NOPERM" in str(answer) else answer

    async def _login(self, user: _HostUser) -> tuple[StreamReader, StreamWriter]:
        address = _address(self._settings.redis_url)
        try:
            return await asyncio.wait_for(_logged_in(address, user), COMMAND_TIMEOUT_S)
        except (OSError, ValueError, EOFError, TimeoutError, asyncio.TimeoutError) as error:
            raise Gone(f"no connection: {error}") from error


def _address(url: str) -> Address:
    address = parsed(url)
    if address is None:
        raise Refused("hosts cannot use the store through the service, because its address has unusual parameters")
    return address


async def _logged_in(address: Address, user: _HostUser) -> tuple[StreamReader, StreamWriter]:
    if address.path:
        reader, writer = await asyncio.open_unix_connection(address.path)
    else:
        context = None if address.tls is None else tls_context(address.tls)
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    try:
        for words in (("AUTH", user.name, user.password), ("SELECT", address.database)):
            writer.write(packed(words))
            answer = (await reader.readuntil(b"\r\n")).decode("utf-8", "replace").strip()
            _check(words[0], answer)
    except BaseException:
        writer.close()
        raise
    return reader, writer


def _check(command: object, answer: str) -> None:
    if not answer.startswith("+"):
        raise (NotLetIn if command == "AUTH" and "WRONGPASS" in answer else ReplyError)(answer.lstrip("-"))
