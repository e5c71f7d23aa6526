"""The times of repeating jobs: expressions of cron in time zones, also where clocks change."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from gpuqueue.client import cron_times
from gpuqueue.client.cron_times import local_zone, next_time, passed, read_times, zone_of
from gpuqueue.errors import BadRequest

BERLIN = "Europe/Berlin"


def moment(text: str) -> datetime:
    """Return the time *text* in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def following(times: str, after: str, count: int, zone: str = BERLIN) -> list[str]:
    """Return the next *count* times, as the clocks of *zone* show them."""
    found, last = [], moment(after)
    for _ in range(count):
        each = next_time(times, zone, last)
        assert each is not None
        assert each > last
        found.append(each.astimezone(zone_of(zone)).strftime("%m-%d %H:%M %z"))
        last = each
    return found


def test_a_time_in_the_hour_that_is_skipped_comes_right_after_it_and_once() -> None:
    """On 29 March 2026 clocks go from 2:00 to 3:00. Two times in the gap would come at the same moment: one is left."""
    assert ["03-29 03:00 +0200", "03-30 02:30 +0200"] == following("30 2 * * *", "2026-03-28T12:00", 2)
    assert ["03-29 03:00 +0200", "03-30 02:00 +0200"] == following("0,30 2 * * *", "2026-03-28T12:00", 2)


@pytest.mark.parametrize("now", ["2026-10-24T22:00", "2026-10-25T00:10"])
def test_a_time_in_the_hour_that_comes_twice_comes_once(now: str) -> None:
    """On 25 October 2026 the hour from 2:00 to 3:00 comes twice in Berlin: the first one counts."""
    assert ["10-25 02:30 +0200", "10-26 02:30 +0100"] == following("30 2 * * *", now, 2)


def test_in_the_second_one_of_the_two_hours_the_next_time_is_that_of_the_next_day() -> None:
    """The library gives a time that has passed there."""
    assert ["10-26 02:30 +0100"] == following("30 2 * * *", "2026-10-25T01:10", 1)


def test_times_of_each_hour_follow_the_real_hours() -> None:
    """What repeats within a day is not skipped and not left out, as in Debian's cron."""
    autumn = ["10-25 01:00 +0200", "10-25 02:00 +0200", "10-25 02:00 +0100", "10-25 03:00 +0100"]
    spring = ["03-29 01:00 +0100", "03-29 03:00 +0200"]

    assert autumn == following("0 * * * *", "2026-10-24T22:30", 4)
    assert spring == following("0 * * * *", "2026-03-28T23:30", 2)


def test_words_stand_for_expressions() -> None:
    assert {"@daily": "0 0 * * *", "@Weekly": "0 0 * * 0"} == {each: read_times(each) for each in ("@daily", "@Weekly")}
    assert read_times("  */15  8-18 * * mon-fri ") == "*/15 8-18 * * mon-fri"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("@reboot", "there are @hourly"),
        ("1 2 3", "in quotes"),
        ("", "in quotes"),
        ("* * * * * *", "in quotes"),
        ("61 * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 * 2 mon#5,x", "bad day-of-week"),
    ],
)
def test_what_is_no_time_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why) as refused:
        read_times(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["Europe/Nowhere", "../../etc/passwd", "/etc/passwd", "", "x" * 300, "Europe/Ber\0lin"]
)
def test_a_zone_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="knows no time zone"):
        zone_of(name)


def test_the_zone_of_the_machine_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name, or with one that nobody knows, it is UTC."""
    found = {}
    for name in (":Asia/Tokyo", "Etc/UTC", "Nowhere/At All"):
        monkeypatch.setenv("TZ", name)
        found[name] = local_zone()

    assert {":Asia/Tokyo": "Asia/Tokyo", "Etc/UTC": "UTC", "Nowhere/At All": "UTC"} == found


def test_passed_times_are_counted_and_the_last_two_are_known() -> None:
    first, now = moment("2026-11-02T10:00"), moment("2026-11-02T13:30")

    assert (4, moment("2026-11-02T13:00"), moment("2026-11-02T12:00")) == passed("0 * * * *", "UTC", first, now)
    assert (1, first, None) == passed("0 * * * *", "UTC", first, first + timedelta(minutes=1))


def test_beyond_the_most_that_is_counted_the_last_time_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cron_times, "MAX_COUNTED", 5)
    first, now = moment("2026-01-01T00:00"), moment("2026-11-02T13:30")

    count, last, before = passed("0 3 * * *", "UTC", first, now)

    assert (5, moment("2026-11-02T03:00"), moment("2026-11-01T03:00")) == (count, last, before)
