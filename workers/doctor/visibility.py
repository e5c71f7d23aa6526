"""Checks of what a worker can see on this machine: processes on the devices, and other queues on the same devices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuqueue.model.finding import Finding, Findings, note, ok, unknown, warning
from gpuqueue.system.account import name_of
from gpuqueue.system.process import each_process, has_own_pids
from workers.doctor.host import Host

PID_HOST = (
    "docker run --pid=host, or pid: host in compose: else no job has a peak, and all memory is an external process's"
)


def pids(host: Host) -> Findings:
    """Check whether /proc has the processes that the driver lists."""
    readings = [each.reading for each in host.gpus]
    if not readings:
        return ()
    held = {pid: used for reading in readings if reading is not None for pid, used in reading.processes.items()}
    blind = [pid for pid in held if not Path(f"/proc/{pid}").exists()]
    unreported = [pid for pid, used in held.items() if used is None]
    if has_own_pids() and not held:
        seen = "this is a separate pid namespace and nothing runs on the GPUs to check the driver's pids with"
        return unknown(seen, PID_HOST)
    if blind and os.getuid() != 0 and _hides(Path("/proc/self/mounts")):
        seen = f"{len(blind)} of {len(held)} processes on the GPUs are hidden from this account (hidepid)"
        return note(seen, "their owners are unknown; our own jobs are seen")
    if blind and len(blind) == len(held):
        seen = f"the driver names {len(blind)} processes, and /proc knows none: it counts in another pid namespace"
        return warning(seen, PID_HOST)
    if unreported:
        seen = f"the driver does not report what {len(unreported)} of {len(held)} processes on the GPUs hold"
        return note(seen, "their memory is counted by the device; jobs get no peak from the driver (WSL, vGPU)")
    return ok(f"{len(held)} processes on the GPUs, {len(held) - len(blind)} of them known here")


def _hides(mounts: Path) -> bool:
    """Return whether the mount options of /proc hide the processes of other accounts (hidepid, see proc(5))."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    options = {
        option for line in lines if line.split()[1:3] == ["/proc", "proc"] for option in line.split()[3].split(",")
    }
    hiding = {"1", "2", "4", "noaccess", "invisible", "ptraceable"}
    return any(option.partition("=")[2] in hiding for option in options if option.startswith("hidepid="))


def other_queues(host: Host) -> Iterator[Finding]:
    """Report workers of other queues that serve the same devices."""
    uuids, is_alone = {each.device.uuid for each in host.devices().seen}, True
    # Workers with an account of their own are of this queue, and have another state directory.
    processes = each_process() if host.settings.workers_account is None else ()
    for process in processes:
        try:
            words = (process / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
            if "run" not in words or all(Path(word).name != "gpuqueue-worker" for word in words[:4]):
                continue
            served, user = uuids & _served(process, words, host.settings.state_dir), name_of(process.stat().st_uid)
        except OSError:
            continue  # the process has ended
        for uuid in served:
            is_alone = False
            yield warning(
                f"pid {process.name} of {user} serves it for another queue: "
                "each counts the other's jobs as external processes",
                "let one queue serve a device: gpuqueue down there, or GPUQUEUE_DEVICES here",
                about=uuid,
            )
    if is_alone:
        yield ok("none serves a device of ours")


def _served(process: Path, words: Sequence[str], state_dir: Path) -> set[str]:
    """Return the devices that a worker serves for another state directory, judged by the lock files it has open."""
    try:
        files = [_target(each) for each in os.scandir(process / "fd")]
    except PermissionError:
        # The worker belongs to another account. If that account owns this state directory, assume the worker uses it.
        # Otherwise match the UUIDs against the command line.
        ours = state_dir.exists() and state_dir.stat().st_uid == process.stat().st_uid
        return set() if ours else set(words)
    locks = [Path(file) for file in files if file.endswith(".lock")]
    return {lock.stem for lock in locks if lock.parent != (state_dir / "devices").resolve()}


def _target(link: os.DirEntry[str]) -> str:
    try:
        return str(Path(link.path).readlink())
    except OSError:
        return ""


def visible_devices(host: Host) -> Findings:
    """Check whether CUDA_VISIBLE_DEVICES is set here, since the queue ignores it."""
    visible = host.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not host.gpus:
        return ()
    seen = f"CUDA_VISIBLE_DEVICES={visible!r} is set here, and means nothing to the queue"
    return note(seen, "each job gets its own; GPUQUEUE_DEVICES sets which devices are served")


CHECKS = (pids, other_queues, visible_devices)
