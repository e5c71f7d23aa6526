"""Measures the HTTP service over its unix socket, beside a Starlette application that only answers, in the same run.

    python -m benchmarks.service_load [--seconds 10] [--clients 50] [--followers 100] [--rounds 15]

Prints the durations of commands at the store and through the socket beside the import of click, requests and durable
submits per second of keep-alive clients, their 99th percentile, the processor time of each submit, the delay of a log's
line at many followers, at rest and beside those submits, the memory of the service, and the machine's load. The clients
run on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.measure.command import IMPORT_CLICK
from benchmarks.measure.place import quiet
from benchmarks.measure.rounds import alternate, medians, timed
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.history.migrate import upgrade
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.run import RunDevice
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Offer
from gpuqueue.settings.settings import Settings

MIB = 2**20
#: Commands that people type most. Those of the history are slow at the store: they import SQLAlchemy.
COMMANDS = (("submit", "--mem", "1M", "--", "true"), ("queue",), ("show", "1"), ("why", "1"), ("history",), ("stats",))
DEVICE = Device(uuid="GPU-bench", index=0, name="Bench", kind=DeviceKind.GPU, total_bytes=2**40)
HELLO = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
async def hello(request):
    return JSONResponse({"hello": "world"})
uvicorn.run(Starlette(routes=[Route("/hello", hello)]), uds=sys.argv[1], log_level="error", access_log=False)
"""
JOB = json.dumps({"argv": ["true"], "cwd": "/", "mem_bytes": MIB, "env": {f"VAR_{n}": "x" * 40 for n in range(40)}})


def main(words: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--followers", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(words)
    with TemporaryDirectory(prefix="gpuqueue-bench-") as made:
        _measure(Path(made), options)


def _measure(directory: Path, options: argparse.Namespace) -> None:
    environ = {"GPUQUEUE_STATE_DIR": str(directory), "GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_HOST": "bench"}
    environ["GPUQUEUE_REQUEST_RATE"] = "none"  # all clients are one account here
    settings = Settings.load(environ)
    store = EmbeddedStore(settings)
    store.start()
    upgrade(settings.database_url)
    queue = JobQueue(settings.redis_url)
    queue.recovery.open(0)
    offer = Offer(device=DEVICE, host="bench", headroom_bytes=0, external_bytes=0, slots=8)
    queue.devices.announce(offer, worker="w", pid=os.getpid(), boot_id="boot")
    queue.devices.heartbeat(offer, [], lease_s=3600)
    api, hello = directory / "api.sock", directory / "hello.sock"
    gpuqueue = str(Path(sys.executable).with_name("gpuqueue"))
    service = subprocess.Popen([gpuqueue, "serve", "--socket", str(api)], env={**os.environ, **environ})
    floor = subprocess.Popen([sys.executable, "-c", HELLO, str(hello)])
    try:
        _until_there(api, hello)
        print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        _print_commands(environ, api, gpuqueue, options.rounds)
        _print("a bare Starlette answer", asyncio.run(_load(hello, _get("/hello"), options)))
        _print("GET /me", asyncio.run(_load(api, _get("/api/v1/me"), options)))
        server = store.server()
        parts = {"service": service.pid, "store": server.pid if server else 0, "clients": os.getpid()}
        before = {name: _spent_s(each) for name, each in parts.items()}
        found = asyncio.run(_load(api, _post("/api/v1/jobs", JOB), options))
        _print("durable submits", found)
        spent = {name: (_spent_s(each) - before[name]) / (len(found) - 1) for name, each in parts.items()}
        print(
            "processor time for each: " + ", ".join(f"{name} {1000 * took_s:.2f} ms" for name, took_s in spent.items())
        )
        print(f"memory of the service: {psutil.Process(service.pid).memory_info().rss / MIB:.0f} MiB")
        _follow(settings, queue, offer, api, options)
        print(f"memory with followers: {psutil.Process(service.pid).memory_info().rss / MIB:.0f} MiB")
        print(f"load after: {os.getloadavg()[0]:.1f}")
    finally:
        for each in (service, floor):
            each.terminate()
            each.wait(timeout=30)
        queue.close()
        store.stop()


def _print_commands(environ: dict[str, str], api: Path, gpuqueue: str, rounds: int) -> None:
    """Measure whole processes in turn: commands at the store, the same through the service, and the import of click."""
    direct = {**os.environ, **environ}
    through = {**direct, "GPUQUEUE_URL": f"unix://{api}"}
    acts = {"the import of click": partial(quiet, IMPORT_CLICK, direct)}
    for words in COMMANDS:
        acts[f"{words[0]} at the store"] = partial(quiet, [gpuqueue, *words], direct)
        acts[f"{words[0]} through the service"] = partial(quiet, [gpuqueue, *words], through)
    timers = {name: partial(timed, act) for name, act in acts.items()}
    alternate(1, timers)  # to warm up
    found = medians(alternate(rounds, timers))
    floor = found["the import of click"]
    for name, took_s in found.items():
        print(f"{name}: {took_s * 1e3:.1f} ms, {took_s / floor:.2f} times the import of click")


def _until_there(*paths: Path) -> None:
    until = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        if time.monotonic() > until:
            raise SystemExit("a server did not start")
        time.sleep(0.05)
    time.sleep(0.5)


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()


def _post(path: str, body: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


async def _load(path: Path, request: bytes, options: argparse.Namespace) -> list[float]:
    """Return the durations of all answered requests in seconds; the period itself comes last."""
    took: list[float] = []
    until = time.monotonic() + options.seconds

    async def client() -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        while time.monotonic() < until:
            began = time.monotonic()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 2"):
                raise SystemExit(head.decode())
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            took.append(time.monotonic() - began)
        writer.close()

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(options.clients)))
    return [*took, time.monotonic() - began]


def _print(what: str, measured: list[float]) -> None:
    *took, period = measured
    took.sort()
    p50, p99 = (1000 * took[int(len(took) * share)] for share in (0.5, 0.99))
    print(f"{what}: {len(took) / period:.0f}/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms")


def _spent_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _follow(settings: Settings, queue: JobQueue, offer: Offer, api: Path, options: argparse.Namespace) -> None:
    """Measure how long a line of a log takes to all followers, at rest and beside the clients that submit."""
    claim = queue.runs.claim(offer, worker="w", lease_s=3600, nonce="bench")
    if claim is None or isinstance(claim, tuple):
        raise SystemExit("nothing was claimed")
    log = settings.state_dir / str(claim.job_id) / claim.token / "log"
    log.parent.mkdir(parents=True)
    log.touch()
    device = RunDevice(uuid=DEVICE.uuid, lease_bytes=MIB)
    queue.runs.started(claim.job_id, claim.token, lease_s=3600, log_path=str(log), devices=(device,))
    follow = partial(_followers, api, claim.job_id, log, options.followers)
    _print_delays(f"{options.followers} followers", asyncio.run(follow()))

    async def both() -> tuple[list[float], list[float]]:
        return await asyncio.gather(_load(api, _post("/api/v1/jobs", JOB), options), follow())

    submits, delays = asyncio.run(both())
    _print(f"durable submits beside {options.followers} followers", submits)
    _print_delays(f"{options.followers} followers beside them", delays)


def _print_delays(what: str, delays: list[float]) -> None:
    delays.sort()
    print(f"{what}: a line after p50 {1000 * delays[len(delays) // 2]:.0f} ms, last {1000 * delays[-1]:.0f} ms")


async def _followers(api: Path, job_id: int, log: Path, count: int) -> list[float]:
    """Return the delay of each of ten lines, written from now on, at each follower."""
    delays: list[float] = []
    began = time.monotonic()

    async def follower(connected: asyncio.Event) -> None:
        reader, writer = await asyncio.open_unix_connection(str(api))
        writer.write(_get(f"/api/v1/jobs/{job_id}/log/stream"))
        await reader.readuntil(b"event: job")
        connected.set()
        seen = 0
        while seen < 10:  # noqa: PLR2004 - lines of the measurement
            line = await reader.readuntil(b"\n")
            if line.startswith(b'data: "'):
                new = [float(stamp) for stamp in json.loads(line[6:]).split() if float(stamp) > began]
                delays.extend(time.monotonic() - stamp for stamp in new)
                seen += len(new)
        writer.close()

    events = [asyncio.Event() for _ in range(count)]
    tasks = [asyncio.create_task(follower(each)) for each in events]
    await asyncio.gather(*(each.wait() for each in events))
    with log.open("ab", buffering=0) as file:
        for _ in range(10):
            file.write(f"{time.monotonic()}\n".encode())
            await asyncio.sleep(0.3)
    await asyncio.gather(*tasks)
    return delays


if __name__ == "__main__":
    main(sys.argv[1:])
