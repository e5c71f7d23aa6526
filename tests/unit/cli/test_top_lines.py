from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import click
import pytest
from factories import BOB, make_spec, make_status

from gpuqueue.cli.output.devices import few
from gpuqueue.cli.output.queue_table import COLUMNS
from gpuqueue.cli.output.render import log_lines
from gpuqueue.cli.top.lines import (
    ALLOCATED,
    EXTERNAL_PROCESSES,
    FREE,
    HELD,
    LEGEND,
    Order,
    Snapshot,
    as_text,
    bar,
    device_notes,
    device_rows,
    head_line,
    job_lines,
    memory_parts,
    ordered,
    priority_beside,
)
from gpuqueue.model.array import Array, Indexes, Member, Tally
from gpuqueue.model.device import Xid
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.progress import Progress
from gpuqueue.queue.lease import ExternalProcess, Holding
from gpuqueue.text.units import GIB

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def job(job_id: int, state: JobState = JobState.QUEUED, **changes: object) -> Job:
    """Return a job that was submitted *job_id* minutes ago; a running job started at once."""
    ago = NOW - timedelta(minutes=job_id)
    return Job(
        id=job_id,
        spec=make_spec(**changes),
        state=state,
        submitted_at=ago,
        started_at=ago if state.is_active else None,
    )


@pytest.mark.parametrize("width", [1, 3, 7, 20])
@pytest.mark.parametrize("parts", [(0, 1, 23), (1, 1, 1), (24, 0, 0), (1, 10**6, 1), (0, 0, 5)])
def test_a_bar_is_as_wide_as_it_shall_be(parts: tuple[int, ...], width: int) -> None:
    """A bar has exactly the requested width, however its parts divide."""
    marked = list(zip("abc", parts, strict=True))
    assert width == len(bar(marked, width))
    assert set(bar(marked, width)) <= {mark for mark, size in marked if size}


def test_what_is_there_at_all_is_seen() -> None:
    """Every nonzero part has at least one cell.

    A megabyte of 24 GiB is visible, so that an idle card and a used card differ.
    """
    assert bar([(HELD, 1), (FREE, 10**6)], 20) == HELD + FREE * 19


def test_memory_adds_up_to_the_card() -> None:
    """The parts add up to the total memory of the card.

    This holds when a run uses more than it was allocated, and when external processes use allocated memory.
    """
    over = make_status(
        holdings=(Holding(job_id=1, lease_bytes=GIB, observed_bytes=30 * GIB),), allocated_bytes=30 * GIB
    )
    crowded = make_status(
        external_bytes=20 * GIB,
        holdings=(Holding(job_id=1, lease_bytes=12 * GIB, observed_bytes=2 * GIB),),
        allocated_bytes=12 * GIB,
    )
    blind = make_status(external_bytes=None)

    for each in (over, crowded, blind):
        assert 24 * GIB == sum(size_bytes for _, size_bytes in memory_parts(each))
    assert {HELD: 24 * GIB} == {mark: size for mark, size in memory_parts(over) if size}
    assert {HELD: 2 * GIB, ALLOCATED: 10 * GIB, EXTERNAL_PROCESSES: 12 * GIB} == {
        m: s for m, s in memory_parts(crowded) if s
    }
    assert {EXTERNAL_PROCESSES: 24 * GIB} == {mark: size for mark, size in memory_parts(blind) if size}


def test_jobs_are_sorted_as_asked_and_those_that_run_come_first() -> None:
    """Jobs are sorted by the chosen key, running jobs first. The key that changes the order visits every order once."""
    jobs = (
        job(1, account=BOB),
        job(2, JobState.RUNNING, mem_bytes=8 * GIB),
        job(3, JobState.RUNNING, mem_bytes=4 * GIB),
        job(4),
    )
    site = Snapshot(at=NOW, devices=(), jobs=jobs, held_bytes={2: GIB, 3: 4 * GIB})

    assert [2, 3, 1, 4] == [each.id for each in ordered(site, Order.ID)]
    assert [3, 2, 1, 4] == [each.id for each in ordered(site, Order.MEMORY)]
    assert [3, 2, 4, 1] == [each.id for each in ordered(site, Order.TIME)]
    assert [2, 3, 4, 1] == [each.id for each in ordered(site, Order.USER)]
    assert list(Order) == [Order.ID, Order.ID.next, Order.ID.next.next, Order.ID.next.next.next]


def test_the_row_of_a_job_shows_its_memory_and_progress() -> None:
    """The row of a running job shows its used memory and its progress.

    A waiting job shows its reason in the same column.
    """
    running = job(2, JobState.RUNNING, mem_bytes=8 * GIB, time_limit_s=3600, name="a\x1b[31mb")
    site = Snapshot(
        at=NOW,
        devices=(),
        jobs=(running,),
        held_bytes={2: GIB},
        progress={2: Progress(share=0.5, counts="5/10\x1b[2J")},
    )

    (line,) = job_lines(site, Order.ID)
    row = {column.head: column.cell(line, 100) for column in COLUMNS}

    assert ("1G/8G", "2:00/1:00:00") == (row["MEMORY"], row["TIME"])
    assert row["PROGRESS / REASON"].startswith("████···· 5/10")
    assert "\x1b" not in "".join(row.values())


def test_an_array_has_a_line_for_what_waits_and_one_for_what_is_held() -> None:
    """An array has one line for its waiting members and one for its held members.

    Regression: held members were hidden while others waited. An array without remaining members has no line, as in
    ``queue``.
    """
    spec = {"array": Array.parse("0-99")}
    parted = replace(job(1, **spec), tally=Tally(left=Indexes.parse("4-99"), held=Indexes.parse("0-1"), ended={}))
    taken = replace(job(2, **spec), tally=Tally(left=Indexes(()), held=Indexes(()), ended={}))
    site = Snapshot(at=NOW, devices=(), jobs=(parted, taken, job(3)))

    shown = [(line.label, line.state) for line in job_lines(site, Order.ID)]

    assert [("1_[4-99]", JobState.QUEUED), ("1_[0-1]", JobState.HELD), ("3", JobState.QUEUED)] == shown
    assert head_line(site, Order.ID, None).startswith("0 running, 99 waiting ")


def test_a_device_calls_a_job_as_its_own_line_does() -> None:
    """A device names a job as the job's own line does.

    Regression: an array member had a number that was nowhere else on the screen.
    """
    member = replace(job(8, JobState.RUNNING), member=Member(7, 2))
    site = Snapshot(at=NOW, devices=(make_status(jobs=(8, 9)),), jobs=(member,))

    (row,) = device_rows(site, 10.0)
    (line,) = job_lines(site, Order.ID)

    assert (["7_2", "9"], "7_2") == (row.jobs, line.label)


@pytest.mark.parametrize("width", [*range(60, 141), None])
def test_a_device_with_many_jobs_still_says_how_it_stands(width: int | None) -> None:
    """A device with many jobs still shows its state.

    Regression: seven array members pushed STATE off the screen, and `top --once` wrapped its lines at any width.
    """
    members = tuple(replace(job(80 + i, JobState.RUNNING), member=Member(72, i)) for i in range(7))
    busy = make_status(jobs=tuple(each.id for each in members), allocated_bytes=20 * GIB)
    site = Snapshot(at=NOW, devices=(busy,), jobs=members)

    _, head, device, *_rest = click.unstyle(as_text(site, 10.0, None, width)).splitlines()

    assert head.endswith("STATE")
    assert device.endswith("ready")
    if width is None:
        assert ",".join(each.label for each in members) in device
    else:
        assert max(map(len, (head, device))) <= width


@pytest.mark.parametrize("width", range(60, 141))
def test_one_picture_is_no_wider_than_the_terminal(width: int) -> None:
    """The first line, the legend, the devices and the jobs all fit the terminal."""
    running = replace(job(8, JobState.RUNNING), host="nodeA")
    site = Snapshot(at=NOW, devices=(make_status(jobs=(8,)),), jobs=(running, job(9)))

    assert max(map(len, click.unstyle(as_text(site, 10.0, None, width)).splitlines()[1:])) <= max(width, len(LEGEND))


@pytest.mark.parametrize(
    ("names", "width", "shown"),
    [
        (("72_0", "72_1", "72_2"), 16, "72_0 72_1 72_2"),
        (("72_0", "72_1", "72_2"), 8, "72_0-2"),
        (("7", "72_0", "72_1", "80", "91"), 12, "7 72_0 +3"),
        (("7", "8", "9"), 4, "7 +2"),
        (("1234567", "1234568"), 4, "2"),
        ((), 4, "-"),
    ],
)
def test_many_jobs_take_little_room(names: tuple[str, ...], width: int, shown: str) -> None:
    """Many jobs take little room: array members form a range, other jobs are the first ones and a count of the rest."""
    assert few(names, width) == shown


def test_a_priority_has_neighbours_up_to_the_ends() -> None:
    """A priority has a next higher and a next lower one, except at the ends.

    The store decides which priorities a user may set.
    """
    assert (Priority.HIGH, Priority.LOW) == (priority_beside(job(1), 1), priority_beside(job(1), -1))
    assert (
        priority_beside(job(1, priority=Priority.URGENT), 1)
        is priority_beside(job(1, priority=Priority.LOW), -1)
        is None
    )


def test_a_log_is_shown_as_a_terminal_would_have_left_it() -> None:
    """A log is shown as a terminal would display it.

    A progress bar that was redrawn a hundred times is one line, and no control sequence reaches the terminal.
    """
    assert ["start", " 20%", "end"] == log_lines(b"start\r\n 10%\r 20%\nend\n")
    assert ["x"] == log_lines(b"\x1b[2Jx\r\n")
    assert [] == log_lines(b"\n")


def test_external_processes_are_listed_with_owner_and_age() -> None:
    """Below the devices is a line for each external process; what is unknown of it is left out."""
    processes = (
        ExternalProcess(
            pid=77, held_bytes=3 * GIB, user="eve", command="jupyter", started_at=NOW - timedelta(hours=49)
        ),
        ExternalProcess(pid=78, held_bytes=None, user=None, command=None),
    )
    snapshot = Snapshot(at=NOW, devices=(make_status(external_processes=processes),), jobs=())

    assert [
        "external process on nodeA device 0: 3G  eve, pid 77, for 2d 01:00:00  jupyter",
        "external process on nodeA device 0: unknown  somebody, pid 78  cannot be seen",
    ] == device_notes(snapshot)
    assert all(len(line) <= 44 for line in device_notes(snapshot, 44))
    assert all(line in as_text(snapshot, 10.0, None).splitlines() for line in device_notes(snapshot))
    assert device_notes(snapshot, 44)[:3] == [
        "external process on nodeA device 0: 3G",
        "  eve, pid 77, for 2d 01:00:00  jupyter",
        "external process on nodeA device 0:",
    ]


def test_a_job_on_a_device_that_it_was_not_given_is_no_external_process() -> None:
    """It is named first, as the one whose script must be changed."""
    process = ExternalProcess(pid=77, held_bytes=3 * GIB, user="eve", command="python train.py", job_id=12)
    snapshot = Snapshot(at=NOW, devices=(make_status(external_processes=(process,)),), jobs=())

    assert [
        "job 12, which was given another device, on nodeA device 0: 3G  eve, pid 77  python train.py"
    ] == device_notes(snapshot)


def test_a_device_with_an_xid_error_has_a_line_below_the_table() -> None:
    """An error after which the device goes on with jobs is seen without ``gpuqueue gpus``."""
    snapshot = Snapshot(at=NOW, devices=(make_status(xids=(Xid(13, NOW),)),), jobs=())

    (line,) = device_notes(snapshot)
    assert line.startswith("nodeA device 0: Xid 13, an error in a program's computation, at ")
    assert line in as_text(snapshot, 10.0, None).splitlines()


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_reason_of_a_closed_device_leaves_room_for_the_others(width: int) -> None:
    """A long reason is cut before the bars are. It is whole below the table if it is cut there."""
    why = "mps is on, and its control daemon at /tmp/nvidia-mps has ended: start nvidia-cuda-mps-control -d"
    site = Snapshot(at=NOW, devices=(make_status(), make_status(trouble=why, slots=0)), jobs=())

    shown = as_text(site, 10.0, None, width)

    assert why in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= width
    assert width < 100 or FREE * 20 in shown
