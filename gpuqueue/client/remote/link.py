"""Requests to the service: authentication, connections that are kept, lost answers, and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from gpuqueue import errors
from gpuqueue.client.remote.http import Answer, ClosedEarly, HttpConnection, NoHttp, Place
from gpuqueue.codec.wire import from_plain, to_plain
from gpuqueue.errors import GpuQueueError, ServiceUnreachable
from gpuqueue.lazy.imports import later
from gpuqueue.version import VERSION

if TYPE_CHECKING:
    from gpuqueue.client.remote import credentials
    from gpuqueue.model.job_spec import Account
    from gpuqueue.settings.settings import Settings
else:
    credentials = later("gpuqueue.client.remote.credentials")

#: The path below which the service has this version of the API.
API = "/api/v1"
#: Longest silence of the service in an ordinary answer, in seconds. A history search may take that long.
ANSWER_S = 60.0
CONNECT_S = 5.0
#: How long a request is sent again after its answer was lost, and the pause before that, in seconds. This is enough for
#: a restart of the service.
LOST_S, AGAIN_S = 30.0, 0.2
#: The HTTP status of a refusal because the account asks too often, and how long a request is sent again after it, in
#: seconds. What was refused has changed nothing.
TOO_MANY, BUSY_S = 429, 60.0
#: A connection that was idle for less, in seconds, is still open, unless the service has ended.
FRESH_S = 30.0
#: Headers of an answer: the name and the message of an error that left the answer incomplete.
PARTIAL_ERROR, PARTIAL_ERROR_DETAIL = "gpuqueue-away", "gpuqueue-away-detail"
#: Header with a warning about an answer.
WARNING = "gpuqueue-warning"

T = TypeVar("T")
#: The kind of an answer that has no content, or whose content does not matter.
NOTHING: type[Any] = type(None)


class Link:
    """The connections of one client to a service. Threads may share it: each request takes a connection of its own."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.settings = settings
        self.url = url
        self.place = Place.of(url)
        self._idle: list[HttpConnection] = []

    @property
    def account(self) -> Account:
        """Return the account of this process. The service takes the account from the kernel or from the token."""
        from gpuqueue.system.account import current_account  # noqa: PLC0415 - not needed by every command

        return current_account(self.settings.host)

    def get(self, kind: type[T], path: str, query: Mapping[str, Any] | None = None) -> T:
        """Return the value of the type *kind* at *path*. Names of *query* whose value is None are left out."""
        return self.send("GET", path, kind=kind, query=query)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: type[T] = NOTHING,
        query: Mapping[str, Any] | None = None,
        timeout_s: float = ANSWER_S,
    ) -> T:
        """Send a request and return the answer as *kind*; None without one.

        A request whose answer was lost is sent again. This is safe: a request that makes a job carries an idempotency
        key, and repeating any other request changes nothing more.
        """
        return self.answered(method, path, body, kind=kind, query=query, timeout_s=timeout_s)[0]

    def answered(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: type[T] = NOTHING,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = ANSWER_S,
        resend: bool = True,
    ) -> tuple[T, Answer]:
        """Return what :meth:`send` does, and the answer with its status and headers.

        Without *resend*, a request whose answer was lost is not sent again.
        """
        data = None if body is None else _body(body)
        content, answer = self._exchange(method, path + _query(query), headers or {}, data, timeout_s, resend=resend)
        found: Any = None
        if kind is bytes:
            found = content
        elif kind is not NOTHING:
            found = from_plain(kind, _json(content, self.url))
        return found, answer

    def stream(self, path: str, query: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the lines of a stream of events, on a connection of its own.

        Raises:
            ServiceUnreachable: the service does not answer, or the stream was cut off.

        """
        sent = {**headers, "Accept": "text/event-stream"}
        with self.opened(path, query, sent) as answer, self.reporting():
            rest = b""
            for piece in answer.pieces():
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines

    @contextmanager
    def opened(
        self,
        path: str,
        query: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None = None,
        *,
        begins_s: float | None = None,
    ) -> Iterator[Answer]:
        """Yield an answer whose body is read as it arrives, below ``reporting``. The connection is its own.

        It may take *begins_s* seconds until the answer begins, by default as long as an ordinary one.

        Raises:
            ServiceUnreachable: the service does not answer.

        """
        connection = self._connect()
        try:
            with self.reporting():
                sent = {**self.headers(), **(headers or {})}
                words = API + path + _query(query)
                answer = connection.ask("GET", words, sent, None, ANSWER_S if begins_s is None else begins_s)
                connection.limit(ANSWER_S)
                if answer.status != 200:  # noqa: PLR2004 - OK
                    raise self.error_in(answer.status, answer.body())
            yield answer
        finally:
            connection.close()

    def begun(self, path: str, body: Any) -> tuple[HttpConnection, Answer]:
        """Send a request, once, and return the answer before its body is read, with its connection.

        Raises:
            ServiceUnreachable: the service does not answer.

        """
        connection = self._connect()
        try:
            with self.reporting():
                data = _body(body)
                answer = connection.ask("POST", API + path, self.headers(), data, ANSWER_S)
                refused = None if answer.status == 200 else answer.body()  # noqa: PLR2004 - OK
        except BaseException:
            connection.close()
            raise
        if refused is not None:
            connection.close()
            raise self.error_in(answer.status, refused)
        return connection, answer

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Raise errors of a connection as ServiceUnreachable."""
        try:
            yield
        except (OSError, NoHttp) as error:
            raise self.unreachable(error) from error

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float, *, resend: bool
    ) -> tuple[bytes, Answer]:
        sent = {**self.headers(), **headers}
        until: float | None = None  # set once an answer was lost: the service may have done what was asked
        busy_until = time.monotonic() + BUSY_S
        while True:
            try:
                connection = self._idle_one(FRESH_S if not resend else None) or HttpConnection(self.place, CONNECT_S)
            except (OSError, ValueError) as error:
                if until is None or time.monotonic() > until:
                    raise self.unreachable(error, is_unanswered=until is not None) from error
                time.sleep(AGAIN_S)
                continue
            try:
                answer = connection.ask(method, API + path, sent, body, timeout_s)
                content = answer.body()
            except (OSError, NoHttp) as error:
                was_used = connection.is_used
                connection.close()
                until = until or time.monotonic() + LOST_S
                was_lost = isinstance(error, (OSError, ClosedEarly)) and not isinstance(error, TimeoutError)
                if not was_lost or time.monotonic() > until or not resend:
                    raise self.unreachable(error, is_unanswered=True) from error
                if not was_used:  # not only an idle connection that the service has closed
                    time.sleep(AGAIN_S)
                continue
            if answer.keeps_open:
                self._idle.append(connection)
            else:
                connection.close()
            if answer.status == TOO_MANY and time.monotonic() < busy_until:
                time.sleep(_pause_s(answer))
                continue
            if answer.status >= 400:  # noqa: PLR2004 - errors
                raise self.error_in(answer.status, content)
            return content, answer

    def _idle_one(self, fresh_s: float | None) -> HttpConnection | None:
        """Return an idle connection, if there is one; with *fresh_s*, one that was idle for less."""
        while self._idle:
            found = self._idle.pop()
            if fresh_s is None or time.monotonic() - found.answered_at_s < fresh_s:
                return found
            found.close()
        return None

    def _connect(self) -> HttpConnection:
        try:
            return HttpConnection(self.place, CONNECT_S)
        except (OSError, ValueError) as error:
            raise self.unreachable(error) from error

    def headers(self) -> dict[str, str]:
        """Return the headers of each request, with the proof of the account."""
        headers = {"User-Agent": f"gpuqueue/{VERSION}"}
        if not self.place.path:
            token = credentials.token_for(self.url, self.settings)
            if token is not None:
                headers["Authorization"] = f"Bearer {token}"
        return headers

    def error_in(self, status: int, content: bytes) -> GpuQueueError:
        """Return the error of a problem document, with the class that the service raised."""
        try:
            problem = json.loads(content)
            detail, name, code = str(problem["detail"]), str(problem["error"]), int(problem["exit_code"])
        except (ValueError, TypeError, KeyError):
            return ServiceUnreachable(
                f"{self.url} answers with HTTP status {status}: is it a gpuqueue service of this version?"
            )
        return error_of(name, detail, code)

    def unreachable(self, error: BaseException, *, is_unanswered: bool = False) -> ServiceUnreachable:
        """Return the message about a connection to the service that failed."""
        from gpuqueue.settings.settings import SYSTEM_SOCKET  # noqa: PLC0415 - only for this error

        if type(error).__name__ == "SSLCertVerificationError":  # ssl is not imported for a unix socket
            from gpuqueue.system.certificates import certificate_trouble  # noqa: PLC0415 - only for this error

            return ServiceUnreachable(certificate_trouble(self.url, error, "set SSL_CERT_FILE to"))
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            why = "no answer in time"
        is_absent = isinstance(error, (ConnectionRefusedError, FileNotFoundError))
        of_machine = self.url == f"unix://{SYSTEM_SOCKET}"
        words = "Ask the administrator to start it" if of_machine else "Is gpuqueue serve running there?"
        remedy = f". {words}" if is_absent else ""
        return ServiceUnreachable(
            f"the service at {self.url} does not answer: {why}{remedy}", is_unanswered=is_unanswered
        )


def error_of(name: str, detail: str, code: int) -> GpuQueueError:
    """Return the error of the class *name*, or a plain error with its exit code if this version has no such class."""
    found = getattr(errors, name, None)
    kind = found if isinstance(found, type) and issubclass(found, GpuQueueError) else GpuQueueError
    made = kind(detail)
    if made.exit_code != code:
        made.exit_code = code
    return made


def _body(value: Any) -> bytes:
    """Return *value* as the body of a request."""
    return json.dumps(to_plain(value), separators=(",", ":")).encode("ascii")


def _pause_s(answer: Answer) -> float:
    """Return how long the service wants its caller to wait, in seconds."""
    pause = answer.headers.get("retry-after", "")
    return min(float(pause), BUSY_S) if pause.isascii() and pause.isdigit() else 1.0


def segment(name: object) -> str:
    """Return *name* as one segment of a path."""
    return quote(str(name), safe="")


def _query(query: Mapping[str, Any] | None) -> str:
    words = []
    for name, value in (query or {}).items():
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if each is not None:
                text = str(each).lower() if isinstance(each, bool) else str(to_plain(each))
                words.append(f"{name}={quote(text, safe='')}")
    return "?" + "&".join(words) if words else ""


def _json(content: bytes, url: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        raise ServiceUnreachable(f"{url} does not answer with JSON: is it a gpuqueue service?") from None
