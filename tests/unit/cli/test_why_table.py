"""Tests of the output of ``why`` at any terminal width. The terminal wraps no line, and the columns stay aligned."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from factories import BOB, make_device, make_spec, make_status

from gpuqueue.cli.output.why_text import table, why_text
from gpuqueue.client.progress import Usual
from gpuqueue.client.why import Why
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.measures import Measure
from gpuqueue.model.placement import Placement
from gpuqueue.model.progress import Progress
from gpuqueue.queue.explanation import Explanation, LimitReached, Obstacle, Occupant, RoomUnderLimits, Start, Verdict
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.text.sanitize import cells
from gpuqueue.text.units import GIB
from gpuqueue.words.values import clock
from gpuqueue.words.why.devices import WORDS, nearest, rest_line
from gpuqueue.words.why.sentences import place_in_brief, sentences, waits_in_brief

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
    """Return a device with a headroom of 1 GiB."""
    card = replace(make_device(f"{host}-{index}"), index=index)
    return make_status(device=card, host=host, headroom_bytes=GIB)


def verdict(host: str, index: int, obstacle: Obstacle, *runs: int) -> Verdict:
    """Return the reason why the job does not start on a device."""
    return Verdict(
        device=f"{host}-{index}",
        host=host,
        obstacle=obstacle,
        available_bytes=2 * GIB,
        capacity_bytes=23 * GIB,
        total_bytes=24 * GIB,
        reserved_for=None,
        runs=tuple(Occupant(job_id=each, held_bytes=10 * GIB, ends_ms=1_800_000_000_000) for each in runs),
    )


EXPLANATION = Explanation(
    job_id=12,
    state=JobState.QUEUED,
    priority=Priority.NORMAL,
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
    """No line is wider than the terminal, which would break it in the middle of a word."""
    assert max(map(cells, why_text(FOUND, width).splitlines())) <= width


def test_the_answer_comes_first_then_the_devices_that_matter() -> None:
    """The first line says when the job starts. The devices nearest to fitting follow, and the others are one line."""
    many = tuple(replace(verdict("a", index, Obstacle.MEMORY), available_bytes=index * GIB) for index in range(12))
    others = (verdict("b", 0, Obstacle.POOL), verdict("b", 1, Obstacle.RESERVED), verdict("b", 2, Obstacle.DRAINED))
    start = Start(at_ms=1_800_000_000_000, devices=("a-2",), blockers=(3,))
    explanation = replace(EXPLANATION, devices=(*many, *others), start=start)
    found = replace(FOUND, explanation=explanation)

    shown_text = why_text(found).splitlines()

    assert shown_text[0].startswith("start  by ")
    assert shown_text[-1].startswith("order  priority normal; before it: 3 jobs")
    shown = nearest(found, explanation)
    assert ["a-2", "b-1", "a-11", "a-10", "a-9"] == [each.device for each in shown]
    line = "and 10 other devices: 8 with too little memory, 1 of another pool, 1 drained"
    assert [line] == rest_line(explanation, shown)
    assert f"{line} (--json lists all)" in shown_text  # an option of the command line, which the page does not have
    six = replace(found, job=replace(WAITS, spec=make_spec(gpus=6)))
    assert 6 == len(nearest(six, explanation))
    nowhere = replace(explanation, devices=(verdict("b", 0, Obstacle.POOL), verdict("b", 1, Obstacle.KIND)))
    assert [] == rest_line(nowhere, nearest(found, nowhere))


def test_the_reason_of_a_host_that_could_not_start_the_job_is_shown() -> None:
    """The devices of such a host are only counted, but a user must read what to mend there: once for each host."""
    reason = "cannot enter the working directory /home/ann/proj: No such file or directory"
    excluded = tuple(replace(verdict("b", index, Obstacle.EXCLUDED), cannot_start=reason) for index in range(2))
    explanation = replace(EXPLANATION, devices=(verdict("a", 0, Obstacle.DRAINED), *excluded))

    assert [
        "and 2 other devices: 2 on a host that could not start the job",
        f"b could not start the job: {reason}",
    ] == rest_line(explanation, nearest(replace(FOUND, explanation=explanation), explanation))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_reason_goes_on_below_itself(width: int) -> None:
    """A long reason continues in its own column.

    Regression: it continued below the device name and looked like another device.
    """
    head, *rows = table(sentences(FOUND).devices, width).splitlines()
    place = head.index("WHY NOT THERE")

    assert all(not row[:place].strip() or row[place - 1] == " " for row in rows)
    names = [row.split()[0] for row in rows if row[:place].strip()]
    assert [name.rpartition(":")[2] for name in names] == ["1", "0"]
    printed = " ".join(row[place:].strip() for row in rows)
    assert "18G too little: job 3 (bob) 10G until " in printed
    assert printed.endswith("headroom 1G")


def test_a_sentence_goes_on_behind_its_first_word() -> None:
    """A wrapped sentence is indented, so that ``order`` and ``start`` are the only words at the left edge."""
    edge = [line for line in why_text(FOUND, 60).splitlines() if line and not line.startswith(" ")]

    assert ["job 12", "order", "DEVICE", "a:0", "start"] == [
        word for word in ("job 12", "order", "DEVICE", "a:0", "start") if any(line.startswith(word) for line in edge)
    ]
    assert 4 + 3 == len(edge), edge  # the table's header, two devices and the line about the third are among them


def test_a_pipe_gets_every_line_whole() -> None:
    """A pipe gets every line unwrapped, for ``grep`` and for other programs."""
    printed = why_text(FOUND)

    assert printed == why_text(FOUND, 1000)
    assert f"{FAR}:1 " in printed
    assert "before it: 3 jobs of higher priorities, 4 jobs of 2 users with less usage, 5 jobs of ada's own" in printed


LIMIT = LimitReached(whose="ada", measure=Measure.RUNNING_GPUS, used=2, most=2, asked=1)


@pytest.mark.parametrize(
    ("rule", "differs"),
    [
        ("; priority decides", {}),
        ("; fair share decides", {"higher": 0}),
        ("; arrival decides", {"higher": 0, "theirs": 0}),
        ("nobody is before it", {"higher": 0, "theirs": 0, "own_before": 0}),
        ("; the limit decides", {"limits": (LIMIT,)}),
        ("; the calendar decides", {"devices": (verdict("a", 0, Obstacle.CALENDAR),)}),
        (
            "; the reservation for job 3 decides",
            {
                "devices": (
                    replace(verdict("a", 0, Obstacle.RESERVED), reserved_for=3),
                    verdict("a", 1, Obstacle.MEMORY),
                )
            },
        ),
    ],
)
def test_the_last_line_names_the_rule_that_decides(rule: str, differs: dict[str, Any]) -> None:
    """The last line ends with the rule by which others go first, and says nothing more if only room is missing."""
    found = replace(FOUND, explanation=replace(EXPLANATION, start=None, **differs))

    assert (sentences(found).order or "").endswith(rule)


def test_a_promoted_job_says_from_which_priority() -> None:
    """The priority in the order is that after the promotion, so the line names the one that the job was given."""
    found = replace(FOUND, job=replace(WAITS, promoted=Priority.HIGH), explanation=replace(EXPLANATION, higher=0))

    assert "; promoted from normal by aging; " in (sentences(found).order or "")


def test_why_calls_a_worker_silent_from_when_on_gpus_does() -> None:
    """`why` and `gpus` use the same time limit to call a worker silent.

    Regression: `why` said that the job starts on a host that had been dead for 12 seconds.
    """
    start = Start(at_ms=1_800_000_000_000, devices=("a-0",), blockers=())
    explanation = replace(EXPLANATION, start=start, devices=(verdict("a", 0, Obstacle.FITS),))
    heard = replace(device("a", 0), seen_s_ago=12.0)
    found = Why(job=WAITS, explanation=explanation, devices={"a-0": heard}, silent_after_s=6.0)

    printed = why_text(found)

    assert "it fits, but its worker is silent for 12s: see gpuqueue status there" in printed
    assert (
        "start  there is room on a:0: it starts once the worker of a:0 sends heartbeats again, and it is its turn"
        in printed
    )
    assert "it fits: it starts there when it is its turn" in why_text(replace(found, silent_after_s=15.0))
    gone = replace(explanation, start=None, devices=(verdict("a", 0, Obstacle.SILENT),))
    assert "its worker is silent for 12s" in why_text(replace(found, explanation=gone))
    assert "start  not before the worker of a:0 sends heartbeats again" in why_text(replace(found, explanation=gone))


def test_a_device_that_the_job_names_and_nobody_serves_is_called_missing() -> None:
    """`why` said that the job names another device than those that are served, of a card that had vanished."""
    explanation = replace(EXPLANATION, start=None, devices=(verdict("a", 0, Obstacle.NAMED),))
    names = ("a-0", "a-7")
    spec = replace(WAITS.spec, placement=Placement(devices=names[1:]))
    found = Why(job=replace(WAITS, spec=spec), explanation=explanation, devices={"a-0": device("a", 0)})

    line = "never: a-7, which the job names, is missing: no worker serves it. Name others: gpuqueue edit 12 --device"
    assert line in why_text(found)
    assert "missing" in why_text(replace(found, explanation=replace(explanation, devices=())))
    both = replace(spec, placement=Placement(devices=names))
    assert "missing" not in why_text(replace(found, job=replace(WAITS, spec=both)))
    assert "missing" in why_text(replace(found, job=replace(WAITS, spec=replace(both, gpus=2))))


def test_a_host_that_lost_its_gpus_is_named_with_the_words_of_its_driver() -> None:
    """`why` said that no device that is served can ever run the job, and to edit it."""
    explanation = replace(EXPLANATION, start=None, devices=(verdict("a", 0, Obstacle.KIND),))
    status = device("a", 0)
    cpu = replace(status, device=replace(status.device, no_gpu="the driver is not loaded"), lost_gpus=True)
    printed = why_text(Why(job=WAITS, explanation=explanation, devices={"a-0": cpu}))

    assert "start  not before a finds a GPU: see below. On the CPU: gpuqueue edit 12 --device any" in printed
    assert "no NVIDIA GPU found on a: the driver is not loaded; it has served GPUs before" in printed
    never = why_text(Why(job=WAITS, explanation=explanation, devices={"a-0": replace(cpu, lost_gpus=False)}))
    assert "never: no device that is served now can run it" in never
    assert "no NVIDIA GPU found on a: the driver is not loaded; jobs run on the CPU" in never


def test_reserved_room_under_a_limit_shows_its_job() -> None:
    """The output names the job for which the room under a limit is reserved.

    Otherwise the figures show room and nothing explains why the job does not start.
    """
    limit = LimitReached(
        whose="@lab", measure=Measure.RUNNING_MEM, used=6 * GIB, most=8 * GIB, asked=2 * GIB, runs=(4,), reserved_for=3
    )
    found = Why(job=WAITS, explanation=replace(EXPLANATION, limits=(limit,)), others=OTHERS)

    assert (
        "limit  the room under it is reserved for job 3 (bob), which has waited too long: @lab has 6G of 8G in use "
        "(running_mem), and this job asks for 2G: job 4 (bob)"
    ) in why_text(found)


LIMIT = LimitReached(whose="ada", measure=Measure.RUNNING_JOBS, used=2, most=2, asked=1, runs=(3, 4))
LATER_MS = 1_800_003_600_000


def starts(start: Start, room: RoomUnderLimits, *more_limits: LimitReached, **limit: int) -> list[str]:
    """Return the lines about the start of a job that is at a limit."""
    reached = replace(LIMIT, **limit)
    explanation = replace(EXPLANATION, limits=(reached, *more_limits), start=start, room=room)
    printed = why_text(replace(FOUND, explanation=explanation))
    return [line.removeprefix("start  ") for line in printed.splitlines() if line.startswith("start")]


def limited(blockers: tuple[int, ...], **changes: object) -> Start:
    """Return a start that also waits for room under a limit."""
    known = {"at_ms": None, "devices": ("a-0",), "limited": True, "free_ms": 1_800_000_000_000}
    return Start(blockers=blockers, **{**known, **changes})  # type: ignore[arg-type]


def test_who_is_at_a_limit_reads_one_start_with_its_condition() -> None:
    """A job at a limit has one start line with its condition.

    Regression: it had two lines: one that ignored the limit, and one that ignored the other jobs.
    """
    at = {"at_ms": LATER_MS, "room_ms": LATER_MS}
    room = RoomUnderLimits(at_ms=LATER_MS, runs=(4,))
    by = f"by {clock(LATER_MS)} on a:0, when"

    assert [f"{by} job 4 must have ended and there is room under the limit, unless others go before it"] == starts(
        limited((), **at), room
    )
    assert [
        f"{by} job 3, job 4 must have ended and there is room under its limits, unless others go before it"
    ] == starts(limited((3,), **at), room, replace(LIMIT, whose="@lab"))
    assert [
        (
            "unknown: 2 jobs that may take the room go before it; there is room for the first of them "
            f"{by} job 4 must have ended and there is room under the limit"
        )
    ] == starts(limited((), room_ms=LATER_MS, rivals=2), room)
    assert ["never under this limit: this job alone exceeds it. Edit the job, or have the limit raised"] == starts(
        limited((), **at), room, asked=3
    )


def test_no_start_is_known_behind_reserved_room_under_a_limit() -> None:
    """A job whose room under a limit is reserved for another job has no start time.

    Regression: it had a start time from the runs on the device, and no job before it.
    """
    room = RoomUnderLimits(at_ms=None, runs=(), reserved_for=3)

    assert [
        "unknown: first job 3 (bob), for which the room under the limit is reserved, must have started or gone"
    ] == starts(limited((4,)), room, reserved_for=3)


def test_a_run_without_a_time_limit_under_the_limit_is_named() -> None:
    """A run without a time limit that counts under the limit is named.

    The start is unknown even if the runs on the device have time limits.
    """
    room = RoomUnderLimits(at_ms=None, runs=(4,))

    assert ["unknown: there is room under the limit once job 4 has ended, and it has no time limit"] == starts(
        limited((3,)), room
    )
    assert [
        "unknown: there is room under the limit once job 3, job 4 have ended, and not all of these have a time limit"
    ] == starts(limited(()), replace(room, runs=(3, 4)))
    assert [
        (
            "unknown: a:0 has room once job 3 has ended and there is room under the limit once job 4 has ended, and "
            "not all of these have a time limit; 1 job that may take the room goes before it"
        )
    ] == starts(limited((3,), free_ms=None, rivals=1), room)


def test_a_limit_that_does_not_apply_to_another_device_has_no_effect() -> None:
    """A limit affects only the devices that it covers. A GPU limit of the user does not keep a job from a CPU."""
    start = Start(at_ms=LATER_MS, devices=("a-0",), blockers=(3,))

    assert [f"by {clock(LATER_MS)} on a:0, when job 3 must have ended, unless others go before it"] == starts(
        start, RoomUnderLimits(at_ms=None, runs=(4,)), asked=3
    )


def test_a_job_behind_a_reservation_shows_the_time_of_the_reserved_job() -> None:
    """The time of a reserved device is attributed to the job with the reservation.

    Regression: the time belonged to that job, and the named run had ended long before.
    """
    reserved = Start(
        at_ms=None, devices=("a-0",), blockers=(4,), behind=3, rivals=1, free_ms=LATER_MS, room_ms=LATER_MS
    )

    def printed(start: Start) -> str:
        return why_text(replace(FOUND, explanation=replace(EXPLANATION, start=start))).splitlines()[0][len("start  ") :]

    first = "1 job that may take the room goes before it"
    assert f"unknown: {first}; job 3, for which a:0 is reserved, has room by {clock(LATER_MS)}" == printed(reserved)
    assert printed(replace(reserved, free_ms=None, room_ms=None)) == (
        f"unknown: a:0 is reserved for job 3, and it is unknown when that job has room; {first}"
    )
    assert printed(replace(reserved, at_ms=LATER_MS, rivals=0)) == (
        f"by {clock(LATER_MS)} on a:0, when job 4 must have ended and job 3, for which that is reserved, has started, "
        "unless others go before it"
    )


@pytest.mark.parametrize(
    ("start", "room", "brief"),
    [
        (limited((), at_ms=LATER_MS, room_ms=LATER_MS), RoomUnderLimits(at_ms=LATER_MS), "by [-0-9 ]*[:0-9]+ on a:0"),
        (limited((3,)), RoomUnderLimits(at_ms=None, reserved_for=4), "the room under the limit is reserved for job 4"),
        (
            limited((3,)),
            RoomUnderLimits(at_ms=None, runs=(4,)),
            "as soon as job 3, job 4 have ended on a:0 and under the limit",
        ),
        (
            Start(at_ms=None, devices=("a-0",), blockers=(3,)),
            RoomUnderLimits(at_ms=None),
            "as soon as job 3 has ended on a:0",
        ),
        (
            Start(at_ms=None, devices=("a-0",), blockers=(3,), behind=4, rivals=1),
            RoomUnderLimits(at_ms=None),
            "a:0 is reserved for job 4",
        ),
    ],
)
def test_who_waits_at_a_terminal_reads_the_same_in_brief(start: Start, room: RoomUnderLimits, brief: str) -> None:
    """The short form agrees with `why`. Regression: `run` said that there was room for a job that a limit held back."""
    found = replace(FOUND, explanation=replace(EXPLANATION, limits=(LIMIT,), start=start, room=room))
    printed = waits_in_brief(WAITS, found, "30s")

    assert re.fullmatch(f"job 12 waits for memory, 30s so far; {brief}; 12 jobs before it", printed), printed


def test_the_progress_of_the_runs_in_the_way_shows_when_there_is_room() -> None:
    """Each run in the way is shown with its progress, and the longest time left is that until there is room.

    Without it, or for a run without a time left, earlier runs show how long it takes.
    """
    start = Start(at_ms=None, devices=("a-0",), blockers=(3, 4))
    usual = {each: Usual(median_s=3600, p90_s=7200, runs=2, left_s=3000) for each in (3, 4)}
    found = replace(FOUND, explanation=replace(EXPLANATION, start=start), usual=usual)
    far = Progress(share=0.145, counts="epoch 3/20", left_s=7800)

    def shown(**progress: Progress) -> list[str]:
        printed = why_text(replace(found, progress={int(each[1:]): is_at for each, is_at in progress.items()}))
        return [line for line in printed.splitlines() if line.startswith("start  job")]

    earlier = "runs of its name took 1:00:00 (half of them), 2:00:00 (nine of ten), in 2 runs that lasted as long"
    assert [f"start  job 3: {earlier}", f"start  job 4: {earlier}"] == shown()
    assert ["start  job 3: epoch 3/20, 14 %, 2:10:00 left", f"start  job 4: {earlier}"] == shown(_3=far)
    young = replace(far, left_s=None)
    assert ["start  job 3: epoch 3/20, 14 %", f"start  job 3: {earlier}"] == shown(_3=young, _4=far)[:2]
    both = replace(found, progress={3: far, 4: replace(far, left_s=60)})
    assert "as soon as job 3, job 4 have ended on a:0, in about 2:10:00; 12 jobs before it" in waits_in_brief(
        WAITS, both
    )
    assert ", in about" not in waits_in_brief(WAITS, replace(found, progress={3: far}))
    alike = {**usual, 4: replace(usual[4], is_alike=True, left_s=9000)}
    assert ", in about 2:30:00" in waits_in_brief(WAITS, replace(found, progress={3: far}, usual=alike))


@pytest.mark.parametrize(
    ("own_before", "reason", "words"),
    [
        (4, WaitReason.MEMORY, "job 12 waits for its turn; there is room on a:0, but 4 jobs are before it"),
        (1, WaitReason.MEMORY, "job 12 waits for its turn; there is room on a:0, but 1 job is before it"),
        (0, None, "job 12 waits for its turn; there is room on a:0, and nobody is before it"),
        (0, WaitReason.BEGIN, "job 12 waits for its start time; there is room on a:0, and nobody is before it"),
    ],
)
def test_a_job_that_has_room_does_not_wait_for_memory(own_before: int, reason: WaitReason | None, words: str) -> None:
    """It waits for the jobs before it. The page says the same, without the device."""
    start = Start(devices=("a-0",), at_ms=LATER_MS)
    found = replace(EXPLANATION, higher=0, theirs=0, own_before=own_before, start=start)

    assert words == waits_in_brief(replace(WAITS, reason=reason), replace(FOUND, explanation=found))
    assert words.partition("; ")[2] == place_in_brief(found, " on a:0")
    assert "12 jobs before it" == place_in_brief(EXPLANATION)


def test_a_job_waits_for_its_reason_if_there_is_no_explanation() -> None:
    """The explanation is optional: the store may not answer."""
    assert "job 12 waits for memory, 30s so far" == waits_in_brief(WAITS, None, "30s")
    assert "job 12 waits for its turn" == waits_in_brief(replace(WAITS, reason=None), replace(FOUND, explanation=None))


def test_a_reservation_is_the_reason_only_if_there_is_room_without_it() -> None:
    """A reservation is the reason only if the device has room apart from it.

    Regression: a job that also lacked memory was told to wait for another job, which had ended long before.
    """
    reserved = [replace(verdict("a", index, Obstacle.RESERVED), reserved_for=3) for index in range(2)]
    lacks = [replace(each, obstacle=Obstacle.MEMORY) for each in reserved]
    both = replace(WAITS, spec=make_spec(gpus=2))

    def printed(job: Job, *devices: Verdict) -> str:
        return why_text(Why(job=job, explanation=replace(EXPLANATION, start=None, devices=devices), others=OTHERS))

    once = "there is room once job 3 (bob), for which devices are reserved, has started or gone"
    assert once in printed(WAITS, reserved[0], lacks[1])
    assert once in printed(both, *reserved)
    assert once not in printed(WAITS, *lacks)
    assert once not in printed(both, reserved[0], lacks[1])


def test_a_dropped_reservation_names_the_run_that_outlasted_it() -> None:
    """A job without a reservation learns which run did not end as expected.

    Regression: the output said when there is room, and not that other jobs go first.
    """
    start = Start(at_ms=None, devices=("GPU-0",), blockers=(3, 4), in_vain=(3,))

    printed = why_text(Why(job=WAITS, explanation=replace(EXPLANATION, start=start), others=OTHERS))

    assert (
        "nothing is reserved for it there before: the end of job 3 took too long, so the reservation was dropped; "
        "other jobs start there" in printed
    )


def test_every_obstacle_has_a_word() -> None:
    """``why`` ended with a traceback if a device that it only counts was excluded for the job."""
    assert set(Obstacle) == set(WORDS)


def test_a_closed_device_shows_its_reason() -> None:
    """A device in trouble has no slots. Regression: ``why`` said that it runs its maximum number of jobs: 0."""
    hot = "it is hot: 92 °C, and the limit for new jobs is 80 °C"
    closed = {f"a-{index}": replace(device("a", index), slots=0, trouble=hot) for index in range(2)}
    verdicts = tuple(verdict("a", index, Obstacle.SLOTS) for index in range(2))
    explanation = replace(EXPLANATION, start=None, devices=verdicts)

    printed = why_text(Why(job=WAITS, explanation=explanation, devices=closed))

    assert f"start  not before a:0 or a:1 takes jobs again: {hot}\n" in printed
    assert 2 == printed.count(f"  closed: {hot}")
    full = why_text(Why(job=WAITS, explanation=explanation, devices={"a-0": device("a", 0), "a-1": device("a", 1)}))
    assert 2 == full.count("it runs its maximum number of jobs: 0")
