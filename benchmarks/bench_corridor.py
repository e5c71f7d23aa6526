"""How long the corridor takes, beside floors measured in the same run.

python benchmarks/bench_corridor.py [--rounds 15] [--devices sim:1x8G] [--json]

Starts a private machine (embedded store, simulated devices, each with a real Celery worker) in a temporary directory.
Rounds alternate between a figure and its floor, since the machine is noisy; medians are printed, and ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from gpuqueue import Client, Settings

BIN = Path(sys.executable).parent
Figures = dict[str, dict[str, float | str]]


def timed(act: Callable[[], object]) -> float:
    """Return how long *act* takes, in seconds."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def quiet(*words: str, environ: dict[str, str]) -> None:
    """Run a command to its end."""
    subprocess.run(words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def alternate(rounds: int, *acts: Callable[[], object]) -> list[float]:
    """Return the median seconds of each act, measured in turn."""
    measured: list[list[float]] = [[] for _ in acts]
    for _ in range(rounds):
        for act, into in zip(acts, measured, strict=True):
            into.append(timed(act))
    return [statistics.median(each) for each in measured]


def submit_process(rounds: int, environ: dict[str, str]) -> Figures:
    """Measure `gpuqueue submit` as a user feels it: a whole process."""
    python = sys.executable
    submit, click, nothing = alternate(
        rounds,
        lambda: quiet(str(BIN / "gpuqueue"), "submit", "--mem", "1M", "--", "true", environ=environ),
        lambda: quiet(python, "-c", "import click", environ=environ),
        lambda: quiet(python, "-c", "pass", environ=environ),
    )
    return {
        "submit, whole process": figure(submit, click, 'python -c "import click"'),
        "  of that, python alone": figure(nothing, click, 'python -c "import click"'),
    }


def submit_to_start(rounds: int, client: Client, place: Path) -> Figures:
    """Measure from the call of submit to the first instruction of the job, and the floor: spawning it ourselves."""
    python, stamp = sys.executable, place / "stamp"
    code = f"import time; open({str(stamp)!r}, 'w').write(repr(time.time()))"
    command = [python, "-I", "-S", "-c", code]

    def through_the_queue() -> float:
        began = time.time()
        client.wait(client.submit(command, mem="1M").id)
        return float(stamp.read_text()) - began

    def directly() -> float:
        began = time.time()
        subprocess.run(command, check=True)
        return float(stamp.read_text()) - began

    queued, direct = [], []
    for _ in range(rounds):
        queued.append(through_the_queue())
        direct.append(directly())
    return {
        "submit → first line of the job": figure(
            statistics.median(queued), statistics.median(direct), "spawned directly"
        )
    }


def round_trip(rounds: int, client: Client) -> Figures:
    """Measure one submit call, and the floor: a PING on the same connection."""
    spec = client.submit(["true"], mem="1M").spec
    submit, ping = alternate(rounds * 10, lambda: client.queue.submit(spec), client.queue.now_ms)
    return {"submit call (fsync before the reply)": figure(submit, ping, "TIME")}


def throughput(jobs: int, client: Client) -> Figures:
    """Measure trivial jobs in a row, each in a shim of its own and recorded; floor: spawning them ourselves."""
    began = time.perf_counter()
    ids = [client.submit(["true"], mem="1M").id for _ in range(jobs)]
    for each in ids:
        client.wait(each)
    per_job = (time.perf_counter() - began) / jobs
    floor = timed(lambda: [subprocess.run(["/bin/true"], check=True) for _ in range(jobs)]) / jobs
    return {f"a trivial job, {jobs} in a row, recorded": figure(per_job, floor, "subprocess.run(true)")}


def idle(seconds: float, environ: dict[str, str]) -> dict[str, float]:
    """Measure what an idle worker takes: resident memory in MiB and percent of one core."""
    workers = [
        process
        for process in psutil.process_iter()
        if "run" in _command(process) and environ["GPUQUEUE_STATE_DIR"] in str(_environ(process))
    ]
    worker = workers[0]
    before = worker.cpu_times()
    time.sleep(seconds)
    after = worker.cpu_times()
    used = after.user + after.system - before.user - before.system
    return {"rss_mib": worker.memory_info().rss / 2**20, "cpu_percent": 100 * used / seconds}


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def figure(value_s: float, floor_s: float, floor: str) -> dict[str, float | str]:
    """Return a figure beside its floor."""
    return {"ms": value_s * 1e3, "floor_ms": floor_s * 1e3, "ratio": value_s / floor_s, "floor": floor}


def main() -> None:
    """Measure all and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=100, help="trivial jobs in a row")
    parser.add_argument("--devices", default="sim:1x8G", metavar="SPEC")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds to watch an idle worker")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuqueue-bench-") as place:
        environ = {**os.environ, "GPUQUEUE_STATE_DIR": place, "GPUQUEUE_CONFIG": os.devnull}
        os.environ["GPUQUEUE_STATE_DIR"] = place
        quiet(str(BIN / "gpuqueue"), "up", "--devices", options.devices, environ=environ)
        try:
            with Client(Settings.load(environ)) as client:
                worker = idle(options.idle, environ)
                figures = {
                    **submit_to_start(options.rounds, client, Path(place)),
                    **submit_process(options.rounds, environ),
                    **round_trip(options.rounds, client),
                    **throughput(options.jobs, client),
                }
        finally:
            quiet(str(BIN / "gpuqueue"), "down", "--cancel-jobs", environ=environ)
    if options.json:
        print(json.dumps({"figures": figures, "idle_worker": worker, "load": os.getloadavg()}, indent=2))
        return
    print(f"{'':40} {'median':>10} {'floor':>10} {'ratio':>7}  floor is")
    for name, each in figures.items():
        print(f"{name:40} {each['ms']:8.1f}ms {each['floor_ms']:8.1f}ms {each['ratio']:7.1f}  {each['floor']}")
    print(f"idle worker: {worker['rss_mib']:.0f} MiB resident, {worker['cpu_percent']:.2f} % of a core")
    print("load average: " + ", ".join(f"{each:.1f}" for each in os.getloadavg()))


if __name__ == "__main__":
    main()
