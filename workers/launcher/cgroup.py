"""The control group of a run (cgroup v2), with which the kernel ends all its processes at once. Standard library only.

The control group also contains processes that left the session and removed the token from their environment, even after
shim and guard were killed. Runs have no control group without cgroup v2, or if the launcher's unit has no
``Delegate=yes``; guard and token find the processes then.
"""

from __future__ import annotations

import contextlib
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: The attributes by which systemd marks a control group whose subtree it leaves to the unit.
DELEGATED = ("user.delegate", "trusted.delegate")
#: Longest name of a directory, in bytes.
MOST_NAME_BYTES = 255
#: How long the processes of a killed group may take to disappear, and the time between two polls, in seconds.
GONE_S = 5.0
POLL_S = 0.01


def of_launcher(socket_path: str) -> str | None:
    """Return the directory for the control groups of one launcher's runs, made if need be; None if there can be none.

    It is below the launcher's own group, and its name is that of the launcher's socket.
    """
    own = _own()
    if own is None:
        return None
    found = os.path.join(own, socket_path.strip("/").replace("/", "-")[-MOST_NAME_BYTES:])
    try:
        os.makedirs(found, exist_ok=True)
    except OSError:  # read-only, as in most containers
        return None
    if not os.path.exists(os.path.join(found, "cgroup.kill")):  # Linux before 5.14
        os.rmdir(found)
        return None
    for name in os.listdir(found):  # of runs whose guard was killed
        with contextlib.suppress(OSError):  # a file, or a group with processes
            os.rmdir(os.path.join(found, name))
    return found


class RunGroup:
    """The control group of one run: a directory, whose name is the token of the run."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    @classmethod
    def create(cls, base: str | None, token: str) -> RunGroup | None:
        """Make the group of a new run, or return None if there can be none."""
        if base is None or not token:
            return None
        directory = os.path.join(base, token)
        try:
            os.mkdir(directory)
        except OSError:
            return None
        return cls(directory)

    @classmethod
    def find(cls, base: str | None, token: str) -> RunGroup | None:
        """Return the group of an earlier run, or None if there is none."""
        directory = os.path.join(base, token) if base else ""
        return cls(directory) if base and os.path.isdir(directory) else None

    def enter(self) -> None:
        """Move this process into the group. If the kernel refuses, the process stays where it is."""
        with contextlib.suppress(OSError):
            self._write("cgroup.procs", "0")

    def end(self) -> int:
        """Kill all processes of the group, wait until they are gone, remove the group; return how many there were."""
        try:
            found = len(self._pids())
            self._write("cgroup.kill", "1")
        except OSError:  # the group is gone
            return 0
        for _ in _until(GONE_S):
            with contextlib.suppress(OSError):
                os.rmdir(self._directory)
            if not os.path.isdir(self._directory):
                break
        return found

    def _pids(self) -> list[str]:
        with open(os.path.join(self._directory, "cgroup.procs"), encoding="ascii") as file:
            return file.read().split()

    def _write(self, name: str, text: str) -> None:
        with open(os.path.join(self._directory, name), "w", encoding="ascii") as file:
            file.write(text)


def _until(limit_s: float) -> Iterator[None]:
    """Yield once, and again every POLL_S seconds until *limit_s* seconds have passed."""
    deadline = time.monotonic() + limit_s
    yield
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        yield


def _own() -> str | None:
    """Return the directory of this process's control group, if this process may create subgroups."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            group = next(line[3:].rstrip("\n") for line in file if line.startswith("0::"))
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            mounts = [line.split(" - ") for line in file]
        mount = next(left.split()[4] for left, right in mounts if right.startswith("cgroup2 "))
    except (OSError, StopIteration, ValueError):
        return None
    own = os.path.join(mount, group.strip("/")).rstrip("/")
    # The root group is that of a container, or of a machine without systemd.
    return own if group == "/" or any(_attribute(own, name) == b"1" for name in DELEGATED) else None


def _attribute(path: str, name: str) -> bytes:
    try:
        return os.getxattr(path, name)
    except OSError:
        return b""
