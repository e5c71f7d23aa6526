"""What is around the NVIDIA driver on this machine: the kernel's part, the device files, the cards on the bus.

The driver says only that it does not answer. Why, is told by what of it is there: a card without a driver, a library
without its kernel module, a container that was given no device.
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
    """What was found; empty or None where there is nothing."""

    #: The version of the kernel's part of the driver.
    module: str | None
    #: The device files of cards, and those of them (or of their control) that we may not open.
    nodes: tuple[str, ...]
    closed: tuple[str, ...]
    #: The NVIDIA cards on the PCI bus, by their addresses.
    cards: tuple[str, ...]
    #: Whether the open driver that cannot compute holds them.
    nouveau: bool
    container: bool
    #: What a container was told to give its programs; None where that was not said.
    visible: str | None


def look_around(root: Path = Path("/"), visible: str | None = None) -> Surroundings:
    """Return what is around the driver below *root*; *visible* is NVIDIA_VISIBLE_DEVICES, if it is set."""
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
