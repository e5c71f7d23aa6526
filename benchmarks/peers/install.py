"""Installs other queues to compare with: from PyPI into their own environment, and from Debian where we are root.

python -m benchmarks.peers.install [NAME…]

Celery is already installed, because it hosts gpuqueue's workers. The environment of gpuqueue is not changed, and no
service is used: the benchmark starts what it needs below a temporary directory. (Debian itself enables the services of
munge and Slurm; those of Slurm do nothing without /etc/slurm/slurm.conf.) Versions are fixed, so that two runs measure
the same programs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence

from benchmarks.measure.place import ROOT

HOME = ROOT / "build" / "peers"
PYTHON = HOME / "bin" / "python"
#: One ``pip install`` each, so that a package that cannot be installed does not affect the others.
FROM_PYPI = {
    "rq": ("rq==3.0.0", "redis==8.1.0"),
    "huey": ("huey==3.5.4", "redis==8.1.0"),
    "gflow": ("runqd==0.4.18",),
    "jobd": ("jobd[worker]==0.5.52",),
    "gpuqu": ("gpuqu==0.1.3",),
}
#: The program whose presence shows that it is installed, then the packages.
FROM_DEBIAN = {
    "task-spooler": ("tsp", ("task-spooler",)),
    "tmux": ("tmux", ("tmux",)),  # gflow runs its jobs in it
    "slurm": ("slurmctld", ("slurmctld", "slurmd", "slurm-client", "munge")),
}


def main(words: Sequence[str]) -> int:
    """Install what is missing; return 1 if something could not be installed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.install",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [*FROM_PYPI, *FROM_DEBIAN]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(known)}; all of them if none is named")
    names = parser.parse_args(words).names
    unknown = sorted(set(names) - set(known))
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(known)}")
    codes = [_from_pypi(name) if name in FROM_PYPI else _from_debian(name) for name in names or known]
    return 1 if any(codes) else 0


def _from_pypi(name: str) -> int:
    if not PYTHON.exists():
        venv.create(HOME, with_pip=True)
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", *FROM_PYPI[name]]
    code = subprocess.run(pip, check=False).returncode
    if code:
        print(f"{name}: could not be installed; the benchmark goes without it")
    return code


def _from_debian(name: str) -> int:
    program, packages = FROM_DEBIAN[name]
    if shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))):
        return 0
    apt = shutil.which("apt-get")
    if os.geteuid() != 0 or apt is None:
        print(f"{name}: install it with your system's packages (Debian: apt install {' '.join(packages)})")
        return 1
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    words = [apt, "install", "-y", "-q", "--no-install-recommends", *packages]
    return subprocess.run(words, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
