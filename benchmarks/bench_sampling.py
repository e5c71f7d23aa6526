"""The cost of sampling: shares of one core for each device, at rest and at ten samples a second.

python -m benchmarks.bench_sampling [--seconds 20]

The worker's own sampler samples one GPU of a fake driver (real pynvml, with gpuqueue's own library in C), on which a
number of runs hold memory, each a real process below a shim-like parent. The floor is measured in the same minute: the
same number of bare NVML samples (memory and process list) without attribution, figures or watchdog. On a real card the
driver's own calls are slower, on both sides.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml

from benchmarks.measure.figure import Absent, Figure, Floor, Measured
from benchmarks.measure.options import duration_s
from benchmarks.measure.place import from_the_tests
from benchmarks.measure.table import report
from gpuqueue.clock import SystemClock
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from workers.devices.select import choose
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.monitor import DeviceMonitor
from workers.measure.sampler import Sampler
from workers.run.directory import Held, RunDir

GIB = 2**30
#: The shim's part: a parent that prints the pid of its child, which is the process on the card.
FAMILY = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"


def main() -> None:
    """Measure in separate processes, because the fake driver must be chosen before Python starts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=duration_s, default=20.0, help="How long each case is measured.")
    parser.add_argument("--inside", nargs=2, metavar=("CASE", "RUNS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        case, runs = args.inside
        print(measure(case, [int(pid) for pid in runs.split(",") if pid], args.seconds))
        return
    report(figures(seconds=args.seconds))


def figures(*, quick: bool = False, seconds: float | None = None) -> Measured:
    """Yield each case with its floor."""
    from_the_tests()
    from fake_driver.fake_driver import FakeGpus, build  # noqa: PLC0415 - of the tests

    if shutil.which("cc") is None:
        yield Absent(name="sampler", why="no C compiler here, and the driver is a library of the tests in C")
        return
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        fake = FakeGpus.create(place / "gpus", (24 * GIB,) * 4)
        environ = {**os.environ, **fake.environ(build(place))}
        for runs in (0, 1, 8):
            yield from _runs(fake, environ, runs, seconds or (2.0 if quick else 20.0))


def _runs(fake: Any, environ: dict[str, str], runs: int, seconds: float) -> Iterator[Figure]:
    families = [subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE) for _ in range(runs)]
    pids = [int(each.stdout.readline()) for each in families if each.stdout]
    for pid in pids:
        fake.hold(0, pid, GIB)
    fake.hold(0, os.getpid(), GIB)  # an external process
    tops = ",".join(str(each.pid) for each in families)
    for pace in ("settled", "young") if runs else ("idle",):
        shares = {}
        for who in ("sampler", "bare"):
            words = [sys.executable, "-m", "benchmarks.bench_sampling", "--seconds", str(seconds)]
            words += ["--inside", f"{who}-{pace}", tops]
            shares[who] = float(subprocess.run(words, env=environ, check=True, stdout=subprocess.PIPE).stdout)
        floor = Floor(name="bare NVML samples", value=100 * shares["bare"])
        yield Figure(name=f"sampler.{runs}-runs.{pace}", value=100 * shares["sampler"], unit="%", floor=floor)
    for pid, each in zip(pids, families, strict=True):
        os.kill(pid, signal.SIGKILL)
        each.kill()
        each.wait()
    fake.state.entry_count = 0


def measure(case: str, shims: list[int], seconds: float) -> float:
    """Return the share of a core that a loop takes."""
    who, pace = case.split("-")
    sample = sampler(shims, young=pace == "young") if who == "sampler" else bare(0.0 if pace == "idle" else 1.0)
    interval_s = {"idle": 1.0, "settled": 1.0, "young": 0.1}[pace]
    never = threading.Event()
    sample()  # the first sample opens the session
    began_s, spent_s = time.monotonic(), time.process_time()
    while time.monotonic() - began_s < seconds:
        sample()
        never.wait(interval_s)
    return (time.process_time() - spent_s) / (time.monotonic() - began_s)


def sampler(shims: list[int], *, young: bool) -> Callable[[], None]:
    """Return a function that samples runs below *shims* once with the worker's sampler."""
    backend = choose("gpu", "bench")
    device = backend.devices()[0]
    runs = LiveRuns()
    place = Path(tempfile.mkdtemp())
    for number, pid in enumerate(shims, start=1):
        on = RunDevice(uuid=device.uuid, lease_bytes=2 * GIB, kind=device.kind, total_bytes=device.total_bytes)
        held = Held(job_id=number, token=f"1.{number}", devices=(on,))
        directory = RunDir.create(place / "runs", held)
        (directory.path / "pid").write_text(f"{ProcessIdentity.of(pid)}\n")
        runs.add(LiveRun(held=held, directory=directory, since_s=0.0 if not young else time.monotonic()))
    settings, clock = Settings.load({"GPUQUEUE_STATE_DIR": str(place)}), SystemClock()
    return Sampler(DeviceMonitor(settings, backend, runs, clock), runs, clock).sample


def bare(share: float) -> Callable[[], None]:
    """Return a function that samples the card once with bare NVML calls, or does nothing."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def sample_once() -> None:
        if share:
            pynvml.nvmlDeviceGetMemoryInfo(handle)
            pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)

    return sample_once


if __name__ == "__main__":
    main()
