"""Limits in the commands ``submit``, ``queue``, ``why`` and ``limits``."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from factories import make_spec, must_claim, serve
from site_of_one import Site

from gpuqueue.model.limits import Limits
from gpuqueue.queue.connect import connect
from gpuqueue.system.account import current_account
from gpuqueue.text.units import GIB


@pytest.mark.full
def test_every_command_shows_the_limits(site: Site) -> None:
    """``limits`` shows the use of each limit by user or group, and ``why`` shows the limit that a job waits for."""
    queue = site.queue
    serve(queue)
    members = {"lab": ("ada", "bob")}
    queue.rules.set_limits(
        Limits.parse("*: running_mem=2G queued_jobs=9; @lab: running_jobs=5", "big: max_time=1h", members)
    )
    for _ in range(3):
        queue.requests.submit(make_spec())
    must_claim(queue), must_claim(queue)
    site.make_tables()

    shown = site.cli("limits").stdout.splitlines()
    reported = json.loads(site.cli("limits", "--json").stdout)
    why = site.cli("why", "3").stdout
    explained = json.loads(site.cli("why", "3", "--json").stdout)

    assert ["ada", "running_mem", "2G", "2G", "waits"] == shown[1].split()
    assert ["ada", "queued_jobs", "1", "9", "is", "refused"] == shown[2].split()
    assert ["@lab", "running_jobs", "2", "5", "waits"] == shown[3].split()
    assert ["ada", "open_jobs", "3", "10000", "is", "refused"] == shown[4].split()
    assert ["ada", "open_bytes"] == shown[5].split()[:2]
    assert ["everybody", "else", "running_mem", "0", "2G", "waits"] == shown[6].split()
    assert ["big", "-", "-", "1:00:00", "1:00:00", "-"] == shown[-1].split()
    assert ("ada", 2 * GIB) == (reported["bounds"][0]["whose"], reported["bounds"][0]["used"])
    assert {"big": 3600.0} == {pool: each["max_time_s"] for pool, each in reported["pools"].items()}
    words = "limit  ada has 2G of 2G in use (running_mem), and this job asks for 1G: job 1 (ada), job 2 (ada)"
    assert words in why
    assert "it has room, and a limit leaves none: see above" in why
    assert "start  unknown: there is room under the limit once job 1 has ended, and it has no time limit" in why
    assert [1, 2] == explained["explanation"]["limits"][0]["runs"]
    assert "limit" == site.cli("queue").stdout.splitlines()[-1].split()[-1]


def test_the_limits_of_every_site_show_their_use(site: Site) -> None:
    """The user with jobs has a number, and so have all others: 0. Only sizes of one job have none."""
    site.queue.rules.set_limits(Limits.parse("eve: array_members=5", "", {}))
    for _ in range(3):
        site.queue.requests.submit(make_spec())
    site.cli("submit", "--mem", "1G", "--array", "0-6", "--", "true")
    me = current_account(site.settings.host).name

    limits = json.loads(site.cli("limits", "--json").stdout)["bounds"]

    used = {(each["whose"], each["measure"]): each["used"] for each in limits}
    assert (3, 1, 7) == (used["ada", "open_jobs"], used[me, "open_jobs"], used[me, "array_members"])
    with closing(connect(site.settings.redis_url)) as store:
        sizes = [store.strlen(f"{{gq}}:s:{number}") for number in (1, 2, 3, 4)]
    assert (sum(sizes[:3]), sizes[3]) == (used["ada", "open_bytes"], used[me, "open_bytes"])
    assert {"open_jobs": 0, "open_bytes": 0, "array_members": 0, "arguments": None, "environment": None} == {
        measure: amount for (whose, measure), amount in used.items() if whose == "*"
    }
    assert (0, None) == (used["eve", "array_members"], used["eve", "arguments"])
    assert ("ada", "array_members") not in used


def test_a_site_without_limits_says_so(site: Site) -> None:
    """A site without limits gives one line."""
    assert (
        'there are no limits: set limits or pool_limits, such as limits = "ada: running_jobs=4"\n'
        == site.cli("limits").stdout
    )


def test_a_pool_gives_a_job_its_memory(site: Site) -> None:
    """A pool's default memory applies if neither the job nor the settings have one.

    Without a default it is required.
    """
    serve(site.queue)
    site.queue.rules.set_limits(Limits.parse("", "*: default_mem=2G max_mem=4G", {}))

    job_id = site.cli("submit", "--", "true").stdout.strip()
    refused = site.cli("submit", "--mem", "8G", "--", "true", check=False)

    assert 2 * GIB == json.loads(site.cli("queue", "--json").stdout)["jobs"][0]["spec"]["mem_bytes"]
    assert "1" == job_id
    assert 5 == refused.returncode
    assert "8G on a device asked for, and a job without a pool may have 4G (limit max_mem)" in refused.stderr
    site.queue.rules.set_limits(Limits())
    assert "give the device memory that the job needs" in site.cli("submit", "--", "true", check=False).stderr
