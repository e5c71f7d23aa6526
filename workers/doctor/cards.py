"""Checks of the devices that this machine would serve: response, health, compute mode, persistence, MIG, MPS."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuqueue.model.device import (
    EXCLUSIVE_PROCESS,
    HARDWARE_SLOWDOWN,
    POWER_BRAKE,
    PROHIBITED,
    Health,
    cards_in,
    is_heat,
    memory_errors_in_words,
    trouble_of,
)
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown, warning
from gpuqueue.system.account import name_of
from gpuqueue.system.process import each_process, has_own_pids
from gpuqueue.text.units import format_bytes
from workers.devices.mps import obstacle
from workers.doctor.host import Host, Seen


def devices(host: Host) -> Iterator[Finding]:
    """Report the devices that this machine would serve, those that do not answer, and the cards that are left out."""
    read = host.devices()
    if read.trouble is not None:
        remedy = "repair the driver, or set which devices to serve with GPUQUEUE_DEVICES: auto, gpu, cpu or sim:4x24G"
        yield problem(read.trouble, remedy)
    for each in read.seen:
        if each.trouble is not None or each.reading is None:
            yield problem(f"{each.device.name}: {each.trouble}", "it takes no job until it answers", about=each.name)
            continue
        free, total = format_bytes(each.reading.free_bytes), format_bytes(each.reading.total_bytes)
        yield ok(f"{each.device.name}, {free} of {total} free", about=each.name)
    only = cards_in(host.settings.devices)
    for card in host.driver.cards:
        if only is not None and card.index not in only:
            answers = "it answers" if card.trouble is None else f"it does not answer: {card.trouble}"
            yield note(
                f"left out by the devices that are served ({host.settings.devices}); {answers}",
                about=f"card {card.index}",
            )


def health(host: Host) -> Iterator[Finding]:
    """Check whether a device is hot, is slowed down, or has memory errors."""
    known_devices = [each for each in host.devices().seen if each.health is not None]
    found = [finding for each in known_devices for finding in _unwell(host, each, each.health or Health())]
    yield from found
    known = [
        each.health.temperature_c for each in known_devices if each.health and each.health.temperature_c is not None
    ]
    if known and not found:
        yield ok(f"at most {max(known):.0f} °C, nothing slows a device down")


def _unwell(host: Host, each: Seen, health: Health) -> Iterator[Finding]:
    trouble = trouble_of(health, host.settings.temperature_limit_c)
    if trouble is not None and is_heat(trouble):
        yield warning(trouble, "it takes no new job until it has cooled down: fans, dust, air", about=each.name)
    slowed = [word for word in health.throttled or () if word in {HARDWARE_SLOWDOWN, POWER_BRAKE}]
    if slowed:
        remedy = "nvidia-smi -q -d PERFORMANCE; power supply and cabling are the usual cause"
        yield warning(f"something slows it down: {', '.join(slowed)}", remedy, about=each.name)
    errors = memory_errors_in_words(health.ecc_uncorrected, health.retired_rows, health.retirement)
    if health.ecc_uncorrected or health.retirement:
        remedy = "nvidia-smi -q -d ECC,ROW_REMAPPER; reset the card when nothing runs on it"
        yield warning(errors, remedy, about=each.name)
    elif errors:
        yield note(errors, about=each.name)


def compute_mode(host: Host) -> Iterator[Finding]:
    """Check whether several processes may use a GPU at the same time."""
    bad = False
    for each in host.gpus:
        mode = None if each.health is None else each.health.compute_mode
        allow = f"sudo nvidia-smi -i {each.device.index} -c DEFAULT"
        if mode == PROHIBITED:
            bad = True
            yield problem("its compute mode is prohibited: nothing may run on it", allow, about=each.name)
        elif mode == EXCLUSIVE_PROCESS and host.settings.slots_for(each.device) > 1 and not host.settings.mps:
            bad = True
            seen = "its compute mode lets in one process at a time: it takes one job at a time"
            yield note(seen, f"{allow}, if jobs may share it", about=each.name)
    if host.gpus and not bad:
        yield ok("several processes may use a device")


def persistence(host: Host) -> Findings:
    """Check whether the driver stays initialized while no process uses it."""
    off = [str(card.index) for card in host.driver.cards if card.persistent is False]
    if not host.gpus or not any(card.persistent is not None for card in host.driver.cards):
        return ()
    if off:
        seen = f"persistence mode is off on card {', '.join(off)}: the first use after a pause takes seconds longer"
        return note(seen, "sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1")
    return ok("the driver stays ready")


def mig(host: Host) -> Iterator[Finding]:
    """Check whether a card is in MIG mode, and whether it is divided into instances."""
    for card in host.driver.cards:
        if card.divided and card.parts:
            yield note(
                f"divided (MIG) into {card.parts} parts: each is a device of its own", about=f"card {card.index}"
            )
        elif card.divided:
            seen = "in MIG mode, and not divided: it serves no job"
            remedy = f"sudo nvidia-smi mig -i {card.index} -cgi …, or sudo nvidia-smi -i {card.index} -mig 0"
            yield warning(seen, remedy, about=f"card {card.index}")


def mps(host: Host) -> Findings:
    """Check whether jobs can share the GPUs through MPS, if the site has turned it on."""
    if not host.settings.mps or not host.gpus:
        return ()
    why = obstacle(host.settings, [each.device for each in host.gpus])
    if why is None:
        return ok(f"its control daemon at {host.settings.mps_pipe_directory} answers")
    return problem(why, "no worker of a GPU starts until then; GPUQUEUE_MPS=false shares the GPUs without MPS")


CHECKS = (devices, health, compute_mode, persistence, mig, mps)


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


VISIBILITY_CHECKS = (pids, other_queues, visible_devices)
