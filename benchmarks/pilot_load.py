"""Measures what many pilots cost the store and the service that carries their connections, beside direct connections.

    python -m benchmarks.pilot_load [--pilots 10 100 1000] [--jobs 20] [--idle 10]

A pilot here is what the store sees of a host with one worker: as many connections, and the calls that a worker makes
while it is idle, when it is woken, and for a job, with the real scripts. No process runs a job. Each number of pilots
is measured twice: with connections to the store's socket, and through the service with TLS on the loopback. Prints how
many calls the pilots make, what part of a core the store and the service spend on idle ones, the memory, the time from
a submit to the claim and until the last worker has found nothing, and the jobs a second of a backlog. The simulated
pilots share the cores of this machine with what is measured: one process, which also needs a core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import random
import resource
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil
from websockets.asyncio.client import connect

from benchmarks.measure.options import how_many
from benchmarks.measure.table import amount, load
from benchmarks.tunnel_load import DIRECT, MIB, TUNNEL, Served, service
from gpuqueue.client import Client
from gpuqueue.codec.request import encode_ended, encode_started
from gpuqueue.model.access_token import TokenRequest
from gpuqueue.model.array import Array
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.joining import STORE_PATH
from gpuqueue.model.run import Ending
from gpuqueue.queue import functions, keys, replies, scripts
from gpuqueue.queue.devices import device_words
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim, Offer
from gpuqueue.queue.requests import new_nonce
from gpuqueue.queue.resp.connection import packed
from gpuqueue.queue.store import to_ms
from gpuqueue.settings.settings import Settings
from gpuqueue.system.websocket import PING_S
from workers.celery_app import BROKER_POLL_S, EVENT_S

POOL, LEASE_S, GIB = "pilots", 3600.0, 2**30
USUAL = Settings.load({"GPUQUEUE_CONFIG": os.devnull})
POLL_S, HEARTBEAT_S = USUAL.poll_s, USUAL.heartbeat_s
#: The connections of a worker, and those of them that are used here. The others are of its threads and of Celery.
CONNECTIONS, USED = 9, 6
#: Connections that are opened at a time.
OPENING = 24
#: How long nothing may happen before all is quiet, and how long that is waited for, in seconds.
QUIET_S, MAX_QUIET_S = 0.3, 120.0
Words = Sequence[str | float]


class Line:
    """One connection to the store, by its socket or by a WebSocket of the service."""

    def __init__(self, reader: asyncio.StreamReader, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._reader, self._send = reader, send

    async def ask(self, *words: str | float) -> Any:
        """Send a command, and return its answer."""
        await self._send(packed(words))
        return await self.answer()

    async def answer(self) -> Any:
        """Return the next answer."""
        line = await self._reader.readline()
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"*":
            return [await self.answer() for _ in range(int(rest))] if rest != "-1" else None
        if kind == b"$":
            return None if rest == "-1" else (await self._reader.readexactly(int(rest) + 2))[:-2].decode()
        if kind == b"-" or not line:
            raise RuntimeError(f"the store answers: {rest or 'nothing, the connection is closed'}")
        return int(rest) if kind == b":" else rest


class Load:
    """All pilots of one measurement, and what they have done."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        #: Wake-up messages that no claim has answered yet, and when the last one came or was answered.
        self.woken = 0
        self.last_s = self.claimed_s = 0.0
        self.ended, self._progress = 0, asyncio.Event()

    def end(self) -> None:
        """Count the end of a job."""
        self.ended += 1
        self._progress.set()

    async def until(self, ended: int) -> None:
        """Wait until so many jobs have ended."""
        while self.ended < ended:
            self._progress.clear()
            await self._progress.wait()


class Pilot:
    """One host with one worker. Its connections are those of a worker, and so are its calls."""

    def __init__(self, number: int, load: Load) -> None:
        device = Device(uuid=f"GPU-{number}", index=0, name="Bench", kind=DeviceKind.GPU, total_bytes=8 * GIB)
        self.offer = Offer(
            device=device,
            host=f"p{number}",
            headroom_bytes=0,
            external_bytes=0,
            slots=1,
            pool=POOL,
            machine=f"{number}",
        )
        self._load, self._wake, self._woken = load, asyncio.Event(), 0

    async def run(self, opened: Callable[[], Awaitable[Line]], ready: asyncio.Event) -> None:
        """Open the connections, set *ready*, and work until it is cancelled."""
        listener, broker, remote, events, heartbeats, claims = [await opened() for _ in range(USED)]
        self._resting = [await opened() for _ in range(CONNECTIONS - USED)]
        for line in self._resting:
            await self._ask(line, "ping", "PING")
        await self._ask(listener, "subscribe", "SUBSCRIBE", keys.WAKEUP_CHANNEL, keys.CONTROL)
        await listener.answer()
        celery = f"{keys.PREFIX}celery:"
        await self._ask(remote, "subscribe", "SUBSCRIBE", f"{celery}/0.celery.pidbox")
        await self._ask(heartbeats, "heartbeat", *self._heartbeat())
        ready.set()
        queue = f"{celery}gpu.{self.offer.device.uuid}"
        event = ("PUBLISH", f"{celery}/0.celeryev/worker.heartbeat", "x" * 400)
        await asyncio.gather(
            self._listen(listener),
            self._claim(claims),
            self._again(0.0, broker, "brpop", "BRPOP", queue, BROKER_POLL_S),
            self._again(EVENT_S, events, "publish", *event),
            self._again(HEARTBEAT_S, heartbeats, "heartbeat", *self._heartbeat()),
        )

    async def _ask(self, line: Line, name: str, *words: str | float) -> Any:
        self._load.calls[name] += 1
        return await line.ask(*words)

    async def _again(self, pause_s: float, line: Line, name: str, *words: str | float) -> None:
        await asyncio.sleep(random.uniform(0, pause_s))  # noqa: S311 - pilots do not start together
        while True:
            await self._ask(line, name, *words)
            await asyncio.sleep(pause_s)

    async def _listen(self, line: Line) -> None:
        while True:
            await line.answer()
            self._woken += 1
            self._load.woken += 1
            self._load.last_s = time.perf_counter()
            self._wake.set()

    async def _claim(self, line: Line) -> None:
        """Claim after each message and at intervals, as the claimer of a worker does."""
        await asyncio.sleep(random.uniform(0, POLL_S))  # noqa: S311 - see _again
        load = self._load
        while True:
            self._wake.clear()
            answers, self._woken = self._woken, 0
            name = "claim" if answers else "poll"
            while claim := replies.claim(await self._ask(line, name, *_claim_words(self.offer))):
                if isinstance(claim, Claim):
                    load.claimed_s = time.perf_counter()
                    for what, words in _words_of_a_run(claim):
                        await self._ask(line, what, *words)
                    load.end()
            load.woken -= answers
            if answers:
                load.last_s = time.perf_counter()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), POLL_S)

    def _heartbeat(self) -> Words:
        return _script("heartbeat", *device_words(self.offer, lease_s=LEASE_S))


def _script(act: str, *args: str | float) -> Words:
    return ("EVALSHA", _digest(act), 1, keys.PREFIX, *args)


@cache
def _digest(act: str) -> str:
    return hashlib.sha1(scripts.whole(act).encode(), usedforsecurity=False).hexdigest()


@cache
def _claim_function() -> str:
    return functions.name_of("claim", scripts.lasting("claim"))


def _claim_words(offer: Offer) -> Words:
    where = (offer.host, offer.device.uuid, f"{offer.host}/w", to_ms(LEASE_S), offer.counted_bytes)
    return ("FCALL", _claim_function(), 1, keys.PREFIX, *where, new_nonce(), 1)


def _words_of_a_run(claim: Claim) -> Iterator[tuple[str, Words]]:
    """Yield the calls of a run that ends at once."""
    began, whose = encode_started(log_path="/l", devices=(), limits=None), (claim.job_id, claim.token)
    ended = encode_ended(ending=Ending.from_status(0), duration_s=0.0, devices=(), peak_at_once_bytes=None)
    yield "started", _script("started", *whose, to_ms(LEASE_S), began)
    yield "finish", _script("finish", *whose, "succeeded", ended, 0, "", "")


class Spent(NamedTuple):
    """The processor time of the service and the store, in seconds, or of each second."""

    service: float
    store: float


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _quiet(load: Load) -> None:
    """Wait until nothing is woken any more."""
    for _ in range(round(MAX_QUIET_S / QUIET_S)):
        await asyncio.sleep(QUIET_S)
        if not load.woken and time.perf_counter() - load.last_s >= QUIET_S:
            return


def main(words: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pilots", type=how_many, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--jobs", type=how_many, default=20, help="jobs of each part (default 20)")
    parser.add_argument("--idle", type=how_many, default=10, help="seconds of rest that are observed (default 10)")
    options = parser.parse_args(words)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for pilots in options.pilots:
        with TemporaryDirectory(prefix="gpuqueue-bench-") as made, service(Path(made)) as served:
            measured = Measured(served, pilots, options.jobs, options.idle)
            figures = {way: asyncio.run(measured.figures(way)) for way in (DIRECT, TUNNEL)}
        print(f"\n{pilots} pilots{'':27}{'direct':>14}{'the service':>14}{'ratio':>8}")
        for name, unit in Measured.UNITS.items():
            near, far = (figures[way].get(name) for way in (DIRECT, TUNNEL))
            cells = ("-" if value is None else amount(value, unit) for value in (near, far))
            ratio = f"{far / near:.2f}" if near and far else "-"
            print(f"{name:38}{''.join(f'{cell:>14}' for cell in cells)}{ratio:>8}", flush=True)
    print(load())


class Measured:
    """The measurement of one number of pilots."""

    UNITS = {  # noqa: RUF012 - never changed
        "connections": "",
        "all connected after": "s",
        "the service for a connection": "ms",
        "calls a second, idle": "",
        "the store, idle, of a core": "%",
        "the service, idle, of a core": "%",
        "the service's memory": "MiB",
        "a submit to its claim, p50": "ms",
        "a submit until all is quiet, p50": "ms",
        "claims for one job": "",
        "the store for one job": "ms",
        "the service for one job": "ms",
        "a backlog": "jobs/s",
    }

    def __init__(self, served: Served, pilots: int, jobs: int, idle_s: float) -> None:
        self._served, self._pilots, self._jobs, self._idle_s = served, pilots, jobs, idle_s
        self._queue = JobQueue(served.store)
        client = self._queue.store.client
        self._store = psutil.Process(client.info("server")["process_id"])
        for act in ("heartbeat", "started", "finish"):
            client.script_load(scripts.whole(act))
        with Client(Settings.load({**served.basis, "GPUQUEUE_URL": served.api})) as site:
            made = [site.access.make_token(TokenRequest(host=f"p{number}")) for number in range(pilots)]
            self._tokens = [each.text for each in made]
            request = JobRequest(["true"], mem="1M", pool=POOL, snapshot=False, env={"PATH": "/bin"}, git=False)
            self._spec = site.jobs.spec_of(request)
        self._tls = ssl.create_default_context(cafile=str(served.certificate))

    async def figures(self, way: str) -> dict[str, float]:
        """Return the figures of one way to the store."""
        found: dict[str, float] = {}
        load, began_s, before = Load(), time.perf_counter(), self._spent()
        async with AsyncExitStack() as stack:
            await self._start(load, way, stack)
            found["all connected after"] = time.perf_counter() - began_s
            if way == TUNNEL:
                found["the service for a connection"] = 1e3 * self._since(before).service / (CONNECTIONS * self._pilots)
            found["connections"] = self._queue.store.client.info("clients")["connected_clients"]
            await _quiet(load)
            before, calls, began_s = self._spent(), load.calls.total(), time.perf_counter()
            await asyncio.sleep(self._idle_s)
            took_s = time.perf_counter() - began_s
            idle = Spent(*(spent_s / took_s for spent_s in self._since(before)))
            found["calls a second, idle"] = (load.calls.total() - calls) / took_s
            found["the store, idle, of a core"] = 100 * idle.store
            if way == TUNNEL:
                found["the service, idle, of a core"] = 100 * idle.service
                found["the service's memory"] = self._served.process.memory_info().rss / MIB
            found |= await self._one_by_one(load, way, idle)
            found["a backlog"] = await self._backlog(load)
        for number in range(self._pilots):
            self._queue.devices.withdraw(f"p{number}", f"GPU-{number}")
        return found

    async def _start(self, load: Load, way: str, stack: AsyncExitStack) -> None:
        """Start all pilots, some at a time, which work until *stack* ends."""
        turns, started = asyncio.Semaphore(OPENING), []
        for number in range(self._pilots):
            pilot = Pilot(number, load)
            self._queue.devices.announce(pilot.offer, worker=f"p{number}/w", pid=os.getpid(), boot_id="boot")
            opened = self._direct if way == DIRECT else partial(self._through, self._tokens[number], stack)
            await turns.acquire()
            ready = asyncio.Event()
            task = asyncio.create_task(pilot.run(opened, ready))
            stack.push_async_callback(_ended, task)
            waiting = asyncio.create_task(ready.wait())
            waiting.add_done_callback(lambda _: turns.release())
            started.append((task, waiting))
        for task, waiting in started:
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()

    async def _direct(self) -> Line:
        reader, writer = await asyncio.open_unix_connection(self._served.store.removeprefix("unix://"))

        async def send(data: bytes) -> None:
            writer.write(data)

        return Line(reader, send)

    async def _through(self, token: str, stack: AsyncExitStack) -> Line:
        url = f"{self._served.url.replace('http', 'ws', 1)}/api/v1{STORE_PATH}"
        headers = {"Authorization": f"Bearer {token}"}
        made = connect(
            url, additional_headers=headers, ssl=self._tls, compression=None, proxy=None, ping_interval=PING_S
        )
        websocket = await stack.enter_async_context(made)
        reader = asyncio.StreamReader()

        async def receive() -> None:
            async for data in websocket:
                reader.feed_data(data if isinstance(data, bytes) else data.encode())
            reader.feed_eof()

        stack.push_async_callback(_ended, asyncio.create_task(receive()))
        return Line(reader, websocket.send)

    async def _one_by_one(self, load: Load, way: str, idle: Spent) -> dict[str, float]:
        """Return what one job costs that comes while all pilots are idle, less what they spend then anyway."""
        claims, quiet, claimed = [], [], load.calls["claim"]
        before, began_s = self._spent(), time.perf_counter()
        for _ in range(self._jobs):
            submitted_s, ended = time.perf_counter(), load.ended
            await asyncio.to_thread(self._queue.requests.submit, self._spec)
            await load.until(ended + 1)
            claims.append(load.claimed_s - submitted_s)
            await _quiet(load)
            quiet.append(load.last_s - submitted_s)
        took_s, spent = time.perf_counter() - began_s, self._since(before)
        found = {
            "a submit to its claim, p50": 1e3 * median(claims),
            "a submit until all is quiet, p50": 1e3 * median(quiet),
            "claims for one job": (load.calls["claim"] - claimed) / self._jobs,
            "the store for one job": 1e3 * (spent.store - idle.store * took_s) / self._jobs,
        }
        if way == TUNNEL:
            found["the service for one job"] = 1e3 * (spent.service - idle.service * took_s) / self._jobs
        return found

    async def _backlog(self, load: Load) -> float:
        """Return the jobs a second of an array of jobs that last no time."""
        jobs, ended = max(self._pilots, 20 * self._jobs), load.ended
        spec = replace(self._spec, array=Array.parse(f"0-{jobs - 1}"))
        began_s = time.perf_counter()
        await asyncio.to_thread(self._queue.requests.submit, spec)
        await load.until(ended + jobs)
        return jobs / (time.perf_counter() - began_s)

    def _since(self, before: Spent) -> Spent:
        now = self._spent()
        return Spent(now.service - before.service, now.store - before.store)

    def _spent(self) -> Spent:
        return Spent(*(sum(each.cpu_times()[:2]) for each in (self._served.process, self._store)))


if __name__ == "__main__":
    main(sys.argv[1:])
