from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from factories import make_spec

from gpuqueue.cli.output.job_story import _notification_lines, _pause, code_lines, memory_line, story
from gpuqueue.model.device import Timeline
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.notification import FIRST_BEFORE_END, Delivery, Notification, Outcome, When, first_about
from gpuqueue.model.run import Record, Run, RunDevice
from gpuqueue.model.run_mark import RunMark
from gpuqueue.words.values import when


def test_a_line_of_memory_is_as_long_as_the_run() -> None:
    """The memory line is as long as the run, and blank where no sample exists.

    Regression: a line that ended early looked like a run that ended early.
    """
    device = RunDevice(uuid="GPU-1", lease_bytes=8, timeline=Timeline(step_s=1.0, bytes=(4, 8, None, 4)))

    assert "memory ▄█ ▄ over 4.0s" == memory_line(device)
    assert "memory ▄█ ▄   over 6.0s" == memory_line(device, 6.2)
    assert "" == memory_line(RunDevice(uuid="GPU-1", lease_bytes=8), 6.2)


def test_a_memory_line_has_no_gap_between_two_samples() -> None:
    """The memory line has no gap between two samples.

    Regression: after a change from ten samples a second to one, every other block of a short run was blank.
    """
    steps = (None, 4, 8, None, None, 4, *[None] * 5, 8)
    device = RunDevice(uuid="GPU-1", lease_bytes=8, timeline=Timeline(step_s=0.4, bytes=steps))

    assert "memory  ▄███▄     █ over 4.8s" == memory_line(device)


def test_samples_in_quick_succession_have_a_time_between_them() -> None:
    """The interval of frequent samples is shown in milliseconds.

    Regression: 21 samples in a second were "every 0.0s".
    """
    assert ["48ms", "0.2s", "5.0s"] == [_pause(each) for each in (0.048, 0.2, 5.0)]


NOW = datetime(2026, 11, 24, tzinfo=timezone.utc)


def test_each_notification_is_shown_with_its_outcome() -> None:
    """`show` lists the outcome of each notification; one that is pending and was never tried has none."""
    job = Job(
        id=1,
        spec=make_spec(notifications=tuple(Notification(to, When.FAIL) for to in ("a", "b", "c", "d", "json://h/x"))),
        state=JobState.SUCCEEDED,
        submitted_at=NOW,
    )
    reported = (
        Delivery(number=0, tries=1, outcome=Outcome.SENT, at=NOW),
        Delivery(number=1, outcome=Outcome.NOT_NEEDED, at=NOW),
        Delivery(number=2, tries=1, trouble="HTTP 500"),
        Delivery(number=3, tries=5, outcome=Outcome.GIVEN_UP, at=NOW, trouble="no route"),
    )

    printed = _notification_lines(Record(job=job, runs=(), reported=reported))

    assert [
        f"  on fail    a: sent {when(NOW)}",
        "  on fail    b: not needed",
        "  on fail    c: not sent yet after 1 try: HTTP 500",
        "  on fail    d: given up after 5 tries: no route",
        "  on fail    json://…",
    ] == printed


def test_what_runs_the_job_is_shown() -> None:
    """`show` names the environment, and the snapshot with the directory in it."""
    spec = make_spec(environment="torch-2.6", snapshot=f"{'a' * 64}:src")

    assert ["  python     environment torch-2.6", f"  code       a copy of its own, snapshot {'a' * 12}, in src"] == [
        *code_lines(spec)
    ]
    assert [] == code_lines(make_spec())


def test_the_files_to_keep_are_shown() -> None:
    """`show` names the patterns of the files to keep, in one line that a terminal survives."""
    spec = make_spec(snapshot=f"{'0' * 64}:.", keep=("results/**", "!*.tmp"))
    printed = story(Record(job=Job(id=1, spec=spec, state=JobState.QUEUED, submitted_at=NOW), runs=()))

    assert "  keep       results/**  !*.tmp" in printed.splitlines()
    assert "  keep" not in story(
        Record(job=Job(id=1, spec=make_spec(), state=JobState.QUEUED, submitted_at=NOW), runs=())
    )


def test_an_idle_run_is_shown_with_its_notification() -> None:
    """`show` says since when a run is idle, and whether the owner was notified."""
    job = Job(
        id=1,
        spec=make_spec(notifications=(Notification("team"),)),
        state=JobState.RUNNING,
        submitted_at=NOW,
        marks=(RunMark(kind="idle", since=NOW),),
    )
    sent = Delivery(number=FIRST_BEFORE_END, tries=1, outcome=Outcome.SENT, at=NOW)

    lines = story(Record(job=job, reported=(Delivery(number=0), sent))).splitlines()

    assert f"  idle       since {when(NOW)}: it does not use its devices" in lines
    assert ["  on end     team", f"  on idle    team: sent {when(NOW)}"] == [each for each in lines if "team" in each]


def test_marks_are_shown_with_their_times_and_notifications() -> None:
    """Of a run that goes on those that are over are at the run; of one that has ended all are."""
    sent = Delivery(number=first_about("nan", 1), tries=1, outcome=Outcome.SENT, at=NOW)
    later = NOW + timedelta(minutes=5)
    now = RunMark(kind="nan", since=NOW, what="loss is NaN")
    over = RunMark(kind="stalled", since=NOW, until=later)
    job = Job(
        id=1,
        spec=make_spec(notifications=(Notification("team"),), stop_on_nan=True, stop_when_stalled_s=1800.0),
        state=JobState.RUNNING,
        submitted_at=NOW,
        attempt=1,
        marks=(now,),
    )
    run = Run(job_id=1, attempt=1, token="1.a", host="a", worker="a/0/1", devices=(), claimed_at=NOW, marks=(now, over))

    def lines_with(word: str, record: Record) -> list[str]:
        return [line for line in story(record).splitlines() if line.startswith(f"  {word} ")]

    goes_on = Record(job=job, runs=(run,), reported=(sent,))
    past = f"  marked     it writes no output and does not use its devices, from {when(NOW)} to {when(later)}"
    assert [f"  nan        since {when(NOW)}: loss is NaN"] == lines_with("nan", goes_on)
    assert [past] == lines_with("marked", goes_on)
    assert [f"  on nan     team: sent {when(NOW)}"] == lines_with("on nan", goes_on)
    (rules,) = lines_with("stops", goes_on)
    assert "  stops      once a metric is no number or after 30:00 without output and use of its devices" == rules
    ended = replace(goes_on, job=replace(job, state=JobState.FAILED, marks=()))
    assert [f"  marked     loss is NaN, from {when(NOW)} to the end", past] == lines_with("marked", ended)


def test_limits_of_the_host_are_shown() -> None:
    """`show` has a line with the limits of a job, and none if it has none."""

    def limits(**asked: float) -> list[str]:
        job = Job(id=1, spec=make_spec(**asked), state=JobState.QUEUED, submitted_at=NOW)
        return [line for line in story(Record(job=job, runs=())).splitlines() if line.startswith("  limits")]

    assert ["  limits     at most 4 processors, 32G of host memory"] == limits(cpus=4, cpu_mem_bytes=32 * 2**30)
    assert [] == limits()


def test_the_request_names_the_expected_utilisation() -> None:
    """`show` says how much a job is expected to use its device, if that is known."""
    lines = []
    for expected in (0.634, None):
        job = Job(id=1, spec=make_spec(expected_utilisation=expected), state=JobState.QUEUED, submitted_at=NOW)
        lines.append(next(line for line in story(Record(job=job)).splitlines() if "asked" in line))

    assert ["  asked      1G on 1 device, expected to be busy 63 % of the time", "  asked      1G on 1 device"] == [
        line.partition(", priority")[0] for line in lines
    ]
