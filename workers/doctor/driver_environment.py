"""The environment of the NVIDIA driver on this machine: the kernel module, the device files, the cards on the bus.

A driver that does not answer gives no reason. The parts that are present show it: a card without a driver, a library
without its kernel module, a container without a device.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass

_NVIDIA, _DISPLAY = "0x10de", "0x03"


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The parts of the driver's environment. A missing part is empty or None."""

    #: The version of the driver's kernel module.
    module: str | None
    #: The device files of the cards, and those of them (and of nvidiactl) that this account cannot open.
    nodes: tuple[str, ...]
    closed: tuple[str, ...]
    #: The PCI addresses of the NVIDIA cards.
    cards: tuple[str, ...]
    #: Whether the nouveau driver is loaded. It keeps NVIDIA's driver from the card, and cannot compute.
    nouveau: bool
    container: bool
    #: The value of NVIDIA_VISIBLE_DEVICES; None if it is not set.
    visible: str | None


def read_surroundings(root: Path = Path("/"), visible: str | None = None) -> Surroundings:
    """Return the driver's environment below *root*. *visible* is NVIDIA_VISIBLE_DEVICES, if it is set."""
    files = sorted((root / "dev").glob("nvidia[0-9]*"))
    control = [root / "dev" / "nvidiactl"] if (root / "dev" / "nvidiactl").exists() else []
    return Surroundings(
        module=_module(root),
        nodes=tuple(f"/{file.relative_to(root)}" for file in files),
        closed=tuple(
            f"/{each.relative_to(root)}" for each in (*control, *files) if not os.access(each, os.R_OK | os.W_OK)
        ),
        cards=tuple(_cards(root)),
        nouveau=(root / "sys" / "module" / "nouveau").exists(),
        container=any((root / name).exists() for name in (".dockerenv", "run/.containerenv")),
        visible=visible,
    )


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
