"""A host that runs out of something: disk space, descriptors, processes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until

from workers.run import process_tree
from workers.shim.forkserver import NAME

MNT_DETACH = 2
#: Where version 1 of the control groups limits processes.
PIDS = Path("/sys/fs/cgroup/pids")


@contextlib.contextmanager
def own_disk(where: Path, kind: str = "tmpfs", *, options: str = "size=1m") -> Iterator[Path]:
    """Mount a file system at *where*, and unmount it afterwards; skip where none can be mounted."""
    where.mkdir(parents=True, exist_ok=True)
    output = ["-o", options] if kind == "tmpfs" else []
    done = subprocess.run(
        [shutil.which("mount") or "/bin/mount", "-t", kind, *output, "none", str(where)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"a disk of its own needs root, or the tests below unshare -rm: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run([shutil.which("umount") or "/bin/umount", "-l", str(where)], check=True)


@contextlib.contextmanager
def dead_server(where: Path) -> Iterator[Path]:
    """Mount a file server at *where* that answers no request, as one that has died; skip where that is impossible.

    A process that uses it waits until it is killed, or until the end of this context.
    """
    where.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"a dead file server needs /dev/fuse: {error}")
    output = f"fd={server},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    if libc.mount(b"dead", os.fsencode(where), b"fuse", 0, output) != 0:
        os.close(server)
        pytest.skip(f"a dead file server needs root: {os.strerror(ctypes.get_errno())}")
    try:
        yield where
    finally:
        os.close(server)  # ends the server and all waits for it
        libc.umount2(os.fsencode(where), MNT_DETACH)


def fill(disk: Path) -> Path:
    """Fill *disk*; return the file whose deletion makes space again."""
    filler = disk / ".filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)), (disk / ".probe").open("wb", buffering=0) as file:
        file.write(b"x" * 4096)
    (disk / ".probe").unlink()
    return filler


@contextlib.contextmanager
def no_descriptors(pid: int, *, but: int = 0) -> Iterator[None]:
    """Let the process *pid* open nothing more, except *but* descriptors, for a while.

    Its open descriptors stay open.
    """
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    at_most = min(_first_free(pid, but) for _ in range(20))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (at_most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def _first_free(pid: int, skip: int) -> int:
    """Return the descriptor that the process would get next, after *skip* others; never 0, for poll(2)."""
    used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    if pid == os.getpid():
        used = {number for number in used if _is_open(number)}  # without the descriptor of the listing itself
    return [number for number in range(len(used) + skip + 1) if number not in used][skip]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def no_processes(pid: int, *, but: int = 0) -> Iterator[None]:
    """Let the worker *pid* start no process and no thread, except *but* of them, for a while.

    The same limit holds for its fork server and the shim that waits. Skips where no limit can be set.
    """
    servers = [each for each in process_tree.children(pid) if _name(each) == NAME]
    shims = [until(lambda: process_tree.children(server), what="a shim waits") for server in servers]  # noqa: B023 - at once
    pids = [pid, *servers, *(shim for waiting in shims for shim in waiting)]
    if os.getuid() != 0:
        before = resource.prlimit(pid, resource.RLIMIT_NPROC)
        for each in pids:
            resource.prlimit(each, resource.RLIMIT_NPROC, (_tasks_of_user() + but if but else 0, before[1]))
        try:
            yield
        finally:
            for each in pids:
                resource.prlimit(each, resource.RLIMIT_NPROC, before)
        return
    # For root the kernel enforces the limit of a control group, and not RLIMIT_NPROC.
    group = PIDS / f"gpuqueue-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        for each in pids:
            (group / "cgroup.procs").write_text(str(each))
        (group / "pids.max").write_text(str(int((group / "pids.current").read_text()) + but))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"root is held to no process limit, and there is no control group for it: {error}")
    try:
        yield
    finally:
        (group / "pids.max").write_text("max")
        for each in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (PIDS / "cgroup.procs").write_text(each)
        with contextlib.suppress(OSError):
            group.rmdir()


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _tasks_of_user() -> int:
    """Return the number of threads of the user of these tests, which the limit counts."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.getuid():
                found += len(list((process / "task").iterdir()))
    return found
