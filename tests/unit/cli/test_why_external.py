"""Tests of the answer of ``why`` about external processes that keep a job from starting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from factories import make_device, make_spec, make_status

from gpuqueue.cli.output.why_text import why_text
from gpuqueue.client.why import Why
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.queue.explanation import Explanation, Obstacle, Occupant, Verdict
from gpuqueue.queue.lease import DeviceStatus, ExternalProcess
from gpuqueue.text.units import GIB
from gpuqueue.words.why.start import start_lines

AT = datetime(2026, 11, 27, 12, tzinfo=timezone.utc)
NEVER = "unknown: no device that is served now will ever have enough room"


def card(name: str, *external: ExternalProcess, driver_gib: int = 0) -> DeviceStatus:
    """Return the device *name*, such as ``a:0``, of 24 GiB with a headroom of 1 GiB and these external processes."""
    host, index = name.split(":")
    return make_status(
        device=replace(make_device(name, total_bytes=24 * GIB), index=int(index)),
        host=host,
        headroom_bytes=GIB,
        external_bytes=driver_gib * GIB + sum(each.counted_bytes for each in external),
        external_processes=external,
        driver_bytes=driver_gib * GIB,
    )


def notebook(held_gib: int, counted_gib: int | None = None) -> ExternalProcess:
    """Return a notebook that holds *held_gib*, of which *counted_gib* count as used: more if it freed some."""
    counted = held_gib if counted_gib is None else counted_gib
    return ExternalProcess(
        pid=7, held_bytes=held_gib * GIB, counted_bytes=counted * GIB, user="eve", command="notebook"
    )


def verdict(status: DeviceStatus, obstacle: Obstacle, runs_gib: int = 0) -> Verdict:
    """Return the obstacle of the job on a device where a run holds *runs_gib*."""
    capacity = status.device.total_bytes - status.headroom_bytes - status.external_bytes
    return Verdict(
        device=status.device.uuid,
        host=status.host,
        obstacle=obstacle,
        available_bytes=capacity - runs_gib * GIB,
        capacity_bytes=capacity,
        total_bytes=status.device.total_bytes,
        runs=(Occupant(job_id=3, held_bytes=runs_gib * GIB),) if runs_gib else (),
    )


def waiting(on: Sequence[tuple[DeviceStatus, Verdict]], mem_gib: int = 20, gpus: int = 1) -> Why:
    """Return a job that waits, with what keeps it from each device; no start of it is known."""
    spec = make_spec(mem_bytes=mem_gib * GIB, gpus=gpus)
    found = tuple(each for _, each in on)
    explanation = Explanation(job_id=12, state=JobState.QUEUED, priority=Priority.NORMAL, devices=found)
    return Why(
        job=Job(id=12, spec=spec, state=JobState.QUEUED, submitted_at=AT, reason=WaitReason.MEMORY),
        explanation=explanation,
        devices={status.device.uuid: status for status, _ in on},
        external_half_life_s=60.0,
    )


def start_line(found: Why) -> str:
    """Return the line about the start."""
    assert found.explanation is not None
    (line,) = start_lines(found, found.explanation)
    return line


def lacks(name: str, *external: ExternalProcess, driver_gib: int = 0) -> tuple[DeviceStatus, Verdict]:
    """Return a device without enough memory beside its external processes."""
    status = card(name, *external, driver_gib=driver_gib)
    return status, verdict(status, Obstacle.MEMORY)


def has_room(name: str) -> tuple[DeviceStatus, Verdict]:
    """Return a device with room for a job that needs more than one."""
    return (status := card(name)), verdict(status, Obstacle.ALONE)


def runs_a_job(name: str) -> tuple[DeviceStatus, Verdict]:
    """Return a device that has room once the job that runs there has ended."""
    return (status := card(name)), verdict(status, Obstacle.MEMORY, runs_gib=20)


def test_memory_that_was_just_freed_has_a_time() -> None:
    """An external process of 18 GB fell to 1 GB. The job fits in a few minutes, if that memory stays free.

    Regression: ``why`` showed 18 GB as its size for minutes, and said that no device would ever have the room.
    """
    found = waiting([lacks("a:0", notebook(1, counted_gib=17))], mem_gib=14)

    assert "in about 1:00 on a:0, if the external processes there do not take again" in start_line(found)
    assert found.explanation is not None
    shown = why_text(found, 200)
    assert "external 17G, 16G of it freed a moment ago (eve notebook)" in shown


def test_freed_memory_of_two_hosts_is_not_counted_together() -> None:
    """A job on two devices needs both on one host. A device with room beside one where memory was freed is enough.

    Regression: ``why`` named a time when each of two hosts had one device.
    """
    freed = notebook(1, counted_gib=17)
    apart = waiting([lacks("a:0", freed), lacks("b:0", freed)], mem_gib=14, gpus=2)
    beside = waiting([lacks("a:0", freed), has_room("a:1")], mem_gib=14, gpus=2)

    assert start_line(apart) == NEVER
    assert start_line(beside).startswith("in about 1:00 on a:0, if the external processes")


def test_memory_that_a_notebook_uses_has_no_time() -> None:
    """It becomes free once the external process has ended, and nobody knows when.

    Regression: ``why`` said that no device would ever have enough room.
    """
    assert start_line(waiting([lacks("a:0", notebook(17))])) == "not before the external processes on a:0 have ended"


def test_the_drivers_own_memory_does_not_go_away() -> None:
    """Only processes can end."""
    assert start_line(waiting([lacks("a:0", notebook(17), driver_gib=5)])) == NEVER


@pytest.mark.parametrize(
    ("devices", "gpus", "where"),
    [
        ([lacks("a:0", notebook(17)), lacks("b:0", notebook(17))], 1, "a:0 or b:0"),
        ([lacks("a:0", notebook(17)), has_room("a:1")], 2, "a:0"),
        ([lacks("a:0", notebook(17)), runs_a_job("a:1")], 2, "a:0"),
        ([lacks("a:0", notebook(17)), lacks("a:1", notebook(17))], 2, "a:0 and a:1"),
        ([lacks("a:0", notebook(17)), lacks("a:1", notebook(17)), has_room("a:2")], 2, "a:0 or a:1"),
        ([lacks(f"a:{index}", notebook(17)) for index in range(3)], 2, "2 of a:0, a:1, a:2"),
        ([lacks("a:0", notebook(17)), lacks("b:0", notebook(17)), has_room("b:1")], 2, "b:0"),
    ],
)
def test_the_devices_are_named_that_external_processes_must_leave(
    devices: list[tuple[DeviceStatus, Verdict]], gpus: int, where: str
) -> None:
    """The devices of a job are on one host, and those that have room, or will have it, count.

    Regression: with one device free and one in use by a notebook, ``why`` answered for a job on two devices that
    no device would ever have enough room. With one notebook on each of two hosts, it named both.
    """
    assert start_line(waiting(devices, gpus=gpus)) == f"not before the external processes on {where} have ended"


def test_two_hosts_with_one_device_each_never_run_a_job_on_two() -> None:
    """No end of an external process helps there."""
    assert start_line(waiting([lacks("a:0", notebook(17)), lacks("b:0", notebook(17))], gpus=2)) == NEVER


def test_a_job_that_wants_a_whole_device_waits_for_the_notebook_there() -> None:
    """The notebook is small, but the job wants the device alone."""
    status = card("a:0", notebook(3))
    found = waiting([(status, verdict(status, Obstacle.OCCUPIED))], mem_gib=10)

    assert start_line(found) == "not before the external processes on a:0 have ended"
