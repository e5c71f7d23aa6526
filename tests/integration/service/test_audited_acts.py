"""What the audit log of a service says about each act: what was changed, and what an admin has read of others."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from bounded import until
from event_stream import events, first
from factories import make_device, make_offer, make_spec, must_claim, serve
from service_fixtures import ServedSite, ask, mine, serving

from gpuqueue.client import Client
from gpuqueue.client.edit import change_of
from gpuqueue.errors import BadRequest, GpuQueueError, Refused
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.array import Array
from gpuqueue.model.audit import AuditEntry, AuditOutcome, AuditQuery
from gpuqueue.model.job_request import JobEdit
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.retries import Retries
from gpuqueue.service.routes.changes import differences

#: A value of each field of an edit that changes the request of :func:`before`.
CHANGES: Mapping[str, Any] = {
    "mem": "9G",
    "gpus": 2,
    "device": ["GPU-1"],
    "device_type": "A100",
    "exclusive": True,
    "preference": "spread",
    "time_limit": "3h",
    "signal": "USR1@60",
    "name": "other",
    "priority": "high",
    "pool": "night",
    "after": "7",
    "begin": "2027-01-01T10:00:00+00:00",
    "retries": 4,
    "retry_on": ["lost"],
    "mem_retries": 1,
    "at_once": 3,
    "cpus": 2,
    "cpu_mem": "3G",
    "on_end": ["ann@example.org"],
    "on_fail": ["bob@example.org"],
}

#: The end of a device.
NEXT_YEAR = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=365)


@pytest.fixture
def served() -> Iterator[ServedSite]:
    """Return a site whose devices are silent after a moment. Nobody but admins drains devices."""
    with serving(GPUQUEUE_ACCESS="", GPUQUEUE_HEARTBEAT="0.1s") as site:
        yield site


def the(
    site: ServedSite, action: str, count: int = 1, outcomes: Collection[AuditOutcome] = tuple(AuditOutcome)
) -> list[AuditEntry]:
    """Return the entries of *action* with one of *outcomes*, the oldest first, as soon as there are *count*."""
    with closing(HistoryDatabase(site.settings.database_url)) as database:

        def found() -> list[AuditEntry] | None:
            entries = [each for each in database.audit_entries(AuditQuery(action=action)) if each.outcome in outcomes]
            return entries[::-1] if len(entries) >= count else None

        return until(found, what=f"{count} entries of {action}") or []


def test_everybody_may_reserve_for_oneself_within_a_budget_if_the_site_says_so() -> None:
    """By default only admins reserve. Nobody else reserves for others, or cancels what is of others."""
    closed = {"GPUQUEUE_ACCESS": ""}
    opened = {"GPUQUEUE_ACCESS": "reserve=everybody", "GPUQUEUE_RESERVE_HOURS": "4"}
    with (
        serving(**closed) as site,
        site.client("https", "bobs") as bob,
        pytest.raises(Refused, match="only an administrator of this site may reserve devices"),
    ):
        bob.devices.reserve("GPU-0", until="1h")
    with serving(**opened) as site, site.client("https", "bobs") as bob, site.client("unix") as admin:
        with pytest.raises(Refused, match="may reserve for others"):
            bob.devices.reserve("GPU-0", until="1h", users=["eve"])
        with pytest.raises(Refused, match="you have no device-hours reserved, and may have 4 at a time"):
            bob.devices.reserve("GPU-0", until="5h")
        of_admin = admin.devices.reserve("GPU-0", until="9h", users=["eve"])
        of_bob = bob.devices.reserve("GPU-0", begin="10h", until="3h")
        assert (("bob",), "bob") == (of_bob.users, of_bob.by)
        with pytest.raises(Refused, match=f"reservation {of_admin.id} is not yours"):
            bob.devices.cancel_reservation(of_admin.id)
        bob.devices.cancel_reservation(of_bob.id)
        admin.devices.cancel_reservation(of_admin.id)


def test_the_log_says_what_was_changed(served: ServedSite) -> None:
    """Devices, hosts and requests: the values before and after, or what was asked for if that was refused."""
    served.queue.devices.announce(make_offer("GPU-B", host="nodeB"), worker="w", pid=1, boot_id="boot")
    with served.client("unix") as admin:
        admin.devices.drain("0", reason="the fan")
        admin.devices.resume(all_here=True)
        admin.devices.drain("nodeA", at=NEXT_YEAR)
        with pytest.raises(BadRequest, match="there is no device '9'"):
            admin.devices.drain("9", reason="gone")
        made = admin.devices.reserve("0", begin=NEXT_YEAR, until="2h", users=["eve"], reason="course")
        admin.devices.cancel_reservation(made.id)
        job = admin.jobs.submit(["train", "--key", "hidden"], mem="1G", env={"KEY": "hidden"})
        admin.jobs.edit(job.id, mem="2G", time_limit="10m", after=[])
        with pytest.raises(GpuQueueError):
            admin.jobs.edit(job.id, mem="900G")
        admin.jobs.extend(job.id, "20m")
        with pytest.raises(Refused, match=r"has no time limit: there is nothing to extend"):
            admin.jobs.extend(admin.jobs.submit(["train"], mem="1G").id, 60)
        admin.jobs.tag(job.id, "a", "b")
        admin.jobs.note(job.id, "mind the gap")
        admin.jobs.move(job.id, front=False)
        serve(served.queue, make_offer("GPU-B", host="nodeB", device=make_device("GPU-B")))
        on_b = must_claim(served.queue, "GPU-B", host="nodeB")
        until(lambda: _lost(admin, "nodeB"), what="silence")

    drain, planned, no_drain = the(served, "drain", 3)
    (resume,) = the(served, "resume")
    edit, no_edit = the(served, "edit", 2)
    (lost,) = the(served, "lost", outcomes=[AuditOutcome.DONE])
    assert {"devices": "0", "reason": "the fan", "nodeA:0": "open -> drained (the fan)"} == drain.detail
    open_until = f"open -> open until {NEXT_YEAR:%Y-%m-%d %H:%M} UTC"
    assert {"devices": "nodeA", "at": NEXT_YEAR.isoformat(), "nodeA:0": open_until} == planned.detail
    assert {"devices": "9", "reason": "gone"} == no_drain.detail
    assert {"devices": "all of nodeA", "nodeA:0": "drained (the fan) -> open"} == resume.detail
    (reserve,), (cancel,) = the(served, "reserve"), the(served, "reserve-cancel")
    span = f"{NEXT_YEAR.isoformat()} to {(NEXT_YEAR + timedelta(hours=2)).isoformat()}"
    asked = {"devices": "0", "users": "eve", "time": span, "reason": "course"}
    assert {**asked, "reservation": str(made.id)} == reserve.detail
    assert {"reservation": str(made.id)} == cancel.detail
    assert {"mem_bytes": f"{2**30} -> {2**31}", "time_limit_s": "null -> 600.0"} == edit.detail
    assert ({"mem": "900G"}, AuditOutcome.REFUSED) == (no_edit.detail, no_edit.outcome)
    assert ({"host": "nodeB", "became": f"{on_b.job_id}=queued"}, (str(on_b.job_id),)) == (lost.detail, lost.jobs)
    extended, not_extended = the(served, "extend", 2)
    assert {"time_limit_s": "600.0 -> 1800.0"} == extended.detail
    assert ({"time": "60"}, AuditOutcome.REFUSED) == (not_extended.detail, not_extended.outcome)
    assert {"add": "a b"} == the(served, "tag")[0].detail
    assert {"text": "mind the gap"} == the(served, "note")[0].detail
    assert {"to": "its place by arrival"} == the(served, "move")[0].detail
    with served.client("unix") as admin:
        assert "hidden" not in repr(admin.access.audit(limit=1000))


def _lost(admin: Client, host: str) -> bool:
    try:
        admin.devices.lost(host)
    except Refused:
        return False
    return True


@pytest.mark.parametrize("name", [each.name for each in fields(JobEdit)])
def test_each_change_of_a_request_is_in_the_detail(name: str) -> None:
    """No field of an edit can be changed without a trace."""
    array = Array.parse("0-9") if name == "at_once" else None
    before: JobSpec = make_spec(array=array, time_limit_s=600.0, retries=Retries(times=1))
    after = change_of(JobEdit(**{name: CHANGES[name]}), lambda names: names)(before)

    found = differences(before, after)

    assert found, f"an edit of {name} leaves no trace"
    assert all(" -> " in each for each in found.values())


def test_what_an_admin_reads_of_others_is_recorded(served: ServedSite) -> None:
    """Output, files and environment of the job of another. What owners read of their own jobs is not."""
    with served.client("https", "bobs") as bob:
        job = bob.jobs.submit(["true"], mem="1M", env={"COLOUR": "blue"})
        claim = must_claim(served.queue)
        log = served.settings.runs_dir / str(job.id) / claim.token / "log"
        log.parent.mkdir(parents=True)
        log.write_text('"a line"\n')
        served.queue.runs.started(job.id, claim.token, lease_s=300, log_path=str(log), devices=())
        assert "blue" == bob.jobs.get(job.id).spec.env["COLOUR"]
        assert 200 == ask_log(served, "bobs", job.id)
    with served.client("https", "mine") as admin:
        for _ in range(3):
            assert "blue" == admin.jobs.get(job.id).spec.env["COLOUR"]
            assert 200 == ask_log(served, "mine", job.id)
        stream = events(admin, f"/jobs/{job.id}/log/stream")
        assert "running" == first(stream, "job").value["state"]
        assert '"a line"\n' == first(stream, "output").value
        admin.jobs.list()
        own = admin.jobs.submit(["true"], mem="1M", env={"COLOUR": "red"})
        admin.jobs.show(own.id)
        admin.jobs.cancel(own.id)

    the(served, "cancel")
    me = served.environ["GPUQUEUE_ADMINS"]
    for action in ("see-logs", "see-environment"):
        assert [(me, (str(job.id),), AuditOutcome.DONE)] == [
            (each.account, each.jobs, each.outcome) for each in the(served, action)
        ]


def ask_log(site: ServedSite, token: str, job_id: int) -> int:
    """Return the status of a request for the output of a job."""
    return ask(site, f"/jobs/{job_id}/log", mine(site, token))[0]


def test_keys_without_a_size_are_recorded(served: ServedSite) -> None:
    """A program that types without attaching is in the log like a terminal, once for many keys, also if refused."""
    with served.client("https", "bobs") as bob:
        job = bob.jobs.submit(["true"], mem="1M", env={}).id
    path, body = f"/jobs/{job}/terminal", {"typed": "secret\r"}
    own = [ask(served, path, mine(served, "bobs"), method="POST", body=body)[0] for _ in range(3)]
    others = ask(served, path, mine(served), method="POST", body=body)[0]

    refused, typed = sorted(the(served, "type", 2), key=lambda each: str(each.outcome), reverse=True)
    assert ([403], ("bob", (str(job),), AuditOutcome.DONE)) == ([others], (typed.account, typed.jobs, typed.outcome))
    assert (served.environ["GPUQUEUE_ADMINS"], AuditOutcome.REFUSED) == (refused.account, refused.outcome)
    assert 1 == len(set(own))
    assert "secret" not in json.dumps([dict(each.detail) for each in (refused, typed)])
