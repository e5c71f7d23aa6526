"""Measures what NVML's calls and a sample of the worker's sampler cost on one GPU, in µs. A test runs this program.

python nvml_cost.py UUID PLACE   with the root and tests/support/ on PYTHONPATH, and only UUID in CUDA_VISIBLE_DEVICES

It holds 64 MiB on the GPU itself, so that the driver has a process to list, and prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pynvml
from fake_driver.job import Cuda

from gpuqueue.clock import SystemClock
from gpuqueue.model.device import Device
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import GIB, MIB
from workers.devices.select import choose
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.monitor import MOMENT_S, DeviceMonitor
from workers.measure.sampler import Sampler
from workers.run.directory import Held, RunDir

ROUNDS = 50


def main(uuid: str, place: str) -> None:
    """Measure each call, and print the costs with what was sampled."""
    cuda = Cuda()
    cuda.use(0)
    cuda.allocate(64 * MIB)
    backend = choose("gpu", "cost")
    device = next(each for each in backend.devices() if each.uuid == uuid)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    card = pynvml.nvmlDeviceGetHandleByUUID(device.mig_parent or uuid)  # a MIG instance lacks these figures
    run = run_of_ours(device, Path(place))
    runs = LiveRuns()
    runs.add(run)
    settings, clock = Settings.load({"GPUQUEUE_STATE_DIR": place}), SystemClock()
    monitor = DeviceMonitor(settings, backend, runs, clock)
    sampler = Sampler(monitor, runs, clock)
    cost_us = {
        "memory, second version": cost(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)),
        "process list": cost(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)),
        "utilisation": cost(lambda: pynvml.nvmlDeviceGetUtilizationRates(card)),
        "temperature": cost(lambda: pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU)),
        "a sample of the monitor": cost(lambda: monitor.sample(device)),
    }
    for _ in range(2):
        time.sleep(2 * MOMENT_S)  # a younger sample would be used again
        sampler.sample()
    json.dump({"cost_us": cost_us, "samples": run.meter(uuid).samples, "used_bytes": run.observed()[uuid]}, sys.stdout)


def run_of_ours(device: Device, place: Path) -> LiveRun:
    """Return a run whose shim is this process."""
    on = RunDevice(uuid=device.uuid, lease_bytes=GIB, kind=device.kind, total_bytes=device.total_bytes)
    held = Held(job_id=1, token="1.cost", devices=(on,))
    directory = RunDir.create(place, held)
    (directory.path / "pid").write_text(f"{ProcessIdentity.of(os.getpid())}\n")
    return LiveRun(held=held, directory=directory, since_s=time.monotonic())


def cost(call: Callable[[], object]) -> float:
    """Return the mean time of *call* in µs, after a first call that may open what it needs."""
    call()
    began_s = time.perf_counter()
    for _ in range(ROUNDS):
        call()
    return (time.perf_counter() - began_s) / ROUNDS * 1e6


if __name__ == "__main__":
    main(*sys.argv[1:])
