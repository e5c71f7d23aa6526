"""Where the control groups of a launcher's runs are (cgroup v2). Standard library only.

They are below a group that systemd leaves to its unit (``Delegate=yes``), or below the root of a container or of a
machine without systemd. The kernel limits the memory and processor time only of groups whose parent has no process of
its own. So the groups of limited runs are below a unit that does nothing else, and whose one process is moved aside.
"""

from __future__ import annotations

import contextlib
import os

#: The attributes by which systemd marks a control group whose subtree it leaves to the unit.
DELEGATED = ("user.delegate", "trusted.delegate")
#: Longest name of a directory, in bytes.
MOST_NAME_BYTES = 255
#: The parts of the kernel that share and limit the memory, the processor time and the processes of groups.
CONTROLLERS = ("memory", "cpu", "pids")
#: The group of the processes that systemd has put into the unit of the runs.
ASIDE = "unit"


def of_launcher(socket_path: str) -> str | None:
    """Return the directory for the control groups of one launcher's runs, made if need be; None if there can be none.

    It is below the launcher's own group, and its name is that of the launcher's socket. Runs there are not limited.
    """
    found = _mount_and_own()
    if found is None:
        return None
    own = os.path.join(found[0], found[1].strip("/")).rstrip("/")
    # The root group is that of a container, or of a machine without systemd.
    return _made(own, socket_path) if found[1] == "/" or _is_delegated(own) else None


def of_unit(group: str, socket_path: str) -> str:
    """Return such a directory below *group*, the control group of a unit, in which each run can be limited.

    *group* is written as in ``/proc/PID/cgroup``, such as ``/system.slice/gpuqueue-runs.service``.

    Raises:
        OSError: there can be none; the message says why.

    """
    found = _mount_and_own()
    if found is None:
        raise OSError(None, "this machine has no control groups of version 2")
    top = os.path.join(found[0], group.strip("/"))
    if not os.path.isdir(top):
        raise OSError(None, f"there is no control group {group}: start its unit")
    if not _is_delegated(top):
        raise OSError(None, f"the unit of the control group {group} has no Delegate=yes")
    _move_aside(top)
    _enable(top)
    made = _made(top, socket_path)
    if made is None:
        raise OSError(None, f"the control group {group} cannot be divided")
    _enable(made)
    return made


def limitable(directory: str) -> set[str]:
    """Return which of CONTROLLERS limit the groups in *directory*."""
    try:
        with open(os.path.join(directory, "cgroup.subtree_control"), encoding="ascii") as file:
            return set(file.read().split()).intersection(CONTROLLERS)
    except OSError:
        return set()


def _made(above: str, socket_path: str) -> str | None:
    found = os.path.join(above, socket_path.strip("/").replace("/", "-")[-MOST_NAME_BYTES:])
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


def _move_aside(top: str) -> None:
    """Move the processes of the group *top* itself into a group below it."""
    aside = os.path.join(top, ASIDE)
    os.makedirs(aside, exist_ok=True)
    with open(os.path.join(top, "cgroup.procs"), encoding="ascii") as file:
        pids = file.read().split()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            _write(os.path.join(aside, "cgroup.procs"), pid)


def _enable(directory: str) -> None:
    """Have the kernel share and limit what the groups in *directory* use, as far as the machine can."""
    with open(os.path.join(directory, "cgroup.controllers"), encoding="ascii") as file:
        there = file.read().split()
    for each in CONTROLLERS:
        if each in there:
            _write(os.path.join(directory, "cgroup.subtree_control"), f"+{each}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _mount_and_own() -> tuple[str, str] | None:
    """Return where cgroup v2 is mounted, and the group of this process; None without cgroup v2."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            group = next(line[3:].rstrip("\n") for line in file if line.startswith("0::"))
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            mounts = [line.split(" - ") for line in file]
        return next(left.split()[4] for left, right in mounts if right.startswith("cgroup2 ")), group
    except (OSError, StopIteration, ValueError):
        return None


def _is_delegated(directory: str) -> bool:
    return any(_attribute(directory, name) == b"1" for name in DELEGATED)


def _attribute(path: str, name: str) -> bytes:
    try:
        return os.getxattr(path, name)
    except OSError:
        return b""
