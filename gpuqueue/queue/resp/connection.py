"""One connection to a store.

Text is UTF-8. Other bytes become escaped surrogates, and are sent back unchanged.
"""

from __future__ import annotations

import _socket
import re
import select
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    import socket
    import ssl


class RespError(Exception):
    """The base of all client errors. They do not leave the queue package: see ``connect.translated``."""


class Gone(RespError):
    """No connection, or no answer in time. It is unknown whether the command has run."""


class NotConnected(Gone):
    """No connection. No command was sent."""


class ReplyError(RespError):
    """The store answered with an error. The text begins with the code of the error, such as ``OOM``."""


class NotLetIn(ReplyError):
    """Authentication failed."""


class NoStore(RespError):
    """The server does not speak the Redis protocol."""


_CHUNK_BYTES = 65536
Word = str | int | float

#: Limits of a valid answer: the lengths of a line and a string in bytes, and the depth of nested lists.
MAX_LINE_BYTES = 64 * 1024
MAX_STRING_BYTES = 512 * 1024 * 1024
MAX_DEPTH = 32

_END = b"\r\n"
_CONSTANTS = {b"_": None, b"#t": True, b"#f": False}
#: Host and port if the URL does not name them.
HOST, PORT = "localhost", 6379
#: Maximum number of digits of a database number.
MOST_DIGITS = 9

#: URL parameters that this client supports: for all connections, and for TLS only.
_PLAIN = frozenset({"db", "username", "password", "client_name"})
_TLS = frozenset({"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password"})
#: A host name that needs no encoding before the lookup.
_HOST_NAME = r"[A-Za-z0-9_.:-]{1,253}"


class Line:
    """A connection to the store at *address*. After any RespError the only valid call is ``close``.

    *connect_s* is the timeout for the connection, *silent_s* the timeout for an answer, in seconds.
    """

    def __init__(self, address: Address, *, connect_s: float, silent_s: float) -> None:
        self._silent_s = silent_s
        self._reader = Reader(self._more)
        self._socket: _socket.socket
        try:
            self._socket = _connected(address, connect_s)
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte, a name that cannot be looked up
            raise NotConnected(f"no connection: {error}") from error
        try:
            self._socket.settimeout(silent_s)
            self._enter(address)
        except BaseException as error:
            self.close()
            if isinstance(error, Gone):
                raise NotConnected(str(error)) from error
            raise

    def _enter(self, address: Address) -> None:
        """Authenticate, and select the database.

        The first command waits for these answers. Otherwise a store that refuses them would still run the command, as
        another user or in another database.
        """
        who: list[Sequence[Word]] = []
        if address.password:
            who.append(
                ("AUTH", address.user or "default", address.password)
            )  # with a user name it also works on a store without a password
        if address.client_name:
            who.append(("CLIENT", "SETNAME", address.client_name))
        if address.database:
            who.append(("SELECT", address.database))
        if not who:
            return
        for asked, answer in zip(who, self.ask(who), strict=True):
            if isinstance(answer, ReplyError):
                raise NotLetIn(str(answer)) if asked[0] == "AUTH" else answer

    def ask(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Send all *commands* at once and return the answers; an error takes the place of its answer."""
        self.send(commands)
        return [self._reader.answer() for _ in commands]

    def send(self, commands: Sequence[Sequence[Word]]) -> None:
        """Send *commands*."""
        try:
            self._socket.sendall(b"".join(map(packed, commands)))
        except OSError as error:
            raise Gone(f"it does not listen: {error}") from error

    def heard(self, timeout_s: float) -> Any:
        """Return the next message of the store; None after *timeout_s* seconds."""
        self._socket.settimeout(max(timeout_s, 0.001))  # zero means non-blocking
        try:
            return self._reader.answer()
        except TimedOut:
            return None
        finally:
            self._socket.settimeout(self._silent_s)

    def is_quiet(self) -> bool:
        """Return whether nothing unexpected has arrived, such as the end of the connection."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _more(self) -> bytes:
        try:
            chunk = self._socket.recv(_CHUNK_BYTES)
        except TimeoutError as error:
            raise TimedOut("it says nothing") from error
        except OSError as error:
            raise Gone(f"the connection broke: {error}") from error
        if not chunk:
            raise Gone("it closed the connection")
        return chunk


class TimedOut(Gone):
    """The store did not answer within the timeout."""


def _connected(address: Address, connect_s: float) -> _socket.socket:
    if address.path:
        here = _socket.socket(_socket.AF_UNIX)
        try:
            here.settimeout(connect_s)
            here.connect(address.path)
        except BaseException:
            here.close()
            raise
        return here
    import socket  # noqa: PLC0415 - slow to import, and a unix socket does not need it

    made = socket.create_connection((address.host, address.port), timeout=connect_s)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if address.tls is None:
            return made
        return wrapped(made, address.host, address.tls)
    except BaseException:
        made.close()
        raise


def packed(words: Sequence[Word]) -> bytes:
    """Return one command in wire format."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        text = (word if isinstance(word, str) else repr(word)).encode("utf-8", "surrogateescape")
        parts += (b"$%d\r\n" % len(text), text, _END)
    return b"".join(parts)


class Reader:
    """Reads answers from the bytes that *more* returns; *more* must return at least one byte, or raise.

    If *more* raises in the middle of an answer, no data is lost: the next call starts with that answer again.
    """

    def __init__(self, more: Callable[[], bytes]) -> None:
        self._more = more
        self._buffer = bytearray()
        self._at = 0

    def answer(self) -> Any:
        """Return the next answer; an error of the store is returned as an exception object, nested or not.

        Raises:
            NoStore: the bytes are not RESP.

        """
        self._at = 0
        found = self._next(0)
        del self._buffer[: self._at]
        return found

    def _next(self, depth: int) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind in _LINES:
            return _LINES[kind](rest)
        if kind in {b"$", b"=", b"!"}:
            return self._string(kind, _number(rest))
        if kind in {b"*", b"~", b">", b"%", b"|"}:
            return self._many(kind, _number(rest), depth + 1)
        return _constant(line)

    def _many(self, kind: bytes, count: int, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise NoStore("an answer nests too deeply")
        if kind not in {b"%", b"|"}:
            return None if count < 0 else [self._next(depth) for _ in range(count)]
        pairs = {_hashable(self._next(depth)): self._next(depth) for _ in range(count)}
        return pairs if kind == b"%" else self._next(depth)  # attributes precede the answer

    def _string(self, kind: bytes, length: int) -> str | ReplyError | None:
        if length < 0:
            return None
        if length > MAX_STRING_BYTES:
            raise NoStore(f"a string of {length} bytes")
        until = self._at + length
        while len(self._buffer) < until + len(_END):
            self._buffer += self._more()
        if self._buffer[until : until + len(_END)] != _END:
            raise NoStore("a string does not end where it should")
        text = _text(self._buffer[self._at : until])
        self._at = until + len(_END)
        if kind == b"!":
            return ReplyError(text)
        return text[4:] if kind == b"=" else text  # without the prefix "txt:"

    def _line(self) -> bytes:
        from_here = self._at
        while (end := self._buffer.find(_END, from_here)) < 0:
            if len(self._buffer) - self._at > MAX_LINE_BYTES:
                raise NoStore("a line has no end")
            from_here = max(self._at, len(self._buffer) - 1)
            self._buffer += self._more()
        line = bytes(self._buffer[self._at : end])
        self._at = end + len(_END)
        return line


def _text(raw: bytes | bytearray) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _number(raw: bytes) -> int:
    try:
        return int(raw)
    except ValueError:
        raise NoStore(f"{raw[:40]!r} is no number") from None


#: Parsers of one-line answers, by the first byte.
_LINES: dict[bytes, Callable[[bytes], Any]] = {
    b"+": _text,
    b"-": lambda rest: ReplyError(_text(rest)),
    b":": _number,
    b"(": _number,
}


def _constant(line: bytes) -> float | bool | None:
    if line in _CONSTANTS:
        return _CONSTANTS[line]
    if line[:1] == b",":
        try:
            return float(line[1:])
        except ValueError:
            pass
    raise NoStore(f"{line[:40]!r} is no answer")


def _hashable(key: Any) -> Any:
    if isinstance(key, (list, dict)):
        raise NoStore("a list is no name")
    return key


class Address(NamedTuple):
    """The address of a store, and the credentials. One of ``path`` (of a unix socket) and ``host`` is empty."""

    path: str
    host: str
    port: int
    user: str
    password: str
    database: int
    client_name: str
    #: The TLS parameters of the URL; None without TLS.
    tls: Mapping[str, str] | None


def parsed(url: str) -> Address | None:
    """Return the address in *url*, or None if *url* has anything that this client does not support."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORT
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        return None
    words = dict(given)
    tls = parts.scheme == "rediss"
    known = _PLAIN | _TLS if tls else _PLAIN
    path = unquote(parts.path)
    database = words.get("db", "0" if parts.scheme == "unix" else path.strip("/") or "0")
    if (
        parts.scheme not in {"redis", "rediss", "unix"}
        or not known.issuperset(words)
        or len(words) < len(given)  # a repeated parameter
        or not all(words.values())
        or parts.fragment
        or not (database.isascii() and database.isdecimal() and len(database) <= MOST_DIGITS)
    ):
        return None
    user = unquote(parts.username or "") or words.get("username", "")
    password = unquote(parts.password or "") or words.get("password", "")
    is_local = parts.scheme == "unix"
    host = "" if is_local else unquote(parts.hostname or HOST)
    if (user and not password) or (is_local and not path) or not (is_local or re.fullmatch(_HOST_NAME, host)):
        return None
    return Address(
        path=path if is_local else "",
        host=host,
        port=port,
        user=user,
        password=password,
        database=int(database),
        client_name=words.get("client_name", ""),
        tls={name: words[name] for name in _TLS & set(words)} if tls else None,
    )


def wrapped(plain: socket.socket, host: str, files: Mapping[str, str]) -> socket.socket:
    """Return *plain* with TLS, after a check of the store's certificate for *host*.

    Raises:
        OSError: the certificate is not valid, or *files* cannot be read; ssl.SSLError is a subclass.

    """
    context = tls_context(files)
    plain.getpeername()  # Python's ssl module would not close the socket of a connection that was reset before this
    return context.wrap_socket(plain, server_hostname=host)


def tls_context(files: Mapping[str, str]) -> ssl.SSLContext:
    """Return what TLS with a store needs. *files* are the TLS parameters of its URL.

    Raises:
        OSError: *files* cannot be read.

    """
    import ssl  # noqa: PLC0415 - slow to import, and only a line with TLS needs it

    context = ssl.create_default_context()
    if "ssl_ca_certs" in files or "ssl_ca_path" in files:
        context.load_verify_locations(cafile=files.get("ssl_ca_certs"), capath=files.get("ssl_ca_path"))
    if "ssl_certfile" in files:
        context.load_cert_chain(files["ssl_certfile"], files.get("ssl_keyfile"), files.get("ssl_password"))
    return context
