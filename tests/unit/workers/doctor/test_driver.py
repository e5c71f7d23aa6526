"""Tests of the diagnosis of a missing GPU, from the surroundings of a driver that does not answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from findings import by_check

from gpuqueue.model.finding import Finding, Grade
from gpuqueue.settings.settings import Settings
from workers.devices.nvml_calls import DriverFacts, DriverState
from workers.doctor.driver import CHECKS
from workers.doctor.host import Host

BUS = "sys/bus/pci/devices/0000:01:00.0"
CARD = {f"{BUS}/vendor": "0x10de\n", f"{BUS}/class": "0x030200\n"}
SOUND = {"sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.1/class": "0x040300\n"}
MODULE = {"sys/module/nvidia/version": "550.54.15\n"}
NODES = {"dev/nvidiactl": "", "dev/nvidia0": ""}
CONTAINER = {".dockerenv": ""}
NOUVEAU = {"sys/module/nouveau/x": ""}
State, NOTE, BAD = DriverState, Grade.NOTE, Grade.PROBLEM


def driver_finding(
    root: Path,
    files: dict[str, str],
    state: DriverState,
    *,
    devices: str = "auto",
    visible: str | None = None,
    count: int = 0,
) -> Finding:
    """Return the finding about a driver in *state* on a machine with these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    settings = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_DEVICES": devices})
    facts = DriverFacts(state=state, words="it said 999", driver="550.54.15", library="12.550.54.15", count=count)
    environ = {} if visible is None else {"NVIDIA_VISIBLE_DEVICES": visible}
    return by_check(CHECKS, Host(settings=settings, environ=environ, driver=facts, root=root))["driver"]


@pytest.mark.parametrize(
    ("files", "state", "grade", "words", "remedy"),
    [
        ({}, State.NO_LIBRARY, NOTE, "no NVIDIA driver and no NVIDIA card", ""),
        (SOUND, State.NO_LIBRARY, NOTE, "no NVIDIA card", ""),
        (CARD, State.NO_LIBRARY, BAD, "card (0000:01:00.0), and no driver", "dkms"),
        (CARD | NOUVEAU, State.NO_LIBRARY, BAD, "no driver for it", "nouveau holds"),
        (CARD | MODULE, State.NO_LIBRARY, BAD, "550.54.15, and its library", "install the driver's libraries"),
        (CONTAINER | MODULE, State.NO_LIBRARY, BAD, "container has no driver library", "Container Toolkit"),
        (CARD, State.NOT_LOADED, BAD, "the kernel's part is not loaded", "sudo modprobe nvidia"),
        (CARD | MODULE, State.NOT_LOADED, BAD, "device files are missing", "nvidia-modprobe"),
        (CONTAINER | MODULE, State.NOT_LOADED, BAD, "was given no device", "--gpus all"),
        ({}, State.NOT_LOADED, NOTE, "library is there (12.550.54.15), and no NVIDIA card", ""),
        (CARD | MODULE | NODES, State.MISMATCH, BAD, "driver 550.54.15, the library is of 12.550", "reboot"),
        (CONTAINER | MODULE | NODES, State.BROKEN, BAD, "it said 999", "start the container again"),
        (MODULE | NODES, State.BROKEN, BAD, "it said 999", "dmesg"),
        (CARD | MODULE | NODES, State.WELL, BAD, "0 cards, but there is one on the bus", "newer driver"),
        (MODULE | NODES, State.WELL, NOTE, "0 cards", "no card"),
        (MODULE | NODES, State.NO_PERMISSION, BAD, "may not open /dev/nvidiactl", "group"),
    ],
)  # fmt: skip
def test_why_there_is_no_gpu(
    tmp_path: Path, files: dict[str, str], state: DriverState, grade: Grade, words: str, remedy: str
) -> None:
    """The driver's own error fits many causes.

    Other facts of the machine identify the cause, and each cause has its own remedy.
    """
    found = driver_finding(tmp_path, files, state)

    assert grade is found.grade
    assert words in found.seen
    assert remedy in found.remedy


def test_what_else_is_reported_of_the_driver(tmp_path: Path) -> None:
    """A container without a device has NVIDIA_VISIBLE_DEVICES=void. Support asks for the versions first."""
    hidden = driver_finding(tmp_path / "a", CONTAINER | MODULE, DriverState.NOT_LOADED, visible="void")
    well = driver_finding(tmp_path / "b", CARD | MODULE | NODES, DriverState.WELL, count=1)

    assert "NVIDIA_VISIBLE_DEVICES=void" in hidden.seen
    assert (Grade.OK, "NVIDIA 550.54.15, library 12.550.54.15, 1 card") == (well.grade, well.seen)


@pytest.mark.parametrize("devices", ["cpu", "sim:1x1G"])
def test_a_broken_driver_that_nobody_asked_for_is_worth_a_note(tmp_path: Path, devices: str) -> None:
    """A broken driver is only a note if the site uses no GPU.

    A host that serves the CPU needs no driver, and monitoring must not alert.
    """
    found = driver_finding(tmp_path, CARD, DriverState.MISMATCH, devices=devices)

    assert Grade.NOTE is found.grade
    assert "not asked for" in found.seen


def test_the_modules_version_is_read_from_either_place(tmp_path: Path) -> None:
    """The module version is read from either file. Some kernels have only the older one."""
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\nGCC\n"

    found = driver_finding(tmp_path, {"proc/driver/nvidia/version": text}, DriverState.NO_LIBRARY)

    assert "the kernel has the driver 535.54.03, and its library" in found.seen
