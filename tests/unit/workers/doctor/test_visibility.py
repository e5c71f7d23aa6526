from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_device
from findings import by_check

from gpuqueue.model.device import DeviceKind, Reading
from gpuqueue.model.finding import Finding, Grade
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB, MIB
from workers.devices.nvml_calls import DriverFacts, DriverState
from workers.doctor import cards, runs
from workers.doctor.cards import VISIBILITY_CHECKS, _hides
from workers.doctor.host import Devices, Host, Seen
from workers.doctor.python import environments
from workers.shim.shared_memory import PLACE, unused

#: A process that is known here, and a pid above the kernel's limit, which no process of this machine can have.
KNOWN, ELSEWHERE = os.getpid(), 2**22 + 5


def examined(held: Mapping[int, int | None], kind: DeviceKind = DeviceKind.GPU) -> Mapping[str, Finding]:
    """Return the findings about a host with one device, on which these processes hold so many bytes."""
    reading = Reading(total_bytes=9, free_bytes=4, processes=held)
    seen = Seen(device=replace(make_device("GPU-0"), kind=kind), reading=reading)
    settings = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s"})
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    driver = DriverFacts(state=DriverState.WELL)
    host = Host(settings=settings, environ=environ, driver=driver, devices=lambda: Devices(seen=(seen,)))
    return by_check(VISIBILITY_CHECKS, host)


@pytest.mark.parametrize(
    ("held", "is_apart", "is_hidden", "grade"),
    [
        ({KNOWN: 1}, False, False, Grade.OK),
        ({}, False, False, Grade.OK),
        ({KNOWN: 1, ELSEWHERE: 1}, False, False, Grade.OK),  # one process has just ended
        ({ELSEWHERE: 1}, False, False, Grade.WARNING),
        ({ELSEWHERE: 1}, True, False, Grade.WARNING),
        ({KNOWN: 1}, True, False, Grade.OK),  # the driver translates pids, or pid: host
        ({}, True, False, Grade.UNKNOWN),
        ({ELSEWHERE: 1}, False, True, Grade.NOTE),
        ({KNOWN: None}, False, False, Grade.NOTE),
    ],
)
def test_whether_the_drivers_pids_are_known(
    monkeypatch: pytest.MonkeyPatch, held: dict[int, int | None], *, is_apart: bool, is_hidden: bool, grade: Grade
) -> None:
    """The check distinguishes another pid namespace, hidden processes, and a reading without processes."""
    monkeypatch.setattr(cards, "has_own_pids", lambda: is_apart)
    monkeypatch.setattr(cards, "_hides", lambda _: is_hidden)
    monkeypatch.setattr(os, "getuid", lambda: 1000)

    assert grade is examined(held)["pids"].grade


def test_without_a_gpu_pids_are_not_reported() -> None:
    """Without a GPU there is no finding about pids, because CPU processes are measured one by one."""
    assert {"pids", "other queues", "visible devices"} == set(examined({KNOWN: 1}))
    assert {"other queues"} == set(examined({}, DeviceKind.CPU))


def test_each_rival_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each other queue on a device is named with its pid and user, so that the owner can be contacted.

    A worker is of this queue if the lock that it holds is in this state directory.
    """
    for pid, state_dir in (("5", "/other"), ("6", "/s")):
        (tmp_path / pid / "fd").mkdir(parents=True)
        (tmp_path / pid / "cmdline").write_text("python\0/bin/gpuqueue-worker\0run\0--device\0GPU-0\0")
        (tmp_path / pid / "fd" / "3").symlink_to(f"{state_dir}/devices/GPU-0.lock")
    monkeypatch.setattr(cards, "each_process", tmp_path.iterdir)

    finding = examined({})["other queues"]

    assert (Grade.WARNING, "GPU-0") == (finding.grade, finding.about)
    assert f"pid 5 of {tmp_path.owner()} serves it for another queue" in finding.seen


@pytest.mark.parametrize(
    ("options", "hides"),
    [("rw,nosuid", False), ("rw,hidepid=0", False), ("rw,hidepid=2", True), ("rw,hidepid=invisible", True)],
)
def test_a_proc_that_hides_is_known_by_its_mount(tmp_path: Path, options: str, *, hides: bool) -> None:
    """Hidden processes are recognized by the mount options of /proc, in both spellings of the kernel's option.

    Other proc mounts do not count.
    """
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nproc /proc proc {options} 0 0\nproc /jail/proc proc hidepid=2 0 0\n")

    assert hides == _hides(mounts)
    assert not _hides(tmp_path / "none")


# ---- The doctor's check of named environments, with real files -------------------------------------------------------


def test_an_environment_without_its_program_is_a_problem(tmp_path: Path) -> None:
    """A missing program, a directory, and a file that is no program are named; one that can start is fine."""
    (tmp_path / "text").touch(mode=0o644)
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "here").symlink_to(sys.executable)  # the setting takes no path with a space
    paths = {"folder": tmp_path} | {name: tmp_path / name for name in ("gone", "here", "text", "dangling")}
    words = " ".join(f"{name}={path}" for name, path in paths.items())
    settings = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_ENVIRONMENTS": words})

    found = {each.about: each for each in environments(settings)}

    assert {name: Grade.OK if name == "here" else Grade.PROBLEM for name in paths} == {
        name: each.grade for name, each in found.items()
    }
    assert f"{tmp_path} is a directory: no job" in found["folder"].seen
    assert [] == [*environments(Settings.load({"GPUQUEUE_CONFIG": os.devnull}))]


SETTINGS = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s"})


def finding_of(monkeypatch: pytest.MonkeyPatch, *held: tuple[int, int], of_bytes: int = 100 * GIB) -> Finding:
    """Return the finding about files of so many bytes, each with its owner, in a /dev/shm of this size."""
    disk = SimpleNamespace(f_blocks=of_bytes // 4096, f_frsize=4096)
    monkeypatch.setattr(runs.os, "statvfs", lambda _: disk)
    monkeypatch.setattr(runs, "name_of", {1: "ann", 2: "bob"}.get)
    files: Any = {str(n): SimpleNamespace(st_uid=uid, st_blocks=size // 512) for n, (uid, size) in enumerate(held)}
    return runs.shared_memory(SETTINGS, lambda: files)


@pytest.mark.parametrize(
    ("held", "of_bytes", "seen"),
    [
        (((1, GIB), (2, 3 * GIB), (2, GIB)), 100 * GIB, "take memory: 4G of bob, 1G of ann"),
        (((1, 10 * MIB),), 64 * MIB, "take memory: 10M of ann"),
        (((1, GIB),), 100 * GIB, ""),
        ((), 64 * MIB, ""),
    ],
)
def test_large_files_without_a_process_are_named_by_owner(
    monkeypatch: pytest.MonkeyPatch, held: tuple[tuple[int, int], ...], of_bytes: int, seen: str
) -> None:
    """Above 1G, or a tenth of /dev/shm, there is a warning. Less may be a data set for the next job."""
    found = finding_of(monkeypatch, *held, of_bytes=of_bytes)

    assert (Grade.WARNING if seen else Grade.OK) is found.grade
    assert found.seen.endswith(seen)


def test_only_files_without_a_process_count() -> None:
    """A file that is open or mapped somewhere is in use, whatever its mode."""
    path = Path(PLACE) / f"gpuqueue-test-{os.getpid()}-doctor"
    try:
        with path.open("wb+") as file:
            file.truncate(MIB)
            assert path.name not in unused()
            mapped = mmap.mmap(file.fileno(), MIB)
        assert path.name not in unused()
        mapped.close()
        assert MIB == unused()[path.name].st_size
    finally:
        path.unlink()
