"""What gives the embedded server its memory: jemalloc or mimalloc where the machine has one, else the C library.

Redis and Valkey are built with jemalloc, and so are those of most distributions. The server that is installed with us
uses the C library's allocator, and that one puts the short-lived values of a script wherever jobs have left a hole:
among hundreds of thousands of jobs each of them is a miss of the processor's cache. The same claim takes one and a
half times as long then, and the slowest in a hundred twice (docs/performance.md).
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

#: In the order in which they are taken.
LIBRARIES = ("libjemalloc.so.2", "libmimalloc.so.3", "libmimalloc.so.2")
_NAMES = ("libjemalloc.", "libmimalloc.")
#: The dynamic loader's own variable. Whoever sets it, also to nothing, has chosen.
VARIABLE = "LD_PRELOAD"


def environment_for(server: Path, environ: Mapping[str, str], folders: Iterable[Path] | None = None) -> dict[str, str]:
    """Return *environ* for a server, with the allocator that it should load; *folders* are those to look in."""
    if VARIABLE not in environ and _of_the_c_library(server):
        library = installed(places() if folders is None else folders)
        if library is not None:
            return {**environ, VARIABLE: str(library)}
    return dict(environ)


def installed(folders: Iterable[Path]) -> Path | None:
    """Return the first library that is in one of *folders*, or None."""
    folders = tuple(folders)
    found = (folder / name for name in LIBRARIES for folder in folders)
    return next((library for library in found if library.is_file()), None)


def places() -> tuple[Path, ...]:
    """Return where libraries are installed: beside this Python (conda, a wheel), then by the system."""
    system = sysconfig.get_config_var("MULTIARCH")
    return (
        Path(sys.prefix) / "lib",
        Path(sysconfig.get_path("purelib")) / "cmeel.prefix" / "lib",
        *((Path("/usr/lib") / system,) if system else ()),
        *map(Path, ("/usr/lib64", "/usr/lib", "/usr/local/lib")),
    )


def loaded_by(pid: int) -> Path | None:
    """Return the library that the process with this *pid* has loaded; None: none, or it cannot be seen."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    files = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    return next((Path(file) for file in sorted(files) if Path(file).name.startswith(_NAMES)), None)


def _of_the_c_library(server: Path) -> bool:
    try:
        told = subprocess.run([server, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return "malloc=libc" in told
