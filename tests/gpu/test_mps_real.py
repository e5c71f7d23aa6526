"""Tests of jobs that share a real card through MPS. The same tests also run on the fake driver's cards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_driver.fake_driver import HERE, JOB, MPS_CONTROL
from held_on_card import holding, peak_of
from machine_with_cards import Machine
from site_of_one import BIN, Site

from gpuqueue.model.device import Device, PeakSource
from gpuqueue.text.units import GIB, MIB
from workers.devices import mps

#: What this test's daemon may take to start and to end, in seconds.
DAEMON_S = 30


@pytest.fixture
def pipe() -> Iterator[Path]:
    """Return a pipe directory with a short name, because the name of a socket is short."""
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as directory:
        place = Path(directory, "pipe")  # other accounts can write in the directory of the temporary one
        place.mkdir()
        yield place


@pytest.fixture
def daemon(machine: Machine, pipe: Path) -> Iterator[dict[str, str]]:
    """Run a control daemon, and return the environment of a host that has turned MPS on."""
    search = os.environ.get("PATH", os.defpath)
    path = search if machine.real else f"{HERE}{os.pathsep}{search}"
    control = shutil.which(MPS_CONTROL, path=path)
    if control is None:
        machine.lacks(f"no {MPS_CONTROL} on the PATH")
    own = {mps.PIPE_DIRECTORY: str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
    environ = {**os.environ, **machine.environ, **own}
    if subprocess.run([control, "-d"], env=environ, timeout=DAEMON_S, check=False).returncode:
        machine.lacks(f"{control} -d does not start here")
    settings = {"GPUQUEUE_DEVICES": "gpu", "GPUQUEUE_MPS": "true", "GPUQUEUE_MPS_PIPE_DIRECTORY": str(pipe)}
    yield {**machine.environ, **settings, "PATH": f"{BIN}{os.pathsep}{path}"}
    subprocess.run([control], input=b"quit\n", env=environ, timeout=DAEMON_S, check=False)


@pytest.fixture
def mps_site(daemon: dict[str, str], tmp_path: Path, store_url: str) -> Iterator[Site]:
    """Return a site whose jobs share the GPUs through that daemon, with a recorder and no worker."""
    made = Site(tmp_path / "state", store_url, **daemon)
    made.start_recorder()
    yield made
    made.stop()


@pytest.fixture
def device(machine: Machine, mps_site: Site) -> Device:
    """Return a device that jobs can share through MPS; skip where the driver cannot."""
    machine.must_name_our_processes()
    found = machine.card(4 * GIB)
    why = mps.obstacle(mps_site.settings, [found]) if machine.real else None
    return machine.lacks(why) if why is not None else found


@pytest.mark.full
def test_two_clients_are_measured_one_by_one(mps_site: Site, device: Device, tmp_path: Path) -> None:
    """Each client has the peak of its own memory, and the server of both is no external process."""
    mps_site.start_worker(device.uuid)
    with holding(mps_site, tmp_path / "beside", GIB, 256 * MIB):
        peak = peak_of(mps_site, tmp_path / "gate", device, GIB)

        external = mps_site.client.devices.list()[0].external_processes
    print(f"allocated {GIB // MIB} MiB as a client, peak {(peak.bytes or 0) / MIB:.0f}")
    assert peak.source in {PeakSource.NVML_SAMPLED, PeakSource.NVML_ACCOUNTING}
    assert GIB <= (peak.bytes or 0) < 2 * GIB
    assert not [each for each in external if "mps-server" in (each.command or "")]


@pytest.mark.full
def test_the_driver_refuses_a_client_more_than_it_asked_for(mps_site: Site, device: Device) -> None:
    """A program without any framework cannot allocate more than its job asked for, though the device has room."""
    mps_site.start_worker(device.uuid)

    words = ("run", "--mem", "1G", "--mem-retries", "0", "--", sys.executable, str(JOB))
    fits = mps_site.cli(*words, "256M")
    more = mps_site.cli(*words, "256M", "1G", check=False)

    assert "ready\n" == fits.stdout
    assert "CUDA error 2" in more.stdout + more.stderr
    assert "ready" not in more.stdout
