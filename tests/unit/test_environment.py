from __future__ import annotations

from pathlib import Path

from factories import make_spec

from gpuqueue.device import DeviceKind
from gpuqueue.run import RunDevice
from workers.environment import environment


def device(uuid: str, kind: DeviceKind) -> RunDevice:
    return RunDevice(uuid=uuid, lease_bytes=1, kind=kind)


def test_devices_are_pinned_by_uuid_in_order() -> None:
    """A program sees 0, 1, … in this order, whatever the indices are outside."""
    devices = (device("GPU-b", DeviceKind.GPU), device("GPU-a", DeviceKind.GPU))

    env = environment(7, "1.abc", make_spec(env={"CUDA_VISIBLE_DEVICES": "0,1,2"}), devices, Path("/run"))

    assert "GPU-b,GPU-a" == env["CUDA_VISIBLE_DEVICES"]
    assert "PCI_BUS_ID" == env["CUDA_DEVICE_ORDER"]
    assert ("7", "1", "1.abc", "/run") == tuple(
        env[f"GPUQUEUE_{name}"] for name in ("JOB_ID", "ATTEMPT", "TOKEN", "RUN_DIR")
    )


def test_a_job_on_the_cpu_sees_no_card() -> None:
    """It was promised none."""
    env = environment(7, "1.abc", make_spec(), (device("cpu-h", DeviceKind.CPU),), Path("/run"))

    assert "" == env["CUDA_VISIBLE_DEVICES"]


def test_what_the_submitter_set_stays() -> None:
    """Output is unbuffered unless the submitter says otherwise."""
    devices = (device("GPU-a", DeviceKind.GPU),)

    assert "1" == environment(1, "1.a", make_spec(), devices, Path("/r"))["PYTHONUNBUFFERED"]
    assert "" == environment(1, "1.a", make_spec(env={"PYTHONUNBUFFERED": ""}), devices, Path("/r"))["PYTHONUNBUFFERED"]
