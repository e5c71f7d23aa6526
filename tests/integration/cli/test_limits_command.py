"""Limits in the commands ``submit``, ``queue``, ``why`` and ``limits``."""

from __future__ import annotations

import json
from contextlib import closing

from factories import make_spec
from site_of_one import Site

from gpuqueue.model.limits import Limits
from gpuqueue.queue.connect import connect
from gpuqueue.system.account import current_account


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
