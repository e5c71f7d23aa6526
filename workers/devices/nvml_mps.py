"""What NVML reports about the support of MPS.

A function here raises Refusal if NVML gives an error that it does not handle.
"""

from __future__ import annotations

import pynvml

from workers.devices.nvml_calls import UNSUPPORTED, Session

#: The first CUDA version that limits the memory of a client: 11.5, as the driver writes it.
_LIMITS_MEMORY = 11050
#: The compute capability of Volta. Older GPUs have no limits of clients, and no memory protection between them.
_VOLTA = (7, 0)
#: The process list grew between the two calls that pynvml makes for it, so the driver supports it.
_GREW = frozenset({pynvml.NVML_ERROR_INSUFFICIENT_SIZE})


def lacking(uuid: str) -> str | None:
    """Return what the driver or the GPU *uuid* lacks for jobs through MPS, None if it lacks nothing.

    What is not reported counts as present, except the list of clients: without it their memory cannot be measured.
    """
    session = Session()
    cuda = session.maybe("nvmlSystemGetCudaDriverVersion")
    if cuda is not None and cuda < _LIMITS_MEMORY:
        version = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return f"the NVIDIA driver cannot limit the memory of a job: it supports CUDA up to {version}, and needs 11.5"
    handle = session.handle(uuid)
    capability = session.maybe("nvmlDeviceGetCudaComputeCapability", handle)
    if capability is not None and tuple(capability) < _VOLTA:
        return f"{uuid} cannot limit the memory of a job: it is older than Volta"
    clients = session.maybe("nvmlDeviceGetMPSComputeRunningProcesses_v3", handle, forgive=UNSUPPORTED, empty=_GREW)
    if clients is None:
        return f"the NVIDIA driver does not list the jobs on {uuid}, so that their memory cannot be measured"
    return None
