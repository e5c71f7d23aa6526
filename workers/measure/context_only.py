"""Makes a CUDA context on the first visible device, writes a byte, and waits for the end of its input.

Run as a program, with nothing but the standard library, so that the process has a context and nothing else.
"""

import ctypes
import os
import sys


def main() -> int:
    """Return 0 at the end of the input, or 1 if there is no context."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 1
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuInit(0) or library.cuDeviceGet(ctypes.byref(device), 0):
        return 1
    if library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return 1
    os.write(1, b".")
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
