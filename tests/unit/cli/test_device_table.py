"""Tests of the table of ``gpuqueue gpus``, ``status`` and ``up``: its columns, and what a narrow terminal omits."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from factories import make_device, make_status

from gpuqueue.cli.output.devices import (
    calendar_lines,
    closed_lines,
    device_rows,
    device_table,
    environment_lines,
    error_lines,
    left_out_lines,
)
from gpuqueue.cli.output.render import model_of
from gpuqueue.model.calendar import CalendarReservation
from gpuqueue.model.device import DeviceKind, Xid
from gpuqueue.queue.drains import Drain, DrainOrigin
from gpuqueue.queue.lease import DeviceReservation, DeviceStatus
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB

CARD = make_status(
    device=replace(make_device(), name="NVIDIA H100 80GB HBM3"),
    host="trainer-17",
    external_bytes=GIB,
    allocated_bytes=12 * GIB,
    jobs=(12, 13),
)
#: The first screen that a user sees: `up` on a machine with cards.
SITE = (CARD, replace(CARD, jobs=()))
NOON, HOUR = datetime(2026, 11, 2, 12, tzinfo=timezone.utc), timedelta(hours=1)
TROUBLED = replace(CARD, drains=(Drain(origin=DrainOrigin.PERSON, why="the fan is broken", by="ada"),))


@pytest.mark.parametrize("width", range(44, 140))
@pytest.mark.parametrize("found", [SITE, (*SITE, TROUBLED)])
def test_no_line_is_wider_than_the_terminal(found: tuple[DeviceStatus, ...], width: int) -> None:
    """No line is wider than the terminal.

    Regression: the header was broken at 80 columns into ``JOBS  STA`` and ``TE``.
    """
    assert max(map(len, device_table(found, 10.0, width).splitlines())) <= width


@pytest.mark.parametrize("width", range(60, 140))
def test_how_a_device_stands_is_there_at_any_width(width: int) -> None:
    """The state of a device is shown at any width.

    The name is cut first, then the columns that follow from the others.
    """
    head, *rows = device_table(SITE, 10.0, width).splitlines()

    assert head.endswith("STATE")
    assert {"HOST", "DEVICE", "FREE", "JOBS"} < set(head.split())
    assert all(row.endswith("ready") for row in rows)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (40, "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
        (32, "NVIDIA H100 80GB HBM3 1g.10gb"),
        (18, "NVIDIA H1… 1g.10gb"),
        (11, "NV… 1g.10gb"),
        (9, "… 1g.10gb"),
        (8, "NVIDIA …"),
    ],
)
def test_the_name_of_a_mig_instance_keeps_its_profile(width: int, expected: str) -> None:
    """In a narrow column the card's name is cut, because the profile tells the instances of one card apart."""
    instance = make_device("MIG-1", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", mig_parent="GPU-1")

    assert expected == model_of(instance, width)
    assert "1g.10gb" in device_table((replace(CARD, device=instance),), 10.0, 80)


def test_a_trouble_is_whole_at_80_columns() -> None:
    """A problem is shown in full at 80 columns. The reason matters more to the user than the size of the device."""
    assert device_table((TROUBLED,), 10.0, 80).splitlines()[1].endswith("drained by ada")


def test_a_member_is_called_by_its_name() -> None:
    """The table names an array member by its member name and any other job by its id.

    This holds for jobs on the device and for a reservation.
    """
    reserved = replace(CARD, reservation=DeviceReservation(job_id=14, since=None))

    row = device_table((reserved,), 10.0, None, {13: "9_3", 14: "9_4"}).splitlines()[1]

    assert "  12 9_3  " in row
    assert row.endswith("reserved for job 9_4")


def test_a_pipe_gets_all_of_it() -> None:
    """A pipe gets every column, for scripts that split the table."""
    head, row, _ = device_table(SITE, 10.0).splitlines()

    every = "HOST DEVICE NAME TOTAL ALLOCATED EXTERNAL FREE SLOTS JOBS STATE"
    assert head.split() == every.split()
    assert "trainer-17" in row
    assert "NVIDIA H100 80GB HBM3" in row


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"drains": TROUBLED.drains}, "; trainer-17 0: drained by ada"),
        ({"seen_s_ago": 300.0}, "; trainer-17 0: silent for 300s"),
        ({"trouble": "its driver does not answer"}, "; trainer-17 0: closed: its driver does not answer"),
        ({"planned_drains": (replace(TROUBLED.drains[0], begins_at=NOON + HOUR),)}, "; trainer-17 0: ends at"),
        ({"planned_drains": (replace(TROUBLED.drains[0], begins_at=NOON + 3 * HOUR),)}, ""),
    ],
)
def test_a_reservation_says_which_of_its_devices_take_no_jobs(changes: dict[str, Any], words: str) -> None:
    """Now, or not until its end."""
    made = CalendarReservation(
        id=17, users=("ann",), begins_at=NOON, ends_at=NOON + 2 * HOUR, why="course", devices=(CARD.device.uuid,)
    )
    (line,) = calendar_lines([replace(CARD, calendar=(made,), **changes)], 10.0)

    assert line.startswith("reservation 17: trainer-17 0 for ann from ")
    assert (words in line, bool(words)) == (True, not line.endswith(": course"))


def test_each_host_with_environments_has_a_line() -> None:
    """The names are for ``submit --environment``. A host without any, or of an older version, has no line."""
    torch = replace(CARD, environments=("jax", "torch-2.6"))
    found = (torch, torch, replace(CARD, host="b", environments=()), replace(CARD, host="c"))

    assert ["environments of trainer-17: jax, torch-2.6"] == [*environment_lines(found)]


def test_memory_errors_have_a_line() -> None:
    """A device whose driver reports no error, or nothing about errors, has no line."""
    found = (replace(CARD, memory_errors=3, retired_rows=1), replace(CARD, memory_errors=0, retired_rows=0), CARD)

    words = "3 memory errors that could not be corrected, since the driver started; 1 row of memory retired"
    assert [f"trainer-17 device {CARD.device.index}: {words}"] == [*error_lines(found)]


def test_the_last_xid_error_has_a_line() -> None:
    """A number that is not in the table of meanings is shown alone."""
    at = datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc)
    first, second = (
        *error_lines([replace(CARD, xids=(Xid(13, at), Xid(31, at))), replace(CARD, xids=(Xid(999, at),))]),
    )

    assert "Xid 31, a program used memory that it does not have, at " in first
    assert first.endswith(", and 1 before")
    assert "Xid 999, at " in second


def test_a_host_that_leaves_out_gpus_has_a_line() -> None:
    found = (replace(CARD, only="gpu:0,2"), replace(CARD, only="gpu:0,2"), replace(CARD, host="b"))

    words = "trainer-17 serves only gpu:0,2: gpuqueue doctor lists its other GPUs, and whether they answer"
    assert [words] == [*left_out_lines(found)]


HOT = "it is too hot to run at full speed: hardware thermal slowdown, software thermal slowdown"


def test_a_reason_that_the_table_cuts_is_below_it_once_for_each_host() -> None:
    """A closed device shows its whole reason at any width. A drained or silent one has another line."""
    closed = tuple(replace(CARD, device=replace(CARD.device, index=index), trouble=HOT) for index in range(2))
    others = (replace(TROUBLED, trouble=HOT), replace(CARD, trouble=HOT, seen_s_ago=60.0), CARD)
    found = (*closed, replace(closed[0], host="b"), *others)

    assert [f"closed: trainer-17 devices 0, 1: {HOT}", f"closed: b device 0: {HOT}"] == [
        *closed_lines(found, 10.0, device_table(found, 10.0, 100))
    ]
    assert [] == [*closed_lines(found, 10.0, device_table(found, 10.0))]
    assert [] == [*closed_lines(found, 10.0, device_table(found, 10.0, 240))]


def test_a_device_whose_driver_lists_no_process_says_so() -> None:
    """A line below the table of `up`, `gpus` and `status`, with what to do."""
    status = make_status(device=make_device("GPU-blind", unlisted=True))
    settings = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/nowhere"})

    (line,) = (
        row for row in device_rows((CARD, status), settings, lambda _: {}).splitlines() if "does not list" in row
    )

    assert line.startswith("nodeA device 0: the driver does not list the processes of this host, so runs have no peak")


@pytest.mark.parametrize(
    ("lost", "jobs"),
    [(True, "it has served GPUs before, so jobs without --device wait for one"), (False, "jobs run on the CPU")],
)
def test_a_host_that_found_no_gpu_says_why_and_which_jobs_run_on_its_cpu(jobs: str, *, lost: bool) -> None:
    """A line below the table of `up`, `gpus` and `status`. A CPU that was asked for has none."""
    cpu = make_device("cpu-nodeA", kind=DeviceKind.CPU, no_gpu="the driver is not loaded")
    status = make_status(device=cpu, lost_gpus=lost)

    settings = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/nowhere"})
    rows = device_rows((CARD, status), settings, lambda _: {})

    assert f"no NVIDIA GPU found on nodeA: the driver is not loaded; {jobs}" == rows.splitlines()[-1]
    own_cpu = replace(status, device=replace(cpu, no_gpu=None), lost_gpus=False)
    assert "no NVIDIA GPU" not in device_rows((CARD, own_cpu), settings, lambda _: {})
