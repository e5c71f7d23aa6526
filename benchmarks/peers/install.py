"""Installs others to compare with: RQ and Huey into an environment of their own, task-spooler where we are root.

python -m benchmarks.peers.install

Celery is there already, it hosts our workers. Nothing is changed in the environment of gpuqueue. Slurm, gflow, jobd and
gpuqu are not driven by ``python -m benchmarks.peers``: docs/performance.md tells what was measured of them, and when.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv

from benchmarks.measure.place import ROOT

HOME = ROOT / "build" / "peers"
PYTHON = HOME / "bin" / "python"
NEEDED = ("rq", "huey", "redis")


def main() -> int:
    """Install what is missing; return 1 if something could not be had."""
    codes = [_python_queues(), _task_spooler()]
    return 1 if any(codes) else 0


def _python_queues() -> int:
    if not PYTHON.exists():
        venv.create(HOME, with_pip=True)
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", *NEEDED]
    return subprocess.run(pip, check=False).returncode


def _task_spooler() -> int:
    if shutil.which("tsp"):
        return 0
    apt = shutil.which("apt-get")
    if os.geteuid() != 0 or apt is None:
        print("task-spooler: install it with your system's packages (Debian: apt install task-spooler)")
        return 1
    return subprocess.run([apt, "install", "-y", "-q", "task-spooler"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
