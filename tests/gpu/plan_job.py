"""A job of the plan that takes GPU memory step by step through libcuda.

python plan_job.py STEP…   allocate=MIB, free (the last block), sleep=S, grow=MIB,EVERY_S,TOTAL_MIB, child=STEP+STEP…
                           (another process), daemon=STEP+STEP… (one that leaves the job's session)

It ends with 3 when the GPU is full, with 4 for every other error of CUDA. It needs only Python.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support" / "fake_driver"))

from job import Cuda

MIB = 2**20


def main(steps: list[str]) -> None:
    """Do the steps one after the other, and wait for the children at the end."""
    cuda, blocks, children = Cuda(), [], []
    cuda.use(0)
    for step in steps:
        word, _, values = step.partition("=")
        if word == "allocate":
            blocks.append(cuda.allocate(int(values) * MIB))
        elif word == "free":
            cuda.call("cuMemFree_v2", ctypes.c_uint64(blocks.pop()))
        elif word == "sleep":
            time.sleep(float(values))
        elif word == "grow":
            mib, every_s, total_mib = values.split(",")
            for _ in range(int(total_mib) // int(mib)):
                blocks.append(cuda.allocate(int(mib) * MIB))
                time.sleep(float(every_s))
        elif word in {"child", "daemon"}:
            command = [sys.executable, __file__, *values.split("+")]
            children.append(subprocess.Popen(command, start_new_session=word == "daemon"))
        else:
            sys.exit(f"unknown step {step}")
    for child in children:
        child.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
