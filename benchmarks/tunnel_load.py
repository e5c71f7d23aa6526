"""Measures the way of a worker host to the store through the service, beside a direct connection, in the same run.

    python -m benchmarks.tunnel_load [--calls 2000] [--connections 24] [--jobs 20]

Prints the round trip of a heartbeat, the heartbeats per second of many connections, the time from a submit to the start
of its process, and the processor time and memory of the service, each beside that of a connection to the store's
socket. The service listens with TLS on the loopback. All processes share the cores of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Offer
from gpuqueue.settings.settings import Settings

GPUQUEUE = str(Path(sys.executable).with_name("gpuqueue"))
DEVICE = Device(uuid="GPU-bench", index=0, name="Bench", kind=DeviceKind.GPU, total_bytes=2**40)
OFFER = Offer(device=DEVICE, host="bench", headroom_bytes=0, external_bytes=0, slots=8)
LEASE_S, MIB = 3600.0, 2**20
#: The names of the two ways: the pools of their workers.
DIRECT, TUNNEL = "direct", "tunnel"


def main(words: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=20)
    options = parser.parse_args(words)
    with TemporaryDirectory(prefix="gpuqueue-bench-") as made, site(Path(made)) as (urls, api, service):
        calls: dict[str, list[float]] = {way: [] for way in urls}
        rates: dict[str, float] = {}
        for way, url in urls.items():
            calls[way] = round_trips(url, options.calls)
            before_s = sum(service.cpu_times()[:2])
            rates[way] = rate(url, options.connections, options.calls)
            if way == TUNNEL:
                spent_s = sum(service.cpu_times()[:2]) - before_s
        starts = {way: list(waits(api, way, options.jobs)) for way in urls}
        for what, values in (("heartbeat, round trip", calls), ("submit to start", starts)):
            near, far = median(values[DIRECT]), median(values[TUNNEL])
            print(f"{what}: {near * 1e3:.2f} ms direct, {far * 1e3:.2f} ms through the service, {far / near:.2f} times")
        near, far = rates[DIRECT], rates[TUNNEL]
        print(f"{options.connections} connections: {near:.0f} a second direct, {far:.0f} through the service")
        resident = service.memory_info().rss / MIB
        print(f"service: {spent_s / options.calls * 1e6:.0f} us of a processor a call, {resident:.0f} MiB")


@contextmanager
def site(directory: Path) -> Iterator[tuple[dict[str, str], str, psutil.Process]]:
    """Start a site and a host that has joined it; yield the URL of the store by way, of the API, and the service."""
    with ExitStack() as stack:
        served = stack.enter_context(service(directory))
        (directory / "token").write_text(done(served.api, "token", "create", "--host", "far", "--expires", "never"))
        (directory / "token").chmod(0o600)
        far = {**served.basis, "GPUQUEUE_STATE_DIR": str(directory / "far"), "GPUQUEUE_HOST": "far"}
        far |= {"GPUQUEUE_POOL": TUNNEL, "GPUQUEUE_SERVICE_URL": served.url}
        far["GPUQUEUE_SERVICE_TOKEN_FILE"] = str(directory / "token")
        far["GPUQUEUE_SERVICE_CA"] = str(served.certificate)
        started(stack, far)
        with closing(JobQueue(served.store)) as queue:
            queue.devices.announce(OFFER, worker="w", pid=os.getpid(), boot_id="boot")
        yield {DIRECT: served.store, TUNNEL: Settings.load(far).redis_url}, served.api, served.process


@dataclass(frozen=True, kw_only=True)
class Served:
    """A site with a service: the URLs of its store, its API and its TLS, and its process."""

    store: str
    api: str
    url: str
    certificate: Path
    process: psutil.Process
    #: The environment that all hosts of the site have in common.
    basis: dict[str, str]


@contextmanager
def service(directory: Path) -> Iterator[Served]:
    """Start a site with one simulated device and a service with TLS on the loopback."""
    key, certificate = directory / "key.pem", directory / "cert.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    pem = ("-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate))
    openssl = shutil.which("openssl") or "openssl"
    subprocess.run([openssl, "req", "-x509", *pem, *names], check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    basis = {**os.environ, "GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_HOST_LOST_AFTER": "62m"}
    here = {**basis, "GPUQUEUE_STATE_DIR": str(directory / "site"), "GPUQUEUE_HOST": "site", "GPUQUEUE_POOL": DIRECT}
    here["GPUQUEUE_REQUEST_RATE"] = "none"
    with ExitStack() as stack:
        started(stack, here)
        words = ["--socket", f"{directory}/api.sock", "--listen", f"127.0.0.1:{port}"]
        tls = ["--tls-cert", str(certificate), "--tls-key", str(key)]
        process = subprocess.Popen([GPUQUEUE, "serve", *words, *tls], env=here, stderr=subprocess.PIPE, text=True)
        stack.callback(process.wait)
        stack.callback(process.send_signal, signal.SIGTERM)
        if process.stderr is not None:
            process.stderr.readline()  # it listens
        yield Served(
            store=Settings.load(here).redis_url,
            api=f"unix://{directory}/api.sock",
            url=f"https://localhost:{port}",
            certificate=certificate,
            process=psutil.Process(process.pid),
            basis=basis,
        )


def started(stack: ExitStack, environ: dict[str, str]) -> None:
    """Start a host with one simulated device until *stack* ends."""
    up = [GPUQUEUE, "up", "--devices", "sim:1x8G"]
    subprocess.run(up, env=environ, check=True, capture_output=True)
    down = [GPUQUEUE, "down", "--cancel-jobs"]
    stack.callback(subprocess.run, down, env=environ, check=True, capture_output=True)


def round_trips(url: str, calls: int) -> list[float]:
    """Return the durations of heartbeats on one connection, in seconds."""
    durations_s = []
    with closing(JobQueue(url)) as queue:
        for _ in range(calls):
            before_s = time.perf_counter()
            queue.devices.heartbeat(OFFER, [], lease_s=LEASE_S)
            durations_s.append(time.perf_counter() - before_s)
    return durations_s


def rate(url: str, connections: int, calls: int) -> float:
    """Return the heartbeats per second of many connections."""
    threads = [threading.Thread(target=round_trips, args=(url, calls // connections)) for _ in range(connections)]
    before_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return calls // connections * connections / (time.perf_counter() - before_s)


def waits(api: str, pool: str, jobs: int) -> Iterator[float]:
    """Yield for each of some jobs in *pool* the time from the submit to the start of its process, in seconds."""
    for _ in range(jobs):
        job = done(api, "submit", "--pool", pool, "--mem", "1M", "--no-snapshot", "-C", "/", "--", "true").strip()
        done(api, "wait", job)
        found = json.loads(done(api, "show", job, "--json"))
        times = [
            datetime.fromisoformat(each) for each in (found["job"]["submitted_at"], found["runs"][-1]["started_at"])
        ]
        yield (times[1] - times[0]).total_seconds()


def done(api: str, *words: str) -> str:
    """Run a command of the service, and return its output."""
    environ = {**os.environ, "GPUQUEUE_URL": api}
    return subprocess.run([GPUQUEUE, *words], env=environ, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
