"""Tests of the last hours of the devices: steps, gaps, bounds, and a service that starts again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_device, make_status

from gpuqueue.queue.lease import DeviceStatus, Holding
from gpuqueue.service.web import device_past as module
from gpuqueue.service.web.device_past import STEP_S, STEPS, PastOfDevices
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB

#: The beginning of a step.
BEGIN_S = 1_000_000 * STEP_S


class Clock:
    """A clock that a test moves."""

    now_s = float(BEGIN_S)

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def settings_of(directory: Path) -> Settings:
    """Return the settings of a site that keeps its state in *directory*."""
    return Settings.load({"GPUQUEUE_CONFIG": "/dev/null", "GPUQUEUE_STATE_DIR": str(directory)})


@pytest.fixture
def clock() -> Clock:
    """Return a clock at the beginning of a step."""
    return Clock()


@pytest.fixture
def past(tmp_path: Path, clock: Clock) -> PastOfDevices:
    """Return the past of the devices of a site."""
    return PastOfDevices(settings_of(tmp_path), clock)


def status(used: int = 0, load: float | None = 0.5, *, uuid: str = "GPU-0", seen_s_ago: float = 1.0) -> DeviceStatus:
    """Return a device of 8 GiB on which a run uses *used* GiB, beside 1 GiB of others."""
    return make_status(
        device=make_device(uuid, total_bytes=8 * GIB),
        external_bytes=GIB,
        holdings=(Holding(job_id=1, lease_bytes=8 * GIB, observed_bytes=used * GIB),),
        utilisation=load,
        seen_s_ago=seen_s_ago,
    )


def test_a_step_has_the_most_memory_and_the_mean_load(past: PastOfDevices, clock: Clock) -> None:
    """Memory that was used for a moment shows; a load that swings does not."""
    for used, load in ((1, 0.0), (7, 1.0), (3, 0.5)):
        past.note([status(used, load)])
    clock.now_s += 2 * STEP_S
    past.note([status(0, None)])

    found = past.past()
    device = found.devices["GPU-0"]
    assert STEPS == len(device.used) == len(device.utilisation)
    assert (None, 1.0, None, 0.125) == device.used[-4:]
    assert (None, 0.5, None, None) == device.utilisation[-4:], "a driver that does not say is no idle card"
    assert (STEP_S, BEGIN_S + 3 * STEP_S) == (found.step_s, found.at.timestamp())


def test_what_nobody_saw_is_unknown(past: PastOfDevices) -> None:
    """A silent worker, and memory of which the driver does not say how much is used."""
    past.note([status(uuid="GPU-silent", seen_s_ago=1e6), replace(status(uuid="GPU-blind"), external_bytes=None)])

    devices = past.past().devices
    assert {"GPU-blind"} == devices.keys()
    assert devices["GPU-blind"].used[-1] is None


def test_it_is_bounded(past: PastOfDevices, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old steps and the devices that were seen longest ago are forgotten."""
    monkeypatch.setattr(module, "MOST_DEVICES", 3)
    for number in range(STEPS + 5):
        clock.now_s = BEGIN_S + number * STEP_S
        past.note([status(number % 7)])
    past.note([status(uuid=f"GPU-{number}") for number in range(1, 4)])
    assert {"GPU-1", "GPU-2", "GPU-3"} == past.past().devices.keys()
    past.note([status()])
    past.keep()
    assert 3 == len(json.loads((past._path).read_text())["devices"])
    clock.now_s += STEPS * STEP_S
    assert {} == past.past().devices


def test_a_service_that_starts_again_goes_on(past: PastOfDevices, clock: Clock, tmp_path: Path) -> None:
    """What the one before it has kept counts, and the time between is unknown."""
    past.note([status(3)])
    past.keep()
    clock.now_s += 3 * STEP_S
    again = PastOfDevices(settings_of(tmp_path), clock)
    again.restore()
    again.note([status(7)])

    assert (0.5, None, None, 1.0) == again.past().devices["GPU-0"].used[-4:]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"step_s": 60, "devices": {}}', '{"step_s": 180, "devices": {"GPU-0": [[1, "x", 0.0, 1]]}}'],
)
def test_a_damaged_file_is_no_past(past: PastOfDevices, text: str) -> None:
    """Nor is one with steps of another length."""
    past._path.write_text(text)
    past.restore()
    assert {} == past.past().devices


def test_a_full_disk_stops_nothing(past: PastOfDevices) -> None:
    """The directory may be gone, too."""
    past.note([status()])
    past._path = past._path.parent / "gone" / "device-past"
    past.keep()
    assert {"GPU-0"} == past.past().devices.keys()
