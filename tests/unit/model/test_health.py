"""Tests of the conditions under which a device takes no new job."""

from __future__ import annotations

import pytest

from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.model.device import (
    HARDWARE_SLOWDOWN,
    HARDWARE_THERMAL,
    POWER_BRAKE,
    SOFTWARE_THERMAL,
    Device,
    DeviceKind,
    Health,
    is_heat,
    trouble_of,
)


@pytest.mark.parametrize(
    "health",
    [
        Health(),
        Health(temperature_c=79.0),
        Health(temperature_c=77.0, limit_c=83.0, throttled=(), compute_mode="default"),
        Health(temperature_c=87.0, limit_c=93.0),
        Health(limit_c=60.0),
        Health(throttled=(POWER_BRAKE, HARDWARE_SLOWDOWN)),
        Health(compute_mode="exclusive_process"),
        Health(ecc_uncorrected=3, utilisation=1.0),
    ],
)
def test_a_device_that_is_well_or_unknown_takes_jobs(health: Health) -> None:
    """An unknown value is no trouble, and neither are load, power limits or the exclusive compute mode."""
    assert trouble_of(health) is None


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (Health(temperature_c=80.0), "it is hot: 80 °C, and the limit for new jobs is 80 °C"),
        (Health(temperature_c=81.0, limit_c=83.0), "it is hot: 81 °C, and the limit for new jobs is 78 °C"),
        (Health(temperature_c=88.0, limit_c=93.0), "it is hot: 88 °C, and the limit for new jobs is 88 °C"),
        (Health(throttled=(SOFTWARE_THERMAL,)), "it is too hot to run at full speed: software thermal slowdown"),
        (
            Health(temperature_c=60.0, throttled=(HARDWARE_SLOWDOWN, HARDWARE_THERMAL)),
            "it is too hot to run at full speed: hardware thermal slowdown",
        ),
    ],
)
def test_a_hot_device_takes_no_job_and_says_why(health: Health, words: str) -> None:
    """A hot device takes no job.

    It is hot from a little below its own limit on, or when the driver slows it down because of heat.
    """
    assert words == trouble_of(health)


def test_the_limit_for_new_jobs_can_be_set() -> None:
    """The site sets the limit, lower or higher than the default. The device's own limit still holds."""
    words = "it is hot: 71 °C, and the limit for new jobs is 70 °C"
    assert words == trouble_of(Health(temperature_c=71.0, limit_c=83.0), 70)
    assert trouble_of(Health(temperature_c=85.0), 90) is None
    assert "own limit is 83 °C" in (trouble_of(Health(temperature_c=85.0, limit_c=83.0), 90) or "")


def test_a_prohibited_device_takes_no_job() -> None:
    """A prohibited compute mode is reported before all other troubles, with its remedy."""
    assert "nvidia-smi -c DEFAULT" in (trouble_of(Health(compute_mode="prohibited", temperature_c=99.0)) or "")


def test_a_mig_instance_keeps_its_parent_on_the_wire() -> None:
    """A MIG instance is sent with its parent card. An older payload has no parent."""
    device = Device(
        uuid="MIG-1", index=100, name="one", kind=DeviceKind.GPU, total_bytes=1, pci_bus="0", mig_parent="GPU-1"
    )
    plain = to_stored(device)
    assert device == from_plain(Device, plain)
    del plain["mig_parent"]
    assert from_plain(Device, plain).mig_parent is None


@pytest.mark.parametrize(
    ("name", "parent", "profile"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "GPU-1", "1g.10gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "GPU-1", "1c.3g.20gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", "GPU-1", "1g.5gb+me"),
        ("NVIDIA A100-SXM4-40GB", "GPU-1", None),
        ("NVIDIA A100-SXM4-40GB MIG ", "GPU-1", None),
        ("a card called MIG 29", None, None),
    ],
)
def test_a_mig_instance_has_a_profile(name: str, parent: str | None, profile: str | None) -> None:
    """The profile of a MIG instance is the end of its name. A whole card has none, whatever its name is."""
    device = Device(uuid="d", index=0, name=name, kind=DeviceKind.GPU, total_bytes=1, mig_parent=parent)

    assert profile == device.mig_profile


def test_heat_differs_from_other_trouble() -> None:
    """Monitoring has a figure of its own for heat."""
    troubles = [
        trouble_of(Health(temperature_c=95.0)),
        trouble_of(Health(throttled=(HARDWARE_THERMAL,))),
        trouble_of(Health(compute_mode="prohibited")),
        None,
    ]

    assert [True, True, False, False] == [is_heat(each) for each in troubles]
