"""Tests of the table of ``gpuqueue queue``: its columns, and what a narrow terminal omits."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import click
import pytest
from factories import make_spec

from gpuqueue.cli.output.queue_table import COLUMNS, queue_table
from gpuqueue.cli.output.render import fitted_progress
from gpuqueue.model.array import Array, Indexes, Member, Tally
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_spec import Account
from gpuqueue.model.progress import Progress
from gpuqueue.model.run import Listing, RunDevice
from gpuqueue.model.run_mark import RunMark
from gpuqueue.text.sanitize import cells
from gpuqueue.text.units import GIB, MIB

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)
RUNS = Job(
    id=7,
    spec=replace(make_spec(mem_bytes=6 * GIB, name="a-long-name-of-a-training-run"), time_limit_s=14400.0),
    state=JobState.RUNNING,
    submitted_at=NOW - timedelta(hours=1),
    started_at=NOW - timedelta(seconds=725),
    host="node-with-cards",
)
WAITS = Job(
    id=12,
    spec=replace(make_spec(mem_bytes=20 * GIB, name="big"), device=DeviceFilter.GPU),
    state=JobState.QUEUED,
    submitted_at=NOW - timedelta(seconds=30),
    reason=WaitReason.MEMORY,
)
LISTING = Listing(
    at=NOW,
    jobs=(RUNS, WAITS),
    held_bytes={7: 3174 * MIB},
    devices={7: (RunDevice(uuid="GPU-0", index=0, kind=DeviceKind.GPU, lease_bytes=6 * GIB),)},
)
PROGRESS = {7: Progress(share=0.5, counts="45/90", left_s=75)}


def lines(width: int | None) -> list[str]:
    """Return the lines of the table without colours."""
    return click.unstyle(queue_table(LISTING, PROGRESS, width)).splitlines()


@pytest.mark.parametrize("width", [*range(44, 130), 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """No line is wider than the terminal, because a wrapped line breaks the table."""
    assert max(map(len, lines(width))) <= width


@pytest.mark.parametrize("width", [44, 60, 80, 200, None])
def test_a_name_in_wide_characters_shifts_nothing(width: int | None) -> None:
    """A name in wide characters does not shift the columns.

    Each such character takes two terminal columns. Regression: the state of such a job was not below its header.
    """
    wide = replace(WAITS, spec=replace(WAITS.spec, name="\u8bad\u7ec3" * 6))
    listing = replace(LISTING, jobs=(RUNS, wide))
    shown = click.unstyle(queue_table(listing, PROGRESS, width)).splitlines()

    assert width is None or max(map(cells, shown)) <= width
    begins = {cells(line.partition(word)[0]) for line, word in zip(shown, ("STATE", "running", "queued"), strict=True)}
    assert len(begins) == 1, "\n".join(shown)


#: An array of which every third member was taken.
PARTED = replace(
    WAITS,
    id=123,
    spec=replace(WAITS.spec, array=Array.parse("0-999%16")),
    tally=Tally(left=Indexes.parse(",".join(f"{i}-{i + 1}" for i in range(0, 999, 3))), held=Indexes(()), ended={}),
)


def test_what_is_left_of_an_array_pushes_no_column_out() -> None:
    """The name of an array is cut.

    Regression: it took 50 columns, and 80 columns had room for neither memory nor time.
    """
    listing = replace(LISTING, jobs=(RUNS, PARTED, replace(WAITS, id=1234567, member=Member(1234567, 1001))))
    head, _, array, member = click.unstyle(queue_table(listing, PROGRESS, 80)).splitlines()

    assert {"ID", "NAME", "STATE", "MEMORY", "TIME"} <= set(head.split())
    assert re.match(r" *123_\[0-.*…%16\] ", array), array
    assert member.lstrip().startswith("1234567_1001 ")
    whole = click.unstyle(queue_table(listing, PROGRESS, 400)).splitlines()[2]
    assert "123_[0-1,3-4,6-7," in whole


@pytest.mark.parametrize("width", range(44, 130))
def test_an_array_is_cut_at_any_width(width: int) -> None:
    """At any width the cut name still says which array it is."""
    listing = replace(LISTING, jobs=(RUNS, PARTED))
    shown = click.unstyle(queue_table(listing, PROGRESS, width)).splitlines()

    assert max(map(cells, shown)) <= width
    assert shown[2].lstrip().startswith("123_[")


def test_at_80_columns_all_that_one_asks_for_is_there() -> None:
    """80 columns show progress, used and requested memory, elapsed time and limit, and the reason."""
    head, runs, waits = lines(80)

    assert ["ID", "NAME", "USER", "STATE", "MEMORY", "TIME", "PROGRESS", "/", "REASON"] == head.split()
    assert "3.1G/6G" in runs
    assert "12:05/4:00:00" in runs
    assert runs.endswith("45/90, 50 %")
    assert waits.split() == ["12", "big", "ada", "queued", "20G", "30s", "memory"]


def test_what_does_not_fit_is_left_out_in_a_set_order() -> None:
    """Columns are omitted in a fixed order. The name, the state and the reason are never omitted."""
    seen = [tuple(lines(width)[0].split()) for width in range(140, 43, -1)]
    order = []
    for before, after in itertools.pairwise(seen):
        order += [word for word in before if word not in after and word in {column.head for column in COLUMNS}]

    assert ["WANTS", "DEVICE", "USER", "TIME", "MEMORY"] == order


def test_a_wide_terminal_shows_whole_names_and_a_bar() -> None:
    """A wide terminal shows full names, a progress bar and the device that the job runs on."""
    runs = lines(140)[1]

    assert "a-long-name-of-a-training-run" in runs
    assert "node-with-cards:0" in runs
    assert runs.endswith("████···· 45/90, 50 %, 1:15 left")


def test_a_long_user_is_cut_only_where_there_is_no_room() -> None:
    """A name such as first.last is whole on a wide terminal. Regression: it was cut to 12 columns at any width."""
    named = replace(WAITS, spec=replace(WAITS.spec, account=Account(name="anne-katharin.mueller", uid=7, host="h")))
    listing = replace(LISTING, jobs=(RUNS, named))

    wide, narrow = (click.unstyle(queue_table(listing, PROGRESS, width)).splitlines()[-1] for width in (200, 100))

    assert " anne-katharin.mueller " in wide
    assert " anne-kathar…  " in narrow


def test_a_pipe_gets_every_column_always() -> None:
    """A pipe always gets every column, so that field numbers are the same in each line, for awk."""
    head, runs, waits = lines(None)

    assert [column.head for column in COLUMNS] == re.split(r"\s{2,}", head.strip())
    assert ["7", "a-long-name-of-a-training-run", "ada", "running", "3.1G/6G", "12:05/4:00:00"] == runs.split()[:6]
    assert waits.split()[6:] == ["-", "gpu", "memory"]


def test_what_is_held_of_an_array_does_not_run() -> None:
    """The line of the held members shows no run time and no reason of the running members."""
    here = Tally(left=Indexes(), held=Indexes.parse("3,5"), ended={})
    spec = make_spec(array=Array.parse("0-5"))
    array = replace(RUNS, spec=spec, tally=here)
    listing = replace(LISTING, jobs=(array,), held_bytes={}, devices={})

    (_, held) = click.unstyle(queue_table(listing, {}, 140)).splitlines()

    assert ["7_[3,5]", "job", "ada", "held", "1G", "1:00:00", "held"] == held.split()


def test_progress_says_less_where_there_is_less_room() -> None:
    """Progress shrinks with the room. The bar is omitted first, the percentage last."""
    progress = PROGRESS[7]

    assert [
        "████···· 45/90, 50 %, 1:15 left",
        "45/90, 50 %, 1:15 left",
        "45/90, 50 %",
        "50 %",
    ] == [fitted_progress(progress, width) for width in (40, 25, 12, 4)]


@pytest.mark.parametrize(
    ("width", "progress", "words"),
    [
        (200, True, "idle 1:05:00, ████···· 45/90, 50 %, 1:15 left"),
        (None, True, "idle 1:05:00, 45/90, 50 %, 1:15 left"),
        (200, False, "idle 1:05:00"),
        (None, False, "idle 1:05:00"),
    ],
)
def test_an_idle_run_is_marked(width: int | None, words: str, *, progress: bool) -> None:
    """A run that does not use its devices is marked in the last column, before its progress."""
    idle = replace(RUNS, marks=(RunMark(kind="idle", since=NOW - timedelta(minutes=65)),))
    listing = replace(LISTING, jobs=(idle,))
    shown = click.unstyle(queue_table(listing, PROGRESS if progress else {}, width)).splitlines()[-1]

    assert shown.endswith(words)


def test_each_mark_of_a_run_is_in_the_last_column() -> None:
    """With the time for which it looks so."""
    marks = tuple(RunMark(kind=kind, since=NOW - timedelta(minutes=5)) for kind in ("nan", "step", "disk", "new_one"))
    listing = replace(LISTING, jobs=(replace(RUNS, marks=marks),))

    shown = click.unstyle(queue_table(listing, {}, None)).splitlines()[-1]

    assert shown.endswith("NaN 5:00, same step 5:00, disk nearly full 5:00, new one 5:00")


@pytest.mark.parametrize("width", [*range(44, 130), 200])
def test_no_line_of_an_idle_run_is_wider_than_the_terminal(width: int) -> None:
    """The mark takes its room from the progress."""
    listing = replace(LISTING, jobs=(replace(RUNS, marks=(RunMark(kind="idle", since=NOW - timedelta(days=2)),)),))

    assert max(map(len, click.unstyle(queue_table(listing, PROGRESS, width)).splitlines())) <= width
