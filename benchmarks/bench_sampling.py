"""What sampling costs: shares of one core for each device, at rest and at ten looks a second.

PYTHONPATH=.:tests python benchmarks/bench_sampling.py

The worker's own sampler looks at one GPU of a fake driver (real pynvml, a library of ours in C), on which as many runs
hold memory as is said, each a real process below a real shim-like parent. Beside it, in the same minute, stands the
floor: the same number of bare NVML looks (memory and process list) without attribution, figures or watchdog. On a
real card the driver's own calls are slower, on both sides.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pynvml
from fake_driver.fake_driver import FakeGpus, build

from gpuqueue.clock import SystemClock
from gpuqueue.process import ProcessIdentity
from gpuqueue.run import RunDevice
from workers.devices.choose import choose
from workers.live import LiveRun, LiveRuns
from workers.rundir import Held, RunDir
from workers.sampler import Sampler
from workers.watchdog import Watchdog

GIB = 2**30
#: The shim's part: a parent that says its child's pid, which is the process on the card.
FAMILY = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"


def main() -> None:
    """Measure in processes of their own: the fake driver must be chosen before Python starts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="How long each case is measured.")
    parser.add_argument("--inside", nargs=2, metavar=("CASE", "RUNS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        case, runs = args.inside
        print(measure(case, [int(pid) for pid in runs.split(",") if pid], args.seconds))
        return
    with tempfile.TemporaryDirectory() as place:
        table(Path(place), args.seconds)


def table(place: Path, seconds: float) -> None:
    """Print each case beside its floor."""
    fake = FakeGpus.create(place / "gpus", (24 * GIB,) * 4)
    environ = {**os.environ, **fake.environ(build(place))}
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {seconds:g} s a case")
    print(f"{'case':34} {'sampler':>9} {'bare NVML':>10} {'ratio':>6}")
    for runs in (0, 1, 8):
        families = [subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE) for _ in range(runs)]
        pids = [int(each.stdout.readline()) for each in families if each.stdout]
        for pid in pids:
            fake.hold(0, pid, GIB)
        fake.hold(0, os.getpid(), GIB)  # a stranger
        tops = ",".join(str(each.pid) for each in families)
        for pace in ("settled", "young") if runs else ("idle",):
            shares = {}
            for who in ("sampler", "bare"):
                words = [sys.executable, __file__, "--seconds", str(seconds), "--inside", f"{who}-{pace}", tops]
                shares[who] = float(subprocess.run(words, env=environ, check=True, stdout=subprocess.PIPE).stdout)
            ratio = f"{shares['sampler'] / shares['bare']:.1f}x" if shares["bare"] else "-"
            looks = {"idle": "no run", "settled": f"{runs} runs, 1 Hz", "young": f"{runs} runs, 10 Hz"}[pace]
            print(f"{looks:34} {shares['sampler']:9.2%} {shares['bare']:10.2%} {ratio:>6}", flush=True)
        for pid, each in zip(pids, families, strict=True):
            os.kill(pid, 9)
            each.kill()
            each.wait()
        fake.state.entry_count = 0


def measure(case: str, shims: list[int], seconds: float) -> float:
    """Return the share of a core that a loop takes."""
    who, pace = case.split("-")
    looking = sampler(shims, young=pace == "young") if who == "sampler" else bare(0.0 if pace == "idle" else 1.0)
    interval_s = {"idle": 1.0, "settled": 1.0, "young": 0.1}[pace]
    never = threading.Event()
    looking()  # the first look opens the session
    began_s, spent_s = time.monotonic(), time.process_time()
    while time.monotonic() - began_s < seconds:
        looking()
        never.wait(interval_s)
    return (time.process_time() - spent_s) / (time.monotonic() - began_s)


def sampler(shims: list[int], *, young: bool) -> Callable[[], None]:
    """Return one look of the worker's sampler at runs below *shims*."""
    backend = choose("gpu", "bench")
    device = backend.devices()[0]
    runs = LiveRuns()
    place = Path(tempfile.mkdtemp())
    for number, pid in enumerate(shims, start=1):
        on = RunDevice(uuid=device.uuid, lease_bytes=2 * GIB, kind=device.kind, total_bytes=device.total_bytes)
        held = Held(job_id=number, token=f"1.{number}", devices=(on,))
        directory = RunDir.create(place, held)
        (directory.path / "pid").write_text(f"{ProcessIdentity.of(pid)}\n")
        runs.add(LiveRun(held=held, directory=directory, since_s=0.0 if not young else time.monotonic()))
    return Sampler(backend, runs, SystemClock(), Watchdog(lambda _device, _reading: 0)).sample


def bare(share: float) -> Callable[[], None]:
    """Return one bare look at the card, or nothing at all."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def look() -> None:
        if share:
            pynvml.nvmlDeviceGetMemoryInfo(handle)
            pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)

    return look


if __name__ == "__main__":
    main()
