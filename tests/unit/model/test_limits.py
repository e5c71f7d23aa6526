"""Tests of a site's limits: parsing, storage and counting."""

from __future__ import annotations

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.model.limits import Bound, Limits
from gpuqueue.model.measures import AT_SUBMIT, OF_ONE_JOB, Limit, Measure, PoolLimits, Use
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB, MIB

MEMBERS = {"vision": ("ann", "bob")}
JOBS, GPUS, MEM, QUEUED, *_ = Measure


def test_a_users_own_figures_stand_for_those_of_everybody_one_by_one() -> None:
    """A user's own figure replaces the general figure of the same measure.

    `none` removes one limit. Other users have the general limits.
    """
    limits = Limits.parse(
        "*: running_gpus=4 queued_jobs=100\nann: running_gpus=8/refuse; eve: queued_jobs=none", "", {}
    )

    assert {
        "*": {GPUS: Limit(4), QUEUED: Limit(100, refuses=True)},
        "ann": {GPUS: Limit(8, refuses=True), QUEUED: Limit(100, refuses=True)},
        "eve": {GPUS: Limit(4)},
    } == limits.users


def test_a_submit_meets_limits_without_a_setting() -> None:
    """Each user has limits that only a submit meets. A site changes each of them, for all users or for one.

    They are apart from the others, which a claim reads. Those who have no entry of their own have those of everybody.
    """
    default = Limits.parse("", "", {})
    limits = Limits.parse("*: open_jobs=50 arguments=none; ann: environment=1M; eve: running_gpus=2", "", {})

    assert ({}, {"*": AT_SUBMIT}) == (default.users, default.submits)
    everybody = {each: limit for each, limit in AT_SUBMIT.items() if each is not Measure.ARGUMENTS}
    everybody |= {Measure.OPEN_JOBS: Limit(50, refuses=True)}
    assert {
        "*": everybody,
        "ann": {**everybody, Measure.ENVIRONMENT: Limit(MIB, refuses=True)},
    } == limits.submits
    assert ({GPUS: Limit(2)}, {}) == (limits.users["eve"], limits.users["*"])
    assert limits == Limits.from_fields(limits.to_fields())
    assert {"open_jobs", "open_bytes", "array_members", "arguments", "environment"} == {
        each.value for each in AT_SUBMIT
    }
    assert Limits() == Limits.from_fields({}), "a store without rules has none"


def test_a_pool_has_defaults_and_maxima() -> None:
    """A pool has defaults and maximums. A maximum time without a default time is also the default."""
    limits = Limits.parse("", "big: max_time=2d max_mem=40G max_gpus=2; *: default_time=4h default_mem=1G", {})

    big = PoolLimits(max_mem_bytes=40 * GIB, default_time_s=172800.0, max_time_s=172800.0, max_gpus=2)
    assert big == limits.of_pool("big")
    assert PoolLimits(default_mem_bytes=GIB, default_time_s=14400.0) == limits.of_pool("") == limits.of_pool("other")
    assert PoolLimits() == Limits().of_pool("big")


@pytest.mark.parametrize(
    ("limits", "pools", "words"),
    [
        ("ann", "", "'ann' is no limit: write ann: running_gpus=4"),
        ("ann:", "", "'ann:' is no limit"),
        ("a b: running_gpus=1", "", "is no limit"),
        ("ann: running_gpus", "", "'running_gpus' is no limit of ann: write it like running_gpus=4"),
        ("ann: gpus=4", "", "'gpus' is no limit: choose from running_jobs"),
        (
            "ann: running_gpus=-1",
            "",
            "running_gpus: '-1' is no valid number: write one from 0 to",
        ),
        ("ann: running_gpus=many", "", "running_gpus: 'many' is no valid number"),
        ("ann: running_mem=200", "", "'200' is not a size: add the unit"),
        ("ann: running_gpus=4/ask", "", "a job beyond a limit waits, or is refused with 4/refuse"),
        ("ann: queued_jobs=4/wait", "", "queued_jobs cannot wait"),
        ("*: open_jobs=4/wait", "", "open_jobs cannot wait"),
        ("@vision: arguments=4K", "", "arguments limits each user, not the group vision"),
        ("*: environment=4", "", "environment: "),
        ("ann: running_gpus=4 running_gpus=5", "", "running_gpus is limited twice for ann"),
        ("ann: running_gpus=4; ann: running_jobs=5", "", "ann is named twice"),
        ("@nlp: running_gpus=4", "", "the group nlp has a limit and no members: name them in groups"),
        ("", "big: max_jobs=4", "'max_jobs' is no limit of a pool: choose from default_mem"),
        ("", "big: max_gpus=0", "max_gpus must be at least 1"),
        ("", "big: max_time=5", "'5' is not a duration: add the unit"),
        ("", "big: max_mem=4G default_mem=8G", "pool big: default_mem is above max_mem"),
        ("", "big: max_time=1h default_time=2h", "pool big: default_time is above max_time"),
    ],
)
def test_what_is_no_limit_is_refused_in_one_line(limits: str, pools: str, words: str) -> None:
    """An invalid limit is refused in one line that says what is wrong and what to write."""
    with pytest.raises(BadRequest) as refused:
        Limits.parse(limits, pools, MEMBERS)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_setting_that_cannot_be_read_is_named() -> None:
    """The error names the setting and its origin. The groups may come from another setting."""
    environ = {"GPUQUEUE_CONFIG": "/dev/null", "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_LIMITS": "@nlp: running_gpus=4"}

    with pytest.raises(BadRequest, match=r"setting limits \(environment GPUQUEUE_LIMITS\): the group nlp has a limit"):
        Settings.load(environ)
    found = Settings.load({**environ, "GPUQUEUE_GROUPS": "nlp: eve"}).site_limits()
    assert {"nlp": {GPUS: Limit(4)}} == found.groups


def test_the_store_returns_the_limits_that_it_was_given() -> None:
    """Limits survive the store. Unreadable fields in the store are skipped."""
    limits = Limits.parse(
        "*: running_mem=20G queued_jobs=9; @vision: running_jobs=3/refuse; eve: running_gpus=none",
        "big: max_time=90s max_mem=40G max_gpus=2; *: default_mem=1G",
        {**MEMBERS, "idle": ("zoe",)},
    )

    assert limits == Limits.from_fields(limits.to_fields())
    assert Limits() == Limits.from_fields({})
    assert {"ann": {JOBS: Limit(2)}} == Limits.from_fields({"user:ann": "running_jobs=2 x=4 running_gpus=y"}).users


def test_the_first_limit_in_the_way_is_reported() -> None:
    """The first reached limit is returned, the user's before the group's.

    All members of a group share the group's limit.
    """
    limits = Limits.parse("*: running_jobs=2; @vision: running_gpus=4", "", MEMBERS)
    uses = {"ann": Use(running_jobs=1, running_gpus=1), "bob": Use(running_jobs=2, running_gpus=2)}
    one = Use(running_jobs=1, running_gpus=1)

    assert limits.over("ann", one, uses) is None
    assert Bound(whose="bob", measure=JOBS, limit=Limit(2), used=2) == limits.over("bob", one, uses)
    over = limits.over("ann", Use(running_jobs=1, running_gpus=2), uses)
    assert Bound(whose="@vision", measure=GPUS, limit=Limit(4), used=3) == over
    assert limits.over("eve", Use(running_jobs=1, running_gpus=64), uses) is None
    assert limits.over("ann", Use(running_jobs=1), {}) is None


def test_everybody_is_shown_with_what_is_used() -> None:
    """The list has the named users, the users with running jobs, the groups, the general limits, and the defaults."""
    limits = Limits.parse(
        "*: running_jobs=2; eve: running_mem=1G running_jobs=none; @vision: running_gpus=4", "", MEMBERS
    )

    found = [(each.whose, each.measure, each.used) for each in limits.bounds({"ann": Use(running_jobs=1)})]

    shown = [("ann", JOBS, 1), ("eve", MEM, 0), ("@vision", GPUS, 0), ("*", JOBS, 0)]
    assert [*shown, *(("*", each, None if each in OF_ONE_JOB else 0) for each in AT_SUBMIT)] == found
