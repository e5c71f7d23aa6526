"""Checks of what a worker can see on this machine: processes on the devices, and other queues on the same devices."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Findings, note, ok, unknown, warning
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import each_process, has_own_pids
from workers.doctor.cards import Seen

PID_HOST = (
    "docker run --pid=host, or pid: host in compose: else no job has a peak, and all memory is an external process's"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rival:
    """A worker of another queue."""

    pid: int
    user: str
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The processes on the GPUs, and what this account can read in /proc."""

    #: The number of GPUs.
    gpus: int
    #: The pids on the GPUs, and whether /proc has each of them.
    pids: Mapping[int, bool]
    #: The pids whose memory the driver does not report.
    unreported: tuple[int, ...]
    #: Whether this process is in a separate pid namespace, and whether /proc hides the processes of other accounts.
    apart: bool
    hidden: bool
    rivals: tuple[Rival, ...]
    #: CUDA_VISIBLE_DEVICES in the caller's environment; None if it is not set.
    visible: str | None


# ---- facts -----------------------------------------------------------------------------------------------------------


def facts_of(seen: tuple[Seen, ...], settings: Settings, environ: Mapping[str, str]) -> Facts:
    """Return the facts about the processes on the devices *seen*."""
    gpus = [each for each in seen if each.device.kind.value == "gpu"]
    held = {pid: used for each in gpus if each.reading is not None for pid, used in each.reading.processes.items()}
    return Facts(
        gpus=len(gpus),
        pids={pid: Path(f"/proc/{pid}").exists() for pid in held},
        unreported=tuple(sorted(pid for pid, used in held.items() if used is None)),
        apart=has_own_pids(),
        hidden=os.getuid() != 0 and _hides(Path("/proc/self/mounts")),
        # Workers with an account of their own are of this queue, and have another state directory.
        rivals=()
        if settings.workers_account is not None
        else tuple(_rivals({each.device.uuid for each in seen}, settings.state_dir)),
        visible=environ.get("CUDA_VISIBLE_DEVICES"),
    )


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


def _rivals(uuids: set[str], state_dir: Path) -> Iterator[Rival]:
    """Yield the workers that serve one of *uuids* for another state directory than *state_dir*."""
    for process in each_process():
        try:
            words = (process / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
            if "run" not in words or all(Path(word).name != "gpuqueue-worker" for word in words[:4]):
                continue
            for device in uuids & _served(process, words, state_dir):
                yield Rival(pid=int(process.name), user=_user(process.stat().st_uid), device=device)
        except OSError:
            continue  # the process has ended


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


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


# ---- checks ----------------------------------------------------------------------------------------------------------


def pids(facts: Facts) -> Findings:
    """Check whether /proc has the processes that the driver lists."""
    if not facts.gpus:
        return ()
    blind = [pid for pid, known in facts.pids.items() if not known]
    if facts.apart and not facts.pids:
        seen = "this is a separate pid namespace and nothing runs on the GPUs to check the driver's pids with"
        return unknown(seen, PID_HOST)
    if blind and facts.hidden:
        seen = f"{len(blind)} of {len(facts.pids)} processes on the GPUs are hidden from this account (hidepid)"
        return note(seen, "their owners are unknown; our own jobs are seen")
    if blind and len(blind) == len(facts.pids):
        seen = f"the driver names {len(blind)} processes, and /proc knows none: it counts in another pid namespace"
        return warning(seen, PID_HOST)
    if facts.unreported:
        seen = (
            f"the driver does not report what {len(facts.unreported)} of {len(facts.pids)} processes on the GPUs hold"
        )
        return note(seen, "their memory is counted by the device; jobs get no peak from the driver (WSL, vGPU)")
    return ok(f"{len(facts.pids)} processes on the GPUs, {len(facts.pids) - len(blind)} of them known here")


def other_queues(facts: Facts) -> Findings:
    """Report workers of other queues that serve the same devices."""
    if not facts.rivals:
        return ok("none serves a device of ours")
    return (
        warning(
            f"pid {each.pid} of {each.user} serves it for another queue: "
            "each counts the other's jobs as external processes",
            "let one queue serve a device: gpuqueue down there, or GPUQUEUE_DEVICES here",
            about=each.device,
        )
        for each in facts.rivals
    )


def visible_devices(facts: Facts) -> Findings:
    """Check whether CUDA_VISIBLE_DEVICES is set here, since the queue ignores it."""
    if facts.visible is None or not facts.gpus:
        return ()
    seen = f"CUDA_VISIBLE_DEVICES={facts.visible!r} is set here, and means nothing to the queue"
    return note(seen, "each job gets its own; GPUQUEUE_DEVICES sets which devices are served")


CHECKS = (pids, other_queues, visible_devices)
