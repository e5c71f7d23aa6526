"""A job that holds memory on a GPU through libcuda, on the fake driver or on a real card.

python job.py [--device cuda:0] SIZE…   sizes like 512M or 6G; holds them all until its input ends

Prints ``ready`` when it holds them. Ends with 3 when the GPU is full, with 4 for every other error of CUDA.
It needs only Python, so that it also runs as ``python -c``, on any machine.
"""

from __future__ import annotations

import argparse
import ctypes
import sys

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
OUT_OF_MEMORY = 2


def size_bytes(text: str) -> int:
    """Return the bytes of a size like 6G."""
    return int(float(text[:-1]) * UNITS[text[-1]]) if text[-1:] in UNITS else int(text)


class Cuda:
    """The driver's library; every error ends the program."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)

    def call(self, name: str, *args: object) -> None:
        """Make one call."""
        code = getattr(self._library, name)(*args)
        if code:
            sys.stderr.write(f"{name}: CUDA error {code}\n")
            sys.exit(3 if code == OUT_OF_MEMORY else 4)

    def use(self, ordinal: int) -> None:
        """Make the visible device number *ordinal* the current one."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def allocate(self, wanted_bytes: int) -> int:
        """Return the address of *wanted_bytes* on the current device."""
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(wanted_bytes))
        return at.value


def main() -> None:
    """Hold the sizes until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("sizes", nargs="*", type=size_bytes)
    args = parser.parse_args()
    cuda = Cuda()
    cuda.use(int(args.device.partition(":")[2] or 0))
    for wanted_bytes in args.sizes:
        cuda.allocate(wanted_bytes)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
