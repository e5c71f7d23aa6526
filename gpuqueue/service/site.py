"""The site behind the API: what all routes share, how they read a request, and how they answer.

The work of a route is done in a thread of a pool, whose connections are used for each caller in turn.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response

from gpuqueue.client.connection import Connection
from gpuqueue.client.remote.link import WARNING
from gpuqueue.client.signing import Signer
from gpuqueue.codec.wire import from_request, to_plain
from gpuqueue.errors import BadRequest, GpuQueueError, NotAuthenticated, TooManyRequests
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.access import AccessPolicy
from gpuqueue.model.caller import Via
from gpuqueue.service.batches import Batches, Steps
from gpuqueue.service.call import Call, Credentials, Identity
from gpuqueue.service.delivered import Delivered
from gpuqueue.service.foreseen import Foreseen
from gpuqueue.service.host_progress import HostProgress
from gpuqueue.service.host_runs import HostRuns
from gpuqueue.service.metrics.exposition import Metrics
from gpuqueue.service.relays import Relays
from gpuqueue.service.responses import BODY_KIND, header
from gpuqueue.service.second_commands import SecondCommands
from gpuqueue.service.store_tunnel import StoreTunnels
from gpuqueue.service.uploads import Uploads
from gpuqueue.service.web.answers import Answers
from gpuqueue.service.web.cookie import session_of
from gpuqueue.service.web.device_past import PastOfDevices
from gpuqueue.service.web.queue_copy import Places, QueueCopy
from gpuqueue.service.web.table import Tables
from gpuqueue.settings.settings import Settings

T = TypeVar("T")

#: Schemes of addresses that are paths of this machine.
_LOCAL = ("sqlite:", "unix:")
#: The path of the API.
PREFIX = "/api/v1"

#: Threads that serve requests. Each has a connection to the store. 16 suffice, since the store executes one command at
#: a time.
THREADS = 16
#: Threads that write large results of hosts to the disk, so that a slow disk does not hold up other requests.
DISK_THREADS = 4
#: Most results that arrive at a time: of one host, and of all. The others are sent again later.
RESULTS_OF_HOST, RESULTS = 2, 16
#: Most archives of files that are sent at a time: to one account, and to all.
ARCHIVES_OF_ACCOUNT, ARCHIVES = 4, 32
#: Most second commands in jobs at a time: of one account, and of all.
COMMANDS_OF_ACCOUNT, COMMANDS = 16, 128
#: Most connections to ports of jobs at a time: of one account, and of all.
FORWARDED_OF_ACCOUNT, FORWARDED = 256, 1024
#: Most replays of learned memory at a time: each computes for seconds.
REPLAYS = 2
#: Keys of a request's scope: its body, and whether the request counts already for the limits of its caller.
BODY, IS_COUNTED = "gpuqueue.body", "gpuqueue.is_counted"
#: Key of a request's scope: the id of its session. A code for a download is used once, and a stream asks again.
SESSION = "gpuqueue.session"
#: The parameter with a one-time code for a download.
DOWNLOAD = "download"
#: Largest body that is parsed before the caller is known, in the thread of the event loop: a larger one would hold up
#: all others.
SMALL_BODY_BYTES = 16 * 1024
#: Largest body of a caller who has not logged in, such as one who waits for many jobs.
MOST_ANONYMOUS_BYTES = 256 * 1024
#: After how many seconds a client that was refused should try again.
SLOT_AGAIN_S = 5.0
#: How long the subscription waits for one message, and how long before it is made again, in seconds.
WAIT_S, END_AGAIN_S = 1.0, 1.0


class Site:
    """What the routes share."""

    def __init__(
        self, settings: Settings, identity: Identity, page_url: str | None = None, *, is_private: bool = False
    ) -> None:
        """Serve the site of *settings*. *page_url* is where browsers find the page, None if that is not known.

        A site *is_private* if only the account of this process can connect, so that callers can start what is missing.
        """
        self.settings = settings
        self.is_private = is_private
        self.page_url = page_url
        self.identity = identity
        self.signer = None if settings.ticket_key_file is None else Signer.load(settings.ticket_key_file)
        self.policy = AccessPolicy.parse(settings.admins, settings.access)
        self._places = _places_of(settings)
        self.ends = Ends(settings)
        self.metrics = Metrics(settings)
        self.uploads = Uploads(settings)
        self.relays = Relays()
        self.host_progress = HostProgress(self.relays)
        self.foreseen = Foreseen()
        self.delivered, self.host_runs = Delivered(settings), HostRuns()
        self.queue_copy, self.places = QueueCopy(settings), Places()
        self.past = PastOfDevices(settings)
        self.tables, self.answers = Tables(), Answers()
        #: What the running members of arrays have reported so far, and when it was read, on the monotonic clock.
        self.reported: dict[int, tuple[float, dict[int, dict[str, float]]]] = {}
        self.archives = Slots(ARCHIVES_OF_ACCOUNT, ARCHIVES, "archives of files are sent")
        self.commands = SecondCommands()
        self.command_slots = Slots(COMMANDS_OF_ACCOUNT, COMMANDS, "commands run in jobs")
        self.replays = Slots(REPLAYS, REPLAYS, "replays of learned memory are computed")
        self.tunnels = StoreTunnels(settings)
        self.forwarded = Slots(FORWARDED_OF_ACCOUNT, FORWARDED, "connections to ports of jobs are open")
        self.results = Slots(RESULTS_OF_HOST, RESULTS, "results arrive")
        #: Set when the service is about to stop: streams end, and their clients come back to the next one.
        self.closing = asyncio.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="request")
        self._batches = Batches(self._pool, self._connection)
        self._disk = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="disk")
        self._database = HistoryDatabase(settings.database_url)
        self._local = threading.local()
        self._connections: list[Connection] = []

    async def work(self, request: HTTPConnection, work: Callable[[Call], T], *, is_first: bool = True) -> T:
        """Call *work* for the caller of *request* in a thread of the pool, and return its result.

        A stream or long poll makes many calls for one request. Only the first call counts for the limits of the caller.
        Every call authenticates again, so that a revoked token ends a stream.

        Raises:
            NotAuthenticated: the caller cannot be identified.

        """
        done = self._call_of(request, work, is_first=is_first)
        return await asyncio.get_running_loop().run_in_executor(self._pool, done)

    async def answer(self, request: Request, work: Callable[[Call], Any]) -> Response:
        """Return the result of *work* as JSON, or the response that it has made; with the warnings of the call."""
        return await self.work(request, lambda call: with_warnings(call, answered(work(call))))

    async def submit(self, request: Request, steps: Callable[[Call], Steps[Response]]) -> Response:
        """Return the answer to a submit of these *steps*, which are taken with those of other submits."""
        return await self._batches.run(self._call_of(request, steps))

    def _call_of(self, request: HTTPConnection, work: Callable[[Call], T], *, is_first: bool = True) -> Callable[[], T]:
        is_counted = not is_first or request.scope.get(IS_COUNTED, False)
        body_bytes = None if is_counted else len(request.scope.get(BODY, b""))
        return partial(self._call, credentials_of(request), body_bytes, work)

    async def in_pool(self, work: Callable[[Site], T]) -> T:
        """Call *work*, which needs no caller, in a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, self)

    async def on_disk(self, work: Callable[[], T]) -> T:
        """Call *work*, which writes something large, in a thread of its own pool."""
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    def _call(self, credentials: Credentials, body_bytes: int | None, work: Callable[[Call], T]) -> T:
        caller = self.identity.caller(credentials, is_new=body_bytes is not None)
        if body_bytes is not None:
            self.identity.received(caller, body_bytes)
        return work(Call(caller, self.policy, self._connection(), self.identity))

    def _connection(self) -> Connection:
        found: Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = Connection(self.settings, database=self._database, signer=self.signer)
            self._connections.append(found)
        return found

    async def valid_tokens(self, token_ids: Collection[str]) -> set[str]:
        """Return those of *token_ids* that are valid now, in one read of the history.

        Raises:
            HistoryUnreachable: they cannot be looked up now.

        """
        return await self.in_pool(lambda _: self._database.valid_tokens(token_ids, at=datetime.now(timezone.utc)))

    def without_places(self, text: str) -> str:
        """Return *text* without paths of this service: the people who read it on the page have no use for them."""
        return self._places.sub("…", text)

    def stop(self) -> None:
        """End streams, long polls and what waits for other hosts: the service is about to stop."""
        self.closing.set()
        self.commands.close()
        self.relays.close()

    def close(self) -> None:
        """Close the connections. Requests that are being served are finished first."""
        self.ends.close()
        self.queue_copy.close()
        self.past.close()
        self.metrics.close()
        self._pool.shutdown()
        self._disk.shutdown()
        for each in self._connections:
            each.close()
        self._database.close()


def _places_of(settings: Settings) -> re.Pattern[str]:
    """Return a pattern of the paths where this service keeps something, alone and in addresses."""
    own = [settings.state_dir, settings.runs_dir, settings.socket_path, settings.launcher, settings.ticket_key_file]
    urls = [urlsplit(each).path for each in (settings.database_url, settings.redis_url) if each.startswith(_LOCAL)]
    paths = {str(each) for each in own if each is not None} | {f"/{each.lstrip('/')}" for each in urls}
    longest_first = sorted(map(re.escape, paths), key=len, reverse=True)
    begins = rf"(?<![\w.-])(?:[a-z+]+:/*)?(?:{'|'.join(longest_first)})(?![\w-])"
    return re.compile(rf"{begins}(?:/[^\s'\"(),;]*[^\s'\"(),;:.])?")


def site_of(request: Request) -> Site:
    """Return the site of the application that serves *request*."""
    found: Site = request.app.state.site
    return found


async def body_of(request: Request, kind: type[T]) -> T:
    """Return the body of *request*, read as *kind*.

    Raises:
        BadRequest: the body is not JSON or does not describe a *kind*. ``PeerProtocol`` refuses bodies that are too
            large.
        NotAuthenticated: the body is large, and the caller cannot be identified or has not logged in.

    """
    request.scope[BODY_KIND] = kind
    try:
        content = await request.body()
    except ClientDisconnect:
        raise BadRequest("the connection was closed before the whole request arrived") from None
    request.scope[BODY] = content
    if len(content) <= SMALL_BODY_BYTES:
        return _parsed(kind, content)

    def work(call: Call) -> T:
        if call.caller.via is Via.ANONYMOUS and len(content) > MOST_ANONYMOUS_BYTES:
            raise NotAuthenticated("log in first to send a request of this size: gpuqueue login URL")
        return _parsed(kind, content)

    found = await site_of(request).work(request, work)
    request.scope[IS_COUNTED] = True
    return found


def _parsed(kind: type[T], content: bytes) -> T:
    try:
        plain = json.loads(content)
    except (ValueError, RecursionError):
        raise BadRequest("the body of the request is not JSON") from None
    return from_request(kind, plain)


def answered(value: Any, status: int = 200) -> Response:
    """Return *value* as an answer in JSON; None as an answer without content."""
    if isinstance(value, Response):
        return value
    if value is None:
        return Response(status_code=204)
    content = json.dumps(to_plain(value), separators=(",", ":")).encode("ascii")
    return Response(content, status, media_type="application/json")


def with_warnings(call: Call, answer: Response) -> Response:
    """Return *answer* with the warnings of *call* in its header."""
    if call.warnings:
        answer.headers[WARNING] = header("; ".join(call.warnings))
    return answer


def is_tls(request: Request) -> bool:
    """Return whether the client of *request* uses TLS, here or at a proxy."""
    return request.url.scheme == "https"


def credentials_of(request: HTTPConnection) -> Credentials:
    """Return the proof of identity of *request*."""
    client, peer = request.client, request.scope.get("state", {}).get("peer")
    authorization = request.headers.get("authorization")
    is_browser = peer is None and not authorization
    return Credentials(
        peer=peer,
        authorization=authorization,
        address=client.host if client is not None else "",
        session=_session_of(request) if is_browser and isinstance(request, Request) else None,
    )


def _session_of(request: Request) -> str | None:
    if SESSION not in request.scope:
        code = request.query_params.get(DOWNLOAD) if request.method == "GET" else None
        request.scope[SESSION] = (
            site_of(request).identity.session_of_download(code, target_of(request))
            if code
            else session_of(request, is_tls=is_tls(request), port=request.url.port)
        )
    found: str | None = request.scope[SESSION]
    return found


def target_of(request: Request) -> str:
    """Return what *request* downloads: its path below the API and its query, as the page has asked a code for it."""
    query = "&".join(word for word in request.url.query.split("&") if not word.startswith(f"{DOWNLOAD}="))
    path = request.url.path.removeprefix(PREFIX)
    return f"{path}?{query}" if query else path


class Slots:
    """Counts what goes on. Use it in the event loop only."""

    def __init__(self, most_of_one: int, most: int, what: str) -> None:
        """Allow *most_of_one* for each name and *most* in all. *what* says in a refusal what goes on."""
        self._most_of_one, self._most, self._what = most_of_one, most, what
        self._taken: Counter[str] = Counter()

    def take(self, name: str) -> Callable[[], None]:
        """Take a slot of *name*, and return the function that gives it back. More calls of it do nothing.

        Raises:
            TooManyRequests: there is none.

        """
        if self._taken[name] >= self._most_of_one or self._taken.total() >= self._most:
            raise TooManyRequests(f"too many {self._what} at a time: try again later", SLOT_AGAIN_S)
        self._taken[name] += 1
        is_given_back = False

        def give_back() -> None:
            nonlocal is_given_back
            if not is_given_back:
                is_given_back = True
                self._taken[name] -= 1
                if not self._taken[name]:
                    del self._taken[name]

        return give_back


class Ends:
    """Wakes the requests that wait for the end of a job. A message may be lost, so they also poll."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    async def wait(self, job_ids: Collection[int], timeout_s: float) -> None:
        """Return when one of the jobs has ended, or after *timeout_s*."""
        self._start()
        woken = asyncio.Event()
        for each in job_ids:
            self._waiting.setdefault(each, set()).add(woken)
        try:
            await asyncio.wait_for(woken.wait(), max(0.0, timeout_s))
        except TimeoutError:
            pass
        except asyncio.TimeoutError:  # another class before Python 3.11
            pass
        finally:
            for each in job_ids:
                self._waiting[each].discard(woken)
                if not self._waiting[each]:
                    del self._waiting[each]

    def wake(self, job_id: int) -> None:
        """Wake the requests that wait for this job. Call it in the event loop."""
        for each in self._waiting.get(job_id, ()):
            each.set()

    def close(self) -> None:
        """End the subscription."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._listen, name="ends", daemon=True)
            self._thread.start()

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                with Connection(self._settings).ends() as wakeups:
                    while not self._over.is_set():
                        wake = wakeups.wait(WAIT_S)
                        if wake is not None and wake.job_id is not None and self._loop is not None:
                            self._loop.call_soon_threadsafe(self.wake, wake.job_id)
            except GpuQueueError:  # the store does not answer: the requests poll, and raise its error
                self._over.wait(END_AGAIN_S)
