"""What a job finds in its environment: the submitter's, and what the queue adds."""

from __future__ import annotations

from pathlib import Path

from gpuqueue.device import DeviceKind
from gpuqueue.job import JobSpec
from gpuqueue.run import RunDevice

#: By this variable every process of a run can be known, however often it forked.
TOKEN = "GPUQUEUE_TOKEN"  # noqa: S105 - a fencing token, no secret


def environment(
    job_id: int, token: str, spec: JobSpec, devices: tuple[RunDevice, ...], run_dir: Path
) -> dict[str, str]:
    """Return the environment of a run of *spec* on *devices*.

    The devices are pinned by UUID: an index may mean another card to CUDA than to the driver. A program
    sees them as 0, 1, … in this order. On the CPU the list is empty, so that no card is touched unasked.
    """
    visible = [device.uuid for device in devices if device.kind is not DeviceKind.CPU]
    ours = {
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUQUEUE_JOB_ID": str(job_id),
        "GPUQUEUE_ATTEMPT": token.split(".", 1)[0],
        TOKEN: token,
        "GPUQUEUE_RUN_DIR": str(run_dir),
        "GPUQUEUE_MEM_BYTES": str(spec.mem_bytes),
        "GPUQUEUE_DEVICES": ",".join(device.uuid for device in devices),
        "PWD": spec.cwd,
    }
    # Unbuffered, so that `logs -f` shows a line when it is printed and stderr does not overtake stdout.
    return {"PYTHONUNBUFFERED": "1", **spec.env, **ours}
