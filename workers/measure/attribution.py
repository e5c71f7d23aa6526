"""Which run a process on a device belongs to: found by walking up from the process, not down from the run.

A device lists few processes and a host has many, so the way up is some hundred times shorter (five small reads in
/proc for each process, whatever the run has forked). The shim is the subreaper of its run, so every process of the
run has the shim above it, one that left its session twice as well. Where the shim itself was killed the way up ends
at init; then the token in the environment tells, which survives any number of forks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.system.process import ProcessIdentity, boot_id
from workers.run import process_tree
from workers.run.environment import TOKEN

#: Deeper than any tree of processes that a run can have; a loop in a list that changes meanwhile must end.
_DEEPEST = 64
_VARIABLE = f"{TOKEN}=".encode()


def pids_by_run(
    device: Device, reading: Reading, shims: Mapping[str, ProcessIdentity | None]
) -> dict[str, frozenset[int]]:
    """Return the processes of each run that are on *device* in *reading*, by the run's token.

    *shims* are the runs to look for; a run none of whose processes is there is left out. The CPU lists no processes:
    there it is all processes of a run.
    """
    if device.kind is DeviceKind.CPU:
        below = {
            token: process_tree.below(shim.pid) for token, shim in shims.items() if shim is not None and shim.alive()
        }
        return {token: frozenset(pids) for token, pids in below.items() if pids}
    found: dict[str, set[int]] = {}
    for pid, token in owners(reading.processes, shims).items():
        found.setdefault(token, set()).add(pid)
    return {token: frozenset(pids) for token, pids in found.items()}


def owners(
    pids: Iterable[int], shims: Mapping[str, ProcessIdentity | None], *, proc: Path = Path("/proc")
) -> dict[int, str]:
    """Return the token of the run that each of *pids* belongs to; strangers are left out.

    Args:
        pids: Processes of this host; those of other pid namespaces, or ended ones, belong to nobody.
        shims: The runs by token, each with its shim, None while nobody knows it.
        proc: Where the kernel shows the processes.

    """
    tops = {shim.pid: (shim.started, token) for token, shim in shims.items() if shim and shim.boot == boot_id()}
    found = {pid: _above(pid, tops, proc) or _carried(pid, shims, proc) for pid in pids}
    return {pid: token for pid, token in found.items() if token is not None}


def _above(pid: int, tops: Mapping[int, tuple[int, str]], proc: Path) -> str | None:
    """Return the token of the shim above *pid*, None if there is none of *tops*."""
    for _ in range(_DEEPEST):
        try:
            raw = (proc / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        fields = raw[raw.rindex(b")") + 2 :].split()  # the name may hold anything
        if pid in tops and tops[pid][0] == int(fields[19]):  # not a later process with the shim's number
            return tops[pid][1]
        pid = int(fields[1])
        if pid <= 1:
            return None
    return None


def _carried(pid: int, tokens: Iterable[str], proc: Path) -> str | None:
    """Return which of *tokens* the process was started with, as far as we may look."""
    try:
        environ = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    for entry in environ.split(b"\0"):
        if entry.startswith(_VARIABLE):
            token = entry[len(_VARIABLE) :].decode(errors="replace")
            return token if token in tokens else None
    return None
