"""The plan for a real card: what a fake driver cannot show, in about ten minutes, with one report.

python3 dev.py gpu                      in a clone of the repository
python tests/gpu/plan.py [STEP…]        only some steps; --report FILE, by default build/gpu-report.txt

It uses the first GPU that has 6 GiB free, in a queue of its own, and changes no setting of the card. The jobs with
torch, JAX and CuPy run in the Python that TORCH_PYTHON names, and are left out if it has none of them.

Exit codes: 0 all is as expected; 1 something differs, see the report; 2 a wrong argument; 3 no NVIDIA GPU answers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from gpuqueue.errors import GpuQueueError
from gpuqueue.model.device import Device
from gpuqueue.text.units import GIB, MIB, format_bytes
from workers.devices.backend import DeviceBackend, DeviceTrouble
from workers.devices.select import choose

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
JOB, FRAMEWORKS = HERE / "plan_job.py", HERE / "plan_frameworks.py"
NO_CARD = 3
NEEDED_BYTES = 6 * GIB
#: How far a peak may be from what was allocated and the context.
TOLERANCE = 0.02
#: How long one command, and one job, may take, in seconds.
COMMAND_S, JOB_S = 100.0, 120.0


class Plan:
    """The plan on one device: its queue, its report, and how many results differ from what is expected."""

    def __init__(self, backend: DeviceBackend, device: Device, state: Path, report: TextIO) -> None:
        self.backend, self.device, self.differences = backend, device, 0
        self._report, self._began_s, self._context_bytes = report, time.monotonic(), 0
        self._torch = os.environ.get("TORCH_PYTHON", sys.executable)
        index = device.card
        search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        own = {"GPUQUEUE_STATE_DIR": str(state), "GPUQUEUE_DEVICES": f"gpu:{index}", "GPUQUEUE_HEARTBEAT": "2s"}
        place = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_IDLE_AFTER": "15s", "PYTHONPATH": str(ROOT), "PATH": search}
        outer = {name: value for name, value in os.environ.items() if not name.startswith("GPUQUEUE_")}
        self.environ = {**outer, **own, **place}

    # ---- the report ------------------------------------------------------------------------------------------------

    def report(self, words: str) -> None:
        """Write a line to the report and to the terminal."""
        line = f"{time.monotonic() - self._began_s:6.1f} s  {words}"
        print(line, flush=True)
        print(line, file=self._report, flush=True)

    def expect(self, is_so: bool, words: str) -> None:  # noqa: FBT001 - reads as a sentence
        """Write whether a result is as expected."""
        self.differences += not is_so
        self.report(f"{'as expected' if is_so else 'DIFFERS'}: {words}")

    # ---- the queue -------------------------------------------------------------------------------------------------

    def command(self, *words: str) -> str:
        """Run a command of gpuqueue and return what it prints. Its errors are in the report."""
        program = [sys.executable, "-m", "gpuqueue", *words]
        done = subprocess.run(
            program, env=self.environ, cwd=HERE, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        if done.returncode and words[0] not in {"wait", "estimate"}:
            self.report(f"gpuqueue {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def submit(self, mem: str, *steps: str, program: Path = JOB, python: str = sys.executable) -> str:
        """Submit a job, and return its id."""
        words = ("submit", "--mem", mem, "--mem-retries", "0", "--", python, str(program), *steps)
        return self.command(*words).strip().rpartition("\n")[2]

    def ended(self, job_id: str) -> dict[str, Any]:
        """Wait for the end of a job, and return its last run with the job's state and the bytes of its peak."""
        self.command("wait", job_id, "--timeout", f"{JOB_S:.0f}s")
        record = self.record(job_id)
        run = (record["runs"] or [{}])[-1]
        devices = run.get("devices") or [{}]
        peak = devices[0].get("peak") or {}
        ending = run.get("ending") or {}
        return {"state": record["job"]["state"], "kind": ending.get("kind"), "detail": ending.get("detail"), **peak}

    def record(self, job_id: str) -> dict[str, Any]:
        """Return a job with its runs as ``show`` reports them."""
        record: dict[str, Any] = json.loads(self.command("show", job_id, "--json"))
        return record

    # ---- the steps -------------------------------------------------------------------------------------------------

    def facts(self) -> None:
        """Report the card, its driver and its modes."""
        self.report(f"{self.device}")
        self.report(f"{self.backend.health(self.device)}")
        reading = self.backend.reading(self.device)
        self.report(f"free {format_bytes(reading.free_bytes)}, processes {dict(reading.processes)}")

    def tests(self) -> None:
        """Run the tests of a real card."""
        command = [sys.executable, "-m", "pytest", "-m", "gpu", str(HERE), "-rPs", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        for line in done.stdout.splitlines()[-60:]:
            self.report(line[:200])
        self.expect(done.returncode in {0, 5}, f"the tests marked gpu ended with {done.returncode}")

    def peaks(self) -> None:
        """Compare the peaks of jobs with what they allocated."""
        context = self.ended(self.submit("2G", "sleep=2"))
        self._context_bytes = context.get("bytes") or 0
        self.expect(0 < self._context_bytes < 2 * GIB, f"a context takes {format_bytes(self._context_bytes)}")
        plans = {
            "2 GiB for 1 s": (2048, 1, ("allocate=2048", "sleep=1")),
            "1 GiB, and another for 0.3 s": (
                2048,
                1,
                ("allocate=1024", "sleep=2", "allocate=1024", "sleep=0.3", "free"),
            ),
            "two processes": (1536, 2, ("allocate=512", "child=allocate=1024+sleep=3", "sleep=4")),
        }
        for name, (mib, contexts, steps) in plans.items():
            run = self.ended(self.submit("4G", *steps))
            true_bytes, peak_bytes = mib * MIB + contexts * self._context_bytes, run.get("bytes") or 0
            words = f"{name}: peak {format_bytes(peak_bytes)} of {format_bytes(true_bytes)}, {run.get('source')}"
            self.expect(abs(peak_bytes - true_bytes) <= TOLERANCE * true_bytes, words)

    def external(self) -> None:
        """Check that an external process is counted, and no longer when it is gone."""
        held = subprocess.Popen([sys.executable, str(JOB), "allocate=1024", "sleep=8"], env=self.own_card())
        time.sleep(5)
        during = self.status()
        pids = [each["pid"] for each in during["external_processes"]]
        self.expect(held.pid in pids, f"external memory {during['external_bytes']}, processes {pids}")
        held.wait()
        self.expect(self.until(lambda: not self.status()["external_processes"]), "the ended process is gone")

    def liars(self) -> None:
        """Check that jobs that take too much end, and their neighbour does not."""
        neighbour = self.submit("2G", "grow=100,0.2,1500", "sleep=2")
        liars = {
            "three times as much at once": self.submit("500M", "allocate=1500", "sleep=20"),
            "slowly": self.submit("500M", "grow=50,0.1,1500", "sleep=20"),
            "in a daemon": self.submit("500M", "daemon=allocate=1500+sleep=20", "sleep=20"),
        }
        for name, job_id in liars.items():
            run = self.ended(job_id)
            words = f"a job that takes too much {name}: {run['kind']}, {run['detail']}"
            self.expect(run["kind"] == "out_of_memory", words)
        run = self.ended(neighbour)
        self.expect(run["state"] == "succeeded", f"its neighbour {run['state']}, peak {run.get('bytes')}")

    def frameworks(self) -> None:
        """Check that deaths of real frameworks for lack of memory are recognised."""
        for name in ("torch", "torch-cublas", "jax", "cupy"):
            if not self.has(name.partition("-")[0]):
                continue
            job_id = self.submit("2G", name, program=FRAMEWORKS, python=self._torch)
            run = self.ended(job_id)
            self.expect(run["kind"] == "out_of_memory", f"{name} without memory: {run['kind']}, {run['detail']}")
            self.report(f"its last line: {self.command('logs', job_id).strip().rpartition(chr(10))[2][:300]}")

    def estimate(self) -> None:
        """Check that the memory that ``estimate`` names is enough at the first run."""
        if not self.has("torch"):
            return
        words = (str(FRAMEWORKS), "--python", self._torch, "--dry-run", "--no-history", "--", "train")
        named = re.findall(r"--mem ([0-9.]+[MG])", self.command("estimate", *words))
        if not named:
            self.expect(False, "estimate names no memory for a small training")
            return
        run = self.ended(self.submit(named[-1], "train", program=FRAMEWORKS, python=self._torch))
        peak = format_bytes(run.get("bytes"))
        self.expect(run["state"] == "succeeded", f"estimate names {named[-1]}, the run {run['state']}, peak {peak}")

    def utilisation(self) -> None:
        """Check which of two jobs uses the card: one computes, one only holds memory."""
        if not self.has("torch"):
            return
        busy = self.submit("2G", "work", "40", program=FRAMEWORKS, python=self._torch)
        idle = self.submit("1G", "allocate=256", "sleep=40")
        for name, job_id, is_busy in (("computes", busy, True), ("only holds memory", idle, False)):
            self.ended(job_id)
            run = self.record(job_id)["runs"][-1]
            share = (run["devices"][0].get("activity") or {}).get("own_utilisation_mean")
            self.expect(share is not None and (share > 0.5) is is_busy, f"utilisation of the job that {name}: {share}")

    def adoption(self) -> None:
        """Kill a worker, and check that its job goes on and keeps its peak."""
        job_id = self.submit("3G", "allocate=1024", "sleep=4", "allocate=1024", "sleep=2", "free", "sleep=10")
        self.expect(self.until(lambda: self.status()["holdings"]), "the job runs")
        time.sleep(9)
        os.kill(self.status()["worker_pid"], signal.SIGKILL)
        run = self.ended(job_id)
        expected_bytes = 2 * GIB
        words = f"the job of a killed worker {run['state']}, peak {format_bytes(run.get('bytes'))}"
        self.expect(run["state"] == "succeeded" and (run.get("bytes") or 0) >= expected_bytes, words)

    # ---- what the steps share --------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the device as ``gpus`` reports it."""
        devices: list[dict[str, Any]] = json.loads(self.command("gpus", "--json"))
        return next(each for each in devices if each["device"]["uuid"] == self.device.uuid)

    def own_card(self) -> dict[str, str]:
        """Return the environment of an external process that uses this card."""
        return {**self.environ, "CUDA_VISIBLE_DEVICES": self.device.uuid}

    def has(self, module: str) -> bool:
        """Return whether a framework is there, and report if not."""
        done = subprocess.run([self._torch, "-c", f"import {module}"], capture_output=True, timeout=100, check=False)
        if done.returncode:
            self.report(f"left out: {self._torch} has no {module}")
        return not done.returncode

    def until(self, is_so: Callable[[], object]) -> bool:
        """Wait up to 30 s until *is_so* returns something true, and return whether it did."""
        until_s = time.monotonic() + 30
        while time.monotonic() < until_s:
            if is_so():
                return True
            time.sleep(0.5)
        return False


STEPS: dict[str, Callable[[Plan], None]] = {
    "facts": Plan.facts,
    "tests": Plan.tests,
    "peaks": Plan.peaks,
    "external": Plan.external,
    "liars": Plan.liars,
    "frameworks": Plan.frameworks,
    "estimate": Plan.estimate,
    "utilisation": Plan.utilisation,
    "adoption": Plan.adoption,
}


def main() -> int:
    """Run the steps that the arguments name, by default all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "gpu-report.txt")
    args = parser.parse_args()
    for step in args.steps:
        if step not in STEPS:
            parser.error(f"there is no step {step}: {', '.join(STEPS)}")
    try:
        backend = choose("gpu", "plan")
        device = next(each for each in backend.devices() if backend.reading(each).free_bytes >= NEEDED_BYTES)
    except StopIteration:
        print(f"no GPU here has {format_bytes(NEEDED_BYTES)} free")
        return NO_CARD
    except (GpuQueueError, DeviceTrouble) as error:
        print(f"no NVIDIA GPU answers here: {error}")
        return NO_CARD
    args.report.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gq-") as state, args.report.open("w", encoding="utf-8") as report:
        plan = Plan(backend, device, Path(state, "state"), report)
        plan.command("up")
        try:
            for step in args.steps or STEPS:
                plan.report(f"--- {step}")
                try:
                    STEPS[step](plan)
                except Exception as error:  # noqa: BLE001 - one step that fails leaves the others
                    plan.expect(False, f"the step failed: {error!r}")
        finally:
            plan.command("down", "--cancel-jobs")
        plan.report(f"{plan.differences} results differ")
    print(f"the report is in {args.report}")
    return int(plan.differences > 0)


if __name__ == "__main__":
    sys.exit(main())
