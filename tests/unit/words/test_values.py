"""What a job asks for, and which code a retry runs, in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from factories import make_spec

from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job_spec import Checkout
from gpuqueue.model.placement import Placement
from gpuqueue.text.units import GIB
from gpuqueue.words.values import (
    asked_in_words,
    checkout_of,
    code_of_retry,
    in_zone,
    more_mem_in_words,
    retried_in_words,
    use_in_words,
    when,
)

SNAPSHOT = f"{'ab' * 32}:."


def test_times_of_the_hour_that_comes_twice_have_their_offset() -> None:
    """In Berlin clocks go back at 3:00 of that night. Other times, also those of the spring, have none."""
    night = datetime(2026, 10, 25, tzinfo=timezone.utc)
    with in_zone(ZoneInfo("Europe/Berlin")):
        shown = [when(night + timedelta(minutes=minutes)) for minutes in (-1, 30, 90, 120)]
        spring = [when(datetime(2026, 3, 29, hour, 30, tzinfo=timezone.utc)) for hour in (0, 1)]

    assert ["01:59:00", "02:30:00 +0200", "02:30:00 +0100", "03:00:00"] == [each[11:] for each in shown]
    assert ["01:30:00", "03:30:00"] == [each[11:] for each in spring]


def test_what_a_job_asks_for_is_one_sentence() -> None:
    """The memory and the devices, and what is unusual: the pool, a memory that is no limit."""
    assert "1G on 1 device" == asked_in_words(make_spec(mem_bytes=GIB))
    placement = Placement(exclusive=True, models=("A100", "H100"))
    large = make_spec(mem_bytes=20 * GIB, gpus=2, device=DeviceFilter.GPU, placement=placement, pool="big", cap=False)
    words = "20G on each of 2 GPUs, alone there, of type A100 or H100, in pool big, and it may use more"
    assert words == asked_in_words(large)


def test_a_device_that_a_job_names_has_its_name() -> None:
    spec = make_spec(mem_bytes=GIB, placement=Placement(devices=("GPU-a", "GPU-b")))
    assert "1G on 1 device, among nodeA:0, GPU-b" == asked_in_words(spec, {"GPU-a": "nodeA:0"})


def test_a_job_alone_on_its_device_may_use_all_of_it() -> None:
    """Regression: an exclusive job had "the most it may use"."""
    terms: list[dict[str, Any]] = [{}, {"cap": False}, {"placement": Placement(exclusive=True)}]
    words = [use_in_words(make_spec(mem_bytes=GIB, **each)) for each in terms]
    ends = ("the most it may use", "may use more", "alone on its device")
    assert [f"asked for 1G, {each}" for each in ends] == words


def test_a_retry_says_what_it_makes() -> None:
    """A job, or an array of the members that failed. More memory is said with both sizes."""
    array = Array(indexes=Indexes.parse("3,7"))
    assert "becomes a new job of yours." in retried_in_words(make_spec(), 4)
    assert retried_in_words(make_spec(array=array), 4).startswith("The 2 failed members of array 4 become a new array")
    one = replace(array, indexes=Indexes.parse("3"))
    assert retried_in_words(make_spec(array=one), 4).startswith("The failed member of array 4 becomes a new array")
    assert "It ran out of memory with 2G, so 6G is in the field now." == more_mem_in_words(2 * GIB, 6 * GIB)


def test_a_checkout_has_its_branch_and_its_state() -> None:
    """Also without a branch, or if git did not answer in time."""
    commit = "3442fefc16a1" + "0" * 28
    assert "3442fefc16a1 on main, nothing changed" == checkout_of(Checkout(commit=commit, branch="main", dirty=False))
    assert "3442fefc16a1, changes not known" == checkout_of(Checkout(commit=commit))


def test_a_retry_says_which_code_it_runs() -> None:
    """The directory as it is now, or the copy that was kept, and how changed code is run."""
    here, kept, sent = (
        code_of_retry(make_spec(cwd=cwd, snapshot=snapshot))
        for cwd, snapshot in (("/home/ada/vit", None), ("/home/ada/vit", SNAPSHOT), ("/", SNAPSHOT))
    )
    assert here.startswith("It runs the files in /home/ada/vit as they are when it starts")
    assert kept.endswith("to run changed code, type gpuqueue submit in its directory.")
    assert sent.endswith("to run changed code, submit it as a new script.")
