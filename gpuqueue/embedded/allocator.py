"""Chooses the memory allocator of the embedded server: jemalloc or mimalloc if installed, else the C library's.

Redis and Valkey, and the packages of most distributions, are built with jemalloc. The server that is installed with
gpuqueue uses the C library's allocator, which places the short-lived values of a script in the gaps between jobs.
With hundreds of thousands of jobs each access to such a value misses the CPU cache. A claim then takes 1.5 times as
long, and the 99th percentile twice as long (docs/internals/performance.md).
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Libraries in the order of preference.
LIBRARIES = ("libjemalloc.so.2", "libmimalloc.so.3", "libmimalloc.so.2")
_NAMES = ("libjemalloc.", "libmimalloc.")
#: The dynamic loader's variable. If the user sets it, even to an empty value, it stays as it is.
VARIABLE = "LD_PRELOAD"


def environment_for(server: Path, environ: Mapping[str, str], folders: Iterable[Path] | None = None) -> dict[str, str]:
    """Return *environ* for a server, with the allocator library to preload. *folders* are searched for libraries."""
    if VARIABLE not in environ and _of_the_c_library(server):
        library = installed(places() if folders is None else folders)
        if library is not None:
            return {**environ, VARIABLE: str(library)}
    return dict(environ)


def installed(folders: Iterable[Path]) -> Path | None:
    """Return the most preferred library that exists in one of *folders*, or None."""
    folders = tuple(folders)
    found = (folder / name for name in LIBRARIES for folder in folders)
    return next((library for library in found if library.is_file()), None)


def places() -> tuple[Path, ...]:
    """Return the folders of libraries: first those of this Python (conda, a wheel), then the system's."""
    system = sysconfig.get_config_var("MULTIARCH")
    return (
        Path(sys.prefix) / "lib",
        Path(sysconfig.get_path("purelib")) / "cmeel.prefix" / "lib",
        *((Path("/usr/lib") / system,) if system else ()),
        *map(Path, ("/usr/lib64", "/usr/lib", "/usr/local/lib")),
    )


def loaded_by(pid: int) -> Path | None:
    """Return the allocator library that process *pid* has loaded, or None if there is none or it is not visible."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    files = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    return next((Path(file) for file in sorted(files) if Path(file).name.startswith(_NAMES)), None)


def _of_the_c_library(server: Path) -> bool:
    try:
        reported = subprocess.run([server, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return "malloc=libc" in reported
