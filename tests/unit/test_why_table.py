"""What ``why`` says, as wide as a terminal is: no line is broken in the middle, and each column stays one."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from factories import BOB, make_device, make_spec

from gpuqueue.cli.why import story
from gpuqueue.cli.why_table import clock, table
from gpuqueue.job import Job, JobState, Level, WaitReason
from gpuqueue.limits import Measure
from gpuqueue.queue.explanation import Explanation, LimitReached, Obstacle, Occupant, Start, Verdict
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.units import GIB
from gpuqueue.why import Why
from gpuqueue.words import cells

AT = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
FAR = "trainer-with-a-long-name.vision.example.org"
WAITS = Job(
    id=12,
    spec=make_spec(mem_bytes=20 * GIB, name="big"),
    state=JobState.QUEUED,
    submitted_at=AT,
    reason=WaitReason.MEMORY,
)
OTHERS = {each: Job(id=each, spec=make_spec(account=BOB), state=JobState.RUNNING, submitted_at=AT) for each in (3, 4)}


def device(host: str, index: int) -> DeviceStatus:
    """Return a device with a headroom."""
    return DeviceStatus(
        device=replace(make_device(f"{host}-{index}"), index=index),
        host=host,
        worker="w",
        worker_pid=1,
        headroom_bytes=GIB,
        foreign_bytes=0,
        promised_bytes=0,
        jobs=(),
        slots=8,
        pool="",
        seen_s_ago=0.0,
    )


def verdict(host: str, index: int, obstacle: Obstacle, *runs: int) -> Verdict:
    """Return why the job is not there."""
    return Verdict(
        device=f"{host}-{index}",
        host=host,
        obstacle=obstacle,
        available_bytes=2 * GIB,
        capacity_bytes=23 * GIB,
        total_bytes=24 * GIB,
        kept_for=None,
        runs=tuple(Occupant(job_id=each, held_bytes=10 * GIB, ends_ms=1_800_000_000_000) for each in runs),
    )


EXPLANATION = Explanation(
    job_id=12,
    state=JobState.QUEUED,
    level=Level.NORMAL,
    higher=3,
    users_before=2,
    theirs=4,
    own_before=5,
    start=Start(at_ms=1_800_000_000_000, devices=(f"{FAR}-1",), blockers=(3, 4)),
    devices=(
        verdict("a", 0, Obstacle.MEMORY, 3),
        verdict(FAR, 1, Obstacle.MEMORY, 3, 4),
        verdict(FAR, 10, Obstacle.KIND),
    ),
)
FOUND = Why(
    job=WAITS,
    explanation=EXPLANATION,
    devices={each.device.uuid: each for each in (device("a", 0), device(FAR, 1), device(FAR, 10))},
    others=OTHERS,
)


@pytest.mark.parametrize("width", range(50, 140))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Which then breaks it where it likes, in the middle of a word."""
    assert max(map(cells, story(FOUND, width).splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_reason_goes_on_below_itself(width: int) -> None:
    """It went on below the device's name, as if that were another device."""
    head, *rows = table(FOUND, EXPLANATION, width).splitlines()
    place = head.index("WHY NOT THERE")

    assert all(not row[:place].strip() or row[place - 1] == " " for row in rows)
    names = [row.split()[0] for row in rows if row[:place].strip()]
    assert [name.rpartition(":")[2] for name in names] == ["0", "1", "10"]
    said = " ".join(row[place:].strip() for row in rows)
    assert "18G too little: job 3 (bob) 10G until " in said
    assert said.endswith("headroom 1G not a gpu")


def test_a_sentence_goes_on_behind_its_first_word() -> None:
    """``order`` and ``start`` stand alone at the edge, where one looks for them."""
    edge = [line for line in story(FOUND, 60).splitlines() if line and not line.startswith(" ")]

    assert ["job 12", "order", "DEVICE", "a:0", "start"] == [
        word for word in ("job 12", "order", "DEVICE", "a:0", "start") if any(line.startswith(word) for line in edge)
    ]
    assert 4 + 3 == len(edge), edge  # the table's head and three devices among them


def test_a_pipe_gets_every_line_whole() -> None:
    """For grep, and for whoever sends it on."""
    said = story(FOUND)

    assert said == story(FOUND, 1000)
    assert f"{FAR}:10" in said
    assert "before it: 3 jobs of higher levels, 4 of 2 users with less usage, 5 of ada's own" in said


def test_why_calls_a_worker_silent_from_when_on_gpus_does() -> None:
    """It said that the job starts there, of a host that had been dead for 12 seconds."""
    start = Start(at_ms=1_800_000_000_000, devices=("a-0",), blockers=())
    explanation = replace(EXPLANATION, start=start, devices=(verdict("a", 0, Obstacle.FITS),))
    heard = replace(device("a", 0), seen_s_ago=12.0)
    found = Why(job=WAITS, explanation=explanation, devices={"a-0": heard}, silent_after_s=6.0)

    said = story(found)

    assert "it fits, but its worker is silent for 12s: see gpuqueue status there" in said
    assert "start  there is room on a:0: it starts once the worker of a:0 is heard again, and it is its turn" in said
    assert "it fits: it starts there when it is its turn" in story(replace(found, silent_after_s=15.0))
    gone = replace(explanation, start=None, devices=(verdict("a", 0, Obstacle.SILENT),))
    assert "its worker is silent for 12s" in story(replace(found, explanation=gone))
    assert "start  not before the worker of a:0 is heard again" in story(replace(found, explanation=gone))


def test_who_finds_the_room_under_a_limit_kept_reads_for_whom() -> None:
    """Else the figures say that there is room, and nothing says why it does not start."""
    limit = LimitReached(
        whose="@lab", measure=Measure.RUNNING_MEM, used=6 * GIB, most=8 * GIB, asked=2 * GIB, runs=(4,), kept_for=3
    )
    found = Why(job=WAITS, explanation=replace(EXPLANATION, limit=limit), others=OTHERS)

    assert (
        "limit  the room under it is kept for job 3 (bob), which has waited too long: @lab has 6G of 8G in use "
        "(running_mem), and this job asks for 2G: job 4 (bob)"
    ) in story(found)


def test_who_is_at_a_limit_reads_when_there_is_room_under_it() -> None:
    """The holder was named, and its time limit known; the answer gave no time."""
    others = {each: replace(job, devices=("GPU-0",)) for each, job in OTHERS.items()}
    limit = LimitReached(whose="ada", measure=Measure.RUNNING_JOBS, used=2, most=2, asked=1, runs=(3, 4))
    start = Start(at_ms=1_800_000_000_000, devices=("a-0",), blockers=())
    explanation = replace(EXPLANATION, limit=limit, start=start)
    found = Why(job=WAITS, explanation=explanation, others=others)

    assert re.search(
        r"start  by \S+ \S+, when job 3 must have ended, there is room under the limit, for who goes first of",
        story(found),
    )
    asks_more = replace(explanation, limit=replace(limit, measure=Measure.RUNNING_GPUS, asked=2))
    assert "when job 3, job 4 must have ended" in story(replace(found, explanation=asks_more))
    kept = replace(explanation, limit=replace(limit, kept_for=9))
    never = replace(explanation, limit=replace(limit, asked=3))
    for each in (kept, never):
        assert "there is room under the limit" not in story(replace(found, explanation=each))
    assert "start  never under this limit: it alone asks for more" in story(replace(found, explanation=never))


def test_what_is_kept_is_blamed_only_where_the_room_is_there_but_for_that() -> None:
    """A job that lacked memory besides was told to wait for another, which had started and ended long before it."""
    kept = [replace(verdict("a", index, Obstacle.KEPT), kept_for=3) for index in range(2)]
    lacks = [replace(each, obstacle=Obstacle.MEMORY) for each in kept]
    both = replace(WAITS, spec=make_spec(gpus=2))

    def said(job: Job, *devices: Verdict) -> str:
        return story(Why(job=job, explanation=replace(EXPLANATION, start=None, devices=devices), others=OTHERS))

    once = "there is room once job 3 (bob), for which devices are kept, has started or gone"
    assert once in said(WAITS, kept[0], lacks[1])
    assert once in said(both, *kept)
    assert once not in said(WAITS, *lacks)
    assert once not in said(both, kept[0], lacks[1])


def test_room_under_one_of_two_limits_is_no_room() -> None:
    """It read by when there is room under the first of them; the other one left none until an hour later."""
    others = {each: replace(job, devices=("GPU-0",)) for each, job in OTHERS.items()}
    first = LimitReached(whose="ada", measure=Measure.RUNNING_JOBS, used=2, most=2, asked=1, runs=(3,))
    second = replace(first, whose="@lab", runs=(4,))
    ends = (Occupant(job_id=3, held_bytes=GIB, ends_ms=1), Occupant(job_id=4, held_bytes=GIB, ends_ms=3_600_000))
    there = replace(verdict("a", 0, Obstacle.MEMORY), runs=ends)
    explanation = replace(EXPLANATION, limit=first, more_limits=(second,), devices=(there,))
    found = Why(job=WAITS, explanation=explanation, others=others)

    said = story(found)

    assert 2 == len(re.findall(r"^limit  (?:ada|@lab) has 2 of 2 jobs running", said, re.MULTILINE))
    assert f"by {clock(3_600_000)}, when job 3, job 4 must have ended, there is room under its limits" in said
    endless = replace(there, runs=(ends[0], replace(ends[1], ends_ms=None)))
    assert "there is room under" not in story(replace(found, explanation=replace(explanation, devices=(endless,))))


def test_who_is_kept_no_room_any_more_reads_behind_which_run() -> None:
    """It was told when there is room, and not that others go first."""
    start = Start(at_ms=None, devices=("GPU-0",), blockers=(3, 4), in_vain=(3,))

    said = story(Why(job=WAITS, explanation=replace(EXPLANATION, start=start), others=OTHERS))

    assert "nothing is kept for it there before: the end of job 3 was waited for in vain; others start there" in said
