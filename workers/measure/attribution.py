"""Maps processes on a device to runs, by walking from each process up to the root of its run.

A device lists few processes and a host has many, so the walk up is about a hundred times cheaper than a walk down from
the run: five small reads in /proc per process, no matter how many processes the run has. The root of a run is its shim,
or its guard if the job runs as its submitter. It is the subreaper of the run, so it is an ancestor of every process of
the run, including daemons. If it was killed, the walk ends at init. In that case the token in the process environment
identifies the run; forked processes inherit it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.system.process import ProcessIdentity, boot_id
from workers.run import process_tree
from workers.run.environment import TOKEN

#: Most steps of a walk. Process trees are shallower; the limit ends a loop if /proc changes during the walk.
_DEEPEST = 64
_VARIABLE = f"{TOKEN}=".encode()


def pids_by_run(
    device: Device, reading: Reading, roots: Mapping[str, ProcessIdentity | None]
) -> dict[str, frozenset[int]]:
    """Return the processes of each run that are on *device* in *reading*, by the run's token.

    *roots* maps the tokens of the runs to the roots of their process trees. A run without a process on the device is
    left out. A CPU reading lists no processes, so for the CPU the result has all processes of each run.
    """
    if device.kind is DeviceKind.CPU:
        below = {
            token: process_tree.below(root.pid) for token, root in roots.items() if root is not None and root.alive()
        }
        return {token: frozenset(pids) for token, pids in below.items() if pids}
    found: dict[str, set[int]] = {}
    for pid, token in owners(reading.processes, roots).items():
        found.setdefault(token, set()).add(pid)
    return {token: frozenset(pids) for token, pids in found.items()}


def owners(
    pids: Iterable[int], roots: Mapping[str, ProcessIdentity | None], *, proc: Path = Path("/proc")
) -> dict[int, str]:
    """Return the token of the run that each of *pids* belongs to. External processes are left out.

    Args:
        pids: Processes of this host. Ended processes and processes of other pid namespaces belong to no run.
        roots: The root of each run's process tree by token; None while it is unknown.
        proc: The root of the proc file system.

    """
    tops = {root.pid: (root.started, token) for token, root in roots.items() if root and root.boot == boot_id()}
    found = {pid: _above(pid, tops, proc) or _carried(pid, roots, proc) for pid in pids}
    return {pid: token for pid, token in found.items() if token is not None}


def _above(pid: int, tops: Mapping[int, tuple[int, str]], proc: Path) -> str | None:
    """Return the token of the root that is *pid* or its ancestor, or None if no ancestor is in *tops*."""
    for _ in range(_DEEPEST):
        try:
            raw = _read(f"{proc}/{pid}/stat")
        except OSError:
            return None
        fields = raw[raw.rindex(b")") + 2 :].split()  # the process name may contain spaces and parentheses
        if pid in tops and tops[pid][0] == int(fields[19]):  # the start time rules out a reused pid
            return tops[pid][1]
        pid = int(fields[1])
        if pid <= 1:
            return None
    return None


def _carried(pid: int, tokens: Iterable[str], proc: Path) -> str | None:
    """Return the one of *tokens* in the initial environment of *pid*, or None if absent or not readable."""
    try:
        environ = _read(f"{proc}/{pid}/environ")
    except OSError:
        return None
    for entry in environ.split(b"\0"):
        if entry.startswith(_VARIABLE):
            token = entry[len(_VARIABLE) :].decode(errors="replace")
            return token if token in tokens else None
    return None


def _read(file: str) -> bytes:
    with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 - creating a Path takes longer than reading the file
        return opened.read()
