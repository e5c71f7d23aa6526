"""Measures the web page of a busy site: its first answers, and what many viewers cost the service.

    python -m benchmarks.page_load [--jobs 10000] [--viewers 50] [--seconds 30] [--browser] [--latency 100]

The site has 64 devices, a job that runs on each, and *jobs* that wait. Each viewer asks every second for what the page
shows, as the page does; meanwhile a job is submitted every second. Prints the time of the first answers, the 99th
percentile at all viewers, the memory of the service, and its share of a core with no viewer, one and all of them. With
``--browser`` it also starts Chromium and prints when the page shows its first content and its first rows, with an empty
cache also over a network of so much ``--latency`` in milliseconds, and how many files it loads for that. The viewers
run on the same cores as the service. ``python3 page_parts.py --bundle`` makes the page in a few files, as in a wheel.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure.place import from_the_tests

from_the_tests()

from browser_pages import PROGRAMS, QUIET, sign_in  # noqa: E402 - of the tests
from factories import make_device, make_offer, make_spec, serve  # noqa: E402
from page_scene import run_job  # noqa: E402
from service_fixtures import ServedSite, mine, serving  # noqa: E402

from gpuqueue.model.job_spec import Account  # noqa: E402
from gpuqueue.queue.jobqueue import JobQueue  # noqa: E402
from gpuqueue.text.units import GIB, MIB  # noqa: E402

LEASE_S = 3600
#: What the page asks for in its views of the queue and the devices.
VIEWS = (
    "/queue-table?limit=150",
    "/queue-table?limit=150&user=u3",
    "/queue-table?limit=150&sort=mem&reverse=true&offset=400",
    "/overview",
)
UNCHANGED = 304
OFFERS = tuple(
    make_offer(
        device=make_device(f"GPU-{host}-{index}", index=index, name="NVIDIA A100"),
        host=f"node{host:02d}",
        headroom_bytes=GIB // 2,
        slots=4,
    )
    for host in range(8)
    for index in range(8)
)


def main(words: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--browser", action="store_true", help="Measure the page in Chromium as well.")
    parser.add_argument("--latency", type=int, default=100, help="Latency of the network in Chromium, in milliseconds.")
    options = parser.parse_args(words)
    with serving(GPUQUEUE_HEARTBEAT="10s") as site:
        print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        _fill(site.queue, site.settings.runs_dir, options.jobs)
        _first_answers(site)
        idle = _share(site, options.seconds, lambda: 0)
        print(f"the copy of the queue without viewers: {idle:.3f} of a core")
        for count in (1, options.viewers):
            _watch(site, count, options.seconds, idle)
        if options.browser:
            _browse(site, options.latency)
        print(f"load after: {os.getloadavg()[0]:.1f}")


def _fill(queue: JobQueue, logs: Path, count: int) -> None:
    """Let a job run on each device, with its log below *logs*, and submit *count* more that do not fit."""
    serve(queue, *OFFERS, lease_s=LEASE_S)
    for number, offer in enumerate(OFFERS):
        run_job(queue, offer, logs, name=f"run{number}", mem_bytes=20 * GIB, time_limit_s=7200)
    for number in range(count):
        _submit(queue, number)
    serve(queue, *OFFERS, lease_s=LEASE_S)


def _submit(queue: JobQueue, number: int) -> None:
    account = Account(name=f"u{number % 20}", uid=1000 + number % 20, host="laptop")
    environment = {f"VARIABLE_{each}": "x" * 40 for each in range(20)}
    memory = (number % 20 + 1) * GIB
    queue.requests.submit(make_spec(name=f"train-{number % 50}", mem_bytes=memory, account=account, env=environment))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How long an answer took, in seconds, with its status, hash and content."""

    took_s: float
    status: int
    tag: str | None
    content: bytes


class Viewer:
    """A connection to the service over TLS, as a browser has one."""

    def __init__(self, site: ServedSite) -> None:
        context = ssl.create_default_context(cafile=site.directory / "cert.pem")
        self._link = HTTPSConnection("127.0.0.1", site.port, context=context, timeout=60)
        self._link.connect()
        self._token = mine(site)
        self._tag: str | None = None

    def ask(self, path: str, *, encoding: str = "gzip") -> Answer:
        """Ask for *path*, with the hash of the last answer."""
        headers = {"Authorization": f"Bearer {self._token}", "Accept-Encoding": encoding}
        if self._tag is not None:
            headers["If-None-Match"] = self._tag
        began = time.perf_counter()
        self._link.request("GET", f"/api/v1{path}", None, headers)
        reply = self._link.getresponse()
        content = reply.read()
        self._tag = reply.headers["ETag"]
        return Answer(took_s=time.perf_counter() - began, status=reply.status, tag=self._tag, content=content)


def _first_answers(site: ServedSite) -> None:
    """Print how long a service that has just started takes to answer, and to know all jobs."""
    began = time.perf_counter()
    for path in ("/me", VIEWS[0], VIEWS[-1]):
        answer = Viewer(site).ask(path)
        print(f"first {path}: {answer.took_s * 1e3:.0f} ms, {len(answer.content)} bytes")
    while not json.loads(Viewer(site).ask("/queue-table?limit=1", encoding="identity").content)["complete"]:
        time.sleep(0.1)
    print(f"all jobs are known after {time.perf_counter() - began:.1f} s; memory {_memory(site)}")


def _share(site: ServedSite, seconds: float, act: Callable[[], Any]) -> float:
    """Return the share of a core that the service uses in the next *seconds*, of which *act* uses the beginning."""
    process = _process(site)
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    act()
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    return (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)


def _memory(site: ServedSite) -> str:
    return f"{_process(site).memory_info().rss / MIB:.0f} MiB"


def _process(site: ServedSite) -> psutil.Process:
    """Return the process of the service."""
    if site.process is None:
        raise SystemExit("the service has ended")
    return psutil.Process(site.process.pid)


def _watch(site: ServedSite, count: int, seconds: float, idle: float) -> None:
    """Print what *count* viewers wait for, and cost the service."""
    answers: list[Answer] = []
    with _changes(site.queue):
        share = _share(site, seconds, partial(_view, site, count, seconds, answers))
    times = sorted(each.took_s for each in answers)
    p50, p99 = (1000 * times[int(len(times) * part)] for part in (0.5, 0.99))
    unchanged = sum(each.status == UNCHANGED for each in answers)
    print(
        f"{count} viewers: {len(times)} answers ({unchanged} unchanged), p50 {p50:.0f} ms, p99 {p99:.0f} ms; "
        f"{share:.3f} of a core, {(share - idle) / count:.4f} for each viewer; memory {_memory(site)}"
    )


def _view(site: ServedSite, count: int, seconds: float, answers: list[Answer]) -> None:
    """Ask every second as *count* open pages do."""
    until = time.monotonic() + seconds

    def page(number: int) -> None:
        viewer, path = Viewer(site), VIEWS[number % len(VIEWS)]
        time.sleep(number / count)
        while time.monotonic() < until:
            answers.append(viewer.ask(path))
            time.sleep(max(0.0, 1 - answers[-1].took_s))

    threads = [threading.Thread(target=page, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


@contextmanager
def _changes(queue: JobQueue) -> Iterator[None]:
    """Submit a job and let eight devices report every second."""
    over = threading.Event()

    def act() -> None:
        number = 0
        while not over.wait(1.0):
            _submit(queue, number)
            serve(queue, *OFFERS[:8], lease_s=LEASE_S)
            number += 1

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _browse(site: ServedSite, latency_ms: int) -> None:
    """Print when Chromium shows the first content and the first rows: of an empty cache, and of a page loaded again.

    With an empty cache also where each answer takes *latency_ms* longer.
    """
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only for --browser

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise SystemExit("no Chromium here: apt install chromium")
    address = f"https://127.0.0.1:{site.port}/"
    site.kill()
    site.start()  # it knows no job of the queue
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=[*QUIET])
        page = browser.new_context(ignore_https_errors=True, viewport={"width": 1280, "height": 800}).new_page()
        page.goto(address)
        page.get_by_label("Access token").wait_for()
        print(f"the sign-in form, empty cache: first content after {_first_content(page)}")
        began = time.perf_counter()
        sign_in(page, mine(site))
        print(f"signed in, the devices are there after {time.perf_counter() - began:.2f} s")
        page.goto(f"{address}#/queue")
        began = time.perf_counter()
        page.reload()
        page.locator("tr.job").first.wait_for()
        print(
            f"the queue, loaded again: first content after {_first_content(page)}, "
            f"first rows after {time.perf_counter() - began:.2f} s"
        )
        _browse_from_afar(browser, address, page.context.storage_state(), latency_ms)
        browser.close()


def _browse_from_afar(browser: Any, address: str, signed_in: Any, latency_ms: int) -> None:
    """Print how the queue comes to a browser with an empty cache and a session. Answers take *latency_ms* more."""
    context = browser.new_context(
        ignore_https_errors=True, viewport={"width": 1280, "height": 800}, storage_state=signed_in
    )
    page = context.new_page()
    network = context.new_cdp_session(page)
    network.send("Network.enable")
    unlimited = {"downloadThroughput": -1, "uploadThroughput": -1}
    network.send("Network.emulateNetworkConditions", {"offline": False, "latency": latency_ms, **unlimited})
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    began = time.perf_counter()
    page.goto(f"{address}#/queue", wait_until="commit")
    page.locator("tr.job").first.wait_for()
    rows_s = time.perf_counter() - began
    files = [each for each in loaded if "/api/" not in each]
    print(
        f"the queue, empty cache, {latency_ms} ms latency: {len(files)} files, first content after "
        f"{_first_content(page)}, first rows after {rows_s:.2f} s"
    )


def _first_content(page: Any) -> str:
    """Return when the browser painted the first content of *page*."""
    found = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    return "an unknown time" if found is None else f"{found / 1000:.2f} s"


if __name__ == "__main__":
    main(sys.argv[1:])
