"""Checks of the devices that this machine would serve: response, health, compute mode, persistence, MIG, MPS."""

from __future__ import annotations

from collections.abc import Iterator

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
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, warning
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
