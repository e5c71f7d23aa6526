"""A port of this machine that leads to a port of a running job, and where the port of a job is."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.run_logs import own_log
from gpuqueue.errors import BadRequest, GpuQueueError, NotListening, Refused
from gpuqueue.model.job_ref import one_job
from gpuqueue.system.forwarded_port import address_in, join, not_listening
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from types import TracebackType
    from typing import TypeVar

    from gpuqueue.model.run import Record, Run
    from gpuqueue.settings.settings import Settings

    _Self = TypeVar("_Self", bound="Forward")

#: The largest number of a port.
MAX_PORT = 65535
#: The address of this machine that only its own programs reach.
LOOPBACK = "127.0.0.1"

#: Carries one connection to its end.
Carry = Callable[["StreamReader", "StreamWriter"], Awaitable[None]]


class Way(Protocol):
    """How connections reach the port of a job."""

    def check(self) -> None:
        """Check that the port can be reached now, without a connection to it.

        Raises:
            NotListening: no process of the job listens there.
            Refused: the job does not run, or is another account's.

        """

    async def open(self) -> Carry:
        """Open a way for one connection. Raises what :meth:`check` does."""


def running(record: Record) -> Run:
    """Return the run of a job that goes on.

    Raises:
        Refused: the job is an array, or does not run.

    """
    job, run = record.job, record.last_run
    if job.spec.array is not None:
        one = f"{job.id}_{next(iter(job.spec.array.indexes))}"
        raise Refused(f"array {job.id} has no ports: name a member, such as {one}")
    if not job.state.is_active or run is None or not run.log_path:
        raise Refused(f"job {job.label} is {job.state}: its ports can be reached while it runs")
    return run


def address_of(settings: Settings, run: Run, port: int) -> str:
    """Return the address at which *run*, which goes on on this machine, listens on *port*.

    Raises:
        NotListening: no process of it listens there.
        Refused: the run is on another host, or of another account.

    """
    log = own_log(settings, run)
    if log is None:
        raise Refused(f"it runs on host {run.host}: its ports can be reached there, or through a service")
    if settings.launcher_in_use is not None:
        raise Refused("it runs as its submitter: its ports can be reached through a service with a relay here")
    address = address_in(log.parent, port)
    if address is None:
        raise NotListening(not_listening(port))
    return address


class DirectWay:
    """The way to a port of a job that runs on this machine as this account."""

    def __init__(self, connection: Connection, job: int | str, port: int) -> None:
        self._settings, self._account = connection.settings, connection.account
        self._job, self._port = job, port
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="forward")

    def check(self) -> None:
        """Check that the port can be reached now, without a connection to it."""
        self._address()

    async def open(self) -> Carry:
        """Connect to the port."""
        address = await asyncio.get_running_loop().run_in_executor(self._pool, self._address)
        try:
            there = await asyncio.open_connection(address, self._port)
        except OSError:  # the program has closed its port just now
            raise NotListening(not_listening(self._port)) from None
        return lambda reader, writer: join((reader, writer), there)

    def _address(self) -> str:
        with closing(Connection(self._settings)) as connection:  # that of the client is for another thread
            record = reads.newest(connection, self._job)
        owner = record.job.spec.account
        if (owner.name, owner.uid) != (self._account.name, self._account.uid):
            raise Refused(f"only {owner.name} may reach the ports of this job")
        return address_of(self._settings, running(record), self._port)


class Forward:
    """A port of this machine whose connections go to a port of a job, in a thread, until it is closed."""

    def __init__(
        self,
        way: Way,
        address: str,
        local_port: int,
        report: Callable[[GpuQueueError], None] | None = None,
    ) -> None:
        """Listen at *address*, on *local_port* or with 0 on any free one. *report* is called once for each trouble.

        Raises:
            BadRequest: nobody can listen there.
            Refused: the job does not run, or is another account's. That nothing listens there yet is only reported.

        """
        self._way, self._report, self._trouble = way, report, ""
        address = LOOPBACK if address == "localhost" else address
        try:
            family = socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6  # noqa: PLR2004 - IPv4
            self._listener = socket.create_server((address, local_port), family=family)
        except ValueError:
            raise BadRequest(f"{brief(address)} is no address to listen at: give one as {LOOPBACK}") from None
        except (OSError, OverflowError) as error:
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                raise BadRequest(
                    f"another program here listens on port {local_port} of {address}: put a free port of this machine "
                    "before that of the job, as in 8080:6006"
                ) from None
            why = getattr(error, "strerror", None) or str(error)
            raise BadRequest(
                f"cannot listen at {address} on port {local_port} here: {why}: give another port or address"
            ) from None
        self.address: str = address
        self.port: int = self._listener.getsockname()[1]
        try:
            way.check()
        except NotListening as error:
            self._note(error)
        except BaseException:
            self._listener.close()
            raise
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_ready = threading.Event()
        self._carrying: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="forward", daemon=True)
        self._thread.start()
        self._is_ready.wait()

    def close(self) -> None:
        """End all connections, and listen no more."""
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # it is closed already
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._carry, sock=self._listener)
        self._is_ready.set()
        await self._stop.wait()
        server.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        await asyncio.sleep(0)  # the loop closes what was aborted

    async def _carry(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)
        try:
            carry = await self._way.open()
            self._trouble = ""
            await carry(reader, writer)
        except GpuQueueError as error:
            self._note(error)
        except asyncio.CancelledError:  # it is closed; asyncio would log it
            pass
        finally:
            writer.close()

    def _note(self, error: GpuQueueError) -> None:
        if self._report is not None and str(error) != self._trouble:
            self._report(error)
        self._trouble = str(error)

    def __enter__(self: _Self) -> _Self:  # noqa: PYI019 - typing.Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def job_and_port(job: int | str, port: int) -> tuple[str, int]:
    """Return the name of one job, and *port*.

    Raises:
        BadRequest: they are malformed.

    """
    if not 1 <= port <= MAX_PORT:
        raise BadRequest(f"there is no port {port}: they are 1 to {MAX_PORT}")
    return str(one_job(job)), port
