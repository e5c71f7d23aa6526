"""A job that prints which GPUs CUDA gives it, on the fake driver or on a real card. It holds no memory."""

from __future__ import annotations

import ctypes
import json
import os
import sys

from job import Cuda  # the program beside this one


def main() -> None:
    """Print the UUIDs that CUDA sees, as hex digits in its order, and the job's device variables."""
    cuda, count = Cuda(), ctypes.c_int()
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    uuids = []
    for ordinal in range(count.value):
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        cuda.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        cuda.call("cuDeviceGetUuid_v2", ctypes.byref(uuid), device)  # the first version returns a MIG instance's card
        uuids.append(bytes(uuid).hex())
    reported = {name: os.environ.get(name) for name in ("CUDA_DEVICE_ORDER", "GPUQUEUE_DEVICES")}
    json.dump({"uuids": uuids, **reported}, sys.stdout)


if __name__ == "__main__":
    main()
