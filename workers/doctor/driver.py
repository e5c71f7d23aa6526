"""Checks of the NVIDIA driver: whether it answers, the likely reason if it does not, and its device files.

A driver that does not answer gives no reason. The parts that are present show it: a card without a driver, a library
without its kernel module, a container without a device.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.model.finding import Finding, Findings, note, ok, problem
from workers.devices.nvml_calls import DriverFacts, DriverState
from workers.doctor.host import Host

CONTAINER = "start the container with its devices: docker run --gpus all, or deploy.resources in compose"
_NVIDIA, _DISPLAY = "0x10de", "0x03"


class Surroundings:
    """The parts of the driver's environment on *host*. A missing part is empty or None."""

    def __init__(self, host: Host) -> None:
        root = host.root
        files = sorted((root / "dev").glob("nvidia[0-9]*"))
        control = [path for path in [root / "dev" / "nvidiactl"] if path.exists()]
        #: The device files of the cards, and those of them (and of nvidiactl) that this account cannot open.
        self.nodes = [f"/{path.relative_to(root)}" for path in files]
        closed = [path for path in (*control, *files) if not os.access(path, os.R_OK | os.W_OK)]
        self.closed = ", ".join(f"/{path.relative_to(root)}" for path in closed)
        #: The version of the driver's kernel module.
        self.module = _module(root)
        #: The PCI addresses of the NVIDIA cards.
        self.cards = ", ".join(_cards(root))
        #: Whether the nouveau driver is loaded. It keeps NVIDIA's driver from the card, and cannot compute.
        self.nouveau = (root / "sys" / "module" / "nouveau").exists()
        self.container = any((root / name).exists() for name in (".dockerenv", "run/.containerenv"))
        #: None if it is not set.
        self.visible = host.environ.get("NVIDIA_VISIBLE_DEVICES")


def _module(root: Path) -> str | None:
    with contextlib.suppress(OSError):
        return (root / "sys/module/nvidia/version").read_text(encoding="ascii").strip()
    with contextlib.suppress(OSError, IndexError):
        line = (root / "proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace").splitlines()[0]
        return next((word for word in line.split() if word[:1].isdigit() and "." in word), "unknown")
    return None


def _cards(root: Path) -> Iterator[str]:
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        with contextlib.suppress(OSError):
            vendor = (device / "vendor").read_text(encoding="ascii").strip()
            kind = (device / "class").read_text(encoding="ascii").strip()
            if vendor == _NVIDIA and kind.startswith(_DISPLAY):
                yield device.name


def driver(host: Host) -> Findings:
    """Check whether the NVIDIA driver answers, and find the reason if it does not."""
    judge = {
        DriverState.WELL: _well,
        DriverState.NO_LIBRARY: _no_library,
        DriverState.NOT_LOADED: _not_loaded,
        DriverState.MISMATCH: _mismatch,
        DriverState.NO_PERMISSION: _no_permission,
        DriverState.BROKEN: _broken,
    }
    found = judge[host.driver.state](host.driver, Surroundings(host))
    if found.grade.is_well or host.wants_gpus:
        return found
    # The settings ask for no GPU, so a broken driver is no problem.
    return note(f"{found.seen}; it is not asked for (devices = {host.settings.devices})", found.remedy)


def _well(facts: DriverFacts, around: Surroundings) -> Finding:
    cuda = "" if facts.cuda is None else f", CUDA up to {facts.cuda[0]}.{facts.cuda[1]}"
    seen = f"NVIDIA {facts.driver}, library {facts.library or 'of unknown version'}{cuda}, {_count(facts.count)}"
    if facts.count:
        return ok(seen)
    if around.cards:
        remedy = "dmesg shows why the driver does not take it (NVRM, Xid); it may need a newer driver, or a reset"
        return problem(f"{seen}, but there is one on the bus ({around.cards})", remedy)
    return note(seen, "the driver is there, and no card")


def _count(cards: int) -> str:
    return "1 card" if cards == 1 else f"{cards} cards"


def _no_library(_facts: DriverFacts, around: Surroundings) -> Finding:
    if around.module is not None and around.container:
        seen = f"this container has no driver library, and its host has the driver {around.module}"
        return problem(seen, f"{CONTAINER}, with the NVIDIA Container Toolkit on the host")
    if around.module is not None:
        seen = f"the kernel has the driver {around.module}, and its library libnvidia-ml.so.1 is not installed"
        return problem(
            seen, "install the driver's libraries of the same version (libnvidia-compute, nvidia-driver-libs)"
        )
    if around.cards:
        seen = f"there is an NVIDIA card ({around.cards}), and no driver for it"
        return problem(seen, _install(around))
    return note("no NVIDIA driver and no NVIDIA card")


def _not_loaded(facts: DriverFacts, around: Surroundings) -> Finding:
    library = f"the driver's library is there ({facts.library or 'of unknown version'})"
    if around.container and around.module is not None and not around.nodes:
        hidden = f" (NVIDIA_VISIBLE_DEVICES={around.visible})" if around.visible in {"", "void", "none"} else ""
        return problem(f"{library}, and this container was given no device{hidden}: /dev has no nvidia0", CONTAINER)
    if around.module is not None and not around.nodes:
        seen = f"the driver {around.module} is loaded, and its device files are missing: /dev has no nvidia0"
        return problem(seen, "sudo nvidia-modprobe -u -c=0 makes them, nvidia-smi as root does too")
    if around.cards:
        seen = f"{library}, and the kernel's part is not loaded"
        return problem(seen, f"sudo modprobe nvidia, and see dmesg. {_install(around)}")
    return note(f"{library}, and no NVIDIA card")


def _install(around: Surroundings) -> str:
    if around.nouveau:
        return "nouveau holds the card: install NVIDIA's driver, keep nouveau from loading, reboot"
    return "after a new kernel the module must be built again (dkms), and Secure Boot wants it signed; then reboot"


def _mismatch(facts: DriverFacts, around: Surroundings) -> Finding:
    seen = (
        f"the kernel has the driver {around.module or 'of another version'}, the library is of "
        f"{facts.library or 'another'}: the package was updated under the running kernel"
    )
    remedy = (
        "jobs that run go on, new ones find no GPU: let them end, then reboot, or unload and load the nvidia modules"
    )
    return problem(seen, remedy)


def _no_permission(_facts: DriverFacts, around: Surroundings) -> Finding:
    closed = around.closed or "/dev/nvidiactl"
    return problem(f"this account may not open {closed}", f"ls -l {closed}: add the account to its group, log in again")


def _broken(facts: DriverFacts, around: Surroundings) -> Finding:
    if around.closed:
        return _no_permission(facts, around)
    if around.container:
        remedy = (
            "start the container again: a systemctl daemon-reload on the host takes the devices from running "
            "containers, unless they are named one by one (--device) or by CDI"
        )
        return problem(facts.words, remedy)
    return problem(facts.words, "nvidia-smi and dmesg (NVRM, Xid) show more; a reboot often helps")


def device_files(host: Host) -> Findings:
    """Check whether this account can open the device files."""
    around = Surroundings(host)
    if not around.nodes:
        return ()
    if around.closed:
        return problem(
            f"this account may not open {around.closed}", "add it to the group that ls -l names, and log in again"
        )
    return ok(f"{len(around.nodes)} can be opened")


CHECKS = (driver, device_files)
