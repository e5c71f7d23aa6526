from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest
from factories import make_spec

from gpuqueue.clock import from_iso
from gpuqueue.codec.request import decode_spec, encode_spec
from gpuqueue.errors import BadRequest, JobNotFound
from gpuqueue.model import times, validation
from gpuqueue.model.dependencies import Condition, Dependency, Waits
from gpuqueue.model.retries import Retries, RetryOn
from gpuqueue.text.units import GIB

NOW = datetime(2026, 11, 1, 15, 0, tzinfo=timezone.utc).astimezone()


def test_a_time_to_begin_is_written_in_many_ways() -> None:
    """A begin time is a delay from now, a time of day, or a date in local time."""
    two_hours = NOW + timedelta(hours=2)
    assert two_hours == times.begin("2h", now=NOW) == times.begin("now+2h", now=NOW)
    in_a_minute = NOW + timedelta(minutes=1)
    assert in_a_minute == times.begin(in_a_minute.strftime("%H:%M"), now=NOW)
    a_minute_ago = NOW - timedelta(minutes=1)
    tomorrow = times.begin(a_minute_ago.strftime("%H:%M"), now=NOW)
    assert tomorrow is not None
    assert timedelta(hours=22) < tomorrow - NOW < timedelta(hours=25)
    assert datetime(2026, 12, 24).astimezone() == times.begin("2026-12-24", now=NOW)
    assert datetime(2026, 12, 24, 8, tzinfo=timezone.utc) == times.begin("2026-12-24T08:00+00:00", now=NOW)


@pytest.mark.parametrize(
    ("text", "awaited"),
    [
        ("fri 18:00", "2026-11-06T18:00"),
        ("Monday", "2026-11-02"),
        ("sun 6pm", "2026-11-01T18:00"),  # today is a Sunday, and this is later
        ("sun 14:00", "2026-11-08T14:00"),
    ],
)
def test_a_weekday_is_the_next_one_in_local_time(text: str, awaited: str) -> None:
    now = from_iso("2026-11-01T15:00").astimezone()

    assert from_iso(awaited).astimezone() == times.begin(text, now=now)


def test_a_weekday_keeps_its_time_of_day_over_the_end_of_summer_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        friday = datetime(2026, 10, 23, 9, tzinfo=timezone.utc)
        assert datetime(2026, 10, 26, 7, tzinfo=timezone.utc) == times.begin("mon 08:00", now=friday)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "awaited"), [("2027-03-28 02:30", "2027-03-28T01:30Z"), ("2027-10-31 02:30", "2027-10-31T00:30Z")]
)
def test_a_time_that_the_clocks_leave_out_is_after_their_change(
    text: str, awaited: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an hour before, so a job started before its time. One that comes twice is the first."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert from_iso(awaited) == times.begin(text, now=NOW)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("past", ["now", "none", "2020-01-01", NOW - timedelta(days=1), None])
def test_what_has_been_means_at_once(past: object) -> None:
    """A time in the past means now, as in Slurm."""
    assert times.begin(past, now=NOW) is None


@pytest.mark.parametrize(
    "strange",
    ["", "soon", "24:00", "16:60", "16h30", "now+", "-2h", "9999999999h", "2036-12-01", 5, datetime(2030, 1, 1)],  # noqa: DTZ001 - naive on purpose
)
def test_what_is_no_time_is_refused(strange: object) -> None:
    """An invalid time raises `BadRequest`."""
    with pytest.raises(BadRequest):
        times.begin(strange, now=NOW)


def test_dependencies_are_written_in_many_ways() -> None:
    """Dependencies are one or many, as numbers or text. A repeated dependency counts once."""
    assert (
        (Dependency(12),)
        == validation.dependencies(12)
        == validation.dependencies("12")
        == validation.dependencies(["12:ok", 12])
    )
    wanted = (Dependency(12, Condition.ANY), Dependency(13, Condition.FAIL))
    assert wanted == validation.dependencies("12:any,13:fail") == validation.dependencies(["12:any", "13:fail"])
    for strange in ("", "0", "12:", ":ok", "12,", 0, True, [None], b"12", "9" * 17):
        with pytest.raises((BadRequest, JobNotFound)):
            validation.dependencies(strange)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("afterok:1", "did you mean --after 1?"),
        ("afterok:1:2", "did you mean --after 1,2?"),
        ("afterany:1,afternotok:2:3", "did you mean --after 1:any,2:fail,3:fail?"),
        ("aftercorr:1", "did you mean --after 1:corr?"),
        ("after:1+5", "not for its start: --after 12:any"),
        ("singleton", "--dedupe KEY"),
        ("afterok:1,singleton", "--dedupe KEY"),
        ("afterok", "write --after 12, or 12:ok"),
        ("afterok:1_2", "write --after 12, or 12:ok"),
        ("afterok:1?afterany:2", "write --after 12, or 12:ok"),
        ("expand:1", "write --after 12, or 12:ok"),
    ],
)
def test_a_dependency_of_slurm_is_refused_with_what_to_type(typed: str, meant: str) -> None:
    """A line from a script for sbatch names the same jobs in other words."""
    with pytest.raises(BadRequest, match=r" is no job to wait for: ") as refused:
        validation.dependencies(typed)

    assert meant in str(refused.value)


def test_a_spec_keeps_its_waits_and_retries() -> None:
    """A spec keeps its waits and retries through the codec."""
    waits = Waits(after=(Dependency(3, Condition.FAIL),), begin_at=NOW, hold=True, dedupe="k")
    spec = make_spec(waits=waits, retries=Retries(times=2, on=(RetryOn.OUT_OF_MEMORY,)))

    assert spec == decode_spec(encode_spec(spec))
    assert "waits" not in encode_spec(make_spec())


@pytest.mark.parametrize(
    "changes",
    [
        {"after": [3]},
        {"after": (3,)},
        {"after": (Dependency(3), Dependency(3, Condition.ANY))},
        {"after": tuple(Dependency(each) for each in range(1, 1002))},
        {"begin_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - naive on purpose
        {"begin_at": "2h"},
        {"hold": 1},
        {"dedupe": ""},
        {"dedupe": 5},
    ],
)
def test_waits_that_nothing_could_keep_are_refused(changes: dict[str, object]) -> None:
    """Invalid waits are refused before anything is queued."""
    with pytest.raises(BadRequest):
        Waits(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"times": -1}, {"times": True}, {"times": 1.0}, {"times": 101}, {"on": ()}, {"on": ("lost",)}]
)
def test_retries_that_nobody_could_count_are_refused(changes: dict[str, object]) -> None:
    """Invalid retries are refused before anything is queued."""
    with pytest.raises(BadRequest):
        Retries(**{"times": 1, **changes})  # type: ignore[arg-type]


def test_memory_without_a_unit_is_not_taken_for_bytes() -> None:
    """``mem=6`` in Python asked 6 bytes, so any number of jobs fitted on one card."""
    with pytest.raises(BadRequest, match="write a unit, such as '6G'"):
        validation.mem_bytes(6)
    assert 6 * GIB == validation.mem_bytes(6 * GIB)
