from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from findings import by_check, findings

from gpuqueue.doctor.service import CHECKS, away
from gpuqueue.doctor.site import ServiceAnswer, Site
from gpuqueue.errors import NotAuthenticated, Unreachable
from gpuqueue.model.finding import Grade
from gpuqueue.model.joining import SHARED, HostSettings
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.version import VERSION

NOW = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
HERE = Settings.load(
    {
        "GPUQUEUE_CONFIG": os.devnull,
        "GPUQUEUE_STATE_DIR": "/s",
        "GPUQUEUE_HOST": "nodeB",
        "GPUQUEUE_SERVICE_URL": "https://gpu.example.org",
        "GPUQUEUE_REDIS_URL": "rediss://u:p@store/0",
        "GPUQUEUE_RECORD": "false",
    }
)


def make_site(settings: Settings = HERE, **there: object) -> Site:
    """Return a host that is well, with changes to what the service says."""
    shared = {name: getattr(HERE, name) for name in SHARED}
    said = HostSettings(
        host="nodeB",
        version=VERSION,
        now=NOW,
        token_expires_at=None,
        group=None,
        **{**shared, "on_partition": str(HERE.on_partition)},
    )
    answer = ServiceAnswer(there=replace(said, **there), now=NOW, asked_s=0.1)  # type: ignore[arg-type]
    site = Site(settings)
    site.service = lambda: answer
    return site


def test_a_host_that_has_joined_and_is_well_needs_nothing() -> None:
    """All checks pass."""
    assert {Grade.OK} == {each.grade for each in findings(CHECKS, make_site())}


@pytest.mark.parametrize(
    ("check", "there", "grade", "says"),
    [
        ("answers", {"version": "99.0.0"}, Grade.WARNING, "gpuqueue 99.0.0 at https://gpu.example.org, and this is"),
        ("token", {"host": "nodeC"}, Grade.PROBLEM, "the token is for the host nodeC, and this is nodeB"),
        ("token", {"token_expires_at": NOW + timedelta(days=2)}, Grade.WARNING, "expires in 2d 00:00:00"),
        ("token", {"token_expires_at": NOW + timedelta(days=90)}, Grade.OK, "expires in 90d 00:00:00"),
        ("clock", {"now": NOW + timedelta(seconds=60)}, Grade.WARNING, "60.0 s ahead of this machine's"),
        ("clock", {"now": NOW - timedelta(seconds=60)}, Grade.WARNING, "60.0 s behind this machine's"),
        ("common", {"host_lost_after_s": 300.0}, Grade.WARNING, "3720.0 here, and 300.0 at the service"),
        ("common", {"on_partition": "keep"}, Grade.WARNING, "stop here, and keep at the service"),
    ],
)
def test_what_differs_is_found(check: str, there: dict[str, object], grade: Grade, says: str) -> None:
    """Each fault has its finding, and a remedy if it needs one."""
    finding = by_check(CHECKS, make_site(**there))[check]

    assert grade is finding.grade
    assert says in finding.seen
    assert bool(finding.remedy) == (grade is not Grade.OK)


AT = "https://gpu.example.org:443"
SILENT = f"the service at {AT} does not answer: timed out"


@pytest.mark.parametrize(
    ("error", "seen", "remedies"),
    [
        # The remedy names the commands, on both machines.
        (
            NotAuthenticated(f"{AT} does not accept this token: make one"),
            f"{AT} does not accept this token",
            ("gpuqueue token create --host nodeB", "gpuqueue join https://gpu.example.org --token-file FILE"),
        ),
        (Unreachable(SILENT), SILENT, ("jobs go on",)),
    ],
)
def test_a_service_that_does_not_answer_is_reported(error: Exception, seen: str, remedies: tuple[str, ...]) -> None:
    """The remedy says how to mend it, and what goes on without it."""
    finding = away(HERE, CallFailed(str(error), error))

    assert (Grade.PROBLEM, seen) == (finding.grade, finding.seen)
    assert all(remedy in finding.remedy for remedy in remedies)


@pytest.mark.parametrize(
    ("host", "grade", "says"),
    [
        ("nodeB", Grade.OK, "none is needed: the service knows the account of the workers"),
        ("nodeC", Grade.PROBLEM, "the service calls this machine nodeC, and its workers nodeB: no log reaches it"),
    ],
)
def test_workers_beside_the_service_need_no_token(host: str, grade: Grade, says: str) -> None:
    """The kernel says who they are. Both must have one name for the machine."""
    beside = replace(HERE, service_url="unix:///run/gpuqueue/api.sock")

    finding = by_check(CHECKS, make_site(beside, host=host))["token"]

    assert (grade, says) == (finding.grade, finding.seen)
