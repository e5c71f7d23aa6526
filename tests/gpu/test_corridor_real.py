"""Tests of whole jobs on a real card. The same tests also run on the fake driver's cards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bounded import until
from fake_driver.fake_driver import JOB
from held_on_card import holding, peak_of
from machine_with_cards import Machine
from site_of_one import Site

from gpuqueue.model.device import PeakSource
from gpuqueue.model.run import EndingKind
from gpuqueue.text.units import GIB, MIB

SUPPORT = Path(__file__).parents[1] / "support"
SEES = JOB.with_name("sees.py")
#: More devices give no further result, and each takes a second.
MOST_DEVICES = 4
#: What a card may reserve after its first context, and what a desktop may take meanwhile.
FEW_BYTES = 16 * MIB


def seen(site: Site, *options: str) -> dict[str, object]:
    """Run sees.py through the queue and return what it printed."""
    reported: dict[str, object] = json.loads(
        site.cli("run", "--mem", "64M", *options, "--", sys.executable, str(SEES)).stdout
    )
    return reported


def digits(uuid: str) -> str:
    """Return a UUID of NVML in the form in which CUDA reports it."""
    return uuid.partition("-")[2].replace("-", "")


@pytest.mark.full
def test_a_job_sees_its_one_device_and_no_other(gpu_site: Site, machine: Machine) -> None:
    """CUDA's device 0 is the device that the worker serves, by UUID, for every device of the machine."""
    for device in machine.backend.devices()[:MOST_DEVICES]:
        worker = gpu_site.start_worker(str(device.index))

        reported = seen(gpu_site)

        gpu_site.end(worker)
        ours = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GPUQUEUE_DEVICES": device.uuid}
        assert {"uuids": [digits(device.uuid)], **ours} == reported


@pytest.mark.full
def test_a_job_on_two_devices_sees_both_in_order(gpu_site: Site, machine: Machine) -> None:
    """CUDA's devices 0 and 1 are the first and the second of GPUQUEUE_DEVICES."""
    cards = machine.whole_cards(2)
    for card in cards:
        gpu_site.start_worker(str(card.index))

    reported = seen(gpu_site, "--gpus", "2")

    names = str(reported["GPUQUEUE_DEVICES"]).split(",")
    assert {card.uuid for card in cards} == set(names)
    assert [digits(name) for name in names] == reported["uuids"]


@pytest.mark.full
def test_the_peak_is_what_was_allocated_and_a_context(gpu_site: Site, machine: Machine, tmp_path: Path) -> None:
    """The recorded peak is that of the driver.

    It is at least what the job allocated, and within 2 % of that plus its context.
    """
    machine.must_name_our_processes()
    device = machine.card(3 * GIB)
    wanted_bytes = min(GIB, machine.free_bytes(device) // 8) // (2 * MIB) * 2 * MIB
    gpu_site.start_worker(str(device.index))
    context = peak_of(gpu_site, tmp_path / "empty", device)

    peak = peak_of(gpu_site, tmp_path / "full", device, wanted_bytes)

    assert {context.source, peak.source} <= {PeakSource.NVML_SAMPLED, PeakSource.NVML_ACCOUNTING}
    assert context.bytes is not None
    assert peak.bytes is not None
    print(f"allocated {wanted_bytes / MIB:.0f} MiB, context {context.bytes / MIB:.0f}, peak {peak.bytes / MIB:.0f}")
    assert 0 < context.bytes < 4 * GIB
    assert wanted_bytes <= peak.bytes
    assert wanted_bytes + context.bytes == pytest.approx(peak.bytes, rel=0.02)


@pytest.mark.full
def test_memory_is_free_again_after_a_cancel(gpu_site: Site, machine: Machine, tmp_path: Path) -> None:
    """After a cancel the device has as much free memory as before, even if the job ignores SIGTERM."""
    device = machine.card(3 * GIB)
    gpu_site.start_worker(str(device.index))
    before_bytes = machine.free_bytes(device)
    with holding(gpu_site, tmp_path / "gate", 2 * GIB, GIB, deaf=True) as job:
        assert machine.free_bytes(device) <= before_bytes - GIB

        gpu_site.cli("cancel", str(job))

        run = gpu_site.until_recorded(job).last_run
        recorded_s = time.monotonic()
        until(lambda: machine.free_bytes(device) >= before_bytes - FEW_BYTES, what="the memory is free again")
        print(f"free again {time.monotonic() - recorded_s:.3f} s after the end was seen in the history")
    assert run is not None
    assert run.ending is not None
    assert (EndingKind.CANCELLED, signal.SIGKILL) == (run.ending.kind, run.ending.signal)


@pytest.mark.full
@pytest.mark.gpu
@pytest.mark.parametrize("machine", ["card"], indirect=True)
def test_a_mig_instance_has_its_profile_and_its_own_peaks(gpu_site: Site, machine: Machine, tmp_path: Path) -> None:
    """The name of an instance ends with its profile, and the peak of a run is measured on the instance."""
    instance = next((each for each in machine.backend.devices() if each.mig_parent is not None), None)
    if instance is None:
        pytest.skip("no GPU here is divided into MIG instances")
    machine.must_name_our_processes()
    gpu_site.start_worker(instance.uuid)

    peak = peak_of(gpu_site, tmp_path / "gate", instance, GIB)

    print(f"{instance.name}: profile {instance.mig_profile}, peak {(peak.bytes or 0) / MIB:.0f} MiB")
    assert instance.mig_profile is not None
    assert GIB <= (peak.bytes or 0) <= instance.total_bytes


def test_the_driver_names_our_own_processes(machine: Machine) -> None:
    """The GPU's list has a process of this machine, with its pid and its bytes."""
    machine.must_name_our_processes()


def test_the_cost_of_nvml_and_of_a_sample(machine: Machine, tmp_path: Path) -> None:
    """Every call that a worker makes often is answered.

    The costs are printed, and no bound is checked.
    """
    machine.must_name_our_processes()
    device = machine.card(GIB)
    places = os.pathsep.join((str(SUPPORT.parents[1]), str(SUPPORT)))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("nvml_cost.py")), device.uuid, str(tmp_path)],
        env={**os.environ, **machine.environ, "CUDA_VISIBLE_DEVICES": device.uuid, "PYTHONPATH": places},
        stdout=subprocess.PIPE,
        timeout=100,
        check=True,
    )
    reported = json.loads(done.stdout)

    for name, cost_us in reported["cost_us"].items():
        print(f"{name:24} {cost_us:9.1f} µs")
    assert 5 == len(reported["cost_us"])
    assert all(cost_us > 0 for cost_us in reported["cost_us"].values())
    assert reported["samples"] > 1
    assert reported["used_bytes"] >= 64 * MIB
